"""Reductions, scans and orderings over every axis, rank and empty extent, with absent and empty axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from drawn import FLOATS, INTS, SEEDS, shapes, values
from hypothesis import assume, given
from hypothesis import strategies as st

Check = Callable[..., None]
REDUCE: dict[str, Callable[..., Any]] = {
    "ReduceSum": np.sum,
    "ReduceProd": np.prod,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceMean": np.mean,
    "ReduceL1": lambda x, axis, keepdims: np.abs(x).sum(axis, keepdims=keepdims),
    "ReduceL2": lambda x, axis, keepdims: np.sqrt((x * x).sum(axis, keepdims=keepdims)),
    "ReduceSumSquare": lambda x, axis, keepdims: (x * x).sum(axis, keepdims=keepdims),
    "ReduceLogSumExp": lambda x, axis, keepdims: np.log(np.exp(x).sum(axis, keepdims=keepdims)),
}
OF_NOTHING = {"ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"}


@given(
    seed=SEEDS,
    op=st.sampled_from(sorted(REDUCE)),
    shape=shapes(),
    dtype=st.sampled_from(("float32", "float64", "int32", "int64")),
    keep=st.integers(0, 1),
    data=st.data(),
)
def test_reduction(
    check: Check, seed: int, op: str, shape: tuple[int, ...], dtype: str, keep: int, data: st.DataObject
) -> None:
    axes = data.draw(st.none() | st.lists(st.integers(0, max(len(shape) - 1, 0)), unique=True, max_size=len(shape)))
    axes = [axis - len(shape) if data.draw(st.booleans()) else axis for axis in axes] if axes else axes
    reduced = tuple(axes) if axes else tuple(range(len(shape)))
    assume(op in OF_NOTHING or all(shape[axis] for axis in reduced))
    assume(op not in ("ReduceL2", "ReduceLogSumExp", "ReduceMean") or dtype.startswith("float"))
    x = values(seed, dtype, shape)
    x = np.clip(x, -2, 2)
    with np.errstate(all="ignore"):
        y = np.asarray(REDUCE[op](x.astype(np.float64), axis=reduced, keepdims=bool(keep)))
    given_ = None if axes is None else np.array(axes, np.int64)
    version = 13 if op == "ReduceSum" else 18
    noop = data.draw(st.integers(0, 1))
    if noop and not axes:
        return  # what an operator does to an element where nothing is reduced is test_noop's
    how: dict[str, Any] = {"keepdims": keep, "noop_with_empty_axes": noop, "opset": version}
    tolerance = {"rtol": 1e-5} if dtype == "float32" else {}
    check(op, x, given_, expect=y.astype(dtype), constants=(1,) if axes is not None else (), **how, **tolerance)


@given(seed=SEEDS, shape=shapes(), op=st.sampled_from(["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"]))
def test_noop(check: Check, seed: int, shape: tuple[int, ...], op: str) -> None:
    x = values(seed, "float32", shape)
    how: dict[str, Any] = {"noop_with_empty_axes": 1, "opset": 18}
    check(op, x, expect=x, **how)
    check(op, x, np.array([], np.int64), expect=x, constants=(1,), **how)


@given(seed=SEEDS, shape=shapes(least=1), dtype=st.sampled_from(FLOATS + INTS), data=st.data())
def test_positions_of_the_best(
    check: Check, seed: int, shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    axis, keep, last = data.draw(st.integers(-len(shape), len(shape) - 1)), data.draw(st.integers(0, 1)), 0
    last = data.draw(st.integers(0, 1))
    assume(shape[axis])
    x = values(seed, dtype, shape)
    for op, function in (("ArgMax", np.argmax), ("ArgMin", np.argmin)):
        found = function(np.flip(x, axis) if last else x, axis=axis, keepdims=bool(keep))
        expect = np.asarray(shape[axis] - 1 - found if last else found, np.int64)
        check(op, x, expect=expect, axis=axis, keepdims=keep, select_last_index=last)


@given(seed=SEEDS, shape=shapes(least=1), data=st.data())
def test_cumulative_sum(check: Check, seed: int, shape: tuple[int, ...], data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    exclusive, reverse = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1))
    dtype = data.draw(st.sampled_from(("float32", "float64", "int32", "int64")))
    x = values(seed, dtype, shape)
    y = np.flip(x, axis) if reverse else x
    y = np.cumsum(y.astype(np.float64), axis) - (y if exclusive else 0)
    y = np.flip(y, axis) if reverse else y
    how = {"exclusive": exclusive, "reverse": reverse, "constants": (1,)}
    check("CumSum", x, np.array(axis), expect=y.astype(dtype), **how)


@given(seed=SEEDS, shape=shapes(least=1), data=st.data())
def test_top_k(check: Check, seed: int, shape: tuple[int, ...], data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k, largest = data.draw(st.integers(0, shape[axis])), data.draw(st.integers(0, 1))
    dtype = data.draw(st.sampled_from(FLOATS + INTS))
    x = values(seed, dtype, shape)
    keys = x.astype(np.float64)
    # of equal ones the first comes first
    order = np.argsort(-keys if largest else keys, axis, kind="stable")
    order = np.take(order, np.arange(k), axis)
    expect = [np.take_along_axis(x, order, axis), order.astype(np.int64)]
    constants = (1,) if data.draw(st.booleans()) else ()
    check("TopK", x, np.array([k]), expect=expect, axis=axis, largest=largest, constants=constants)


@given(seed=SEEDS, shape=shapes(least=1), op=st.sampled_from(["Softmax", "LogSoftmax", "Hardmax"]), data=st.data())
def test_softmax(check: Check, seed: int, shape: tuple[int, ...], op: str, data: st.DataObject) -> None:
    axis, dtype = data.draw(st.integers(-len(shape), len(shape) - 1)), data.draw(st.sampled_from(FLOATS))
    x = values(seed, dtype, shape)
    if x.size:
        e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
        y = e / e.sum(axis, keepdims=True)
        best = np.argmax(x, axis)
        places = np.expand_dims(best, axis) == np.arange(shape[axis]).reshape(
            [-1 if index == axis % len(shape) else 1 for index in range(len(shape))]
        )
        y = {"Softmax": y, "LogSoftmax": np.log(y), "Hardmax": places}[op]
    else:
        y = np.zeros(shape)
    check(op, x, expect=y.astype(dtype), axis=axis)
