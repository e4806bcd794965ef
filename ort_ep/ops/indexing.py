"""Gathering, scattering and padding. Indices are clamped into range: MLX reads whatever memory they point at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

import mlxc_py as mx
from mlxc_py import Array, cpu_indexing
from ort_ep.ops.axes import along, axes_of, axis_of
from ort_ep.ops.precision import on_cpu
from ort_ep.registry import ANY, INDEX, NUMERIC, op
from ort_ep.streams import cpu_stream

INDEXED = {"data": ANY, "indices": INDEX}
SCATTERED = INDEXED | {"updates": ANY}


def in_range(indices: Array, length: int) -> Array:
    """Indices counted from either end, clamped into an axis; ValueError where the axis has no element to name."""
    if length == 0 and indices.size:
        raise ValueError("an index into an axis of length 0")
    return mx.clip(mx.where(indices < 0, indices + length, indices), 0, max(length - 1, 0))


@op("Gather", since=1, dtypes=INDEXED, fold=lambda data, indices, *, axis=0: np.take(data, indices, axis))
def gather(data: Array, indices: Array, *, axis: int = 0) -> Array:
    axis = axis_of(axis, data.ndim)
    if cpu_indexing.serves():
        return cpu_indexing.take(data, indices, axis)
    return mx.take(data, in_range(indices, data.shape[axis]), axis)


@op("GatherElements", since=11, dtypes=INDEXED)
def gather_elements(data: Array, indices: Array, *, axis: int = 0) -> Array:
    if cpu_indexing.serves():
        return cpu_indexing.take_elements(data, indices, axis_of(axis, data.ndim))
    return mx.take(data.flatten(), flat_elements(data.shape, indices, axis))


@op("GatherND", since=11, dtypes=INDEXED)
def gather_nd(data: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    depth = batch_dims + indices.shape[-1]
    rows = data.reshape([math.prod(data.shape[:depth]), *data.shape[depth:]])
    places = flat_rows(data.shape, indices, batch_dims)
    return cpu_indexing.take(rows, places, 0) if cpu_indexing.serves() else mx.take(rows, places, 0)


def flat_elements(shape: Sequence[int], indices: Array, axis: int) -> Array:
    """The position in the flattened data of every element that GatherElements and ScatterElements name."""
    axis = axis_of(axis, len(shape))
    strides = [math.prod(shape[position + 1 :]) for position in range(len(shape))]
    flat = in_range(indices, shape[axis]).astype(mx.int64) * strides[axis]
    for position, length in enumerate(indices.shape):
        if position != axis:
            flat = flat + mx.array(along(np.arange(length) * strides[position], position, len(shape)))
    return flat


def flat_rows(shape: Sequence[int], indices: Array, batch_dims: int = 0) -> Array:
    """The row that each index tuple names, where the batch and the indexed dimensions are flattened into one."""
    flat = mx.zeros(indices.shape[:-1], mx.int64)
    for position in range(batch_dims):
        batch = along(np.arange(shape[position]), position, indices.ndim - 1)
        flat = flat * shape[position] + mx.array(batch)
    for position in range(indices.shape[-1]):
        length = shape[batch_dims + position]
        flat = flat * length + in_range(indices[..., position], length)
    return flat


@op("Scatter", since=9, dtypes=SCATTERED)
@op("ScatterElements", since=11, dtypes=SCATTERED)
def scatter_elements(data: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none") -> Array:
    if puts(data, reduction):
        return cpu_indexing.put_elements(data, indices, updates, axis_of(axis, data.ndim), add=reduction == "add")
    positions = flat_elements(data.shape, indices, axis).flatten()
    return scatter_rows(data.flatten(), positions, updates.flatten(), reduction).reshape(data.shape)


FOLDS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def fold_scatter_nd(
    data: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, reduction: str = "none"
) -> np.ndarray:
    result, places = data.copy(), tuple(np.moveaxis(indices, -1, 0))
    if reduction == "none":
        result[places] = updates
    else:
        FOLDS[reduction].at(result, places, updates)
    return result


@op("ScatterND", since=11, dtypes=SCATTERED, fold=fold_scatter_nd)
def scatter_nd(data: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    depth = indices.shape[-1]
    rows = data.reshape([math.prod(data.shape[:depth]), math.prod(data.shape[depth:])])
    positions = flat_rows(data.shape, indices).flatten()
    values = updates.reshape([positions.size, rows.shape[1]])
    return scatter_rows(rows, positions, values, reduction).reshape(data.shape)


def scatter_rows(rows: Array, positions: Array, values: Array, reduction: str) -> Array:
    if not values.size:
        return rows
    if puts(rows, reduction):
        places = mx.broadcast_to(positions.reshape([-1] + [1] * (rows.ndim - 1)), values.shape)
        return cpu_indexing.put_elements(rows, places, values, 0, add=reduction == "add")
    if rows.itemsize == 8 and not on_cpu():  # MLX's GPU scatter takes no 64-bit data
        with mx.stream(cpu_stream()):
            return scattered(rows, positions, values, reduction)
    return scattered(rows, positions, values, reduction)


def puts(data: Array, reduction: str) -> bool:
    """Whether the primitive does this: other reductions and types are for MLX."""
    known = reduction == "none" or (reduction == "add" and data.dtype in cpu_indexing.ADDABLE)
    return known and cpu_indexing.serves()


def scattered(rows: Array, positions: Array, values: Array, reduction: str) -> Array:
    target = rows.at[positions]
    match reduction:
        case "add":
            return target.add(values)
        case "mul":
            return target.multiply(values)
        case "min":
            return target.minimum(values)
        case "max":
            return target.maximum(values)
    rows = mx.array(rows)
    rows[positions] = values
    return rows


@op("OneHot", since=9, host=("depth",), dtypes={"indices": NUMERIC, "values": ANY})
def one_hot(indices: Array, depth: np.ndarray, values: Array, *, axis: int = -1) -> Array:
    classes = int(depth.item())
    if classes < 0:
        raise ValueError(f"OneHot of depth {classes}")
    indices = indices.astype(mx.int64)
    hot = mx.expand_dims(mx.where(indices < 0, indices + classes, indices), axis)
    axis = axis_of(axis, hot.ndim)
    return mx.where(hot == mx.array(along(np.arange(classes), axis, hot.ndim)), values[1], values[0])


@op("Trilu", since=14, host=("k",), dtypes=ANY)
def trilu(x: Array, k: np.ndarray | None = None, *, upper: int = 1) -> Array:
    # a far diagonal is the same as one just outside; MLX's int32 holds no more
    offset = 0 if k is None else int(np.clip(k.item(), -x.shape[-2] - 1, x.shape[-1] + 1))
    distance = mx.arange(x.shape[-1]) - mx.arange(x.shape[-2])[:, None]
    return mx.where(distance >= offset if upper else distance <= offset, x, mx.zeros_like(x))


@op("Pad", since=2, dtypes=ANY)
def pad_2(data: Array, *, pads: Sequence[int], mode: str = "constant", value: float = 0.0) -> Array:
    return pad(data, np.array(pads), mx.array(value, data.dtype), mode=mode)


@op("Pad", since=11, host=("pads", "axes"), dtypes=ANY)
def pad(
    data: Array,
    pads: np.ndarray,
    constant_value: Array | None = None,
    axes: np.ndarray | None = None,
    *,
    mode: str = "constant",
) -> Array:
    chosen = range(data.ndim) if axes is None else axes_of(axes, data.ndim)
    before, after = pads.reshape(2, -1).tolist()
    if any(sum(ends) < 0 for ends in zip(before, after, (data.shape[axis] for axis in chosen), strict=True)):
        raise ValueError(f"Pad by {pads.tolist()} cuts more than there is of {tuple(data.shape)}")
    if mode == "constant":
        return pad_constant(data, chosen, before, after, constant_value)
    for axis, first, last in zip(chosen, before, after, strict=True):
        if first or last:
            cut = max(-first, 0)  # first of all, so what is cut off is not repeated
            length = data.shape[axis] - cut - max(-last, 0)
            positions = np.arange(-max(first, 0), length + max(last, 0))
            if positions.size and not length:
                raise ValueError(f"Pad by {pads.tolist()} has nothing to repeat of {tuple(data.shape)}")
            data = mx.take(data, mx.array(PADDING[mode](positions, length) + cut), axis)
    return data


PADDING: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "edge": lambda position, length: np.clip(position, 0, length - 1),
    "wrap": lambda position, length: position % length,
    "reflect": lambda position, length: length - 1 - abs(length - 1 - position % max(2 * (length - 1), 1)),
}


def pad_constant(data: Array, axes: Sequence[int], before: list[int], after: list[int], value: Array | None) -> Array:
    window = [slice(None)] * data.ndim
    widths = [(0, 0)] * data.ndim
    for axis, first, last in zip(axes, before, after, strict=True):
        window[axis] = slice(max(-first, 0), data.shape[axis] - max(-last, 0))
        widths[axis] = (max(first, 0), max(last, 0))
    fill = mx.array(0, data.dtype) if value is None else value.reshape([])
    return mx.pad(data[tuple(window)], widths, constant_values=fill)


@op("ReverseSequence", since=10, dtypes={"x": ANY, "sequence_lens": INDEX})
def reverse_sequence(x: Array, sequence_lens: Array, *, batch_axis: int = 1, time_axis: int = 0) -> Array:
    time, batch = axis_of(time_axis, x.ndim), axis_of(batch_axis, x.ndim)
    step = mx.array(along(np.arange(x.shape[time]), time, x.ndim))
    length = sequence_lens.astype(mx.int64).reshape([-1 if axis == batch else 1 for axis in range(x.ndim)])
    source = mx.where(step < length, length - 1 - step, step)
    return gather_elements(x, mx.broadcast_to(source, x.shape), axis=time)


@op("TensorScatter", since=24, dtypes={"past_cache": ANY, "update": ANY, "write_indices": INDEX})
def tensor_scatter(
    past_cache: Array, update: Array, write_indices: Array | None = None, *, axis: int = -2, mode: str = "linear"
) -> Array:
    axis = axis_of(axis, update.ndim)
    positions = mx.array(along(np.arange(update.shape[axis]), axis, update.ndim))
    if write_indices is not None:
        positions = positions + write_indices.astype(mx.int64).reshape([-1, *[1] * (update.ndim - 1)])
    if mode == "circular":
        positions = positions % past_cache.shape[axis]
    return scatter_elements(past_cache, mx.broadcast_to(positions, update.shape), update, axis=axis)
