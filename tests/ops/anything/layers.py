"""Layers of networks over ranks, axes, sizes and absent inputs, against the formulas in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from drawn import FLOATS, SEEDS, shapes, values
from hypothesis import assume, given
from hypothesis import strategies as st

Check = Callable[..., None]
LOOSE = {"float16": 8e-3, "float32": 2e-5, "float64": 1e-10}


def wide(x: Any) -> Any:
    return x.astype(np.float64)


@given(seed=SEEDS, shape=shapes(least=1, smallest=1), dtype=st.sampled_from(FLOATS), bias=st.booleans(), data=st.data())
def test_layer_norm(
    check: Check, seed: int, shape: tuple[int, ...], dtype: str, bias: bool, data: st.DataObject
) -> None:
    axis, outputs = data.draw(st.integers(-len(shape), len(shape) - 1)), data.draw(st.integers(1, 3))
    x = values(seed, dtype, shape)
    axes = tuple(range(axis % len(shape), len(shape)))
    scale, shift = values(seed + 1, dtype, shape[axes[0] :]), values(seed + 2, dtype, shape[axes[0] :])
    mean = wide(x).mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(wide(x).var(axes, keepdims=True) + 0.0078125)
    y = (wide(x) - mean) * inverse * wide(scale) + (wide(shift) if bias else 0)
    assume(dtype != "float64")  # computed in float32, by stash_type
    expect = [y.astype(dtype), mean.astype(np.float32), inverse.astype(np.float32)][:outputs]
    given_ = [x, scale, shift] if bias else [x, scale]
    check("LayerNormalization", *given_, expect=expect, axis=axis, epsilon=0.0078125, rtol=LOOSE[dtype])


@given(seed=SEEDS, shape=shapes(least=1, smallest=1), dtype=st.sampled_from(FLOATS), data=st.data())
def test_rms_norm(check: Check, seed: int, shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    axes = tuple(range(axis % len(shape), len(shape)))
    x, scale = values(seed, dtype, shape), values(seed + 1, dtype, shape[axes[0] :])
    y = wide(x) / np.sqrt((wide(x) ** 2).mean(axes, keepdims=True) + 0.0078125) * wide(scale)
    expect = y.astype(dtype)
    check("RMSNormalization", x, scale, expect=expect, axis=axis, epsilon=0.0078125, opset=23, rtol=LOOSE[dtype])


@given(
    seed=SEEDS,
    spatial=shapes(most=3, smallest=1),
    batch=st.integers(0, 2),
    groups=st.integers(1, 3),
    size=st.integers(1, 2),
    dtype=st.sampled_from(FLOATS),
)
def test_channel_norms(
    check: Check, seed: int, spatial: tuple[int, ...], batch: int, groups: int, size: int, dtype: str
) -> None:
    channels = groups * size
    x = values(seed, dtype, (batch, channels, *spatial))
    gains = [values(seed + index, dtype, (channels,)) for index in (1, 2)]
    spread = [wide(gain).reshape(channels, *[1] * len(spatial)) for gain in gains]
    rtol = LOOSE[dtype]
    parts = wide(x).reshape(batch, groups, int(np.prod(spatial, dtype=int)) * size)
    y = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 0.0078125)
    expect = (y.reshape(x.shape) * spread[0] + spread[1]).astype(dtype)
    check("GroupNormalization", x, *gains, expect=expect, num_groups=groups, epsilon=0.0078125, opset=21, rtol=rtol)
    if spatial:
        axes = tuple(range(2, x.ndim))
        mean, variance = wide(x).mean(axes, keepdims=True), wide(x).var(axes, keepdims=True)
        y = (wide(x) - mean) / np.sqrt(variance + 0.0078125) * spread[0] + spread[1]
        check("InstanceNormalization", x, *gains, expect=y.astype(dtype), epsilon=0.0078125, opset=22, rtol=rtol)
    statistics = values(seed + 3, dtype, (channels,)), values(seed + 4, dtype, (channels,), low=1)
    mean, variance = (wide(row).reshape(channels, *[1] * len(spatial)) for row in statistics)
    y = (wide(x) - mean) / np.sqrt(variance + 0.0078125) * spread[0] + spread[1]
    check("BatchNormalization", x, *gains, *statistics, expect=y.astype(dtype), epsilon=0.0078125, opset=15, rtol=rtol)


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@given(
    seed=SEEDS,
    op=st.sampled_from(sorted(GATES)),
    direction=st.sampled_from(["forward", "reverse", "bidirectional"]),
    sizes=st.tuples(*[st.integers(1, 4)] * 4),
    present=st.tuples(*[st.booleans()] * 5),
    clip=st.sampled_from([None, 0.5]),
    option=st.integers(0, 1),
)
def test_recurrent_layers_without_what_is_optional(
    check: Check,
    seed: int,
    op: str,
    direction: str,
    sizes: tuple[int, ...],
    present: tuple[bool, ...],
    clip: float | None,
    option: int,
) -> None:
    time, batch, features, hidden = sizes
    ways = 2 if direction == "bidirectional" else 1
    random, gates = np.random.default_rng(seed), GATES[op] * hidden
    bias, lengths, initial, cell, peepholes = present
    given_: list[Any] = [values(seed, "float32", (time, batch, features))]
    given_ += [values(seed + 1, "float32", (ways, gates, features)), values(seed + 2, "float32", (ways, gates, hidden))]
    given_.append(values(seed + 3, "float32", (ways, 2 * gates)) if bias else None)
    given_.append(random.integers(1, time + 1, batch).astype(np.int32) if lengths else None)
    given_.append(values(seed + 4, "float32", (ways, batch, hidden)) if initial else None)
    how: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "LSTM":
        given_.append(values(seed + 5, "float32", (ways, batch, hidden)) if cell else None)
        given_.append(values(seed + 6, "float32", (ways, 3 * hidden)) if peepholes else None)
        how["input_forget"] = option
    elif op == "GRU":
        how["linear_before_reset"] = option
    how |= {} if clip is None else {"clip": clip}
    check(op, *given_, outputs=3 if op == "LSTM" else 2, rtol=1e-4, opset=14, **how)


@given(
    seed=SEEDS,
    sizes=st.tuples(*[st.integers(1, 3)] * 6),
    mask=st.sampled_from([None, "bool", "float32"]),
    past=st.integers(0, 3),
    flat=st.booleans(),
    causal=st.integers(0, 1),
    cap=st.sampled_from([0.0, 1.5]),
)
def test_attention_without_what_is_optional(
    check: Check,
    seed: int,
    sizes: tuple[int, ...],
    mask: str | None,
    past: int,
    flat: bool,
    causal: int,
    cap: float,
) -> None:
    batch, heads, group, queries, keys, depth = sizes
    q = values(seed, "float32", (batch, heads * group, queries, 2 * depth))
    k, v = (values(seed + index, "float32", (batch, heads, keys, size)) for index, size in ((1, 2 * depth), (2, depth)))
    total = keys + past
    given_mask = None if mask is None else values(seed + 3, mask, (queries, total))
    caches = [values(seed + index, "float32", (batch, heads, past, x.shape[3])) for index, x in ((4, k), (5, v))]
    every_k, every_v = (np.concatenate(pair, 2).repeat(group, 1) for pair in zip(caches, (k, v), strict=True))
    scores = wide(q) @ wide(every_k).swapaxes(2, 3) / np.sqrt(2 * depth)
    scores = cap * np.tanh(scores / cap) if cap else scores
    seen = np.tri(queries, total, past if past else 0, dtype=bool) if causal else np.ones((queries, total), bool)
    if mask == "bool":
        seen = seen & given_mask
    elif given_mask is not None:
        scores = scores + wide(given_mask)
    scores = np.where(seen, scores, -np.inf)
    peak = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    whole = e.sum(-1, keepdims=True)
    y = e / np.where(whole == 0, 1, whole) @ wide(every_v)
    assume(not (cap and mask == "float32"))  # whether the cap comes before the mask changed with a version
    tensors = [q, k, v]
    how: dict[str, Any] = {"is_causal": causal, "softcap": cap}
    if flat:
        tensors = [x.swapaxes(1, 2).reshape(batch, x.shape[2], -1) for x in tensors]
        y = y.swapaxes(1, 2).reshape(batch, queries, -1)
        how |= {"q_num_heads": heads * group, "kv_num_heads": heads}
    more = [given_mask, *caches] if past else [given_mask]
    check("Attention", *tensors, *more, expect=y.astype(np.float32), opset=24, rtol=1e-4, atol=1e-5, **how)


@given(
    seed=SEEDS,
    rank=st.integers(1, 3),
    mode=st.sampled_from(["nearest", "linear", "cubic"]),
    coordinates=st.sampled_from(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]),
    rounding=st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]),
    lengths=st.tuples(*[st.integers(1, 5)] * 6),
)
def test_resize(
    check: Check, seed: int, rank: int, mode: str, coordinates: str, rounding: str, lengths: tuple[int, ...]
) -> None:
    assume(mode != "cubic" or rank == 2)
    # of a length that becomes 1, the reference does not take the first position, as the specification says
    assume(coordinates != "pytorch_half_pixel" or 1 not in lengths[3 : 3 + rank])
    x = values(seed, "float32", (1, 2, *lengths[:rank]))
    sizes = np.array([1, 2, *lengths[3 : 3 + rank]])
    how = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    check("Resize", x, None, None, sizes, expect="reference", opset=19, constants=(3,), rtol=1e-4, **how)
