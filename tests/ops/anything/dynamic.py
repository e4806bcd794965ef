"""One session for many shapes: axes without a fixed length, through ONNX Runtime, each shape against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from drawn import SEEDS, shapes, values
from hypothesis import given
from hypothesis import strategies as st

import ort_ep

HEAD = '<ir_version: 8, opset_import: ["": 18]>'
TEXTS = {
    "mix": f"""{HEAD} g (float[A, B, C] x, float[C] w) => (float[D, E] y) {{
        s = Shape(x) last = Gather(s, two) rest = Constant <value_ints = [-1]> () one = Unsqueeze(last, zero)
        target = Concat <axis = 0> (rest, one) flat = Reshape(x, target) scaled = Mul(flat, w) y = Relu(scaled) }}""",
    "join": f"""{HEAD} g (float[A, B, C] x, float[C] w) => (float[D, E, F] y) {{
        m = ReduceMax <keepdims = 1> (x, axes) e = Sub(x, m) y = Concat <axis = 1> (e, x) }}""",
    "kept": f"""{HEAD} g (float[A, B, C] x, float[C] w) => (float[N] y) {{
        z = Mul(x, w) positive = Greater(z, nothing) flat = Reshape(z, all)
        mask = Reshape(positive, all) y = Compress(flat, mask) }}""",
}
CONSTANTS = {
    "two": np.array(2),
    "zero": np.array([0]),
    "axes": np.array([1]),
    "all": np.array([-1]),
    "nothing": np.array(0, np.float32),
}
EXPECT: dict[str, Any] = {
    "mix": lambda x, w: np.maximum(x.reshape(-1, x.shape[2]) * w, 0),
    "join": lambda x, w: np.concatenate([x - x.max(1, keepdims=True), x], 1),
    "kept": lambda x, w: (x * w)[x * w > 0],
}


@pytest.fixture(scope="module")
def sessions() -> dict[str, Any]:
    made = {}
    for name, text in TEXTS.items():
        model = onnx.parser.parse_model(text)
        used = {value for node in model.graph.node for value in node.input}
        tensors = [onnx.numpy_helper.from_array(value, key) for key, value in CONSTANTS.items() if key in used]
        model.graph.initializer.extend(tensors)
        made[name] = ort_ep.InferenceSession(model.SerializeToString(), on_compute_error="raise")
        assert ort_ep.claim_report(made[name]).declined == []
    return made


@given(seed=SEEDS, shape=shapes(least=3, most=3, smallest=1), name=st.sampled_from(sorted(TEXTS)))
def test_every_shape(sessions: dict[str, Any], seed: int, shape: tuple[int, ...], name: str) -> None:
    x, w = values(seed, "float32", shape), values(seed + 1, "float32", shape[2:])
    (y,) = sessions[name].run(None, {"x": x, "w": w})
    np.testing.assert_allclose(y, EXPECT[name](x, w), rtol=1e-6)


@given(seed=SEEDS, shape=st.tuples(*[st.integers(0, 2)] * 3), name=st.sampled_from(["mix", "kept"]))
def test_empty_shapes(sessions: dict[str, Any], seed: int, shape: tuple[int, ...], name: str) -> None:
    if not shape[2] and name == "mix":
        return  # -1 beside a 0 says nothing
    x, w = values(seed, "float32", shape), values(seed + 1, "float32", shape[2:])
    (y,) = sessions[name].run(None, {"x": x, "w": w})
    np.testing.assert_allclose(y, EXPECT[name](x, w), rtol=1e-6)
