"""Normalisation: statistics in float32 (float64 for doubles), the result in the input's type."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops.axes import axes_of, axis_of
from ort_ep.ops.precision import on_cpu, widen, widened
from ort_ep.registry import FLOATS, op


def per_channel(values: Array, x: Array) -> Array:
    """[C] shaped to broadcast over [N, C, ...], in x's type."""
    return values.astype(x.dtype).reshape([1, -1, *[1] * (x.ndim - 2)])


def standardised(x: Array, axes: Sequence[int], epsilon: float) -> tuple[Array, Array, Array]:
    """(x - mean) / sqrt(variance + epsilon), the mean, and the inverse deviation."""
    mean = mx.mean(x, axes, keepdims=True)
    centred = x - mean
    inverse = mx.rsqrt(mx.mean(mx.square(centred), axes, keepdims=True) + epsilon)
    return centred * inverse, mean, inverse


def has_kernel(x: Array, axes: Sequence[int], *weights: Array | None) -> bool:
    """Whether MLX has one kernel for normalised rows: on the CPU it is the same operations again."""
    rows = all(w is None or (w.shape, w.dtype) == (x.shape[-1:], x.dtype) for w in weights)
    return rows and len(axes) == 1 and x.size > 0 and x.dtype != mx.float64 and not on_cpu()


@op("BatchNormalization", since=7, dtypes=FLOATS)
def batch_normalization_7(
    x: Array,
    scale: Array,
    b: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
) -> tuple[Array, ...]:
    return batch_normalization(x, scale, b, mean, var, epsilon=epsilon, n_outputs=1)


@op("BatchNormalization", since=14, dtypes=FLOATS)
def batch_normalization(
    x: Array,
    scale: Array,
    b: Array,
    input_mean: Array,
    input_var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    n_outputs: int,
) -> tuple[Array, ...]:
    wide = widen(x)
    mean, var = widen(input_mean), widen(input_var)
    running: tuple[Array, ...] = ()
    if training_mode:
        axes = [axis for axis in range(x.ndim) if axis != 1]
        current_mean, current_var = mx.mean(wide, axes), mx.var(wide, axes)
        running = (
            (mean * momentum + current_mean * (1 - momentum)).astype(input_mean.dtype),
            (var * momentum + current_var * (1 - momentum)).astype(input_var.dtype),
        )
        mean, var = current_mean, current_var
    gain = widen(scale) * mx.rsqrt(var + epsilon)
    y = wide * per_channel(gain, wide) + per_channel(widen(b) - mean * gain, wide)
    return (y.astype(x.dtype), *running)[:n_outputs]


@op("InstanceNormalization", since=6, dtypes=FLOATS)
@widened
def instance_normalization(x: Array, scale: Array, b: Array, *, epsilon: float = 1e-5) -> Array:
    normal, _, _ = standardised(x, range(2, x.ndim), epsilon)
    return normal * per_channel(scale, x) + per_channel(b, x)


@op("GroupNormalization", since=18, dtypes=FLOATS)
@widened
def group_normalization_18(x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5, num_groups: int) -> Array:
    size = x.shape[1] // num_groups
    return group_normalization(x, mx.repeat(scale, size), mx.repeat(bias, size), epsilon=epsilon, num_groups=num_groups)


@op("GroupNormalization", since=21, dtypes=FLOATS)
@widened
def group_normalization(
    x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Array:
    groups = x.reshape([x.shape[0], num_groups, math.prod(x.shape[1:]) // num_groups])
    normal = standardised(groups, [2], epsilon)[0].reshape(x.shape)
    return normal * per_channel(scale, x) + per_channel(bias, x)


# since 1: ORT writes this name into optimised models of any opset
@op("LayerNormalization", since=1, dtypes=FLOATS)
def layer_normalization(
    x: Array,
    scale: Array,
    b: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    axes = range(axis_of(axis, x.ndim), x.ndim)
    if n_outputs == 1 and has_kernel(x, axes, scale, b):
        return (mx.fast.layer_norm(x, scale, b, epsilon),)
    normal, mean, inverse = standardised(widen(x), axes, epsilon)
    y = normal * widen(scale)
    y = y if b is None else y + widen(b)
    return (y.astype(x.dtype), mean, inverse)[:n_outputs]


@op("RMSNormalization", since=23, dtypes=FLOATS)
@widened
def rms_normalization(x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Array:
    axes = range(axis_of(axis, x.ndim), x.ndim)
    if has_kernel(x, axes, scale):
        return mx.fast.rms_norm(x, scale, epsilon)
    return x * mx.rsqrt(mx.mean(mx.square(x), axes, keepdims=True) + epsilon) * scale


@op("SimplifiedLayerNormalization", since=1, dtypes=FLOATS)
def simplified_layer_normalization(
    x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, n_outputs: int
) -> tuple[Array, ...]:
    axes = range(axis_of(axis, x.ndim), x.ndim)
    if n_outputs == 1 and has_kernel(x, axes, scale):
        return (mx.fast.rms_norm(x, scale, epsilon),)
    wide = widen(x)
    inverse = mx.rsqrt(mx.mean(mx.square(wide), axes, keepdims=True) + epsilon)
    return ((wide * inverse * widen(scale)).astype(x.dtype), inverse)[:n_outputs]


@op("MeanVarianceNormalization", since=9, dtypes=FLOATS)
@widened
def mean_variance_normalization(x: Array, *, axes: Sequence[int] = (0, 2, 3)) -> Array:
    return standardised(x, axes_of(axes, x.ndim), 1e-9)[0]


@op("LpNormalization", since=1, dtypes=FLOATS)
@widened
def lp_normalization(x: Array, *, axis: int = -1, p: int = 2) -> Array:
    size = mx.sum(mx.abs(x), axis, True) if p == 1 else mx.sqrt(mx.sum(mx.square(x), axis, True))
    return mx.where(size == 0, mx.zeros_like(x), x / size)


@op("LRN", since=1, dtypes=FLOATS)
@widened
def lrn(x: Array, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int) -> Array:
    before, channels = (size - 1) // 2, x.shape[1]
    widths = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    squares = mx.pad(mx.square(x), widths)
    total = sum(squares[:, start : start + channels] for start in range(size))
    return x / mx.power(bias + alpha / size * total, beta)
