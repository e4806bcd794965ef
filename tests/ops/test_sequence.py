"""Sequences and optionals inside a plan: what they hold, positions from the end, and errors in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from ort_ep import proto
from ort_ep.capability import Analyzer

Run = Callable[..., list[Any]]
Same = Callable[..., None]
HEAD = '<ir_version: 8, opset_import: ["": 18]>'
MATRIX = np.arange(20, dtype=np.float32).reshape(5, 4)


@pytest.fixture
def agree(plan_of: Run, same: Same) -> Callable[..., None]:
    def check(text: str, **feeds: Any) -> None:
        model = onnx.parser.parse_model(text)
        for ours, theirs in zip(plan_of(model, feeds), ReferenceEvaluator(model).run(None, feeds), strict=True):
            same(ours, np.asarray(theirs))

    return check


@pytest.mark.parametrize("position", [-3, -1, 0, 2])
def test_at_insert_and_erase(agree: Callable[..., None], position: int) -> None:
    agree(
        f"""{HEAD} g (float[5, 4] x, int64 at) => (float[a, 4] more, float[b, 4] fewer, float[4] one, int64 n) {{
        rows = SequenceConstruct(x, x, x) inserted = SequenceInsert(rows, x, at) erased = SequenceErase(rows, at)
        more = ConcatFromSequence <axis = 0> (inserted) fewer = ConcatFromSequence <axis = 0> (erased)
        one = SequenceAt(rows, at) n = SequenceLength(inserted) }}""",
        x=MATRIX,
        at=np.array(position),
    )


@pytest.mark.parametrize("position", [-4, 3])
@pytest.mark.parametrize(("op", "count"), [("SequenceAt", "Size"), ("SequenceErase", "SequenceLength")])
def test_positions_outside_are_errors(plan_of: Run, op: str, count: str, position: int) -> None:
    model = onnx.parser.parse_model(
        f"""{HEAD} g (float[5, 4] x, int64 at) => (int64 n) {{
        rows = SequenceConstruct(x, x, x) y = {op}(rows, at) n = {count}(y) }}"""
    )
    with pytest.raises(RuntimeError, match=f"position {position} in a sequence of 3"):
        plan_of(model, {"x": MATRIX, "at": np.array(position)})


@pytest.mark.parametrize(("axis", "split"), [(0, 2), (1, 2), (1, 3), (0, 7), (-1, [1, 3]), (0, [2, 0, 3])])
def test_split_into_parts(agree: Callable[..., None], axis: int, split: int | list[int]) -> None:
    shape = "int64" if isinstance(split, int) else f"int64[{len(split)}]"
    agree(
        f"""{HEAD} g (float[5, 4] x, {shape} parts) => (float[a, b] first, float[c, d] all, int64 n) {{
        rows = SplitToSequence <axis = {axis}> (x, parts) zero = Constant <value_int = 0> ()
        first = SequenceAt(rows, zero) all = ConcatFromSequence <axis = {axis}> (rows) n = SequenceLength(rows) }}""",
        x=MATRIX,
        parts=np.array(split),
    )


@pytest.mark.parametrize("keepdims", [0, 1])
def test_split_into_single_rows(plan_of: Run, same: Same, keepdims: int) -> None:
    model = onnx.parser.parse_model(
        f"""{HEAD} g (float[5, 4] x) => (float[a, b, c] all) {{
        rows = SplitToSequence <axis = 1, keepdims = {keepdims}> (x)
        all = ConcatFromSequence <axis = 0, new_axis = 1> (rows) }}"""
    )
    (stacked,) = plan_of(model, {"x": MATRIX})
    same(stacked, MATRIX.T[:, :, None] if keepdims else MATRIX.T)


def test_optionals_full_and_empty(plan_of: Run) -> None:
    given = onnx.parser.parse_model(
        f"""{HEAD} g (float[5, 4] x) => (float[5, 4] y, bool has) {{
        o = Optional(x) p = Identity(o) y = OptionalGetElement(p) has = OptionalHasElement(p) }}"""
    )
    y, has = plan_of(given, {"x": MATRIX})
    np.testing.assert_array_equal(y, MATRIX)
    assert has.item() is True
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])
    nodes = [
        onnx.helper.make_node("Optional", [], ["o"], type=kind),
        onnx.helper.make_node("OptionalHasElement", ["o"], ["has"]),
    ]
    outputs = [onnx.helper.make_tensor_value_info("has", onnx.TensorProto.BOOL, [])]
    empty = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", [], outputs), opset_imports=[onnx.helper.make_opsetid("", 18)]
    )
    assert plan_of(empty, {})[0].item() is False


def test_sequences_of_constants(agree: Callable[..., None]) -> None:
    agree(
        f"""{HEAD} g (float[5, 4] x) => (float[5, 4] y, int64 n) <float[2] c = {{1, 2}}> {{
        rows = SequenceConstruct(c, c, c) longer = SequenceInsert(rows, c) n = SequenceLength(longer)
        table = ConcatFromSequence <axis = 0, new_axis = 1> (rows) total = ReduceSum <keepdims = 0> (table)
        y = Mul(x, total) }}""",
        x=MATRIX,
    )


def test_a_sequence_of_strings_is_declined() -> None:
    model = onnx.parser.parse_model(
        f"{HEAD} g () => (int64 n) {{ s = SequenceEmpty <dtype = 8> () n = SequenceLength(s) }}"
    )
    reasons = [verdict.reason for verdict in Analyzer(proto.from_model(model)).verdicts()]
    assert reasons[0] == "a sequence of a dtype that MLX does not have"
