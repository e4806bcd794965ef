"""Operators of com.microsoft that move, transform or compare tensors; several are older names of ONNX's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.dtypes import to_mlx
from ort_ep.graph import Node
from ort_ep.ops.axes import axes_of, axis_of
from ort_ep.ops.creation import range_
from ort_ep.ops.indexing import gather_nd, in_range, pad, scatter_rows, trilu
from ort_ep.ops.microsoft_attention import only_plain
from ort_ep.ops.precision import narrow, on_cuda, widen, widened
from ort_ep.ops.sampling import grid_sample
from ort_ep.ops.spectral import from_complex, to_complex
from ort_ep.registry import ANY, BYTES, FLOATS, INDEX, INT32, MICROSOFT, NUMERIC, SINGLES, op
from ort_ep.streams import cpu_stream

op("Trilu", domain=MICROSOFT, host=("k",), dtypes=ANY)(trilu)
op("GatherND", domain=MICROSOFT, dtypes={"data": ANY, "indices": INDEX})(gather_nd)
op("GridSample", domain=MICROSOFT, dtypes=FLOATS)(grid_sample)


@op("Pad", domain=MICROSOFT, host=("pads",), dtypes=ANY)
def microsoft_pad(data: Array, pads: np.ndarray, value: Array | None = None, *, mode: str = "constant") -> Array:
    return pad(data, pads.reshape(-1), value, mode=mode)


@op("Range", domain=MICROSOFT, host=("start", "limit", "delta"), dtypes=NUMERIC, fold=True)
def microsoft_range(start: np.ndarray, limit: np.ndarray, delta: np.ndarray | None = None) -> np.ndarray:
    step = np.ones([], start.dtype) if delta is None else delta.reshape([])
    return range_(start.reshape([]), limit.reshape([]), step)


@op("ExpandDims", domain=MICROSOFT, host=("axis",), dtypes=ANY)
def expand_dims(x: Array, axis: np.ndarray) -> Array:
    return mx.expand_dims(x, axis_of(int(axis.item()), x.ndim + 1))


@op("Inverse", domain=MICROSOFT, dtypes={"x": frozenset({"float16", "float32", "float64"})})
def inverse(x: Array) -> Array:
    if not x.size:
        return x
    singular_to_nan = on_cuda()  # an error on the CPU's stream, where LAPACK runs, ends a process that computes on CUDA
    with mx.stream(cpu_stream()):
        wide = widen(x)
        if not singular_to_nan:
            return narrow(mx.linalg.inv(wide), x.dtype)
        singular = mx.any(mx.diagonal(mx.linalg.lu(wide)[2], axis1=-2, axis2=-1) == 0, -1)[..., None, None]
        inverted = mx.linalg.inv(mx.where(singular, mx.eye(x.shape[-1], dtype=wide.dtype), wide))
        return narrow(mx.where(singular, mx.array(np.nan, wide.dtype), inverted), x.dtype)


@op("Rfft", domain=MICROSOFT, dtypes=SINGLES, claim=only_plain({}, {"onesided": 1, "normalized": 0}))
def rfft(x: Array, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = 1) -> Array:
    return from_complex(mx.fft.rfftn(widen(x), axes=list(range(-signal_ndim, 0)))).astype(x.dtype)


@op("Irfft", domain=MICROSOFT, dtypes=SINGLES, claim=only_plain({}, {"onesided": 1, "normalized": 0}))
def irfft(x: Array, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = 1) -> Array:
    signal = to_complex(x)
    axes = list(range(-signal_ndim, 0))
    lengths = [signal.shape[axis] for axis in axes]
    lengths[-1] = 2 * (lengths[-1] - 1)
    return mx.fft.irfftn(signal, lengths, axes).astype(x.dtype)


@op("Unique", domain=MICROSOFT, dtypes=NUMERIC, host_step=True)
def unique(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values, first, index, counts = np.unique(x, True, True, True)
    order = np.argsort(first)
    return values[order], np.argsort(order)[index], counts[order]


@op("CDist", domain=MICROSOFT, dtypes=FLOATS)
def pairwise_distance(a: Array, b: Array, *, metric: str = "sqeuclidean") -> Array:
    squares = mx.sum(mx.square(widen(a)[:, None] - widen(b)), -1)
    return (mx.sqrt(squares) if metric == "euclidean" else squares).astype(a.dtype)


@op(
    "CropAndResize",
    domain=MICROSOFT,
    host=("crop_size",),
    dtypes={"x": SINGLES, "rois": SINGLES, "batch_indices": INT32},
)
@widened
def crop_and_resize(
    x: Array,
    rois: Array,
    batch_indices: Array,
    crop_size: np.ndarray,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Array:
    pixels = mx.take(x, in_range(batch_indices, x.shape[0]), 0)
    (rows, inside_y), (columns, inside_x) = (
        crop_places(rois[:, axis], rois[:, axis + 2], x.shape[2 + axis], int(crop_size[axis])) for axis in (0, 1)
    )

    def picked(y: Array, z: Array) -> Array:
        """[regions, C, H', W'] at integer positions [regions, H'] and [regions, W']."""
        height, width = x.shape[2:]
        flat = mx.clip(y, 0, height - 1)[:, :, None] * width + mx.clip(z, 0, width - 1)[:, None, :]
        # once more as integers: a NaN passes the first time
        positions = mx.clip(flat.astype(mx.int32), 0, height * width - 1).reshape([flat.shape[0], 1, -1])
        spread = pixels.reshape([*pixels.shape[:2], height * width])
        taken = mx.take_along_axis(spread, mx.broadcast_to(positions, [*pixels.shape[:2], positions.shape[2]]), 2)
        return taken.reshape([*pixels.shape[:2], *flat.shape[1:]])

    if mode == "nearest":
        # halves go up, away from zero
        y = picked(mx.floor(rows + 0.5), mx.floor(columns + 0.5))
    else:
        top, left = mx.floor(rows), mx.floor(columns)
        down, right = (rows - top)[:, None, :, None], (columns - left)[:, None, None, :]
        upper = picked(top, left) * (1 - right) + picked(top, left + 1) * right
        lower = picked(top + 1, left) * (1 - right) + picked(top + 1, left + 1) * right
        y = upper * (1 - down) + lower * down
    inside = mx.logical_and(inside_y[:, None, :, None], inside_x[:, None, None, :])
    return mx.where(inside, y, mx.array(extrapolation_value, y.dtype))


def crop_places(start: Array, end: Array, length: int, size: int) -> tuple[Array, Array]:
    """Corner-aligned positions [regions, size] on an axis, and which of them lie on it."""
    if size > 1:
        step = (end - start) * (length - 1) / (size - 1)
        place = (start * (length - 1))[:, None] + step[:, None] * mx.arange(size)
    else:
        place = (0.5 * (start + end) * (length - 1))[:, None]
    return place, mx.logical_and(place >= 0, place <= length - 1)


@op("UnfoldTensor", domain=MICROSOFT, dtypes=ANY)
def unfold_tensor(x: Array, *, dim: int = -1, size: int, step: int = 1) -> Array:
    axis = axis_of(dim, x.ndim)
    starts = np.arange(0, x.shape[axis] - size + 1, step)
    return mx.moveaxis(mx.take(x, mx.array(starts[:, None] + np.arange(size)), axis), axis + 1, -1)


@op("NGramRepeatBlock", domain=MICROSOFT, dtypes={"input_ids": INDEX, "scores": SINGLES})
def ngram_repeat_block(input_ids: Array, scores: Array, *, ngram_size: int) -> Array:
    (batch, length), vocabulary = input_ids.shape, scores.shape[1]
    if length < ngram_size:
        return scores
    starts = np.arange(length - ngram_size + 1)
    grams = mx.take(input_ids, mx.array(starts[:, None] + np.arange(ngram_size)), 1)
    suffix = input_ids[:, length - ngram_size + 1 :]
    repeats = mx.all(grams[:, :, :-1] == suffix[:, None], -1)
    tokens = in_range(grams[:, :, -1], vocabulary) + mx.arange(batch)[:, None] * vocabulary
    banned = scatter_rows(
        mx.zeros([batch * vocabulary], mx.int32), tokens.flatten(), repeats.flatten().astype(mx.int32), "max"
    )
    return mx.where(banned.reshape(scores.shape) > 0, mx.array(-np.inf, scores.dtype), scores)


@op("GatedAdd", domain=MICROSOFT, dtypes=SINGLES, claim=only_plain({3: "gate_weight"}, {}))
def gated_add(x: Array, y: Array, gate: Array, gate_weight: Array | None = None) -> Array:
    return x + y * gate


@op("IsAllFinite", domain=MICROSOFT, dtypes=FLOATS)
def is_all_finite(*inputs: Array, isinf_only: int = 0, isnan_only: int = 0) -> Array:
    def fine(x: Array) -> Array:
        if isnan_only:
            return mx.logical_not(mx.isnan(x))
        return mx.logical_not(mx.isinf(x)) if isinf_only else mx.isfinite(x)

    return reduce(mx.logical_and, (mx.all(fine(x)) for x in inputs)).reshape([])


@op("TorchEmbedding", domain=MICROSOFT, host=("padding_idx", "scale_grad_by_freq"), dtypes={"weight": ANY})
def torch_embedding(
    weight: Array,
    indices: Array,
    padding_idx: np.ndarray | None = None,
    scale_grad_by_freq: np.ndarray | None = None,
) -> Array:
    return mx.take(weight, in_range(indices, weight.shape[0]), 0)


@op("RestorePadding", domain=MICROSOFT, dtypes={"x": SINGLES, "token_offset": INT32})
def restore_padding(x: Array, token_offset: Array) -> Array:
    batch, length = token_offset.shape
    table = mx.zeros([batch * length, x.shape[1]], x.dtype)
    places = in_range(token_offset.flatten()[: x.shape[0]], batch * length)
    return scatter_rows(table, places, x, "none").reshape([batch, length, x.shape[1]])


@op("ReduceSumInteger", domain=MICROSOFT, dtypes={"data": BYTES})
def reduce_sum_integer(data: Array, *, axes: Sequence[int], keepdims: int, node: Node) -> Array:
    total = mx.sum(data.astype(mx.int32), axes_of(axes, data.ndim), bool(keepdims))
    made = node.outputs[0]
    return total if made is None or made.elem_type is None else total.astype(to_mlx(made.elem_type))
