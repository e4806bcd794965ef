"""Activations against their formulas, in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def erf(x: Any) -> Any:
    return np.vectorize(math.erf)(x)


CASES: list[tuple[str, dict[str, float], Callable[[Any], Any]]] = [
    ("Relu", {}, lambda x: np.maximum(x, 0)),
    ("LeakyRelu", {"alpha": 0.25}, lambda x: np.where(x < 0, 0.25 * x, x)),
    ("ThresholdedRelu", {"alpha": 0.5}, lambda x: np.where(x > 0.5, x, 0)),
    ("Elu", {"alpha": 2.0}, lambda x: np.where(x < 0, 2 * np.expm1(x), x)),
    ("Celu", {"alpha": 2.0}, lambda x: np.maximum(x, 0) + np.minimum(2 * np.expm1(x / 2), 0)),
    ("Selu", {"alpha": 1.5, "gamma": 2.0}, lambda x: 2 * np.where(x > 0, x, 1.5 * np.expm1(x))),
    ("HardSigmoid", {"alpha": 0.25, "beta": 0.5}, lambda x: np.clip(0.25 * x + 0.5, 0, 1)),
    ("HardSwish", {}, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    ("Softsign", {}, lambda x: x / (1 + np.abs(x))),
    ("Mish", {}, lambda x: x * np.tanh(np.logaddexp(x, 0))),
    ("Shrink", {"lambd": 0.5, "bias": 0.25}, lambda x: np.where(x < -0.5, x + 0.25, np.where(x > 0.5, x - 0.25, 0))),
    ("Swish", {"alpha": 2.0}, lambda x: x * sigmoid(2 * x)),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("op", "attributes", "function"), CASES, ids=[case[0] for case in CASES])
def test_formula(
    check: Callable[..., None],
    draw: Callable[..., Any],
    op: str,
    attributes: dict[str, float],
    function: Callable[[Any], Any],
    dtype: Any,
) -> None:
    x = (3 * draw(dtype, 2, 3, 40)).astype(dtype)
    check(op, x, expect=function(x.astype(np.float64)).astype(dtype), opset=24, **attributes)


@pytest.mark.parametrize("dtype", FLOATS[:3])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(check: Callable[..., None], draw: Callable[..., Any], dtype: Any, approximate: str) -> None:
    x = (2 * draw(dtype, 300)).astype(dtype)
    wide = x.astype(np.float64)
    inner = (
        erf(wide / math.sqrt(2))
        if approximate == "none"
        else np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
    )
    check("Gelu", x, expect=(0.5 * wide * (1 + inner)).astype(dtype), approximate=approximate)


@pytest.mark.parametrize("shape", [(3, 4), (4,), (1,), (2, 1, 1), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.int64, np.uint32])
def test_prelu(check: Callable[..., None], draw: Callable[..., Any], dtype: Any, shape: tuple[int, ...]) -> None:
    x, slope = draw(dtype, 2, 3, 4), draw(dtype, *shape)
    check("PRelu", x, slope, expect=np.where(x < 0, slope * x, x).astype(dtype), opset=16)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_integer_relu(check: Callable[..., None], draw: Callable[..., Any], dtype: Any) -> None:
    x = draw(dtype, 9)
    check("Relu", x, expect=np.maximum(x, 0))


@pytest.mark.parametrize("op", ["Relu", "Elu", "HardSigmoid", "LeakyRelu", "Softplus", "Mish", "Sigmoid"])
def test_nan_stays_nan(check: Callable[..., None], op: str) -> None:
    x = np.array([np.nan, 1.0], np.float32)
    check(op, x, expect="reference", opset=18)


@pytest.mark.parametrize("op", [case[0] for case in CASES])
def test_the_spec_defaults(check: Callable[..., None], draw: Callable[..., Any], op: str) -> None:
    check(op, draw(np.float32, 3, 7), expect="reference", opset=24)
