"""mlxc_py/_sys/ort.py: ONNX Runtime's C API and plugin EP API as ctypes structures with typed members."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bindgen.model import Api, BindgenError, Enum, Function, Models, Param, Struct, renders

HEAD = '''"""{api}: tables of function pointers, structs and enums under their C names.

Pointers are ints, None for NULL (an OrtStatus* of None is success); text is bytes. `SINCE_<table>` has, for each
member, the minor version of the release that added it (0: before 1.11): the table of an older ONNX Runtime ends there,
so go through `ort_api.negotiate`.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import (
    CFUNCTYPE,
    Structure,
    Union,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from mlxc_py._sys.abi import Pointer, Text

ORT_API_VERSION = {version}
'''
_SCALARS = {
    "bool": ("c_bool", "bool"),
    "char": ("c_char", "bytes"),
    "unsigned char": ("c_ubyte", "int"),
    "int": ("c_int", "int"),
    "int32_t": ("c_int32", "int"),
    "int64_t": ("c_int64", "int"),
    "size_t": ("c_size_t", "int"),
    "uint32_t": ("c_uint32", "int"),
    "uint64_t": ("c_uint64", "int"),
    "float": ("c_float", "float"),
    "double": ("c_double", "float"),
}


@renders("mlxc_py/_sys/ort.py")
def render(models: Models) -> str:
    api = models.ort
    parts = [
        HEAD.format(
            api=f"ONNX Runtime's C API {api.constants['ORT_API_VERSION']}", version=api.constants["ORT_API_VERSION"]
        )
    ]
    parts += map(_enum, api.enums.values())
    parts.append("\n\n# Opaque types: addresses\n" + "".join(f"{n}: TypeAlias = int\n" for n in api.opaque))
    parts.append("\n# Callback types\n" + "".join(_callbacks(api)))
    parts += [_struct(api, s) for s in api.structs.values()]
    return "".join(parts)


def _enum(e: Enum) -> str:
    return f"\n\nclass {e.name}(IntEnum):\n" + "".join(f"    {n} = {v}\n" for n, v in e.values.items())


def _callbacks(api: Api) -> Iterator[str]:
    for t in api.typedefs.values():
        if "(*)" in t.type:
            result, _, rest = t.type.partition("(*)")
            params = [_kind(api, _tidy(p)) for p in rest.strip("()").split(",") if p.strip() != "void"]
            yield f"{t.name} = CFUNCTYPE({', '.join([_returned(api, _tidy(result), False), *params])})\n"


def _tidy(text: str) -> str:
    """libclang's spelling inside a function type, in the form that the model uses elsewhere."""
    return re.sub(r"\s*\*\s*", "*", text.strip()).strip()


def _struct(api: Api, s: Struct) -> str:
    # Python may implement these tables; a callback cannot return a c_char_p without leaking it.
    implemented = any(m.name in ("ort_version_supported", "version") for m in s.members)
    names = "".join(f"    {m.name}: {_annotation(api, m)}\n" for m in s.members)
    fields = "".join(f'        ("{m.name}", {_field(api, m, implemented)}),\n' for m in s.members)
    base = "Union" if s.union else "Structure"
    text = f"\n\nclass {s.name}({base}):\n{names}    _fields_ = [\n{fields}    ]\n"
    if any(isinstance(m, Function) and m.since for m in s.members):
        text += f"\n\nSINCE_{s.name} = ({', '.join(map(str, since(s)))})\n"
    return text


def since(s: Struct) -> list[int]:
    """Minor version that added each member; an unmarked one counts as the next marked one, to be on the safe side."""
    marks = [int(m.since.split(".")[1]) if isinstance(m, Function) and m.since else None for m in s.members]
    known = [m for m in marks if m is not None]
    if known != sorted(known):
        raise BindgenError(f"{s.name}: its members' versions go backwards, so it is no append-only table")
    out, following = [], known[-1] if known else 0
    first = next((i for i, m in enumerate(marks) if m is not None), len(marks))
    for i in range(len(marks) - 1, -1, -1):
        mark = marks[i]
        following = following if mark is None else mark
        out.append(following if i >= first else 0)
    return out[::-1]


def _field(api: Api, m: Param | Function, implemented: bool) -> str:
    if isinstance(m, Function):
        kinds = [_returned(api, m.result, implemented), *(_kind(api, p.type) for p in m.params)]
        return f"CFUNCTYPE({', '.join(kinds)})"
    if m.type.endswith("]"):
        base, _, count = m.type.rstrip("]").partition("[")
        return f"{_kind(api, base)} * {count}"
    return m.type if m.type in api.structs else _kind(api, m.type)


def _is_pointer(api: Api, text: str) -> bool:
    return "*" in text or text in api.typedefs


def _kind(api: Api, text: str) -> str:
    if text == "const char*":
        return "c_char_p"
    if _is_pointer(api, text):
        return "c_void_p"
    if text in api.enums:
        return "c_int" if api.enums[text].underlying == "int" else "c_uint"
    if text not in _SCALARS:
        raise BindgenError(f"no ctypes type for {text}")
    return _SCALARS[text][0]


def _returned(api: Api, text: str, implemented: bool) -> str:
    if text == "void":
        return "None"
    return "c_void_p" if implemented and text == "const char*" else _kind(api, text)


def _annotation(api: Api, m: Param | Function) -> str:
    if isinstance(m, Function):
        params = ", ".join(_python(api, p.type) for p in m.params)
        result = {"void": "None", "const char*": "bytes | None"}.get(m.result) or (
            "int | None" if _is_pointer(api, m.result) else _python(api, m.result)
        )
        return f"Callable[[{params}], {result}]"
    if m.type in api.structs:
        return m.type
    return "object" if m.type.endswith("]") else _python(api, m.type)


def _python(api: Api, text: str) -> str:
    if text == "const char*":
        return "Text"
    if _is_pointer(api, text):
        return "Pointer"
    return "int" if text in api.enums else _SCALARS[text][1]
