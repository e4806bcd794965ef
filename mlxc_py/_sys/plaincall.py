"""What fastcall offers, in Python over ctypes, for where the native library is absent: slower, same results."""

from __future__ import annotations

import operator
import threading
from array import array as numbers
from collections.abc import Callable
from ctypes import addressof, byref, c_size_t
from typing import Any, Self

from mlxc_py._sys import abi
from mlxc_py._sys import mlx as c

_OPTIONALS = {"o": abi.optional_int, "g": abi.optional_float}


class Handle:
    """Owner of one mlx_array, released with the object."""

    __slots__ = ("handle",)
    handle: int

    def __new__(cls, *_args: Any, **_options: Any) -> Self:
        made = object.__new__(cls)
        made.handle = 0
        return made

    def __del__(self, _free: Any = c.mlx_array_free) -> None:
        if self.handle:
            _free(self.handle)


class _Mine(threading.local):
    stream = 0
    epoch = 0  # 0: pinned


_mine = _Mine()
_epoch = 1
_resolver: Callable[[], int] | None = None


def set_stream(stream: int, pinned: bool) -> None:
    """See fastcall.set_stream."""
    _mine.stream, _mine.epoch = stream, 0 if pinned else _epoch


def forget_streams() -> None:
    """See fastcall.forget_streams."""
    global _epoch
    _epoch += 1


def set_resolver(resolver: Callable[[], int]) -> None:
    """See fastcall.set_resolver."""
    global _resolver
    _resolver = resolver


def current_stream() -> int:
    """See fastcall.current_stream."""
    if _mine.stream and _mine.epoch in (0, _epoch):
        return _mine.stream
    if _resolver is None:
        raise RuntimeError("no stream is set for calls that name none")
    if stream := _resolver():
        return stream
    raise RuntimeError("the resolver of streams found none")


def bind(
    name: str,
    function: Any,
    letters: str,
    result: type[Any],
    on_error: Callable[[str], object],
    stream: Callable[[], int] = current_stream,
) -> Callable[..., Any]:
    """A callable for an mlx-c function whose Python arguments are of the kinds `letters` (see support.h).

    `function` has its ctypes types set; `stream` is asked for what a call without one uses.
    """
    fewest = len(letters) - letters.endswith("s")

    def call(*args: Any) -> Any:
        if not fewest <= len(args) <= len(letters):
            raise TypeError(f"{name} takes {len(letters)} arguments, {len(args)} given")
        if len(args) < len(letters):
            args = (*args, None)
        words: list[Any] = []
        kept: list[Any] = []
        made = c_size_t()
        try:
            for position, (letter, value) in enumerate(zip(letters, args, strict=True)):
                words += _words(f"{name}: argument {position + 1} must be", letter, value, result, stream, kept)
            failed = function(byref(made), *words)
        finally:
            for vector in (k for k in kept if isinstance(k, int)):
                c.mlx_vector_array_free(vector)
        if failed:
            on_error(name)
            raise RuntimeError(name)
        array = result.__new__(result)
        array.handle = made.value
        return array

    return call


def _words(
    where: str, letter: str, value: Any, result: type[Any], stream: Callable[[], int], kept: list[Any]
) -> list[Any]:
    if letter == "a":
        if value is not None and not isinstance(value, result):
            raise TypeError(f"{where} an array")
        return [0 if value is None else value.handle]
    if letter == "s":
        return [value or stream()]
    if letter == "n":
        if value is None:
            return [0, 0]
        ints = numbers("i", value)
        kept.append(ints)
        return [ints.buffer_info()[0], len(ints)]
    if letter == "v":
        if not all(isinstance(item, result) for item in value):
            raise TypeError(f"{where} a sequence of arrays")
        handles = (c_size_t * len(value))(*(item.handle for item in value))
        kept.append(c.mlx_vector_array_new_data(addressof(handles), len(value)))
        return [kept[-1]]
    if letter == "z":
        return [None if value is None else value.encode()]
    if letter in _OPTIONALS:
        return [_OPTIONALS[letter](value)]
    return [float(value) if letter in "fd" else operator.index(value)]
