"""Host values to MLX arrays: scalars, nested sequences, buffers, numpy, and anything with DLPack or __array__."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxc_py._sys import mlx as c
from mlxc_py.arguments import ints
from mlxc_py.dtype import (
    Dtype,
    bool_,
    complex64,
    dtype_of,
    float32,
    inexact,
    int32,
    int64,
    issubdtype,
)
from mlxc_py.state import local

if TYPE_CHECKING:
    from mlxc_py.arrays import Array

Scalar = bool | int | float | complex
NUMBERS = (bool, int, float, complex)
_FORMATS = {0: "?", 1: "B", 2: "H", 3: "I", 4: "Q", 5: "b", 6: "h", 7: "i", 8: "q", 9: "e", 10: "f", 11: "d"}
_PACKERS = {code: struct.Struct("<" + form) for code, form in _FORMATS.items()}
_NO_SHAPE = b"\0\0\0\0"
# What mlx.core makes of 64-bit numpy data and Python numbers unless a dtype is given.
_NARROWED = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.complex64)}


def handle_of(value: Any, dtype: Dtype | None) -> int:
    """A new mlx_array handle holding `value`, converted to `dtype` where one is given."""
    if isinstance(value, NUMBERS) and not isinstance(value, np.generic):
        return scalar_handle(value, dtype or scalar_dtype(value))
    return numpy_handle(host_value(value), dtype)


def scalar_dtype(value: Scalar, like: Dtype | None = None) -> Dtype:
    """The dtype of a Python number, weak towards `like` as in mlx.core."""
    if isinstance(value, bool):
        return like or bool_
    if isinstance(value, int):
        natural = int32 if -(1 << 31) <= value < 1 << 31 else int64
        return natural if like is None or like is bool_ else like
    if isinstance(value, float):
        return like if like is not None and issubdtype(like, inexact) else float32
    return complex64


def scalar_handle(value: Scalar, dtype: Dtype) -> int:
    """A rank-0 array holding a Python number."""
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
    handle: int = c.mlx_array_new_data(data, _NO_SHAPE, 0, dtype.code)
    if not handle:
        raise local.here.failure("array")
    return handle


def _exact(value: Any, dtype: Dtype) -> Any:
    if dtype is bool_:
        return bool(value)
    return value if issubdtype(dtype, inexact) or isinstance(value, int) else int(value)


def host_value(value: Any) -> np.ndarray:
    """`value` as a numpy array of a dtype that MLX has."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if isinstance(value, list | tuple):
        return _from_sequence(value)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
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


def numpy_handle(value: np.ndarray, dtype: Dtype | None) -> int:
    """A new mlx_array with a copy of a numpy array; float64 becomes float32 unless `dtype` asks, as in mlx.core."""
    target = dtype.numpy if dtype is not None else _NARROWED.get(value.dtype, value.dtype)
    code = dtype_of(target).code
    if value.dtype.kind == "c" and target.kind != "c":
        value = value.real
    # C casts, as MLX's own astype does: out-of-range values are not an error.
    with np.errstate(invalid="ignore", over="ignore"):
        value = np.asarray(value, dtype=target, order="C")
    return data_handle(value.ctypes.data, value.shape, code)


def data_handle(address: int, shape: tuple[int, ...], code: int) -> int:
    """A new mlx_array with a copy of the bytes at an address."""
    handle: int = c.mlx_array_new_data(address or None, ints(shape) or _NO_SHAPE, len(shape), code)
    if not handle:
        raise local.here.failure("array")
    return handle


def weak(value: Any, like: Array) -> Array:
    """The other operand of `like`: Python numbers take its dtype where they can, the rest is converted."""
    from mlxc_py.arrays import Array, as_array, wrap

    if isinstance(value, NUMBERS):
        return wrap(scalar_handle(value, scalar_dtype(value, like.dtype)))
    return value if type(value) is Array else as_array(value)


def pair(a: Any, b: Any) -> tuple[Array, Array]:
    """Both operands of a binary op as arrays; a Python number follows the other's dtype."""
    from mlxc_py.arrays import Array, as_array

    if isinstance(a, Array):
        return a, weak(b, a)
    if isinstance(b, Array):
        return weak(a, b), b
    if isinstance(a, NUMBERS):
        b = as_array(b)
        return weak(a, b), b
    a = as_array(a)
    return a, weak(b, a)
