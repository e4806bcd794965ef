"""The API models: typed views of scripts/api/*.json, and the registry of renderers that turn them into files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
API_DIR = ROOT / "scripts" / "api"


class BindgenError(Exception):
    """The headers, the models or a generated file are not what the generator expects."""


@dataclass(frozen=True)
class Param:
    """One parameter or struct member; `type` is C source text without a by-value const."""

    name: str
    type: str
    nullable: bool = False


@dataclass(frozen=True)
class Function:
    """A function, or a function pointer in a table (then `header` is empty)."""

    name: str
    result: str
    params: tuple[Param, ...]
    header: str = ""
    since: str = ""
    changed_in: tuple[str, ...] = ()
    variadic: bool = False

    @property
    def signature(self) -> str:
        """The C prototype, without trailing semicolon."""
        args = ", ".join(declare(p.type, p.name) for p in self.params)
        if self.variadic:
            args += ", ..."
        return f"{declare(self.result, self.name)}({args or 'void'})"

    @property
    def abi(self) -> tuple[str, ...]:
        """What a caller depends on: result and parameter types, not names."""
        return (self.result, *(p.type for p in self.params), *(("...",) if self.variadic else ()))


@dataclass(frozen=True)
class Struct:
    """A struct with its members; a member is a Param, or a Function where it is a function pointer."""

    name: str
    tag: str
    members: tuple[Param | Function, ...]
    header: str = ""
    union: bool = False

    @property
    def is_handle(self) -> bool:
        """Whether it is one `void* ctx`, passed by value in one register."""
        return len(self.members) == 1 and isinstance(self.members[0], Param) and self.members[0].type == "void*"


@dataclass(frozen=True)
class Enum:
    """An enum; `underlying` is the C integer type that the compiler gives it."""

    name: str
    tag: str
    underlying: str
    values: dict[str, int]
    header: str = ""


@dataclass(frozen=True)
class Typedef:
    """A typedef of something that is no struct or enum of the API (callback types, scalars)."""

    name: str
    type: str
    header: str = ""


@dataclass(frozen=True)
class Api:
    """One API: mlx-c of a generation, or ONNX Runtime's C API. `constants` are macros and static strings."""

    api: str
    functions: tuple[Function, ...]
    structs: dict[str, Struct]
    enums: dict[str, Enum]
    typedefs: dict[str, Typedef]
    opaque: tuple[str, ...] = ()
    constants: dict[str, int | str] = field(default_factory=dict)
    older: tuple[Function, ...] = ()
    """mlx_c-0.6 only: the signatures of 0.6.0 that changed before the 0.6 line's head."""

    @cached_property
    def by_name(self) -> dict[str, Function]:
        """Functions by C name."""
        return {f.name: f for f in self.functions}

    @property
    def handles(self) -> frozenset[str]:
        """Names of the one-pointer structs passed by value."""
        return frozenset(s.name for s in self.structs.values() if s.is_handle)


def declare(type_text: str, name: str) -> str:
    """C declaration of `name` with a type given as text, function pointers and arrays included."""
    if "(*)" in type_text:
        return type_text.replace("(*)", f"(*{name})", 1)
    if type_text.endswith("]"):
        base, _, count = type_text.partition("[")
        return f"{base.strip()} {name}[{count}"
    return f"{type_text} {name}"


# ---------------------------------------------------------------- JSON
def _param_out(p: Param) -> dict[str, Any]:
    return {"name": p.name, "type": p.type, **({"nullable": True} if p.nullable else {})}


def _function_out(f: Function) -> dict[str, Any]:
    out: dict[str, Any] = {"name": f.name, "result": f.result, "params": [_param_out(p) for p in f.params]}
    if f.header:
        out["header"] = f.header
    if f.since:
        out["since"] = f.since
    if f.changed_in:
        out["signature_changed_in"] = list(f.changed_in)
    if f.variadic:
        out["variadic"] = True
    return out


def _member_out(m: Param | Function) -> dict[str, Any]:
    return _function_out(m) if isinstance(m, Function) else _param_out(m)


