"""Deformable convolution and max pooling over regions: where they read depends on data, how much does not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.graph import Node
from ort_ep.ops.axes import along
from ort_ep.ops.indexing import in_range
from ort_ep.ops.norm import per_channel
from ort_ep.ops.precision import lowest, widened
from ort_ep.ops.window import Window
from ort_ep.registry import FLOATS, op


def two_axes(node: Node) -> str | None:
    """Two spatial axes; the rank must be known."""
    rank = next((value.rank for value in node.inputs[:2] if value is not None and value.rank is not None), None)
    return None if rank == 4 else "only two spatial axes are translated"


@op("DeformConv", since=19, dtypes=FLOATS, claim=two_axes)
@widened
def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    batch, channels, *lengths = x.shape
    window = Window.of(lengths, w.shape[2:], strides=strides, dilations=dilations, pads=pads)
    taps, places = math.prod(window.kernel), math.prod(window.output)
    moved = offset.reshape([batch, offset_group, *window.kernel, 2, *window.output])
    # the regular positions [kernel, output] of each axis, shaped to broadcast over [kh, kw, oh, ow]
    rows = window.taps(0).T[:, None, :, None]
    columns = window.taps(1).T[None, :, None, :]
    where = [
        (moved[:, :, :, :, axis] + mx.array(regular, x.dtype)).reshape([batch, offset_group, 1, taps * places])
        for axis, regular in enumerate((rows, columns))
    ]
    pixels = x.reshape([batch, offset_group, channels // offset_group, math.prod(lengths)])
    sampled = bilinear(pixels, where[0], where[1], lengths)
    if mask is not None:
        sampled = sampled * mask.reshape([batch, offset_group, 1, taps * places])
    patches = sampled.reshape([batch, group, channels // group * taps, places])
    weights = w.reshape([group, w.shape[0] // group, -1])
    y = mx.matmul(weights, patches).reshape([batch, w.shape[0], *window.output])
    return y if b is None else y + per_channel(b, y)


def bilinear(pixels: Array, rows: Array, columns: Array, lengths: Sequence[int]) -> Array:
    """[..., C, H * W] at positions [..., 1, P], zero outside -> [..., C, P]."""
    height, width = lengths
    top, left = mx.floor(rows), mx.floor(columns)
    parts = []
    for row, row_weight in ((top, top + 1 - rows), (top + 1, rows - top)):
        for column, column_weight in ((left, left + 1 - columns), (left + 1, columns - left)):
            inside = reduce_and(row >= 0, row < height, column >= 0, column < width)
            flat = (mx.clip(row, 0, height - 1) * width + mx.clip(column, 0, width - 1)).astype(mx.int32)
            flat = mx.clip(flat, 0, height * width - 1)  # once more as integers: a NaN passes the first time
            taken = mx.take_along_axis(pixels, mx.broadcast_to(flat, [*pixels.shape[:-1], flat.shape[-1]]), -1)
            weight = row_weight * column_weight
            parts.append(taken * mx.where(inside, weight, mx.zeros_like(weight)))
    return parts[0] + parts[1] + parts[2] + parts[3]


def reduce_and(first: Array, *rest: Array) -> Array:
    for condition in rest:
        first = mx.logical_and(first, condition)
    return first


@op("MaxRoiPool", since=1, dtypes=FLOATS)
def max_roi_pool(x: Array, rois: Array, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0) -> Array:
    pooled = mx.take(x, in_range(rois[:, 0].astype(mx.int32), x.shape[0]), 0)
    corners = rois[:, 1:].astype(mx.float32) * spatial_scale
    # halves go away from zero
    corners = mx.sign(corners) * mx.floor(mx.abs(corners) + 0.5)
    for axis, first in ((2, 1), (3, 0)):
        start, end = corners[:, first], corners[:, first + 2]
        pooled = pooled_axis(pooled, axis, start, mx.maximum(end - start + 1, 1), pooled_shape[axis - 2])
    return mx.where(pooled == lowest(x.dtype), mx.zeros_like(pooled), pooled)


def pooled_axis(x: Array, axis: int, start: Array, size: Array, bins: int) -> Array:
    """[R, C, ...] with one spatial axis reduced to the maxima of each region's bins; the lowest value where empty."""
    length = x.shape[axis]
    position = mx.array(along(np.arange(length), axis, 4))
    shape = [-1, 1, 1, 1]
    maxima = []
    for index in range(bins):
        low = mx.clip(mx.floor(size * (index / bins)) + start, 0, length).reshape(shape)
        high = mx.clip(mx.ceil(size * ((index + 1) / bins)) + start, 0, length).reshape(shape)
        inside = mx.logical_and(position >= low, position < high)
        maxima.append(mx.max(mx.where(inside, x, mx.array(lowest(x.dtype), x.dtype)), axis))
    return mx.stack(maxima, axis)
