"""Linear attention, gated delta rules and causal convolution against ORT's CPU kernels and a plain numpy recurrence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

Check = Callable[..., None]
Draw = Callable[..., Any]
Host = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"
RULES = ["linear", "gated", "delta", "gated_delta"]
BATCH, TIME, SIZE, DEPTH = 2, 3, 4, 6


def unit(x: Host) -> Host:
    return (x / np.sqrt((x.astype(np.float64) ** 2).sum(-1, keepdims=True))).astype(x.dtype)


def tensors(draw: Draw, dtype: Any, q_heads: int, heads: int, per_key: bool) -> list[Any]:
    """query, key, value, past_state, decay, beta in the packed layout."""
    key = unit(draw(dtype, BATCH, TIME, heads, SIZE)).reshape(BATCH, TIME, -1)
    decay = -np.abs(draw(dtype, BATCH, TIME, heads * (SIZE if per_key else 1)))
    beta = np.abs(draw(dtype, BATCH, TIME, heads))
    query, value = draw(dtype, BATCH, TIME, q_heads * SIZE), draw(dtype, BATCH, TIME, heads * DEPTH)
    return [query, key, value, draw(dtype, BATCH, heads, SIZE, DEPTH), decay.astype(dtype), beta.astype(dtype)]


def recurrence(given: list[Any], q_heads: int, heads: int, rule: str) -> list[Host]:
    q, k, v, state, decay, beta = (x.astype(np.float64) for x in given)
    q, k, v = (
        q.reshape(BATCH, TIME, q_heads, SIZE),
        k.reshape(BATCH, TIME, heads, SIZE),
        v.reshape(BATCH, TIME, heads, -1),
    )
    gate = np.exp(decay.reshape(BATCH, TIME, heads, -1))
    y = np.zeros((BATCH, TIME, q_heads, DEPTH))
    for t in range(TIME):
        if rule.startswith("gated"):
            state = state * gate[:, t, :, :, None]
        update = v[:, t]
        if rule.endswith("delta"):
            update = beta[:, t, :, None] * (update - np.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * update[:, :, None]
        shared = np.repeat(state, q_heads // heads, 1)
        y[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t], shared) / np.sqrt(SIZE)
    return [y.reshape(BATCH, TIME, -1), state]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("per_key", [True, False])
@pytest.mark.parametrize("q_heads", [2, 4])
def test_linear_attention(check: Check, draw: Draw, rule: str, per_key: bool, q_heads: int) -> None:
    given = tensors(draw, np.float32, q_heads, 2, per_key)
    how = {"update_rule": rule, "q_num_heads": q_heads, "kv_num_heads": 2, "rtol": 1e-4}
    expected = [y.astype(np.float32) for y in recurrence(given, q_heads, 2, rule)]
    given[4] = given[4] if rule in ("gated", "gated_delta") else None
    given[5] = given[5] if rule in ("delta", "gated_delta") else None
    check("LinearAttention", *given, domain=MICROSOFT, outputs=2, **how)
    check("LinearAttention", *given, expect=expected, opset=27, **how)
    given[3] = None
    check("LinearAttention", *given, domain=MICROSOFT, outputs=2, scale=0.4, **how)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_linear_attention_in_16_bits(check: Check, draw: Draw, dtype: Any) -> None:
    given = tensors(draw, dtype, 2, 2, False)
    expected = [y.astype(dtype) for y in recurrence(given, 2, 2, "gated_delta")]
    check("LinearAttention", *given, expect=expected, opset=27, q_num_heads=2, kv_num_heads=2, atol=2e-2)
    given[3] = given[3].astype(np.float32)
    expected[1] = recurrence(given, 2, 2, "gated_delta")[1].astype(np.float32)
    check("LinearAttention", *given, expect=expected, opset=27, q_num_heads=2, kv_num_heads=2, atol=2e-2)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_linear_attention_gate(check: Check, draw: Draw, dtype: Any) -> None:
    a, b, bias, scale = draw(dtype, 2, 3, 4), draw(dtype, 2, 3, 4), draw(np.float32, 4), draw(np.float32, 4)
    check("LinearAttentionGate", a, bias, scale, b, domain=MICROSOFT, outputs=2)
    check("LinearAttentionGate", a, bias, scale, domain=MICROSOFT)


@pytest.mark.parametrize(
    ("rule", "gate"),
    [(rule, gate) for rule in RULES for gate in ("none", "softplus", "sigmoid") if gate == "none" or "gated" in rule],
)
@pytest.mark.parametrize("per_key", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_gated_delta_net(check: Check, draw: Draw, rule: str, gate: str, per_key: bool, packed: bool) -> None:
    heads, shared, tokens = 4, 2, BATCH * TIME
    q, k, v = (draw(np.float32, tokens, n, d) for n, d in ((shared, SIZE), (shared, SIZE), (heads, DEPTH)))
    decay = -np.abs(draw(np.float32, tokens, heads, *([SIZE] if per_key else [])))
    beta, state = draw(np.float32, tokens, heads), draw(np.float32, BATCH, heads, DEPTH, SIZE)
    how = {"update_rule": rule, "gate_activation": gate, "beta_activation": "sigmoid", "qk_l2_norm": 1}
    three = [q, k, v]
    if packed:
        three = [np.concatenate([x.reshape(tokens, -1) for x in three], 1), None, None]
    given = [*three, None, decay if rule in ("gated", "gated_delta") else None]
    given += [beta if rule in ("delta", "gated_delta") else None, state]
    if gate != "none":
        given += [draw(np.float32, heads), draw(np.float32, heads, *([SIZE] if per_key else []))]
    check("GatedDeltaNet", *given, domain=MICROSOFT, outputs=2, rtol=1e-4, atol=1e-5, **how)


def test_gated_delta_net_with_batch_and_length_apart(check: Check, draw: Draw) -> None:
    q, k, v = (draw(np.float32, BATCH, TIME, n, d) for n, d in ((2, SIZE), (2, SIZE), (4, DEPTH)))
    decay, beta = -np.abs(draw(np.float32, BATCH, TIME, 4)), draw(np.float32, BATCH, TIME, 4)
    state = draw(np.float32, BATCH, 4, DEPTH, SIZE)
    check("GatedDeltaNet", q, unit(k), v, None, decay, beta, state, domain=MICROSOFT, outputs=2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("length", [1, 5])
def test_causal_convolution(check: Check, draw: Draw, activation: str, dilation: int, past: bool, length: int) -> None:
    x, w, b = draw(np.float32, 2, 6, length), draw(np.float32, 6, 1, 3), draw(np.float32, 6)
    state = draw(np.float32, 2, 6, 2 * dilation) if past else None
    how = {"activation": activation, "dilation": dilation, "domain": MICROSOFT, "outputs": 2}
    check("CausalConvWithState", x, w, b, state, **how)
    check("CausalConvWithState", x, w, None, state, **how)
    last = None if state is None else state.swapaxes(1, 2)
    check("CausalConvWithState", x.swapaxes(1, 2), w, b, last, channels_last=1, **how)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_causal_convolution_in_16_bits(check: Check, draw: Draw, dtype: Any) -> None:
    x, w = draw(dtype, 2, 6, 5), draw(dtype, 6, 1, 2)
    seen = np.concatenate([np.zeros((2, 6, 1), dtype), x], 2).astype(np.float64)
    y = (seen[:, :, :-1] * w[:, :, 0].astype(np.float64) + seen[:, :, 1:] * w[:, :, 1].astype(np.float64)).astype(dtype)
    check("CausalConvWithState", x, w, expect=[y, x[:, :, -1:]], opset=27)
