"""Residual streams side by side: how they are reduced to one, mixed, and gated."""

from __future__ import annotations

import math

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops import precision
from ort_ep.ops.microsoft_norm import root_mean_square
from ort_ep.ops.precision import widened
from ort_ep.registry import MICROSOFT, SINGLES, op


def grouped(streams: Array, branches: int) -> Array:
    """[..., C * H] -> [..., C, H]; streams that are already grouped stay."""
    return streams.reshape([*streams.shape[:-1], branches, streams.shape[-1] // branches]) if branches else streams


def gates(mix: Array, streams: Array) -> Array:
    """Gates of branches [..., C] or of features [..., C * H], to broadcast over grouped streams [..., C, H]."""
    if mix.ndim == streams.ndim:
        return mix
    return mix[..., None] if mix.shape[-1] == streams.shape[-2] else mix.reshape(streams.shape)


@op("HyperConnectionPreMix", domain=MICROSOFT, dtypes={"streams": SINGLES, "pre_mix": SINGLES})
@widened
def hyper_connection_pre_mix(
    streams: Array, pre_mix: Array, *, num_branches: int = 0, reduction_scale: float = 1.0
) -> Array:
    x = grouped(streams, num_branches)
    return mx.sum(x * gates(pre_mix, x), -2) * reduction_scale


@op("HyperConnectionPostMix", domain=MICROSOFT, dtypes={"streams": SINGLES, "post_mix": SINGLES})
@widened
def hyper_connection_post_mix(
    streams: Array, block_output: Array, post_mix: Array, stream_mix: Array | None = None, *, num_branches: int = 0
) -> Array:
    x = grouped(streams, num_branches)
    mixed = x if stream_mix is None else mx.matmul(stream_mix.swapaxes(-1, -2).astype(x.dtype), x)
    return (mixed + gates(post_mix, x) * block_output[..., None, :]).reshape(streams.shape)


@op("EngramGate", domain=MICROSOFT, dtypes=SINGLES)
@widened
def engram_gate(
    key: Array,
    query: Array,
    value: Array,
    key_norm_scale: Array,
    query_norm_scale: Array,
    conv_norm_scale: Array | None = None,
    *,
    epsilon: float = 1e-5,
    n_outputs: int,
) -> tuple[Array, ...]:
    alike = root_mean_square(key, epsilon) * key_norm_scale * root_mean_square(query, epsilon) * query_norm_scale
    dot = mx.sum(alike, -1, keepdims=True) / math.sqrt(key.shape[-1])
    gated = precision.sigmoid(mx.sign(dot) * mx.sqrt(mx.maximum(mx.abs(dot), 1e-6))) * value[:, :, None]
    if conv_norm_scale is None:
        return (gated,)
    return (gated, root_mean_square(gated, epsilon) * conv_norm_scale)[:n_outputs]
