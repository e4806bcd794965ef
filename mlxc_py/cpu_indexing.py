"""Elements by index on the CPU, in one pass by a primitive of our own.

Indices may be of any integer type; they count from either end of their axis and are clamped into it.
"""

from __future__ import annotations

from mlxc_py import ops
from mlxc_py.arrays import Array
from mlxc_py.dtype import Dtype, float32, float64, int32, int64
from mlxc_py.extras import own, serves
from mlxc_py.state import StreamLike, on

__all__ = ["ADDABLE", "put_elements", "serves", "take", "take_elements", "take_sums"]

ADDABLE: frozenset[Dtype] = frozenset({float32, float64, int32, int64})


def take(a: Array, indices: Array, axis: int, *, stream: StreamLike = None) -> Array:
    """As `mx.take` along 0 <= axis < a.ndim; MLXError for an index into an axis of length 0."""
    compute = own("mlxc_py_cpu_take", a="mlx_array", indices="mlx_array", axis="int")
    return compute(a, _places(indices, stream), axis, on(stream))


def take_sums(a: Array, indices: Array, weights: Array, axis: int, *, stream: StreamLike = None) -> Array:
    """Weighted sums of slices of float32 a along 0 <= axis < a.ndim, one for each row of indices and weights.

    indices: int32 [sums, slices], clamped into the axis, of which there must be one; weights: float32 likewise.
    """
    arrays = dict.fromkeys(("a", "indices", "weights"), "mlx_array")
    return own("mlxc_py_cpu_take_sums", **arrays, axis="int")(a, indices, weights, axis, on(stream))


def take_elements(a: Array, indices: Array, axis: int, *, stream: StreamLike = None) -> Array:
    """As ONNX's GatherElements: of the indices' shape, which has a's axes and reaches no further but along `axis`."""
    compute = own("mlxc_py_cpu_take_elements", a="mlx_array", indices="mlx_array", axis="int")
    return compute(a, _places(indices, stream), axis, on(stream))


def put_elements(
    a: Array, indices: Array, values: Array, axis: int, *, add: bool = False, stream: StreamLike = None
) -> Array:
    """As ONNX's ScatterElements: a with `values` of its type put, or added, at indices of the same shape, in order.

    To add, the type must be one of ADDABLE. Indices and values may be broadcast views.
    """
    arrays = dict.fromkeys(("a", "indices", "values"), "mlx_array")
    compute = own("mlxc_py_cpu_put_elements", **arrays, axis="int", add="bool")
    return compute(a, _places(indices, stream), values, axis, add, on(stream))


def _places(indices: Array, stream: StreamLike) -> Array:
    return indices if indices.dtype in (int32, int64) else ops.astype(indices, int64, stream=stream)
