"""Activations."""

from __future__ import annotations

import math

import mlxc_py as mx
from mlxc_py import Array, cpu_primitives
from ort_ep.ops import precision
from ort_ep.ops.precision import is_float, widened
from ort_ep.registry import FLOATS, MICROSOFT, NUMERIC, SINGLES, op


@op("Relu", since=6, dtypes=NUMERIC)
def relu(x: Array) -> Array:
    return cpu_primitives.clip(x, 0, math.inf) if is_float(x) else mx.maximum(x, 0)


@op("LeakyRelu", since=6, dtypes=FLOATS)
@widened
def leaky_relu(x: Array, *, alpha: float = 0.01) -> Array:
    return cpu_primitives.leaky_relu(x, alpha)


@op("PRelu", since=7, dtypes=NUMERIC)
def prelu(x: Array, slope: Array) -> Array:
    return mx.where(x < 0, slope * x, x)


@op("ThresholdedRelu", since=1, dtypes=FLOATS)
@widened
def thresholded_relu(x: Array, *, alpha: float = 1.0) -> Array:
    return mx.where(x > alpha, x, mx.zeros_like(x))


@op("Elu", since=6, dtypes=FLOATS)
@widened
def elu(x: Array, *, alpha: float = 1.0) -> Array:
    return mx.where(x < 0, alpha * mx.expm1(x), x)


@op("Celu", since=12, dtypes=FLOATS)
@widened
def celu(x: Array, *, alpha: float = 1.0) -> Array:
    return mx.maximum(x, 0) + mx.minimum(alpha * mx.expm1(x / alpha), 0)


@op("Selu", since=6, dtypes=FLOATS)
@widened
def selu(x: Array, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323) -> Array:
    return gamma * mx.where(x > 0, x, alpha * mx.expm1(x))


@op("Sigmoid", since=6, dtypes=FLOATS)
@widened
def sigmoid(x: Array) -> Array:
    return precision.sigmoid(x)


def silu(x: Array, alpha: float) -> Array:
    return cpu_primitives.silu(x, alpha) if x.dtype != mx.float64 else x * precision.sigmoid(alpha * x)


@op("HardSigmoid", since=6, dtypes=FLOATS)
@widened
def hard_sigmoid(x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    return cpu_primitives.hard_sigmoid(x, alpha, beta)


@op("HardSwish", since=14, dtypes=FLOATS)
@widened
def hard_swish(x: Array) -> Array:
    return cpu_primitives.hard_swish(x)


@op("Swish", since=24, dtypes=FLOATS)
@widened
def swish(x: Array, *, alpha: float = 1.0) -> Array:
    return silu(x, alpha)


@op("QuickGelu", domain=MICROSOFT, dtypes=FLOATS)
@widened
def quick_gelu(x: Array, *, alpha: float = 1.702) -> Array:
    return silu(x, alpha)


@op("SwiGLU", since=28, dtypes=FLOATS)
@widened
def swiglu(a: Array, b: Array, *, alpha: float = 1.0) -> Array:
    return a * precision.sigmoid(alpha * a) * b


@op("Softplus", since=1, dtypes=FLOATS)
@widened
def softplus(x: Array) -> Array:
    return precision.softplus(x)


@op("Softsign", since=1, dtypes=FLOATS)
@widened
def softsign(x: Array) -> Array:
    return x / (1 + mx.abs(x))


@op("Mish", since=18, dtypes=FLOATS)
@widened
def mish(x: Array) -> Array:
    return x * precision.tanh(precision.softplus(x))


@op("Shrink", since=9, dtypes=NUMERIC)
def shrink(x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    wide = precision.widen(x)
    shrunk = mx.where(wide < -lambd, wide + bias, mx.where(wide > lambd, wide - bias, mx.zeros_like(wide)))
    return shrunk.astype(x.dtype)


@op("Gelu", since=20, dtypes=SINGLES)
@widened
def gelu(x: Array, *, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return x * 0.5 * (1 + precision.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return cpu_primitives.gelu(x)
