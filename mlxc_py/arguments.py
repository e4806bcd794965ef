"""Python arguments as mlx-c takes them: int arrays, optionals, strings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from struct import Struct, error, pack
from typing import Any, SupportsIndex, TypeGuard

import numpy as np

from mlxc_py.dtype import Dtype
from mlxc_py.guards import check_text

Ints = SupportsIndex | Iterable[SupportsIndex]
"""One int or several: an axis or axes, a shape."""

_INT32 = tuple(Struct(f"{n}i") for n in range(16))


def ints(values: Ints) -> bytes:
    """Packed C ints; passed as bytes, which costs a fifth of a ctypes array [M 15]."""
    try:
        if isinstance(values, int | np.integer):
            return pack("i", values)
        values = several_ints(values)
        if len(values) < 16:
            return _INT32[len(values)].pack(*values)
        return pack(f"{len(values)}i", *values)
    except error as problem:
        raise _not_ints(values, 32) from problem


def several_ints(value: Ints) -> Sequence[int]:
    """One int or several as a sequence."""
    if value.__class__ is tuple:
        return value
    if isinstance(value, int | np.integer):
        return (int(value),)
    return value if isinstance(value, tuple | list) else tuple(value)  # type: ignore[arg-type]


class _Int64s:
    """C int64s; their index is their address, as a pointer argument takes it."""

    __slots__ = ("_values",)

    def __init__(self, values: Sequence[SupportsIndex]) -> None:
        self._values = np.array(values, np.int64)

    def __index__(self) -> int:
        return self._values.ctypes.data


def int64s(values: Iterable[SupportsIndex]) -> SupportsIndex:
    """C int64s, alive as long as the result; OverflowError where a value does not fit."""
    return _Int64s(tuple(values))


def _not_ints(values: Any, bits: int) -> Exception:
    items = several_ints(values)
    try:
        too_big = [v for v in items if not -(1 << bits - 1) <= index(v) < 1 << bits - 1]
    except TypeError:
        return TypeError(f"expected an int or ints, not {values!r}")
    return OverflowError(f"MLX takes {bits}-bit dimensions and indices; {too_big[0]} is out of range")


def shape_of(shape: Ints) -> tuple[int, ...]:
    """A shape as a tuple of non-negative ints (negative ones abort the process inside official libraries)."""
    sizes = tuple(map(index, several_ints(shape)))
    if sizes and min(sizes) < 0:
        raise ValueError(f"negative dimensions are not allowed: {sizes}")
    if any(size >= 1 << 31 for size in sizes):
        raise OverflowError(f"MLX takes 32-bit dimensions; {max(sizes)} is out of range")
    return sizes


def is_int(value: Any) -> TypeGuard[int]:
    """Whether a value is one int (arrays have __index__ too, so that does not tell)."""
    return isinstance(value, int | np.integer)


def is_number(value: Any) -> bool:
    """Whether a value is a Python number or left out."""
    return value is None or isinstance(value, int | float)


def one_of(**options: Any) -> None:
    """At most one of the options may be given."""
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"give only one of {', '.join(given)}")


def padding_pair(padding: Any) -> tuple[Sequence[SupportsIndex], Sequence[SupportsIndex]]:
    """(low, high) from a convolution's padding: an int, one per axis, or two lists."""
    if not is_int(padding):
        padding = tuple(padding)
        if len(padding) == 2 and not is_int(padding[0]):
            return tuple(padding[0]), tuple(padding[1])
    both = several_ints(padding)
    return both, both


def row_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a row-contiguous array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


_NORMS = {"backward": 0, "ortho": 1, "forward": 2}


def norm_of(norm: str) -> int:
    """The mlx_fft_norm of a name."""
    if norm not in _NORMS:
        raise ValueError(f"norm must be {', '.join(_NORMS)}, not {norm!r}")
    return _NORMS[norm]


def dtype_code(dtype: Dtype) -> int:
    """The number of a dtype; TypeError for anything else, such as its name."""
    if not isinstance(dtype, Dtype):
        raise TypeError(f"dtype must be a Dtype such as mx.float32, not {dtype!r}")
    return dtype.code


def code(dtype: Dtype | None) -> int | None:
    """The number of an optional dtype."""
    return None if dtype is None else dtype_code(dtype)


def text(value: str) -> str:
    """A string that is safe to hand to MLX."""
    if not isinstance(value, str):
        raise TypeError(f"expected a str, not {type(value).__name__}")
    check_text(value)
    return value


def several(value: Ints, count: int, name: str) -> tuple[int, ...]:
    """`count` ints from one int (repeated) or that many."""
    if isinstance(value, int | np.integer):
        return (int(value),) * count
    values = tuple(map(index, several_ints(value)))
    if len(values) != count:
        raise ValueError(f"{name} needs one int or {count}, got {values}")
    return values
