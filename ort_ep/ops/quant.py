"""Linear quantisation and the integer products of quantised models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar, Unpack

import numpy as np

import mlxc_py as mx
from mlxc_py import Array, Dtype, cpu_primitives
from mlxc_py.cpu_primitives import PackedBytes
from ort_ep.dtypes import BY_NAME, BY_NUMPY, ELEM_TYPES, NARROW, name_of, to_mlx
from ort_ep.ops.axes import axis_of, channels_first
from ort_ep.ops.axes import channels_last as to_channels_last
from ort_ep.ops.conv import Kernel, convolve, kernel, one_to_three_axes
from ort_ep.ops.matmul import EXACT_TERMS, ExactFactor, exact_product
from ort_ep.ops.narrow import held, is_int, narrowed
from ort_ep.ops.norm import per_channel
from ort_ep.ops.precision import is_float, on_cpu, widen
from ort_ep.ops.window import Sliding, Window
from ort_ep.registry import BYTES, FLOATS, MICROSOFT, SINGLES, Preparations, op

Values = TypeVar("Values", Array, Array | None)

STORED = BYTES | {"int16", "uint16", "int32"}


def spread(values: Values, x: Array, axis: int, block_size: int) -> Values:
    """Scales or zero points in the shape of x: one, one for each position on an axis, or one for each block of it."""
    if values is None:
        return values
    if values.size == 1:
        return values.reshape([])
    axis = axis_of(axis, x.ndim)
    if values.ndim == 1 and not block_size:
        return values.reshape([-1 if position == axis else 1 for position in range(x.ndim)])
    if not block_size:
        return values
    repeated = mx.repeat(values, block_size, axis)
    return repeated[(slice(None),) * axis + (slice(0, x.shape[axis]),)]


def saturated(x: Array, dtype: Dtype) -> Array:
    limits = mx.iinfo(dtype)
    return mx.clip(x, limits.min, limits.max).astype(dtype)


def saturated_narrow(x: Array, code: int, saturate: bool) -> Array:
    row = ELEM_TYPES[code]
    if not is_int(row.name):
        return narrowed(x, code, saturate)
    lowest = -(1 << row.bits - 1) if row.name.startswith("int") else 0
    return narrowed(mx.clip(x, lowest, lowest + (1 << row.bits) - 1), code)


QUANTIZED = {"x": FLOATS | {"int32"}, "y_scale": FLOATS, "y_zero_point": STORED | NARROW, "return": STORED | NARROW}


@op("QuantizeLinear", since=10, dtypes=QUANTIZED)
def quantize_linear(
    x: Array,
    y_scale: Array,
    y_zero_point: Array | np.ndarray | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Array:
    code = output_dtype or BY_NAME["uint8"].code
    if isinstance(y_zero_point, np.ndarray):
        code = BY_NUMPY[y_zero_point.dtype].code
    elif y_zero_point is not None:
        code = BY_NAME[y_zero_point.dtype.name].code
    if is_float(x):  # the division is as precise as the scale, where nothing else is said
        x = x.astype(to_mlx(precision) if precision else y_scale.dtype)
    zero_point = None if y_zero_point is None else held(y_zero_point)
    if name_of(code) in BYTES and y_scale.size == 1:
        offset = mx.zeros([1], to_mlx(code)) if zero_point is None else zero_point
        return cpu_primitives.quantize(x.astype(mx.float32), y_scale.astype(mx.float32), offset)
    scale, zero = spread(y_scale, x, axis, block_size), spread(zero_point, x, axis, block_size)
    level = x.astype(mx.float32) / scale.astype(mx.float32)
    level = level if "float" in name_of(code) else mx.round(level)
    level = level if zero is None else level + zero.astype(mx.float32)
    return saturated_narrow(level, code, bool(saturate)) if name_of(code) in NARROW else saturated(level, to_mlx(code))


@op("DequantizeLinear", since=10, dtypes={"x": STORED | NARROW, "x_scale": SINGLES, "x_zero_point": STORED | NARROW})
def dequantize_linear(
    x: Array | np.ndarray,
    x_scale: Array,
    x_zero_point: Array | np.ndarray | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Array:
    level, made = held(x), to_mlx(output_dtype) if output_dtype else x_scale.dtype
    if level.dtype in (mx.int8, mx.uint8) and x_scale.size == 1:
        offset = mx.zeros([1], level.dtype) if x_zero_point is None else held(x_zero_point)
        return cpu_primitives.dequantize(level, widen(x_scale), offset).astype(made)
    scale = widen(spread(x_scale, level, axis, block_size))
    # differences of integers are exact in int32
    level = level if is_float(level) else level.astype(mx.int32)
    if x_zero_point is not None:
        level = level - spread(held(x_zero_point), level, axis, block_size).astype(level.dtype)
    return (level.astype(mx.float32) * scale).astype(made)


@op("DynamicQuantizeLinear", since=11, dtypes={"x": frozenset({"float32"})})
def dynamic_quantize_linear(x: Array) -> tuple[Array, Array, Array]:
    if x.size:
        return cpu_primitives.dynamic_quantize(x)
    return mx.zeros(x.shape, mx.uint8), mx.ones(()), mx.zeros((), mx.uint8)


def centred(x: Array, zero_point: Array | None) -> Array:
    x = x.astype(mx.int32)
    return x if zero_point is None else x - zero_point.astype(mx.int32)


def per_row(values: Values) -> Values:
    """One value, or one for each row of a matrix, shaped to broadcast over it."""
    return values[:, None] if values is not None and values.ndim == 1 and values.size > 1 else values


def per_output(values: Values, w: Array) -> Values:
    """One value, or one for each output channel of weights [O, ...]."""
    return values if values is None or values.size == 1 else values.reshape([-1, *[1] * (w.ndim - 1)])


def nonzero(zero_point: Array | None) -> Array | None:
    """Zero points; None where they are known to be 0."""
    known = zero_point is not None and zero_point.evaluated
    return None if known and not np.array(zero_point).any() else zero_point


def integer_factor(b: Array, b_zero_point: Array | None = None) -> PackedBytes | ExactFactor:
    """The prepared second factor of an integer product: of 8 bits, less its zero points, one or one for each column."""
    return factor_of_bytes(b, b_zero_point, b.evaluated)


def factor_of_bytes(b: Array, zero: Array | None, weights: bool) -> PackedBytes | ExactFactor:
    """The same; weights, the same from run to run, are packed where our own product takes them."""
    if weights and b.ndim == 2 and b.size and cpu_primitives.integers(b):
        return cpu_primitives.pack_byte_matrix(b, nonzero(zero))
    return ExactFactor.of(centred(b, zero))


def integer_product(a: Array, b: PackedBytes | ExactFactor, a_zero: Array | None) -> Array:
    """(a - a_zero) @ b in int32, of 8-bit a; zero points are one, or one for each row."""
    zero = per_row(a_zero)
    if isinstance(b, PackedBytes):
        return cpu_primitives.integer_matmul(a, b, zero)
    return exact_product(centred(a, zero), b)


@op("MatMulInteger", since=10, dtypes=BYTES, prepare={("b", "b_zero_point"): integer_factor})
def matmul_integer(
    a: Array, b: PackedBytes | ExactFactor, a_zero_point: Array | None = None, b_zero_point: None = None
) -> Array:
    return integer_product(a, b, a_zero_point)


# A GPU's convolutions may compute with transformed images and kernels (Winograd), which rounds: to far less than a half
# where sums are this many times smaller than what float32 holds exactly.
MARGIN = 16


class ExactKernel(NamedTuple):
    """The weights of an exact convolution: whole, or their high and low nibbles, each for `channels` at a time."""

    whole: Kernel | None
    high: tuple[Kernel, ...] = ()
    low: tuple[Kernel, ...] = ()
    channels: int = 0

    @classmethod
    def of(cls, w: Array, group: int) -> ExactKernel:
        """Of weights [O, C / group, ...] within 8 bits and a sign."""
        terms = EXACT_TERMS if on_cpu() else EXACT_TERMS // MARGIN
        if math.prod(w.shape[1:]) <= terms:
            return cls(kernel(w.astype(mx.float32), group=group))
        channels = max(16 * terms // math.prod(w.shape[2:]), 1)

        def parts(nibbles: Array) -> tuple[Kernel, ...]:
            wide, starts = nibbles.astype(mx.float32), range(0, w.shape[1], channels)
            return tuple(kernel(wide[:, start : start + channels], group=group) for start in starts)

        high = mx.right_shift(w, 4)
        return cls(None, parts(high), parts(w - 16 * high), channels)


class IntegerKernel(NamedTuple):
    """The prepared weights of an integer convolution, less their zero points."""

    weights: PackedBytes | ExactKernel
    window: tuple[int, ...]


def integer_kernel(w: Array, w_zero_point: Array | None = None, *, group: int = 1) -> IntegerKernel:
    """Of weights [O, C / group, ...] with zero points: one, or one for each output channel."""
    if cpu_primitives.integers(w) and w.ndim < 5 and w.size and (group == 1 or w.shape[1] > 1):
        packed = cpu_primitives.pack_bytes(w.transpose(to_channels_last(w.ndim)), nonzero(w_zero_point), group)
        return IntegerKernel(packed, w.shape[2:])
    return IntegerKernel(ExactKernel.of(centred(w, per_output(w_zero_point, w)), group), w.shape[2:])


@op(
    "ConvInteger",
    since=10,
    dtypes=BYTES,
    claim=one_to_three_axes,
    prepare={("w", "w_zero_point"): integer_kernel},
)
def conv_integer(
    x: Array,
    w: IntegerKernel,
    x_zero_point: Array | None = None,
    w_zero_point: None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    **sliding: Unpack[Sliding],
) -> Array:
    return integer_convolution(x, w.weights, x_zero_point, Window.of(x.shape[2:], w.window, **sliding), group)


def integer_convolution(
    x: Array, w: PackedBytes | ExactKernel, x_zero: Array | None, window: Window, group: int
) -> Array:
    """The convolution in int32 of 8-bit x - x_zero with weights."""
    if isinstance(w, ExactKernel):
        return exact_convolution(centred(x, x_zero), w, window, group)
    geometry: dict[str, Any] = {"stride": window.strides, "dilation": window.dilations, "groups": group}
    data, padding = x.transpose(to_channels_last(x.ndim)), (window.before, window.after)
    y = cpu_primitives.integer_convolution(data, w, x_zero, padding=padding, **geometry)
    return y.transpose(channels_first(y.ndim))


def exact_convolution(x: Array, w: ExactKernel, window: Window, group: int) -> Array:
    """The convolution in int32 of values within 8 bits and a sign, through float32 sums that stay exact."""
    data = x.astype(mx.float32)
    if w.whole is not None:
        return nearest(convolve(data, w.whole, None, window, group))
    high, low = (exact_nibbles(data, kernels, w.channels, window, group) for kernels in (w.high, w.low))
    return 16 * high + low


def exact_nibbles(x: Array, kernels: Sequence[Kernel], channels: int, window: Window, group: int) -> Array:
    """As exact_convolution, where the weights lie within 4 bits and a sign: 16 times as many terms are exact."""
    data = x.reshape([x.shape[0], group, x.shape[1] // group, *x.shape[2:]])
    total = mx.zeros([1], mx.int32)
    for index, some in enumerate(kernels):
        part = data[:, :, index * channels : (index + 1) * channels].flatten(1, 2)
        total = total + nearest(convolve(part, some, None, window, group))
    return total


def nearest(sums: Array) -> Array:
    """Sums of whole numbers, in int32."""
    return (sums if on_cpu() else mx.round(sums)).astype(mx.int32)


def requantized(total: Array, scale: Array, zero_point: Array) -> Array:
    level = mx.round(total.astype(mx.float32) * scale)
    return saturated(level + zero_point.astype(mx.float32), zero_point.dtype)


@op(
    "QLinearMatMul",
    since=10,
    dtypes={"a": BYTES, "b": BYTES, "y_zero_point": BYTES} | dict.fromkeys(("a_scale", "b_scale", "y_scale"), SINGLES),
    prepare={("b", "b_zero_point"): integer_factor},
)
def qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: PackedBytes | ExactFactor,
    b_scale: Array,
    b_zero_point: None,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    total = integer_product(a, b, a_zero_point)
    scale = widen(per_row(a_scale)) * widen(b_scale) / widen(per_row(y_scale))
    return requantized(total, scale, per_row(y_zero_point))


QLINEAR_CONV = {"x": BYTES, "w": BYTES, "y_zero_point": BYTES}
QLINEAR_KERNEL: Preparations = {("w", "w_zero_point"): integer_kernel}


@op("QLinearConv", domain=MICROSOFT, dtypes=QLINEAR_CONV, claim=one_to_three_axes, prepare=QLINEAR_KERNEL)
@op("QLinearConv", since=10, dtypes=QLINEAR_CONV, claim=one_to_three_axes, prepare=QLINEAR_KERNEL)
def qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: IntegerKernel,
    w_scale: Array,
    w_zero_point: None,
    y_scale: Array,
    y_zero_point: Array,
    b: Array | None = None,
    *,
    channels_last: int = 0,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    **sliding: Unpack[Sliding],
) -> Array:
    x = x.transpose(channels_first(x.ndim)) if channels_last else x
    total = integer_convolution(x, w.weights, x_zero_point, Window.of(x.shape[2:], w.window, **sliding), group)
    total = total if b is None else total + per_channel(b, total)
    scale = x_scale * w_scale / y_scale
    scale = scale if scale.size == 1 else per_channel(scale, total.astype(mx.float32))
    y = requantized(total, scale, y_zero_point)
    return y.transpose(to_channels_last(y.ndim)) if channels_last else y
