"""Products between dequantised levels as products of bytes: the floats they stand for, and only where that holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ort_ep import capability, planner, proto, quantized
from ort_ep.registry import REGISTRY

Run = Callable[[Any, dict[str, Any]], list[np.ndarray[Any, Any]]]
Weights = dict[str, np.ndarray[Any, Any]]
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(0, 2, (2, 6, 9)).astype(np.float32)
LEVELS: Weights = {"xs": np.array(0.05, np.float32), "xz": np.array(120, np.uint8)}
QUANTISED = "q = QuantizeLinear(x, xs, xz) a = DequantizeLinear(q, xs, xz)"


@pytest.fixture
def both(run: Run) -> Callable[..., list[str]]:
    """Compare a graph's results with and without products of bytes; returns the operators that ran with them."""

    def compare(body: str, weights: Weights, x: np.ndarray[Any, Any] = X) -> list[str]:
        shape = ",".join(map(str, x.shape))
        text = f'<ir_version: 10, opset_import: ["" : 21]> g (float[{shape}] x) => (float y) {{ {body} }}'
        model = onnx.parser.parse_model(text)
        del model.graph.output[0].type.tensor_type.shape.dim[:]
        model.graph.output[0].type.tensor_type.ClearField("shape")
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
        graph = proto.from_model(model)
        verdicts = capability.Analyzer(graph, REGISTRY).verdicts()
        assert [verdict.reason for verdict in verdicts if verdict.reason] == []
        calls = [call for verdict in verdicts for call in verdict.calls]
        changed = quantized.multiplied(graph, calls)
        (ours,), (theirs,) = (run(planner.build(graph, each), {"x": x}) for each in (changed, calls))
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, 1e-4, 1e-4)
        return [call.node.op_type for call in changed]

    return compare


def integers(dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max + 1, shape).astype(dtype)


def scales(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.uniform(0.01, 0.02, shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("each", [(), (1,), (7,)])
@pytest.mark.parametrize("zero", [True, False])
def test_product(both: Callable[..., list[str]], dtype: Any, each: tuple[int, ...], zero: bool) -> None:
    weights = {**LEVELS, "w": integers(dtype, 9, 7), "ws": scales(*each), "wz": integers(dtype, *each)}
    given = "w, ws, wz" if zero else "w, ws"
    ran = both(f"{QUANTISED} b = DequantizeLinear({given}) y = MatMul(a, b)", weights)
    assert ran == ["QuantizeLinear", "MatMulIntegerToFloat"]


@pytest.mark.parametrize("each", [(), (8,)])
@pytest.mark.parametrize("attributes", ["", "<strides = [2], pads = [1, 2]>", "<group = 2, dilations = [2]>"])
@pytest.mark.parametrize("biased", [True, False])
def test_convolution(both: Callable[..., list[str]], each: tuple[int, ...], attributes: str, biased: bool) -> None:
    group = 2 if "group" in attributes else 1
    w, more = integers(np.int8, 8, 6 // group, 3), {"ws": scales(*each), "wz": np.zeros(each, np.int8), "b": scales(8)}
    given = "a, f, b" if biased else "a, f"
    body = f"{QUANTISED} f = DequantizeLinear <axis = 0> (w, ws, wz) y = Conv {attributes} ({given})"
    assert both(body, {**LEVELS, **more, "w": w}) == ["QuantizeLinear", "ConvOfBytes"]


def test_levels_that_others_read_are_dequantised_for_them(both: Callable[..., list[str]]) -> None:
    weights = {**LEVELS, "w": integers(np.int8, 9, 9), "ws": scales(9)}
    ran = both(f"{QUANTISED} b = DequantizeLinear(w, ws) p = MatMul(a, b) y = Add(p, a)", weights)
    assert ran == ["QuantizeLinear", "DequantizeLinear", "MatMulIntegerToFloat", "Add"]


@pytest.mark.parametrize(
    "body",
    [
        "b = DequantizeLinear <axis = 0> (w, each) y = MatMul(a, b)",
        "b = DequantizeLinear(w, one) y = MatMul(b, a)",
        "b = DequantizeLinear(w, one) y = MatMul(x, b)",
        "y = MatMul(a, float_w)",
        "v = Identity(w) b = DequantizeLinear(v, one) y = MatMul(a, b)",
        "b = DequantizeLinear <axis = 0, block_size = 3> (w, blocks) y = MatMul(a, b)",
    ],
    ids=["scales of rows", "weights first", "floats", "float weights", "computed weights", "blocks"],
)
def test_what_stays(both: Callable[..., list[str]], body: str) -> None:
    x = RANDOM.normal(size=(9, 9)).astype(np.float32)
    more = {"float_w": scales(9, 9), "one": scales(), "each": scales(9), "blocks": scales(3, 9)}
    assert "MatMul" in both(f"{QUANTISED} {body}", {**LEVELS, **more, "w": integers(np.int8, 9, 9)}, x)


def test_depthwise_convolutions_stay(both: Callable[..., list[str]]) -> None:
    weights = {**LEVELS, "w": integers(np.int8, 6, 1, 3), "ws": scales()}
    assert "Conv" in both(f"{QUANTISED} b = DequantizeLinear(w, ws) y = Conv <group = 6> (a, b)", weights)


@pytest.mark.parametrize("batch", [0, 2])
def test_images_of_three_dimensions(both: Callable[..., list[str]], batch: int) -> None:
    """More terms than float32 sums exactly, so in halves of a byte."""
    x = RANDOM.normal(0, 2, (batch, 32, 3, 4, 3)).astype(np.float32)
    weights = {**LEVELS, "w": integers(np.int8, 4, 32, 3, 3, 3), "ws": scales(4)}
    ran = both(
        f"{QUANTISED} b = DequantizeLinear <axis = 0> (w, ws) y = Conv <pads = [1, 1, 1, 1, 1, 1]> (a, b)", weights, x
    )
    assert ran == ["QuantizeLinear", "ConvOfBytes"]
