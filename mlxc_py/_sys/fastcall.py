"""Calls of mlx-c functions that make one array, at the cost of a Python extension: ctypes takes several times as long.

    class Array(fastcall.Handle): ...
    call = fastcall.Caller(Array, on_error)
    call.mlx_softmax_axis(a, -1, True)      # a new Array; the stream may be left out

Arguments are those of the C function without its result, positional: Arrays (None for an empty handle), numbers, one
int or several for a pair of `const int*` and count (None for NULL), a sequence of Arrays for a vector, a value or None
for optionals, str for text, an address or a buffer for `void*`, the int handle of a stream. The GIL is held, as in
mlx.core: what waits belongs to ctypes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_size_t, c_void_p, cast, py_object
from typing import TYPE_CHECKING, Any

from mlxc_py._sys import abi, load, plaincall, support
from mlxc_py._sys import mlx as c

_LETTERS = {
    "mlx_array": "a",
    "mlx_vector_array": "v",
    "mlx_stream": "s",
    "mlx_optional_int": "o",
    "mlx_optional_dtype": "o",
    "mlx_optional_float": "g",
    "float": "f",
    "double": "d",
    "const char*": "z",
    "void*": "p",
    "const void*": "p",
    "void (*)(void*)": "p",
    "int": "i",
    "bool": "b",
    **dict.fromkeys(("size_t", "uint64_t", "const int64_t*"), "l"),
}
# What native calls pass, the result's address included; Apple packs the stack by each argument's own size, and only its
# first place is the same. Longer lists go through ctypes, which is told the exact types.
_MOST_WORDS = 9 if sys.platform == "darwin" else 16


def letters_of(signature: abi.Signature) -> str | None:
    """A letter per Python argument (see native/support/support.h) of a function that makes one array, else None."""
    types = [t for t, _ in signature.params]
    if signature.result == "mlx_array":
        letters = "="
    elif signature.result == "int" and types[:1] == ["mlx_array*"]:
        letters = ""
        del types[0]
    else:
        return None
    rest = iter(types)
    for text in rest:
        enum = getattr(c, text, None)
        if text == "const int*" and next(rest, None) in ("size_t", "int"):
            letters += "n"
        elif text in _LETTERS:
            letters += _LETTERS[text]
        elif isinstance(enum, type) and issubclass(enum, int):
            letters += "i"
        else:
            return None
    return letters if "s" not in letters[:-1] else None


class Caller:
    """The functions of mlx-c that make one array, as attributes; each is bound at its first use.

    `result` is the class, derived from Handle, whose objects are made without a call of `__init__`. `on_error` gets the
    C name of a function that failed and must raise.
    """

    def __init__(self, result: type[Any], on_error: Callable[[str], object]) -> None:
        self._result = result
        self._on_error = on_error

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("mlx_"):
            raise AttributeError(f"{type(self).__name__} has functions of mlx-c, and {name} is not one")
        bound = self.bind(name)
        setattr(self, name, bound)
        return bound

    def bind(self, name: str) -> Callable[..., Any]:
        """The callable for a C name, or for an older form's (`mlx_cumsum__06`); SymbolError where there is none."""
        signature = _signature(name)
        if signature is None:
            raise load.SymbolError(f"mlx-c has no function {name}")
        return self.bind_signature(signature)

    def bind_signature(self, signature: abi.Signature) -> Callable[..., Any]:
        """The callable for a function that mlx-c need not have: libmlxc exports some of its own."""
        name = signature.name
        if why := abi.unavailable(signature, load.library()):
            raise load.SymbolError(why)
        letters = letters_of(signature)
        if letters is None:
            raise load.SymbolError(f"{name} does not make one array of plain arguments: call mlxc_py._sys.mlx.{name}")
        return _bind(name, c.bind.resolve(signature), letters, self._result, self._on_error)

    def has(self, name: str) -> bool:
        """Whether `bind` succeeds with the library in use."""
        signature = _signature(name)
        return bool(signature and letters_of(signature) is not None and not abi.unavailable(signature, load.library()))


def reader(name: str, on_empty: Callable[[Any], Any]) -> Callable[[Any], int]:
    """The callable for a C function that tells an integer about one array; `on_empty` gets released arrays."""
    function = c.bind.resolve(c.FUNCTIONS[name])
    return _reader(name, function, None, on_empty)


