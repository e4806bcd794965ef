"""Functions that MLX computes 10 to 40 times slower than numpy on the CPU, by vectorised primitives of our own.

Each takes the stream it is built for into account: on a stream of the CPU, for float32, float16 and bfloat16 and with
the libmlxc that this package builds, it is one primitive (computed in float32); otherwise MLX's operations. The
primitives work in mx.compile without fusion and in tapes; they have no gradient, no vmap and no export.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_void_p
from functools import cache
from typing import Any, NamedTuple

from mlxc_py import extras, ops
from mlxc_py._sys.load import library
from mlxc_py.arrays import Array, take_list
from mlxc_py.dtype import Dtype, bfloat16, float16, float32, iinfo, int8, int32, uint8
from mlxc_py.errors import UnsupportedError
from mlxc_py.extras import own
from mlxc_py.state import StreamLike, local, on

__all__ = [
    "Packed",
    "PackedBytes",
    "add",
    "clip",
    "convert",
    "convolution",
    "convolves",
    "cos",
    "dequantize",
    "divide",
    "dynamic_quantize",
    "erf",
    "exp",
    "gelu",
    "hard_sigmoid",
    "hard_swish",
    "integer_convolution",
    "integer_matmul",
    "integers",
    "isa",
    "leaky_relu",
    "log",
    "matmul",
    "maximum",
    "minimum",
    "multiplies",
    "multiply",
    "pack",
    "pack_byte_matrix",
    "pack_bytes",
    "pack_matrix",
    "pack_rows",
    "packs",
    "packs_matrix",
    "pool",
    "quantize",
    "quantized_lstm",
    "recurrent",
    "recurs",
    "serves",
    "sigmoid",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "subtract",
    "tanh",
    "use_isa",
]

# enum mlxc_py_unary in native/mlxc/extras.h
(_EXP, _LOG, _SIN, _COS, _TANH, _ERF, _SIGMOID, _SILU, _GELU, _SOFTPLUS, _HARD_SIGMOID, _HARD_SWISH, _LEAKY, _CLIP) = (
    range(14)
)
# enum mlxc_py_binary
_ADD, _SUBTRACT, _MULTIPLY, _DIVIDE, _MAXIMUM, _MINIMUM = range(6)
_FLOATS = (float32, float16, bfloat16)


def exp(x: Array, *, stream: StreamLike = None) -> Array:
    """e to the x: 2 ulp of float32."""
    return _map(_EXP, x, stream) if serves(x, stream) else ops.exp(x, stream=stream)


def log(x: Array, *, stream: StreamLike = None) -> Array:
    """Natural logarithm: 2 ulp of float32."""
    return _map(_LOG, x, stream) if serves(x, stream) else ops.log(x, stream=stream)


def sin(x: Array, *, stream: StreamLike = None) -> Array:
    """Sine: absolute error 2^-23."""
    return _map(_SIN, x, stream) if serves(x, stream) else ops.sin(x, stream=stream)


def cos(x: Array, *, stream: StreamLike = None) -> Array:
    """Cosine: absolute error 2^-23."""
    return _map(_COS, x, stream) if serves(x, stream) else ops.cos(x, stream=stream)


def tanh(x: Array, *, stream: StreamLike = None) -> Array:
    """Hyperbolic tangent: 2 ulp of float32."""
    return _map(_TANH, x, stream) if serves(x, stream) else ops.tanh(x, stream=stream)


def erf(x: Array, *, stream: StreamLike = None) -> Array:
    """Error function: 2 ulp of float32."""
    return _map(_ERF, x, stream) if serves(x, stream) else ops.erf(x, stream=stream)


def sigmoid(x: Array, *, stream: StreamLike = None) -> Array:
    """1 / (1 + exp(-x)): 3 ulp of float32."""
    return _map(_SIGMOID, x, stream) if serves(x, stream) else ops.sigmoid(x, stream=stream)


def silu(x: Array, alpha: float = 1.0, *, stream: StreamLike = None) -> Array:
    """x * sigmoid(alpha * x)."""
    if serves(x, stream):
        return _map(_SILU, x, stream, alpha)
    inner = x if alpha == 1 else ops.multiply(x, alpha, stream=stream)
    return ops.multiply(x, ops.sigmoid(inner, stream=stream), stream=stream)


def gelu(x: Array, *, stream: StreamLike = None) -> Array:
    """x * (1 + erf(x / sqrt(2))) / 2."""
    if serves(x, stream):
        return _map(_GELU, x, stream)
    grown = ops.add(ops.erf(ops.multiply(x, math.sqrt(0.5), stream=stream), stream=stream), 1, stream=stream)
    return ops.multiply(ops.multiply(x, 0.5, stream=stream), grown, stream=stream)


def softplus(x: Array, *, stream: StreamLike = None) -> Array:
    """log(1 + exp(x)) without overflow."""
    return _map(_SOFTPLUS, x, stream) if serves(x, stream) else ops.logaddexp(x, 0, stream=stream)


def hard_sigmoid(x: Array, alpha: float, beta: float, *, stream: StreamLike = None) -> Array:
    """clip(alpha * x + beta, 0, 1)."""
    if serves(x, stream):
        return _map(_HARD_SIGMOID, x, stream, alpha, beta)
    return ops.clip(ops.add(ops.multiply(x, alpha, stream=stream), beta, stream=stream), 0, 1, stream=stream)


def hard_swish(x: Array, alpha: float = 1 / 6, beta: float = 0.5, *, stream: StreamLike = None) -> Array:
    """x * clip(alpha * x + beta, 0, 1)."""
    if serves(x, stream):
        return _map(_HARD_SWISH, x, stream, alpha, beta)
    return ops.multiply(x, hard_sigmoid(x, alpha, beta, stream=stream), stream=stream)


def leaky_relu(x: Array, alpha: float, *, stream: StreamLike = None) -> Array:
    """x where it is not negative, else alpha * x."""
    if serves(x, stream):
        return _map(_LEAKY, x, stream, alpha)
    negative = ops.less(x, 0, stream=stream)
    return ops.where(negative, ops.multiply(x, alpha, stream=stream), x, stream=stream)


def clip(x: Array, low: float, high: float, *, stream: StreamLike = None) -> Array:
    """x brought into [low, high] (which may be infinite); NaN stays NaN."""
    return _map(_CLIP, x, stream, low, high) if serves(x, stream) else ops.clip(x, low, high, stream=stream)


def add(a: Array, b: Array, *, stream: StreamLike = None) -> Array:
    """Sum, with broadcasting; like the next five in the layout of an operand that has the result's shape."""
    return _combine(_ADD, a, b, stream) if _pairs(a, b, stream) else ops.add(a, b, stream=stream)


