"""Quantised operators of com.microsoft against ONNX Runtime's CPU kernels: at most one level apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

Draw = Callable[..., Any]
MICROSOFT = "com.microsoft"
ONE = np.array(0.05, np.float32), np.array(3, np.uint8)
TWO = np.array(0.02, np.float32), np.array(120, np.uint8)
OUT = np.array(0.04, np.float32), np.array(100, np.uint8)


@pytest.fixture
def close(
    model_of: Callable[..., Any], plan_of: Callable[..., Any], cpu_session: Callable[..., Any]
) -> Callable[..., None]:
    """Compare with the CPU kernel; a sum in another order may round to the neighbouring level."""

    def close(op: str, *inputs: Any, constants: tuple[int, ...] = (), **attributes: Any) -> None:
        untyped = model_of(op, inputs, 17, MICROSOFT, constants, 1, **attributes)
        feeds: Mapping[str, Any] = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
        feeds = {name: value for name, value in feeds.items() if int(name[1:]) not in constants}
        (expected,) = (np.asarray(value) for value in cpu_session(untyped).run(None, dict(feeds)))
        (actual,) = plan_of(model_of(op, inputs, 17, MICROSOFT, constants, [expected], **attributes), feeds)
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        step = 1e-4 if expected.dtype == np.float32 else 1
        assert np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max() <= step

    return close


def levels(draw: Draw, *shape: int) -> Any:
    return draw(np.uint8, *shape, high=255)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_binary(close: Callable[..., None], draw: Draw, op: str) -> None:
    close(op, levels(draw, 2, 3, 4), *ONE, levels(draw, 3, 1), *TWO, *OUT)
    signed = np.array(0.05, np.float32), np.array(-3, np.int8)
    close(op, draw(np.int8, 3, 4, high=127), *signed, draw(np.int8, 4, high=127), *signed, *signed)


def test_activations(close: Callable[..., None], draw: Draw) -> None:
    small = np.array(1 / 256, np.float32), np.array(0, np.uint8)
    close("QLinearSigmoid", levels(draw, 3, 4), *ONE, *small)
    close("QLinearLeakyRelu", levels(draw, 3, 4), *TWO, *OUT, alpha=0.2)


def test_pools(close: Callable[..., None], draw: Draw) -> None:
    x = levels(draw, 1, 3, 6, 6)
    close("QLinearAveragePool", x, *ONE, *OUT, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    close("QLinearGlobalAveragePool", x, *ONE, *OUT)


def test_channels_last(close: Callable[..., None], draw: Draw) -> None:
    x, w = levels(draw, 1, 6, 6, 4), draw(np.int8, 6, 2, 3, 3, high=20)
    close("QLinearAveragePool", x, *ONE, *OUT, kernel_shape=[3, 3], strides=[2, 2], channels_last=1)
    close("QLinearGlobalAveragePool", x, *ONE, *OUT, channels_last=1)
    weights = [w, np.array(0.02, np.float32), np.array(0, np.int8)]
    close("QLinearConv", x, *ONE, *weights, *OUT, constants=(3, 4, 5), channels_last=1, group=2, pads=[1, 0, 1, 0])
    first = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    close("QLinearConv", first, *ONE, *weights, *OUT, constants=(3, 4, 5), group=2, strides=[2, 1])


def test_concat_and_where(close: Callable[..., None], draw: Draw) -> None:
    close("QLinearConcat", *OUT, levels(draw, 2, 3), *ONE, levels(draw, 2, 5), *TWO, axis=1)
    close("QLinearWhere", draw(bool, 2, 3), levels(draw, 2, 3), *ONE, levels(draw, 2, 3), *TWO, *OUT)


def test_products(close: Callable[..., None], draw: Draw) -> None:
    a, b = levels(draw, 4, 300), draw(np.int8, 300, 5, high=127)
    scales, zeros = np.abs(draw(np.float32, 5)) * np.float32(0.01), draw(np.int8, 5)
    close("MatMulIntegerToFloat", a, b, np.array(5e-4, np.float32), scales, ONE[1], zeros, draw(np.float32, 5))
    close("DynamicQuantizeMatMul", draw(np.float32, 4, 300), b, scales, zeros, draw(np.float32, 5))


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(close: Callable[..., None], draw: Draw, transposed: int) -> None:
    a, b = levels(draw, 4, 8), draw(np.int8, *((5, 8) if transposed else (8, 5)), high=127)
    weights = np.array(0.01, np.float32), np.array(0, np.int8)
    close("QGemm", a, *ONE, b, *weights, draw(np.int32, 5, high=500), *OUT, transB=transposed)
    close("QGemm", a, *ONE, b, *weights, transB=transposed)


def test_absent_zero_points(check: Callable[..., None], draw: Draw) -> None:
    # ORT's kernels read past the end of their inputs here, or refuse
    x, y, scale, other = levels(draw, 3, 4), levels(draw, 3, 4), ONE[0], TWO[0]
    out = np.array(0.037, np.float32)  # no result lies between two levels
    wide, wide_y = x * np.float64(scale), y * np.float64(other)
    for op, given, expected in (
        ("QLinearAdd", [x, scale, None, y, other, None, out], wide + wide_y),
        ("QLinearMul", [x, scale, None, y, other, None, out], wide * wide_y),
        ("QLinearSigmoid", [x, scale, None, out], 1 / (1 + np.exp(-wide))),
        ("QLinearLeakyRelu", [x, scale, None, out], wide),
        ("QLinearReduceMean", [x, scale, None, out], wide.mean(keepdims=True)),
    ):
        expect = np.round(expected / np.float64(out)).clip(0, 255).astype(np.uint8)
        check(op, *given, expect=expect, domain=MICROSOFT)