def _function_in(d: dict[str, Any]) -> Function:
    return Function(
        d["name"],
        d["result"],
        tuple(_param_in(p) for p in d["params"]),
        d.get("header", ""),
        d.get("since", ""),
        tuple(d.get("signature_changed_in", ())),
        d.get("variadic", False),
    )


def _param_in(d: dict[str, Any]) -> Param:
    return Param(d["name"], d["type"], d.get("nullable", False))


def _member_in(d: dict[str, Any]) -> Param | Function:
    return _function_in(d) if "params" in d else _param_in(d)


def dumps(api: Api) -> str:
    """The model as JSON text: one function, member or type per line, so that a diff of models reads well."""

    def rows(items: list[Any]) -> str:
        return "[\n" + ",\n".join("  " + json.dumps(i) for i in items) + "\n ]" if items else "[]"

    def table(items: dict[str, Any]) -> str:
        body = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in items.items())
        return "{\n" + body + "\n }" if items else "{}"

    def struct(s: Struct) -> str:
        members = ",\n".join("    " + json.dumps(_member_out(m)) for m in s.members)
        union = ' "union": true,' if s.union else ""
        return (
            f'  {json.dumps(s.name)}: {{"tag": {json.dumps(s.tag)}, "header": {json.dumps(s.header)},{union}'
            f' "members": [\n{members}]}}'
        )

    parts = [
        f' "api": {json.dumps(api.api)}',
        f' "functions": {rows([_function_out(f) for f in api.functions])}',
        ' "structs": {\n' + ",\n".join(struct(s) for s in api.structs.values()) + "\n }",
        ' "enums": '
        + table(
            {
                e.name: {"tag": e.tag, "header": e.header, "underlying": e.underlying, "values": e.values}
                for e in api.enums.values()
            }
        ),
        ' "typedefs": ' + table({t.name: {"type": t.type, "header": t.header} for t in api.typedefs.values()}),
        f' "opaque": {json.dumps(list(api.opaque))}',
        ' "constants": ' + table(dict(api.constants)),
    ]
    if api.older:
        parts.append(f' "signatures_0_6_0": {rows([_function_out(f) for f in api.older])}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def loads(text: str) -> Api:
    """Reverse of `dumps`."""
    d = json.loads(text)
    return Api(
        d["api"],
        tuple(_function_in(f) for f in d["functions"]),
        {
            n: Struct(n, s["tag"], tuple(_member_in(m) for m in s["members"]), s["header"], s.get("union", False))
            for n, s in d["structs"].items()
        },
        {n: Enum(n, e["tag"], e["underlying"], e["values"], e["header"]) for n, e in d["enums"].items()},
        {n: Typedef(n, t["type"], t["header"]) for n, t in d["typedefs"].items()},
        tuple(d["opaque"]),
        d["constants"],
        tuple(_function_in(f) for f in d.get("signatures_0_6_0", ())),
    )


def load(path: Path) -> Api:
    """Read a model file."""
    return loads(path.read_text(encoding="utf-8"))


def save(api: Api, path: Path) -> None:
    """Write a model file."""
    path.write_text(dumps(api), encoding="utf-8")


@dataclass(frozen=True)
class Models:
    """The three committed models, as renderers receive them."""

    mlx_07: Api
    mlx_06: Api
    ort: Api


def load_models(directory: Path = API_DIR) -> Models:
    """Read the committed models."""
    return Models(*(load(directory / f"{name}.json") for name in ("mlx_c-0.7", "mlx_c-0.6", "ort_c")))


# ---------------------------------------------------------------- renderers
Render = Callable[[Models], str]
RENDERERS: list[tuple[str, Render]] = []
"""(output path relative to the repository root, function giving the body below the header line)."""


def renders(path: str) -> Callable[[Render], Render]:
    """Register a function as the renderer of `path`; the seal line is put on top by the caller."""

    def register(function: Render) -> Render:
        if any(path == other for other, _ in RENDERERS):
            raise BindgenError(f"two renderers for {path}")
        RENDERERS.append((path, function))
        return function

    return register
