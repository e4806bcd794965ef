"""Convolutions against ONNX Runtime's CPU provider, over random geometries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from mlxc_py import cpu_primitives
from ort_ep.ops import conv

Check = Callable[..., None]
Draw = Callable[..., Any]


def geometry(data: st.DataObject, rank: int) -> dict[str, list[int]]:
    def several(low: int, high: int, count: int = rank) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    return {"strides": several(1, 3), "dilations": several(1, 2), "pads": several(0, 2, 2 * rank)}


@settings(max_examples=40, deadline=None)
@given(data=st.data(), rank=st.integers(1, 3), group=st.sampled_from([1, 1, 2, 3]), bias=st.booleans())
def test_conv(check: Check, data: st.DataObject, rank: int, group: int, bias: bool) -> None:
    generator = np.random.default_rng(0)
    kernel = data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    x = generator.standard_normal((2, 2 * group, *[7] * rank)).astype(np.float32)
    w = generator.standard_normal((3 * group, 2, *kernel)).astype(np.float32)
    b = generator.standard_normal(3 * group).astype(np.float32) if bias else None
    check("Conv", x, w, b, group=group, rtol=1e-4, **geometry(data, rank))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), rank=st.integers(1, 3), group=st.sampled_from([1, 1, 2]), bias=st.booleans())
def test_conv_transpose(check: Check, data: st.DataObject, rank: int, group: int, bias: bool) -> None:
    generator = np.random.default_rng(0)
    kernel = data.draw(st.lists(st.integers(2, 3), min_size=rank, max_size=rank))
    x = generator.standard_normal((2, 2 * group, *[4] * rank)).astype(np.float32)
    w = generator.standard_normal((2 * group, 3, *kernel)).astype(np.float32)
    b = generator.standard_normal(3 * group).astype(np.float32) if bias else None
    how: dict[str, Any] = geometry(data, rank)
    how["pads"] = [min(pad, 1) for pad in how["pads"]]
    how["output_padding"] = [data.draw(st.integers(0, stride - 1)) for stride in how["strides"]]
    check("ConvTranspose", x, w, b, group=group, rtol=1e-4, **how)


@pytest.mark.parametrize("kernel", [(1, 1), (2, 2), (4, 3), (5, 7)])
@pytest.mark.parametrize("strides", [(2, 2), (1, 3), (4, 2)])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 2, 1)])
def test_transposed_in_phases(check: Check, draw: Draw, kernel: Any, strides: Any, pads: Any) -> None:
    w, b = draw(np.float32, 3, 5, *kernel), draw(np.float32, 5)
    how: dict[str, Any] = {"strides": list(strides), "pads": list(pads), "output_padding": [s - 1 for s in strides]}
    for batch in (2, 0):
        check("ConvTranspose", draw(np.float32, batch, 3, 6, 5), w, b, rtol=1e-4, **how)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_the_forms_that_a_gpu_gets(
    check: Check, draw: Draw, monkeypatch: pytest.MonkeyPatch, rank: int, bias: bool
) -> None:
    monkeypatch.setattr(conv, "on_cpu", lambda: False)
    monkeypatch.setattr(cpu_primitives, "serves", lambda *_: False)
    point, wide = draw(np.float32, 5, 4, *[1] * rank), draw(np.float32, 5, 4, *[3] * rank)
    for batch in (1, 3, 0):
        x, b = draw(np.float32, batch, 4, *[6] * rank), draw(np.float32, 5) if bias else None
        check("Conv", x, point, b, rtol=1e-4)
        check("Conv", x, point, b, rtol=1e-4, strides=[2] * rank)
        check("Conv", x, point, b, rtol=1e-4, pads=[1] * (2 * rank))
        check("Conv", x, wide, b, rtol=1e-4)
        check("ConvTranspose", x, wide.swapaxes(0, 1), b, rtol=1e-4, strides=[2] * rank, output_padding=[1] * rank)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_auto_pad(check: Check, draw: Draw, auto_pad: str, stride: int) -> None:
    x, w = draw(np.float32, 1, 2, 7, 8), draw(np.float32, 3, 2, 3, 2)
    check("Conv", x, w, auto_pad=auto_pad, strides=[stride, stride], rtol=1e-4)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("shape", [[8, 9], [7, 7], [10, 10]])
def test_transposed_to_a_given_shape(check: Check, draw: Draw, auto_pad: str, shape: list[int]) -> None:
    x, w = draw(np.float32, 1, 2, 4, 4), draw(np.float32, 2, 3, 3, 3)
    check("ConvTranspose", x, w, auto_pad=auto_pad, strides=[2, 2], output_shape=shape, rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_16_bit_floats(check: Check, draw: Draw, op: str, dtype: Any) -> None:
    x, w = draw(dtype, 1, 4, 6, 6), draw(dtype, 4, 4, 3, 3)
    node = helper.make_node(op, ["x", "w"], ["y"])
    expected: Any = ReferenceEvaluator(node).run(None, {"x": x.astype(np.float32), "w": w.astype(np.float32)})
    check(op, x, w, expect=expected[0].astype(dtype), opset=22, atol=5e-3 if dtype is np.float16 else 0.05)


def test_no_batch(check: Check) -> None:
    x, w = np.zeros((0, 2, 5, 5), np.float32), np.zeros((3, 2, 3, 3), np.float32)
    check("Conv", x, w, expect=np.zeros((0, 3, 3, 3), np.float32))


def test_declined_ranks_and_types(reasons: Callable[..., list[str]]) -> None:
    x, w = np.zeros((1, 1, 3, 3, 3, 3), np.float32), np.zeros((1, 1, 1, 1, 1, 1), np.float32)
    assert "1 to 3 axes" in reasons("Conv", x, w)[0]
    assert "float64" in reasons("Conv", np.zeros((1, 1, 3)), np.zeros((1, 1, 1)))[0]
