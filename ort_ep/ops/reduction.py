"""Reductions: 16-bit floats accumulate in float32, integers keep their type, empty sets have the spec's value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops import precision
from ort_ep.ops.arithmetic import divide
from ort_ep.ops.axes import axes_of, axis_of, reversed_along
from ort_ep.ops.precision import highest, is_float, lowest, widen
from ort_ep.registry import BOOL, NUMERIC, op

Compute = Callable[[Array, list[int], bool], Array]
Fold = Callable[[np.ndarray, tuple[int, ...], bool], np.ndarray]


def reduction(
    name: str, *, axes_input_since: int = 18, dtypes: frozenset[str] = NUMERIC, fold: Fold | None = None
) -> Callable[[Compute], Compute]:
    """Register both forms of a reduction: axes as an attribute, and later as an input. `fold` is its numpy twin."""

    def register(compute: Compute) -> Compute:
        def reduce(data: Any, axes: ArrayLike, keepdims: int) -> Any:
            chosen = axes_of(axes, data.ndim)
            if fold is not None and isinstance(data, np.ndarray):
                exact = data if data.dtype.kind in "iub" else data.astype(np.float64)
                return np.asarray(fold(exact, tuple(chosen), bool(keepdims))).astype(data.dtype)
            return compute(widen(data), chosen, bool(keepdims)).astype(data.dtype)

        @op(name, dtypes=dtypes, fold=fold is not None)
        def axes_attribute(data: Any, *, axes: Sequence[int] = (), keepdims: int = 1) -> Any:
            return reduce(data, axes or range(data.ndim), keepdims)

        @op(name, since=axes_input_since, host=("axes",), dtypes=dtypes, fold=fold is not None)
        def axes_input(
            data: Any, axes: np.ndarray | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
        ) -> Any:
            if axes is not None and axes.size:
                return reduce(data, axes, keepdims)
            return reduce(data, () if noop_with_empty_axes else range(data.ndim), keepdims)

        return compute

    return register


@reduction("ReduceSum", axes_input_since=13, fold=lambda data, axes, keepdims: data.sum(axes, keepdims=keepdims))
def sum_(data: Array, axes: list[int], keepdims: bool) -> Array:
    return mx.sum(data, axes, keepdims)


@reduction("ReduceProd", fold=lambda data, axes, keepdims: data.prod(axes, keepdims=keepdims))
def prod(data: Array, axes: list[int], keepdims: bool) -> Array:
    return mx.prod(data, axes, keepdims)


@reduction("ReduceMean")
def mean(data: Array, axes: list[int], keepdims: bool) -> Array:
    if is_float(data):
        return mx.mean(data, axes, keepdims)
    count = mx.array(math.prod(data.shape[axis] for axis in axes), data.dtype)
    return divide(mx.sum(data, axes, keepdims).astype(data.dtype), count)


@reduction("ReduceL1")
def l1(data: Array, axes: list[int], keepdims: bool) -> Array:
    return mx.sum(mx.abs(data), axes, keepdims)


@reduction("ReduceL2")
def l2(data: Array, axes: list[int], keepdims: bool) -> Array:
    return mx.sqrt(mx.sum(mx.square(data), axes, keepdims))


@reduction("ReduceSumSquare")
def sum_square(data: Array, axes: list[int], keepdims: bool) -> Array:
    return mx.sum(mx.square(data), axes, keepdims)


@reduction("ReduceLogSum")
def log_sum(data: Array, axes: list[int], keepdims: bool) -> Array:
    return precision.log(mx.sum(data, axes, keepdims))


@reduction("ReduceLogSumExp")
def log_sum_exp(data: Array, axes: list[int], keepdims: bool) -> Array:
    wide = data if is_float(data) else data.astype(mx.float32)
    peak = extreme(mx.max, wide, axes, True, 0)
    shift = mx.where(mx.isfinite(peak), peak, mx.zeros_like(peak))
    total = precision.log(mx.sum(precision.exp(wide - shift), axes, keepdims=True)) + shift
    return total if keepdims else mx.squeeze(total, axes)


def fold_max(data: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    return data.max(axes, keepdims=keepdims, initial=lowest(mx.dtype_of(data.dtype)))


@reduction("ReduceMax", dtypes=NUMERIC | BOOL, fold=fold_max)
def max_(data: Array, axes: list[int], keepdims: bool) -> Array:
    return extreme(mx.max, data, axes, keepdims, lowest(data.dtype))


def fold_min(data: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    return data.min(axes, keepdims=keepdims, initial=highest(mx.dtype_of(data.dtype)))


@reduction("ReduceMin", dtypes=NUMERIC | BOOL, fold=fold_min)
def min_(data: Array, axes: list[int], keepdims: bool) -> Array:
    return extreme(mx.min, data, axes, keepdims, highest(data.dtype))


def extreme(reduce: Callable[..., Array], data: Array, axes: list[int], keepdims: bool, empty: float) -> Array:
    if data.size:
        return reduce(data, axes, keepdims)
    # MLX refuses the extreme of nothing
    return mx.full(left_over(data, axes, keepdims), empty, data.dtype)


def left_over(data: Array, axes: list[int], keepdims: bool) -> list[int]:
    """The shape that a reduction gives."""
    return [1 if axis in axes else length for axis, length in enumerate(data.shape) if keepdims or axis not in axes]


@op("ArgMax", dtypes=NUMERIC)
def arg_max(data: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    return arg_extreme(mx.argmax, data, axis, keepdims, select_last_index)


@op("ArgMin", dtypes=NUMERIC)
def arg_min(data: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    return arg_extreme(mx.argmin, data, axis, keepdims, select_last_index)


def arg_extreme(find: Callable[..., Array], data: Array, axis: int, keepdims: int, last: int) -> Array:
    data = mx.atleast_1d(data) if data.ndim == 0 else data
    axis = axis_of(axis, data.ndim)
    shape = left_over(data, [axis], bool(keepdims))
    if 0 in shape:  # MLX refuses also where there is nothing to find
        return mx.zeros(shape, mx.int64)
    if not last:
        return find(data, axis, bool(keepdims)).astype(mx.int64)
    return data.shape[axis] - 1 - find(reversed_along(data, axis), axis, bool(keepdims)).astype(mx.int64)


@op("CumSum", since=11, host=("axis",), dtypes=NUMERIC)
def cum_sum(x: Array, axis: np.ndarray, *, exclusive: int = 0, reverse: int = 0) -> Array:
    return cumulative(mx.cumsum, x, axis, exclusive, reverse)


@op("CumProd", since=26, host=("axis",), dtypes=NUMERIC)
def cum_prod(x: Array, axis: np.ndarray, *, exclusive: int = 0, reverse: int = 0) -> Array:
    return cumulative(mx.cumprod, x, axis, exclusive, reverse)


def cumulative(scan: Callable[..., Array], x: Array, axis: np.ndarray, exclusive: int, reverse: int) -> Array:
    if not x.size:
        return x
    scanned = scan(widen(x), axis_of(int(axis.item()), x.ndim), reverse=bool(reverse), inclusive=not exclusive)
    return scanned.astype(x.dtype)
