"""Queries about MLX's Metal back end, its library path, and captures for Xcode."""

from __future__ import annotations

from ctypes import addressof, c_bool

from mlxc_py._sys import mlx as c
from mlxc_py.arguments import text
from mlxc_py.state import local


def is_available() -> bool:
    """Whether MLX was built with Metal and finds a device."""
    flag = c_bool()
    if c.mlx_metal_is_available(addressof(flag)):
        raise local.here.failure("metal.is_available")
    return flag.value


def start_capture(path: str) -> None:
    """Record the GPU's work into a .gputrace file."""
    if c.mlx_metal_start_capture(text(path).encode()):
        raise local.here.failure("metal.start_capture")


def stop_capture() -> None:
    """End the recording."""
    if c.mlx_metal_stop_capture():
        raise local.here.failure("metal.stop_capture")


def get_metallib_path() -> str:
    """Where MLX looks for its Metal library (libmlxc 0.7)."""
    here = local.here
    if c.mlx_metal_get_metallib_path(here.out):
        raise here.failure("metal.get_metallib_path")
    handle = here.take_raw()
    try:
        return (c.mlx_string_data(handle) or b"").decode()
    finally:
        c.mlx_string_free(handle)


def set_metallib_path(path: str) -> None:
    """Set where MLX looks for its Metal library (libmlxc 0.7)."""
    if c.mlx_metal_set_metallib_path(text(path).encode()):
        raise local.here.failure("metal.set_metallib_path")
