"""What fastcall offers, in Python over ctypes, for where the native library is absent: slower, same results."""

from __future__ import annotations

import operator
import threading
from array import array as numbers
from collections.abc import Callable
from ctypes import addressof, byref, c_bool, c_char, c_int, c_size_t
from typing import Any, Self

from mlxc_py._sys import abi
from mlxc_py._sys import mlx as c


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

    def __init__(self) -> None:
        self.slot = (c_size_t * 1)()


_mine = _Mine()
_epoch = 1
_resolver: Callable[[], int] | None = None


def set_stream(stream: int, pinned: bool) -> None:
    """See fastcall.set_stream."""
    _mine.stream, _mine.epoch = stream, 0 if pinned else _epoch


def drop_stream(stream: int) -> None:
    """See fastcall.drop_stream."""
    if _mine.stream == stream:
        _mine.stream = 0


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
    result: Any,
    on_error: Callable[[str], object],
    stream: Callable[[], int] = current_stream,
) -> Callable[..., Any]:
    """A callable for an mlx-c function whose Python arguments are of the kinds `letters` (see support.h).

    `function` has its ctypes types set; `stream` is asked for what a call without one uses.
    """
    by_value, letters = letters.startswith("="), letters.removeprefix("=")
    fewest = len(letters) - letters.endswith("s")
    converters = [_CONVERTERS[letter] for letter in letters]

    def call(*args: Any) -> Any:
        if not fewest <= len(args) <= len(letters):
            raise TypeError(f"{name} takes {len(letters)} arguments, {len(args)} given")
        words: list[Any] = []
        kept: list[Any] = []
        try:
            for position, (convert, value) in enumerate(zip(converters, args, strict=False)):
                if wanted := convert(value, result, words, kept):
                    raise TypeError(f"{name}: argument {position + 1} must be {wanted}")
            if letters.endswith("s"):
                words[fewest_words:] = [(words[-1] if len(args) > fewest else 0) or stream()]
            if by_value:
                handle = function(*words)
            else:
                made = c_size_t()
                handle = 0 if function(byref(made), *words) else made.value
        finally:
            for vector in (k for k in kept if isinstance(k, int)):
                c.mlx_vector_array_free(vector)
        return finish(handle)

    def finish(handle: int) -> Any:
        if not handle:
            on_error(name)
            raise RuntimeError(name)
        array = result.__new__(result)
        array.handle = handle
        return array

    fewest_words = fewest + letters.count("n")
    if letters not in ("as", "aas"):
        return call

    # Most operators: one or two arrays. Result slots are per thread, because ctypes drops the GIL inside a call.
    def on_one(a: Any, s: Any = None) -> Any:
        if not isinstance(a, result):
            return call(a, s)
        slot = _mine.slot
        slot[0] = 0
        return finish(0 if function(slot, a.handle, s or stream()) else slot[0])

    def on_two(a: Any, b: Any, s: Any = None) -> Any:
        if not isinstance(a, result) or not isinstance(b, result):
            return call(a, b, s)
        slot = _mine.slot
        slot[0] = 0
        return finish(0 if function(slot, a.handle, b.handle, s or stream()) else slot[0])

    chosen = on_one if letters == "as" else on_two
    chosen.__name__ = chosen.__qualname__ = name
    return chosen


def reader(name: str, function: Any, count: Any, on_empty: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """See fastcall.reader and fastcall.shape_reader."""

    def read(array: Any) -> Any:
        if not isinstance(array, Handle):
            raise TypeError(f"{name} takes an array")
        if not array.handle:
            return on_empty(array)
        if count is None:
            return function(array.handle)
        n = count(array.handle)
        return tuple((c_int * n).from_address(function(array.handle))) if n else ()

    return read


def data_reader(data: Any, available: Any, contiguous: Any, on_unfit: Callable[[Any], Any]) -> Callable[[Any], int]:
    """See fastcall.data_reader."""

    def read(array: Any) -> int:
        if not isinstance(array, Handle):
            raise TypeError("data takes an array")
        flag = c_bool()
        fit = array.handle and all(not f(byref(flag), array.handle) and flag for f in (available, contiguous))
        found: int = data(array.handle) if fit else on_unfit(array)
        return found

    return read


# ---------------------------------------------------------------- arguments: words appended; what was wanted, if wrong
def _array(value: Any, result: type[Any], words: list[Any], kept: list[Any]) -> str | None:
    if value is not None and not isinstance(value, result):
        return "an array"
    words.append(0 if value is None else value.handle)
    return None


def _ints(value: Any, result: type[Any], words: list[Any], kept: list[Any]) -> str | None:
    if value is None:
        words += (0, 0)
        return None
    ints = numbers("i", (value,) if isinstance(value, int) else value)
    kept.append(ints)
    words += ints.buffer_info()
    return None


def _vector(value: Any, result: type[Any], words: list[Any], kept: list[Any]) -> str | None:
    items = tuple(value)
    if not all(isinstance(item, result) for item in items):
        return "a sequence of arrays"
    handles = (c_size_t * len(items))(*(item.handle for item in items))
    kept.append(c.mlx_vector_array_new_data(handles, len(items)))
    words.append(kept[-1])
    return None


def _plain(convert: Callable[[Any], Any]) -> Callable[..., None]:
    return lambda value, result, words, kept: words.append(convert(value))


def _address(value: Any, result: type[Any], words: list[Any], kept: list[Any]) -> str | None:
    if value is None or isinstance(value, int | bytes):
        words.append(value)
        return None
    view = memoryview(value)
    if not view.c_contiguous:
        raise BufferError(f"the buffer of {type(value).__name__} is not contiguous")
    if view.readonly:
        words.append(view.tobytes())
    else:
        kept.append((c_char * view.nbytes).from_buffer(view))
        words.append(addressof(kept[-1]))
    return None


_CONVERTERS: dict[str, Callable[..., str | None]] = {
    "a": _array,
    "n": _ints,
    "v": _vector,
    "i": _plain(abi.checked_int),
    "b": _plain(lambda value: bool(abi.checked_int(value))),
    "l": _plain(operator.index),
    "o": _plain(abi.optional_int),
    "g": _plain(abi.optional_float),
    "f": _plain(float),
    "d": _plain(float),
    "p": _address,
    "s": _plain(lambda value: value or 0),
    "z": _plain(lambda value: None if value is None else value.encode()),
}
