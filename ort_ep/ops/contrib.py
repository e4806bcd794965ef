"""Operators of com.microsoft that ONNX Runtime's optimiser writes: fused forms of the standard ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

import mlxc_py as mx
from mlxc_py import Array
from mlxc_py.cpu_primitives import Packed
from ort_ep.ops import activation, precision
from ort_ep.ops.conv import Convolution, Kernel, conv, kernel, one_to_three_axes
from ort_ep.ops.matmul import Factors, factor, gemm, matmul, packed
from ort_ep.ops.norm import layer_normalization, simplified_layer_normalization
from ort_ep.ops.precision import widen
from ort_ep.registry import FLOATS, MICROSOFT, SINGLES, op

ACTIVATIONS: dict[str, Callable[..., Array]] = {
    "": lambda x: x,
    "Relu": activation.relu,
    "Tanh": precision.tanh,
    "Sigmoid": activation.sigmoid,
    "LeakyRelu": lambda x, alpha=0.01: activation.leaky_relu(x, alpha=alpha),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: activation.hard_sigmoid(x, alpha=alpha, beta=beta),
    "Clip": lambda x, low, high: mx.clip(x, low, high),
}


@op("Gelu", domain=MICROSOFT, dtypes=SINGLES)
def gelu(x: Array) -> Array:
    return activation.gelu(x)


@op("BiasGelu", domain=MICROSOFT, dtypes=SINGLES)
def bias_gelu(a: Array, b: Array) -> Array:
    return activation.gelu(a + b)


@op("FastGelu", domain=MICROSOFT, dtypes=SINGLES)
def fast_gelu(x: Array, bias: Array | None = None) -> Array:
    return activation.gelu(x if bias is None else x + bias, approximate="tanh")


def matrices(x: Array, batch_between: int, transposed: int) -> Array:
    """The factor as [batch..., rows, columns]; its batch may lie between rows and columns."""
    x = mx.moveaxis(x, 0, -2) if batch_between else x
    return mx.swapaxes(x, -1, -2) if transposed and x.ndim > 1 else x


def turned_factor(b: Array, *, transB: int = 0, transBatchB: int = 0) -> Array | Packed:
    """The prepared second input of a FusedMatMul."""
    return packed(matrices(b, transBatchB, transB), b.evaluated)


class Products(TypedDict, total=False):
    """The attributes of FusedMatMul."""

    alpha: float
    transA: int
    transB: int
    transBatchA: int
    transBatchB: int


@op("FusedMatMul", domain=MICROSOFT, dtypes=FLOATS, prepare={"b": turned_factor})
@op("TransposeMatMul", domain=MICROSOFT, dtypes=FLOATS, prepare={"b": turned_factor})
def fused_matmul(
    a: Array,
    b: Array | Packed,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Array:
    product = matmul(matrices(a, transBatchA, transA), b)
    return product if alpha == 1 else (widen(product) * alpha).astype(a.dtype)


@op("FusedGemm", domain=MICROSOFT, dtypes=FLOATS, prepare={"b": factor})
def fused_gemm(
    a: Array,
    b: Array | Packed,
    c: Array | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **factors: Unpack[Factors],
) -> Array:
    return activated(gemm(a, b, c, **factors), activation, activation_alpha, activation_beta)


def activated(y: Array, activation: str, *scales: float | None) -> Array:
    """The activation of y; a scale that is None has the activation's default."""
    return ACTIVATIONS[activation](y, *(scale for scale in scales if scale is not None))


class FusedConvolution(Convolution, total=False):
    """The attributes of FusedConv."""

    activation: str
    activation_params: Sequence[float]


@op("FusedConv", domain=MICROSOFT, dtypes=SINGLES, claim=one_to_three_axes, prepare={"w": kernel})
def fused_conv(
    x: Array,
    w: Kernel,
    b: Array | None = None,
    z: Array | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **convolution: Unpack[Convolution],
) -> Array:
    y = conv(x, w, b, **convolution)
    return activated(y if z is None else y + z, activation, *activation_params)


@op("SkipLayerNormalization", domain=MICROSOFT, dtypes=FLOATS)
def skip_layer_normalization(
    x: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-12,
    n_outputs: int,
) -> tuple[Array, ...]:
    total = added(x, skip, bias)
    return (*layer_normalization(total, gamma, beta, epsilon=epsilon, n_outputs=3), total)[:n_outputs]


@op("SkipSimplifiedLayerNormalization", domain=MICROSOFT, dtypes=FLOATS)
def skip_simplified_layer_normalization(
    x: Array, skip: Array, gamma: Array, bias: Array | None = None, *, epsilon: float = 1e-12, n_outputs: int
) -> tuple[Array, ...]:
    total = added(x, skip, bias)
    normal, inverse = simplified_layer_normalization(total, gamma, epsilon=epsilon, n_outputs=2)
    return (normal, mx.zeros_like(inverse), inverse, total)[:n_outputs]


def added(x: Array, skip: Array, bias: Array | None) -> Array:
    return x + skip if bias is None else x + skip + bias
