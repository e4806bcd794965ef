"""Sampling at computed positions: GridSample and the grids it takes."""

from __future__ import annotations

import math
from functools import reduce
from itertools import product

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops.axes import channels_first, channels_last
from ort_ep.ops.precision import widen
from ort_ep.registry import FLOATS, op

Tap = tuple[Array, Array]

# opset 16 named the modes after two dimensions
MODES = {"bilinear": "linear", "bicubic": "cubic"}
CUBIC_A = -0.75


@op("GridSample", since=16, dtypes=FLOATS)
def grid_sample(
    x: Array, grid: Array, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Array:
    batch, channels, *lengths = x.shape
    places = widen(grid)
    axes = [
        axis_taps(places[..., -1 - axis], length, bool(align_corners), MODES.get(mode, mode), padding_mode)
        for axis, length in enumerate(lengths)
    ]
    pixels = widen(x).transpose(channels_last(x.ndim)).reshape([-1, channels])
    first = mx.arange(batch).reshape([batch, *[1] * (grid.ndim - 2)])
    parts = []
    for taps in product(*axes):
        row = reduce(lambda flat, pair: flat * pair[1] + pair[0][0], zip(taps, lengths, strict=True), first)
        weight = math.prod((tap[1] for tap in taps[1:]), start=taps[0][1])
        parts.append(mx.take(pixels, row, 0) * weight[..., None].astype(pixels.dtype))
    sampled = reduce(mx.add, parts).astype(x.dtype)
    return sampled.transpose(channels_first(sampled.ndim))


def axis_taps(place: Array, length: int, aligned: bool, mode: str, padding: str) -> list[Tap]:
    """The elements of one axis that a sample at `place` in [-1, 1] is made of, and what each weighs."""
    low, high = (0.0, length - 1.0) if aligned else (-0.5, length - 0.5)
    position = low + (place + 1) / 2 * (high - low)
    position = mx.round(position) if mode == "nearest" else position
    if padding == "reflection":
        position = reflected(position, low, high)
    if mode == "nearest":
        return [inside(position, mx.ones_like(position), length, low, high, padding)]
    base = mx.floor(position)
    part = position - base
    weights = [1 - part, part] if mode == "linear" else cubic_weights(part)
    start = 0 if mode == "linear" else -1
    return [inside(base + offset, weight, length, low, high, padding) for offset, weight in enumerate(weights, start)]


def inside(index: Array, weight: Array, length: int, low: float, high: float, padding: str) -> Tap:
    """An element index brought into the axis; where the padding is zeros, one outside weighs nothing."""
    if padding == "zeros":
        weight = mx.where(mx.logical_and(index >= 0, index < length), weight, mx.zeros_like(weight))
    elif padding == "reflection":
        index = reflected(index, low, high)
    return mx.clip(index, 0, length - 1).astype(mx.int32), weight


def reflected(position: Array, low: float, high: float) -> Array:
    span = high - low
    if span == 0:
        return mx.zeros_like(position)
    return low + span - mx.abs(span - mx.remainder(mx.abs(position - low), 2 * span))


def cubic_weights(part: Array) -> list[Array]:
    def near(t: Array) -> Array:
        return ((CUBIC_A + 2) * t - (CUBIC_A + 3)) * t * t + 1

    def far(t: Array) -> Array:
        return ((t - 5) * t + 8) * t * CUBIC_A - 4 * CUBIC_A

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]


@op("AffineGrid", since=20, host=("size",), dtypes=FLOATS)
def affine_grid(theta: Array, size: np.ndarray, *, align_corners: int = 0) -> Array:
    batch, _, *lengths = size.tolist()
    ends = [1 if align_corners else 1 - 1 / length for length in lengths]
    steps = [np.linspace(-end, end, length) for end, length in zip(ends, lengths, strict=True)]
    # the grid's coordinates are ordered x, y, z: the last axis first
    corners = np.stack([*np.meshgrid(*steps, indexing="ij")[::-1], np.ones(lengths)], -1)
    base = mx.array(corners.reshape(-1, len(lengths) + 1), widen(theta).dtype)
    moved = mx.matmul(base, widen(theta).swapaxes(1, 2)).astype(theta.dtype)
    return moved.reshape([batch, *lengths, len(lengths)])
