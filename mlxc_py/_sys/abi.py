"""How C signatures become ctypes calls: argument kinds, and the decorator that resolves a function at its first call.

Handles (one-pointer structs passed by value), pointers and integers travel as c_void_p with Python ints: on x86-64 and
AArch64 they take the same register, and ctypes converts c_void_p fastest. Results that are pointers or handles are
ints, 0 for NULL. An mlx_optional_* is one 64-bit register: None (absent), or optional_int/float/dtype(value).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, MutableMapping
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeAlias, TypeVar

from mlxc_py._sys import load

if TYPE_CHECKING:
    from _ctypes import _CArgObject, _Pointer

    Pointer: TypeAlias = (
        int | bytes | ctypes.Array[Any] | _Pointer[Any] | _CArgObject | ctypes._CFunctionType | ctypes.c_void_p | None
    )
    Text: TypeAlias = bytes | ctypes.Array[ctypes.c_char] | ctypes.c_char_p | None

F = TypeVar("F", bound=Callable[..., Any])

# Integer registers that carry arguments on AArch64. Beyond them Apple packs the stack by each argument's own size,
# so an int or a bool there needs its exact type.
_REGISTERS = 8
_INTEGERS: Mapping[str, Any] = {
    "int": ctypes.c_int,
    "bool": ctypes.c_bool,
    "size_t": ctypes.c_void_p,
    "uint64_t": ctypes.c_void_p,
    "uintptr_t": ctypes.c_void_p,
}
_FLOATS: Mapping[str, Any] = {"float": ctypes.c_float, "double": ctypes.c_double}
_RESULTS: Mapping[str, Any] = {
    "void": None,
    "int": ctypes.c_int,
    "bool": ctypes.c_bool,
    "size_t": ctypes.c_size_t,
    "const char*": ctypes.c_char_p,
    **_FLOATS,
}


class Signature(NamedTuple):
    """A C function: its types as in the header, and what tells whether a library has this form of it."""

    name: str
    result: str
    params: tuple[tuple[str, str], ...]
    """(type, name) of each parameter."""
    symbol: str
    marker: str
    """Name exported together with the newer form; empty where the signature never changed."""
    newer: bool
    since: str

    def __str__(self) -> str:
        return f"{self.result} {self.symbol}({', '.join(f'{t} {n}' for t, n in self.params) or 'void'})"


class Binder:
    """The `bind` decorator of a generated module: replaces typed stubs by functions that resolve when called.

    The first call through `module.name` puts the raw ctypes function into the module, so later ones cost no more.
    """

    def __init__(self, namespace: MutableMapping[str, Any]) -> None:
        self.namespace = namespace
        self.functions: dict[str, Signature] = {}
        self.older: dict[str, Signature] = {}

    def __call__(self, result: str, *types: str, marker: str = "", since: str = "") -> Callable[[F], F]:
        """Bind a stub named as its symbol; `marker` is exported where the library has this form."""

        def decorate(stub: F) -> F:
            signature = Signature(stub.__name__, result, _named(stub, types), stub.__name__, marker, True, since)
            self.functions[signature.name] = signature
            return self._lazy(stub, signature)

        return decorate

    def before(self, marker: str, symbol: str, result: str, *types: str) -> Callable[[F], F]:
        """Bind a stub to the older form of `symbol`, which libraries without `marker` have."""

        def decorate(stub: F) -> F:
            signature = Signature(stub.__name__, result, _named(stub, types), symbol, marker, False, "")
            self.older[signature.name] = signature
            return self._lazy(stub, signature)

        return decorate

    def _lazy(self, stub: F, signature: Signature) -> F:
        function: Any = None

        def first_call(*args: Any) -> Any:
            nonlocal function
            if function is None:
                function = self.resolve(signature)
                self.namespace[signature.name] = function
            return function(*args)

        first_call.__name__ = first_call.__qualname__ = stub.__name__
        first_call.__wrapped__ = stub  # type: ignore[attr-defined]
        return first_call  # type: ignore[return-value]

    def resolve(self, signature: Signature) -> Any:
        """The ctypes function with its types set; SymbolError where the library lacks it or has another form."""
        if why := unavailable(signature, load.library()):
            raise load.SymbolError(why)
        function = load.library().function(signature.symbol)
        function.argtypes = argument_types([t for t, _ in signature.params], self.namespace)
        function.restype = result_type(signature.result, self.namespace)
        return function


def _named(stub: Callable[..., Any], types: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(types, stub.__code__.co_varnames, strict=False))


def unavailable(signature: Signature, library: load.Library) -> str | None:
    """Why this form of a function cannot be called in a library, None when it can."""
    name, where = signature.symbol, f"{library.path} (mlx-c {library.generation}, MLX {library.mlx_version})"
    if signature.params and signature.params[-1][0] == "...":
        return f"{name} is variadic and cannot be called through ctypes; use mlx_set_error_handler"
    if not library.has(name):
        needs = f"; it came with mlx-c {signature.since}" if signature.since else ""
        return f"{name} is not in {where}{needs}"
    if name in library.refused:
        return f"{name} is not called in {where}: {library.refused[name]}"
    if signature.marker and library.has(signature.marker) != signature.newer:
        other = "an older" if signature.newer else "a newer"
        return f"{name} has {other} signature in {where} than `{signature}`"
    return None


# ---------------------------------------------------------------- types
def argument_types(types: list[str], namespace: Mapping[str, Any]) -> list[Any]:
    """ctypes argument types for C types; `namespace` holds the module's structs and enums."""
    kinds, used = [], 0
    for text in types:
        if text in _FLOATS:
            kinds.append(_FLOATS[text])
            continue
        in_register = used < _REGISTERS
        used += 1
        if text == "const char*":
            kinds.append(ctypes.c_char_p)  # c_void_p would take a str for a wide string
        elif is_pointer(text, namespace):
            kinds.append(ctypes.c_void_p)
        elif text in _INTEGERS:
            kinds.append(ctypes.c_void_p if in_register else _INTEGERS[text])
        elif issubclass(namespace[text], int):
            kinds.append(ctypes.c_void_p if in_register else ctypes.c_uint)
        elif is_register(namespace[text]):
            kinds.append(ctypes.c_void_p)
        else:
            kinds.append(namespace[text])
            used += 1
    return kinds


