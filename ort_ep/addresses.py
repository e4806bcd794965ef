"""Memory of others by its address."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

_READ: Final = 0x100  # PyBUF_READ
_from_memory: Callable[[int, int, int], memoryview] = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
)(("PyMemoryView_FromMemory", ctypes.pythonapi))


def readable(address: int, nbytes: int) -> memoryview:
    """The bytes at an address, read-only; valid as long as the memory is.

    A ctypes array would be a new type for each length, which only a garbage collection frees.
    """
    return _from_memory(address, nbytes, _READ)
