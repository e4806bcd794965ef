"""Gather, Scatter, Pad and their kin against numpy and ONNX's reference; indices that would read foreign memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

Check = Callable[..., None]
Draw = Callable[..., Any]
TYPES = ["bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_gather(check: Check, draw: Draw, dtype: str, index: str) -> None:
    x = draw(dtype, 3, 4, 5)
    for axis in (0, 1, -1):
        for shape in ((), (2,), (2, 3), (0,)):
            indices = draw(index, *shape, high=3)
            check("Gather", x, indices, expect=np.take(x, indices, axis), axis=axis)


@pytest.mark.parametrize("dtype", TYPES)
def test_gather_and_scatter_elements(check: Check, draw: Draw, dtype: str) -> None:
    x = draw(dtype, 3, 4)
    indices = np.array([[0, -1], [2, 1]])
    for axis in (0, 1):
        check("GatherElements", x, indices, expect="cpu", axis=axis)
        check("ScatterElements", x, indices, draw(dtype, 2, 2), expect="cpu", axis=axis)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_scatter_reductions(check: Check, draw: Draw, dtype: str, reduction: str) -> None:
    x, indices = draw(dtype, 4, 3), np.array([[0, 0, 1], [3, 0, -1]])
    check("ScatterElements", x, indices, draw(dtype, 2, 3), expect="reference", opset=18, reduction=reduction)
    rows = np.array([[0], [2], [0]])
    check("ScatterND", x, rows, draw(dtype, 3, 3), expect="reference", opset=18, reduction=reduction)


@pytest.mark.parametrize("dtype", TYPES)
def test_gather_and_scatter_nd(check: Check, draw: Draw, dtype: str) -> None:
    x = draw(dtype, 2, 3, 4)
    check("GatherND", x, np.array([[0, 1], [-1, 2]]), expect=np.stack([x[0, 1], x[1, 2]]))
    check("GatherND", x, np.array([[1], [-3]]), expect=np.stack([x[0, 1], x[1, 0]]), batch_dims=1)
    expected = x.copy()
    updates = draw(dtype, 2, 4)
    expected[0, 1], expected[1, 2] = updates
    check("ScatterND", x, np.array([[0, 1], [1, 2]]), updates, expect=expected)


def test_scatter_of_nothing(check: Check, draw: Draw) -> None:
    x = draw(np.float32, 2, 3)
    check("ScatterND", x, np.zeros((0, 1), np.int64), np.zeros((0, 3), np.float32), expect=x)
    check("ScatterElements", x, np.zeros((0, 3), np.int64), np.zeros((0, 3), np.float32), expect=x)


SURVIVES = """
import numpy as np, mlxc_py as mx
from ort_ep.ops import indexing
x = mx.array(np.arange(12, dtype=np.float32).reshape(3, 4))
far = mx.array(np.array([2**62, -(2**62), 3, -4, 2**31]))
results = [
    indexing.gather(x, far),
    indexing.gather_elements(x, mx.broadcast_to(far[:2, None], (2, 4))),
    indexing.gather_nd(x, far[:, None]),
    indexing.scatter_nd(x, far[:, None], mx.zeros((5, 4))),
    indexing.scatter_elements(x, mx.broadcast_to(far[:2, None], (2, 4)), mx.zeros((2, 4))),
    indexing.one_hot(far, np.array(3), mx.array([0.0, 1.0])),
]
mx.eval(results)
print("alive", results[0][0, 0].item())
"""


def test_indices_out_of_range_do_not_end_the_process() -> None:
    run = subprocess.run([sys.executable, "-c", SURVIVES], capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stdout) == (0, "alive 8.0\n"), run.stderr


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "uint8"])
def test_one_hot(check: Check, axis: int, dtype: str) -> None:
    indices = np.array([0, 3, 2] if dtype == "uint8" else [0, -1, 5]).astype(dtype)
    check("OneHot", indices, np.array(4), np.array([2, 7], np.int32), expect="reference", axis=axis, constants=(1,))


@pytest.mark.parametrize("k", [None, -2, 0, 1, 2**40, -(2**40)])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_trilu(check: Check, draw: Draw, k: int | None, upper: int, dtype: str) -> None:
    x = draw(dtype, 2, 3, 4)
    expected = (np.triu if upper else np.tril)(x, int(np.clip(k or 0, -9, 9)))
    check("Trilu", x, None if k is None else np.array(k), expect=expected, upper=upper, constants=(1,))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool"])
def test_pad(check: Check, draw: Draw, mode: Any, dtype: str) -> None:
    x = draw(dtype, 3, 4)
    pads = np.array([1, 2, 0, 3])
    check("Pad", x, pads, expect=np.pad(x, [(1, 0), (2, 3)], mode), mode=mode, constants=(1,))


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_pad_repeats_nothing_that_it_cuts_off(check: Check, draw: Draw, mode: Any) -> None:
    x = draw(np.float32, 6, 7)
    pads = np.array([-1, 2, 3, -2])
    expected = np.pad(x[1:, :-2], [(0, 3), (2, 0)], mode)
    check("Pad", x, pads, expect=expected, mode=mode, constants=(1,), opset=19)
    check("Pad", x, pads, expect="cpu", mode=mode, constants=(1,), opset=19)


def test_pad_forms(check: Check, draw: Draw) -> None:
    x = draw(np.float32, 3, 4)
    five = np.array(5, np.float32)
    check("Pad", x, np.array([-1, 2, 0, -1]), five, expect=np.pad(x[1:, :-1], [(0, 0), (2, 0)], constant_values=5))
    check("Pad", x, np.array([1, 2]), five, np.array([-1]), expect=np.pad(x, [(0, 0), (1, 2)], constant_values=5))
    check("Pad", x, expect=np.pad(x, [(0, 1), (1, 0)], constant_values=5), opset=10, pads=[0, 1, 1, 0], value=5.0)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_gather_of_anything(check: Check, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    length = shape[axis]
    indices = data.draw(st.lists(st.integers(-length, length - 1), max_size=5))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    check("Gather", x, np.array(indices, np.int64), expect=np.take(x, np.array(indices, np.int64), axis), axis=axis)


@pytest.mark.parametrize("dtype", TYPES)
def test_reverse_sequence(check: Check, draw: Draw, dtype: str) -> None:
    x, lengths = draw(dtype, 5, 3, 2), np.array([1, 5, 3])
    check("ReverseSequence", x, lengths, expect="reference")
    check("ReverseSequence", x.swapaxes(0, 1), lengths, expect="reference", batch_axis=0, time_axis=1)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(check: Check, draw: Draw, mode: str) -> None:
    cache, update = draw(np.float32, 2, 3, 6, 4), draw(np.float32, 2, 3, 2, 4)
    start = np.array([1, 5 if mode == "circular" else 4])
    check("TensorScatter", cache, update, start, expect="reference", opset=24, mode=mode)
    check("TensorScatter", cache, update, expect="reference", opset=24, mode=mode)