def subtract(a: Array, b: Array, *, stream: StreamLike = None) -> Array:
    """Difference, with broadcasting."""
    return _combine(_SUBTRACT, a, b, stream) if _pairs(a, b, stream) else ops.subtract(a, b, stream=stream)


def multiply(a: Array, b: Array, *, stream: StreamLike = None) -> Array:
    """Product, with broadcasting."""
    return _combine(_MULTIPLY, a, b, stream) if _pairs(a, b, stream) else ops.multiply(a, b, stream=stream)


def divide(a: Array, b: Array, *, stream: StreamLike = None) -> Array:
    """Quotient, with broadcasting."""
    return _combine(_DIVIDE, a, b, stream) if _pairs(a, b, stream) else ops.divide(a, b, stream=stream)


def maximum(a: Array, b: Array, *, stream: StreamLike = None) -> Array:
    """The larger, with broadcasting; NaN where either is."""
    return _combine(_MAXIMUM, a, b, stream) if _pairs(a, b, stream) else ops.maximum(a, b, stream=stream)


def minimum(a: Array, b: Array, *, stream: StreamLike = None) -> Array:
    """The smaller, with broadcasting; NaN where either is."""
    return _combine(_MINIMUM, a, b, stream) if _pairs(a, b, stream) else ops.minimum(a, b, stream=stream)


def convert(x: Array, dtype: Dtype, *, stream: StreamLike = None) -> Array:
    """x in another type; our own between float32, float16 and bfloat16."""
    if x.dtype is dtype or dtype not in _FLOATS or not serves(x, stream):
        return ops.astype(x, dtype, stream=stream)
    return own("mlxc_py_cpu_convert", a="mlx_array", dtype="mlx_dtype")(x, dtype.code, on(stream))


