"""Softmax and its kin: over one axis from opset 13, over everything from the axis on before."""

from __future__ import annotations

import math
from collections.abc import Callable

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops import precision
from ort_ep.ops.axes import along, axis_of
from ort_ep.ops.precision import widened
from ort_ep.registry import FLOATS, op

Compute = Callable[[Array, int], Array]


def normaliser(name: str) -> Callable[[Compute], Compute]:
    def register(compute: Compute) -> Compute:
        compute = widened(compute)

        @op(name, since=1, dtypes=FLOATS)
        def flattened(x: Array, *, axis: int = 1) -> Array:
            axis = axis if axis >= 0 else axis + x.ndim
            rows = x.reshape([math.prod(x.shape[:axis]), math.prod(x.shape[axis:])])
            return compute(rows, 1).reshape(x.shape) if x.size else x

        @op(name, since=13, dtypes=FLOATS)
        def one_axis(x: Array, *, axis: int = -1) -> Array:
            return compute(x, axis_of(axis, x.ndim)) if x.size and x.ndim else x

        return compute

    return register


@normaliser("Softmax")
def softmax(x: Array, axis: int) -> Array:
    return precision.softmax(x, axis)


@normaliser("LogSoftmax")
def log_softmax(x: Array, axis: int) -> Array:
    shifted = x - mx.max(x, axis, keepdims=True)
    return shifted - precision.log(mx.sum(precision.exp(shifted), axis, keepdims=True))


@normaliser("Hardmax")
def hardmax(x: Array, axis: int) -> Array:
    position = mx.array(along(range(x.shape[axis]), axis, x.ndim), mx.uint32)
    return (position == mx.argmax(x, axis, keepdims=True)).astype(x.dtype)
