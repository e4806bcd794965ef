"""Attention over a cache of keys and values that each batch entry fills to its own length."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.graph import Node
from ort_ep.ops.attention import (
    BIASED,
    WEIGHTS,
    at,
    attend,
    behind,
    excluding,
    first_keys,
    merge_heads,
    rotated,
    split_heads,
)
from ort_ep.ops.indexing import in_range, scatter_rows
from ort_ep.ops.microsoft_attention import only_plain, written
from ort_ep.ops.nbits import unpacked
from ort_ep.ops.precision import widen
from ort_ep.ops.ragged import Ragged
from ort_ep.registry import BYTES, INT32, MICROSOFT, SINGLES, op


@op(
    "GroupQueryAttention",
    domain=MICROSOFT,
    host=("total_sequence_length",),
    dtypes={"query": SINGLES, "past_key": SINGLES | BYTES, "past_value": SINGLES | BYTES, "seqlens_k": INT32},
    claim=only_plain({}, {"sliding_window_cache": 0}),
)
def group_query_attention(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    seqlens_k: Array | None = None,
    total_sequence_length: np.ndarray | None = None,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    position_ids: Array | None = None,
    attention_bias: Array | None = None,
    head_sink: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    q_norm_weight: Array | None = None,
    k_norm_weight: Array | None = None,
    query_seqlens: Array | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_norm_epsilon: float | None = None,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    q_norm_epsilon: float | None = None,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float | None = None,
    sliding_window_cache: int = 0,
    smooth_softmax: int = 0,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
    n_outputs: int,
) -> tuple[Array | None, ...]:
    if seqlens_k is None or total_sequence_length is None:
        raise ValueError("GroupQueryAttention needs seqlens_k and total_sequence_length")
    total = int(total_sequence_length.item())
    q, k, v = grouped_heads(query, key, value, num_heads, kv_num_heads)
    length = q.shape[2]
    lengths = seqlens_k.reshape([-1]) + 1
    fresh = mx.minimum(lengths, length) if query_seqlens is None else query_seqlens
    # where the chunk begins: one batch entry without padding ends at the total length
    starts = total - length if q.shape[0] == 1 and query_seqlens is None else lengths - fresh
    if q_norm_weight is not None and k_norm_weight is not None:
        q = head_norm(q, q_norm_weight, qk_norm_epsilon if q_norm_epsilon is None else q_norm_epsilon)
        k = head_norm(k, k_norm_weight, qk_norm_epsilon if k_norm_epsilon is None else k_norm_epsilon)
    if do_rotary and cos_cache is not None and sin_cache is not None:
        positions = positions_from(starts, length) if position_ids is None else position_ids
        q, k = (turned(x, positions, cos_cache, sin_cache, rotary_interleaved) for x in (q, k))
    bits = kv_cache_bit_width or 8
    k = cached(past_key, stored(k, k_scale, bits), starts, fresh, total)
    v = cached(past_value, stored(v, v_scale, bits), starts, fresh, total)
    distance = behind(length, total, starts)
    keeps = [distance >= 0] if causal else [first_keys(lengths, total)]
    keeps += [distance < local_window_size] if local_window_size > 0 else []
    bias = None if attention_bias is None else attention_bias[..., :total]
    sinks = mx.zeros([num_heads], q.dtype) if head_sink is None and smooth_softmax == 1 else head_sink
    stage = {1: BIASED, 2: WEIGHTS}.get(qk_output)
    keys, values = loaded(k[:, :, :total], k_scale, bits), loaded(v[:, :, :total], v_scale, bits)
    y, scores = attend(q, keys, values, scale, excluding(keeps, bias), softcap, sinks, stage)
    return (merge_heads(y), k, v, scores)[:n_outputs]


def stored(x: Array, scale: Array | None, bits: int) -> Array:
    """Rows as a cache keeps them: as they are, as int8, or as two 4-bit values in a byte, the first one lowest."""
    if scale is None:
        return x
    bound = 1 << (bits - 1)
    level = mx.clip(mx.round(widen(x) / scale), -bound, bound - 1)
    if bits == 8:
        return level.astype(mx.int8)
    codes = (level + bound).astype(mx.uint8)
    return mx.bitwise_or(codes[..., ::2], mx.left_shift(codes[..., 1::2], 4))


def loaded(cache: Array, scale: Array | None, bits: int) -> Array:
    if scale is None:
        return cache
    level = cache if bits == 8 else unpacked(cache, bits).astype(mx.int32) - (1 << (bits - 1))
    return level.astype(mx.float32) * scale


def grouped_heads(
    query: Array, key: Array | None, value: Array | None, heads: int, kv_heads: int
) -> tuple[Array, Array, Array]:
    """q [B, H, L, D], k and v [B, Hkv, L, D] of separate tensors or of all three side by side."""
    if key is None or value is None:
        depth = query.shape[-1] // (heads + 2 * kv_heads)
        query, key, value = mx.split(query, [heads * depth, (heads + kv_heads) * depth], -1)
    return split_heads(query, heads), split_heads(key, kv_heads), split_heads(value, kv_heads)


def head_norm(x: Array, weight: Array, epsilon: float) -> Array:
    wide = widen(x)
    scaled = wide * mx.rsqrt(mx.mean(mx.square(wide), -1, keepdims=True) + epsilon)
    return (scaled * widen(weight)).astype(x.dtype)


def positions_from(starts: int | Array, length: int) -> Array:
    """[1 or B, length]: counted from each start."""
    return (
        mx.arange(length)
        + (starts if isinstance(starts, int) else starts.reshape([-1, 1]))
        + mx.zeros([1, 1], mx.int32)
    )


def turned(x: Array, positions: Array, cos: Array, sin: Array, interleaved: int) -> Array:
    cos, sin = at(positions, widen(cos), widen(sin))
    return rotated(widen(x), cos, sin, interleaved).astype(x.dtype)


def cached(past: Array | None, new: Array, starts: int | Array, fresh: Array, total: int) -> Array:
    """[B, Hkv, C, D]: the past with the new rows from each start on, as many as are fresh."""
    if past is None:
        past = new[:, :, :0]
    if isinstance(starts, int):
        return written(past, new, starts)
    length = max(past.shape[2], total)
    past = mx.pad(past, [(0, 0), (0, 0), (0, length - past.shape[2]), (0, 0)])
    row = mx.arange(length)[:, None] - starts.reshape([-1, 1, 1, 1])
    rows = mx.broadcast_to(mx.clip(row, 0, new.shape[2] - 1), past.shape)
    is_new = mx.logical_and(row >= 0, row < fresh.reshape([-1, 1, 1, 1]))
    return mx.where(is_new, mx.take_along_axis(new, rows, 2), past)


@op(
    "SparseAttention",
    domain=MICROSOFT,
    host=("block_row_indices", "block_col_indices", "total_sequence_length"),
    dtypes={"query": SINGLES, "key_total_sequence_lengths": INT32},
)
def sparse_attention(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    block_row_indices: np.ndarray | None = None,
    block_col_indices: np.ndarray | None = None,
    total_sequence_length: np.ndarray | None = None,
    key_total_sequence_lengths: Array | None = None,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    *,
    do_rotary: int = 0,
    kv_num_heads: int,
    num_heads: int,
    rotary_interleaved: int = 0,
    scale: float | None = None,
    sparse_block_size: int,
) -> tuple[Array, Array, Array]:
    if block_row_indices is None or block_col_indices is None or total_sequence_length is None:
        raise ValueError("SparseAttention needs its block mask and total_sequence_length")
    if key_total_sequence_lengths is None:
        raise ValueError("SparseAttention needs key_total_sequence_lengths")
    total = int(total_sequence_length.item())
    q, k, v = grouped_heads(query, key, value, num_heads, kv_num_heads)
    length, lengths = q.shape[2], key_total_sequence_lengths
    fresh = mx.minimum(lengths, length)
    starts = lengths - fresh
    positions = positions_from(starts, length)
    if do_rotary and cos_cache is not None and sin_cache is not None:
        q, k = (turned(x, positions, cos_cache, sin_cache, rotary_interleaved) for x in (q, k))
    k, v = cached(past_key, k, starts, fresh, total), cached(past_value, v, starts, fresh, total)
    blocks = block_mask(block_row_indices, block_col_indices)
    columns = np.repeat(blocks, sparse_block_size, 2)[:, :, :total]
    rows = mx.clip(positions // sparse_block_size, 0, blocks.shape[1] - 1)
    layouts = mx.take(mx.array(columns), rows, 1).swapaxes(0, 1)
    sparse = mx.tile(layouts, [1, num_heads // blocks.shape[0], 1, 1])
    bias = excluding([sparse, behind(length, total, starts) >= 0])
    return merge_heads(attend(q, k[:, :, :total], v[:, :, :total], scale, bias)[0]), k, v


def block_mask(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """[layouts, blocks, blocks]: compressed rows made dense."""
    blocks = rows.shape[1] - 1
    mask = np.zeros([len(rows), blocks, blocks], bool)
    for layout, ends in enumerate(rows):
        for row, (start, end) in enumerate(pairwise(ends)):
            mask[layout, row, columns[layout, start:end]] = True
    return mask


PLAIN_PAGES = only_plain(
    {14: "k_scale", 15: "v_scale"},
    {
        "k_cache_dtype": "",
        "k_quant_type": "NONE",
        "kv_cache_layout": "SEPARATE",
        "rotary_offset": 0,
        "v_cache_dtype": "",
        "v_head_size": 0,
        "v_quant_type": "NONE",
    },
)


def plain_pages(node: Node) -> str | None:
    """Two caches of the query's type, both also outputs; the whole or the first part of a head is rotated."""
    if node.n_outputs < 3:
        return "the caches are no outputs, so they would have to be changed in place"
    return PLAIN_PAGES(node)