def quantize(x: Array, scale: Array, zero: Array, *, stream: StreamLike = None) -> Array:
    """round(x / scale) + zero, ties to even, brought into the range of zero's type: int8 or uint8.

    x, scale: float32; scale and zero have one element for our own, else shapes that broadcast to x.
    """
    if x.dtype is scale.dtype is float32 and _scalars(x, scale, zero, zero.dtype, stream):
        return own("mlxc_py_cpu_quantize", **_SCALED)(x, scale, zero, on(stream))
    level = ops.round(ops.divide(x, scale, stream=stream), stream=stream)
    level = ops.add(level, ops.astype(zero, float32, stream=stream), stream=stream)
    limits = iinfo(zero.dtype)
    return ops.astype(ops.clip(level, limits.min, limits.max, stream=stream), zero.dtype, stream=stream)


def dequantize(x: Array, scale: Array, zero: Array, *, stream: StreamLike = None) -> Array:
    """(x - zero) * scale in float32, of int8 or uint8; scale and zero as for `quantize`."""
    if scale.dtype is float32 and _scalars(scale, scale, zero, x.dtype, stream):
        return own("mlxc_py_cpu_dequantize", **_SCALED)(x, scale, zero, on(stream))
    level, offset = (ops.astype(v, int32, stream=stream) for v in (x, zero))
    level = ops.astype(ops.subtract(level, offset, stream=stream), float32, stream=stream)
    return ops.multiply(level, scale, stream=stream)


def softmax(x: Array, axis: int = -1, *, stream: StreamLike = None) -> Array:
    """exp(x) over its sum along an axis, without overflow; accumulated in float32 or better."""
    if not (serves(x, stream) and x.ndim):
        return ops.softmax(x, axis, precise=True, stream=stream)
    compute, last = own("mlxc_py_cpu_softmax", a="mlx_array"), x.ndim - 1
    if axis in (-1, last):
        return compute(x, on(stream))
    turned = ops.swapaxes(x, axis, last, stream=stream)
    return ops.swapaxes(compute(turned, on(stream)), axis, last, stream=stream)


class Packed(NamedTuple):
    """Weights as native/mlxc/extras.h wants them; `shape` is what they were, [out, height, width, channels / groups].

    Made once by `pack`, `pack_matrix` or `pack_rows` for many calls of `convolution`, `matmul` or `recurrent`. Plain
    weights are packed by each call, where it takes them.
    """

    blocks: Array
    shape: tuple[int, ...]
    groups: int

    @property
    def made(self) -> int:
        """Output channels, columns of a matrix."""
        return self.shape[0]


class PackedBytes(NamedTuple):
    """8-bit weights and their zero points likewise, with the sums over each output's weights; no zeros: all are 0.

    Made by `pack_bytes` or `pack_byte_matrix` for `integer_convolution`, `integer_matmul` and `quantized_lstm`.
    """

    blocks: Array
    sums: Array
    zeros: Array | None
    shape: tuple[int, ...]
    groups: int

    @property
    def made(self) -> int:
        """Output channels, columns of a matrix."""
        return self.shape[0]


def convolution(
    x: Array,
    w: Array | Packed,
    bias: Array | None = None,
    *,
    stride: Sequence[int],
    padding: tuple[Sequence[int], Sequence[int]],
    dilation: Sequence[int],
    groups: int = 1,
    stream: StreamLike = None,
) -> Array:
    """Convolution of [batch, spatial..., channels] with [out, spatial..., channels / groups], plus bias.

    A number per spatial axis in stride, dilation and both halves (before, after) of padding. See `convolves` for where
    it is a primitive of our own; packed weights are for nothing else.
    """
    if not isinstance(w, Packed):
        if not convolves(x, w, groups, stream):
            geometry: dict[str, Any] = {"stride": stride, "padding": padding, "kernel_dilation": dilation}
            y = ops.conv_general(x, w, groups=groups, **geometry, stream=stream)
            return y if bias is None else ops.add(y, bias, stream=stream)
        w = pack(w, groups, stream=stream)
    if x.ndim == 3:
        x = ops.expand_dims(x, 1, stream=stream)
        stride, dilation, padding = (1, *stride), (1, *dilation), ((0, *padding[0]), (0, *padding[1]))
        y = convolution(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups, stream=stream)
        return ops.squeeze(y, 1, stream=stream)
    if w.groups != groups:
        raise ValueError(f"convolution: the weights are packed for {w.groups} groups, not {groups}")
    window = _window(x, w.shape, stride, padding, dilation, groups)
    if not x.size:
        y = ops.zeros((x.shape[0], *window[:3]), float32, stream=stream)
        return y if bias is None else ops.add(y, bias, stream=stream)
    arrays = {"x": "mlx_array", "weights": "mlx_array", "bias": "mlx_array"}
    return own("mlxc_py_cpu_convolution", **arrays, **_WINDOW)(x, w.blocks, bias, window, on(stream))


