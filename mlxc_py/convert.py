"""Host values to MLX arrays: scalars, nested sequences, buffers, numpy, and anything with DLPack or __array__."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlxc_py import dlpack
from mlxc_py._sys import mlx as c
from mlxc_py.arguments import Ints, dtype_code, ints, several_ints
from mlxc_py.arrays import Array, as_array, call, wrap
from mlxc_py.dtype import (
    DTYPES,
    Dtype,
    bfloat16,
    bool_,
    complex64,
    dtype_of,
    float32,
    inexact,
    int32,
    int64,
    issubdtype,
)
from mlxc_py.errors import MLXIndexError, MLXValueError
from mlxc_py.guards import check_axis, check_indices
from mlxc_py.state import local

Scalar = bool | int | float | complex
NUMBERS = (bool, int, float, complex)
_FORMATS = {0: "?", 1: "B", 2: "H", 3: "I", 4: "Q", 5: "b", 6: "h", 7: "i", 8: "q", 9: "e", 10: "f", 11: "d"}
_PACKERS = {code: struct.Struct("<" + form) for code, form in _FORMATS.items()}
_RANKS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}
_INEXACT = frozenset(dtype for dtype in DTYPES if issubdtype(dtype, inexact))
BRIEF = 1 << 16  # bytes that are copied without letting other threads run
_NO_SHAPE = b"\0\0\0\0"
# What mlx.core makes of 64-bit numpy data and Python numbers unless a dtype is given.
_NARROWED = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.complex64)}


def made_of(value: Any, dtype: Dtype | None) -> Array:
    """A new array holding `value`, converted to `dtype` where one is given."""
    if dtype is not None:
        dtype_code(dtype)  # refuses what is no Dtype, in words
    if isinstance(value, NUMBERS) and not isinstance(value, np.generic):
        return scalar(value, dtype or scalar_dtype(value))
    return from_numpy(host_value(value), dtype)


def scalar_dtype(value: Scalar, like: Dtype | None = None) -> Dtype:
    """The dtype of a Python number, weak towards `like` as in mlx.core."""
    if isinstance(value, bool):
        return like or bool_
    if isinstance(value, int):
        natural = int32 if -(1 << 31) <= value < 1 << 31 else int64
        return natural if like is None or like is bool_ else like
    if isinstance(value, float):
        return like if like is not None and like in _INEXACT else float32
    return complex64


def scalar(value: Scalar, dtype: Dtype) -> Array:
    """A rank-0 array holding a Python number."""
    if dtype is float32 and value.__class__ is float:
        return call.mlx_array_new_float(value)
    packer = _PACKERS.get(dtype.code)
    try:
        if packer is not None and not isinstance(value, complex):
            data = packer.pack(_exact(value, dtype))
        else:
            data = np.array(value).astype(dtype.numpy).tobytes()
    except (struct.error, OverflowError) as problem:
        if not issubdtype(dtype, inexact):
            raise ValueError(f"{value} does not fit into {dtype.name}") from problem
        with np.errstate(over="ignore"):
            data = np.array(value, np.float64).astype(dtype.numpy).tobytes()  # rounds to infinity
    return call.mlx_array_new_data(data, (), dtype.code)


def _exact(value: Any, dtype: Dtype) -> Any:
    if dtype is bool_:
        return bool(value)
    return value if dtype in _INEXACT or isinstance(value, int) else int(value)


def host_value(value: Any) -> np.ndarray:
    """`value` as a numpy array of a dtype that MLX has."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if isinstance(value, list | tuple):
        return _from_sequence(value)
    if hasattr(value, "__dlpack__"):
        return dlpack.to_host(value)
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return np.asarray(value)
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        raise TypeError(f"cannot make an array of {type(value).__name__}") from None


def _from_sequence(value: list[Any] | tuple[Any, ...]) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as problem:
        raise ValueError(f"array: the nested sequence has rows of different lengths or depths ({problem})") from None
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        raise TypeError(f"array: the sequence must hold numbers, not {array.dtype}")
    if array.dtype == np.int64 and not any(isinstance(v, np.generic | np.ndarray) for v in value):
        fits = array.size == 0 or (array.min() >= -(1 << 31) and array.max() < 1 << 31)
        return array.astype(np.int32) if fits else array
    return array


def from_numpy(value: np.ndarray, dtype: Dtype | None) -> Array:
    """A copy of a numpy array; float64 becomes float32 unless `dtype` asks, as in mlx.core."""
    wanted = dtype or dtype_of(_NARROWED.get(value.dtype, value.dtype))
    if value.dtype != wanted.numpy or not value.flags.c_contiguous:
        value = _converted(value, wanted.numpy)
    if value.nbytes > BRIEF:
        return from_memory(value.ctypes.data, value.shape, wanted.code)
    # The buffer protocol has no bfloat16.
    data = value.view(np.uint16) if wanted is bfloat16 else value
    return call.mlx_array_new_data(data, value.shape, wanted.code)


