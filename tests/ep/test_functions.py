from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from ort_ep import functions, proto
from ort_ep.capability import Analyzer
from ort_ep.plan import Plan
from ort_ep.registry import Registry

Parse = Callable[[str], ModelProto]
Planned = Callable[[Any, Registry], Plan]
Run = Callable[[Plan, Mapping[str, np.ndarray[Any, Any]]], list[np.ndarray[Any, Any]]]
HEAD = '<ir_version: 8, opset_import: ["": 18, "local": 1]>'


def check(source: ModelProto, registry: Registry, planned: Planned, run: Run, **feeds: np.ndarray[Any, Any]) -> Plan:
    built = planned(source, registry)
    found = run(built, feeds)
    for ours, theirs in zip(found, ReferenceEvaluator(source).run(None, feeds), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return built


def test_schema_functions_are_translated_with_their_attributes(
    toy: Registry, model: Parse, planned: Planned, run: Run
) -> None:
    x = np.array([-2, -0.5, 0, 3], np.float32)
    for alpha in ("", "<alpha = 0.25>"):
        source = model(f"{HEAD} g (float[N] x) => (float[N] y) {{ y = Elu {alpha} (x) }}")
        built = check(source, toy, planned, run, x=x)
        assert built.nodes > 1


def test_bodies_that_depend_on_the_call(toy: Registry, model: Parse, planned: Planned, run: Run) -> None:
    del toy._ops["", "Clip"]
    for inputs in ("x, low, high", "x, low", 'x, "", high'):
        source = onnx.parser.parse_model(
            f"{HEAD} g (float[N] x, float low, float high) => (float[N] y) {{ y = Relu(x) }}"
        )
        names = [name.strip().strip('"') for name in inputs.split(",")]
        source.graph.node[0].CopyFrom(helper.make_node("Clip", names, ["y"]))
        feeds = {"x": np.array([-3, 0, 5], np.float32), "low": np.float32(-1), "high": np.float32(2)}
        check(source, toy, planned, run, **{name: np.asarray(value) for name, value in feeds.items()})


X = np.arange(6, dtype=np.float32).reshape(2, 3)
LOCAL = """
<domain: "local", opset_import: ["": 18]>
Both (a, b) => (c) { c = Add (a, b) }
<domain: "local", opset_import: ["": 18, "local": 1]>
Scaled <k: float = 2.0, axis> (a, b) => (sum, scaled, shape) {
    factor = Constant <value_float: float = @k> ()
    sum = local.Both (a, b)
    scaled = Mul (a, factor)
    shape = Shape <start: int = @axis> (a)
}
"""


@pytest.mark.parametrize(
    ("call", "outputs", "expected"),
    [
        ("s, m, d = local.Scaled <axis = 1> (x, x)", "float[N, M] s, float[N, M] m, int64[a] d", (2 * X, 2 * X, [3])),
        ('"", m, d = local.Scaled <k = 3.0> (x, x)', "float[N, M] m, int64[a] d", (None, 3 * X, [2, 3])),
        ('s, "", d = local.Scaled (x, x)', "float[N, M] s, int64[a] d", (2 * X, None, [2, 3])),
        ("s = local.Scaled <axis = 0> (x, x)", "float[N, M] s", (2 * X, None, None)),
    ],
)
def test_model_functions_nest_and_may_leave_outputs_out(
    toy: Registry, planned: Planned, run: Run, call: str, outputs: str, expected: tuple[Any, ...]
) -> None:
    text = f"{HEAD} g (float[N, M] x) => ({outputs}) {{ {call} }} {LOCAL}"
    # onnx.reference does not know the defaults of a function's attributes
    found = run(planned(onnx.parser.parse_model(text), toy), {"x": X})
    for ours, theirs in zip(found, (value for value in expected if value is not None), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_unused_work_of_a_body_is_dropped(toy: Registry, planned: Planned) -> None:
    text = f"{HEAD} g (float[N, M] x) => (float[N, M] s) {{ s = local.Scaled <axis = 0> (x, x) }} {LOCAL}"
    assert planned(onnx.parser.parse_model(text), toy).nodes == 1


def test_output_that_is_a_constant_of_the_body(toy: Registry, planned: Planned, run: Run) -> None:
    text = f"""{HEAD} g (float[N] x) => (float[N] y, float c) {{ y, c = local.With(x) }}
    <domain: "local", opset_import: ["": 18]>
    With (a) => (b, c) {{ c = Constant <value_float = 4.0> () b = Add (a, c) }}"""
    check(onnx.parser.parse_model(text), toy, planned, run, x=np.ones(2, np.float32))


def test_reasons_name_the_operator_inside(toy: Registry, model: Parse) -> None:
    del toy._ops["", "Exp"]
    source = model(f"{HEAD} g (float[N] x) => (float[N] y) {{ y = Elu (x) }}")
    (verdict,) = Analyzer(proto.from_model(source), toy).verdicts()
    assert verdict.reason == "function body: Exp: no handler and no function body that can be translated"


def test_recursion_ends_in_a_reason(toy: Registry) -> None:
    text = f"""{HEAD} g (float[N] x) => (float[N] y) {{ y = local.Again(x) }}
    <domain: "local", opset_import: ["local": 1]>
    Again (a) => (b) {{ b = local.Again (a) }}"""
    (verdict,) = Analyzer(proto.from_model(onnx.parser.parse_model(text), infer=False), toy).verdicts()
    assert verdict.reason


def test_body_version_follows_the_callers_opset() -> None:
    def body(opset: int) -> list[str]:
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
        graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"], axis=1)], "g", [x], [y])
        source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        (node,) = proto.from_model(source).nodes
        expanded = functions.expand(node, {})
        assert expanded is not None
        return [f"{inner.op_type}-{inner.since_version}" for inner in expanded]

    assert "ReduceMax-13" in body(13)
    assert "ReduceMax-18" in body(18)


def test_primitive_operators_have_no_body() -> None:
    graph = proto.from_model(onnx.parser.parse_model(f"{HEAD} g (float[N] x) => (float[N] y) {{ y = Exp(x) }}"))
    assert functions.expand(graph.nodes[0], {}) is None
