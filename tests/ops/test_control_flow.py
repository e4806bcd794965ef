"""Control flow against onnx.reference and by hand; tests/ep/test_control_flow.py compares with ORT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

Run = Callable[..., list[Any]]
Same = Callable[..., None]
HEAD = '<ir_version: 8, opset_import: ["": 21]>'


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@pytest.fixture
def agree(plan_of: Run, same: Same) -> Callable[..., None]:
    """Run a model given as text, and compare with the reference evaluator."""

    def check(text: str, **feeds: Any) -> None:
        model = onnx.parser.parse_model(text)
        for ours, theirs in zip(plan_of(model, feeds), ReferenceEvaluator(model).run(None, feeds), strict=True):
            same(ours, np.asarray(theirs))

    return check


@pytest.mark.parametrize("dtype", ["float", "double", "float16", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("condition", [True, False])
def test_if_of_every_kind_of_value(agree: Callable[..., None], dtype: str, condition: bool) -> None:
    numpy_dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    agree(
        f"""{HEAD} g (bool c, {dtype}[2] x, {dtype}[3] w) => ({dtype}[N] y) {{
        y = If (c) <then_branch = t () => ({dtype}[2] a) {{ a = Identity(x) }},
                    else_branch = e () => ({dtype}[5] b) {{ b = Concat <axis = 0> (x, w) }}> }}""",
        c=np.array(condition),
        x=np.array([0, 1], numpy_dtype),
        w=np.array([1, 0, 1], numpy_dtype),
    )


def test_the_branch_that_is_not_taken_is_not_run(plan_of: Run) -> None:
    model = onnx.parser.parse_model(
        f"""{HEAD} g (bool c, float[4] x, int64[2] bad) => (float[N] y) {{
        y = If (c) <then_branch = t () => (float[N] a) {{ a = Neg(x) }},
                    else_branch = e () => (float[N, M] b) {{ b = Reshape(x, bad) }}> }}"""
    )
    feeds = {"x": floats(4), "bad": np.array([3, 3])}
    np.testing.assert_array_equal(plan_of(model, {"c": np.array(True), **feeds})[0], -feeds["x"])
    with pytest.raises(RuntimeError, match="Reshape"):
        plan_of(model, {"c": np.array(False), **feeds})


@pytest.mark.parametrize("count", [1, 2, 20])
def test_loop_with_several_states_and_scans(plan_of: Run, same: Same, count: int) -> None:
    model = onnx.parser.parse_model(
        f"""{HEAD} g (int64 n, float[3] x) => (float[3] y, int64 total, float[k, 3] trail, int64[k] at) {{
        zero = Constant <value_int = 0> ()
        y, total, trail, at = Loop(n, , x, zero) <
            body = b (int64 i, bool c, float[3] s, int64 sum) =>
                     (bool d, float[3] t, int64 more, float[3] row, int64 place) {{
                d = Identity(c) f = Cast <to = 1> (i) t = Add(s, f) more = Add(sum, i)
                row = Mul(t, x) place = Identity(more) }}> }}"""
    )
    x = floats(3)
    totals = np.cumsum(np.arange(count))
    states = x + totals[:, None].astype(np.float32)
    expected = states[-1], totals[-1], states * x, totals
    for ours, theirs in zip(plan_of(model, {"n": np.array(count), "x": x}), expected, strict=True):
        same(ours, np.asarray(theirs))


def test_rows_of_no_iteration_have_the_declared_shape(plan_of: Run) -> None:
    model = onnx.parser.parse_model(
        f"""{HEAD} g (int64 n, float[3] x) => (float[3] y, double[k, 3, M] rows) {{
        y, rows = Loop(n, , x) <body = b (int64 i, bool c, float[3] s) => (bool d, float[3] t, double[3, M] row) {{
            d = Identity(c) t = Neg(s) v = Cast <to = 11> (t) two = Constant <value_ints = [3, 2]> ()
            axes = Constant <value_ints = [1]> () w = Unsqueeze(v, axes) row = Expand(w, two) }}> }}"""
    )
    y, rows = plan_of(model, {"n": np.array(0), "x": floats(3)})
    np.testing.assert_array_equal(y, floats(3))
    assert rows.dtype == np.float64
    assert rows.shape[:2] == (0, 3)


@pytest.mark.parametrize("length", [0, 1, 5])
def test_scan_over_two_inputs(plan_of: Run, same: Same, length: int) -> None:
    model = onnx.parser.parse_model(
        f"""{HEAD} g (float[2] start, float[N, 2] a, float[2, N] b) => (float[2] last, float[2, N] sums) {{
        last, sums = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [0, 1],
                           scan_output_axes = [1],
            body = s (float[2] state, float[2] u, float[2] v) => (float[2] next, float[2] out) {{
                w = Mul(u, v) next = Add(state, w) out = Identity(next) }}> (start, a, b) }}"""
    )
    start, a, b = floats(2), floats(length, 2), floats(2, length)
    last, sums = plan_of(model, {"start": start, "a": a, "b": b})
    running = start + np.cumsum(a * b[:, ::-1].T, 0, dtype=np.float32)
    same(sums, running.T.astype(np.float32))
    same(last, running[-1] if length else start)
