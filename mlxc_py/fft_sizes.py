"""The lengths that Fourier transforms get when the caller gives none."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from mlxc_py.arguments import Ints, several_ints
from mlxc_py.arrays import Array
from mlxc_py.guards import check_axis


def line(a: Array, n: int | None, axis: int) -> int:
    """Length along an axis."""
    return a.shape[check_axis(axis, a.ndim, "fft")] if n is None else index(n)


def real_line(a: Array, n: int | None, axis: int) -> int:
    """Length of a real result along an axis."""
    return (line(a, None, axis) - 1) * 2 if n is None else index(n)


def several(a: Array, s: Ints | None, axes: Ints | None) -> tuple[Sequence[int], Sequence[int]]:
    """Lengths and axes of a transform over several axes."""
    lengths = None if s is None else [index(n) for n in several_ints(s)]
    if axes is None:
        chosen = list(range(a.ndim))[-len(lengths) :] if lengths else list(range(a.ndim))
    else:
        chosen = [index(x) for x in several_ints(axes)]
    if lengths is None:
        lengths = [line(a, None, x) for x in chosen]
    if len(lengths) != len(chosen):
        raise ValueError(f"{len(lengths)} lengths for {len(chosen)} axes")
    return lengths, chosen


def real_several(a: Array, s: Ints | None, axes: Ints | None) -> tuple[Sequence[int], Sequence[int]]:
    """Lengths and axes of the inverse transform to real data: the last axis has half the values."""
    lengths, chosen = several(a, s, axes)
    if s is None and lengths:
        lengths = [*lengths[:-1], (lengths[-1] - 1) * 2]
    return lengths, chosen