def shape_reader(on_empty: Callable[[Any], Any]) -> Callable[[Any], tuple[int, ...]]:
    """A callable that gives an array's shape; `on_empty` gets released arrays."""
    shape, ndim = (c.bind.resolve(c.FUNCTIONS[name]) for name in ("mlx_array_shape", "mlx_array_ndim"))
    return _reader("mlx_array_shape", shape, ndim, on_empty)


def data_reader(on_unfit: Callable[[Any], Any]) -> Callable[[Any], int]:
    """A callable that gives the address of an evaluated row-contiguous array's data; `on_unfit` gets the others."""
    names = ("mlx_array_data_uint8", "_mlx_array_is_available", "_mlx_array_is_row_contiguous")
    data, available, contiguous = (c.bind.resolve(c.FUNCTIONS[name]) for name in names)
    return _data_reader(data, available, contiguous, on_unfit)


def _signature(name: str) -> abi.Signature | None:
    return c.FUNCTIONS.get(name) or c.OLDER_FORMS.get(name)


def _function(name: str) -> c_void_p:
    return cast(load.library().function(name), c_void_p)


def _native() -> bool:
    # Another object layout (a free-threaded CPython) has no use for the library's calls.
    if support.library() is None:
        return False
    return bool(support.function("mlxc_support_python", c_int, c_size_t)(object.__basicsize__) == 0)


NATIVE = _native()
"""Whether calls take the native way."""

if TYPE_CHECKING or not NATIVE:
    from mlxc_py._sys.plaincall import Handle, current_stream, drop_stream, forget_streams, set_resolver, set_stream

    _bind, _reader, _data_reader = plaincall.bind, plaincall.reader, plaincall.data_reader
else:
    _new_binding = support.function("mlxc_support_bind", py_object, c_char_p, c_void_p, c_char_p, py_object, py_object)
    _new_reader = support.function("mlxc_support_reader", py_object, c_char_p, c_void_p, c_void_p, c_int, py_object)
    _new_data_reader = support.function("mlxc_support_data_reader", py_object, c_void_p, c_void_p, c_void_p, py_object)
    Handle = support.function("mlxc_support_handle_type", py_object, c_void_p)(_function("mlx_array_free"))
    support.function("mlxc_support_vectors", None, c_void_p, c_void_p)(
        _function("mlx_vector_array_new_data"), _function("mlx_vector_array_free")
    )
    set_stream = support.function("mlxc_support_set_stream", None, c_void_p, c_int)
    drop_stream = support.function("mlxc_support_drop_stream", None, c_void_p)
    forget_streams = support.function("mlxc_support_forget_streams", None)
    set_resolver = support.function("mlxc_support_stream_resolver", None, py_object)
    current_stream = support.function("mlxc_support_current_stream", c_void_p)

    def _bind(
        name: str, function: Any, letters: str, result: type[Any], on_error: Callable[[str], object]
    ) -> Callable[..., Any]:
        words = len(letters) + letters.count("n") - letters.count("f") - letters.count("d") + ("=" not in letters)
        if words > _MOST_WORDS:
            return plaincall.bind(name, function, letters, result, on_error, current_stream)
        address = cast(function, c_void_p)
        bound: Callable[..., Any] = _new_binding(name.encode(), address, letters.encode(), result, on_error)
        return bound

    def _reader(name: str, function: Any, count: Any, on_empty: Callable[[Any], Any]) -> Callable[[Any], Any]:
        wide = function.restype is c_size_t
        where = [None if f is None else cast(f, c_void_p) for f in (function, count)]
        made: Callable[[Any], Any] = _new_reader(name.encode(), *where, wide, on_empty)
        return made

    def _data_reader(
        data: Any, available: Any, contiguous: Any, on_unfit: Callable[[Any], Any]
    ) -> Callable[[Any], int]:
        made: Callable[[Any], int] = _new_data_reader(
            *(cast(f, c_void_p) for f in (data, available, contiguous)), on_unfit
        )
        return made


__all__ = [
    "NATIVE",
    "Caller",
    "Handle",
    "current_stream",
    "data_reader",
    "drop_stream",
    "forget_streams",
    "letters_of",
    "reader",
    "set_resolver",
    "set_stream",
    "shape_reader",
]
