"""Sorting and selection by value."""

from __future__ import annotations

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops.axes import axis_of
from ort_ep.ops.precision import is_float
from ort_ep.registry import NUMERIC, op


@op("TopK", since=1, dtypes=NUMERIC)
def top_k_1(x: Array, *, axis: int = -1, k: int) -> tuple[Array, Array]:
    return top_k(x, np.array(k), axis=axis)


@op("TopK", since=10, host=("k",), dtypes={"x": NUMERIC})
def top_k(x: Array, k: np.ndarray, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Array, Array]:
    axis, count = axis_of(axis, x.ndim), int(k.item())
    if not 0 <= count <= x.shape[axis]:
        raise ValueError(f"TopK of {count} among {x.shape[axis]}")
    chosen = (slice(None),) * axis + (slice(0, count),)
    if not x.size or not count:
        return x[chosen], mx.zeros(x[chosen].shape, mx.int64)
    # ascending and stable; inverted bits reverse integers where negation would wrap
    key = x if not largest else -x if is_float(x) else mx.bitwise_invert(x)
    best = mx.argsort(key, axis)[chosen]
    return mx.take_along_axis(x, best, axis), best.astype(mx.int64)
