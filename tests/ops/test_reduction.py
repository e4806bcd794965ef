"""Reductions in both forms, over every dtype, over nothing, and with wide accumulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

Check = Callable[..., None]
Draw = Callable[..., Any]
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": np.sum,
    "ReduceProd": np.prod,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceL1": lambda x, axis, keepdims: np.sum(np.abs(x), axis, keepdims=keepdims),
    "ReduceL2": lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis, keepdims=keepdims)),
    "ReduceSumSquare": lambda x, axis, keepdims: np.sum(x * x, axis, keepdims=keepdims),
    "ReduceLogSum": lambda x, axis, keepdims: np.log(np.sum(x, axis, keepdims=keepdims)),
    "ReduceLogSumExp": lambda x, axis, keepdims: np.log(np.sum(np.exp(x), axis, keepdims=keepdims)),
}
# one opset for each form: axes as an attribute, then as an input
FORMS = {"ReduceSum": (11, 13)}


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32, np.int64])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [None, (1,), (-1, 0)])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reduction(check: Check, draw: Draw, op: str, axes: tuple[int, ...] | None, keepdims: int, dtype: Any) -> None:
    x = np.abs(draw(dtype, 2, 3, 4)) + dtype(1)
    wide = REDUCTIONS[op](x.astype(np.int64 if x.dtype.kind == "i" else np.float64), axis=axes, keepdims=bool(keepdims))
    expected = np.asarray(wide).astype(dtype)
    old, new = FORMS.get(op, (13, 18))
    tolerance = 3e-3 if dtype is np.float16 else None
    if np.dtype(dtype).kind == "i" and op in ("ReduceLogSum", "ReduceLogSumExp", "ReduceL2"):
        return  # a root or a logarithm cut to an integer: the last bit decides
    if dtype is not ml_dtypes.bfloat16 or op == "ReduceSum":
        given = {} if axes is None else {"axes": axes}
        check(op, x, expect=expected, opset=old, keepdims=keepdims, rtol=tolerance, **given)
    indices = None if axes is None else np.array(axes, np.int64)
    check(op, x, indices, expect=expected, opset=new, keepdims=keepdims, constants=(1,), rtol=tolerance)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_no_axes_may_mean_no_reduction(check: Check, draw: Draw, op: str) -> None:
    x = np.abs(draw(np.float32, 2, 3))
    check(op, x, np.zeros(0, np.int64), expect="reference", opset=18, noop_with_empty_axes=1, constants=(1,))
    check(op, x, np.zeros(0, np.int64), expect="reference", opset=18, constants=(1,))


@pytest.mark.parametrize(
    ("op", "value"),
    [
        ("ReduceSum", 0),
        ("ReduceProd", 1),
        ("ReduceMax", -np.inf),
        ("ReduceMin", np.inf),
        ("ReduceL2", 0),
        ("ReduceLogSumExp", -np.inf),
        ("ReduceLogSum", -np.inf),
    ],
)
def test_of_nothing(check: Check, op: str, value: float) -> None:
    x, axes = np.zeros((2, 0, 3), np.float32), np.array([1], np.int64)
    check(op, x, axes, expect=np.full((2, 1, 3), value, np.float32), opset=18, constants=(1,))
    check(op, x, np.array([0], np.int64), expect=np.zeros((1, 0, 3), np.float32), opset=18, constants=(1,))


def test_extremes_of_no_integers_and_no_bools(check: Check) -> None:
    axes = np.array([0], np.int64)
    check("ReduceMax", np.zeros((0, 2), np.int32), axes, expect=np.full((1, 2), -(2**31), np.int32), opset=20)
    check("ReduceMin", np.zeros((0, 2), np.uint8), axes, expect=np.full((1, 2), 255, np.uint8), opset=20)
    check("ReduceMin", np.zeros((0, 2), bool), axes, expect=np.ones((1, 2), bool), opset=20)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, bool])
def test_extremes_of_small_types(check: Check, draw: Draw, dtype: Any) -> None:
    x = draw(dtype, 3, 4)
    for op in ("ReduceMax", "ReduceMin"):
        check(op, x, np.array([1], np.int64), expect=REDUCTIONS[op](x, axis=1, keepdims=True), opset=20)


def test_rank_0(check: Check) -> None:
    for op, function in REDUCTIONS.items():
        expected = np.asarray(function(np.array(2.0), axis=None, keepdims=False), np.float32)
        check(op, np.array(2.0, np.float32), expect=expected, opset=18)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_floats_accumulate_in_32(check: Check, dtype: Any) -> None:
    ones = np.ones(4096, dtype)
    check("ReduceSum", ones, expect=np.array([4096], dtype), opset=13)
    check("ReduceMean", ones * dtype(100), expect=np.array([100], dtype), opset=18)
    check("CumSum", np.ones(3000, dtype), np.array(0), expect=np.arange(1, 3001).astype(dtype), constants=(1,))


def test_integer_mean_truncates(check: Check) -> None:
    check("ReduceMean", np.array([-3, -4], np.int64), expect=np.array([-3], np.int64), opset=18)


def test_log_sum_exp_does_not_overflow(check: Check) -> None:
    x = np.array([1000, 1000, -1000], np.float32)
    check("ReduceLogSumExp", x, expect=np.array([1000 + np.log(2)], np.float32), opset=18)
    infinite = np.array([[-np.inf, -np.inf], [np.inf, 1]], np.float32)
    check("ReduceLogSumExp", infinite, np.array([1]), expect=np.array([[-np.inf], [np.inf]], np.float32), opset=18)


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("last", [0, 1])
def test_position_of_the_extreme(check: Check, draw: Draw, dtype: Any, last: int) -> None:
    x = draw(dtype, 3, 5, 4, high=3)
    if np.dtype(dtype).kind not in "iu":
        x = np.round(x)
    for op, find in (("ArgMax", np.argmax), ("ArgMin", np.argmin)):
        for axis in (0, 1, -1):
            expected = x.shape[axis] - 1 - find(np.flip(x, axis), axis) if last else find(x, axis)
            check(op, x, expect=expected.astype(np.int64), axis=axis, keepdims=0, select_last_index=last, opset=13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint32, np.uint64])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative(check: Check, draw: Draw, dtype: Any, exclusive: int, reverse: int) -> None:
    x = draw(dtype, 3, 4)
    for axis in (0, -1):
        ordered = np.flip(x, axis) if reverse else x
        for op, scan, start in (("CumSum", np.cumsum, 0), ("CumProd", np.cumprod, 1)):
            result = scan(ordered, axis, dtype=dtype)
            if exclusive:
                head = np.full_like(np.take(result, [0], axis), start)
                result = np.concatenate([head, np.delete(result, -1, axis)], axis)
            result = np.flip(result, axis) if reverse else result
            check(op, x, np.array(axis), expect=result, opset=26, exclusive=exclusive, reverse=reverse)


def test_cumulative_of_nothing(check: Check) -> None:
    check("CumSum", np.zeros((0, 3), np.float32), np.array(0), expect=np.zeros((0, 3), np.float32))
