"""What is drawn: shapes of rank 0 to 6 with empty axes, shapes that broadcast, tensors with special values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

Host = np.ndarray[Any, Any]
INTS: tuple[str, ...] = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS: tuple[str, ...] = ("float16", "float32", "float64")
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0)


def shapes(least: int = 0, most: int = 6, smallest: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(smallest, 3), min_size=least, max_size=most).map(tuple)


def broadcast(count: int) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    drawn = mutually_broadcastable_shapes(num_shapes=count, max_dims=6, min_side=0, max_side=3)
    return drawn.map(lambda found: found.input_shapes)


def values(seed: int, dtype: str, shape: Sequence[int], *, special: bool = False, low: int | None = None) -> Host:
    """Small integers, fair bools, or normal floats, some of them special where asked."""
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return np.asarray(random.integers(0, 2, shape)).astype(bool)
    if dtype in INTS:
        least = 0 if dtype.startswith("u") else -9
        return np.asarray(random.integers(least if low is None else low, 10, shape)).astype(dtype)
    x = np.asarray(random.standard_normal(shape))
    x = x if low is None else np.abs(x) + low
    if special and x.size:
        x.reshape(-1)[random.integers(0, x.size, 3)] = random.choice(SPECIAL, 3)
    return x.astype(dtype)


SEEDS = st.integers(0, 2**32 - 1)
