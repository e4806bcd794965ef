"""Arrays whose memory the maker fills: how weights get into MLX's own memory without a second copy."""

from __future__ import annotations

from ctypes import c_int, c_void_p
from functools import cache
from typing import Any

import numpy as np

from mlxc_py._sys.load import library
from mlxc_py.arguments import ints, shape_of
from mlxc_py.arrays import Array, wrap
from mlxc_py.dtype import Dtype
from mlxc_py.interop import address
from mlxc_py.ops import zeros
from mlxc_py.state import local

__all__ = ["uninitialized"]


def uninitialized(shape: tuple[int, ...], dtype: Dtype) -> tuple[Array, np.ndarray[Any, Any]]:
    """An evaluated array with arbitrary contents, and its bytes as a writable uint8 view to fill them through.

    MLX arrays are immutable: fill it before anything else uses the array, then drop the view, which keeps the array
    alive. The memory is the array's own (malloc'ed, unified or managed), so nothing is copied. MLXError when it cannot
    be allocated. An official libmlxc has no such function: there the memory is zeroed first.
    """
    sizes = shape_of(shape)
    make = _maker()
    if make is None:
        array = zeros(sizes, dtype)
        array.eval()
    else:
        handle = make(ints(sizes) or b"\0\0\0\0", len(sizes), dtype.code)
        if not handle:
            raise local.here.failure("uninitialized")
        array = wrap(handle)
    return array, np.asarray(_Bytes(array))


class _Bytes:
    __slots__ = ("__array_interface__", "array")

    def __init__(self, array: Array) -> None:
        self.array = array
        where = (address(array), False)
        self.__array_interface__ = {"version": 3, "shape": (array.nbytes,), "typestr": "|u1", "data": where}


@cache
def _maker() -> Any:
    name = "mlxc_py_array_new_uninitialized"
    if not library().has(name):
        return None
    return library().typed(name, c_void_p, c_void_p, c_int, c_int)
