"""Logic, comparison and selection against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

NUMBERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
COMPARISONS = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}


@pytest.mark.parametrize("dtype", [*NUMBERS, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", COMPARISONS)
def test_comparison(check: Callable[..., None], draw: Callable[..., Any], op: str, dtype: Any) -> None:
    a, b = draw(dtype, 3, 1, 5), draw(dtype, 4, 5)
    check(op, a, b, expect=COMPARISONS[op](a, b))


def test_64_bit_integers_are_compared_exactly(check: Callable[..., None]) -> None:
    a = np.array([2**53, 2**62, -(2**62)], np.int64)
    check("Equal", a, a + 1, expect=np.array([False, False, False]))
    check("Less", a, a + 1, expect=np.array([True, True, True]))


def test_nan_equals_nothing(check: Callable[..., None]) -> None:
    x = np.array([np.nan, 1.0], np.float32)
    check("Equal", x, x, expect=np.array([False, True]))
    check("GreaterOrEqual", x, x, expect=np.array([False, True]))


@pytest.mark.parametrize(
    ("op", "function"), [("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor), ("Equal", np.equal)]
)
def test_logic(check: Callable[..., None], draw: Callable[..., Any], op: str, function: Callable[..., Any]) -> None:
    a, b = draw(bool, 4, 5), draw(bool, 5)
    check(op, a, b, expect=function(a, b))
    check("Not", a, expect=~a)


@pytest.mark.parametrize("dtype", [*NUMBERS, "bool", ml_dtypes.bfloat16])
def test_where(check: Callable[..., None], draw: Callable[..., Any], dtype: Any) -> None:
    condition, x, y = draw(bool, 2, 1, 3), draw(dtype, 4, 3), draw(dtype)
    check("Where", condition, x, y, expect=np.where(condition, x, y))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_nan_and_infinity(check: Callable[..., None], dtype: Any) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1, 0], dtype)
    check("IsNaN", x, expect=np.isnan(x), opset=20)
    check("IsInf", x, expect=np.isinf(x), opset=20)
    check("IsInf", x, expect=x == -np.inf, opset=20, detect_positive=0)
    check("IsInf", x, expect=x == np.inf, opset=20, detect_negative=0)
    check("IsInf", x, expect=np.zeros(5, bool), opset=20, detect_negative=0, detect_positive=0)
