"""Operators as they were before opset 7: broadcasting was asked for and named an axis, training was a switch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from mlxc_py.cpu_primitives import Packed
from ort_ep.graph import Node
from ort_ep.ops import activation, arithmetic, logic, matmul, norm, pool
from ort_ep.ops import shape as shapes
from ort_ep.ops.axes import axis_of
from ort_ep.ops.precision import widened
from ort_ep.ops.window import Sliding
from ort_ep.registry import BOOL, FLOATS, NUMERIC, op

Binary = Callable[[Array, Array], Array]

BINARY: dict[str, Binary] = {
    "Add": arithmetic.add,
    "Sub": arithmetic.subtract,
    "Mul": arithmetic.multiply,
    "Div": arithmetic.divide,
    "Pow": arithmetic.power,
    "Equal": logic.equal,
    "Greater": logic.greater,
    "Less": logic.less,
    "And": logic.logical_and,
    "Or": logic.logical_or,
    "Xor": logic.logical_xor,
}


def aligned(a: Array, b: Array, broadcast: int, axis: int | None) -> Array:
    """b, its dimensions placed from `axis` of a on; without an axis at the end, as today."""
    if not broadcast or axis is None:
        return b
    missing = a.ndim - axis_of(axis, a.ndim) - b.ndim
    return b.reshape([*b.shape, *[1] * missing])


def register_binary(name: str, function: Binary) -> None:
    @op(name, since=1, dtypes=BOOL if name in ("And", "Or", "Xor") else NUMERIC)
    def binary(
        a: Array, b: Array, *, broadcast: int = 0, axis: int | None = None, consumed_inputs: Sequence[int] = ()
    ) -> Array:
        return function(a, aligned(a, b, broadcast, axis))


for entry in BINARY.items():
    register_binary(*entry)


@op("PRelu", since=1, dtypes=FLOATS)
def prelu(x: Array, slope: Array, *, consumed_inputs: Sequence[int] = ()) -> Array:
    return activation.prelu(x, norm.per_channel(slope, x) if slope.size > 1 else slope)


@op("Gemm", since=1, dtypes=FLOATS, prepare={"b": matmul.factor})
def gemm(
    a: Array,
    b: Array | Packed,
    c: Array,
    *,
    broadcast: int = 0,
    **factors: Unpack[matmul.Factors],
) -> Array:
    return matmul.gemm(a, b, c, **factors)


@op("Reshape", since=1, dtypes=FLOATS)
def reshape(data: Array, *, shape: Sequence[int] = (), consumed_inputs: Sequence[int] = ()) -> Array | np.ndarray:
    return shapes.reshape(data, np.array(shape, np.int64))


@op("MeanVarianceNormalization", since=1, dtypes=FLOATS)
@widened
def mean_variance_normalization(x: Array, *, across_channels: int = 0, normalize_variance: int = 1) -> Array:
    axes = [axis for axis in range(x.ndim) if axis != 1 or across_channels]
    return norm.standardised(x, axes, 1e-9)[0] if normalize_variance else x - mx.mean(x, axes, keepdims=True)


@op("AveragePool", since=1, dtypes=FLOATS)
def average_pool(x: Array, *, kernel_shape: Sequence[int], **sliding: Unpack[Sliding]) -> Array:
    return pool.average_pool(x, kernel_shape=kernel_shape, **sliding)


def testing_only(node: Node) -> str | None:
    """Only is_test=1 and, of BatchNormalization, spatial=1."""
    if not node.attributes.get("is_test", 0):
        return "is_test=0, which is training"
    return None if node.attributes.get("spatial", 1) else "spatial=0 is not supported"


@op("BatchNormalization", since=1, dtypes=FLOATS, claim=testing_only)
def batch_normalization(
    x: Array,
    scale: Array,
    b: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    is_test: int = 0,
    spatial: int = 1,
    consumed_inputs: Sequence[int] = (),
) -> Array:
    return norm.batch_normalization(x, scale, b, mean, var, epsilon=epsilon, n_outputs=1)[0]


@op("Dropout", since=1, dtypes=FLOATS, claim=testing_only)
def dropout(
    x: Array, *, ratio: float = 0.5, is_test: int = 0, consumed_inputs: Sequence[int] = (), n_outputs: int
) -> tuple[Array, ...]:
    return (x, mx.ones_like(x))[:n_outputs]
