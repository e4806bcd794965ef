"""What is compiled are parts of the graph that was offered: nothing is decided twice, memory is read as it is now."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_ep
from ort_ep import graph as graphs
from ort_ep import proto
from ort_ep.capability import Analyzer
from ort_ep.offer import Offer
from ort_ep.provider import Provider
from ort_ep.registry import Registry

Document = Callable[..., Any]
ORT = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
WEIGHTED = f"{HEAD} g (float[2] x) => (float[2] y) <float[2] w = {{1, 2}}> {{ a = Add(x, w) y = Relu(a) }}"
NESTED = f"""{HEAD} g (bool c, float[2] x) => (float[2] y) <float[2] w = {{1, 2}}> {{
  y = If (c) <then_branch = t () => (float[2] p) <float[2] v = {{3, 4}}> {{ q = Add(x, v) p = Mul(q, w) }},
              else_branch = e () => (float[2] r) {{ r = Sub(x, w) }}>
}}"""


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def offered(text: bytes, registry: Registry) -> Offer:
    graph = graphs.parse(text)
    return Offer(graph, Analyzer(graph, registry).verdicts())


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators of the nodes that are decided on."""
    operators: list[str] = []
    verdict = Analyzer.verdict

    def counted(self: Analyzer, node: graphs.Node) -> Any:
        operators.append(node.op_type)
        return verdict(self, node)

    monkeypatch.setattr(Analyzer, "verdict", counted)
    return operators


def test_sessions_decide_on_each_node_once(decided: list[str]) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    text = WEIGHTED.replace("y = Relu(a)", "b = Abs(a) s = Cast<to = 8>(b) c = Cast<to = 1>(s) y = Relu(c)")
    session = ort_ep.InferenceSession(model(text).SerializeToString(), options, on_compute_error="raise")
    assert sorted(decided) == ["Abs", "Add", "Cast", "Cast", "Relu"]
    np.testing.assert_array_equal(session.run(None, {"x": np.array([-4, 1], np.float32)})[0], [3, 3])


@pytest.mark.skipif(ORT < (1, 27), reason="before 1.27 ONNX Runtime does not hand over what bodies capture")
def test_bodies_are_parts_too_and_their_parent_is_decided_on_once_for_them(decided: list[str]) -> None:
    session = ort_ep.InferenceSession(model(NESTED).SerializeToString(), strict=True, on_compute_error="raise")
    assert decided == ["If", "If"]  # for its two bodies, and where it is
    x = np.array([5, 6], np.float32)
    np.testing.assert_array_equal(session.run(None, {"c": np.array(True), "x": x})[0], [8, 20])
    np.testing.assert_array_equal(session.run(None, {"c": np.array(False), "x": x})[0], [4, 4])


def test_constants_are_read_where_they_lie_now(toy: Registry, document: Document) -> None:
    whole = document(model(WEIGHTED))
    offer = offered(whole.text, toy)
    data = json.loads(whole.text)
    moved = np.array([7, 8], np.float32)
    next(row for row in data["values"] if row[0] == "w")[3][0] = moved.ctypes.data
    known = offer.part(data)
    assert known is not None
    graph, calls = known
    assert [call.node for call in calls] == graph.nodes
    weight = calls[0].node.constant(1)
    assert weight is not None
    np.testing.assert_array_equal(weight, moved)


def test_between_callbacks_there_is_no_memory_to_read(toy: Registry, document: Document) -> None:
    whole = document(model(WEIGHTED))
    graph = graphs.parse(whole.text)
    Offer(graph, Analyzer(graph, toy).verdicts())
    with pytest.raises(RuntimeError, match="only while its graph is claimed or compiled"):
        graph.nodes[0].constant(1)


def changed(data: Any, number: int, row: str, column: int, content: Any) -> Any:
    data[row][number][column] = content
    return data


@pytest.mark.parametrize(
    "change",
    [
        lambda data: changed(data, 1, "nodes", 2, "Neg"),
        lambda data: changed(data, [row[0] for row in data["values"]].index("y"), "values", 0, "z"),
        lambda data: changed(data, [row[0] for row in data["values"]].index("w"), "values", 2, 0),
        lambda data: changed(data, [row[0] for row in data["values"]].index("w"), "values", 3, None),
    ],
)
def test_what_was_not_offered_is_no_part(toy: Registry, document: Document, change: Any) -> None:
    text = document(model(WEIGHTED)).text
    offer = offered(text, toy)
    assert offer.part(json.loads(text)) is not None
    assert offer.part(change(json.loads(text))) is None


def test_other_graphs_are_read_as_a_whole(toy: Registry, document: Document) -> None:
    provider = Provider({}, registry=toy)
    assert provider.get_capability(document(model(WEIGHTED)).text) == [[0, 1]]
    other = document(proto.from_model(model(WEIGHTED.replace(" a = Add", " k = Add").replace("(a)", "(k)"))))
    (compute,) = provider.compile([other.text], ["fused_0"])
    x = np.array([1, -3], np.float32)
    ((_, _, _, result),) = compute([(x.ctypes.data, 1, x.shape)])
    np.testing.assert_array_equal(np.array(result), [2, 0])
