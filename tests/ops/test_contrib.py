"""Fused operators of com.microsoft against ONNX Runtime's CPU kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Check = Callable[..., None]
Draw = Callable[..., Any]
MICROSOFT = "com.microsoft"


def test_gelus(check: Check, draw: Draw) -> None:
    x, bias = draw(np.float32, 3, 8), draw(np.float32, 8)
    check("Gelu", x, domain=MICROSOFT, rtol=1e-4)
    check("BiasGelu", x, bias, domain=MICROSOFT, rtol=1e-4)
    check("FastGelu", x, bias, domain=MICROSOFT, rtol=1e-4)
    check("FastGelu", x, domain=MICROSOFT, rtol=1e-4)
    check("QuickGelu", x, domain=MICROSOFT, rtol=1e-4, alpha=1.5)


@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul(check: Check, draw: Draw, transposed: tuple[int, int]) -> None:
    a = draw(np.float32, 2, *((4, 3) if transposed[0] else (3, 4)))
    b = draw(np.float32, 2, *((5, 4) if transposed[1] else (4, 5)))
    check("FusedMatMul", a, b, domain=MICROSOFT, transA=transposed[0], transB=transposed[1], alpha=0.5)


def test_fused_matmul_with_the_batch_between(check: Check, draw: Draw) -> None:
    a, b = draw(np.float32, 3, 2, 4), draw(np.float32, 2, 4, 5)
    check("FusedMatMul", a, b, domain=MICROSOFT, transBatchA=1)


@pytest.mark.parametrize("activation", ["Relu", "Tanh", "Sigmoid"])
def test_fused_gemm_and_conv(check: Check, draw: Draw, activation: str) -> None:
    a, b, c = draw(np.float32, 3, 4), draw(np.float32, 4, 5), draw(np.float32, 5)
    check("FusedGemm", a, b, c, domain=MICROSOFT, activation=activation, alpha=0.5)
    x, w, bias = draw(np.float32, 1, 2, 6, 6), draw(np.float32, 3, 2, 3, 3), draw(np.float32, 3)
    check("FusedConv", x, w, bias, domain=MICROSOFT, activation=activation, pads=[1, 1, 1, 1], rtol=1e-4)


@pytest.mark.parametrize(
    ("activation", "parameters"), [("LeakyRelu", [0.3]), ("Clip", [0.0, 0.5]), ("HardSigmoid", [0.3, 0.4])]
)
def test_activation_parameters(check: Check, draw: Draw, activation: str, parameters: list[float]) -> None:
    x, w = draw(np.float32, 1, 2, 6, 6), draw(np.float32, 3, 2, 3, 3)
    how: dict[str, Any] = {"activation": activation, "activation_params": parameters}
    check("FusedConv", x, w, domain=MICROSOFT, rtol=1e-4, **how)


@pytest.mark.parametrize("bias", [True, False])
def test_skip_normalisation(check: Check, draw: Draw, bias: bool) -> None:
    x, skip = draw(np.float32, 2, 3, 8), draw(np.float32, 2, 3, 8)
    gamma, beta, extra = (draw(np.float32, 8) for _ in range(3))
    given = extra if bias else None
    check("SkipLayerNormalization", x, skip, gamma, beta, given, domain=MICROSOFT, rtol=1e-4, epsilon=1e-5)
    check("SkipSimplifiedLayerNormalization", x, skip, gamma, given, domain=MICROSOFT, rtol=1e-4, epsilon=1e-5)


def test_skip_normalisation_returns_the_sum(check: Check, draw: Draw) -> None:
    x, skip, gamma = draw(np.float32, 1, 3, 8), draw(np.float32, 1, 3, 8), np.ones(8, np.float32)
    total = (x + skip).astype(np.float64)
    centred = total - total.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt(total.var(-1, keepdims=True) + 1e-12)
    values = [centred * inverse, total.mean(-1, keepdims=True), inverse, total]
    expected = [value.astype(np.float32) for value in values]
    check("SkipLayerNormalization", x, skip, gamma, domain=MICROSOFT, expect=expected, rtol=1e-4)
