"""Pooling: a reduction over the sliding windows of the padded input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import numpy as np

import mlxc_py as mx
from mlxc_py import Array, cpu_primitives
from ort_ep.ops.axes import along, channels_first, channels_last
from ort_ep.ops.indexing import scatter_elements
from ort_ep.ops.precision import lowest, narrow, widen, widened
from ort_ep.ops.window import Sliding, Window
from ort_ep.registry import FLOATS, op


class Pooling(Sliding, total=False):
    """The attributes of a pooling, beside the required kernel_shape."""

    ceil_mode: int


def pooled(x: Array, window: Window, maximum: bool) -> Array:
    """The maximum or the sum of every window of [N, C, spatial...]."""
    if x.ndim not in (3, 4) or x.dtype != mx.float32 or not cpu_primitives.serves(x):
        return window.combine(x, lowest(x.dtype) if maximum else 0, mx.maximum if maximum else mx.add)
    data = x.transpose(channels_last(x.ndim))
    flat = x.ndim == 3
    geometry: list[Sequence[int]] = [window.kernel, window.output, window.strides, window.before, window.dilations]
    if flat:
        data = mx.expand_dims(data, 1)
        kernel, output, stride, before, dilation = (
            [unit, *g] for unit, g in zip((1, 1, 1, 0, 1), geometry, strict=True)
        )
    else:
        kernel, output, stride, before, dilation = map(list, geometry)
    y = cpu_primitives.pool(data, kernel, output, maximum=maximum, stride=stride, before=before, dilation=dilation)
    y = y.squeeze(1) if flat else y
    return y.transpose(channels_first(y.ndim))


@op("MaxPool", since=1, dtypes={"x": FLOATS | {"int8", "uint8"}})
def max_pool(
    x: Array,
    *,
    kernel_shape: Sequence[int],
    storage_order: int = 0,
    n_outputs: int,
    **pooling: Unpack[Pooling],
) -> Array | tuple[Array, Array]:
    window = Window.of(x.shape[2:], kernel_shape, **pooling)
    if n_outputs == 1:
        return narrow(pooled(widen(x), window, True), x.dtype)
    taps = window.slide(x, lowest(x.dtype))
    if not taps.size:
        return mx.zeros(taps.shape[:-1], x.dtype), mx.zeros(taps.shape[:-1], mx.int64)
    best = mx.argmax(taps, -1, keepdims=True)
    spatial = math.prod(x.shape[2:])
    order = np.arange(spatial).reshape(x.shape[2:], order="F" if storage_order else "C")
    positions = mx.broadcast_to(window.slide(mx.array(order[None, None]), 0), taps.shape)
    planes = mx.arange(x.shape[0] * x.shape[1], dtype=mx.int64).reshape([*x.shape[:2], *[1] * (x.ndim - 2)])
    chosen = mx.take_along_axis(positions, best, -1).squeeze(-1)
    return mx.take_along_axis(taps, best, -1).squeeze(-1), chosen + planes * spatial


@op("MaxUnpool", since=9, host=("output_shape",), dtypes={"x": FLOATS})
def max_unpool(
    x: Array,
    indices: Array,
    output_shape: np.ndarray | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    rank = len(kernel_shape)
    strides, pads = strides or [1] * rank, pads or [0] * (2 * rank)
    inferred = [
        (length - 1) * strides[axis] + kernel_shape[axis] - pads[axis] - pads[rank + axis]
        for axis, length in enumerate(x.shape[2:])
    ]
    pooled = [*x.shape[:2], *inferred]
    flat = scatter_elements(mx.zeros([math.prod(pooled)], x.dtype), indices.flatten(), x.flatten())
    widths = [0] * x.ndim if output_shape is None else (output_shape - pooled).tolist()
    return mx.pad(flat.reshape(pooled), [(0, width) for width in widths])


@op("AveragePool", since=7, dtypes=FLOATS)
@widened
def average_pool(
    x: Array,
    *,
    count_include_pad: int = 0,
    kernel_shape: Sequence[int],
    **pooling: Unpack[Pooling],
) -> Array:
    window = Window.of(x.shape[2:], kernel_shape, **pooling)
    counts = np.ones([1] * x.ndim)
    for axis, length in enumerate(x.shape[2:]):
        first, last = (-window.before[axis], length + window.after[axis]) if count_include_pad else (0, length)
        taps = window.taps(axis)
        counts = counts * along(((taps >= first) & (taps < last)).sum(1), 2 + axis, x.ndim)
    return pooled(x, window, False) / mx.array(counts, x.dtype)


@op("LpPool", since=2, dtypes=FLOATS)
@widened
def lp_pool(x: Array, *, kernel_shape: Sequence[int], p: int = 2, **pooling: Unpack[Pooling]) -> Array:
    window = Window.of(x.shape[2:], kernel_shape, **pooling)
    return mx.power(window.combine(mx.power(mx.abs(x), p), 0, mx.add), 1 / p)


@op("Col2Im", since=18, host=("image_shape", "block_shape"), dtypes=FLOATS)
@widened
def col2im(
    x: Array,
    image_shape: np.ndarray,
    block_shape: np.ndarray,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    image = image_shape.tolist()
    window = Window.of(image, block_shape.tolist(), strides=strides, dilations=dilations, pads=pads)
    rank, batch = len(image), x.shape[0]
    # where each element of [kernel..., output...] is added; outside the image there is one place for all
    flat, outside = np.zeros([1] * (2 * rank), np.int64), np.zeros([1] * (2 * rank), bool)
    for axis, length in enumerate(image):
        taps = window.taps(axis).T[tuple(slice(None) if i in (axis, rank + axis) else None for i in range(2 * rank))]
        outside = outside | (taps < 0) | (taps >= length)
        flat = flat * length + taps
    size = math.prod(image)
    places = mx.array(np.where(outside, size, flat).reshape(-1))
    columns = x.reshape([batch, -1, places.size]).transpose([2, 0, 1])
    total = mx.zeros([size + 1, *columns.shape[1:]], x.dtype).at[places].add(columns)
    return total[:size].transpose([1, 2, 0]).reshape([batch, -1, *image])


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
