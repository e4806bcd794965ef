"""Arithmetic on numbers and bits: integers by ONNX's rules; no divisor, shift or exponent can end the process."""

from __future__ import annotations

from functools import reduce

import numpy as np

import mlxc_py as mx
from mlxc_py import Array, cpu_primitives
from ort_ep.ops.precision import is_float, is_unsigned, widen, widened
from ort_ep.registry import FLOATS, INTS, NUMERIC, SIGNED, op
from ort_ep.streams import cpu_stream


@op("Add", since=7, dtypes=NUMERIC, fold=np.add)
def add(a: Array, b: Array) -> Array:
    return cpu_primitives.add(a, b)


@op("Sub", since=7, dtypes=NUMERIC, fold=np.subtract)
def subtract(a: Array, b: Array) -> Array:
    return cpu_primitives.subtract(a, b)


@op("Mul", since=7, dtypes=NUMERIC, fold=np.multiply)
def multiply(a: Array, b: Array) -> Array:
    return cpu_primitives.multiply(a, b)


def fold_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    with np.errstate(divide="ignore"):
        return (a - np.fmod(a, b)) // b


@op("Div", since=7, dtypes=NUMERIC, fold=fold_divide)
def divide(a: Array, b: Array) -> Array:
    if is_float(a):
        return cpu_primitives.divide(a, b)
    if is_unsigned(a):
        return mx.floor_divide(a, safe_divisor(b))
    # exact multiples only, so that it doesn't matter which way MLX rounds; -1 apart, as the lowest integer / -1 traps
    quotient = mx.floor_divide(a - truncated_remainder(a, b), safe_divisor(b))
    return mx.where(b == -1, -a, quotient)


def fold_mod(a: np.ndarray, b: np.ndarray, *, fmod: int = 0) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.fmod(a, b) if fmod else np.mod(a, b)


@op("Mod", since=10, dtypes=NUMERIC, fold=fold_mod)
def mod(a: Array, b: Array, *, fmod: int = 0) -> Array:
    if is_float(a):
        magnitude = mx.remainder(mx.abs(widen(a)), mx.abs(widen(b))).astype(a.dtype)
        truncated = mx.where(a < 0, -magnitude, magnitude)
        differ = mx.logical_and(truncated != 0, (a < 0) != (b < 0))
        return truncated if fmod else mx.where(differ, truncated + b, truncated)
    return truncated_remainder(a, b) if fmod else mx.remainder(a, safe_divisor(b))


def safe_divisor(b: Array) -> Array:
    """Division by 0 or of the lowest integer by -1 raises SIGFPE: divide by 1 instead."""
    trap = b == 0 if is_unsigned(b) else mx.logical_or(b == 0, b == -1)
    return mx.where(trap, mx.ones_like(b), b)


def truncated_remainder(a: Array, b: Array) -> Array:
    """The remainder with the sign of the dividend, as C's %."""
    divisor = safe_divisor(b)
    floored = mx.remainder(a, divisor)
    if is_unsigned(a):
        return floored
    return mx.where(mx.logical_and(floored != 0, (a < 0) != (divisor < 0)), floored - divisor, floored)


def fold_power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    if base.dtype.kind in "iu" and (exponent.dtype.kind not in "iu" or (exponent < 0).any()):
        with np.errstate(all="ignore"):
            return np.power(base.astype(np.float64), exponent.astype(np.float64)).astype(base.dtype)
    return np.power(base, exponent.astype(base.dtype))


@op("Pow", since=7, dtypes=NUMERIC, fold=fold_power)
def power(base: Array, exponent: Array) -> Array:
    if is_float(base):
        return mx.power(widen(base), exponent.astype(widen(base).dtype)).astype(base.dtype)
    if is_float(exponent):
        with mx.stream(cpu_stream()):  # GPUs have no float64, and float32 does not hold every integer
            return mx.power(base.astype(mx.float64), exponent.astype(mx.float64)).astype(base.dtype)
    exponent = exponent.astype(mx.int64)
    raised = mx.power(base, mx.maximum(exponent, 0).astype(base.dtype))
    # 1 and -1 alone have an integer inverse
    inverse = mx.where(exponent % 2 == 0, base * base, base)
    inverse = mx.where(mx.abs(base) == 1, inverse, mx.zeros_like(base))
    return mx.where(exponent < 0, inverse, raised)


@op("Neg", since=6, dtypes=SIGNED | FLOATS, fold=np.negative)
def negative(x: Array) -> Array:
    return mx.negative(x)


@op("Abs", since=6, dtypes=NUMERIC, fold=np.abs)
def absolute(x: Array) -> Array:
    return mx.abs(x)


@op("Sign", since=9, dtypes=NUMERIC, fold=np.sign)
def sign(x: Array) -> Array:
    return mx.where(mx.isnan(x), x, mx.sign(x)) if is_float(x) else mx.sign(x)


@op("Max", since=6, dtypes=NUMERIC, fold=lambda *inputs: reduce(np.maximum, inputs))
def maximum(*inputs: Array) -> Array:
    return reduce(cpu_primitives.maximum, inputs)


@op("Min", since=6, dtypes=NUMERIC, fold=lambda *inputs: reduce(np.minimum, inputs))
def minimum(*inputs: Array) -> Array:
    return reduce(cpu_primitives.minimum, inputs)


@op("Sum", since=6, dtypes=FLOATS, fold=lambda *inputs: reduce(np.add, inputs))
@widened
def total(*inputs: Array) -> Array:
    return reduce(cpu_primitives.add, inputs)


@op("Mean", since=6, dtypes=FLOATS)
@widened
def mean(*inputs: Array) -> Array:
    return reduce(cpu_primitives.add, inputs) / len(inputs)


@op("Clip", since=6, dtypes=FLOATS)
def clip_6(x: Array, *, min: float = -3.4028234663852886e38, max: float = 3.4028234663852886e38) -> Array:
    return cpu_primitives.clip(x, min, max)


@op("Clip", since=11, dtypes=NUMERIC, fold=lambda x, min=None, max=None: np.clip(x, min, max))
def clip(x: Array, min: Array | None = None, max: Array | None = None) -> Array:
    if min is not None:
        x = cpu_primitives.maximum(x, min)
    return x if max is None else cpu_primitives.minimum(x, max)


@op("BitShift", since=11, dtypes=INTS)
def bit_shift(x: Array, y: Array, *, direction: str) -> Array:
    last = mx.array(8 * x.dtype.size - 1, x.dtype)
    # C++ leaves such a shift undefined: it shifts every bit out
    beyond = mx.logical_or(y < 0, y > last)
    distance = mx.where(beyond, mx.zeros_like(y), y)
    if direction == "LEFT":
        return mx.where(beyond, mx.zeros_like(x), mx.left_shift(x, distance))
    emptied = mx.zeros_like(x) if is_unsigned(x) else mx.right_shift(x, last)
    return mx.where(beyond, emptied, mx.right_shift(x, distance))


@op("BitwiseAnd", since=18, dtypes=INTS)
def bitwise_and(a: Array, b: Array) -> Array:
    return mx.bitwise_and(a, b)


@op("BitwiseOr", since=18, dtypes=INTS)
def bitwise_or(a: Array, b: Array) -> Array:
    return mx.bitwise_or(a, b)


@op("BitwiseXor", since=18, dtypes=INTS)
def bitwise_xor(a: Array, b: Array) -> Array:
    return mx.bitwise_xor(a, b)


@op("BitwiseNot", since=18, dtypes=INTS)
def bitwise_not(x: Array) -> Array:
    return mx.bitwise_invert(x)
