"""Quantised operators of com.microsoft: the standard ones between dequantised inputs and a quantised output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

import mlxc_py as mx
from mlxc_py import Array
from mlxc_py.cpu_primitives import PackedBytes
from ort_ep.ops import precision
from ort_ep.ops.activation import leaky_relu
from ort_ep.ops.axes import channels_first
from ort_ep.ops.axes import channels_last as to_channels_last
from ort_ep.ops.matmul import ExactFactor
from ort_ep.ops.pool import Pooling, average_pool, spatial_axes
from ort_ep.ops.quant import (
    dequantize_linear,
    dynamic_quantize_linear,
    factor_of_bytes,
    integer_factor,
    integer_product,
    per_row,
    quantize_linear,
)
from ort_ep.registry import BOOL, BYTES, MICROSOFT, op

# values, scales and zero points: what every operator here takes
QUANTIZED = BYTES | {"float32"}


def register_binary(name: str, function: Callable[[Array, Array], Array]) -> None:
    @op(name, domain=MICROSOFT, dtypes=QUANTIZED)
    def binary(
        a: Array,
        a_scale: Array,
        a_zero_point: Array | None,
        b: Array,
        b_scale: Array,
        b_zero_point: Array | None,
        c_scale: Array,
        c_zero_point: Array | None = None,
    ) -> Array:
        left, right = dequantize_linear(a, a_scale, a_zero_point), dequantize_linear(b, b_scale, b_zero_point)
        return quantized(function(left, right), c_scale, c_zero_point, a)


register_binary("QLinearAdd", mx.add)
register_binary("QLinearMul", mx.multiply)


def quantized(y: Array, scale: Array, zero_point: Array | None, like: Array) -> Array:
    """y as 8-bit levels; without a zero point, of the type of `like`."""
    return quantize_linear(y, scale, mx.array(0, like.dtype) if zero_point is None else zero_point)


@op("QLinearSigmoid", domain=MICROSOFT, dtypes=QUANTIZED)
def qlinear_sigmoid(
    x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None = None
) -> Array:
    return quantized(precision.sigmoid(dequantize_linear(x, x_scale, x_zero_point)), y_scale, y_zero_point, x)


@op("QLinearLeakyRelu", domain=MICROSOFT, dtypes=QUANTIZED)
def qlinear_leaky_relu(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    alpha: float = 0.01,
) -> Array:
    return quantized(leaky_relu(dequantize_linear(x, x_scale, x_zero_point), alpha=alpha), y_scale, y_zero_point, x)


@op("QLinearAveragePool", domain=MICROSOFT, dtypes=QUANTIZED)
def qlinear_average_pool(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Sequence[int],
    **pooling: Unpack[Pooling],
) -> Array:
    values = dequantize_linear(x, x_scale, x_zero_point)
    values = values.transpose(channels_first(x.ndim)) if channels_last else values
    mean = average_pool(values, count_include_pad=count_include_pad, kernel_shape=kernel_shape, **pooling)
    mean = mean.transpose(to_channels_last(x.ndim)) if channels_last else mean
    return quantized(mean, y_scale, y_zero_point, x)


@op("QLinearGlobalAveragePool", domain=MICROSOFT, dtypes=QUANTIZED)
def qlinear_global_average_pool(
    x: Array, x_scale: Array, x_zero_point: Array, y_scale: Array, y_zero_point: Array, *, channels_last: int = 0
) -> Array:
    values = dequantize_linear(x, x_scale, x_zero_point)
    axes = list(range(1, x.ndim - 1)) if channels_last else spatial_axes(x)
    return quantized(mx.mean(values, axes, keepdims=True), y_scale, y_zero_point, x)


@op("QLinearConcat", domain=MICROSOFT, dtypes=QUANTIZED)
def qlinear_concat(y_scale: Array, y_zero_point: Array, *inputs: Array, axis: int) -> Array:
    triples = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    return quantize_linear(mx.concatenate([dequantize_linear(*part) for part in triples], axis), y_scale, y_zero_point)


@op("QLinearWhere", domain=MICROSOFT, dtypes=QUANTIZED | BOOL)
def qlinear_where(
    condition: Array,
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    y: Array,
    y_scale: Array,
    y_zero_point: Array,
    z_scale: Array,
    z_zero_point: Array,
) -> Array:
    left, right = dequantize_linear(x, x_scale, x_zero_point), dequantize_linear(y, y_scale, y_zero_point)
    return quantize_linear(mx.where(condition, left, right), z_scale, z_zero_point)


@op("MatMulIntegerToFloat", domain=MICROSOFT, dtypes=QUANTIZED, prepare={("b", "b_zero_point"): integer_factor})
def matmul_integer_to_float(
    a: Array,
    b: PackedBytes | ExactFactor,
    a_scale: Array,
    b_scale: Array,
    a_zero_point: Array | None = None,
    b_zero_point: None = None,
    bias: Array | None = None,
) -> Array:
    levels = integer_product(a, b, a_zero_point)
    product = levels.astype(mx.float32) * per_row(a_scale) * b_scale
    return product if bias is None else product + bias


@op("DynamicQuantizeMatMul", domain=MICROSOFT, dtypes=QUANTIZED, prepare={("b", "b_zero_point"): integer_factor})
def dynamic_quantize_matmul(
    a: Array, b: PackedBytes | ExactFactor, b_scale: Array, b_zero_point: None = None, bias: Array | None = None
) -> Array:
    levels, scale, zero_point = dynamic_quantize_linear(a)
    return matmul_integer_to_float(levels, b, scale, b_scale, zero_point, None, bias)


def turned_integer_factor(b: Array, b_zero_point: Array | None = None, *, transB: int = 0) -> PackedBytes | ExactFactor:
    """The prepared second input of a QGemm."""
    return factor_of_bytes(b.T if transB else b, b_zero_point, b.evaluated)


@op("QGemm", domain=MICROSOFT, dtypes=QUANTIZED | {"int32"}, prepare={("b", "b_zero_point"): turned_integer_factor})
def qgemm(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: PackedBytes | ExactFactor,
    b_scale: Array,
    b_zero_point: None,
    c: Array | None = None,
    y_scale: Array | None = None,
    y_zero_point: Array | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    levels = integer_product(a.T if transA else a, b, a_zero_point)
    levels = levels if c is None else levels + c
    y = levels.astype(mx.float32) * (a_scale * b_scale * alpha)
    return y if y_scale is None else quantized(y, y_scale, y_zero_point, a)
