"""The functions of native/mlxc/extras.h that compute an array, where the libmlxc in use has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from mlxc_py._sys.abi import Signature
from mlxc_py._sys.load import library
from mlxc_py.arrays import Array, call
from mlxc_py.device import cpu
from mlxc_py.state import StreamLike
from mlxc_py.streams import as_stream

__all__ = ["available", "own", "serves"]


@cache
def available() -> bool:
    """Whether libmlxc is the one that mlxc-py builds, with primitives for the CPU."""
    return library().has("mlxc_py_cpu_unary")


def serves(stream: StreamLike = None) -> bool:
    """Whether they can be built for this stream: one of the CPU, with that libmlxc."""
    return available() and as_stream(stream).device.type is cpu


def own(name: str, **parameters: str) -> Callable[..., Array]:
    """The function of this name, with these parameters between its result and its stream."""
    found = _bound.get(name)
    if found is None:
        named = ((kind, parameter) for parameter, kind in parameters.items())
        params = (("mlx_array*", "res"), *named, ("mlx_stream", "s"))
        found = _bound[name] = call.bind_signature(Signature(name, "int", params, name, "", True, ""))
    return found


_bound: dict[str, Callable[..., Array]] = {}
