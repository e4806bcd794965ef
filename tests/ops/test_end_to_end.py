"""One operator of each family through ONNX Runtime and the plugin: claimed, and equal to the CPU provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import ort_ep

RANDOM = np.random.default_rng(11)


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values: Any) -> Any:
    return np.array(values, np.int64)


CASES: dict[str, tuple[list[Any], tuple[int, ...], int, dict[str, Any]]] = {
    "Div": ([ints(7, -7, 8), ints(2, 2, -3)], (), 1, {}),
    "Exp": ([RANDOM.standard_normal((3, 4))], (), 1, {}),
    "HardSigmoid": ([floats(3, 4)], (), 1, {"alpha": 0.3}),
    "Where": ([floats(4) > 0, floats(3, 4), floats(1)], (), 1, {}),
    "ReduceMean": ([floats(2, 3, 4), ints(1)], (1,), 1, {"keepdims": 0}),
    "Slice": ([floats(5, 6), ints(4), ints(-7), ints(0), ints(-2)], (1, 2, 3, 4), 1, {}),
    "Split": ([floats(2, 7)], (), 3, {"axis": 1, "num_outputs": 3}),
    "ScatterND": ([floats(3, 4), ints([0], [2]), floats(2, 4)], (), 1, {}),
    "Pad": ([floats(3, 4), ints(1, 0, 0, 2)], (), 1, {"mode": "reflect"}),
    "Conv": ([floats(1, 4, 6, 6), floats(6, 2, 3, 3), floats(6)], (1, 2), 1, {"group": 2, "pads": [1, 1, 1, 1]}),
    "ConvTranspose": ([floats(1, 4, 5), floats(4, 2, 3)], (1,), 1, {"strides": [2]}),
    "MaxPool": ([floats(1, 2, 6, 6)], (), 2, {"kernel_shape": [3, 3], "ceil_mode": 1, "strides": [2, 2]}),
    "LayerNormalization": ([floats(2, 3, 8), floats(8), floats(8)], (1, 2), 1, {}),
    "Softmax": ([floats(2, 3, 4)], (), 1, {"axis": 1}),
    "Gemm": ([floats(3, 4), floats(5, 4), floats(5)], (1, 2), 1, {"transB": 1, "alpha": 0.5}),
    "Resize": ([floats(1, 2, 3, 4), None, None, ints(1, 2, 6, 7)], (3,), 1, {"mode": "linear"}),
    "QuantizeLinear": ([floats(3, 4), np.array(0.1, np.float32), np.array(3, np.uint8)], (1, 2), 1, {}),
    "MatMulInteger": ([np.full((2, 300), 255, np.uint8), np.full((300, 2), -128, np.int8)], (), 1, {}),
    "Cast": ([floats(3)], (), 1, {"to": 7}),
    "TopK": ([floats(3, 6), ints(2)], (), 2, {"largest": 0}),
    "ConstantOfShape": ([ints(2, 3)], (), 1, {}),
    "NonZero": ([floats(3, 4) > 0], (), 1, {}),
    "GridSample": ([floats(1, 2, 4, 5), floats(1, 3, 3, 2)], (), 1, {"mode": "cubic"}),
    "STFT": ([floats(1, 32, 1), np.array(4), floats(8)], (), 1, {}),
}


@pytest.mark.parametrize("op", CASES)
def test_through_onnxruntime(op: str, model_of: Callable[..., Any], same: Callable[..., None], device: str) -> None:
    inputs, constants, outputs, attributes = CASES[op]
    model = model_of(op, inputs, 20, "", constants, outputs, **attributes)
    data = model.SerializeToString()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    feeds = {value.name: inputs[int(value.name[1:])] for value in model.graph.input}
    mine = ort_ep.InferenceSession(data, options)
    cpu = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    for actual, expected in zip(mine.run(None, feeds), cpu.run(None, feeds), strict=True):
        same(actual, expected, rtol=1e-4)
    report = ort_ep.claim_report(mine)
    only_cpu = device == "gpu" and any(value is not None and value.dtype == np.float64 for value in inputs)
    assert ["on the CPU device only" in node.reason for node in report.declined] == [True] * only_cpu
    assert report.failures == []
