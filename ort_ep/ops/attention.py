"""Scaled dot product attention: the core that all attention operators share, ONNX's own form, rotary embedding."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops import precision
from ort_ep.ops.indexing import in_range
from ort_ep.ops.precision import widen, widened
from ort_ep.registry import FLOATS, INDEX, op

# which stage of the scores an operator may ask for as an output
RAW, CAPPED, BIASED, WEIGHTS = range(4)


def split_heads(x: Array, heads: int) -> Array:
    """[B, L, heads * D] -> [B, heads, L, D]."""
    batch, length, hidden = x.shape
    return x.reshape([batch, length, heads, hidden // heads]).swapaxes(1, 2)


def merge_heads(x: Array) -> Array:
    """[B, heads, L, D] -> [B, L, heads * D]."""
    batch, heads, length, depth = x.shape
    return x.swapaxes(1, 2).reshape([batch, length, heads * depth])


def attend(
    q: Array,
    k: Array,
    v: Array,
    scale: float | None = None,
    bias: Array | None = None,
    softcap: float = 0.0,
    sinks: Array | None = None,
    stage: int | None = None,
) -> tuple[Array, Array | None]:
    """softmax(scale * q @ k.T + bias) @ v over [B, H, L, D] and [B, Hkv, S, D], and the scores at a stage.

    A query whose keys all have a bias of -inf gives zeros. `sinks` [H] are scores of keys without a value.
    """
    batch, heads, length, depth = q.shape
    scale = scale or 1 / math.sqrt(depth)
    bias = None if bias is None else bias.astype(widen(q).dtype)
    if not (q.size and k.size):
        scores = mx.zeros([batch, heads, length, k.shape[2]], q.dtype)
        return mx.zeros([batch, heads, length, v.shape[3]], q.dtype), scores
    if fused(q, softcap, stage):
        y = mx.fast.scaled_dot_product_attention(
            q, k, v.astype(q.dtype), scale=scale, mask=None if bias is None else bias.astype(q.dtype), sinks=sinks
        )
        return without_empty_rows(y, bias), None
    stages = [product(widen(q) * scale, widen(k))]
    stages.append(precision.tanh(stages[RAW] / softcap) * softcap if softcap else stages[RAW])
    stages.append(stages[CAPPED] if bias is None else stages[CAPPED] + bias)
    stages.append(without_empty_rows(weights(stages[BIASED], sinks), bias))
    y = mixture(stages[WEIGHTS], widen(v)).astype(q.dtype)
    return y, None if stage is None else stages[stage].astype(q.dtype)


def fused(q: Array, softcap: float, stage: int | None) -> bool:
    """Whether MLX's kernel does it; on the CPU it is composed, and of 16-bit products that are slow."""
    return not precision.on_cpu() and not softcap and stage is None


