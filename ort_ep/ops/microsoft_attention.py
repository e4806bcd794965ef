"""Multi-head attention of com.microsoft: projections, masks and pasts around the shared core."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from mlxc_py.cpu_primitives import Packed
from ort_ep.graph import Node
from ort_ep.ops import precision
from ort_ep.ops.attention import (
    BIASED,
    at,
    attend,
    behind,
    excluding,
    first_keys,
    merge_heads,
    rotated_heads,
    split_heads,
)
from ort_ep.ops.indexing import in_range
from ort_ep.ops.matmul import factor, matmul
from ort_ep.ops.precision import sigmoid, widened
from ort_ep.registry import INDEX, INT32, MICROSOFT, SINGLES, op


def only_plain(inputs: Mapping[int, str], attributes: Mapping[str, Any]) -> Callable[[Node], str | None]:
    """A claim that declines the named optional inputs, and attributes that differ from these values."""

    def claim(node: Node) -> str | None:
        for index, name in inputs.items():
            if node.input(index) is not None:
                return f"input {name} is not supported"
        for name, value in attributes.items():
            if node.attributes.get(name, value) != value:
                return f"attribute {name}={node.attributes[name]!r} is not supported"
        return None

    absent = [f"no {name}" for name in inputs.values()]
    fixed = [f"only {name}={value}" for name, value in attributes.items()]
    claim.__doc__ = f"{'; '.join(absent + fixed).capitalize()}."  # docs/OPS.md tells it
    return claim


def padding_keep(mask: Array, batch: int, queries: int, keys: int) -> Array:
    """The keys that a mask leaves, to broadcast over [B, H, L, S]; the mask may be ends, ends and starts, or raw."""
    if mask.ndim == 1:
        # [B] ends; [2B] ends, then starts; [3B + 2] lengths first
        keep = first_keys(mask[:batch], keys)
        if mask.shape[0] == 2 * batch:
            keep = mx.logical_and(keep, mx.logical_not(first_keys(mask[batch:], keys)))
        return keep
    if mask.ndim == 2:
        return mask[:, None, None, :] != 0
    if mask.ndim == 3:
        return mask[:, None] != 0
    return mask[:, :, keys - queries : keys, :keys] != 0


def masked_bias(
    mask: Array | None, bias: Array | None, q: Array, keys: int, causal: int, filter_value: float
) -> Array | None:
    """The bias of a mask (a finite value: rows masked as a whole keep their proportions), of `bias`, and of order."""
    batch, _, queries, _ = q.shape
    if mask is not None:
        keep = padding_keep(mask, batch, queries, keys)
        padding = mx.where(keep, mx.array(0, mx.float32), mx.array(filter_value, mx.float32))
        bias = padding if bias is None else padding + bias
    return excluding([behind(queries, keys, keys - queries) >= 0] if causal else [], bias)


@op(
    "MultiHeadAttention",
    domain=MICROSOFT,
    dtypes={"query": SINGLES, "key_padding_mask": INT32},
    claim=only_plain({8: "past_sequence_length", 9: "cache_indirection"}, {}),
)
def multi_head_attention(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    bias: Array | None = None,
    key_padding_mask: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    past_sequence_length: Array | None = None,
    cache_indirection: Array | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
    n_outputs: int,
) -> tuple[Array | None, ...]:
    q, k, v = projected_heads(query, key, value, bias, num_heads)
    if past_key is not None and past_value is not None:
        k, v = mx.concatenate([past_key, k], 2), mx.concatenate([past_value, v], 2)
    total = masked_bias(key_padding_mask, attention_bias, q, k.shape[2], unidirectional, mask_filter_value)
    y, scores = attend(q, k, v, scale, total, stage=BIASED if n_outputs > 3 else None)
    return (merge_heads(y), k, v, scores)[:n_outputs]


def projected_heads(
    query: Array, key: Array | None, value: Array | None, bias: Array | None, heads: int
) -> tuple[Array, Array, Array]:
    """q, k and v [B, H, L, D] of separate, packed, or already split tensors, with the bias of the projections."""
    if query.ndim == 5:
        q, k, v = (query[:, :, :, index].swapaxes(1, 2) for index in range(3))
        hidden = heads * q.shape[-1]
    else:
        hidden = query.shape[-1]
        q = split_heads(query, heads)
        if key is not None and key.ndim == 5:
            k, v = key[:, :, :, 0].swapaxes(1, 2), key[:, :, :, 1].swapaxes(1, 2)
        elif key is not None and value is not None:
            k, v = (x if x.ndim == 4 else split_heads(x, heads) for x in (key, value))
        else:
            raise ValueError("attention needs keys and values, or all three packed into the query")
    if bias is None:
        return q, k, v
    parts = mx.split(bias, [hidden, 2 * hidden])
    q, k, v = (x + part.reshape([heads, 1, -1]) for x, part in zip((q, k, v), parts, strict=True))
    return q, k, v


class Masking(TypedDict, total=False):
    """How scores are scaled and masked."""

    mask_filter_value: float
    scale: float | None
    unidirectional: int


@op(
    "Attention",
    domain=MICROSOFT,
    dtypes={"x": SINGLES, "mask_index": INT32},
    claim=only_plain({6: "past_sequence_length"}, {"do_rotary": 0, "past_present_share_buffer": 0}),
    prepare={"weights": factor},
)
def attention(
    x: Array,
    weights: Array | Packed,
    bias: Array | None = None,
    mask_index: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    past_sequence_length: Array | None = None,
    *,
    do_rotary: int = 0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] | None = None,
    rotary_embedding_dim: int = 0,
    n_outputs: int,
    **masking: Unpack[Masking],
) -> tuple[Array, ...]:
    projected = matmul(x, weights)
    heads = side_by_side(projected if bias is None else projected + bias, num_heads, qkv_hidden_sizes)
    return self_attention(heads, past, mask_index, attention_bias, n_outputs, **masking)


def side_by_side(projected: Array, heads: int, sizes: Sequence[int] | None = None) -> tuple[Array, Array, Array]:
    """q, k and v [B, H, L, D] that lie side by side in [B, L, hidden]."""
    ends = np.cumsum(sizes or [projected.shape[-1] // 3] * 3)[:2].tolist()
    q, k, v = (split_heads(part, heads) for part in mx.split(projected, ends, -1))
    return q, k, v


def self_attention(
    heads: tuple[Array, Array, Array],
    past: Array | None,
    mask: Array | None,
    bias: Array | None,
    n_outputs: int,
    *,
    mask_filter_value: float = -10000.0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Array, ...]:
    """The output and, where it is asked for, all keys and values stacked."""
    q, k, v = heads
    if past is not None:
        k, v = mx.concatenate([past[0], k], 2), mx.concatenate([past[1], v], 2)
    total = masked_bias(mask, bias, q, k.shape[2], unidirectional, mask_filter_value)
    y = merge_heads(attend(q, k, v, scale, total)[0])
    return (y,) if n_outputs == 1 else (y, mx.stack([k, v]))


@op(
    "DecoderMaskedMultiHeadAttention",
    domain=MICROSOFT,
    host=("past_sequence_length",),
    dtypes={"query": SINGLES, "mask_index": INT32},
    claim=only_plain({9: "cache_indirection"}, {}),
)
def decoder_masked_multi_head_attention(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    mask_index: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    past_sequence_length: np.ndarray | None = None,
    beam_width: Array | None = None,
    cache_indirection: Array | None = None,
    bias: Array | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    n_outputs: int,
) -> tuple[Array | None, ...]:
    if key is None:
        query, key, value = mx.split(query, 3, -1)
    q, k, v = projected_heads(query, key, value, bias, num_heads)
    present_k, present_v = k, v
    if past_key is not None and past_value is not None:
        past = past_key.shape[2] if past_sequence_length is None else int(past_sequence_length.item())
        present_k, present_v = written(past_key, k, past), written(past_value, v, past)
        k, v = present_k[:, :, : past + k.shape[2]], present_v[:, :, : past + v.shape[2]]
    total = masked_bias(mask_index, attention_bias, q, k.shape[2], 0, mask_filter_value)
    y, scores = attend(q, k, v, scale, total, stage=BIASED if n_outputs > 3 else None)
    return (merge_heads(y), present_k, present_v, scores)[:n_outputs]


def written(cache: Array, new: Array, start: int) -> Array:
    """A cache [B, H, C, D] with rows replaced from `start` on, longer where they end beyond it."""
    return mx.concatenate([cache[:, :, :start], new, cache[:, :, start + new.shape[2] :]], 2)


@op("PackedMultiHeadAttention", domain=MICROSOFT, dtypes={"query": SINGLES})
def packed_multi_head_attention(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    bias: Array | None = None,
    *rest: Array,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float | None = None,
) -> Array:
    key, value = (x if x is None else x[None] for x in (key, value))
    q, k, v = projected_heads(query[None], key, value, bias, num_heads)
    return packed(q, k, v, rest[1], rest[2] if len(rest) > 2 else None, scale)


@op(
    "PackedAttention",
    domain=MICROSOFT,
    dtypes={"x": SINGLES, "token_offset": INT32, "cumulative_sequence_length": INT32},
    prepare={"weights": factor},
)
def packed_attention(
    x: Array,
    weights: Array | Packed,
    bias: Array,
    token_offset: Array,
    cumulative_sequence_length: Array,
    attention_bias: Array | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: Sequence[int] | None = None,
    scale: float | None = None,
) -> Array:
    q, k, v = side_by_side((matmul(x, weights) + bias)[None], num_heads, qkv_hidden_sizes)
    return packed(q, k, v, cumulative_sequence_length, attention_bias, scale)


def packed(q: Array, k: Array, v: Array, starts: Array, bias: Array | None, scale: float | None) -> Array:
    """Attention of [1, H, tokens, D] where a token sees those of its own sequence; `starts` ends with the sum."""
    token = mx.arange(q.shape[2])
    sequence = mx.sum(token[:, None] >= starts[1:], 1)
    together = sequence[:, None] == sequence
    if bias is not None:
        batch, heads, length, _ = bias.shape
        place = token - mx.take(starts, sequence)
        row = place if batch == 1 else sequence * length + place
        rows = bias.transpose([0, 2, 3, 1]).reshape([batch * length * length, heads])
        cell = mx.clip(row[:, None] * length + place, 0, batch * length * length - 1)
        bias = mx.take(rows, cell, 0).transpose([2, 0, 1])[None]
    return merge_heads(attend(q, k, v, scale, excluding([together], bias))[0])[0]


unpacked_and_unscaled = only_plain({}, {"is_packed_batching": 0, "scale": 1.0})


@op(
    "RotaryEmbedding",
    domain=MICROSOFT,
    dtypes={"x": SINGLES, "position_ids": INDEX},
    claim=unpacked_and_unscaled,
)
@widened
def rotary_embedding(
    x: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Array:
    if position_ids.size == 1 and position_ids.ndim < 2:
        position_ids = (position_ids + mx.arange(x.shape[-2]))[None]
    return rotated_heads(x, num_heads, *at(position_ids, cos_cache, sin_cache), interleaved)


@op(
    "MRotaryEmbedding",
    domain=MICROSOFT,
    dtypes={"x": SINGLES, "position_ids": INDEX},
    claim=unpacked_and_unscaled,
)
@widened
def multimodal_rotary_embedding(
    x: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    mrope_layout: int = 0,
    mrope_section: Sequence[int],
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Array:
    half = cos_cache.shape[-1]
    # which of the time, height and width streams turns each pair of features
    if mrope_layout:
        stream = np.zeros(half, np.int64)
        for axis in (1, 2):
            stream[axis : 3 * mrope_section[axis] : 3] = axis
    else:
        stream = np.repeat(np.arange(3), mrope_section)
    rows = mx.take(in_range(position_ids, cos_cache.shape[0]), mx.array(stream), 0)
    flat = mx.moveaxis(rows, 0, -1) * half + mx.arange(half)
    cos, sin = mx.take(cos_cache.flatten(), flat), mx.take(sin_cache.flatten(), flat)
    return rotated_heads(x, num_heads, cos, sin, interleaved)


@op(
    "RelativePositionBias",
    domain=MICROSOFT,
    host=("query_length", "key_length"),
    dtypes={"bias_table": SINGLES},
)
def relative_position_bias(
    bias_table: Array, query_length: np.ndarray, key_length: np.ndarray, *, is_bidirectional: int = 0, max_distance: int
) -> Array:
    buckets = bias_table.shape[0]
    distance = np.arange(key_length.item()) - np.arange(query_length.item())[:, None]
    first = np.zeros_like(distance)
    if is_bidirectional:
        buckets //= 2
        first = np.where(distance > 0, buckets, 0)
    far = abs(distance) if is_bidirectional else np.maximum(-distance, 0)
    exact = buckets // 2
    # half of the buckets hold one distance each, the others grow as its logarithm
    growth = np.log(np.maximum(far, 1) / exact) / math.log(max_distance / exact) * (buckets - exact)
    bucket = first + np.where(far < exact, far, np.minimum(exact + growth.astype(np.int64), buckets - 1))
    return mx.take(bias_table, mx.array(bucket.clip(0, len(bias_table) - 1)), 0).transpose([2, 0, 1])[None]


@op(
    "GatedRelativePositionBias",
    domain=MICROSOFT,
    dtypes={"query_layer": SINGLES},
    claim=only_plain({6: "token_offset"}, {}),
)
@widened
def gated_relative_position_bias(
    query_layer: Array,
    query_bias: Array,
    rel_pos: Array,
    weight: Array,
    bias: Array,
    eco_a: Array,
    token_offset: Array | None = None,
    *,
    num_heads: int,
) -> Array:
    projected = mx.matmul(split_heads(query_layer + query_bias, num_heads), weight) + bias
    halves = projected.reshape([*projected.shape[:3], 2, projected.shape[3] // 2])
    gates = sigmoid(mx.sum(halves, -1))
    update, reset = gates[..., :1], gates[..., 1:]
    return (update * (reset * eco_a - 1) + 2) * rel_pos


@op("GemmaRotaryEmbedding", domain=MICROSOFT, dtypes={"emb": frozenset({"float32"}), "q": frozenset({"float16"})})
def gemma_rotary_embedding(emb: Array, q: Array, q_rot: Array, k: Array, k_rot: Array) -> tuple[Array, Array]:
    # the angles are rounded to the states' type before, and the products to it after
    sine, cosine = (turn(emb)[:, None].astype(q.dtype) for turn in (precision.sin, precision.cos))
    return q * cosine + q_rot * sine, k * cosine + k_rot * sine