def _window(
    x: Array,
    weights: tuple[int, ...],
    stride: Sequence[int],
    padding: tuple[Sequence[int], Sequence[int]],
    dilation: Sequence[int],
    groups: int,
) -> tuple[int, ...]:
    """The numbers that native/mlxc/extras.h calls `window`, for weights of this shape."""
    (before, after), (made, *kernel, each) = padding, weights
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
    room = [x.shape[1 + i] + before[i] + after[i] - spans[i] for i in (0, 1)]
    if min(room) < 0 or x.shape[3] != each * groups or made % groups:
        raise ValueError(f"convolution: kernels {weights} in {groups} groups do not fit {x.shape} padded by {padding}")
    outputs = [r // step + 1 for r, step in zip(room, stride, strict=True)]
    return (*outputs, made, *kernel, *stride, *dilation, *before, groups)


def convolves(x: Array, w: Array, groups: int, stream: StreamLike = None) -> bool:
    """Whether `convolution` of these is a primitive of our own."""
    return bool(x.ndim == w.ndim and x.dtype is w.dtype and x.size) and packs(w, groups, stream)


def packs(w: Array, groups: int, stream: StreamLike = None) -> bool:
    """Whether `pack` is for these weights: float32, 1-D or 2-D, and faster than a product by BLAS.

    Without AVX2 they are faster only where MLX does not use BLAS: with groups.
    """
    fits = w.ndim in (3, 4) and w.dtype is float32 and w.size and serves(w, stream)
    return bool(fits) and (groups > 1 or isa() != "baseline")


def pack(w: Array, groups: int = 1, *, stream: StreamLike = None) -> Packed:
    """Weights [out, spatial..., channels / groups] for `convolution`; UnsupportedError unless `packs(w, groups)`."""
    if not packs(w, groups, stream):
        raise UnsupportedError("pack: only 1-D and 2-D weights in float32 on a stream of the CPU; ask `packs` first")
    w = w if w.ndim == 4 else ops.expand_dims(w, 1, stream=stream)
    if w.shape[3] == w.shape[0] // groups == 1 and groups > 1:
        rows = ops.transpose(ops.reshape(w, (groups, -1), stream=stream), stream=stream)
        return Packed(ops.contiguous(rows, stream=stream), w.shape, groups)
    (blocks,) = _in_blocks(w, groups, stream)
    return Packed(blocks, w.shape, groups)


def _rows(w: Array, stream: StreamLike) -> Array:
    """[out, length] as weights of one position."""
    return ops.expand_dims(w, (1, 2), stream=stream)


def _in_blocks(w: Array, groups: int, stream: StreamLike) -> list[Array]:
    """What the primitives take of [out, height, width, channels / groups]; of bytes also the sums."""
    compute = library().typed("mlxc_py_cpu_pack", c_int, c_void_p, c_void_p, c_int, c_void_p)
    here = local.here
    return take_list(here, compute(here.out, w.live, groups, here.on(stream)))


def matmul(a: Array, b: Array | Packed, bias: Array | None = None, *, stream: StreamLike = None) -> Array:
    """a [..., K] times b [K, N], plus bias [N]; our own (see `multiplies`) packs b first: for weights."""
    if not isinstance(b, Packed):
        if not multiplies(a, b, stream):
            y = ops.matmul(a, b, stream=stream)
            return y if bias is None else ops.add(y, bias, stream=stream)
        b = pack_matrix(b, stream=stream)
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(f"matmul: {a.shape} and {(b.shape[-1], b.made)} do not match")
    if not a.size:
        y = ops.zeros((*a.shape[:-1], b.made), float32, stream=stream)
        return y if bias is None else ops.add(y, bias, stream=stream)
    # a convolution with one element, over an image that is a line
    image = ops.reshape(a, (1, 1, math.prod(a.shape[:-1]), a.shape[-1]), stream=stream)
    y = convolution(image, b, bias, stride=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1), stream=stream)
    return ops.reshape(y, (*a.shape[:-1], b.made), stream=stream)


