"""Normalisation of com.microsoft: with embeddings, skips, groups and gates fused into it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops import precision
from ort_ep.ops.indexing import in_range
from ort_ep.ops.norm import layer_normalization, standardised
from ort_ep.ops.precision import widen, widened
from ort_ep.ops.quant import dequantize_linear
from ort_ep.registry import INT32, MICROSOFT, SINGLES, op


def rows_of(table: Array, ids: Array) -> Array:
    return mx.take(table, in_range(ids, table.shape[0]), 0)


def embedded(
    rows: Sequence[Array | None], ids: Array, gamma: Array, beta: Array, mask: Array | None, epsilon: float
) -> tuple[Array, Array, Array]:
    """The normalised sum of the rows of each table, the lengths by the mask, and the sum."""
    total = reduce(mx.add, [row for row in rows if row is not None])
    lengths = mx.zeros([ids.shape[0]], mx.int32) if mask is None else mx.sum(mask == 1, 1).astype(mx.int32)
    return layer_normalization(total, gamma, beta, epsilon=epsilon)[0], lengths, total


def places(ids: Array) -> Array:
    return mx.arange(ids.shape[1])[None]


@op("EmbedLayerNormalization", domain=MICROSOFT, dtypes={"input_ids": INT32})
def embed_layer_normalization(
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding: Array,
    position_embedding: Array,
    segment_embedding: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None = None,
    position_ids: Array | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
    n_outputs: int,
) -> tuple[Array, ...]:
    segments = mx.zeros_like(input_ids) if segment_ids is None else segment_ids
    rows = [
        rows_of(word_embedding, input_ids),
        rows_of(position_embedding, places(input_ids) if position_ids is None else position_ids),
        None if segment_embedding is None else rows_of(segment_embedding, segments),
    ]
    return embedded(rows, input_ids, gamma, beta, mask, epsilon)[:n_outputs]


@op("QEmbedLayerNormalization", domain=MICROSOFT, dtypes={"input_ids": INT32})
def quantized_embed_layer_normalization(
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding: Array,
    position_embedding: Array,
    segment_embedding: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None,
    word_embedding_scale: Array,
    position_embedding_scale: Array,
    segment_embedding_scale: Array | None,
    gamma_scale: Array,
    beta_scale: Array,
    word_embedding_zero_point: Array,
    position_embedding_zero_point: Array,
    segment_embedding_zero_point: Array | None,
    gamma_zero_point: Array,
    beta_zero_point: Array,
    *,
    epsilon: float = 1e-12,
    n_outputs: int,
) -> tuple[Array, ...]:
    rows: list[Array | None] = [
        dequantize_linear(rows_of(word_embedding, input_ids), word_embedding_scale, word_embedding_zero_point),
        dequantize_linear(
            rows_of(position_embedding, places(input_ids)), position_embedding_scale, position_embedding_zero_point
        ),
    ]
    if segment_embedding is not None and segment_embedding_scale is not None:
        segments = mx.zeros_like(input_ids) if segment_ids is None else segment_ids
        named = rows_of(segment_embedding, segments)
        rows.append(dequantize_linear(named, segment_embedding_scale, segment_embedding_zero_point))
    gain = dequantize_linear(gamma, gamma_scale, gamma_zero_point)
    shift = dequantize_linear(beta, beta_scale, beta_zero_point)
    return embedded(rows, input_ids, gain, shift, mask, epsilon)[:n_outputs]


@op("GroupNorm", domain=MICROSOFT, dtypes=SINGLES)
@widened
def group_norm(
    x: Array,
    gamma: Array,
    beta: Array,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> Array:
    batch, channels = x.shape[0], x.shape[-1] if channels_last else x.shape[1]
    size = channels // groups
    if channels_last:
        parts = x.reshape([batch, math.prod(x.shape[1:-1]), groups, size])
        normal = standardised(parts, [1, 3], epsilon)[0].reshape(x.shape)
        y = normal * gamma + beta
    else:
        parts = x.reshape([batch, groups, size * math.prod(x.shape[2:])])
        normal = standardised(parts, [2], epsilon)[0].reshape(x.shape)
        y = normal * gamma.reshape([-1, 1, 1]) + beta.reshape([-1, 1, 1])
    return y * precision.sigmoid(y) if activation else y


@op("SkipGroupNorm", domain=MICROSOFT, dtypes=SINGLES)
def skip_group_norm(
    x: Array,
    gamma: Array,
    beta: Array,
    skip: Array,
    bias: Array | None = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
    n_outputs: int,
) -> tuple[Array, ...]:
    def spread(values: Array) -> Array:
        return values if channels_last else values.swapaxes(-1, 1)

    added = skip if skip.ndim == x.ndim else spread(skip.reshape([skip.shape[0], 1, 1, skip.shape[-1]]))
    total = widen(x) + widen(added)
    total = total if bias is None else total + spread(widen(bias).reshape([1, 1, 1, -1]))
    total = total.astype(x.dtype)
    y = group_norm(
        total, gamma, beta, activation=activation, channels_last=channels_last, epsilon=epsilon, groups=groups
    )
    return (y, total)[:n_outputs]


def root_mean_square(x: Array, epsilon: float) -> Array:
    return x * mx.rsqrt(mx.mean(mx.square(x), -1, keepdims=True) + epsilon)


@op("GatedRMSNorm", domain=MICROSOFT, dtypes=SINGLES)
@widened
def gated_rms_norm(x: Array, scale: Array, gate: Array, *, activation: str = "silu", epsilon: float = 1e-5) -> Array:
    groups = x.reshape([*x.shape[:-1], x.shape[-1] // scale.size, scale.size])
    normal = (root_mean_square(groups, epsilon) * scale).reshape(x.shape)
    opened = precision.sigmoid(gate)
    return normal * (opened if activation == "sigmoid" else gate * opened)


@op("BranchwiseRMSNorm", domain=MICROSOFT, dtypes={"x": SINGLES, "scale": SINGLES})
@widened
def branchwise_rms_norm(x: Array, scale: Array | None = None, *, epsilon: float = 1e-5, num_branches: int = 0) -> Array:
    branches = x.reshape([*x.shape[:-1], num_branches, x.shape[-1] // num_branches]) if num_branches else x
    normal = root_mean_square(branches, epsilon)
    if scale is not None:
        normal = normal * scale.reshape([-1, branches.shape[-1]])
    return normal.reshape(x.shape)
