"""The claim report counts what ONNX Runtime itself says it assigned."""

from __future__ import annotations

from collections import Counter

import onnxruntime
import pytest
from onnx import TensorProto, helper

import ort_ep

RECORD = "session.record_ep_graph_assignment_info"


def mixed_model() -> bytes:
    """Six nodes: two that MLX declines (strings) between four that it takes."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Cast", ["b"], ["text"], to=TensorProto.STRING),
        helper.make_node("Cast", ["text"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Exp", ["c"], ["d"]),
        helper.make_node("Add", ["d", "a"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


@pytest.mark.skipif(
    not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"),
    reason="this onnxruntime does not tell its assignment",
)
def test_claim_report_agrees_with_onnxruntime():
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry(RECORD, "1")
    session = ort_ep.InferenceSession(mixed_model(), settings)
    assigned = Counter(
        (group.ep_name == ort_ep.EP_NAME, node.op_type)
        for group in session.get_provider_graph_assignment_info()
        for node in group.get_nodes()
    )
    reported = Counter((node.on_mlx, node.op_type) for node in ort_ep.claim_report(session).nodes)
    assert reported == assigned
    assert reported[(True, "Relu")] == 1 and reported[(False, "Cast")] == 2