def _converted(value: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    if value.dtype.kind == "c" and dtype.kind != "c":
        value = value.real
    # C casts, as MLX's own astype does: out-of-range values are not an error.
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(value, dtype=dtype, order="C")


def from_memory(address: int, shape: tuple[int, ...], code: int) -> Array:
    """A copy of the bytes at an address, made with the GIL released."""
    handle = c.mlx_array_new_data(address, ints(shape) or _NO_SHAPE, len(shape), code)
    if not handle:
        raise local.here.failure("array")
    return wrap(handle)


# ---- operands
_constants: dict[tuple[type, Scalar, Dtype], Array] = {}
_MOST_CONSTANTS = 512


def _constant(value: Scalar, dtype: Dtype) -> Array:
    """A scalar array, shared: graphs are full of the same few constants."""
    key = (value.__class__, value, dtype)
    found = _constants.get(key)
    if found is None:
        found = scalar(value, dtype)
        if value or not isinstance(value, float):  # 0.0 and -0.0 are one key
            if len(_constants) >= _MOST_CONSTANTS:
                _constants.clear()
            _constants[key] = found
    return found


def weak(value: Any, like: Array) -> Array:
    """The other operand of `like`: Python numbers and numpy's values take its dtype where it holds their kind."""
    if isinstance(value, NUMBERS):
        return _constant(value, scalar_dtype(value, like.dtype))
    if isinstance(value, np.ndarray | np.generic):
        host = np.asarray(value)
        own = dtype_of(_NARROWED.get(host.dtype, host.dtype))
        return from_numpy(host, like.dtype if _rank(own) <= _rank(like.dtype) else own)
    return value if value.__class__ is Array else as_array(value)


def _rank(dtype: Dtype) -> int:
    """Bools, integers, floats, complex numbers: each kind holds those before it."""
    return 2 if dtype is bfloat16 else _RANKS[dtype.numpy.kind]


def pair(a: Any, b: Any) -> tuple[Array, Array]:
    """Both operands of a binary op as arrays; a Python number follows the other's dtype."""
    if isinstance(a, Array):
        return a, weak(b, a)
    if isinstance(b, Array):
        return weak(a, b), b
    if isinstance(a, NUMBERS):
        if isinstance(b, NUMBERS):  # neither follows the other
            return as_array(a), as_array(b)
        b = as_array(b)
        return weak(a, b), b
    a = as_array(a)
    return a, weak(b, a)


def checked_indices(indices: Any, a: Array, axis: int | None, call: str) -> Array:
    """Indices as an array; host-known ones are checked.

    An Array's values are not, as in mlx.core: that would evaluate it. They must be in range, or MLX reads and writes
    elsewhere; whoever has them from outside clamps them first, as the EP does (ort_ep.ops.indexing.in_range).
    """
    if axis is not None:
        axis = check_axis(axis, a.ndim, call)
    if isinstance(indices, Array):
        return indices
    host = np.asarray(indices)
    if host.size == 0 and host.dtype.kind == "f":
        host = host.astype(np.int32)
    if host.dtype.kind not in "iu":
        raise TypeError(f"{call}: indices must be integers, not {host.dtype}")
    check_indices(host, a.size if axis is None else a.shape[axis], call)
    return as_array(host if isinstance(indices, np.ndarray | np.generic) else host.astype(np.int32))


def checked_positions(indices: Sequence[Any], a: Array, axes: Ints, call: str) -> list[Array]:
    """An array of indices for each axis; host-known ones are checked."""
    axes = several_ints(axes)
    if len(axes) != len(indices):
        raise MLXValueError(f"{call}: {len(indices)} index arrays for {len(axes)} axes")
    return [checked_indices(each, a, axis, call) for each, axis in zip(indices, axes, strict=True)]


def checked_start(start: Any, a: Array, axes: Ints, sizes: Ints, call: str) -> Array:
    """The start of a slice as an array; a host-known one must leave room for the slice."""
    if isinstance(start, Array):
        return start
    for at, axis, size in zip(np.ravel(start), several_ints(axes), several_ints(sizes), strict=True):
        room = a.shape[check_axis(axis, a.ndim, call)] - size
        if not 0 <= at <= room:
            raise MLXIndexError(f"{call}: a slice of {size} cannot start at {at} of axis {axis} (size {size + room})")
    return as_array(start)
