"""Arithmetic: every dtype, ONNX's integer rules, and divisors, shifts and exponents that could end a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
Check = Callable[..., None]
Draw = Callable[..., Any]


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
@pytest.mark.parametrize(("op", "function"), [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply)])
def test_binary(check: Check, draw: Draw, op: str, function: Callable[..., Any], dtype: Any) -> None:
    a, b = draw(dtype, 2, 1, 3, high=100), draw(dtype, 4, 1, high=100)
    check(op, a, b, expect=function(a, b))


@pytest.mark.parametrize(("a", "b"), [((), ()), ((0, 3), (1, 3)), ((2, 3), ()), ((1,), (2, 0, 5))])
def test_broadcasting_of_scalars_and_nothing(check: Check, draw: Draw, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    left, right = draw(np.float32, *a), draw(np.float32, *b)
    check("Mul", left, right, expect=np.asarray(left * right))


@pytest.mark.parametrize("dtype", INTS)
def test_integer_division_truncates(check: Check, dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = np.array(
        [
            limits.min,
            limits.min + 1,
            1,
            2,
            3,
            7,
            100,
            limits.max - 1,
            limits.max,
            *([] if not limits.min else [-1, -2, -7]),
        ]
    )
    a, b = (grid.astype(dtype) for grid in np.meshgrid(values, values))
    a, b = a[b != 0], b[b != 0]
    expected = np.array([truncated(int(x), int(y)) for x, y in zip(a, b, strict=True)]).astype(dtype)
    check("Div", a, b, expect=expected)
    check("Mod", a, b, expect=np.mod(a, b))
    check("Mod", a, b, expect=np.fmod(a, b), fmod=1)


def truncated(x: int, y: int) -> int:
    quotient = abs(x) // abs(y)
    wrapped = quotient if (x < 0) == (y < 0) else -quotient
    return wrapped if wrapped < 2**63 or x > 0 else -(2**63)


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_division_by_zero_survives(check: Check, draw: Draw, op: str, dtype: str) -> None:
    a = draw(dtype, 5)
    # ONNX leaves the value open; the result is that of dividing by 1
    check(op, a, np.zeros(5, dtype), expect=a if op == "Div" else np.zeros_like(a))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_float_mod(check: Check, dtype: Any) -> None:
    a = np.array([-4.3, 7.2, 5.0, 4.3, -7.2, 8.0, 0.5, -0.0], dtype)
    b = np.array([2.1, -3.4, 8.0, -2.1, 3.4, 5.0, np.inf, 3.0], dtype)
    check("Mod", a, b, expect=np.fmod(a, b), fmod=1)


@pytest.mark.parametrize("base", ["float32", "float64", "float16", "int32", "int64"])
@pytest.mark.parametrize("exponent", ["float32", "int32", "int64", "uint8"])
def test_power(check: Check, base: str, exponent: str) -> None:
    x = np.array([1, 2, 3, 4, 5, 6], base)
    y = np.array([0, 1, 2, 3, 4, 2], exponent)
    expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(base)
    check("Pow", x, y, expect=expected, opset=15)


def test_integer_power_of_a_negative_exponent(check: Check) -> None:
    x = np.array([1, -1, -1, 2, -3, 5], np.int64)
    y = np.array([-4, -3, -4, -1, -2, -7], np.int64)
    check("Pow", x, y, expect=np.array([1, -1, 1, 0, 0, 0], np.int64))


def test_integer_power_is_exact(check: Check) -> None:
    x = np.array([3, 7, -5], np.int64)
    check("Pow", x, np.array([39, 22, 27], np.int64), expect=np.array([3**39, 7**22, (-5) ** 27], np.int64))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(check: Check, dtype: str, direction: str) -> None:
    bits = np.iinfo(dtype).bits
    x = np.full(bits + 3, np.iinfo(dtype).max // 3, dtype)
    y = np.arange(bits + 3).astype(dtype)
    shifted = [int(v) << int(s) if direction == "LEFT" else int(v) >> int(s) for v, s in zip(x, y, strict=True)]
    check("BitShift", x, y, expect=np.array([v % 2**bits for v in shifted], dtype), direction=direction)


@pytest.mark.parametrize("dtype", INTS)
def test_bitwise(check: Check, draw: Draw, dtype: str) -> None:
    a, b = draw(dtype, 3, 4, high=100), draw(dtype, 4, high=100)
    for op, function in {
        "BitwiseAnd": np.bitwise_and,
        "BitwiseOr": np.bitwise_or,
        "BitwiseXor": np.bitwise_xor,
    }.items():
        check(op, a, b, expect=function(a, b))
    check("BitwiseNot", a, expect=np.invert(a))


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
@pytest.mark.parametrize(("op", "function"), [("Max", np.maximum), ("Min", np.minimum)])
def test_extremes_of_several(check: Check, draw: Draw, op: str, function: Callable[..., Any], dtype: Any) -> None:
    a, b, c = draw(dtype, 3, 1), draw(dtype, 4), draw(dtype)
    check(op, a, b, c, expect=function(function(a, b), c))
    check(op, a, expect=a)


def test_extremes_propagate_nan(check: Check) -> None:
    a, b = np.array([np.nan, 1, -np.inf], np.float32), np.array([0, np.nan, 3], np.float32)
    check("Max", a, b, expect=np.maximum(a, b))
    check("Min", a, b, expect=np.minimum(a, b))


@pytest.mark.parametrize("dtype", FLOATS)
def test_sum_and_mean_of_several(check: Check, draw: Draw, dtype: Any) -> None:
    inputs = [draw(dtype, 2, 3), draw(dtype, 3), draw(dtype, 2, 1)]
    wide = sum(x.astype(np.float64) for x in inputs)
    check("Sum", *inputs, expect=wide.astype(dtype))
    check("Mean", *inputs, expect=(wide / 3).astype(dtype))


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
@pytest.mark.parametrize("bounds", [(2, 5), (None, 3), (1, None), (None, None), (5, 2)])
def test_clip(check: Check, draw: Draw, dtype: Any, bounds: tuple[int | None, int | None]) -> None:
    x = draw(dtype, 3, 5)
    low, high = (None if bound is None else np.array(bound, dtype) for bound in bounds)
    expected = x if low is None else np.maximum(x, low)
    expected = expected if high is None else np.minimum(expected, high)
    check("Clip", x, low, high, expect=expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_clip_by_attributes(check: Check, draw: Draw, dtype: Any) -> None:
    x = draw(dtype, 3, 5)
    check("Clip", x, expect=np.clip(x, dtype(-0.5), dtype(0.25)), opset=6, min=-0.5, max=0.25)
    check("Clip", x, expect=x, opset=6)


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
def test_abs_and_sign(check: Check, draw: Draw, dtype: Any) -> None:
    x = draw(dtype, 4, 5)
    check("Abs", x, expect=np.abs(x))
    check("Sign", x, expect=np.sign(x))


@pytest.mark.parametrize("dtype", [*INTS[:4], *FLOATS])
def test_negative(check: Check, draw: Draw, dtype: Any) -> None:
    x = draw(dtype, 4, 5)
    check("Neg", x, expect=-x)


def test_sign_of_specials(check: Check) -> None:
    x = np.array([np.nan, -np.inf, np.inf, -0.0, 0.0, 2], np.float32)
    check("Sign", x, expect=np.sign(x))
