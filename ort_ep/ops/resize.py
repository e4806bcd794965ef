"""Resize and Upsample: along each axis an output is a weighted sum of a few taps, placed by the shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

import mlxc_py as mx
from mlxc_py import Array, cpu_indexing
from ort_ep.graph import Node
from ort_ep.ops.axes import along, axes_of, channels_first, channels_last
from ort_ep.ops.precision import compute_dtype, is_float
from ort_ep.registry import FLOATS, NUMERIC, op

ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True)
class Sampling:
    """The attributes of Resize that say where the taps of an output lie and what they weigh."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0

    def source(self, length: int, count: int, scale: float, roi: Sequence[float]) -> np.ndarray:
        """The position in the input of each of `count` outputs, in float32 as ORT has it: ties depend on it."""
        x, step = np.arange(count, dtype=np.float32), np.float32(scale)
        resized = np.float32(length) * step
        match self.coordinates:
            case "asymmetric":
                return x / step
            case "align_corners":
                return x * (length - 1) / (resized - 1) if resized != 1 else 0 * x
            case "pytorch_half_pixel":
                return (x + 0.5) / step - 0.5 if count > 1 else 0 * x
            case "half_pixel_symmetric":
                return length / 2 * (1 - count / resized) + (x + 0.5) / step - 0.5
            case "tf_half_pixel_for_nn":
                return (x + 0.5) / step
            case "tf_crop_and_resize":
                start, end = roi
                if count == 1:
                    return 0.5 * (start + end) * (length - 1) + x
                return start * (length - 1) + x * (end - start) * (length - 1) / (count - 1)
        return (x + 0.5) / step - 0.5

    def taps(self, source: np.ndarray, length: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Input indices and weights, both [outputs, taps]."""
        if self.mode == "nearest":
            index = ROUNDINGS[self.nearest](source)[:, None].astype(np.int64)
            return np.clip(index, 0, length - 1), np.ones(index.shape)
        stretch = max(1 / scale, 1.0) if self.antialias else 1.0
        reach = (1 if self.mode == "linear" else 2) * stretch
        first = np.floor(source - reach).astype(np.int64) + 1
        index = first[:, None] + np.arange(int(np.ceil(2 * reach)))
        distance = np.abs(index - source[:, None]) / stretch
        weight = np.maximum(1 - distance, 0) if self.mode == "linear" else cubic(distance, self.cubic_a)
        if self.exclude_outside:
            weight = np.where((index >= 0) & (index < length), weight, 0)
        return np.clip(index, 0, length - 1), weight / weight.sum(1, keepdims=True)


def cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def resample(x: Array, axis: int, index: np.ndarray, weight: np.ndarray) -> Array:
    """The weighted sum of the taps, along one axis."""
    places = mx.array(index.astype(np.int32))
    if in_one_pass(x):
        return cpu_indexing.take_sums(x, places, mx.array(weight.astype(np.float32)), axis)
    take = cpu_indexing.take if cpu_indexing.serves() else mx.take
    if weight.shape[1] == 1:
        return take(x, places.flatten(), axis)
    used = [number for number in range(weight.shape[1]) if weight[:, number].any()] or [0]
    taps = (take(x, places[:, n], axis) * mx.array(along(weight[:, n], axis, x.ndim), x.dtype) for n in used)
    return reduce(mx.add, taps)


def in_one_pass(x: Array) -> bool:
    """Whether all taps are summed by a primitive of our own, in the layout that the image has."""
    return x.dtype == mx.float32 and cpu_indexing.serves()


def resample_all(
    x: Array, axes: Sequence[int], counts: Sequence[int], scales: Sequence[float], roi: np.ndarray, how: Sampling
) -> Array:
    cropped = how.coordinates == "tf_crop_and_resize"
    inside = np.ones([1] * x.ndim, bool)
    y = x if how.mode == "nearest" else x.astype(compute_dtype(x.dtype) if is_float(x) else mx.float32)
    changed = [axis for axis, scale in zip(axes, scales, strict=True) if cropped or scale != 1]
    image = x.ndim > 2 and min(changed, default=0) > 1 and not in_one_pass(y)
    y = y.transpose(channels_last(x.ndim)) if image else y
    for axis, count, scale, ends in zip(axes, counts, scales, roi.reshape(2, -1).T.tolist(), strict=True):
        length = x.shape[axis]
        source = how.source(length, count, scale, ends)
        if cropped:
            inside = inside & along((source >= 0) & (source <= length - 1), axis, x.ndim)
        if axis in changed:
            y = resample(y, axis - image, *how.taps(source, length, scale))
    y = y.transpose(channels_first(x.ndim)) if image else y
    if not inside.all():
        y = mx.where(mx.array(inside), y, mx.array(how.extrapolation, y.dtype))
    return y.astype(x.dtype)


def interpolates_floats(node: Node) -> str | None:
    """32- and 64-bit integers: only mode nearest."""
    exact = FLOATS | {"int8", "uint8", "int16", "uint16"}
    data = node.input(0)
    if data is None or data.dtype in exact or node.attributes.get("mode", "nearest") == "nearest":
        return None
    return f"{data.dtype} is interpolated in float32, which does not hold it"


@op("Upsample", since=7, dtypes=NUMERIC, claim=interpolates_floats)
def upsample_7(x: Array, *, mode: str = "nearest", scales: Sequence[float]) -> Array:
    return resize_10(x, np.array(scales, np.float32), mode=mode)


@op("Upsample", since=9, host=("scales",), dtypes=NUMERIC, claim=interpolates_floats)
@op("Resize", since=10, host=("scales",), dtypes=NUMERIC, claim=interpolates_floats)
def resize_10(x: Array, scales: np.ndarray, *, mode: str = "nearest") -> Array:
    nearest = "ceil" if (scales < 1).any() else "floor"
    return resize(x, None, scales, coordinate_transformation_mode="asymmetric", mode=mode, nearest_mode=nearest)


@op("Resize", since=11, host=("roi", "scales", "sizes"), dtypes=NUMERIC, claim=interpolates_floats)
def resize(
    x: Array,
    roi: np.ndarray | None = None,
    scales: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Array:
    how = Sampling(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        bool(antialias),
        extrapolation_value,
    )
    chosen = list(range(x.ndim)) if axes is None else axes_of(axes, x.ndim)
    lengths = np.array([x.shape[axis] for axis in chosen])
    if sizes is not None and sizes.size:
        scales = sizes / np.maximum(lengths, 1)
        if keep_aspect_ratio_policy != "stretch":
            scales = np.full(len(chosen), scales.min() if keep_aspect_ratio_policy == "not_larger" else scales.max())
            sizes = np.floor(scales * lengths + 0.5)
    elif scales is not None:
        # in float32, as the product that the spec floors is
        sizes = np.floor(lengths.astype(np.float32) * scales)
    else:
        raise ValueError("Resize needs scales or sizes")
    if (sizes < 0).any() or ((lengths == 0) & (sizes > 0)).any():
        raise ValueError(f"Resize of {lengths.tolist()} to {sizes.astype(int).tolist()}")
    ends = np.repeat([0.0, 1.0], len(chosen)) if roi is None or not roi.size else roi
    return resample_all(x, chosen, sizes.astype(int).tolist(), scales.tolist(), ends, how)
