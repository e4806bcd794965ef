"""Rare operators of com.microsoft: hashes, residual streams, packed sequences, pages, and a few for text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

Check = Callable[..., None]
Draw = Callable[..., Any]
Host = np.ndarray[Any, Any]
SINGLES = [np.float16, ml_dtypes.bfloat16, np.float32]
MICROSOFT = "com.microsoft"
BRIEF = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def compare(check: Check, model_of: Callable[..., Any], cpu_session: Callable[..., Any]) -> Check:
    """As `check`; bfloat16, which numpy feeds don't carry to ONNX Runtime, against the CPU's float32."""

    def compare(op: str, *inputs: Host | None, outputs: int = 1, **how: Any) -> None:
        tolerances = {name: how.pop(name) for name in ("rtol", "atol", "expect", "constants") if name in how}
        if not any(x is not None and x.dtype == BRIEF for x in inputs):
            return check(op, *inputs, domain=MICROSOFT, outputs=outputs, **tolerances, **how)
        wide = [x.astype(np.float32) if x is not None and x.dtype == BRIEF else x for x in inputs]
        model = model_of(op, wide, 21, MICROSOFT, (), outputs, **how)
        results = cpu_session(model).run(None, {f"x{index}": x for index, x in enumerate(wide) if x is not None})
        expect = [y.astype(BRIEF) if y.dtype == np.float32 else y for y in results]
        return check(op, *inputs, domain=MICROSOFT, expect=expect, **tolerances, **how)

    return compare


# --- hashes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64])
@pytest.mark.parametrize("positive", [0, 1])
def test_murmur_hash_3(compare: Check, draw: Draw, dtype: Any, positive: int) -> None:
    x = draw(dtype, 2, 3, low=0, high=100)
    compare("MurmurHash3", x, positive=positive, seed=7)
    compare("MurmurHash3", np.array(x[0, 0]), positive=positive)
    compare("MurmurHash3", x[:0], positive=positive, expect=np.zeros((0, 3), np.uint32 if positive else np.int32))


NGRAM: dict[str, Any] = {"max_ngram_size": 3, "n_head_per_ngram": 2, "pad_id": 9}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("reset", [0, 1])
@pytest.mark.parametrize("given", ["nothing", "past", "end", "all"])
def test_ngram_hash_mapping(compare: Check, draw: Draw, dtype: Any, reset: int, given: str) -> None:
    ids = draw(dtype, 2, 6, low=0, high=5)
    numbers = [np.array([101, 1_000_003, 999_999_937], dtype), np.array([17, 19, 23, 29], dtype)]
    past = draw(dtype, 2, 2, low=0, high=5) if given in ("past", "all") else None
    offsets = np.array([0, 17, 36, 59], dtype) if given == "all" else None
    end = np.array(3, dtype) if given in ("end", "all") else None
    segments = np.array([[0, 0, 1, 1, 1, 2], [4, 4, 4, 4, 5, 5]], np.int32) if given == "all" else None
    inputs = [ids, *numbers, past, offsets, end, segments]
    compare("NGramHashMapping", *inputs, outputs=2, reset_on_eos=reset, **NGRAM)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("reset", [0, 1])
@pytest.mark.parametrize("given", ["nothing", "end", "all"])
def test_packed_ngram_hash_mapping(compare: Check, draw: Draw, dtype: Any, reset: int, given: str) -> None:
    ids = draw(dtype, 7, low=0, high=5)
    numbers = [np.array([101, 1_000_003, 999_999_937], dtype), np.array([17, 19, 23, 29], dtype)]
    everything = given == "all"
    inputs = [
        ids,
        *numbers,
        np.array([0, 1, 5, 7], np.int32),
        draw(dtype, 3, 2, low=0, high=5) if everything else None,
        np.array([0, 17, 36, 59], dtype) if everything else None,
        np.array(3, dtype) if given != "nothing" else None,
        np.array([0, 0, 1, 1, 1, 2, 2], np.int32) if everything else None,
        np.array([[0, 0], [1, 0], [2, 2]], np.int32) if everything else None,
        np.array([1, 9, 0], np.int32) if everything else None,
    ]
    more = {"state_update_capacity": 3} if everything else {}
    compare("VarlenNGramHashMapping", *inputs, outputs=4 if everything else 2, reset_on_eos=reset, **more, **NGRAM)


# --- residual streams ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SINGLES)
@pytest.mark.parametrize("mixed", [np.float32, None])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 1), (2, 3, 4, 8)])
def test_hyper_connections(compare: Check, draw: Draw, dtype: Any, mixed: Any, shape: tuple[int, ...]) -> None:
    streams, mix = draw(dtype, 2, 3, 4, 8), draw(mixed or dtype, *shape)
    block, between = draw(dtype, 2, 3, 8), draw(mixed or dtype, 2, 3, 4, 4)
    flat = streams.reshape(2, 3, 32)
    half = {np.float16: 4e-3, ml_dtypes.bfloat16: 3e-2}.get(dtype, 1e-5)
    compare("HyperConnectionPreMix", streams, mix, reduction_scale=0.5, rtol=half)
    compare("HyperConnectionPreMix", flat, mix, num_branches=4, rtol=half)
    compare("HyperConnectionPostMix", streams, block, mix, rtol=half)
    compare("HyperConnectionPostMix", flat, block, mix, between, num_branches=4, rtol=half)


def test_gates_of_flattened_features(compare: Check, draw: Draw) -> None:
    compare("HyperConnectionPreMix", draw(np.float32, 2, 12), draw(np.float32, 2, 12), num_branches=3, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("outputs", [1, 2])
def test_engram_gate(compare: Check, draw: Draw, dtype: Any, outputs: int) -> None:
    key, query, value = draw(dtype, 2, 3, 4, 8), draw(dtype, 2, 3, 4, 8), draw(dtype, 2, 3, 8)
    scales = [draw(dtype, 4, 8) for _ in range(3)]
    compare("EngramGate", key, query, value, *scales, outputs=outputs, rtol=1e-2 if dtype == np.float16 else 1e-5)


@pytest.mark.parametrize("dtype", SINGLES)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_moe_group_router(compare: Check, draw: Draw, dtype: Any, groups: int) -> None:
    logits, bias = draw(dtype, 2, 3, 8), draw(np.float32, 8)
    how = {"top_k": 3, "n_group": groups, "topk_group": min(2, groups), "group_topk": 2}
    compare("MoEGroupRouter", logits, bias, rtol=1e-2 if dtype != np.float32 else 1e-5, router_sentinel=-50.0, **how)


def test_moe_group_router_with_full_scores(plan_of: Callable[..., Any], draw: Draw, compare: Check) -> None:
    x, bias, w = draw(np.float32, 3, 8), draw(np.float32, 4), draw(np.float32, 4, 8)
    node = helper.make_node("MoEGroupRouter", ["x", "b", "w"], ["", "s", "r"], domain=MICROSOFT, top_k=2)
    named = {"x": x, "b": bias, "w": w}
    inputs = [helper.make_tensor_value_info(name, 1, value.shape) for name, value in named.items()]
    outputs = [helper.make_tensor_value_info(name, 1, (3, 4)) for name in "sr"]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=imports, ir_version=10)
    scores, weights = plan_of(model, named)
    right = 1 / (1 + np.exp(-x @ w.T))
    np.testing.assert_allclose(weights, right, rtol=1e-5)
    np.testing.assert_allclose(scores, right + bias, rtol=1e-5, atol=1e-6)


# --- packed sequences ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SINGLES)
@pytest.mark.parametrize("how", [{}, {"dilation": 2}, {"activation": "silu"}])
@pytest.mark.parametrize("captured", [0, 2])
def test_packed_causal_convolution(compare: Check, draw: Draw, dtype: Any, how: Any, captured: int) -> None:
    kept = 2 * how.get("dilation", 1)
    x, weight, bias, state = draw(dtype, 9, 4), draw(dtype, 4, 1, 3), draw(dtype, 4), draw(dtype, 3, 4, kept)
    starts, count = np.array([0, 1, 6, 9], np.int32), np.array([5, 0, 1], np.int32)
    more = {"state_update_capacity": captured} if captured else {}
    inputs = [x, weight, starts, bias, state, count if captured else None]
    rtol = {np.float16: 4e-3, ml_dtypes.bfloat16: 3e-2}.get(dtype, 1e-5)
    compare("VarlenCausalConvWithState", *inputs, outputs=3 if captured else 2, rtol=rtol, **how, **more)


def rotated(x: Host, cos: Host, sin: Host) -> Host:
    half = x.shape[-1] // 2
    return np.concatenate([x[:half] * cos - x[half:] * sin, x[:half] * sin + x[half:] * cos])


def paged(
    q: Host, k: Host, v: Host, key_cache: Host, value_cache: Host, lengths: list[int], past: list[int], table: Host,
    cos: Host | None = None, sin: Host | None = None, slots: Host | None = None, sinks: Host | None = None,
    causal: bool = True, window: int = 0,
) -> list[Host]:  # fmt: skip
    """The definition, token by token: q [T, H, D], k and v [T, Hkv, D]."""
    key_cache, value_cache, size = key_cache.copy(), value_cache.copy(), key_cache.shape[1]
    owner = np.repeat(np.arange(len(lengths)), lengths)
    place = np.concatenate([np.arange(n) + p for n, p in zip(lengths, past, strict=True)])
    if cos is not None and sin is not None:
        q, k = (np.stack([[rotated(h, cos[p], sin[p]) for h in x[t]] for t, p in enumerate(place)]) for x in (q, k))
    for t, (b, p) in enumerate(zip(owner, place, strict=True)):
        slot = slots[t] if slots is not None else table[b, p // size] * size + p % size
        if slot >= 0:
            key_cache[slot // size, slot % size], value_cache[slot // size, slot % size] = k[t], v[t]
    y = np.zeros_like(q)
    for t, (b, p) in enumerate(zip(owner, place, strict=True)):
        last = p if causal else past[b] + lengths[b] - 1
        first = max(0, p - window + 1) if window else 0
        seen = [j for j in range(first, last + 1) if table[b, j // size] >= 0]
        for h in range(q.shape[1]):
            shared = h * k.shape[1] // q.shape[1]
            keys = np.array([key_cache[table[b, j // size], j % size, shared] for j in seen])
            values = np.array([value_cache[table[b, j // size], j % size, shared] for j in seen])
            weights = np.exp(keys @ q[t, h] / np.sqrt(q.shape[2]))
            y[t, h] = weights @ values / (weights.sum() + (0 if sinks is None else np.exp(sinks[h])))
    return [y.reshape(len(y), -1), key_cache, value_cache]


@pytest.mark.parametrize("case", ["plain", "rotary", "slots", "sinks", "window", "both ways", "packed"])
def test_paged_attention(compare: Check, draw: Draw, case: str) -> None:
    lengths, past, table = [1, 3, 2], [4, 0, 3], np.array([[2, 5, -1], [0, -1, -1], [7, 1, -1]], np.int32)
    q, k, v = draw(np.float32, 6, 4, 8), draw(np.float32, 6, 2, 8), draw(np.float32, 6, 2, 8)
    caches = [draw(np.float32, 8, 4, 2, 8), draw(np.float32, 8, 4, 2, 8)]
    cos, sin = draw(np.float32, 12, 4), draw(np.float32, 12, 4)
    slots = np.array([20, -1, 0, 1, 4, -1], np.int32)
    sinks = draw(np.float32, 4)
    more: dict[str, Any] = {
        "rotary": {"cos": cos, "sin": sin},
        "slots": {"slots": slots},
        "sinks": {"sinks": sinks},
        "window": {"window": 2},
        "both ways": {"causal": False},
    }.get(case, {})
    expect = paged(q, k, v, *caches, lengths, past, table, **more)
    flat = [x.reshape(6, -1) for x in (q, k, v)]
    first = [np.concatenate(flat, 1), None, None] if case == "packed" else flat
    inputs = [*first, *caches, np.array([0, 1, 4, 6], np.int32), np.array(past, np.int32), table]
    inputs += [more.get("cos"), more.get("sin"), more.get("slots"), more.get("sinks")]
    how = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": int(case == "rotary")}
    how |= {"window": {"local_window_size": 2}, "both ways": {"is_causal": 0}}.get(case, {})
    compare("PagedAttention", *inputs, expect=expect, rtol=1e-4, **how)


def test_paged_attention_whose_caches_are_no_outputs_is_declined(reasons: Callable[..., list[str]]) -> None:
    f, i = np.zeros((2, 8), np.float32), np.zeros(2, np.int32)
    inputs = [f, f, f, np.zeros((1, 4, 1, 8), np.float32), np.zeros((1, 4, 1, 8), np.float32), i, i, i[:, None]]
    (said,) = reasons("PagedAttention", *inputs, domain=MICROSOFT, outputs=[f], num_heads=1, kv_num_heads=1)
    assert "in place" in said
    (said,) = reasons(
        "PagedAttention",
        *inputs,
        domain=MICROSOFT,
        outputs=[f, *inputs[3:5]],
        num_heads=1,
        kv_num_heads=1,
        kv_cache_layout="LATENT",
    )
    assert "kv_cache_layout='LATENT'" in said


# --- text and speech -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layer", [True, False])
def test_attention_lstm(compare: Check, draw: Draw, direction: str, layer: bool) -> None:
    count, steps, batch, size, hidden, depth, inner, out = 2 if direction == "bidirectional" else 1, 4, 2, 3, 5, 4, 6, 7
    out = out if layer else depth
    inputs = [
        draw(np.float32, steps, batch, size),
        draw(np.float32, count, 4 * hidden, size + out),
        draw(np.float32, count, 4 * hidden, hidden),
        draw(np.float32, count, 8 * hidden),
        np.array([4, 2], np.int32),
        draw(np.float32, count, batch, hidden),
        draw(np.float32, count, batch, hidden),
        draw(np.float32, count, 3 * hidden),
        draw(np.float32, count, hidden, inner),
        draw(np.float32, count, depth, inner),
        draw(np.float32, count, inner),
        draw(np.float32, batch, 3, depth),
        np.array([3, 2], np.int32),
        draw(np.float32, count, depth + hidden, out) if layer else None,
    ]
    compare("AttnLSTM", *inputs, outputs=3, hidden_size=hidden, direction=direction, rtol=1e-4)


def test_word_conv_embedding(compare: Check, draw: Draw) -> None:
    words = np.array([[3, 1, 4, 1, 5], [2, 0, 0, 0, 0], [6, 5, 4, 0, 0]], np.int32)
    inputs = [words, draw(np.float32, 6, 1, 3, 4), draw(np.float32, 6), draw(np.float32, 7, 4)]
    compare("WordConvEmbedding", *inputs, rtol=1e-5)
    blank = np.concatenate([words, np.zeros((1, 5), np.int32)])
    known = np.tanh(
        np.stack(
            [[(inputs[3][w[i : i + 3]] * inputs[1][:, 0]).sum((1, 2)) + inputs[2] for i in range(3)] for w in blank]
        )
    )
    valid = np.array([3, 1, 1, 0])
    expect = [row[:count].max(0) if count else np.zeros(6) for row, count in zip(known, valid, strict=True)]
    compare("WordConvEmbedding", blank, *inputs[1:], expect=np.array(expect, np.float32), rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "how"),
    [
        ((2, 3, 7), {"kernel_shape": [3]}),
        ((2, 3, 6, 7), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
        ((1, 2, 4, 5, 4), {"kernel_shape": [2, 2, 3], "strides": [1, 2, 1]}),
    ],
)
def test_max_pool_with_mask(compare: Check, draw: Draw, shape: tuple[int, ...], how: dict[str, Any]) -> None:
    mask = draw(np.int32, 1, 1, *shape[2:], low=0, high=3)
    mask.flat[0] = 1
    compare("MaxpoolWithMask", draw(np.float32, *shape), mask, **how)


@pytest.mark.parametrize("shape", [(5, 5), (4, 7), (1, 3, 6), (3, 1), (1, 1)])
def test_dynamic_time_warping(compare: Check, draw: Draw, shape: tuple[int, ...]) -> None:
    compare("DynamicTimeWarping", draw(np.float32, *shape))


@pytest.mark.parametrize(("kind", "size"), [(0, 32), (1, 32), (2, 64)])
def test_matmul_fp_q4(compare: Check, draw: Draw, kind: int, size: int) -> None:
    inner, columns = 2 * size, 6
    scales = (draw(np.float32, columns, 2, 1) + 4) / 16
    nibbles = draw(np.uint8, columns, 2, size // 2, high=255)
    zeros = draw(np.uint8, columns, 2, 1, high=15)
    blob = np.concatenate([scales.view(np.uint8), *([zeros] if kind == 1 else []), nibbles], -1).reshape(-1)
    halves = nibbles.reshape(columns, 2, size // 32, 16)
    levels = np.concatenate([halves & 15, halves >> 4], -1).reshape(columns, 2, size).astype(np.float32)
    weights = ((levels - (zeros if kind == 1 else 8)) * scales).reshape(columns, inner)
    a = draw(np.float32, 3, inner)
    inputs = [a, blob, np.array([inner, columns])]
    compare("MatMulFpQ4", *inputs, expect=a @ weights.T, constants=(1, 2), blk_quant_type=kind, rtol=1e-4)
    if size == 32:  # ONNX Runtime's CPU provider refuses the other size
        compare("MatMulFpQ4", *inputs, constants=(1, 2), blk_quant_type=kind, rtol=1e-3, atol=1e-3)
