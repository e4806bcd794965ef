"""Checks before calls that would end the process inside MLX or mlx-c; each is made here, once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxc_py._sys import load
from mlxc_py._sys.stamp import read_stamp
from mlxc_py.errors import MLXError, MLXIndexError, MLXValueError

if TYPE_CHECKING:
    from mlxc_py.arrays import Array


@cache
def _official_library() -> bool:
    return read_stamp(Path(load.library().path)) is None


def check_text(value: str) -> None:
    """Official libraries use error messages, hence file names in them, as printf formats [M 63]."""
    if "\0" in value:
        raise ValueError("embedded null character")
    if "%" in value and _official_library():
        raise ValueError(f"'%' in {value!r}: this libmlxc would crash on it in an error message; rename it")


_evaluated = False
_forked = False


def forked_after_use() -> bool:
    """Whether this process is the forked child of one in which MLX had computed something."""
    return _forked


def check_fork() -> None:
    """To call before what starts or awaits MLX's threads: in a forked child they are gone, and waited for [M 29]."""
    global _evaluated
    if _forked:
        raise MLXError("MLX cannot compute in a forked child of a process that used it: start processes by spawn")
    _evaluated = True


def _mark_child() -> None:
    global _forked
    _forked = _evaluated


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_child)


def check_axis(axis: int, ndim: int, call: str) -> int:
    """The axis as a non-negative number; MLX reads out of bounds for some ops when it is too negative [M 68]."""
    if not -ndim <= axis < ndim:
        raise MLXIndexError(f"{call}: axis {axis} is out of bounds for an array with {ndim} dimensions")
    return axis + ndim if axis < 0 else axis


def check_indices(indices: Any, size: int, call: str) -> None:
    """Host-known indices must lie in [-size, size): MLX reads and writes out of bounds otherwise [M 68]."""
    values = np.asarray(indices)
    if values.size and (values.min() < -size or values.max() >= size):
        bad = values[(values < -size) | (values >= size)].flat[0]
        raise MLXIndexError(f"{call}: index {bad} is out of bounds for a dimension of size {size}")


@cache
def _before_0_32() -> bool:
    """Whether MLX is one that dies of empty axes, integer division by zero and negative integer exponents [M 68]."""
    major, minor = (int(part) for part in load.library().mlx_version.split(".")[:2])
    return (major, minor) < (0, 32)


def check_sortable(a: Array, axis: int | None, call: str) -> None:
    """On MLX before 0.32 sorting and scanning an axis of size 0 divides by zero [M 68]."""
    if _before_0_32() and 0 in a.shape and (a.size if axis is None else a.shape[check_axis(axis, a.ndim, call)]) == 0:
        raise MLXValueError(f"{call}: the axis has size 0 (shape {a.shape})")


def check_strided(size: int, shape: Sequence[int], strides: Sequence[int], offset: int) -> None:
    """as_strided reads wherever it is told to [M 68]."""
    if len(shape) != len(strides):
        raise MLXValueError(f"as_strided: {len(shape)} dimensions but {len(strides)} strides")
    if 0 in shape:
        return
    steps = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    low, high = offset + sum(s for s in steps if s < 0), offset + sum(s for s in steps if s > 0)
    if low < 0 or high >= size:
        raise MLXIndexError(f"as_strided: elements {low} to {high} of an array that has {size}")


def check_integers(a: Array, b: Array, call: str) -> None:
    """On MLX before 0.32: no integer division by a known zero, no known negative exponent of an integer."""
    if not _before_0_32() or {a.dtype.numpy.kind, b.dtype.numpy.kind} - set("biu") or not b.evaluated:
        return
    values = np.asarray(b)
    if call == "power" and (values < 0).any():
        raise MLXValueError("power: MLX before 0.32 never returns from a negative power of integers")
    if call != "power" and (values == 0).any():
        raise MLXValueError(f"{call}: division of integers by zero ends the process with MLX before 0.32")


def check_rows(x: Array, call: str) -> None:
    """A quantized product of no rows divides by zero [M 68]."""
    if 0 in x.shape:
        raise MLXValueError(f"{call}: the input has a dimension of size 0 (shape {x.shape})")
