"""Headers -> API model, with libclang. Needs the `gen` extra; nothing else in the generator does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bindgen.model import Api, BindgenError, Enum, Function, Param, Struct, Typedef

# The few system headers that the APIs include, as virtual files: the result then depends on the given
# headers alone, and no compiler or SDK has to be found. AArch64 is parsed because it declares the most.
_SYSTEM = {
    "stdbool.h": "#define bool _Bool\n",
    "stddef.h": "typedef __SIZE_TYPE__ size_t;\n",
    "stdint.h": "".join(
        f"typedef {c} {u}int{n}_t;\n"
        for n, c in ((8, "__INT8_TYPE__"), (16, "__INT16_TYPE__"), (32, "__INT32_TYPE__"), (64, "__INT64_TYPE__"))
        for u, c in (("", c), ("u", c.replace("__INT", "__UINT")))
    )
    + "typedef __UINTPTR_TYPE__ uintptr_t;\ntypedef __INTPTR_TYPE__ intptr_t;\n",
    "stdio.h": "#include <stddef.h>\ntypedef struct _IO_FILE FILE;\n",
    "stdlib.h": "#include <stddef.h>\n",
    "string.h": "#include <stddef.h>\n",
    "complex.h": "",
    "float.h": "",
    "arm_fp16.h": "",
    "arm_bf16.h": "",
}
_SYSTEM_DIR = "/bindgen-system"
_ARGS = ["-x", "c", "-std=c11", "-target", "aarch64-linux-gnu", "-nostdinc", "-isystem", _SYSTEM_DIR]


def parse_mlx_c(directory: Path, api: str) -> Api:
    """Parse mlx-c headers; `directory` is the include directory (holds mlx/c/mlx.h)."""
    if not (directory / "mlx" / "c" / "mlx.h").is_file():
        raise BindgenError(f"{directory} holds no mlx/c/mlx.h: give the include directory of mlx-c")
    # graph_utils.h and others are not in the mlx.h of every release, so all headers are named.
    names = sorted(p.name for p in (directory / "mlx" / "c").glob("*.h") if p.name != "mlx.h")
    source = '#include "mlx/c/mlx.h"\n' + "".join(f'#include "mlx/c/{n}"\n' for n in names)
    return _Reader(directory, source, "mlx", api).read()


def parse_ort(directory: Path) -> Api:
    """Parse ONNX Runtime's C API; `directory` holds onnxruntime_c_api.h."""
    if not (directory / "onnxruntime_c_api.h").is_file():
        raise BindgenError(f"{directory} holds no onnxruntime_c_api.h")
    api = _Reader(directory, '#include "onnxruntime_c_api.h"\n', "ort", "").read()
    return Api(**{**api.__dict__, "api": f"onnxruntime C API {api.constants['ORT_API_VERSION']}"})


