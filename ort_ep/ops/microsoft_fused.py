"""Operators of com.microsoft that join a bias, an activation, a layout or a scale to a standard one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Unpack

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from mlxc_py.cpu_primitives import Packed, PackedBytes
from ort_ep.dtypes import NARROW
from ort_ep.graph import Node
from ort_ep.ops import activation as functions
from ort_ep.ops import precision
from ort_ep.ops.axes import axes_of, axis_of, channels_first, channels_last
from ort_ep.ops.contrib import FusedConvolution, Products, activated, fused_conv, fused_matmul, turned_factor
from ort_ep.ops.conv import (
    Kernel,
    TransposedKernel,
    Transposition,
    conv_transpose,
    kernel,
    one_to_three_axes,
    transposed_kernel,
)
from ort_ep.ops.indexing import in_range
from ort_ep.ops.matmul import ExactFactor, factor, matmul
from ort_ep.ops.microsoft_attention import Masking, only_plain, self_attention, side_by_side
from ort_ep.ops.pool import Pooling, pooled
from ort_ep.ops.precision import widen, widened
from ort_ep.ops.quant import (
    STORED,
    centred,
    dequantize_linear,
    integer_factor,
    integer_product,
    quantize_linear,
    requantized,
)
from ort_ep.ops.softmax import softmax
from ort_ep.ops.window import Sliding, Window
from ort_ep.registry import BYTES, FLOATS, INT32, MICROSOFT, SINGLES, op

LEVELS = {"x": STORED | NARROW, "x_zero_point": STORED | NARROW}

op("QuantizeLinear", domain=MICROSOFT, dtypes={"x": SINGLES, "y_scale": SINGLES})(quantize_linear)
op("DequantizeLinear", domain=MICROSOFT, dtypes=LEVELS | {"x_scale": SINGLES})(dequantize_linear)


@op("BiasAdd", domain=MICROSOFT, dtypes=SINGLES)
@widened
def bias_add(x: Array, bias: Array, skip: Array) -> Array:
    return x + bias + skip


@op("BiasSplitGelu", domain=MICROSOFT, dtypes=SINGLES)
@widened
def bias_split_gelu(x: Array, bias: Array) -> Array:
    left, right = mx.split(x + bias, 2, -1)
    return left * functions.gelu(right)


def rows_from(x: Array, axis: int) -> Array:
    """[..., axes from `axis` on, as one]."""
    return x.reshape([*x.shape[:axis], math.prod(x.shape[axis:])])


@op("BiasSoftmax", domain=MICROSOFT, dtypes=FLOATS)
@widened
def bias_softmax(data: Array, bias: Array, *, axis: int = 1, is_inner_broadcast: int) -> Array:
    axis = axis_of(axis, data.ndim)
    if is_inner_broadcast and bias.ndim < data.ndim:
        # the bias has the outer dimensions and those from the axis on: it repeats over the ones between
        outer = bias.ndim - (data.ndim - axis)
        bias = bias.reshape([*bias.shape[:outer], *[1] * (data.ndim - bias.ndim), *bias.shape[outer:]])
    total = data + bias
    return softmax(rows_from(total, axis), -1).reshape(data.shape) if data.size else data


@op("GemmFastGelu", domain=MICROSOFT, dtypes=SINGLES, prepare={"w": factor})
@widened
def gemm_fast_gelu(x: Array, w: Array | Packed, bias: Array | None = None) -> Array:
    product = matmul(x, w)
    return functions.gelu(product if bias is None else product + bias, approximate="tanh")


@op("FusedMatMulActivation", domain=MICROSOFT, dtypes=FLOATS, prepare={"b": turned_factor})
def fused_matmul_activation(
    a: Array,
    b: Array | Packed,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_axis: int | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **product: Unpack[Products],
) -> Array:
    return activated(fused_matmul(a, b, **product), activation, activation_alpha, activation_beta)


@op("NhwcConv", domain=MICROSOFT, dtypes=SINGLES, claim=one_to_three_axes, prepare={"w": kernel})
@op("NhwcFusedConv", domain=MICROSOFT, dtypes=SINGLES, claim=one_to_three_axes, prepare={"w": kernel})
def nhwc_conv(
    x: Array,
    w: Kernel,
    b: Array | None = None,
    z: Array | None = None,
    **convolution: Unpack[FusedConvolution],
) -> Array:
    order = channels_first(x.ndim)
    y = fused_conv(x.transpose(order), w, b, None if z is None else z.transpose(order), **convolution)
    return y.transpose(channels_last(y.ndim))


@op("NhwcMaxPool", domain=MICROSOFT, dtypes=BYTES)
def nhwc_max_pool(x: Array, *, kernel_shape: Sequence[int], **pooling: Unpack[Pooling]) -> Array:
    window = Window.of(x.shape[1:-1], kernel_shape, **pooling)
    return pooled(x.transpose(channels_first(x.ndim)), window, True).transpose(channels_last(x.ndim))


def one_mask(node: Node) -> str | None:
    """One mask for all channels."""
    mask = node.inputs[1]
    sizes = None if mask is None else mask.shape
    return None if sizes and tuple(sizes[:2]) == (1, 1) else "only one mask for all channels is translated"


@op("MaxpoolWithMask", domain=MICROSOFT, dtypes={"x": frozenset({"float32"}), "m": INT32}, claim=one_mask)
def max_pool_with_mask(
    x: Array, m: Array, *, kernel_shape: Sequence[int], storage_order: int = 0, **sliding: Unpack[Sliding]
) -> Array:
    window = Window.of(x.shape[2:], kernel_shape, **sliding)
    worst = float(np.finfo(np.float32).min)
    shown = m != 0
    if len(kernel_shape) > 1:  # ONNX Runtime never looks at the first element of the mask then
        shown = mx.logical_or(shown, mx.array(np.arange(m.size).reshape(m.shape) == 0))
    # a masked element hides those behind it in the same row of the window
    rows = [*window.output, *window.kernel]
    seen = mx.cumprod(window.slide(shown.astype(mx.int32), 1).reshape([1, 1, *rows]), -1)
    taps = window.slide(x, worst).reshape([*x.shape[:2], *rows])
    axes = list(range(2 + len(window.output), taps.ndim))
    return mx.max(mx.where(seen != 0, taps, mx.array(worst, x.dtype)), axes)


@op("WordConvEmbedding", domain=MICROSOFT, dtypes={"sequence": INT32, "w": frozenset({"float32"})})
def word_conv_embedding(
    sequence: Array,
    w: Array,
    b: Array,
    c: Array,
    *,
    char_embedding_size: int | None = None,
    conv_window_size: int | None = None,
    embedding_size: int | None = None,
) -> Array:
    size, places = w.shape[2], sequence.shape[1] - w.shape[2] + 1
    characters = mx.take(c, in_range(sequence, c.shape[0]), 0)
    products = (mx.matmul(characters[:, k : k + places], w[:, 0, k].T) for k in range(size))
    lengths = mx.where(sequence[:, :1] > 0, mx.sum(sequence > 0, 1, keepdims=True), 0)
    within = mx.arange(places) <= mx.maximum(lengths, size) - size
    features = precision.tanh(reduce(mx.add, products) + b)
    longest = mx.max(mx.where(within[..., None], features, mx.array(-1e12, features.dtype)), 1)
    return mx.where(lengths > 0, longest, mx.zeros_like(longest))


@op(
    "QAttention",
    domain=MICROSOFT,
    dtypes={"x": BYTES, "weight": BYTES, "mask_index": INT32},
    claim=only_plain({}, {"do_rotary": 0, "past_present_share_buffer": 0}),
    prepare={("weight", "weight_zero_point"): integer_factor},
)
def quantized_attention(
    x: Array,
    weight: PackedBytes | ExactFactor,
    bias: Array,
    input_scale: Array,
    weight_scale: Array,
    mask_index: Array | None = None,
    input_zero_point: Array | None = None,
    weight_zero_point: None = None,
    past: Array | None = None,
    *,
    do_rotary: int = 0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    n_outputs: int,
    **masking: Unpack[Masking],
) -> tuple[Array, ...]:
    total = integer_product(x, weight, input_zero_point)
    projected = total.astype(mx.float32) * (input_scale * weight_scale) + bias
    return self_attention(side_by_side(projected, num_heads), past, mask_index, None, n_outputs, **masking)


@op("QLinearSoftmax", domain=MICROSOFT, dtypes={"x": BYTES})
def qlinear_softmax(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array,
    *,
    axis: int = -1,
    **attributes: int,  # `opset`, a name that the registry keeps for itself
) -> Array:
    axis, over_one = axis_of(axis, x.ndim), attributes["opset"] >= 13
    levels = centred(x, x_zero_point).astype(mx.float32) * x_scale
    rows = levels if over_one else rows_from(levels, axis)
    weights = softmax(rows, axis if over_one else -1).reshape(x.shape)
    return requantized(weights, 1 / y_scale, y_zero_point)


@op("QLinearReduceMean", domain=MICROSOFT, dtypes={"data": BYTES})
def qlinear_reduce_mean(
    data: Array,
    data_scale: Array,
    data_zero_point: Array | None,
    reduced_scale: Array,
    reduced_zero_point: Array | None = None,
    *,
    axes: Sequence[int] | None = None,
    keepdims: int = 1,
) -> Array:
    chosen = axes_of(range(data.ndim) if axes is None else axes, data.ndim)
    mean = mx.mean(centred(data, data_zero_point).astype(mx.float32) * data_scale, chosen, bool(keepdims))
    zero_point = mx.array(0, data.dtype) if reduced_zero_point is None else reduced_zero_point
    return requantized(mean, 1 / reduced_scale, zero_point)


@op("MatMulInteger16", domain=MICROSOFT, dtypes=frozenset({"int16", "uint16"}))
def matmul_integer_16(a: Array, b: Array) -> Array:
    wide = mx.int32 if a.dtype == mx.int16 else mx.uint32
    return matmul(a.astype(wide), b.astype(wide))


@op("MulInteger", domain=MICROSOFT, dtypes=BYTES)
def mul_integer(a: Array, a_zero_point: Array | None, b: Array, b_zero_point: Array | None = None) -> Array:
    return centred(a, a_zero_point) * centred(b, b_zero_point)


@op(
    "ConvTransposeWithDynamicPads",
    domain=MICROSOFT,
    host=("pads",),
    dtypes=SINGLES,
    claim=one_to_three_axes,
    prepare={"w": transposed_kernel},
)
def conv_transpose_with_dynamic_pads(
    x: Array,
    w: TransposedKernel,
    pads: np.ndarray | None = None,
    b: Array | None = None,
    **transposition: Unpack[Transposition],
) -> Array:
    return conv_transpose(x, w, b, pads=None if pads is None else pads.tolist(), **transposition)


@op("ScaledSiLU", domain=MICROSOFT, dtypes={"x": SINGLES, "scale": SINGLES})
def scaled_silu(x: Array, scale: Array | None = None, *, alpha: float = 1.0) -> Array:
    gain = alpha if scale is None else widen(scale).reshape([])
    # rounded to the tensor's type at each of the three steps, as the schema says
    z = (widen(x) * gain).astype(x.dtype)
    return z * precision.sigmoid(widen(z)).astype(x.dtype)


@op("SwiGLU", domain=MICROSOFT, dtypes=SINGLES)
@widened
def swiglu(
    gate: Array,
    up: Array | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    limit: float = 0.0,
    round_activation: int = 0,
) -> Array:
    if up is None:
        gate, up = mx.split(gate, 2, -1)
    if limit > 0:
        gate, up = mx.minimum(gate, limit), mx.clip(up, -limit, limit)
    return gate * precision.sigmoid(activation_alpha * gate) * (up + activation_beta)


@op("ComplexMul", domain=MICROSOFT, dtypes=SINGLES)
def complex_mul(a: Array, b: Array) -> Array:
    return complex_product(a, b, 1)


@op("ComplexMulConj", domain=MICROSOFT, dtypes=SINGLES)
def complex_mul_conj(a: Array, b: Array) -> Array:
    return complex_product(a, b, -1)


@widened
def complex_product(a: Array, b: Array, sign: int) -> Array:
    """Products of numbers whose real and imaginary parts lie on the last axis; `sign` is the second's."""
    real, imaginary = a[..., 0], a[..., 1]
    other_real, other_imaginary = b[..., 0], b[..., 1] * sign
    return mx.stack(
        [real * other_real - imaginary * other_imaginary, real * other_imaginary + imaginary * other_real], -1
    )
