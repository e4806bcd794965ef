"""Pooling: a reduction over the sliding windows of the padded input."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops.axes import along
from ort_ep.ops.precision import lowest, widened
from ort_ep.ops.window import Window
from ort_ep.registry import FLOATS, op


@op("MaxPool", since=1, dtypes={"X": FLOATS | {"int8", "uint8"}})
def max_pool(
    x: Array,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    n_outputs: int,
) -> Array | tuple[Array, Array]:
    window = Window.of(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    if n_outputs == 1:
        return window.combine(x, lowest(x.dtype), mx.maximum)
    taps = window.slide(x, lowest(x.dtype))
    best = mx.argmax(taps, -1, keepdims=True)
    spatial = math.prod(x.shape[2:])
    order = np.arange(spatial).reshape(x.shape[2:], order="F" if storage_order else "C")
    positions = mx.broadcast_to(window.slide(mx.array(order[None, None]), 0), taps.shape)
    planes = mx.arange(x.shape[0] * x.shape[1], dtype=mx.int64).reshape([*x.shape[:2], *[1] * (x.ndim - 2)])
    chosen = mx.take_along_axis(positions, best, -1).squeeze(-1)
    return mx.take_along_axis(taps, best, -1).squeeze(-1), chosen + planes * spatial


@op("AveragePool", since=7, dtypes=FLOATS)
@widened
def average_pool(
    x: Array,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    window = Window.of(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    counts = np.ones([1] * x.ndim)
    for axis, length in enumerate(x.shape[2:]):
        first, last = (-window.before[axis], length + window.after[axis]) if count_include_pad else (0, length)
        taps = window.taps(axis)
        counts = counts * along(((taps >= first) & (taps < last)).sum(1), 2 + axis, x.ndim)
    return window.combine(x, 0, mx.add) / mx.array(counts, x.dtype)


@op("LpPool", since=2, dtypes=FLOATS)
@widened
def lp_pool(
    x: Array,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    p: int = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    window = Window.of(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    return mx.power(window.combine(mx.power(mx.abs(x), p), 0, mx.add), 1 / p)


@op("GlobalMaxPool", since=1, dtypes=FLOATS)
def global_max_pool(x: Array) -> Array:
    return mx.max(x, spatial_axes(x), keepdims=True)


@op("GlobalAveragePool", since=1, dtypes=FLOATS)
@widened
def global_average_pool(x: Array) -> Array:
    return mx.mean(x, spatial_axes(x), keepdims=True)


@op("GlobalLpPool", since=2, dtypes=FLOATS)
@widened
def global_lp_pool(x: Array, *, p: int = 2) -> Array:
    return mx.power(mx.sum(mx.power(mx.abs(x), p), spatial_axes(x), keepdims=True), 1 / p)


def spatial_axes(x: Array) -> list[int]:
    return list(range(2, x.ndim))
