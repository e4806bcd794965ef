"""Queries about MLX's CUDA back end."""

from __future__ import annotations

from ctypes import addressof, c_bool

from mlxc_py._sys import mlx as c
from mlxc_py.state import local


def is_available() -> bool:
    """Whether MLX was built with CUDA and finds a device."""
    flag = c_bool()
    if c.mlx_cuda_is_available(addressof(flag)):
        raise local.here.failure("cuda.is_available")
    return flag.value