class _Reader:
    def __init__(self, directory: Path, source: str, kind: str, api: str) -> None:
        try:
            from clang import cindex
        except ImportError as e:
            raise BindgenError("parsing headers needs libclang: pip install 'mlxc-py[gen]'") from e
        self.ci: Any = cindex
        self.directory, self.kind, self.api = directory.resolve(), kind, api
        files = [(f"{_SYSTEM_DIR}/{n}", text) for n, text in _SYSTEM.items()] + [("api.c", source)]
        self.unit = cindex.Index.create().parse(
            "api.c",
            args=[*_ARGS, f"-I{self.directory}"],
            unsaved_files=files,
            options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD,
        )
        errors = [str(d) for d in self.unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
        if errors:
            raise BindgenError("headers do not parse:\n  " + "\n  ".join(errors))
        self.functions: dict[str, Function] = {}
        self.structs: dict[str, Struct] = {}
        self.enums: dict[str, Enum] = {}
        self.typedefs: dict[str, Typedef] = {}
        self.declared: dict[str, None] = {}
        self.constants: dict[str, int | str] = {}

    def read(self) -> Api:
        kinds = self.ci.CursorKind
        for c in self.unit.cursor.get_children():
            if c.location.file is None or not self._ours(c):
                continue
            if c.kind == kinds.FUNCTION_DECL:
                self.functions.setdefault(c.spelling, self._function(c))
            elif c.kind == kinds.STRUCT_DECL and c.spelling:
                self._struct(c)
            elif c.kind == kinds.ENUM_DECL and c.spelling:
                self._enum(c, c.spelling)
            elif c.kind == kinds.TYPEDEF_DECL:
                self._typedef(c)
            elif c.kind == kinds.MACRO_DEFINITION:
                self._macro(c)
            elif c.kind == kinds.UNION_DECL:
                raise BindgenError(f"union {c.spelling}: the generator knows no unions yet")
        functions = tuple(self.functions.values())
        if self.kind == "mlx":  # sorted, because the order of declarations says nothing and changes often
            functions = tuple(sorted(functions, key=lambda f: (f.header, f.name)))
            return Api(self.api, functions, by_key(self.structs), by_key(self.enums), by_key(self.typedefs))
        opaque = tuple(n for n in self.declared if n not in self.structs)
        return Api(self.api, functions, self.structs, self.enums, self.typedefs, opaque, self.constants)

    def _ours(self, c: Any) -> bool:
        name = Path(c.location.file.name)
        return not str(name).startswith(_SYSTEM_DIR) and name.resolve().is_relative_to(self.directory)

    def _header(self, c: Any) -> str:
        return Path(c.location.file.name).name

    # ------------------------------------------------------------ declarations
    def _function(self, c: Any) -> Function:
        params = tuple(self._param(p, i) for i, p in enumerate(c.get_arguments()))
        variadic = c.type.kind == self.ci.TypeKind.FUNCTIONPROTO and c.type.is_function_variadic()
        return Function(c.spelling, type_text(c.result_type), params, self._header(c), variadic=variadic)

    def _param(self, p: Any, index: int) -> Param:
        text = type_text(p.type)
        nullable = self.kind == "mlx" and "may be null" in self._tail(p)
        return Param(p.spelling or f"arg{index}", text, nullable)

    def _tail(self, p: Any) -> str:
        """Source text from a parameter's name to the next comma or parenthesis (its trailing comment)."""
        data = Path(p.location.file.name).read_bytes()
        rest = data[p.extent.end.offset : p.extent.end.offset + 80].decode("utf-8", "replace")
        return re.split(r"[,)]", rest)[0]

    def _struct(self, c: Any) -> None:
        self.declared.setdefault(c.spelling)
        if not c.is_definition():
            return
        name = self._name_of_tag(c)
        members: list[Param | Function] = []
        for f in c.get_children():
            if f.kind == self.ci.CursorKind.FIELD_DECL:
                declared = f.type.get_declaration()
                if declared.kind == self.ci.CursorKind.UNION_DECL:
                    members.append(self._union(f"{name}_{f.spelling}", f, declared))
                else:
                    members.append(self._member(name, f))
            elif f.kind == self.ci.CursorKind.STRUCT_DECL:
                raise BindgenError(f"{name}: a struct inside a struct, which the generator does not know")
        self.structs[name] = Struct(name, c.spelling, tuple(members), self._header(c))

    def _union(self, name: str, f: Any, union: Any) -> Param:
        """An anonymous union becomes a named one, since ctypes and a reader both want a name."""
        members = tuple(self._member(name, m) for m in union.get_children() if m.kind.name == "FIELD_DECL")
        self.structs[name] = Struct(name, "", members, self._header(f), union=True)
        return Param(f.spelling, name)

    def _name_of_tag(self, c: Any) -> str:
        """mlx-c writes `typedef struct mlx_array_ {...} mlx_array`; ORT names both alike."""
        return c.spelling.removesuffix("_") if self.kind == "mlx" else c.spelling

    def _member(self, owner: str, f: Any) -> Param | Function:
        if f.is_bitfield():
            raise BindgenError(f"{owner}.{f.spelling}: bit fields are not supported")
        proto = function_proto(f.type, self.ci)
        if proto is None or self.kind == "mlx":
            return Param(f.spelling, type_text(f.type))
        names = [p for p in f.get_children() if p.kind == self.ci.CursorKind.PARM_DECL]
        types = list(proto.argument_types())
        params = tuple(
            Param((names[i].spelling if i < len(names) else "") or f"arg{i}", type_text(t)) for i, t in enumerate(types)
        )
        return Function(f.spelling, type_text(proto.get_result()), params, since=since_of(f.raw_comment))

    def _enum(self, c: Any, spelling: str) -> None:
        if not c.is_definition():
            return
        name = self._name_of_tag(c)
        values = {e.spelling: int(e.enum_value) for e in c.get_children() if e.kind.name == "ENUM_CONSTANT_DECL"}
        self.enums[name] = Enum(name, spelling, type_text(c.enum_type), values, self._header(c))

    def _typedef(self, c: Any) -> None:
        under = c.underlying_typedef_type
        target = under.get_declaration()
        if target.kind in (self.ci.CursorKind.STRUCT_DECL, self.ci.CursorKind.ENUM_DECL):
            if target.spelling and self._name_of_tag(target) != c.spelling and target.spelling != c.spelling:
                self.typedefs[c.spelling] = Typedef(c.spelling, type_text(under), self._header(c))
            return
        self.typedefs[c.spelling] = Typedef(c.spelling, type_text(under), self._header(c))

    # ------------------------------------------------------------ constants
    def _macro(self, c: Any) -> None:
        tokens = [t.spelling for t in c.get_tokens()]
        if self.kind == "ort" and len(tokens) == 2 and re.fullmatch(r"\d+", tokens[1]):
            self.constants[tokens[0]] = int(tokens[1])


def function_proto(t: Any, ci: Any) -> Any | None:
    """The function type behind a function pointer written out in place, else None (named callbacks stay named)."""
    while t.kind == ci.TypeKind.ELABORATED:
        t = t.get_named_type()
    if t.kind != ci.TypeKind.POINTER:
        return None
    p = t.get_pointee()
    while p.kind.name in ("UNEXPOSED", "ATTRIBUTED", "ELABORATED") and p.get_canonical().kind.name == "FUNCTIONPROTO":
        p = p.get_canonical()
    return p if p.kind == ci.TypeKind.FUNCTIONPROTO else None


def type_text(t: Any) -> str:
    """C text of a type: no by-value const, `T*` for pointers, callbacks as libclang spells them."""
    text = str(t.spelling)
    if "(*)" in text:
        text = re.sub(r"\s*__attribute__\(\(.*?\)\)\)?", "", text)
        return text.replace("_Bool", "bool")
    text = re.sub(r"\b(struct|enum) ", "", text).replace("_Bool", "bool")
    text = re.sub(r"\[\]$", "*", text)
    text = re.sub(r"\s*\*\s*", "*", text).replace("*const", "* const").strip()
    if "*" not in text:
        text = re.sub(r"\bconst ", "", text)
    return re.sub(r"\* const$", "*", text)


def by_key(table: dict[str, Any]) -> dict[str, Any]:
    """The table in the order of its keys."""
    return dict(sorted(table.items()))


def since_of(comment: str | None) -> str:
    """The release named by a `\\since Version 1.NN` line of a comment ("" when there is none)."""
    m = re.search(r"since Version (1\.\d+)", comment or "", re.IGNORECASE)
    return m.group(1) if m else ""
