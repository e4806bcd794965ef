"""Array data in numpy's hands: evaluated, row-contiguous views and copies, the buffer protocol, wrapped host memory."""

from __future__ import annotations

from ctypes import addressof, c_bool, c_int, c_int64, c_void_p
from functools import cache
from math import prod
from typing import Any

import numpy as np

from mlxc_py import convert
from mlxc_py._sys import fastcall, support
from mlxc_py._sys import mlx as c
from mlxc_py._sys.load import library
from mlxc_py.arguments import ints, shape_of
from mlxc_py.arrays import Array, call, wrap
from mlxc_py.device import gpu, is_available
from mlxc_py.dtype import Dtype, bfloat16
from mlxc_py.errors import MLXError
from mlxc_py.state import local

_PAGE = 16384  # Metal wraps only whole pages; Apple's are the largest


class _Memory:
    """The memory of an evaluated array, in numpy's array interface; keeps the array."""

    __slots__ = ("__array_interface__", "array")

    def __init__(self, array: Array, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.array = array
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (address, True),  # read-only: other arrays may share the memory
        }


def _flag(query: Any, a: Array) -> bool:
    value = c_bool()
    if query(addressof(value), a.live):
        raise local.here.failure("array")
    return value.value


def address(a: Array) -> int:
    """Address of an evaluated, row-contiguous array's first element; 0 for one without elements."""
    return _data(a) if a.size else _unfit(a)


def _unfit(a: Array) -> int:
    if not _flag(c._mlx_array_is_available, a):
        raise MLXError("address: the array is not evaluated; call mx.eval on it first")
    if a.size:
        raise MLXError("address: the array is not row-contiguous; use mx.contiguous before evaluating it")
    return 0


_data = fastcall.data_reader(_unfit)


def row_contiguous(a: Array) -> bool:
    """Whether an evaluated array lies in memory row by row."""
    return not a.size or _flag(c._mlx_array_is_row_contiguous, a)


def evaluated(a: Array) -> Array:
    """`a` itself once evaluated, or a row-contiguous copy: what a reader of its bytes needs [M 56]."""
    a.eval()
    if not row_contiguous(a):
        a = call.mlx_contiguous(a, False)
        a.eval()
    return a


def host_view(a: Array) -> np.ndarray:
    """A read-only numpy view of the array's memory, evaluated first and copied only where it is not contiguous."""
    shape, dtype = a.shape, a.dtype
    if not a.size:
        a.eval()
        return np.empty(shape, dtype.numpy)
    a = evaluated(a)
    raw = np.dtype(np.uint16) if dtype is bfloat16 else dtype.numpy
    view = np.asarray(_Memory(a, int(c.mlx_array_data_uint8(a.handle)), shape, raw))
    return view.view(bfloat16.numpy) if dtype is bfloat16 else view


def to_numpy(a: Array, dtype: Any, copy: bool | None) -> np.ndarray:
    """numpy's `__array__`: a view where possible unless copy is True; ValueError where copy=False cannot be had."""
    view = host_view(a)
    if dtype is not None and np.dtype(dtype) != view.dtype:
        if copy is False:
            raise ValueError(f"an array of {view.dtype} can't become {np.dtype(dtype)} without a copy")
        return view.astype(dtype)
    if copy is False and view.size and not _flag(c._mlx_array_is_row_contiguous, a):
        raise ValueError("the array is not row-contiguous: numpy can't have it without a copy")
    return view.copy() if copy else view


def export_buffer(a: Array) -> memoryview:
    """The buffer protocol's view (Python 3.12)."""
    if a.dtype is bfloat16:
        raise BufferError("the buffer protocol has no bfloat16: use numpy.asarray(a), or a.view(mx.uint16)")
    return memoryview(host_view(a))  # type: ignore[arg-type]


def strides(a: Array) -> tuple[int, ...]:
    """Strides in elements, negative ones included, of the evaluated array."""
    a.eval()
    n = a.ndim
    return tuple((c_int64 * n).from_address(c.mlx_array_strides(a.handle))) if n else ()


def from_address(address: int, shape: tuple[int, ...], dtype: Dtype, owner: object | None) -> Array:
    """An array of host bytes: in place where the back end can and `owner` keeps them alive, else a copy."""
    sizes = shape_of(shape)
    count = prod(sizes)
    nbytes = count * dtype.size
    if count and not address:
        raise ValueError("from_address: the address is NULL")
    borrow = _borrow()
    in_place = borrow or not (address % _PAGE or nbytes % _PAGE)
    if owner is None or not support.RELEASE or nbytes <= convert.BRIEF or not in_place:
        if nbytes <= convert.BRIEF:
            return call.mlx_array_new_data(address if count else None, sizes, dtype.code)
        return convert.from_memory(address, sizes, dtype.code)
    payload = support.hold(owner)
    wrapped = borrow or c.mlx_array_new_data_managed_payload
    handle = wrapped(address, ints(sizes), len(sizes), dtype.code, payload, support.RELEASE)
    if not handle:
        raise local.here.failure("from_address")
    support.drain()  # a back end that copied has released the owner by now
    return wrap(handle)


@cache
def _borrow() -> Any | None:
    """libmlxc's function for arrays of any host memory; None where MLX wraps whole pages only, or always copies."""
    name = "mlxc_py_array_new_borrowed"
    if is_available(gpu) or not library().has(name):
        return None
    return library().typed(name, c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p, c_void_p)


def restore(data: bytes, shape: tuple[int, ...], dtype: Dtype) -> Array:
    """Reverse of pickling."""
    return call.mlx_array_new_data(data or None, shape, dtype.code)
