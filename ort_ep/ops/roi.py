"""Pooling over regions of interest: where the samples lie is known once the regions are, so they are read first."""

from __future__ import annotations

from functools import reduce
from itertools import product
from typing import TypedDict, Unpack

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops.axes import channels_last
from ort_ep.ops.precision import widen
from ort_ep.registry import FLOATS, op


class Sampling(TypedDict, total=False):
    """RoiAlign's attributes, beside what says where the pixels lie."""

    mode: str
    output_height: int
    output_width: int
    sampling_ratio: int
    spatial_scale: float


@op("RoiAlign", since=10, host=("rois", "batch_indices"), dtypes=FLOATS)
def roi_align_10(x: Array, rois: np.ndarray, batch_indices: np.ndarray, **sampling: Unpack[Sampling]) -> Array:
    return roi_align(x, rois, batch_indices, coordinate_transformation_mode="output_half_pixel", **sampling)


@op("RoiAlign", since=16, host=("rois", "batch_indices"), dtypes=FLOATS)
def roi_align(
    x: Array,
    rois: np.ndarray,
    batch_indices: np.ndarray,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    batch, channels, height, width = x.shape
    half_pixel = coordinate_transformation_mode == "half_pixel"
    corners = rois.astype(np.float64) * spatial_scale - (0.5 if half_pixel else 0.0)
    least = -np.inf if half_pixel else 1.0
    vertical = axis_taps(corners[:, 1], corners[:, 3], least, output_height, height, sampling_ratio, mode)
    horizontal = axis_taps(corners[:, 0], corners[:, 2], least, output_width, width, sampling_ratio, mode)
    pixels = widen(x).transpose(channels_last(4)).reshape([batch * height * width, channels])
    base = np.clip(batch_indices, 0, batch - 1)[:, None, None] * height
    parts = []
    for (row, tall), (column, wide) in product(vertical, horizontal):
        places = (base + row[:, :, None]) * width + column[:, None, :]
        weight = mx.array(tall[:, :, None] * wide[:, None, :], pixels.dtype)
        part = mx.take(pixels, mx.array(places), 0) * weight[..., None]
        # the largest of a region counts only the samples that it has
        absent = mx.array(np.isnan(tall)[:, :, None] | np.isnan(wide)[:, None, :])[..., None]
        parts.append(mx.where(absent, -np.inf if mode == "max" else 0.0, part).astype(pixels.dtype))
    pooled = reduce(mx.maximum if mode == "max" else mx.add, parts)
    return pooled.transpose([0, 3, 1, 2]).astype(x.dtype)


def axis_taps(
    start: np.ndarray, end: np.ndarray, least: float, count: int, length: int, ratio: int, mode: str
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(element, weight), each [regions, count], of every sample's two neighbours; NaN where there is no such sample."""
    size = np.maximum(end - start, least)
    samples = np.full(size.shape, ratio) if ratio > 0 else np.ceil(size / count).astype(int)
    # a region turned inside out has no samples: its one counts as nothing
    void, samples = (samples < 1)[:, None], np.maximum(samples, 1)
    taps = []
    for sample in range(int(samples.max(initial=1))):
        step = size / count
        place = start[:, None] + step[:, None] * (np.arange(count) + ((sample + 0.5) / samples)[:, None])
        outside = (place < -1) | (place > length)
        place = np.clip(place, 0, length - 1)
        low = place.astype(np.int64)
        part = place - low
        share = 1.0 if mode == "max" else 1 / samples[:, None]
        for element, weight in ((low, 1 - part), (np.minimum(low + 1, length - 1), part)):
            weight = np.where(outside | void, 0, weight) * share
            taps.append((element, np.where(sample < samples[:, None], weight, np.nan)))
    return taps