def multiplies(a: Array, b: Array, stream: StreamLike = None) -> bool:
    """Whether `matmul` of these is a primitive of our own."""
    return bool(a.dtype is b.dtype and a.ndim > 0 and a.size) and packs_matrix(b, stream)


def packs_matrix(b: Array, stream: StreamLike = None) -> bool:
    """Whether `pack_matrix` is for this matrix: float32, with AVX-512, where our product beats OpenBLAS."""
    return bool(b.dtype is float32 and b.ndim == 2 and b.size) and serves(b, stream) and str(isa()).startswith("avx512")


def pack_matrix(b: Array, *, stream: StreamLike = None) -> Packed:
    """A matrix [K, N] for `matmul`; UnsupportedError unless it is float32 on a stream of the CPU, as for `pack`."""
    return pack(_rows(ops.transpose(b, stream=stream), stream), stream=stream)


def integer_convolution(
    x: Array,
    w: PackedBytes,
    x_zero: Array | None = None,
    *,
    stride: Sequence[int],
    padding: tuple[Sequence[int], Sequence[int]],
    dilation: Sequence[int],
    groups: int = 1,
    stream: StreamLike = None,
) -> Array:
    """As `convolution`, of x - x_zero and weights less their zero points, in exact int32.

    x, x_zero: int8 or uint8. UnsupportedError unless `integers(x)` and 1-D or 2-D.
    """
    if not integers(x, stream) or x.ndim not in (3, 4):
        raise UnsupportedError("integer_convolution: only on a stream of the CPU, with the libmlxc that mlxc-py builds")
    if x.ndim == 3:
        x = ops.expand_dims(x, 1, stream=stream)
        stride, dilation, padding = (1, *stride), (1, *dilation), ((0, *padding[0]), (0, *padding[1]))
        geometry: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return ops.squeeze(integer_convolution(x, w, x_zero, **geometry, stream=stream), 1, stream=stream)
    if w.groups != groups:
        raise ValueError(f"integer_convolution: the weights are packed for {w.groups} groups, not {groups}")
    window = _window(x, w.shape, stride, padding, dilation, groups)
    if not x.size:
        return ops.zeros((x.shape[0], *window[:3]), int32, stream=stream)
    x_zero = ops.zeros([1], x.dtype, stream=stream) if x_zero is None else x_zero
    arrays = dict.fromkeys(("x", "weights", "zero", "sums", "zeros"), "mlx_array")
    compute = own("mlxc_py_cpu_integer_convolution", **arrays, **_WINDOW)
    return compute(x, w.blocks, x_zero, w.sums, w.zeros, window, on(stream))


def pack_bytes(w: Array, zero: Array | None = None, groups: int = 1, *, stream: StreamLike = None) -> PackedBytes:
    """Weights [out, spatial..., channels / groups] for `integer_convolution`, of 1-D or 2-D images.

    w, zero: int8 or uint8, a zero point for all or for each output channel. UnsupportedError unless `integers(w)`.
    """
    if not integers(w, stream) or w.ndim not in (3, 4):
        raise UnsupportedError("pack_bytes: only on a stream of the CPU, with the libmlxc that mlxc-py builds")
    w = w if w.ndim == 4 else ops.expand_dims(w, 1, stream=stream)
    blocks, sums = _in_blocks(w, groups, stream)
    offset, zeros = 128 if w.dtype is uint8 else 0, None
    if offset or zero is not None:
        zero = ops.zeros([1], int32, stream=stream) if zero is None else ops.astype(zero, int32, stream=stream)
        zeros = ops.reshape(ops.subtract(zero, offset, stream=stream), (-1,), stream=stream)
        zeros = ops.broadcast_to(zeros, sums.shape, stream=stream)
    return PackedBytes(blocks, sums, zeros, w.shape, groups)


