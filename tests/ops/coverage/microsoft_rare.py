"""Operators of com.microsoft that are rare: hashes, residual streams, packed sequences, pages, text."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import Given, Maker, Unfit, case
from microsoft import f32, wide

DOMAIN = "com.microsoft"
STARTS = np.array([0, 1, 5, 7], np.int32)


def attention_lstm(g: Given) -> Any:
    hidden, depth, inner = 4, 3, 5
    given = [g(0, 3, 2, 4, high=1), g(1, 1, 16, 4 + depth, high=1), g(2, 1, 16, hidden, high=1), None]
    given += [np.array([3, 2], np.int32), None, None, None, g(8, 1, hidden, inner, high=1)]
    given += [g(9, 1, depth, inner, high=1), g(10, 1, inner, high=1), g(11, 2, 3, depth), np.array([3, 2], np.int32)]
    return case(*given, hidden_size=hidden, outputs=3, tolerance=1e-4)


def time_warping(g: Given) -> Any:
    return case(g(0, 4, 5))


def engram_gate(g: Given) -> Any:
    scales = [g(index, 4, 8) for index in (3, 4, 5)]
    return case(g(0, 2, 3, 4, 8), g(1, 2, 3, 4, 8), g(2, 2, 3, 8), *scales, outputs=2, tolerance=1e-2)


def pre_mix(g: Given) -> Any:
    streams, mix = g(0, 2, 4, 8), g(1, 2, 4)
    a, b = wide(streams, mix)
    return case(streams, mix, expect=(a * b[..., None]).sum(-2).astype(streams.dtype))


def post_mix(g: Given) -> Any:
    streams, block, gate, mix = g(0, 2, 4, 8), g(1, 2, 8), g(2, 2, 4), g(3, 2, 4, 4)
    a, b, c, d = wide(streams, block, gate, mix)
    expect = d.swapaxes(1, 2) @ a + c[..., None] * b[:, None]
    return case(streams, block, gate, mix, expect=expect.astype(streams.dtype))


def group_router(g: Given) -> Any:
    logits, bias = g(0, 3, 8), g(1, 8, high=1)
    a, b = wide(logits, bias)
    scores = 1 / (1 + np.exp(-a))
    chosen = np.argsort(-(scores + b), axis=1, kind="stable")[:, :3]
    expect = np.full(scores.shape, -50.0)
    np.put_along_axis(expect, chosen, np.log(np.take_along_axis(scores, chosen, 1)), 1)
    return case(logits, bias, top_k=3, router_sentinel=-50.0, expect=expect.astype(logits.dtype), tolerance=1e-2)


def matmul_q4(g: Given) -> Any:
    a, nibbles = g(0, 3, 32, high=1), g("uint8", 5, 1, 16, high=255)
    blob = np.concatenate([np.full((5, 1, 1), 0.125, np.float32).view(np.uint8), nibbles], -1).reshape(-1)
    levels = np.concatenate([nibbles & 15, nibbles >> 4], -1).reshape(5, 32).astype(np.float32)
    expect = a @ ((levels - 8) * f32(0.125)).T
    return case(a, blob, np.array([32, 5]), constants=[1, 2], blk_quant_type=0, expect=expect, tolerance=1e-3)


def masked_pool(g: Given) -> Any:
    mask = np.array([[[1, 1, 0, 1, 1, 1, 0]]], np.int32)
    return case(g(0, 2, 3, 7), mask, kernel_shape=[3], strides=[1])


def murmur(g: Given) -> Any:
    return case(g(0, 2, 3, low=0), positive=int(g.narrow("T2") == "uint32"), seed=5)


NGRAM: dict[str, Any] = {"max_ngram_size": 3, "n_head_per_ngram": 2, "pad_id": 9}


def ngrams(g: Given) -> Any:
    return case(g(0, 2, 6, low=0), g.at(1, [101, 1003, 937]), g.at(2, [17, 19, 23, 29]), outputs=2, **NGRAM)


def packed_ngrams(g: Given) -> Any:
    numbers = [g.at(1, [101, 1003, 937]), g.at(2, [17, 19, 23, 29])]
    return case(g(0, 7, low=0), *numbers, STARTS, outputs=2, **NGRAM)


def packed_convolution(g: Given) -> Any:
    given = [g(0, 7, 4), g(1, 4, 1, 3), STARTS, g(3, 4), g(4, 3, 4, 2), np.array([1, 9, 0], np.int32)]
    return case(*given, state_update_capacity=2, outputs=3)


def pages(g: Given) -> Any:
    """Three tokens of one sequence, which has two in its page already."""
    if g.narrow("T") != g.narrow("T_CACHE"):
        raise Unfit("a cache of another type is a quantised one")
    q, k, v = (g(index, 3, 8, high=1) for index in range(3))
    caches = [g(3, 2, 8, 1, 8, high=1), g(4, 2, 8, 1, 8, high=1)]
    after = [cache.copy() for cache in caches]
    for cache, new in zip(after, (k, v), strict=True):
        cache[1, 2:5, 0] = new
    keys, values = (cache[1, :5, 0] for cache in wide(*after))
    scores = np.exp(wide(q)[0] @ keys.T / np.sqrt(8)) * (np.arange(5) <= np.arange(2, 5)[:, None])
    expect = [(scores / scores.sum(1, keepdims=True) @ values).astype(q.dtype), *after]
    lengths = [np.array([0, 3], np.int32), np.array([2], np.int32), np.array([[1]], np.int32)]
    return case(q, k, v, *caches, *lengths, num_heads=1, kv_num_heads=1, outputs=3, expect=expect)


def word_embedding(g: Given) -> Any:
    words = np.array([[3, 1, 4, 1, 5], [2, 0, 0, 0, 0]], np.int32)
    return case(words, g(1, 6, 1, 3, 4, high=1), g(2, 6), g(3, 7, 4))


def bias_dropout(g: Given) -> Any:
    data, bias, residual = g(0, 3, 8), g(1, 8), g(2, 3, 8)
    a, b, c = wide(data, bias, residual)
    given = [data, bias, residual, g.at(3, 0.25), g.at(4, False)]
    expect = [(a + b + c).astype(data.dtype), np.ones((3, 8), bool)]
    return case(*given, constants=[3, 4], expect=expect, outputs=2)


def gemma_rotary(g: Given) -> Any:
    angles, *states = g(0, 2, 3, 4), *(g(index, 2, 5, 3, 4) for index in (1, 2, 3, 4))
    sine, cosine = (turn(angles).astype(np.float16)[:, None] for turn in (np.sin, np.cos))
    q, q_turned, k, k_turned = states
    expect = [q * cosine + q_turned * sine, k * cosine + k_turned * sine]
    return case(angles, *states, expect=expect, outputs=2, tolerance=1e-2)


def sum_of_bytes(g: Given) -> Any:
    x = g(0, 3, 40, high=120)
    return case(x, axes=[-1], keepdims=0, expect=x.sum(1).astype(g.dtype("T2")))


def without_padding(g: Given) -> Any:
    x = g(0, 2, 3, 4)
    places = np.array([[0, 3, 4], [5, 1, 2]], np.int32)
    expect = [x.reshape(6, 4)[[0, 3, 4, 5]], places, np.array([0, 1, 4], np.int32), np.array([3], np.int32)]
    return case(x, np.array([1, 3], np.int32), expect=expect, outputs=4)


def with_padding(g: Given) -> Any:
    x, places = g(0, 4, 5), np.array([[0, 3, 4], [5, 1, 2]], np.int32)
    expect = np.zeros((6, 5), x.dtype)
    expect[[0, 3, 4, 5]] = x
    return case(x, places, expect=expect.reshape(2, 3, 5))


CASES: dict[str, Maker] = {
    "AttnLSTM": attention_lstm,
    "BiasDropout": bias_dropout,
    "DynamicTimeWarping": time_warping,
    "EngramGate": engram_gate,
    "GemmaRotaryEmbedding": gemma_rotary,
    "HyperConnectionPostMix": post_mix,
    "HyperConnectionPreMix": pre_mix,
    "MatMulFpQ4": matmul_q4,
    "MaxpoolWithMask": masked_pool,
    "MoEGroupRouter": group_router,
    "MurmurHash3": murmur,
    "NGramHashMapping": ngrams,
    "PagedAttention": pages,
    "ReduceSumInteger": sum_of_bytes,
    "RemovePadding": without_padding,
    "RestorePadding": with_padding,
    "VarlenCausalConvWithState": packed_convolution,
    "VarlenNGramHashMapping": packed_ngrams,
    "WordConvEmbedding": word_embedding,
}
