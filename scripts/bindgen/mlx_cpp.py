"""MLX's public C++ headers -> the committed model of its functions (scripts/api/mlx_cpp-*.json)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bindgen.model import API_DIR, BindgenError

MODEL = API_DIR / "mlx_cpp-0.32.4.json"

# header below mlx/ -> namespace below mlx::core
HEADERS = {
    "ops.h": "",
    "einsum.h": "",
    "fast.h": "fast",
    "fft.h": "fft",
    "linalg.h": "linalg",
    "random.h": "random",
    "transforms.h": "",
    "transforms_impl.h": "detail",
    "compile.h": "",
    "compile_impl.h": "detail",
    "memory.h": "",
    "io.h": "",
    "export.h": "",
    "version.h": "",
    "device.h": "",
    "stream.h": "",
    "distributed/distributed.h": "distributed",
    "distributed/ops.h": "distributed",
    "backend/metal/metal.h": "metal",
    "backend/cuda/cuda.h": "cu",
}


@dataclass(frozen=True)
class CppParam:
    """A C++ parameter; `default` is the source text of its default argument."""

    type: str
    name: str
    default: str | None = None


@dataclass(frozen=True)
class CppFunction:
    """A free function of MLX."""

    namespace: str
    name: str
    result: str
    params: tuple[CppParam, ...]

    @property
    def qualified(self) -> str:
        """The full C++ name."""
        return "::".join(filter(None, ("mlx::core", self.namespace, self.name)))

    @property
    def pointer_type(self) -> str:
        """The exact type of a pointer to it."""
        return f"{self.result} (*)({', '.join(p.type for p in self.params)})"


@dataclass(frozen=True)
class CppApi:
    """The functions that one release of MLX declares."""

    mlx: str
    functions: tuple[CppFunction, ...]


def parse(include: Path) -> CppApi:
    """Read the headers of an `include` directory that holds mlx/mlx.h."""
    version = include / "mlx" / "version.h"
    if not version.is_file():
        raise BindgenError(f"{include} holds no mlx/version.h: give the include directory of the mlx wheel")
    numbers = re.findall(r"#define MLX_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", version.read_text(encoding="utf-8"))
    functions = []
    for header, namespace in HEADERS.items():
        path = include / "mlx" / header
        if not path.is_file():
            raise BindgenError(f"{path} is missing: say in scripts/bindgen/mlx_cpp.py where its functions went")
        functions += list(_functions(path.read_text(encoding="utf-8"), namespace))
    return CppApi(".".join(numbers), tuple(functions))


def update(include: Path, models: Path, accept: bool) -> str:
    """Read MLX's headers into the model; a difference is an error unless accepted."""
    target = models / MODEL.name
    found = parse(include)
    if target.is_file() and load(target) == found:
        return f"{target.name}: the headers give the committed model"
    if not accept:
        known = set(load(target).functions) if target.is_file() else set()
        lines = [f"- {f.qualified}: {f.pointer_type}" for f in known - set(found.functions)]
        lines += [f"+ {f.qualified}: {f.pointer_type}" for f in set(found.functions) - known]
        text = f"the headers of MLX {found.mlx} differ from {target.name} (--accept takes them):"
        raise BindgenError("\n".join([text, *sorted(lines, key=lambda line: line[2:])]))
    target.write_text(dumps(found), encoding="utf-8")
    return f"{target.name}: updated from the headers of MLX {found.mlx}"


def dumps(api: CppApi) -> str:
    """The model as JSON text, a function per line."""

    def row(f: CppFunction) -> str:
        params = [[p.type, p.name] + ([] if p.default is None else [p.default]) for p in f.params]
        return json.dumps({"namespace": f.namespace, "name": f.name, "result": f.result, "params": params})

    rows = ",\n".join("  " + row(f) for f in api.functions)
    return f'{{\n "mlx": {json.dumps(api.mlx)},\n "functions": [\n{rows}\n ]\n}}\n'


def load(path: Path = MODEL) -> CppApi:
    """Read a model file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return CppApi(
        data["mlx"],
        tuple(
            CppFunction(f["namespace"], f["name"], f["result"], tuple(CppParam(*p) for p in f["params"]))
            for f in data["functions"]
        ),
    )


def split_top(text: str, separator: str) -> list[str]:
    """Split at a separator that stands outside <>, (), {} and string literals."""
    parts, depth, quoted, current = [], 0, False, ""
    for c in text:
        quoted ^= c == '"'
        depth += 0 if quoted else (c in "<({") - (c in ">)}")
        if c == separator and depth == 0 and not quoted:
            parts.append(current)
            current = ""
        else:
            current += c
    return [*parts, current] if current.strip() else parts


def _statements(source: str) -> Iterator[str]:
    """Declarations at namespace scope; bodies are dropped."""
    current, parens, i = "", 0, 0
    while i < len(source):
        c = source[i]
        i += 1
        parens += (c == "(") - (c == ")")
        if parens or c not in ";{}":
            current += c
            continue
        if c == "{" and not re.match(r"\s*(namespace\b|extern\s+\"C\")", current):
            depth = 1
            while depth:
                depth += (source[i] == "{") - (source[i] == "}")
                i += 1
        elif c != ";":  # entering or leaving a namespace
            current = ""
            continue
        yield " ".join(current.split())
        current = ""


def _functions(source: str, namespace: str) -> Iterator[CppFunction]:
    source = re.sub(r"/\*.*?\*/", " ", source, flags=re.S)
    source = re.sub(r"//[^\n]*", " ", source)
    source = re.sub(r"^\s*#(?:.*\\\n)*.*$", " ", source, flags=re.M)
    for statement in _statements(source):
        text = re.sub(r"\b(MLX_API|inline|static|constexpr|friend)\b ?", "", statement).strip()
        if re.match(r"(template|struct|class|enum|using|typedef)\b", text) or "operator" in text:
            continue
        start = _open_paren(text)
        head = re.match(r"(.+?)\b(\w+)$", text[:start].strip()) if start is not None else None
        if start is None or not head:
            continue
        params = split_top(text[start + 1 : text.rindex(")")], ",")
        yield CppFunction(namespace, head.group(2), head.group(1).strip(), tuple(map(_param, params)))


def _open_paren(text: str) -> int | None:
    """Position of the first '(' outside <>."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            return i
    return None


def _param(text: str) -> CppParam:
    declaration, *default = split_top(text, "=")
    declaration = declaration.strip()
    named = re.match(r"(.*[\s&>*])(\w+)$", declaration)
    if not named or declaration.endswith((">", "&")) or named.group(1).strip() == "const":
        return CppParam(declaration, "", default[0].strip() if default else None)
    return CppParam(named.group(1).strip(), named.group(2), default[0].strip() if default else None)
