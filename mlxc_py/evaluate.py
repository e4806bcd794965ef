"""Evaluation of arrays and of trees of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlxc_py._sys import load
from mlxc_py._sys import mlx as c
from mlxc_py.arrays import Array
from mlxc_py.guards import check_fork
from mlxc_py.state import local
from mlxc_py.vector import VectorArray


def leaves(*trees: Any) -> Iterator[Array]:
    """The arrays in nested lists, tuples and dicts; other leaves are passed over."""
    for tree in trees:
        if isinstance(tree, Array):
            yield tree
        elif isinstance(tree, dict):
            yield from leaves(*tree.values())
        elif isinstance(tree, list | tuple):
            yield from leaves(*tree)


def eval(*args: Any) -> None:
    """Compute every array in args, which may be nested, and wait for them."""
    check_fork()
    arrays = VectorArray(leaves(*args))
    if c.mlx_eval(arrays.handle):
        raise local.here.failure("eval")


def async_eval(*args: Any) -> None:
    """Start computing every array in args and return at once."""
    check_fork()
    arrays = VectorArray(leaves(*args))
    if c.mlx_async_eval(arrays.handle):
        raise local.here.failure("async_eval")


def library_path() -> str:
    """Path of the libmlxc in use."""
    return load.library().path
