"""Chains of operators as one call of MLX: the results of operator by operator, and only where nothing else looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from ort_ep import capability, fusion, planner, proto
from ort_ep.registry import REGISTRY

Run = Callable[[Any, dict[str, Any]], list[np.ndarray[Any, Any]]]


@pytest.fixture
def both(run: Run) -> Callable[..., list[str]]:
    """Compare a graph's results with and without fusion; returns the operators that ran fused."""

    def compare(text: str, inputs: dict[str, Any], tolerance: float = 1e-5) -> list[str]:
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
        graph = proto.from_model(model)
        verdicts = capability.Analyzer(graph, REGISTRY).verdicts()
        assert [verdict.reason for verdict in verdicts if verdict.reason] == []
        calls = [call for verdict in verdicts for call in verdict.calls]
        whole = fusion.fused(graph, calls)
        for ours, theirs in zip(
            run(planner.build(graph, whole), inputs), run(planner.build(graph, calls), inputs), strict=True
        ):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_allclose(ours, theirs, tolerance, tolerance)
        return [call.node.op_type for call in whole]

    return compare


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


QKV = "float[B, H, T, D] q, float[B, H, D, S] k, float[B, H, S, V] v"


def heads(batch: int = 2, rows: int = 5, columns: int = 7) -> dict[str, Any]:
    return {"q": normal(batch, 3, rows, 8), "k": normal(batch, 3, 8, columns), "v": normal(batch, 3, columns, 8)}


@pytest.mark.parametrize(
    "scores",
    [
        "s = MatMul(q, k)",
        "p = MatMul(q, k) s = Mul(c, p)",
        "p = MatMul(q, k) s = Div(p, c)",
    ],
)
@pytest.mark.parametrize("mask", [None, (7,), (5, 7), (2, 1, 1, 7), (1, 1, 5, 7), (2, 3, 5, 7)])
def test_attention(both: Callable[..., list[str]], scores: str, mask: tuple[int, ...] | None) -> None:
    given, added, inputs = "", "", heads()
    if mask is not None:
        dims = ", ".join(f"m{i}" for i in range(len(mask)))
        given, added = f", float[{dims}] m", "t = Add(m, s)" if len(mask) == 2 else "t = Add(s, m)"
        inputs["m"] = np.where(normal(*mask) > 1, -1e9, 0).astype(np.float32)
    weights = f"w = Softmax({'t' if added else 's'})"
    body = f"{scores} {added} {weights} y = MatMul(w, v)"
    assert both(f"g ({QKV}{given}) => (float[B, H, T, V] y) <float[1] c = {{2.8}}> {{ {body} }}", inputs) == [
        "Attention"
    ]


def test_attention_of_rank_three_and_other_shapes(both: Callable[..., list[str]]) -> None:
    text = """g (float[N, T, D] q, float[N, D, S] k, float[N, S, V] v, float[A, T, S] m) => (float[N, T, V] y) {
        p = MatMul(q, k) s = Add(p, m) w = Softmax <axis = 2> (s) y = MatMul(w, v) }"""
    inputs = {"q": normal(6, 4, 8), "k": normal(6, 8, 9), "v": normal(6, 9, 5)}
    assert both(text, {**inputs, "m": normal(1, 4, 9)}) == ["Attention"]
    assert both(text, {**inputs, "m": normal(6, 4, 9)}) == ["Attention"]
    # products that broadcast, and a mask that makes more of the scores, are computed as they stand
    assert both(text, {**inputs, "k": normal(1, 8, 9), "m": normal(6, 4, 9)}) == ["Attention"]
    assert both(text, {"q": normal(1, 4, 8), "k": normal(1, 8, 9), "v": normal(6, 9, 5), "m": normal(6, 4, 9)}) == [
        "Attention"
    ]


@pytest.mark.parametrize(
    "body",
    [
        "s = MatMul(q, k) w = Softmax(s) y = MatMul(w, v) z = Identity(w)",  # the weights are an output too
        "s = MatMul(q, k) w = Softmax(s) y = MatMul(w, v) z = Relu(s)",
        "s = MatMul(q, k) w = Softmax <axis = 1> (s) y = MatMul(w, v) z = Relu(y)",
        "s = MatMul(q, k) w = Softmax(s) r = Relu(w) y = MatMul(r, v) z = Relu(y)",
    ],
)
def test_what_others_see_stays(both: Callable[..., list[str]], body: str) -> None:
    assert "Attention" not in both(f"g ({QKV}) => (float[B, H, T, V] y, float[a, b, c, d] z) {{ {body} }}", heads())


def test_a_product_with_a_bias(both: Callable[..., list[str]]) -> None:
    text = "g (float[N, T, 6] x, float[6, 4] w, float[4] b) => (float[N, T, 4] y) { p = MatMul(x, w) y = Add(b, p) }"
    inputs = {"x": normal(2, 5, 6), "w": normal(6, 4), "b": normal(4)}
    assert both(text, inputs) == ["MatMulAdd"]
    assert both(text, {**inputs, "x": normal(0, 5, 6)}) == ["MatMulAdd"]
    wider = text.replace("float[4] b", "float[5, 1] b")
    assert both(wider, {**inputs, "b": normal(5, 1)}) == ["MatMul", "Add"]


def test_a_bias_of_unknown_length_may_widen_the_product(both: Callable[..., list[str]]) -> None:
    text = "g (float[N, 6] x, float[6, K] w, float[M] b) => (float[N, M] y) { p = MatMul(x, w) y = Add(p, b) }"
    inputs = {"x": normal(5, 6), "w": normal(6, 1), "b": normal(4)}
    assert both(text, inputs) == ["MatMul", "Add"]


def test_integers_doubles_and_a_users_operator_stay(
    both: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "g (T[N, 6] x, T[6, 4] w, T[4] b) => (T[N, 4] y) { p = MatMul(x, w) y = Add(p, b) }"
    for name, dtype in (("int32", np.int32), ("double", np.float64)):
        inputs = {"x": normal(5, 6).astype(dtype), "w": normal(6, 4).astype(dtype), "b": normal(4).astype(dtype)}
        assert both(text.replace("T[", f"{name}["), inputs) == ["MatMul", "Add"]
    handler = REGISTRY.lookup("", "Add", 14)
    assert handler is not None
    monkeypatch.setitem(REGISTRY._ops, ("", "Add"), type(REGISTRY._ops["", "Add"])([], []))
    REGISTRY.op("Add", since=1, override=True)(handler.function)
    inputs = {"x": normal(5, 6), "w": normal(6, 4), "b": normal(4)}
    assert both(text.replace("T[", "float["), inputs) == ["MatMul", "Add"]


def test_inside_of_bodies(both: Callable[..., list[str]]) -> None:
    text = """g (bool c, float[N, 6] x, float[6, 4] w, float[4] b) => (float[N, 4] y) {
        y = If (c) <then_branch = t () => (float[N, 4] r) { p = MatMul(x, w) r = Add(p, b) },
                    else_branch = e () => (float[N, 4] r) { p = MatMul(x, w) r = Sub(p, b) }> }"""
    inputs = {"x": normal(5, 6), "w": normal(6, 4), "b": normal(4)}
    for choice in (True, False):
        assert both(text, {"c": np.array(choice), **inputs}) == ["If"]
