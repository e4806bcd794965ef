"""Layers that carry a state from token to token: linear attention, gated delta rules, causal convolution."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.dtypes import to_mlx
from ort_ep.graph import Node
from ort_ep.ops import precision
from ort_ep.ops.microsoft_attention import only_plain
from ort_ep.ops.precision import sigmoid, softplus, widen, widened
from ort_ep.ops.ragged import Ragged
from ort_ep.registry import INT32, MICROSOFT, SINGLES, op

GATED = ("gated", "gated_delta")
DELTA = ("delta", "gated_delta")


def recurrence(
    q: Array, k: Array, v: Array, state: Array, decay: Array | None, beta: Array | None, scale: float
) -> tuple[Array, Array]:
    """o_t = scale * q_t @ S_t over [B, T, heads, D] for S_t = decay * S_(t-1) + k_t (x) update_t, and the last S.

    The update is v_t, or with a beta, beta times what v_t lacks of the decayed state's own answer to k_t. A head of the
    state [B, H, dk, dv] serves as many heads of q as there are; heads of k may be shared likewise.
    """
    heads = state.shape[1]
    k = mx.repeat(k, heads // k.shape[2], 2)
    q = q if q.shape[2] >= heads else mx.repeat(q, heads // q.shape[2], 2)
    q = (q * scale).reshape([*q.shape[:2], heads, q.shape[2] // heads, q.shape[3]])
    outputs = []
    for step in range(q.shape[1]):
        key = k[:, step, :, :, None]
        update = v[:, step, :, None]
        if decay is not None:
            state = state * decay[:, step, :, :, None]
        if beta is not None:
            update = beta[:, step, :, None, None] * (update - mx.matmul(key.swapaxes(2, 3), state))
        state = state + key * update
        outputs.append(mx.matmul(q[:, step], state))
    shape = [q.shape[0], q.shape[1], heads * q.shape[3] * v.shape[3]]
    y = mx.stack(outputs, 1) if outputs else mx.zeros(shape, q.dtype)
    return y.reshape(shape), state


@op("LinearAttention", since=27, dtypes={"query": SINGLES, "past_state": SINGLES})
@op(
    "LinearAttention",
    domain=MICROSOFT,
    dtypes=SINGLES,
    claim=only_plain({}, {"state_window": 0}),
)
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    node: Node,
    q_num_heads: int,
    scale: float = 0.0,
    state_window: int = 0,
    update_rule: str = "gated_delta",
) -> tuple[Array, Array]:
    batch, length, _ = query.shape
    size, depth = query.shape[2] // q_num_heads, value.shape[2] // kv_num_heads

    def heads(x: Array, width: int) -> Array:
        return widen(x).reshape([batch, length, x.shape[2] // width, width])

    if past_state is None:
        state = mx.zeros([batch, kv_num_heads, size, depth], mx.float32)
    else:
        state = widen(past_state)
    gate = None
    if decay is not None and update_rule in GATED:
        gate = precision.exp(heads(decay, decay.shape[2] // kv_num_heads))
    rate = widen(beta) if beta is not None and update_rule in DELTA else None
    y, state = recurrence(
        heads(query, size), heads(key, size), heads(value, depth), state, gate, rate, scale or 1 / math.sqrt(size)
    )
    declared = node.outputs[1] if len(node.outputs) > 1 else None
    kind = to_mlx(declared.elem_type) if declared is not None and declared.elem_type else query.dtype
    return y.astype(query.dtype), state.astype(kind)


@op("LinearAttentionGate", domain=MICROSOFT, dtypes=SINGLES)
def linear_attention_gate(
    a: Array, dt_bias: Array, decay_scale: Array, b: Array | None = None, *, n_outputs: int
) -> tuple[Array | None, ...]:
    decay = (decay_scale * softplus(widen(a) + dt_bias)).astype(a.dtype)
    return (decay, None if b is None else sigmoid(widen(b)).astype(a.dtype))[:n_outputs]


GATES: dict[str, Callable[[Array, Array, Array, float], Array]] = {
    "softplus": lambda decay, a_log, bias, bound: -precision.exp(a_log) * softplus(decay + bias),
    "sigmoid": lambda decay, a_log, bias, bound: bound * sigmoid(precision.exp(a_log) * (decay + bias)),
}
GATES |= {"qwen": GATES["softplus"], "kda": GATES["sigmoid"]}


@op(
    "GatedDeltaNet",
    domain=MICROSOFT,
    dtypes=SINGLES,
    claim=only_plain({3: "cu_seqlens", 9: "capture_count"}, {"state_update_capacity": 0}),
)
def gated_delta_net(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    cu_seqlens: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    initial_state: Array | None = None,
    a_log: Array | None = None,
    dt_bias: Array | None = None,
    capture_count: Array | None = None,
    state_update_active: Array | None = None,
    *,
    beta_activation: str = "none",
    chunk_size: int = 64,
    gate_activation: str = "none",
    gate_lower_bound: float = -5.0,
    qk_l2_norm: int = 0,
    scale: float = 0.0,
    state_update_capacity: int = 0,
    update_rule: str = "gated_delta",
) -> tuple[Array, Array]:
    if initial_state is None:
        raise ValueError("GatedDeltaNet without cu_seqlens takes the batch size from initial_state")
    batch, heads, depth, size = initial_state.shape
    if key is None or value is None:
        shared = (query.shape[-1] - heads * depth) // 2
        query, key, value = mx.split(query, [shared, 2 * shared], -1)

    def tokens(x: Array, width: int) -> Array:
        """[B, T, heads, width] in float32, however the leading and the head axes are spelled."""
        count = x.size // width
        of_token = x.shape[-1] // width if x.shape[-1] != width else x.shape[-2]
        return widen(x).reshape([batch, count // (batch * of_token), of_token, width])

    q, k, v = tokens(query, size), tokens(key, size), tokens(value, depth)
    if qk_l2_norm:
        q, k = (x * mx.rsqrt(mx.sum(mx.square(x), -1, keepdims=True) + 1e-6) for x in (q, k))
    gate = None
    if decay is not None and update_rule in GATED:
        gate = widen(decay).reshape([batch, q.shape[1], heads, -1])
        if gate_activation != "none" and a_log is not None and dt_bias is not None:
            bias = dt_bias.reshape([heads, -1])
            gate = GATES[gate_activation](gate, a_log.reshape([heads, 1]), bias, gate_lower_bound)
        gate = precision.exp(gate)
    rate = None
    if beta is not None and update_rule in DELTA:
        rate = widen(beta).reshape([batch, q.shape[1], heads])
        rate = sigmoid(rate) if beta_activation == "sigmoid" else rate
    y, state = recurrence(q, k, v, initial_state.swapaxes(2, 3), gate, rate, scale or 1 / math.sqrt(size))
    lead = value.shape[:-2] if value.shape[-1] == depth and value.ndim > 2 else value.shape[:-1]
    return y.reshape([*lead, -1, depth]).astype(query.dtype), state.swapaxes(2, 3)


EXTENDED = {
    "input_channel_offset": 0,
    "input_channels": 0,
    "ndim": 1,
    "state_channels_last": -1,
    "state_length": 0,
    "state_update_capacity": 0,
    "state_window": 0,
}


@op("CausalConvWithState", since=27, dtypes=SINGLES)
@widened
def causal_conv_with_state(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    *,
    activation: str = "none",
) -> tuple[Array, Array]:
    return causal_convolution(x, weight, bias, past_state, activation, 1)


@op("CausalConvWithState", domain=MICROSOFT, dtypes=SINGLES, claim=only_plain({}, EXTENDED))
@widened
def microsoft_causal_conv_with_state(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    input_channel_offset: int = 0,
    input_channels: int = 0,
    ndim: int = 1,
    state_channels_last: int = -1,
    state_length: int = 0,
    state_update_capacity: int = 0,
    state_window: int = 0,
) -> tuple[Array, Array]:
    if not channels_last:
        return causal_convolution(x, weight, bias, past_state, activation, dilation)

    def first(values: Array) -> Array:
        """[B, L, d1, ..., dn] -> [B, channels, L]."""
        return values.reshape([*values.shape[:2], -1]).swapaxes(1, 2)

    past = None if past_state is None else first(past_state)
    y, state = causal_convolution(first(x), weight, bias, past, activation, dilation)
    return y.swapaxes(1, 2).reshape(x.shape), state.swapaxes(1, 2).reshape([x.shape[0], state.shape[2], *x.shape[2:]])


def causal_convolution(
    x: Array, weight: Array, bias: Array | None, past: Array | None, activation: str, dilation: int
) -> tuple[Array, Array]:
    """Each channel of [B, C, L] with its own taps [C, 1, k] over itself and what came before, and the new past."""
    taps, length = weight.shape[-1], x.shape[2]
    carried = (taps - 1) * dilation
    if past is None:
        past = mx.zeros([*x.shape[:2], carried], x.dtype)
    seen = mx.concatenate([past, x], 2)
    y = sum(
        (seen[:, :, tap * dilation : tap * dilation + length] * weight[:, :, tap] for tap in range(1, taps)),
        seen[:, :, :length] * weight[:, :, 0],
    )
    y = y if bias is None else y + bias[:, None]
    return (y if activation == "none" else y * sigmoid(y)), seen[:, :, seen.shape[2] - carried :]


@op(
    "VarlenCausalConvWithState",
    domain=MICROSOFT,
    dtypes={"x": SINGLES, "cumulative_sequence_length": INT32, "capture_count": INT32},
    claim=only_plain({6: "kernel_delta", 7: "previous_mask"}, {}),
)
@widened
def packed_causal_conv_with_state(
    x: Array,
    weight: Array,
    cumulative_sequence_length: Array,
    bias: Array | None = None,
    initial_state: Array | None = None,
    capture_count: Array | None = None,
    kernel_delta: Array | None = None,
    previous_mask: Array | None = None,
    *,
    activation: str = "none",
    delta_offset: int = 0,
    dilation: int = 1,
    group_size: int = 1,
    state_update_capacity: int = 0,
    n_outputs: int,
) -> tuple[Array, ...]:
    if initial_state is None:
        raise ValueError("VarlenCausalConvWithState needs its initial_state")
    tokens = Ragged(cumulative_sequence_length.astype(mx.int64), x.shape[0])
    past, taps, requests = initial_state.swapaxes(1, 2), weight.shape[-1], tokens.requests
    batch, carried, _ = past.shape
    place = mx.arange(tokens.count) - mx.take(tokens.starts, requests)
    y = sum(
        (
            tokens.rows(x, past, requests, place - (taps - 1 - tap) * dilation) * weight[:, 0, tap]
            for tap in range(1, taps)
        ),
        tokens.rows(x, past, requests, place - (taps - 1) * dilation) * weight[:, 0, 0],
    )
    y = y if bias is None else y + bias
    owners = mx.arange(batch)[:, None]
    state = tokens.rows(x, past, owners, tokens.lengths[:, None] + mx.array(np.arange(-carried, 0)))
    results = (y if activation == "none" else y * sigmoid(y), state.swapaxes(1, 2))
    if capture_count is None or n_outputs < 3:
        return results[:n_outputs]
    slots = mx.array(np.arange(state_update_capacity))
    used = slots < mx.minimum(capture_count, tokens.lengths)[:, None]
    held = tokens.rows(x, past, owners, mx.broadcast_to(slots, used.shape))
    return (*results, mx.where(used[..., None], held, mx.zeros_like(held)))
