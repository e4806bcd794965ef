"""Pooling against ONNX Runtime's CPU provider, over random geometries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

Check = Callable[..., None]
Draw = Callable[..., Any]


@st.composite
def geometries(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))

    def several(low: int, high: int, count: int = rank) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    kernel = several(1, 3)
    return {
        "kernel_shape": kernel,
        "strides": several(1, 3),
        "dilations": several(1, 2),
        "pads": [draw(st.integers(0, size - 1)) for size in kernel * 2],
        "ceil_mode": draw(st.integers(0, 1)),
    }


def data(rank: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((2, 3, *range(6, 6 + rank))).astype(dtype)


@settings(max_examples=40, deadline=None)
@given(how=geometries())
def test_max_pool(check: Check, how: dict[str, Any]) -> None:
    check("MaxPool", data(len(how["strides"])), expect="cpu", **how)


@settings(max_examples=25, deadline=None)
@given(how=geometries(), order=st.integers(0, 1))
def test_max_pool_with_positions(check: Check, how: dict[str, Any], order: int) -> None:
    check("MaxPool", data(len(how["strides"])), expect="cpu", outputs=2, storage_order=order, **how)


@settings(max_examples=40, deadline=None)
@given(how=geometries(), padded=st.integers(0, 1))
def test_average_pool(check: Check, how: dict[str, Any], padded: int) -> None:
    check("AveragePool", data(len(how["strides"])), expect="cpu", count_include_pad=padded, **how)


@settings(max_examples=15, deadline=None)
@given(how=geometries(), p=st.integers(1, 3))
def test_lp_pool(check: Check, how: dict[str, Any], p: int) -> None:
    how["ceil_mode"] = 0
    check("LpPool", data(len(how["strides"])), expect="cpu", p=p, **how)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_auto_pad(check: Check, op: str, auto_pad: str) -> None:
    check(op, data(2), expect="cpu", kernel_shape=[3, 2], strides=[2, 2], auto_pad=auto_pad)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float64])
def test_max_pool_of_other_types(check: Check, draw: Draw, dtype: Any) -> None:
    x = draw(dtype, 1, 2, 5, 6, high=100)
    check("MaxPool", x, expect="cpu", kernel_shape=[3, 3], pads=[1, 1, 1, 1])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_floats(check: Check, dtype: Any) -> None:
    x = data(2, dtype)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (2, 2), (2, 3))
    check("MaxPool", x, expect=windows.max((-1, -2)).astype(dtype), opset=22, kernel_shape=[2, 2])
    check("AveragePool", x, expect=windows.mean((-1, -2)).astype(dtype), opset=22, kernel_shape=[2, 2])
    check("GlobalAveragePool", x, expect=x.astype(np.float64).mean((2, 3), keepdims=True).astype(dtype), opset=22)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_global(check: Check, rank: int, dtype: Any) -> None:
    x = data(rank, dtype)
    axes = tuple(range(2, 2 + rank))
    check("GlobalMaxPool", x, expect=x.max(axes, keepdims=True))
    check("GlobalAveragePool", x, expect=x.mean(axes, keepdims=True))
    check("GlobalLpPool", x, expect=np.sqrt((x * x).sum(axes, keepdims=True)))


def test_padding_never_wins(check: Check) -> None:
    x = np.full((1, 1, 3, 3), -5, np.float32)
    check("MaxPool", x, expect=x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def test_unpool(check: Check, draw: Draw) -> None:
    x, places = draw(np.float32, 1, 2, 2, 2), np.array([[[[0, 3], [9, 15]], [[16, 18], [24, 31]]]])
    check("MaxUnpool", x, places, kernel_shape=[2, 2], strides=[2, 2])
    check("MaxUnpool", x, places, np.array([1, 2, 5, 6]), expect="reference", kernel_shape=[2, 2], strides=[2, 2])


@pytest.mark.parametrize("how", [{}, {"strides": [2, 1]}, {"pads": [1, 0, 1, 2]}, {"dilations": [2, 1]}])
def test_columns_to_an_image(check: Check, draw: Draw, how: dict[str, list[int]]) -> None:
    strides, pads, dilations = how.get("strides", [1, 1]), how.get("pads", [0] * 4), how.get("dilations", [1, 1])
    image, block = [6, 7], [2, 3]
    counts = [(image[i] + pads[i] + pads[2 + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in (0, 1)]
    x = draw(np.float32, 2, 3 * 6, counts[0] * counts[1])
    check("Col2Im", x, np.array(image), np.array(block), expect="cpu", constants=(1, 2), **how)
