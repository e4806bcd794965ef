"""Normalisation and softmax against formulas in double precision, ONNX's reference and the CPU provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ort_ep.ops import norm

Check = Callable[..., None]
Draw = Callable[..., Any]
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def standard(x: Any, axes: tuple[int, ...], epsilon: float = 1e-5) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def channel(values: Any, rank: int) -> Any:
    return values.astype(np.float64).reshape(-1, *[1] * (rank - 2))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5), (0, 3, 4)])
def test_batch(check: Check, draw: Draw, dtype: Any, shape: tuple[int, ...]) -> None:
    x, (scale, b, mean) = draw(dtype, *shape), (draw(dtype, 3) for _ in range(3))
    var = np.abs(draw(dtype, 3)) + dtype(0.5)
    s, o, m, v = (channel(values, len(shape)) for values in (scale, b, mean, var))
    expected = (x.astype(np.float64) - m) / np.sqrt(v + 1e-5) * s + o
    check(
        "BatchNormalization",
        x,
        scale,
        b,
        mean,
        var,
        expect=expected.astype(dtype),
        opset=15,
        rtol=5e-3 if dtype is np.float16 else None,
    )
    if dtype in (np.float32, np.float64):
        check("BatchNormalization", x, scale, b, mean, var, expect=expected.astype(dtype), opset=8)


def test_batch_in_training(check: Check, draw: Draw) -> None:
    x, scale, b, mean = draw(np.float32, 2, 3, 4), draw(np.float32, 3), draw(np.float32, 3), draw(np.float32, 3)
    var = np.abs(draw(np.float32, 3))
    check(
        "BatchNormalization",
        x,
        scale,
        b,
        mean,
        var,
        expect="reference",
        opset=15,
        training_mode=1,
        outputs=3,
        momentum=0.7,
    )


def test_batch_with_mixed_types(check: Check, draw: Draw) -> None:
    x, (scale, b, mean) = draw(np.float16, 2, 3, 4), (draw(np.float32, 3) for _ in range(3))
    var = np.abs(draw(np.float32, 3)) + 1
    expected = (x - channel(mean, 3)) / np.sqrt(channel(var, 3) + 1e-5) * channel(scale, 3) + channel(b, 3)
    check("BatchNormalization", x, scale, b, mean, var, expect=expected.astype(np.float16), opset=15)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_layer(check: Check, draw: Draw, dtype: Any, axis: int) -> None:
    x = (100 * draw(dtype, 2, 3, 4)).astype(dtype)
    scale, b = draw(dtype, *x.shape[axis:]), draw(dtype, *x.shape[axis:])
    axes = tuple(range(axis % 3, 3))
    wide = x.astype(np.float64)
    expected = (standard(wide, axes) * scale.astype(np.float64) + b.astype(np.float64)).astype(dtype)
    check("LayerNormalization", x, scale, b, expect=expected, axis=axis)
    check(
        "LayerNormalization",
        x,
        scale,
        expect=(standard(wide, axes) * scale.astype(np.float64)).astype(dtype),
        axis=axis,
    )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("shape", [(2, 3, 8), (8,), (0, 8)])
def test_the_kernels_that_a_gpu_gets(
    check: Check, draw: Draw, monkeypatch: pytest.MonkeyPatch, dtype: Any, shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(norm, "on_cpu", lambda: False)
    x, scale, b = draw(dtype, *shape), draw(dtype, 8), draw(dtype, 8)
    wide, gain = x.astype(np.float64), scale.astype(np.float64)
    layer = standard(wide, (-1,)) * gain + b.astype(np.float64)
    root = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * gain
    check("LayerNormalization", x, scale, b, expect=layer.astype(dtype))
    check("RMSNormalization", x, scale, expect=root.astype(dtype), opset=23)
    check("SimplifiedLayerNormalization", x, scale, expect=root.astype(dtype))
    # one gain for all: no kernel takes that
    check("RMSNormalization", x, scale[:1], expect=(root / gain * gain[:1]).astype(dtype), opset=23)


def test_layer_statistics(check: Check, draw: Draw) -> None:
    x = draw(np.float32, 2, 3, 4)
    check("LayerNormalization", x, draw(np.float32, 4), draw(np.float32, 4), expect="reference", outputs=3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_instance_group_and_rms(check: Check, draw: Draw, dtype: Any) -> None:
    x, scale, b = draw(dtype, 2, 4, 3, 5), draw(dtype, 4), draw(dtype, 4)
    wide, s, o = x.astype(np.float64), channel(scale, 4), channel(b, 4)
    check("InstanceNormalization", x, scale, b, expect=(standard(wide, (2, 3)) * s + o).astype(dtype), opset=22)
    grouped = standard(wide.reshape(2, 2, -1), (2,)).reshape(x.shape)
    check("GroupNormalization", x, scale, b, expect=(grouped * s + o).astype(dtype), num_groups=2)
    gains = draw(dtype, 5)
    scaled = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * gains.astype(np.float64)
    check("RMSNormalization", x, gains, expect=scaled.astype(dtype), opset=23)


def test_group_with_a_scale_for_each_group(check: Check, draw: Draw) -> None:
    x, scale, bias = draw(np.float32, 2, 4, 3), draw(np.float32, 2), draw(np.float32, 2)
    grouped = standard(x.astype(np.float64).reshape(2, 2, -1), (2,)).reshape(x.shape)
    expected = grouped * channel(np.repeat(scale, 2), 3) + channel(np.repeat(bias, 2), 3)
    check("GroupNormalization", x, scale, bias, expect=expected.astype(np.float32), opset=18, num_groups=2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p", [1, 2])
def test_lp(check: Check, draw: Draw, dtype: Any, p: int) -> None:
    x = draw(dtype, 3, 4)
    x[1] = 0
    check("LpNormalization", x, expect="cpu", p=p, axis=1)
    check("LpNormalization", x, expect="cpu", p=p, axis=0)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_local_response(check: Check, draw: Draw, size: int) -> None:
    check("LRN", draw(np.float32, 2, 6, 3, 3), expect="cpu", size=size, alpha=0.1, beta=0.6, bias=1.5)


def test_mean_variance(check: Check, draw: Draw) -> None:
    x = draw(np.float64, 2, 3, 4, 5)
    check(
        "MeanVarianceNormalization",
        x,
        expect=(x - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True),
        rtol=1e-8,
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(check: Check, draw: Draw, dtype: Any, axis: int) -> None:
    x = (3 * draw(dtype, 2, 3, 4)).astype(dtype)
    wide = np.exp(x.astype(np.float64))
    soft = wide / wide.sum(axis, keepdims=True)
    check("Softmax", x, expect=soft.astype(dtype), axis=axis)
    check("LogSoftmax", x, expect=np.log(soft).astype(dtype), axis=axis)
    flat = wide.reshape(1 if axis == 0 else 2 if axis == 1 else 6, -1)
    if dtype in (np.float32, np.float64):
        check(
            "Softmax", x, expect=(flat / flat.sum(1, keepdims=True)).reshape(x.shape).astype(dtype), axis=axis, opset=11
        )


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("opset", [9, 13])
def test_hardmax(check: Check, axis: int, opset: int) -> None:
    x = np.array([[[1, 3, 3], [2, 0, 2]], [[-1, -1, -5], [7, 8, 8]]], np.float32)
    check("Hardmax", x, expect="cpu", axis=axis, opset=opset)


def test_softmax_of_extremes(check: Check) -> None:
    x = np.array([[1e30, -1e30, 0], [-np.inf, 0, 0], [-np.inf, -np.inf, -np.inf]], np.float32)
    check("Softmax", x, expect=np.array([[1, 0, 0], [0, 0.5, 0.5], [np.nan] * 3], np.float32))
    check("Softmax", np.zeros((3, 0), np.float32), expect=np.zeros((3, 0), np.float32))


def test_softmax_of_many_halves_sums_to_one(check: Check) -> None:
    check("Softmax", np.zeros((1, 4096), np.float16), expect=np.full((1, 4096), 1 / 4096, np.float16))
