"""Operators of com.microsoft for transformers: attention, embeddings, experts, block-quantised weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import Given, Maker, Unfit, case
from microsoft import sigmoid, wide
from networks import causal_conv

DOMAIN = "com.microsoft"


def heads_of(x: Any, heads: int) -> Any:
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def merged(x: Any) -> Any:
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def scores_of(q: Any, k: Any, bias: Any = 0.0) -> Any:
    """[B, H, L, S] in double precision."""
    q, k = wide(q, k)
    return q @ np.repeat(k, q.shape[1] // k.shape[1], 1).swapaxes(2, 3) / np.sqrt(q.shape[-1]) + bias


def attend(q: Any, k: Any, v: Any, bias: Any = 0.0) -> Any:
    """[B, H, L, D] in double precision."""
    scores = scores_of(q, k, bias)
    v = np.repeat(v.astype(np.float64), q.shape[1] // v.shape[1], 1)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


def multi_head(g: Given) -> Any:
    q, k, v, past_k, past_v = (g(index, *shape, high=1) for index, shape in PLACES.items())
    mask, bias = g.at(4, [[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]]), g(5, 1, 4, 3, 5)
    keys, values = (np.concatenate([p, heads_of(x, 4)], 2) for p, x in ((past_k, k), (past_v, v)))
    added = bias.astype(np.float64) + np.where(mask, 0, -10000.0)[:, None, None]
    queries = heads_of(q, 4)
    y = merged(attend(queries, keys, values, added)).astype(q.dtype)
    scores = scores_of(queries, keys, added).astype(g.dtype("QK"))
    expect = [y, keys, values, scores]
    return case(
        q, k, v, None, mask, bias, past_k, past_v, outputs=4, num_heads=4, expect=expect, batch=[0, 1, 2, 4, 6, 7]
    )


PLACES = {0: (2, 3, 16), 1: (2, 3, 16), 2: (2, 3, 16), 6: (2, 4, 2, 4), 7: (2, 4, 2, 4)}


def attention(g: Given) -> Any:
    x, w, b = g(0, 2, 3, 8, high=1), g(1, 8, 48, high=1), g(2, 48, high=1)
    mask = g.at(3, [[1, 1, 0], [1, 1, 1]])
    parts = np.split(x.astype(np.float64) @ w.astype(np.float64) + b.astype(np.float64), 3, -1)
    bias = np.where(mask, 0, -10000.0)[:, None, None]
    q, k, v = (heads_of(part, 4) for part in parts)
    y = merged(attend(q, k, v, bias))
    return case(x, w, b, mask, num_heads=4, expect=y.astype(x.dtype), batch=[0, 3])


def decoder(g: Given) -> Any:
    q, k, v = (g(index, 2, 1, 16, high=1) for index in (0, 1, 2))
    past = [g(index, 2, 4, 6, 4, high=1) for index in (5, 6)]
    mask = g.at(3, [[1, 1, 0, 1, 1, 1, 1], [1, 0, 1, 1, 1, 1, 1]])
    keys, values = (np.concatenate([p, heads_of(x, 4)], 2) for p, x in zip(past, (k, v), strict=True))
    bias = np.where(mask, 0, -10000.0)[:, None, None]
    queries = heads_of(q, 4)
    y = merged(attend(queries, keys, values, bias)).astype(q.dtype)
    expect = [y, keys, values, scores_of(queries, keys, bias).astype(g.dtype("QK"))]
    return case(q, k, v, mask, None, *past, outputs=4, num_heads=4, output_qk=1, expect=expect)


def grouped(g: Given) -> Any:
    q, k, v = g(0, 1, 3, 64, high=1), g(1, 1, 3, 32, high=1), g(2, 1, 3, 32, high=1)
    cache = g.narrow(3)
    lengths = np.array([4], np.int32), np.array([5], np.int32)
    fresh = [heads_of(x, 2) for x in (k, v)]
    causal = np.where(np.arange(5) <= np.arange(3)[:, None] + 2, 0, -np.inf)
    if cache in ("int8", "uint8"):  # of 8 bits, and of 4 with two to a byte
        bits = 8 if cache == "int8" else 4
        width = 16 * bits // 8
        past = [g(index, 1, 2, 2, width, low=0, high=100) for index in (3, 4)]
        scales = [np.array([0.0625], np.float32)] * 2
        how: Any = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": bits}
        given = [q, k, v, *past, *lengths, *[None] * 5, *scales]
        return case(*given, outputs=3, num_heads=4, kv_num_heads=2, constants=[6, 12, 13], levels=1, **how)
    if cache != g.narrow(0):
        raise Unfit("a cache that is not quantised has the dtype of the query")
    past = [g(index, 1, 2, 2, 16, high=1) for index in (3, 4)]
    keys, values = (np.concatenate([p, x], 2) for p, x in zip(past, fresh, strict=True))
    y = merged(attend(heads_of(q, 4), keys, values, causal)).astype(q.dtype)
    given = [q, k, v, *past, *lengths]
    return case(*given, outputs=3, num_heads=4, kv_num_heads=2, constants=[6], expect=[y, keys, values])


def sparse(g: Given) -> Any:
    q, k, v = g(0, 1, 3, 64, high=1), g(1, 1, 3, 32, high=1), g(2, 1, 3, 32, high=1)
    past = [g(index, 1, 2, 16, 16, high=1) for index in (3, 4)]
    blocks = np.array([[0, 1]], np.int32), np.array([[0]], np.int32)
    lengths = np.array([3], np.int32), np.array([3], np.int32)
    ends = [np.concatenate([heads_of(x, 2), p[:, :, 3:]], 2) for x, p in zip((k, v), past, strict=True)]
    causal = np.where(np.tri(3, dtype=bool), 0, -np.inf)
    y = merged(attend(heads_of(q, 4), heads_of(k, 2), heads_of(v, 2), causal)).astype(q.dtype)
    how: Any = {"num_heads": 4, "kv_num_heads": 2, "sparse_block_size": 16}
    return case(q, k, v, *past, *blocks, *lengths, outputs=3, constants=[5, 6, 7], expect=[y, *ends], **how)


def packed(g: Given) -> Any:
    lengths, ends, offsets = [2, 4], np.array([0, 2, 6], np.int32), np.zeros((2, 4), np.int32)
    if g.triple.name == "PackedAttention":
        x, w, b = g(0, 6, 8, high=1), g(1, 8, 48, high=1), g(2, 48, high=1)
        parts = np.split(x.astype(np.float64) @ w.astype(np.float64) + b.astype(np.float64), 3, -1)
        given: list[Any] = [x, w, b, offsets, ends]
    else:
        parts = [g(index, 6, 16, high=1) for index in (0, 1, 2)]
        given = [*parts, None, offsets, ends]
    rows = []
    for start, length in zip(ends, lengths, strict=False):
        rows.append(merged(attend(*(heads_of(part[None, start : start + length], 4) for part in parts)))[0])
    return case(*given, num_heads=4, expect=np.concatenate(rows).astype(g.dtype(0)))


def quantized_attention(g: Given) -> Any:
    x, w, b = g(0, 2, 3, 8, high=100), g(1, 8, 48, high=100), g(2, 48, high=1)
    mask, zeros = g.at(5, [2, 3]), (g.at(6, 3), g.at(7, 5))
    parts = (x.astype(float) - 3) @ (w.astype(float) - 5) / 4096 + b.astype(float)
    bias = np.where(np.arange(3) < mask[:, None], 0, -10000.0)[:, None, None]
    queries, keys, values = (heads_of(part, 4) for part in np.split(parts, 3, -1))
    y = merged(attend(queries, keys, values, bias))
    given = [x, w, b, g.at(3, 1 / 64), g.at(4, 1 / 64), mask, *zeros]
    return case(*given, num_heads=4, constants=[1, 2, 3, 4, 6, 7], expect=y.astype(b.dtype), batch=[0, 5])


def rotary(g: Given) -> Any:
    x, cos, sin = g(0, 2, 4, 3, 8), g(2, 10, 4, high=1), g(3, 10, 4, high=1)
    at = np.array([[0, 2, 5], [1, 1, 9]])
    left, right = np.split(x.astype(np.float64), 2, -1)
    c, s = (cache.astype(np.float64)[at][:, None] for cache in (cos, sin))
    y = np.concatenate([left * c - right * s, left * s + right * c], -1)
    if g.triple.name == "MRotaryEmbedding":  # three equal rows of positions: what the sections take is the same
        return case(x, np.stack([at] * 3), cos, sin, mrope_section=[2, 1, 1], expect=y.astype(x.dtype))
    return case(x, at, cos, sin, expect=y.astype(x.dtype), batch=[0, 1])


def position_bias(g: Given) -> Any:
    table, lengths = g(0, 8, 2), (np.array(6, np.int64), np.array(6, np.int64))
    distance = np.arange(6)[None] - np.arange(6)[:, None]
    bucket = np.array([0, 1, 2, 3, 4, 4])[np.maximum(-distance, 0)]
    how: Any = {"max_distance": 16, "is_bidirectional": 0}
    return case(table, *lengths, constants=[1, 2], expect=table[bucket].transpose(2, 0, 1)[None], **how)


def gated_position_bias(g: Given) -> Any:
    q, q_bias, rel = g(0, 2, 5, 12, high=1), g(1, 12, high=1), g(2, 1, 3, 5, 5)
    w, b, eco = g(3, 4, 8, high=1), g(4, 8, high=1), g(5, 1, 3, 1, 1)
    gates = heads_of(q.astype(np.float64) + q_bias.astype(np.float64), 3) @ w.astype(np.float64) + b.astype(np.float64)
    gates = sigmoid(gates.reshape(2, 3, 5, 2, 4).sum(-1))
    y = (gates[..., :1] * (gates[..., 1:] * eco.astype(np.float64) - 1) + 2) * rel.astype(np.float64)
    return case(q, q_bias, rel, w, b, eco, num_heads=3, expect=y.astype(q.dtype), batch=[0])


def embedding(g: Given) -> Any:
    ids, segments = g.at(0, [[1, 3, 2], [0, 4, 8]]), g.at(1, [[0, 1, 1], [0, 0, 1]])
    tables = [g(2, 9, 8), g(3, 5, 8), g(4, 2, 8), g(5, 8), g(6, 8)]
    return case(ids, segments, *tables, g.at(7, [[1, 1, 0], [1, 1, 1]]), outputs=2, batch=[0, 1, 7])


def quantized_embedding(g: Given) -> Any:
    ids, segments = g.at(0, [[1, 3, 2], [0, 4, 8]]), g.at(1, [[0, 1, 1], [0, 0, 1]])
    tables = [g(2, *shape, high=100) for shape in ((9, 8), (5, 8), (2, 8), (8,), (8,))]
    scales = [np.array(0.01 * (index + 1), np.float32) for index in range(5)]
    zeros = [g.at(2, 10 + index) for index in range(5)]
    mask = g.at(7, [[1, 1, 0], [1, 1, 1]])
    return case(ids, segments, *tables, mask, *scales, *zeros, outputs=2, tolerance=1e-3, batch=[0, 1, 7])


def linear_attention(g: Given) -> Any:
    q, k, v = (g(index, 1, 3, 8, high=1) for index in (0, 1, 2))
    state = g(3, 1, 2, 4, 4, high=1)
    memory, rows = state.astype(np.float64), []
    for step in range(3):
        a, b, c = (x[0, step].astype(np.float64).reshape(2, 4) for x in (q, k, v))
        memory = memory + b[None, :, :, None] * c[None, :, None]
        rows.append(np.einsum("hk,bhkv->bhv", a, memory).reshape(1, 1, 8) / 2)
    expect = [np.concatenate(rows, 1).astype(q.dtype), memory.astype(g.dtype("S"))]
    how: Any = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}
    return case(q, k, v, state, outputs=2, expect=expect, batch=[0, 1, 2, 3], **how)


def delta_net(g: Given) -> Any:
    q, k, v = g(0, 4, 2, 4, high=1), g(1, 4, 2, 4, high=0.5), g(2, 4, 4, 6, high=1)
    decay, beta, state = g(4, 4, 4, low=-1, high=0), g(5, 4, 4, low=0, high=1), g(6, 1, 4, 6, 4, high=1)
    return case(q, k, v, None, decay, beta, state, outputs=2)


def stream(levels: Any, bits: int) -> Any:
    """[..., n] -> bytes [..., ceil(n * bits / 8)], the lowest bits first."""
    digits = (levels[..., None] >> np.arange(bits)) & 1
    return np.packbits(digits.reshape(*levels.shape[:-1], -1).astype(np.uint8), axis=-1, bitorder="little")


def matmul_bits(g: Given) -> Any:
    a, scales, bias = g(0, 3, 64), g(2, 6, 2, high=0.1), g(5, 6)
    quantized, points = g.random.integers(0, 16, (6, 2, 32)), g.random.integers(0, 16, (6, 2))
    if g.narrow(3) == "uint8":
        zeros = stream(points, 4)
    elif g.narrow(3) == g.narrow(0):
        zeros = g.at(3, points)
    else:
        raise Unfit("zero points are packed, or of the dtype of a")
    plain = (quantized - points[..., None]) * scales.astype(np.float64)[..., None]
    y = a.astype(np.float64) @ plain.reshape(6, 64).T + bias.astype(np.float64)
    given = [a, stream(quantized, 4), scales, zeros, None, bias]
    return case(*given, K=64, N=6, bits=4, block_size=32, constants=[1, 2, 3], expect=y.astype(a.dtype), batch=[0])


def matmul_bnb(g: Given) -> Any:
    a, weights, largest = g(0, 3, 64, high=1), g(1, 192, high=255), g(2, 24, low=0.1, high=1)
    return case(a, weights, largest, K=64, N=6, block_size=16, quant_type=1, constants=[1, 2], batch=[0])


def gather_blocks(g: Given) -> Any:
    kind, at, scales = g.narrow(0), g.at(1, [[0, 4], [3, 2]]), g(2, 5, 4)
    low = -8 if kind == "int4" else 0
    quantized, points = g.random.integers(low, low + 16, (5, 64)), g.random.integers(low, low + 16, (5, 4))
    plain = (quantized - np.repeat(points, 16, 1)) * np.repeat(scales.astype(np.float64), 16, 1)
    pack = (lambda x: stream(x, 4)) if kind == "uint8" else (lambda x: x.astype(np.int32).astype(g.dtype(0)))
    how: Any = {"bits": 4, "block_size": 16, "quantize_axis": 1}
    expect = plain[at].astype(scales.dtype)
    return case(pack(quantized), at, scales, pack(points), constants=[0, 2, 3], expect=expect, batch=[1], **how)


def experts(g: Given) -> Any:
    x, logits = g(0, 5, 32, high=1), g(1, 5, 4, high=1)
    if g.triple.name == "MoE":
        first, second = g(2, 4, 16, 32, high=0.25), g(4, 4, 32, 16, high=0.25)
        given, layers = [x, logits, first, None, second], wide(first, second)
        how: Any = {}
    else:
        levels = [g.random.integers(0, 16, shape) for shape in ((4, 16, 32), (4, 32, 16))]
        scales = [g(3, 4, 16, 2, low=0.01, high=0.1), g(6, 4, 32, 1, low=0.01, high=0.1)]
        layers = [(a - 8.0) * np.repeat(b.astype(np.float64), 16, 2) for a, b in zip(levels, scales, strict=True)]
        given = [x, logits, stream(levels[0], 4), scales[0], None, stream(levels[1], 4), scales[1]]
        how = {"expert_weight_bits": 4, "block_size": 16}
    y = np.zeros(x.shape)
    tokens, scores = wide(x, logits)
    chances = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    for row, (token, chance) in enumerate(zip(tokens, chances, strict=True)):
        best = np.argsort(-chance)[:2]
        for expert in best:
            inner = np.maximum(layers[0][expert] @ token, 0)
            y[row] += chance[expert] / chance[best].sum() * (layers[1][expert] @ inner)
    how |= {"k": 2, "normalize_routing_weights": 1, "activation_type": "relu"}
    return case(*given, expect=y.astype(x.dtype), batch=[0, 1], **how)


CASES: dict[str, Maker] = {
    "Attention": attention,
    "CausalConvWithState": causal_conv,
    "DecoderMaskedMultiHeadAttention": decoder,
    "EmbedLayerNormalization": embedding,
    "GatedDeltaNet": delta_net,
    "GatedRelativePositionBias": gated_position_bias,
    "GatherBlockQuantized": gather_blocks,
    "GroupQueryAttention": grouped,
    "LinearAttention": linear_attention,
    **dict.fromkeys(("MRotaryEmbedding", "RotaryEmbedding"), rotary),
    "MatMulBnb4": matmul_bnb,
    "MatMulNBits": matmul_bits,
    **dict.fromkeys(("MoE", "QMoE"), experts),
    "MultiHeadAttention": multi_head,
    **dict.fromkeys(("PackedAttention", "PackedMultiHeadAttention"), packed),
    "QAttention": quantized_attention,
    "QEmbedLayerNormalization": quantized_embedding,
    "RelativePositionBias": position_bias,
    "SparseAttention": sparse,
}
