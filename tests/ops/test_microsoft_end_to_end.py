"""Operators of com.microsoft and ai.onnx.ml through ONNX Runtime and the plugin: claimed, and equal to the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import ort_ep

RANDOM = np.random.default_rng(17)
MICROSOFT, ML = "com.microsoft", "ai.onnx.ml"


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def levels(*shape: int, dtype: Any = np.uint8) -> Any:
    return RANDOM.integers(0, 100, shape).astype(dtype)


def scalar(value: float, dtype: Any = np.float32) -> Any:
    return np.array(value, dtype)


def lengths(*values: int) -> Any:
    return np.array(values, np.int32)


ONE, OUT = (scalar(0.05), scalar(7, np.uint8)), (scalar(0.1), scalar(9, np.uint8))
TREE: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [1, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "target_ids": [0, 0],
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_weights": [3.0, -4.0],
    "n_targets": 1,
}

# inputs, which of them are constants, number of outputs, attributes
CASES: dict[str, tuple[list[Any], tuple[int, ...], int, dict[str, Any]]] = {
    "MultiHeadAttention": ([floats(2, 3, 16), floats(2, 5, 16), floats(2, 5, 16)], (), 1, {"num_heads": 4}),
    "Attention": ([floats(2, 3, 8), floats(8, 48), floats(48), lengths(2, 3)], (1, 2), 1, {"num_heads": 4}),
    "GroupQueryAttention": (
        [floats(1, 3, 64), floats(1, 3, 32), floats(1, 3, 32), None, None, lengths(2), lengths(3)],
        (6,),
        3,
        {"num_heads": 4, "kv_num_heads": 2},
    ),
    "RotaryEmbedding": ([floats(2, 3, 32), np.array([0]), floats(8, 4), floats(8, 4)], (2, 3), 1, {}),
    "SkipLayerNormalization": ([floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8)], (2, 3), 1, {}),
    "EmbedLayerNormalization": (
        [
            lengths(1, 2, 0)[None],
            lengths(0, 1, 1)[None],
            floats(4, 8),
            floats(5, 8),
            floats(2, 8),
            floats(8),
            floats(8),
        ],
        (2, 3, 4, 5, 6),
        2,
        {},
    ),
    "MatMulNBits": (
        [floats(3, 64), levels(6, 2, 16), floats(6, 2)],
        (1, 2),
        1,
        {"K": 64, "N": 6, "bits": 4, "block_size": 32},
    ),
    "MoE": (
        [floats(3, 8), floats(3, 4), floats(4, 6, 8), floats(4, 6), floats(4, 8, 6), floats(4, 8)],
        (2, 3, 4, 5),
        1,
        {"k": 2},
    ),
    "DynamicQuantizeLSTM": (
        [floats(3, 2, 4), levels(1, 4, 8), levels(1, 2, 8), floats(1, 16), None, None, None, None]
        + 2 * [np.array([0.01], np.float32), np.array([50], np.uint8)],
        (1, 2, 3, 8, 9, 10, 11),
        3,
        {"hidden_size": 2},
    ),
    "QAttention": (
        [levels(2, 3, 8), levels(8, 48, dtype=np.int8), floats(48), scalar(0.01), scalar(0.01)],
        (1, 2, 3, 4),
        1,
        {"num_heads": 4},
    ),
    "QLinearAveragePool": ([levels(1, 2, 6, 6), *ONE, *OUT], (), 1, {"kernel_shape": [3, 3]}),
    "QLinearGlobalAveragePool": ([levels(1, 2, 6, 6), *ONE, *OUT], (), 1, {}),
    "QLinearConcat": ([*OUT, levels(2, 3), *ONE, levels(2, 4), *ONE], (), 1, {"axis": 1}),
    "LinearAttention": (
        [floats(1, 3, 8), floats(1, 3, 8), floats(1, 3, 8), floats(1, 2, 4, 4)],
        (),
        2,
        {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"},
    ),
    "CropAndResize": ([floats(1, 2, 6, 6), floats(2, 4), lengths(0, 0), lengths(3, 3)], (3,), 1, {}),
    "TreeEnsembleRegressor": ([floats(5, 2)], (), 1, TREE),
    "OneHotEncoder": ([np.array([1, 3, 2], np.int64)], (), 1, {"cats_int64s": [1, 2, 3]}),
}


@pytest.mark.parametrize("op", CASES)
def test_through_onnxruntime(op: str, model_of: Callable[..., Any], same: Callable[..., None]) -> None:
    inputs, constants, outputs, attributes = CASES[op]
    domain = ML if op in ("TreeEnsembleRegressor", "OneHotEncoder") else MICROSOFT
    model = model_of(op, inputs, 20, domain, constants, outputs, **attributes)
    data = model.SerializeToString()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    feeds = {value.name: inputs[int(value.name[1:])] for value in model.graph.input}
    mine = ort_ep.InferenceSession(data, options)
    cpu = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    for actual, expected in zip(mine.run(None, feeds), cpu.run(None, feeds), strict=True):
        if expected.dtype == np.uint8:  # a sum in another order may round to the neighbouring level
            np.testing.assert_allclose(actual.astype(int), expected.astype(int), atol=1)
        else:
            same(actual, expected, rtol=1e-3, atol=1e-2 if op == "DynamicQuantizeLSTM" else 1e-4)
    report = ort_ep.claim_report(mine)
    assert (report.declined, report.failures) == ([], [])
