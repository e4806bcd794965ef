"""Functions whose MLX forms are too narrow or too slow: 16-bit floats computed in float32, float64 composed from true
doubles, and on the CPU the vectorised primitives of mlxc_py.cpu_primitives."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import mlxc_py as mx
from mlxc_py import Array, Dtype, cpu_primitives

Handler = TypeVar("Handler", bound=Callable[..., Any])
HALF = (mx.float16, mx.bfloat16)
erf, log, tanh = cpu_primitives.erf, cpu_primitives.log, cpu_primitives.tanh


def is_float(x: Array) -> bool:
    return mx.issubdtype(x.dtype, mx.floating)


def is_unsigned(x: Array) -> bool:
    return mx.issubdtype(x.dtype, mx.unsignedinteger)


def compute_dtype(dtype: Dtype) -> Dtype:
    """The type to accumulate in: float32 for 16-bit floats, the type itself otherwise."""
    return mx.float32 if dtype in HALF else dtype


def lowest(dtype: Dtype) -> float:
    """The identity of max."""
    if mx.issubdtype(dtype, mx.floating):
        return -math.inf
    return 0 if dtype == mx.bool_ else mx.iinfo(dtype).min


def highest(dtype: Dtype) -> float:
    """The identity of min."""
    if mx.issubdtype(dtype, mx.floating):
        return math.inf
    return 1 if dtype == mx.bool_ else mx.iinfo(dtype).max


def widen(x: Array) -> Array:
    return cpu_primitives.convert(x, mx.float32) if x.dtype in HALF else x


def accumulated(x: Array) -> Array:
    """A factor of a product: MLX's CPU products of 16-bit floats are 20 times slower than BLAS's of float32."""
    return widen(x) if on_cpu() else x


def on_cpu() -> bool:
    """Whether what is built now on this thread runs on the CPU."""
    return bool(mx.current_stream().device.type == mx.cpu)


def on_cuda() -> bool:
    """Whether it runs on CUDA."""
    return not on_cpu() and mx.cuda.is_available()


def widened(handler: Handler) -> Handler:
    """Run a handler with its 16-bit floats in float32; results in float32 go back to the first input's type."""

    @wraps(handler)
    def compute(first: Array, *rest: Any, **attributes: Any) -> Any:
        if first.dtype not in HALF:
            return handler(first, *rest, **attributes)
        wide = [widen(x) if isinstance(x, Array) else x for x in (first, *rest)]
        result = handler(*wide, **attributes)
        if isinstance(result, tuple):
            return tuple(narrow(y, first.dtype) for y in result)
        return narrow(result, first.dtype)

    return compute  # type: ignore[return-value]


def narrow(y: Array, dtype: Dtype) -> Array:
    return cpu_primitives.convert(y, dtype) if y.dtype == mx.float32 else y


def exp(x: Array) -> Array:
    if x.dtype != mx.float64:
        return cpu_primitives.exp(x)
    # MLX's float64 exp has float32 accuracy, its expm1 is a true double
    grown = mx.expm1(mx.abs(x)) + 1
    return mx.where(x < 0, 1 / grown, grown)


def sigmoid(x: Array) -> Array:
    return cpu_primitives.sigmoid(x) if x.dtype != mx.float64 else 1 / (1 + exp(-x))


def sin(x: Array) -> Array:
    if x.dtype != mx.float64:
        return cpu_primitives.sin(x)
    half = mx.tan(x / 2)
    return 2 * half / (1 + half * half)


def cos(x: Array) -> Array:
    if x.dtype != mx.float64:
        return cpu_primitives.cos(x)
    half = mx.square(mx.tan(x / 2))
    return (1 - half) / (1 + half)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)) without overflow."""
    if cpu_primitives.serves(x):
        return cpu_primitives.softplus(x)
    return mx.maximum(x, 0) + mx.log1p(exp(-mx.abs(x)))


def softmax(x: Array, axis: int) -> Array:
    if x.dtype != mx.float64:
        return cpu_primitives.softmax(x, axis)
    shifted = exp(x - mx.max(x, axis, keepdims=True))
    return shifted / mx.sum(shifted, axis, keepdims=True)
