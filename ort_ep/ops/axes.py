"""Axes, positions and permutations, normalised once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mlxc_py import Array


def axis_of(axis: int, rank: int) -> int:
    """A non-negative axis; ValueError where the rank has no such axis."""
    if not -rank <= axis < max(rank, 1):
        raise ValueError(f"axis {axis} is out of range for a tensor of rank {rank}")
    return axis % max(rank, 1)


def axes_of(axes: ArrayLike, rank: int) -> list[int]:
    return [axis_of(int(axis), rank) for axis in np.ravel(axes)]


def swapped(rank: int, first: int, second: int) -> list[int]:
    """The permutation that exchanges two axes."""
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return order


def channels_last(rank: int) -> tuple[int, ...]:
    """The permutation NC... -> N...C, also OI... -> O...I of weights."""
    return (0, *range(2, rank), 1)


def channels_first(rank: int) -> tuple[int, ...]:
    return (0, rank - 1, *range(1, rank - 1))


def along(values: Sequence[int] | np.ndarray, axis: int, rank: int) -> np.ndarray:
    """A vector shaped to broadcast along one axis."""
    return np.asarray(values).reshape([-1 if position == axis else 1 for position in range(rank)])


def reversed_along(x: Array, axis: int) -> Array:
    return x[(slice(None),) * axis + (slice(None, None, -1),)]