def integer_matmul(a: Array, b: PackedBytes, a_zero: Array | None = None, *, stream: StreamLike = None) -> Array:
    """(a - a_zero) [..., K] times a matrix [K, N] less its zero points, in exact int32.

    a, a_zero: int8 or uint8; a_zero: one, or any that broadcast to [..., 1]. UnsupportedError unless `integers(a)`.
    """
    length, made = b.shape[-1], b.made
    if not a.size:
        return ops.zeros((*a.shape[:-1], made), int32, stream=stream)
    image = ops.reshape(a, (1, 1, math.prod(a.shape[:-1]), length), stream=stream)
    geometry: dict[str, Any] = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}
    by_row = a_zero is not None and a_zero.size > 1
    y = integer_convolution(image, b, None if by_row else a_zero, **geometry, stream=stream)
    y = ops.reshape(y, (*a.shape[:-1], made), stream=stream)
    if a_zero is None or not by_row:
        return y
    totals = b.sums
    if b.zeros is not None:
        totals = ops.subtract(totals, ops.multiply(b.zeros, length, stream=stream), stream=stream)
    return ops.subtract(y, ops.multiply(ops.astype(a_zero, int32, stream=stream), totals, stream=stream), stream=stream)


def pack_byte_matrix(b: Array, zero: Array | None = None, *, stream: StreamLike = None) -> PackedBytes:
    """A matrix [K, N] for `integer_matmul` and `quantized_lstm`; zero: one, or one by column."""
    return pack_bytes(_rows(ops.transpose(b, stream=stream), stream), zero, stream=stream)


def integers(x: Array, stream: StreamLike = None) -> bool:
    """Whether products of this array's 8-bit integers are primitives of our own."""
    return x.dtype in (int8, uint8) and extras.serves(stream)


def dynamic_quantize(x: Array, *, stream: StreamLike = None) -> tuple[Array, Array, Array]:
    """float32 x as uint8 levels between its extremes, or 0: levels, scale, zero point."""
    if x.dtype is float32 and serves(x, stream):
        quantize_ = library().typed("mlxc_py_cpu_dynamic_quantize", c_int, c_void_p, c_void_p, c_void_p)
        here = local.here
        levels, scale, zero = take_list(here, quantize_(here.out, x.live, here.on(stream)))
        return levels, scale, zero
    low = ops.minimum(ops.min(x, stream=stream), 0, stream=stream)
    high = ops.maximum(ops.max(x, stream=stream), 0, stream=stream)
    step = ops.divide(ops.subtract(high, low, stream=stream), 255, stream=stream)
    scale = ops.where(ops.equal(high, low, stream=stream), ops.ones_like(step, stream=stream), step, stream=stream)
    below = ops.divide(ops.negative(low, stream=stream), scale, stream=stream)
    zero = ops.astype(ops.round(ops.clip(below, 0, 255, stream=stream), stream=stream), uint8, stream=stream)
    return quantize(x, scale, zero, stream=stream), scale, zero


def pool(
    x: Array,
    kernel: Sequence[int],
    output: Sequence[int],
    *,
    maximum: bool,
    scale: float = 1.0,
    stride: Sequence[int] = (1, 1),
    before: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    stream: StreamLike = None,
) -> Array:
    """The maximum, or the sum times scale, of windows over [batch, height, width, channels]; padding does not count.

    output: height and width; windows may reach past the image. UnsupportedError unless `serves(x)` and float32.
    """
    if not (serves(x, stream) and x.dtype is float32):
        raise UnsupportedError("pool: only for float32 on a stream of the CPU, with the libmlxc that mlxc-py builds")
    window = (*output, x.shape[3], *kernel, *stride, *dilation, *before, 1)
    compute = own("mlxc_py_cpu_pool", x="mlx_array", **_WINDOW, maximum="bool", scale="float")
    return compute(x, window, maximum, scale, on(stream))