def product(q: Array, k: Array) -> Array:
    """q @ k.T where a head of k serves several heads of q."""
    batch, heads, length, depth = q.shape
    grouped = q.reshape([batch, k.shape[1], heads // k.shape[1] * length, depth])
    return mx.matmul(grouped, k.swapaxes(2, 3)).reshape([batch, heads, length, k.shape[2]])


def mixture(weights: Array, v: Array) -> Array:
    """weights @ v where a head of v serves several heads of the weights."""
    batch, heads, length, keys = weights.shape
    grouped = weights.reshape([batch, v.shape[1], heads // v.shape[1] * length, keys])
    return mx.matmul(grouped, v).reshape([batch, heads, length, v.shape[3]])


def weights(scores: Array, sinks: Array | None) -> Array:
    if sinks is None:
        return precision.softmax(scores, -1)
    sink = mx.broadcast_to(widen(sinks).reshape([-1, 1, 1]), [*scores.shape[:-1], 1])
    return precision.softmax(mx.concatenate([scores, sink], -1), -1)[..., :-1]


def without_empty_rows(x: Array, bias: Array | None) -> Array:
    """Zeros in the rows whose bias excludes every key."""
    if bias is None:
        return x
    return mx.where(mx.max(bias, -1, keepdims=True) == -math.inf, mx.zeros_like(x), x)


def excluding(keeps: Iterable[Array], bias: Array | None = None) -> Array | None:
    """The bias that is -inf where one of `keeps` is false; None where nothing is excluded or added."""
    keeps = list(keeps)
    if not keeps:
        return bias
    keep = reduce(mx.logical_and, keeps)
    return mx.where(keep, mx.array(0, mx.float32) if bias is None else bias, mx.array(-math.inf, mx.float32))


def behind(queries: int, keys: int, offset: int | Array) -> Array:
    """How far key j lies before query i, the first of which has position `offset` (or one for each batch)."""
    distance = mx.arange(queries)[:, None] - mx.arange(keys)
    return distance + (offset if isinstance(offset, int) else offset.astype(mx.int32).reshape([-1, 1, 1, 1]))


def first_keys(lengths: Array, keys: int) -> Array:
    """[B, 1, 1, keys]: true for as many keys of each batch as its length says."""
    return mx.arange(keys) < lengths.reshape([-1, 1, 1, 1])


@op("Attention", since=23, dtypes={"q": FLOATS, "k": FLOATS, "v": FLOATS})
def attention(
    q: Array,
    k: Array,
    v: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    left_window_size: int = -1,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int = 1,
    n_outputs: int,
) -> tuple[Array | None, ...]:
    flat = q.ndim == 3
    if flat:
        q, k, v = split_heads(q, q_num_heads), split_heads(k, kv_num_heads), split_heads(v, kv_num_heads)
    offset: int | Array = 0
    if past_key is not None and past_value is not None:
        offset = past_key.shape[2]
        k, v = mx.concatenate([past_key, k], 2), mx.concatenate([past_value, v], 2)
    elif nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen - q.shape[2]
    distance = behind(q.shape[2], k.shape[2], offset)
    keeps = [distance >= 0] if is_causal else []
    keeps += [distance <= left_window_size] if left_window_size >= 0 else []
    keeps += [distance >= -right_window_size] if right_window_size >= 0 else []
    keeps += [] if nonpad_kv_seqlen is None else [first_keys(nonpad_kv_seqlen, k.shape[2])]
    bias = None if attn_mask is None else covering(attn_mask, k.shape[2])
    if bias is not None and bias.dtype == mx.bool_:
        keeps, bias = [*keeps, bias], None
    stage = qk_matmul_output_mode if n_outputs > 3 else None
    y, scores = attend(q, k, v, scale, excluding(keeps, bias), softcap, None, stage)
    return (merge_heads(y) if flat else y, k, v, scores)[:n_outputs]


def covering(mask: Array, keys: int) -> Array:
    """A mask that may be shorter than the keys, which then excludes the others."""
    missing = keys - mask.shape[-1]
    if not missing:
        return mask
    fill = mx.array(False) if mask.dtype == mx.bool_ else mx.array(-math.inf, mx.float32)
    mask = mask if mask.dtype == mx.bool_ else mask.astype(mx.float32)
    return mx.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=fill)


@op("RotaryEmbedding", since=23, dtypes={"x": FLOATS, "position_ids": INDEX})
@widened
def rotary_embedding(
    x: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Array:
    cos, sin = (cos_cache, sin_cache) if position_ids is None else at(position_ids, cos_cache, sin_cache)
    return rotated_heads(x, num_heads, cos, sin, interleaved)


def rotated_heads(x: Array, heads: int, cos: Array, sin: Array, interleaved: int) -> Array:
    """As `rotated`, of [B, H, L, D] or of heads side by side [B, L, H * D]; by default as long as they are turned."""
    if x.ndim == 4:
        return rotated(x, cos, sin, interleaved)
    heads = heads or x.shape[-1] // (2 * cos.shape[-1])
    return merge_heads(rotated(split_heads(x, heads), cos, sin, interleaved))


def at(positions: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    """The rows [B, L, R / 2] of the caches for positions [B, L]."""
    rows = in_range(positions, cos.shape[0])
    return mx.take(cos, rows, 0), mx.take(sin, rows, 0)


def rotated(x: Array, cos: Array, sin: Array, interleaved: int) -> Array:
    """Pairs of features of [B, H, L, D] turned by the angles [B, L, R / 2]; features beyond R stay."""
    cos, sin = cos[:, None], sin[:, None]
    size = 2 * cos.shape[-1]
    turning = x[..., :size]
    first, second = (turning[..., ::2], turning[..., 1::2]) if interleaved else mx.split(turning, 2, -1)
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    if interleaved:
        turned = mx.stack([real, imaginary], -1).reshape(turning.shape)
    else:
        turned = mx.concatenate([real, imaginary], -1)
    return turned if size == x.shape[-1] else mx.concatenate([turned, x[..., size:]], -1)