def result_type(text: str, namespace: Mapping[str, Any]) -> Any:
    """ctypes result type for a C type; pointers and handles are c_size_t, which gives 0 and not None for NULL."""
    if text in _RESULTS:
        return _RESULTS[text]
    if is_pointer(text, namespace):
        return ctypes.c_size_t
    found = namespace[text]
    if issubclass(found, int):
        return ctypes.c_uint
    return ctypes.c_size_t if is_register(found) else found


def is_pointer(text: str, namespace: Mapping[str, Any]) -> bool:
    """Whether a C type is a pointer, a function pointer or the name of one."""
    if text.endswith("*") or "(*)" in text:
        return True
    found = namespace.get(text)
    return isinstance(found, type) and issubclass(found, ctypes._CFuncPtr)  # type: ignore[attr-defined]


def is_register(found: type[ctypes.Structure]) -> bool:
    """Whether a struct passed by value is one 64-bit integer register: a handle or an optional."""
    return ctypes.sizeof(found) == 8


# ---------------------------------------------------------------- values
def checked_int(value: SupportsIndex) -> int:
    """A C int; OverflowError where ctypes would drop the upper bits."""
    number = index(value)
    if not -(1 << 31) <= number < 1 << 31:
        raise OverflowError(f"{number} does not fit a 32-bit integer")
    return number


def optional_int(value: SupportsIndex | None) -> int:
    """An mlx_optional_int, or an mlx_optional_dtype given the dtype's number."""
    return 0 if value is None else (checked_int(value) & 0xFFFFFFFF) | 1 << 32


optional_dtype = optional_int


def optional_float(value: float | None) -> int:
    """An mlx_optional_float."""
    return 0 if value is None else int.from_bytes(struct.pack("<f", value), "little") | 1 << 32
