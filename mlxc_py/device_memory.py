"""Host bytes to and from a CUDA device's own memory.

MLX keeps arrays made on the host in managed memory: each page moves to the device by a fault when a kernel first reads
it, and back when the host does. A copy by the driver is several times faster from a few kilobytes on. Elsewhere (CPU,
Metal) memory is the host's own and there is nothing to copy.
"""

from __future__ import annotations

from ctypes import c_bool, c_int, c_void_p
from functools import cache
from math import prod
from typing import Any, NamedTuple

from mlxc_py._sys.load import library
from mlxc_py.arguments import ints, shape_of
from mlxc_py.arrays import Array, wrap
from mlxc_py.dtype import Dtype
from mlxc_py.errors import UnsupportedError
from mlxc_py.state import local

__all__ = ["copy_to", "copy_to_device", "supported"]


def supported() -> bool:
    """Whether MLX computes on CUDA here, through the libmlxc that this package builds."""
    return _calls() is not None


def copy_to_device(address: int, shape: tuple[int, ...], dtype: Dtype, device: int = 0) -> Array:
    """An evaluated array in the memory of a CUDA device, with a copy of the bytes at a host address.

    MLXError when the device has no room; UnsupportedError where `supported()` is False.
    """
    sizes = shape_of(shape)
    if prod(sizes) and not address:
        raise ValueError("copy_to_device: the address is NULL")
    handle = _needed().new(address, ints(sizes) or b"\0\0\0\0", len(sizes), dtype.code, device)
    if not handle:
        raise local.here.failure("copy_to_device")
    return wrap(handle)


def copy_to(array: Array, address: int) -> None:
    """Copy the bytes of an evaluated, row-contiguous array to host memory, without moving the array there.

    MLXError when it is not evaluated or not row-contiguous; UnsupportedError where `supported()` is False.
    """
    if _needed().copy(address, array.live):
        raise local.here.failure("copy_to")


class _Calls(NamedTuple):
    new: Any
    copy: Any


@cache
def _calls() -> _Calls | None:
    found = library()
    if not found.has("mlxc_py_has_device_memory"):
        return None
    if not found.typed("mlxc_py_has_device_memory", c_bool)():
        return None
    return _Calls(
        found.typed("mlxc_py_array_new_on_device", c_void_p, c_void_p, c_void_p, c_int, c_int, c_int),
        found.typed("mlxc_py_array_copy_to", c_int, c_void_p, c_void_p),
    )


def _needed() -> _Calls:
    calls = _calls()
    if calls is None:
        raise UnsupportedError("MLX has no CUDA device here, so there is no device memory to copy to or from")
    return calls
