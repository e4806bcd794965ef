"""Normalisation of com.microsoft: with embeddings, skips, groups and gates fused into it."""

from __future__ import annotations

import math
from collections.abc import Callable

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops import precision
from ort_ep.ops.indexing import in_range
from ort_ep.ops.norm import layer_normalization, standardised
from ort_ep.ops.precision import widen, widened
from ort_ep.ops.quant import centred
from ort_ep.registry import INT32, MICROSOFT, SINGLES, op


def rows_of(table: Array, ids: Array) -> Array:
    return mx.take(table, in_range(ids, table.shape[0]), 0)


def embedded(
    look_up: Callable[[int, Array], Array],
    ids: Array,
    segments: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None,
    positions: Array | None,
    epsilon: float,
) -> tuple[Array, Array, Array]:
    """The normalised sum of word, position and segment rows, the lengths by the mask, and the sum."""
    positions = mx.arange(ids.shape[1])[None] if positions is None else positions
    total = look_up(0, ids) + look_up(1, positions)
    total = total if segments is None else total + look_up(2, segments)
    lengths = mx.zeros([ids.shape[0]], mx.int32) if mask is None else mx.sum(mask == 1, 1).astype(mx.int32)
    return layer_normalization(total, gamma, beta, epsilon=epsilon)[0], lengths, total


@op("EmbedLayerNormalization", domain=MICROSOFT, dtypes={"input_ids": INT32})
def embed_layer_normalization(
    input_ids: Array,
    segment_ids: Array | None = None,
    *tables: Array | None,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
    n_outputs: int,
) -> tuple[Array, ...]:
    word, position, segment, gamma, beta, mask, positions = (*tables, None, None)[:7]
    if word is None or position is None or gamma is None or beta is None:
        raise ValueError("EmbedLayerNormalization needs word and position embeddings, gamma and beta")
    embeddings = (word, position, segment)

    def look_up(index: int, ids: Array) -> Array:
        table = embeddings[index]
        if table is None:
            raise ValueError("EmbedLayerNormalization has segment ids without their embedding")
        return rows_of(table, ids)

    return embedded(look_up, input_ids, segment_ids, gamma, beta, mask, positions, epsilon)[:n_outputs]


@op("QEmbedLayerNormalization", domain=MICROSOFT, dtypes={"input_ids": INT32})
def quantized_embed_layer_normalization(
    input_ids: Array,
    segment_ids: Array | None = None,
    *rest: Array | None,
    epsilon: float = 1e-12,
    n_outputs: int,
) -> tuple[Array, ...]:
    # word, position, segment, gamma, beta; the mask; then a scale and a zero point for each of the five
    tables, mask, scales, zero_points = rest[:5], rest[5], rest[6:11], rest[11:16]

    def dequantized(index: int, ids: Array | None = None) -> Array:
        table, scale, zero_point = tables[index], scales[index], zero_points[index]
        if table is None or scale is None:
            raise ValueError("QEmbedLayerNormalization lacks a table or its scale")
        return centred(table if ids is None else rows_of(table, ids), zero_point).astype(mx.float32) * scale

    gamma, beta = dequantized(3), dequantized(4)
    return embedded(dequantized, input_ids, segment_ids, gamma, beta, mask, None, epsilon)[:n_outputs]


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
