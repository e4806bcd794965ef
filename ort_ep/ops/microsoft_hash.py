"""Hashes of numbers and of runs of tokens, in wrapping integer arithmetic."""

from __future__ import annotations

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops.arithmetic import safe_divisor
from ort_ep.ops.indexing import in_range
from ort_ep.ops.ragged import Ragged
from ort_ep.registry import INDEX, MICROSOFT, op

HASHED = INDEX | {"uint32", "uint64", "float32", "float64"}


@op("MurmurHash3", domain=MICROSOFT, dtypes=HASHED)
def murmur_hash_3(x: Array, *, positive: int = 1, seed: int = 0) -> Array:
    def word(value: int) -> Array:
        return mx.array(value & 0xFFFFFFFF, mx.uint32)

    def rotated(bits: Array, by: int) -> Array:
        return mx.bitwise_or(mx.left_shift(bits, word(by)), mx.right_shift(bits, word(32 - by)))

    def folded(bits: Array, by: int) -> Array:
        return mx.bitwise_xor(bits, mx.right_shift(bits, word(by)))

    words = mx.view(x.reshape([-1, 1]), mx.uint32)
    digest = mx.full([words.shape[0]], seed & 0xFFFFFFFF, mx.uint32)
    for part in range(words.shape[1]):
        mixed = rotated(words[:, part] * word(0xCC9E2D51), 15) * word(0x1B873593)
        digest = rotated(mx.bitwise_xor(digest, mixed), 13) * word(5) + word(0xE6546B64)
    digest = mx.bitwise_xor(digest, word(x.itemsize))
    digest = folded(folded(folded(digest, 16) * word(0x85EBCA6B), 13) * word(0xC2B2AE35), 16)
    return (digest if positive else mx.view(digest, mx.int32)).reshape(x.shape)


def ngram_hashes(
    tokens: Ragged,
    ids: Array,
    multipliers: Array,
    vocabularies: Array,
    past: Array,
    offsets: Array | None,
    missing: Array,
    ends_history: Array | None,
    segments: tuple[Array, Array] | None,
) -> Array:
    """[T, orders * heads] of ids [T]: the xor of as many products as the order has tokens, for each vocabulary.

    past [B, n - 1] comes before the first tokens. History ends at the token `ends_history`, and where the segment
    (of the tokens, and of the past) changes; `missing` stands for what lies beyond.
    """
    longest, requests = past.shape[1] + 1, tokens.requests
    place = mx.arange(tokens.count) - mx.take(tokens.starts, requests)
    mixed, cut = ids * multipliers[0], mx.zeros([tokens.count], mx.bool_)
    newer = segments[0] if segments else None
    heads = vocabularies.size // (longest - 1)
    hashes = []
    for shift in range(1, longest):
        earlier = tokens.rows(ids, past, requests, place - shift)
        if segments is not None and newer is not None:
            older = tokens.rows(*segments, requests, place - shift)
            cut, newer = mx.logical_or(cut, older != newer), older
        if ends_history is not None:
            cut = mx.logical_or(cut, earlier == ends_history)
        mixed = mx.bitwise_xor(mixed, mx.where(cut, missing, earlier) * multipliers[shift])
        sizes = vocabularies[(shift - 1) * heads : shift * heads]
        hashes.append(mx.remainder(mixed[:, None], safe_divisor(sizes)))
    found = mx.concatenate(hashes, 1)
    return found if offsets is None else found + offsets


@op("NGramHashMapping", domain=MICROSOFT, dtypes=INDEX)
def ngram_hash_mapping(
    input_ids: Array,
    multipliers: Array,
    vocab_sizes: Array,
    past_ids: Array | None = None,
    head_offsets: Array | None = None,
    eos_token_id: Array | None = None,
    segment_ids: Array | None = None,
    *,
    max_ngram_size: int,
    n_head_per_ngram: int,
    pad_id: int,
    reset_on_eos: int = 0,
    n_outputs: int,
) -> tuple[Array, ...]:
    (batch, length), kept = input_ids.shape, max_ngram_size - 1
    missing = mx.array(pad_id, input_ids.dtype) if eos_token_id is None else eos_token_id.reshape([])
    past = mx.broadcast_to(missing, [batch, kept]) if past_ids is None else past_ids
    segments = None
    if segment_ids is not None:  # a past of the first token's segment: what came before this call is not cut off
        segments = segment_ids.flatten(), mx.broadcast_to(segment_ids[:, :1], [batch, kept])
    tokens = Ragged(mx.array(np.arange(batch + 1) * length), batch * length)
    ends = missing if reset_on_eos and eos_token_id is not None else None
    hashes = ngram_hashes(
        tokens, input_ids.flatten(), multipliers, vocab_sizes, past, head_offsets, missing, ends, segments
    )
    present = mx.concatenate([past, input_ids], 1)[:, length:]
    return (hashes.reshape([batch, length, hashes.shape[1]]), present)[:n_outputs]


@op("VarlenNGramHashMapping", domain=MICROSOFT, dtypes=INDEX)
def packed_ngram_hash_mapping(
    input_ids: Array,
    multipliers: Array,
    vocab_sizes: Array,
    cumulative_sequence_length: Array,
    past_ids: Array | None = None,
    head_offsets: Array | None = None,
    eos_token_id: Array | None = None,
    segment_ids: Array | None = None,
    past_segment_ids: Array | None = None,
    capture_count: Array | None = None,
    *,
    max_ngram_size: int,
    n_head_per_ngram: int,
    pad_id: int,
    reset_on_eos: int = 0,
    state_update_capacity: int = 0,
    n_outputs: int,
) -> tuple[Array | None, ...]:
    batch, kept = cumulative_sequence_length.size - 1, max_ngram_size - 1
    tokens = Ragged(cumulative_sequence_length.astype(mx.int64), input_ids.size)
    missing = mx.array(pad_id, input_ids.dtype) if eos_token_id is None else eos_token_id.reshape([])
    past = mx.broadcast_to(missing, [batch, kept]) if past_ids is None else past_ids
    segments = None
    if segment_ids is not None:
        first = mx.take(segment_ids, in_range(tokens.starts[:-1], tokens.count))[:, None]
        earlier = mx.broadcast_to(first, [batch, kept]) if past_segment_ids is None else past_segment_ids
        segments = segment_ids, earlier
    ends = missing if reset_on_eos and eos_token_id is not None else None
    hashes = ngram_hashes(tokens, input_ids, multipliers, vocab_sizes, past, head_offsets, missing, ends, segments)
    owners = mx.arange(batch)[:, None]
    last = tokens.lengths[:, None] + mx.array(np.arange(-kept, 0))
    present = tokens.rows(input_ids, past, owners, last)
    present_segments = None if segments is None else tokens.rows(*segments, owners, last)
    state = None
    if capture_count is not None:
        slots = np.arange(state_update_capacity)
        places = mx.array(slots[:, None] + np.arange(1 - kept, 1))
        held = tokens.rows(input_ids, past, owners[..., None], mx.broadcast_to(places, [batch, *places.shape]))
        used = mx.array(slots) < mx.minimum(capture_count, tokens.lengths)[:, None]
        state = mx.where(used[..., None], held, mx.array(pad_id, held.dtype))
    return (hashes, present, present_segments, state)[:n_outputs]
