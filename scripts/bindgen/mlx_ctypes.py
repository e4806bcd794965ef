"""mlxc_py/_sys/mlx.py: every name of mlx-c as typed, lazily bound ctypes."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from itertools import groupby

from bindgen import irregular
from bindgen.model import Api, BindgenError, Enum, Function, Models, Param, Struct, renders

HEAD = '''"""mlx-c {api}: every function, struct, enum and callback type under its C name.

Arguments: handles, pointers and integers are Python ints, text is bytes, an mlx_optional_* is None or
`abi.optional_int(value)` and its like. Results: int, 0 for NULL; a `const char*` is bytes or None. Functions resolve at
their first call, which loads libmlxc. The last section has the forms that older libraries export under the same names.
"""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

from ctypes import CFUNCTYPE, Structure, c_bool, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from enum import IntEnum
from typing import TYPE_CHECKING

from mlxc_py._sys.abi import Binder

if TYPE_CHECKING:
    from mlxc_py._sys.abi import Pointer, Text

API = "{api}"
bind = Binder(globals())
'''
_FIELDS = {"void*": "c_void_p", "int": "c_int", "bool": "c_bool", "float": "c_float", "mlx_dtype": "c_uint"}
_CALLBACK = {"void": "None", "int": "c_int", "bool": "c_bool", "size_t": "c_size_t", "int64_t": "c_int64"}
_PYTHON = {"void": "None", "float": "float", "double": "float", "bool": "bool"}
_INTS = {"int", "size_t", "uint64_t", "uintptr_t"}


@renders("mlxc_py/_sys/mlx.py")
def render(models: Models) -> str:
    irregular.check(models)
    api = models.mlx_07
    parts = [HEAD.format(api=api.api), *map(_enum, api.enums.values()), *_structs(api), _callbacks(api)]
    for header, functions in groupby(api.functions, key=lambda f: f.header):
        parts.append(f"\n# {header}\n" + "".join(_function(api, f) for f in functions))
    parts.append("\n# Older forms: mlx-c 0.6 (__06) and 0.6.0 (__060)\n" + "".join(_older(models)))
    parts.append("\nFUNCTIONS = bind.functions\nOLDER_FORMS = bind.older\nFUNCTION_COUNT = len(FUNCTIONS)\n")
    return "".join(parts)


# ---------------------------------------------------------------- types
def _enum(e: Enum) -> str:
    members = "".join(f"    {n} = {v}\n" for n, v in e.values.items())
    constants = "".join(f"{n} = {v}\n" for n, v in e.values.items())
    return f"\n\nclass {e.name}(IntEnum):\n{members}\n\n{constants}"


def _structs(api: Api) -> Iterator[str]:
    yield "\n"
    for s in api.structs.values():
        yield f"\nclass {s.name}(Structure):\n{_annotations(s)}"
        fields = ", ".join(f'("{m.name}", {_field(m)})' for m in s.members)
        yield f"    _fields_ = [{fields}]\n\n"


def _annotations(s: Struct) -> str:
    """Attribute types for readers and mypy; ctypes itself reads _fields_."""
    types = {"c_void_p": "int | None", "c_bool": "bool", "c_float": "float", "c_int": "int", "c_uint": "int"}
    return "".join(f"    {m.name}: {types.get(_field(m), 'object')}\n" for m in s.members)


def _field(member: Param | Function) -> str:
    assert isinstance(member, Param)
    return callback(member.type) if "(*)" in member.type else _FIELDS[member.type]


def callback(text: str) -> str:
    """CFUNCTYPE expression for a C function pointer; handles and pointers arrive as ints, 0 for NULL."""
    result, _, rest = text.partition("(*)")
    params = [p.strip() for p in rest.strip("()").split(",")]
    kinds = [_CALLBACK.get(p, "c_size_t") for p in params if p != "void"]
    returned = "c_void_p" if "*" in result else _CALLBACK[result.strip()]
    return f"CFUNCTYPE({', '.join([returned, *kinds])})"


def _callbacks(api: Api) -> str:
    """Named callback types, and `<function>_<parameter>` for those that the headers leave unnamed."""
    lines = [f"{t.name} = {callback(t.type)}\n" for t in api.typedefs.values() if "(*)" in t.type]
    lines += [f"{f.name}_{p.name} = {callback(p.type)}\n" for f in api.functions for p in f.params if "(*)" in p.type]
    return "\n# Callback types\n" + "".join(lines)


# ---------------------------------------------------------------- functions
def _function(api: Api, f: Function) -> str:
    marker = irregular.CHANGED_IN_07.get(f.name) or irregular.CHANGED_IN_06.get(f.name)
    options = f', marker="{marker}"' if marker else ""
    if f.since and f.since != "<=0.6.0":
        options += f', since="{f.since}"'
    return f"\n\n@bind({_types(f)}{options})\n{_stub(api, f, f.name)}"


def _older(models: Models) -> Iterator[str]:
    old = models.mlx_06
    forms = [(old.by_name[n], "06", m) for n, m in irregular.CHANGED_IN_07.items()]
    forms += [(f, "060", irregular.CHANGED_IN_06[f.name]) for f in old.older]
    for f, suffix, marker in forms:
        yield f'\n\n@bind.before("{marker}", "{f.name}", {_types(f)})\n{_stub(old, f, f"{f.name}__{suffix}")}'


def _types(f: Function) -> str:
    return ", ".join(f'"{t}"' for t in f.abi)


def _stub(api: Api, f: Function, name: str) -> str:
    params = [f"{_identifier(p.name)}: {_python(api, p.type)}" for p in f.params]
    if f.variadic:
        params.append("*args: object")
    return f"def {name}({', '.join(params)}) -> {_result(api, f.result)}: ...\n"


def _identifier(name: str) -> str:
    return name + "_" if keyword.iskeyword(name) else name


def _python(api: Api, text: str) -> str:
    if text in _PYTHON:
        return _PYTHON[text]
    if text in _INTS or text in api.enums or text in api.handles:
        return "int"
    if text in irregular.OPTIONALS:
        return "int | None"
    if text == "const char*":
        return "Text"
    if "*" in text or text in api.typedefs:
        return "Pointer"
    if text in irregular.STRUCTS_BY_VALUE:
        return text
    raise BindgenError(f"no Python type for {text}")


def _result(api: Api, text: str) -> str:
    if text == "const char*":
        return "bytes | None"
    return "int" if "*" in text else _python(api, text)
