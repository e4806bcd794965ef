"""Mixtures of experts against ORT's CPU kernels and a plain numpy model."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np
import pytest

import mlxc_py as mx
from ort_ep.ops import nbits

Check = Callable[..., None]
Draw = Callable[..., Any]
Host = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"
EXPERTS, HIDDEN, INNER = 4, 64, 32


def sigmoid(x: Host) -> Host:
    return 1 / (1 + np.exp(-x))


ACTIVATIONS: dict[str, Callable[[Host], Host]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2))),
    "silu": lambda x: x * sigmoid(x),
    "identity": lambda x: x,
}


def experts(
    x: Host, logits: Host, k: int, normalized: int, layers: list[tuple[Host, Host]], act: Callable[..., Host]
) -> Host:
    chances = np.exp(logits.astype(np.float64))
    chances /= chances.sum(-1, keepdims=True)
    y = np.zeros(x.shape)
    for row, (token, chance) in enumerate(zip(x, chances, strict=True)):
        best = np.argsort(-chance)[:k]
        total = chance[best].sum() if normalized else 1
        for expert in best:
            second, second_bias = layers[1]
            inner = act(*(w[expert] @ token + b[expert] for w, b in (layers[0], *layers[2:])))
            y[row] += chance[expert] / total * (second[expert] @ inner + second_bias[expert])
    return y


def dense(draw: Draw, fused: int, inner: int = INNER) -> list[Any]:
    first, second = draw(np.float32, EXPERTS, fused * inner, HIDDEN), draw(np.float32, EXPERTS, HIDDEN, inner)
    biases = draw(np.float32, EXPERTS, fused * inner), draw(np.float32, EXPERTS, HIDDEN)
    return [(first / 8).astype(np.float32), biases[0], (second / 8).astype(np.float32), biases[1]]


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("normalized", [0, 1])
def test_plain(check: Check, draw: Draw, activation: str, k: int, normalized: int) -> None:
    x, logits = draw(np.float32, 2, 3, HIDDEN), draw(np.float32, 6, EXPERTS)
    how = {"activation_type": activation, "k": k, "normalize_routing_weights": normalized, "domain": MICROSOFT}
    given = dense(draw, 1)
    check("MoE", x, logits, *given, rtol=1e-3, atol=1e-3 if activation == "gelu" else 1e-4, **how)
    check("MoE", x.reshape(6, HIDDEN), logits, given[0], None, given[2], rtol=1e-3, atol=1e-3, **how)


@pytest.mark.parametrize("limit", [None, 0.5])
def test_interleaved_gates(check: Check, draw: Draw, limit: float | None) -> None:
    x, logits = draw(np.float32, 5, HIDDEN), draw(np.float32, 5, EXPERTS)
    how: dict[str, Any] = {"activation_type": "swiglu", "swiglu_fusion": 1, "k": 2, "domain": MICROSOFT}
    how |= {"activation_alpha": 1.7, "activation_beta": 1.0}
    how |= {} if limit is None else {"swiglu_limit": limit}
    check("MoE", x, logits, *dense(draw, 2), rtol=1e-3, atol=1e-4, **how)


@pytest.mark.parametrize("form", ["apart", "concatenated"])
def test_other_gates(check: Check, draw: Draw, form: str) -> None:
    x, logits = draw(np.float32, 5, HIDDEN), draw(np.float32, 5, EXPERTS)
    one, one_bias, two, two_bias, three, three_bias = (*dense(draw, 1), *dense(draw, 1)[:2])

    def act(gate: Host, linear: Host) -> Host:
        return gate * sigmoid(gate) * linear

    layers = [(one, one_bias), (two, two_bias), (three, three_bias)]
    expected = experts(x, logits, 2, 1, layers, act).astype(np.float32)
    how = {"activation_type": "swiglu", "k": 2, "normalize_routing_weights": 1, "domain": MICROSOFT}
    if form == "apart":
        given = [one, one_bias, two, two_bias, three, three_bias]
        check("MoE", x, logits, *given, expect=expected, rtol=1e-4, swiglu_fusion=0, **how)
    else:
        given = [np.concatenate([one, three], 1), np.concatenate([one_bias, three_bias], 1), two, two_bias]
        check("MoE", x, logits, *given, expect=expected, rtol=1e-4, swiglu_fusion=2, **how)


def packed(levels: Host, bits: int) -> Host:
    digits = (levels[..., None] >> np.arange(bits)) & 1
    return np.packbits(digits.reshape(*levels.shape[:-1], -1).astype(np.uint8), axis=-1, bitorder="little")


def matrix(draw: Draw, rows: int, length: int, bits: int, block: int, zero: bool) -> tuple[Host, Host, Any, Host]:
    """Packed weights, scales, packed zero points, and what they mean."""
    levels = draw(np.uint8, EXPERTS, rows, length, high=2**bits)
    blocks = (EXPERTS, rows, length // block) if block else (EXPERTS, rows)
    scales = ((0.3 * np.abs(draw(np.float32, *blocks)) + 0.02) / 2**bits).astype(np.float32)
    points = draw(np.uint8, *blocks, high=2**bits) if zero else np.full(blocks, 2 ** (bits - 1), np.uint8)
    wide = (x.reshape(EXPERTS, rows, -1).repeat(block or length, 2).astype(np.float64) for x in (points, scales))
    shift, gain = wide
    return packed(levels, bits), scales, packed(points, bits) if zero else None, (levels - shift) * gain


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [0, 16, 32])
@pytest.mark.parametrize("zero", [True, False])
def test_quantized(check: Check, draw: Draw, bits: int, block: int, zero: bool) -> None:
    x, logits = draw(np.float32, 5, HIDDEN), draw(np.float32, 5, EXPERTS)
    one, two = matrix(draw, INNER, HIDDEN, bits, block, zero), matrix(draw, HIDDEN, INNER, bits, block, zero)
    biases = draw(np.float32, EXPERTS, INNER), draw(np.float32, EXPERTS, HIDDEN)
    layers = [(one[3], biases[0]), (two[3], biases[1])]
    given: list[Any] = [one[0], one[1], biases[0], two[0], two[1], biases[1], None, None, None, one[2], two[2]]
    how = {"expert_weight_bits": bits, "k": 2, "normalize_routing_weights": 1, "domain": MICROSOFT}
    how |= {"activation_type": "silu"} | ({"block_size": block} if block else {})
    expected = experts(x, logits, 2, 1, layers, ACTIVATIONS["silu"]).astype(np.float32)
    check("QMoE", x, logits, *given, expect=expected, rtol=1e-3, atol=1e-3, **how)


def test_the_form_that_cuda_gets(check: Check, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nbits, "on_cuda", lambda: True)
    test_quantized(check, draw, 4, 32, True)
    monkeypatch.setattr(mx, "gather_qmm", None)  # not for rows of one group
    test_quantized(check, draw, 4, 0, True)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_against_the_cpu_kernel(check: Check, draw: Draw, bits: int) -> None:
    x, logits = draw(np.float32, 5, HIDDEN), draw(np.float32, 5, EXPERTS)
    one, two = matrix(draw, 2 * INNER, HIDDEN, bits, 32, False), matrix(draw, HIDDEN, INNER, bits, 32, False)
    given: list[Any] = [one[0], one[1], None, two[0], two[1]]
    how = {"expert_weight_bits": bits, "k": 2, "normalize_routing_weights": 1, "domain": MICROSOFT, "block_size": 32}
    how |= {"activation_type": "swiglu", "swiglu_fusion": 1, "weights_prepacked": 0, "activation_alpha": 1.7}
    # the kernel's 8-bit experts round their activations to 8 bits
    check("QMoE", x, logits, *given, constants=[2, 3, 5, 6], rtol=2e-2, atol=2e-2 if bits == 4 else 0.3, **how)


def test_mixing_weights_apart_from_the_router(check: Check, draw: Draw) -> None:
    x, logits, mixing = draw(np.float32, 5, HIDDEN), draw(np.float32, 5, EXPERTS), draw(np.float32, 5, EXPERTS)
    one, two = matrix(draw, INNER, HIDDEN, 4, 32, False), matrix(draw, HIDDEN, INNER, 4, 32, False)
    y = np.zeros((5, HIDDEN))
    for row in range(5):
        for expert in np.argsort(-logits[row])[:2]:
            y[row] += mixing[row, expert] * (two[3][expert] @ np.maximum(one[3][expert] @ x[row], 0))
    given = [one[0], one[1], None, two[0], two[1], *[None] * 7, mixing]
    how = {"expert_weight_bits": 4, "k": 2, "block_size": 32, "domain": MICROSOFT}
    check("QMoE", x, logits, *given, expect=y.astype(np.float32), rtol=1e-3, atol=1e-3, **how)
