"""Shapes and layout: nothing here changes a value, and known inputs stay numpy, so shape arithmetic is free."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops.axes import axes_of, axis_of
from ort_ep.registry import ANY, op

Tensor = Array | np.ndarray


@op("Identity", since=1, dtypes=ANY, fold=True, containers=True)
def identity(x: Tensor) -> Tensor:
    return x


@op("Shape", since=1, dtypes=ANY, fold=True, host_result=True)
def shape(data: Tensor, *, start: int = 0, end: int | None = None) -> np.ndarray:
    return np.array(data.shape[start:end], np.int64)


@op("Size", since=1, dtypes=ANY, fold=True, host_result=True)
def size(data: Tensor) -> np.ndarray:
    return np.array(data.size, np.int64)


@op("Reshape", since=5, host=("shape",), dtypes=ANY, fold=True)
def reshape(data: Tensor, shape: np.ndarray, *, allowzero: int = 0) -> Tensor:
    dims = [
        data.shape[axis] if length == 0 and not allowzero else int(length) for axis, length in enumerate(shape.tolist())
    ]
    if -1 in dims:
        # MLX can't infer a dimension of an empty tensor
        known = -math.prod(dims)
        dims[dims.index(-1)] = data.size // known if known else 0
    return data.reshape(dims)


@op("Flatten", since=1, dtypes=ANY, fold=True)
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    axis = axis if axis >= 0 else axis + x.ndim
    return x.reshape([math.prod(x.shape[:axis]), math.prod(x.shape[axis:])])


@op("Squeeze", since=1, dtypes=ANY, fold=True)
def squeeze_1(data: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    dropped = [axis for axis, length in enumerate(data.shape) if length == 1] if axes is None else axes
    dropped = axes_of(dropped, data.ndim)
    if any(data.shape[axis] != 1 for axis in dropped):
        raise ValueError(f"Squeeze of axes {dropped} of {tuple(data.shape)}: their length is not 1")
    return data.reshape([length for axis, length in enumerate(data.shape) if axis not in dropped])


@op("Squeeze", since=13, host=("axes",), dtypes=ANY, fold=True)
def squeeze(data: Tensor, axes: np.ndarray | None = None) -> Tensor:
    return squeeze_1(data, axes=None if axes is None else np.ravel(axes).tolist())


@op("Unsqueeze", since=1, dtypes=ANY, fold=True)
def unsqueeze_1(data: Tensor, *, axes: Sequence[int]) -> Tensor:
    dims = list(data.shape)
    for axis in sorted(axes_of(axes, data.ndim + len(axes))):
        dims.insert(axis, 1)
    return data.reshape(dims)


@op("Unsqueeze", since=13, host=("axes",), dtypes=ANY, fold=True)
def unsqueeze(data: Tensor, axes: np.ndarray) -> Tensor:
    return unsqueeze_1(data, axes=np.ravel(axes).tolist())


@op("Transpose", since=1, dtypes=ANY, fold=True)
def transpose(data: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    return data.transpose(list(range(data.ndim))[::-1] if perm is None else list(perm))


@op("Concat", since=4, dtypes=ANY, fold=lambda *inputs, axis: np.concatenate(inputs, axis))
def concat(*inputs: Array, axis: int) -> Array:
    return mx.concatenate(list(inputs), axis)


@op("Split", since=2, dtypes=ANY, fold=True)
def split_2(x: Tensor, *, axis: int = 0, split: Sequence[int] | None = None, n_outputs: int) -> tuple[Tensor, ...]:
    axis = axis_of(axis, x.ndim)
    if split is None:
        # equal parts, the last one smaller where they don't come out even
        part = -(-x.shape[axis] // n_outputs)
        ends = [min((index + 1) * part, x.shape[axis]) for index in range(n_outputs)]
    else:
        ends = np.cumsum(split).tolist()
        if ends[-1:] != [x.shape[axis]]:
            raise ValueError(f"Split into {list(split)} of axis {axis}, which has length {x.shape[axis]}")
    before = (slice(None),) * axis
    return tuple(x[(*before, slice(start, end))] for start, end in zip([0, *ends], ends, strict=False))


@op("Split", since=13, host=("split",), dtypes=ANY, fold=True)
def split(
    x: Tensor, split: np.ndarray | None = None, *, axis: int = 0, num_outputs: int | None = None, n_outputs: int
) -> tuple[Tensor, ...]:
    return split_2(x, axis=axis, split=None if split is None else split.tolist(), n_outputs=num_outputs or n_outputs)


@op("Slice", since=1, dtypes=ANY, fold=True)
def slice_1(data: Tensor, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None) -> Tensor:
    return slice_10(data, np.array(starts), np.array(ends), None if axes is None else np.array(axes))


@op("Slice", since=10, host=("starts", "ends", "axes", "steps"), dtypes=ANY, fold=True)
def slice_10(
    data: Tensor,
    starts: np.ndarray,
    ends: np.ndarray,
    axes: np.ndarray | None = None,
    steps: np.ndarray | None = None,
) -> Tensor:
    window = [slice(None)] * data.ndim
    chosen = range(len(starts)) if axes is None else axes_of(axes, data.ndim)
    strides = [1] * len(starts) if steps is None else steps.tolist()
    for axis, start, end, step in zip(chosen, starts.tolist(), ends.tolist(), strides, strict=True):
        window[axis] = bounded(start, end, step, data.shape[axis])
    return data[tuple(window)]


def bounded(start: int, end: int, step: int, length: int) -> slice:
    """A Python slice whose ends lie in the axis, so that neither INT_MAX nor INT_MIN reaches MLX's int32."""
    if step == 0:
        raise ValueError("Slice with step 0")
    start = max(start, -length)  # ONNX clamps it to the first element, Python to before it where the step is negative
    positions = range(*slice(start, end, max(min(step, length + 1), -length - 1)).indices(length))
    if not positions:
        return slice(0, 0)
    return slice(positions.start, positions.stop if positions.stop >= 0 else None, positions.step)


@op("Expand", since=8, host=("shape",), dtypes=ANY, fold=True)
def expand(data: Tensor, shape: np.ndarray) -> Tensor:
    target = np.broadcast_shapes(tuple(data.shape), tuple(shape.tolist()))
    return np.broadcast_to(data, target) if isinstance(data, np.ndarray) else mx.broadcast_to(data, target)


@op("Tile", since=6, host=("repeats",), dtypes=ANY, fold=np.tile)
def tile(x: Array, repeats: np.ndarray) -> Array:
    return mx.tile(x, repeats.tolist())


@op("DepthToSpace", since=1, dtypes=ANY)
def depth_to_space(x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    n, c, h, w = x.shape
    depth = c // blocksize**2
    if mode == "DCR":
        blocks = x.reshape([n, blocksize, blocksize, depth, h, w]).transpose([0, 3, 4, 1, 5, 2])
    else:
        blocks = x.reshape([n, depth, blocksize, blocksize, h, w]).transpose([0, 1, 4, 2, 5, 3])
    return blocks.reshape([n, depth, h * blocksize, w * blocksize])


@op("SpaceToDepth", since=1, dtypes=ANY)
def space_to_depth(x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    n, c, h, w = x.shape
    blocks = x.reshape([n, c, h // blocksize, blocksize, w // blocksize, blocksize])
    order = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
    return blocks.transpose(order).reshape([n, c * blocksize**2, h // blocksize, w // blocksize])
