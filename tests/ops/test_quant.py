"""Quantisation against ONNX Runtime's CPU provider and exact integer arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mlxc_py as mx
from ort_ep.ops import quant
from ort_ep.ops.conv import convolve

Check = Callable[..., None]
Draw = Callable[..., Any]
STORED = ["int8", "uint8", "int16", "uint16"]


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("scales", [(), (4,)])
@pytest.mark.parametrize("zero", [True, False])
def test_there_and_back(check: Check, draw: Draw, dtype: str, scales: tuple[int, ...], zero: bool) -> None:
    x = (200 * draw(np.float32, 3, 4)).astype(np.float32)
    scale = np.asarray(np.abs(draw(np.float32, *scales)) + np.float32(0.1))
    zero_point = np.asarray(draw(dtype, *scales)) if zero else None
    if zero or dtype == "uint8":
        check("QuantizeLinear", x, scale, zero_point, axis=1)
    check("DequantizeLinear", draw(dtype, 3, 4, high=100), scale, zero_point, axis=1)


def test_halves_round_to_even_and_ends_saturate(check: Check) -> None:
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1e9, -1e9, np.inf, -np.inf], np.float32)
    expected = np.array([-2, -2, 0, 0, 2, 2, 127, -128, 127, -128], np.int8)
    check("QuantizeLinear", x, np.array(1, np.float32), np.array(0, np.int8), expect=expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks(check: Check, draw: Draw, axis: int) -> None:
    x = draw(np.uint8, 4, 6, high=255)
    scale = np.abs(draw(np.float32, *((2, 6) if axis == 0 else (4, 3)))) + np.float32(0.1)
    zero_point = draw(np.uint8, *scale.shape)
    check("DequantizeLinear", x, scale, zero_point, expect="reference", axis=axis, block_size=2)
    check("QuantizeLinear", x.astype(np.float32), scale, zero_point, expect="reference", axis=axis, block_size=2)


def test_16_bit_scales(check: Check, draw: Draw) -> None:
    x, scale = draw(np.int8, 3, 4, high=100), np.array(0.25, np.float16)
    check("DequantizeLinear", x, scale, expect=(x * np.float16(0.25)))
    check(
        "QuantizeLinear",
        x.astype(np.float16),
        scale,
        np.array(3, np.int8),
        expect=np.clip(x.astype(int) * 4 + 3, -128, 127).astype(np.int8),
    )


def test_int32(check: Check, draw: Draw) -> None:
    x = draw(np.int32, 3, 4, high=10**6)
    check("DequantizeLinear", x, np.array([0.5, 2, 3, 4], np.float32), axis=1)


@pytest.mark.parametrize("values", [(0, 1, 2, 3), (-1, -3), (5, 7), (0, 0), (-1, 0, 255)])
def test_dynamic(check: Check, values: tuple[float, ...]) -> None:
    check("DynamicQuantizeLinear", np.array(values, np.float32), outputs=3)


@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.uint8, np.int8)])
@pytest.mark.parametrize("group", [1, 2, 6])
def test_conv_integer(check: Check, draw: Draw, types: tuple[Any, Any], group: int) -> None:
    x, w = draw(types[0], 2, 6, 7, 8, high=255), draw(types[1], 6, 6 // group, 3, 3, high=127)
    zeros = np.array(120, types[0]), np.array(7, types[1])
    how = {"pads": [1, 0, 2, 1], "strides": [2, 1], "group": group}
    check("ConvInteger", x, w, *zeros, expect="reference" if group == 1 else "cpu", **how)
    check("ConvInteger", x, w, **how)


def test_conv_integer_is_exact(check: Check) -> None:
    x, w = np.full((1, 1000, 3, 3), 255, np.uint8), np.full((1, 1000, 3, 3), 255, np.uint8)
    check("ConvInteger", x, w, expect=np.full((1, 1, 1, 1), 9000 * 255 * 255, np.int32))
    check("ConvInteger", x, np.full(w.shape, -128, np.int8), expect=np.full((1, 1, 1, 1), -9000 * 255 * 128, np.int32))


@pytest.mark.parametrize("channels", [1, 3, 1000])
@pytest.mark.parametrize("group", [1, 2])
def test_conv_integer_is_exact_where_convolutions_round(
    check: Check, draw: Draw, monkeypatch: pytest.MonkeyPatch, channels: int, group: int
) -> None:
    """As on a GPU, whose convolutions of float32 are off by some units in the last place of the largest sum."""
    largest: list[float] = []

    def rounding(*arguments: Any) -> mx.Array:
        sums = convolve(*arguments)
        largest.append(mx.abs(sums).max().item())
        noise = np.random.default_rng(0).uniform(-4, 4, sums.shape).astype(np.float32)
        return sums + mx.array(noise * np.spacing(np.float32(largest[-1] + 1)))

    monkeypatch.setattr(quant, "on_cpu", lambda: False)
    monkeypatch.setattr(quant, "convolve", rounding)
    monkeypatch.setattr(quant.cpu_primitives, "integers", lambda x: False)
    x = draw(np.uint8, 2, channels * group, 4, 5, high=255) | np.uint8(0xC0)
    w = draw(np.int8, 2 * group, channels, 3, 3, high=127) | np.int8(64)
    check("ConvInteger", x, w, group=group, pads=[1, 1, 1, 1], constants=(1,))
    assert 0 < max(largest) < 2**20.5


@pytest.mark.parametrize("per_channel", [True, False])
def test_qlinear_conv(check: Check, draw: Draw, per_channel: bool) -> None:
    x, w = draw(np.uint8, 1, 4, 6, 6, high=255), draw(np.int8, 3, 4, 3, 3, high=127)
    scales = np.array([0.01, 0.02, 0.03] if per_channel else 0.02, np.float32)
    zeros = np.zeros(3, np.int8) if per_channel else np.array(0, np.int8)
    bias = draw(np.int32, 3, high=2000)
    check(
        "QLinearConv",
        x,
        np.array(0.1, np.float32),
        np.array(128, np.uint8),
        w,
        scales,
        zeros,
        np.array(0.9, np.float32),
        np.array(100, np.uint8),
        bias,
    )


def test_qlinear_matmul(check: Check, draw: Draw) -> None:
    a, b = draw(np.uint8, 2, 3, 4, high=255), draw(np.uint8, 2, 4, 5, high=255)
    one = np.array(0.1, np.float32), np.array(120, np.uint8)
    check("QLinearMatMul", a, *one, b, *one, np.array(1.5, np.float32), np.array(90, np.uint8))