def recurrent(
    steps: Array, weights: Packed, initial: Array, bias: Array | None = None, *, stream: StreamLike = None
) -> Array:
    """An LSTM or, with a bias, a GRU run over [steps, batch, gates * hidden]: its states [steps, batch, state].

    steps hold the input's product and biases; weights: [gates * hidden, hidden], packed by `pack_rows`; initial [batch,
    state], an LSTM's state being hidden and cell side by side; bias [hidden] of the GRU's candidate, scaled with its
    product. Gates are ordered as in ONNX. UnsupportedError unless `recurs(steps)`.
    """
    if not recurs(steps, stream):
        raise UnsupportedError("recurrent: only float32 on a stream of the CPU, with the libmlxc that mlxc-py builds")
    blocks = ops.squeeze(weights.blocks, 0, stream=stream)
    arrays = dict.fromkeys(("steps", "weights", "bias", "initial"), "mlx_array")
    return own("mlxc_py_cpu_recurrent", **arrays)(steps, blocks, bias, initial, on(stream))


def pack_rows(w: Array, *, stream: StreamLike = None) -> Packed:
    """Weights [gates * hidden, hidden] for `recurrent`; for `matmul` they are those of a product with w.T."""
    w = _rows(w, stream)
    (blocks,) = _in_blocks(w, 1, stream)
    return Packed(blocks, w.shape, 1)


def quantized_lstm(
    steps: Array, weights: PackedBytes, initial: Array, scale: Array, *, stream: StreamLike = None
) -> Array:
    """As `recurrent`, of an LSTM whose state is quantised as by `dynamic_quantize` before each product.

    weights: [hidden, 4 * hidden], packed by `pack_byte_matrix`; a scale for all or for each column.
    """
    if not recurs(steps, stream):
        raise UnsupportedError("quantized_lstm: only float32 on a stream of the CPU, with the libmlxc of mlxc-py")
    scales = ops.broadcast_to(ops.reshape(scale, (-1,), stream=stream), (weights.made,), stream=stream)
    zeros = ops.zeros([weights.made], int32, stream=stream) if weights.zeros is None else weights.zeros
    arrays = dict.fromkeys(("steps", "weights", "initial", "scales", "sums", "zeros"), "mlx_array")
    compute = own("mlxc_py_cpu_quantized_lstm", **arrays)
    return compute(steps, weights.blocks, initial, scales, weights.sums, zeros, on(stream))


def recurs(x: Array, stream: StreamLike = None) -> bool:
    """Whether `recurrent` takes steps of this array."""
    return x.dtype is float32 and serves(x, stream)


def serves(x: Array, stream: StreamLike = None) -> bool:
    """Whether the functions here are primitives of our own for this array on this stream."""
    return x.dtype in _FLOATS and extras.serves(stream)


def isa() -> str | None:
    """The instruction set that the primitives use: avx512vnni, avx512, avx2, baseline; None where there are none."""
    return str(_isa()().decode()) if extras.available() else None


@cache
def _isa() -> Any:
    return library().typed("mlxc_py_cpu_isa", c_char_p)


def use_isa(name: str) -> None:
    """Use another instruction set than the best, to test or to measure; MLXError where the processor lacks it."""
    use = library().typed("mlxc_py_cpu_use_isa", c_int, c_char_p)
    if use(name.encode()):
        raise local.here.failure("use_isa")


def _pairs(a: Array, b: Array, stream: StreamLike) -> bool:
    return a.dtype is b.dtype and serves(a, stream)


def _scalars(x: Array, scale: Array, zero: Array, stored: Dtype, stream: StreamLike) -> bool:
    return scale.size == zero.size == 1 and zero.dtype is stored and stored in (int8, uint8) and serves(x, stream)


def _map(kind: int, x: Array, stream: StreamLike, p: float = 0.0, q: float = 0.0) -> Array:
    return own("mlxc_py_cpu_unary", a="mlx_array", kind="int", p="float", q="float")(x, kind, p, q, on(stream))


def _combine(kind: int, a: Array, b: Array, stream: StreamLike) -> Array:
    return own("mlxc_py_cpu_binary", a="mlx_array", b="mlx_array", kind="int")(a, b, kind, on(stream))


_SCALED = {"x": "mlx_array", "scale": "mlx_array", "zero": "mlx_array"}
_WINDOW = {"window": "const int*", "window_num": "size_t"}
