"""The process's memory while sessions are made: no garbage collections in vain, and freed heap back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

WORTH_GIVING_BACK: Final = 16 << 20
"""Bytes of weights from which on the walk over the heap (some 30 ms for 100 MB) pays."""


def give_back() -> None:
    """Return free heap pages: glibc keeps those of ORT's parsed model and dropped weights. Nothing elsewhere."""
    # pybind11 and numpy look attributes up by new strings, and the last ones keep arenas of Python's in this cache
    forget_names = getattr(sys, "_clear_internal_caches", None) or getattr(sys, "_clear_type_cache", None)
    if forget_names is not None:  # the first name from Python 3.13 on
        forget_names()
    heap = _glibc()
    if heap is not None:
        _renew_cache(heap)
        heap.malloc_trim(0)


def _renew_cache(heap: Any) -> None:
    """Freed blocks that glibc keeps for this thread, up to seven of each small size, hold the pages that they lie in,
    all over the heap: later ones take their place."""
    for size in range(24, 1033, 16):
        blocks = [heap.malloc(size) for _ in range(14)]  # the first of them are those
        for block in reversed(blocks):
            heap.free(block)


@cache
def _glibc() -> Any:
    heap = ctypes.CDLL(None)
    if not hasattr(heap, "malloc_trim"):
        return None
    heap.malloc.restype, heap.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    heap.free.restype, heap.free.argtypes = None, (ctypes.c_void_p,)
    return heap


_pausing = 0
_pausing_lock = threading.Lock()


@contextmanager
def collections_paused() -> Iterator[None]:
    """No garbage collection in the process inside: all that a plan is built from stays, so each would walk it in vain.

    Nests, also over threads; one that the program has switched off stays so.
    """
    global _pausing
    with _pausing_lock:
        if not _pausing and not gc.isenabled():
            ours = False
        else:
            ours = True
            _pausing += 1
            gc.disable()
    try:
        yield
    finally:
        if ours:
            with _pausing_lock:
                _pausing -= 1
                if not _pausing:
                    gc.enable()
