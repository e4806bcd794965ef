"""Elementary functions: float32 accuracy for 16-bit types and true double accuracy for float64."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import ml_dtypes
import numpy as np
import pytest

FUNCTIONS: dict[str, tuple[Callable[..., Any], float, float]] = {
    "Exp": (np.exp, -20, 20),
    "Log": (np.log, 1e-3, 50),
    "Sqrt": (np.sqrt, 0, 50),
    "Reciprocal": (np.reciprocal, 0.1, 9),
    "Sin": (np.sin, -40, 40),
    "Cos": (np.cos, -40, 40),
    "Tan": (np.tan, -1.5, 1.5),
    "Asin": (np.arcsin, -1, 1),
    "Acos": (np.arccos, -1, 1),
    "Atan": (np.arctan, -9, 9),
    "Sinh": (np.sinh, -5, 5),
    "Cosh": (np.cosh, -5, 5),
    "Tanh": (np.tanh, -5, 5),
    "Asinh": (np.arcsinh, -9, 9),
    "Acosh": (np.arccosh, 1, 9),
    "Atanh": (np.arctanh, -0.99, 0.99),
    "Ceil": (np.ceil, -9, 9),
    "Floor": (np.floor, -9, 9),
    "Round": (np.round, -9, 9),
    "Erf": (np.vectorize(erf), -4, 4),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -30, 30),
    "Softplus": (lambda x: np.logaddexp(x, 0), -30, 30),
}
SPECIALS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, 2.5, -2.5]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_accuracy(check: Callable[..., None], reasons: Callable[..., Any], op: str, dtype: Any) -> None:
    function, low, high = FUNCTIONS[op]
    x = np.linspace(low, high, 401).astype(dtype).reshape(1, 401)
    if op == "Erf" and dtype == np.float64:
        assert "float64" in reasons(op, x)[0]
        return
    check(op, x, expect=function(x.astype(np.float64)).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_specials(check: Callable[..., None], op: str, dtype: Any) -> None:
    if op == "Erf" and dtype == np.float64:
        pytest.skip("MLX's erf has float32 accuracy: float64 is declined")
    x = np.array(SPECIALS, dtype)
    with np.errstate(all="ignore"):
        check(op, x, expect=FUNCTIONS[op][0](x).astype(dtype))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1, 1, 1, 1, 1)])
def test_shapes(check: Callable[..., None], shape: tuple[int, ...]) -> None:
    check("Exp", np.ones(shape, np.float32), expect=np.full(shape, np.e, np.float32))
