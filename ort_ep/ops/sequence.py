"""Sequences and optionals: Python lists, and None for an empty optional. They never leave a claimed subgraph."""

from __future__ import annotations

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.dtypes import ELEM_TYPES, on_device
from ort_ep.graph import Node
from ort_ep.ops.axes import axis_of
from ort_ep.ops.shape import split_2
from ort_ep.plan import Slot
from ort_ep.registry import ANY, INDEX, op

Items = list[Slot]


def of_tensors(node: Node) -> str | None:
    """Elements must be of a dtype that MLX has."""
    row = ELEM_TYPES.get(node.attributes.get("dtype", 1))
    return None if row is not None and row.mlx else "a sequence of a dtype that MLX does not have"


@op("SequenceEmpty", since=11, claim=of_tensors, containers=True)
def sequence_empty(*, dtype: int = 1) -> Items:
    return []


@op("SequenceConstruct", since=11, dtypes=ANY, containers=True)
def sequence_construct(*inputs: Slot) -> Items:
    return list(inputs)


@op("SequenceLength", since=11, containers=True, dtypes=ANY)
def sequence_length(sequence: Items) -> np.ndarray:
    return np.array(len(sequence), np.int64)


@op("SequenceAt", since=11, host=("position",), containers=True, dtypes=ANY)
def sequence_at(sequence: Items, position: np.ndarray) -> Slot:
    return sequence[place(sequence, position, len(sequence) - 1)]


@op("SequenceInsert", since=11, host=("position",), containers=True, dtypes=ANY)
def sequence_insert(sequence: Items, tensor: Slot, position: np.ndarray | None = None) -> Items:
    where = len(sequence) if position is None else place(sequence, position, len(sequence))
    return [*sequence[:where], tensor, *sequence[where:]]


@op("SequenceErase", since=11, host=("position",), containers=True, dtypes=ANY)
def sequence_erase(sequence: Items, position: np.ndarray | None = None) -> Items:
    where = len(sequence) - 1 if position is None else place(sequence, position, len(sequence) - 1)
    return [*sequence[:where], *sequence[where + 1 :]]


def place(sequence: Items, position: np.ndarray, last: int) -> int:
    """A non-negative position; ValueError outside of the sequence."""
    index = int(position.item())
    if not -len(sequence) <= index <= last:
        raise ValueError(f"position {index} in a sequence of {len(sequence)}")
    return index + len(sequence) if index < 0 else index


@op("SplitToSequence", since=11, host=("split",), containers=True, dtypes={"x": ANY, "split": INDEX})
def split_to_sequence(x: Array, split: np.ndarray | None = None, *, axis: int = 0, keepdims: int = 1) -> Items:
    axis = axis_of(axis, x.ndim)
    length = x.shape[axis]
    if split is None:
        rows = split_2(x, axis=axis, split=[1] * length, n_outputs=length)
        return list(rows) if keepdims else [mx.squeeze(row, axis) for row in rows]
    if split.ndim == 0:
        size = int(split.item())
        split = np.array([min(size, length - start) for start in range(0, length, size)])
    return list(split_2(x, axis=axis, split=split.tolist(), n_outputs=len(split)))


@op("ConcatFromSequence", since=11, containers=True, dtypes=ANY)
def concat_from_sequence(sequence: Items, *, axis: int, new_axis: int = 0) -> Array:
    arrays = [on_device(item) for item in sequence]
    return mx.stack(arrays, axis) if new_axis else mx.concatenate(arrays, axis)


@op("Optional", since=15, containers=True, dtypes=ANY)
def optional(value: Slot = None) -> Slot:
    return value


@op("OptionalHasElement", since=15, containers=True, dtypes=ANY)
def optional_has_element(value: Slot = None) -> np.ndarray:
    return np.array(value is not None)


@op("OptionalGetElement", since=15, containers=True, dtypes=ANY)
def optional_get_element(value: Slot) -> Slot:
    if value is None:
        raise ValueError("the optional is empty")
    return value
