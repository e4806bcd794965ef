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
    views = window.slide(x, lowest(x.dtype))
    if n_outputs == 1:
        return mx.max(views, kernel_axes(x))
    taps = views.reshape([*views.shape[: x.ndim], -1])
    best = mx.argmax(taps, -1, keepdims=True)
    spatial = math.prod(x.shape[2:])
    order = np.arange(spatial).reshape(x.shape[2:], order="F" if storage_order else "C")
    positions = window.slide(mx.array(order[None, None]), 0).reshape([1, 1, *taps.shape[2:]])
    planes = mx.arange(x.shape[0] * x.shape[1], dtype=mx.int64).reshape([*x.shape[:2], *[1] * (x.ndim - 2)])
    chosen = mx.take_along_axis(mx.broadcast_to(positions, taps.shape), best, -1)
    return mx.take_along_axis(taps, best, -1).squeeze(-1), chosen.squeeze(-1) + planes * spatial


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
    return mx.sum(window.slide(x, 0), kernel_axes(x)) / mx.array(counts).astype(x.dtype)


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
    return lp_norm(window.slide(x, 0), kernel_axes(x), p, keepdims=False)


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
    return lp_norm(x, spatial_axes(x), p, keepdims=True)


def spatial_axes(x: Array) -> list[int]:
    return list(range(2, x.ndim))


def kernel_axes(x: Array) -> list[int]:
    """The axes of the kernel in the windows of x."""
    return list(range(x.ndim, 2 * x.ndim - 2))


def lp_norm(x: Array, axes: list[int], p: int, *, keepdims: bool) -> Array:
    return mx.power(mx.sum(mx.power(mx.abs(x), p), axes, keepdims), 1 / p)