@op(
    "PagedAttention",
    domain=MICROSOFT,
    dtypes={"query": SINGLES, "key_cache": SINGLES, "value_cache": SINGLES, "block_table": INT32},
    claim=plain_pages,
)
def paged_attention(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    key_cache: Array | None = None,
    value_cache: Array | None = None,
    cumulative_sequence_length: Array | None = None,
    past_seqlens: Array | None = None,
    block_table: Array | None = None,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    slot_mapping: Array | None = None,
    head_sink: Array | None = None,
    q_norm_weight: Array | None = None,
    k_norm_weight: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    attention_metadata: Array | None = None,
    *,
    do_rotary: int = 0,
    is_causal: int = 1,
    k_cache_dtype: str = "",
    k_quant_type: str = "NONE",
    kv_cache_layout: str = "SEPARATE",
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_norm_epsilon: float = 1e-6,
    rotary_interleaved: int = 0,
    rotary_offset: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    v_cache_dtype: str = "",
    v_head_size: int = 0,
    v_quant_type: str = "NONE",
) -> tuple[Array, Array, Array]:
    if key_cache is None or value_cache is None:
        raise ValueError("PagedAttention needs its two caches")
    if cumulative_sequence_length is None or past_seqlens is None or block_table is None:
        raise ValueError("PagedAttention needs the lengths of its sequences and their block_table")
    tokens = Ragged(cumulative_sequence_length.astype(mx.int64), query.shape[0])
    requests, (batch, pages), size = tokens.requests, block_table.shape, key_cache.shape[1]
    position = mx.arange(tokens.count) - mx.take(tokens.starts, requests) + mx.take(past_seqlens, requests)
    key, value = (None if x is None else x[None] for x in (key, value))
    q, k, v = grouped_heads(query[None], key, value, num_heads, kv_num_heads)
    if q_norm_weight is not None and k_norm_weight is not None:
        q, k = head_norm(q, q_norm_weight, qk_norm_epsilon), head_norm(k, k_norm_weight, qk_norm_epsilon)
    if do_rotary and cos_cache is not None and sin_cache is not None:
        q, k = (turned(x, position[None], cos_cache, sin_cache, rotary_interleaved) for x in (q, k))
    # a row of the caches for every token; tokens without one go to a row that is dropped
    page = mx.clip(position // size, 0, pages - 1)
    block = mx.take(block_table.flatten(), requests * pages + page)
    slot = mx.where(block < 0, -1, block * size + position % size) if slot_mapping is None else slot_mapping
    key_cache, value_cache = (filled(cache, x, slot) for cache, x in ((key_cache, k), (value_cache, v)))
    # every token sees the pages of all requests, less those that are not its own
    mapped = in_range(block_table, key_cache.shape[0]).flatten()
    keys, values = (pages_of(cache, mapped) for cache in (key_cache, value_cache))
    owner = mx.array(np.repeat(np.arange(batch), pages * size))
    place = mx.array(np.tile(np.arange(pages * size), batch))
    known = mx.logical_and(
        mx.repeat(block_table.flatten() >= 0, size), place < mx.take(past_seqlens + tokens.lengths, owner)
    )
    distance = position[:, None] - place
    keeps = [requests[:, None] == owner, known[None]]
    keeps += [distance >= 0] if is_causal else []
    keeps += [distance < local_window_size] if local_window_size > 0 else []
    y, _ = attend(q, keys, values, scale, excluding(keeps), softcap, head_sink)
    return merge_heads(y)[0], key_cache, value_cache


def filled(cache: Array, new: Array, slots: Array) -> Array:
    """A cache [blocks, size, H, D] with the rows [1, H, T, D] written to slots; those below 0 are left out."""
    rows = cache.reshape([-1, *cache.shape[2:]])
    table = mx.concatenate([rows, mx.zeros_like(rows[:1])])
    place = mx.clip(mx.where(slots < 0, rows.shape[0], slots), 0, rows.shape[0])
    return scatter_rows(table, place, new[0].swapaxes(0, 1).astype(cache.dtype), "none")[:-1].reshape(cache.shape)


def pages_of(cache: Array, blocks: Array) -> Array:
    """[1, H, blocks * size, D]: the pages of a cache, one after the other."""
    pages = mx.take(cache, blocks, 0)
    return pages.reshape([-1, *pages.shape[2:]]).swapaxes(0, 1)[None]
