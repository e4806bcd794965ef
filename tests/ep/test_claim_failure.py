"""A bug while claiming never becomes a silent CPU session: it is reported, or stops a strict session."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import ort_ep
from ort_ep import provider


@pytest.fixture
def broken_model(monkeypatch) -> bytes:
    """y = relu(x) float32 [2], and a provider whose analysis of any graph raises."""

    def explode(*arguments):
        raise LookupError("a bug of ours")

    monkeypatch.setattr(provider, "Analyzer", explode)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def test_the_report_says_why_nothing_runs_on_mlx(broken_model):
    session = ort_ep.InferenceSession(broken_model)
    assert session.run(None, {"x": np.float32([-1, 1])})[0].tolist() == [0, 1]
    (failure,) = ort_ep.claim_report(session).failures
    assert "claiming failed" in failure and "a bug of ours" in failure


def test_strict_and_raise_refuse_the_session(broken_model):
    with pytest.raises(ort_ep.StrictError, match="a bug of ours"):
        ort_ep.InferenceSession(broken_model, strict=True)
    with pytest.raises(Exception, match="a bug of ours"):
        ort_ep.InferenceSession(broken_model, on_compute_error="raise")
