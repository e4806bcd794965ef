"""MLX's allocator: what it holds, its limits, its cache. Bytes everywhere."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import addressof, c_size_t
from operator import index
from typing import Any

from mlxc_py._sys import mlx as c
from mlxc_py._sys import support
from mlxc_py.guards import check_fork
from mlxc_py.state import local


def _read(function: Callable[..., int], *args: Any) -> int:
    value = c_size_t()
    if function(addressof(value), *args):
        raise local.here.failure()
    return value.value


def _limit(limit: int) -> int:
    if index(limit) < 0:
        raise ValueError(f"a limit can't be negative: {limit}")
    return index(limit)


def get_active_memory() -> int:
    """Bytes of live buffers."""
    return _read(c.mlx_get_active_memory)


def get_peak_memory() -> int:
    """The largest number of bytes that were live at once since the start or reset_peak_memory."""
    return _read(c.mlx_get_peak_memory)


def get_cache_memory() -> int:
    """Bytes of freed buffers kept for reuse."""
    return _read(c.mlx_get_cache_memory)


def get_memory_limit() -> int:
    """The limit above which MLX waits for memory (a soft one)."""
    return _read(c.mlx_get_memory_limit)


def set_memory_limit(limit: int) -> int:
    """Set the soft limit; returns the previous one."""
    return _read(c.mlx_set_memory_limit, _limit(limit))


def set_cache_limit(limit: int) -> int:
    """Set how many bytes of freed buffers to keep; returns the previous limit."""
    return _read(c.mlx_set_cache_limit, _limit(limit))


def set_wired_limit(limit: int) -> int:
    """Set how much memory Metal keeps resident; returns the previous limit."""
    return _read(c.mlx_set_wired_limit, _limit(limit))


def reset_peak_memory() -> None:
    """Start a new peak."""
    if c.mlx_reset_peak_memory():
        raise local.here.failure("reset_peak_memory")


def clear_cache() -> None:
    """Give kept buffers back to the system, once everything scheduled on the CPU is done, and owners of freed ones."""
    check_fork()
    if c.mlx_clear_cache():
        raise local.here.failure("clear_cache")
    support.drain()
