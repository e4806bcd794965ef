"""Normalizations as part of the convolutions before them: the same results, and only where nothing else looks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import ort_ep
from ort_ep import capability, folding, planner, proto
from ort_ep.registry import REGISTRY

Run = Callable[[Any, dict[str, Any]], list[np.ndarray[Any, Any]]]
DATA = {np.float32: "float", np.float16: "float16"}


def weights(shape: tuple[int, ...], dtype: Any) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    channels = {name: rng.uniform(0.5, 2, shape[0]).astype(dtype) for name in ("scale", "shift", "mean", "var")}
    return {"w": rng.standard_normal(shape).astype(dtype), "b": rng.standard_normal(shape[0]).astype(dtype), **channels}


def model(
    nodes: str, constants: dict[str, np.ndarray[Any, Any]], rank: int = 4, dtype: Any = np.float32, opset: int = 17
) -> onnx.ModelProto:
    """x [N, 6, ...] -> y; the constants are initializers."""
    kind = DATA[dtype]
    shape = ",".join(["N", "6", *"HWD"[: rank - 2]])
    text = (
        f'<ir_version: 8, opset_import: ["" : {opset}]> g ({kind}[{shape}] x) => ({kind}[{",".join("abcde"[:rank])}] y)'
    )
    made = onnx.parser.parse_model(f"{text} {{ {nodes} }}")
    made.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in constants.items())
    return made


@pytest.fixture
def both(run: Run) -> Callable[..., list[str]]:
    """Compare a model's results with and without folding; returns the operators that ran folded."""

    def compare(made: onnx.ModelProto, tolerance: float = 1e-4) -> list[str]:
        graph = proto.from_model(made)
        verdicts = capability.Analyzer(graph, REGISTRY).verdicts()
        assert [verdict.reason for verdict in verdicts if verdict.reason] == []
        calls = [call for verdict in verdicts for call in verdict.calls]
        whole = folding.folded(graph, calls)
        dims = made.graph.input[0].type.tensor_type.shape.dim
        dtype = helper.tensor_dtype_to_np_dtype(made.graph.input[0].type.tensor_type.elem_type)
        x = np.random.default_rng(1).standard_normal([2, 6, *range(7, 5 + len(dims))]).astype(dtype)
        results = [run(planner.build(graph, each), {"x": x}) for each in (whole, calls)]
        for ours, theirs in zip(*results, strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_allclose(ours, theirs, tolerance, tolerance * np.abs(theirs).max())
        return [call.node.op_type for call in whole]

    return compare


NORMALIZED = "y = BatchNormalization<epsilon=0.25>(c, scale, shift, mean, var)"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((8, 6, 3), ""),
        ((8, 6, 3, 3), "<strides=[2,1], pads=[1,1,0,0]>"),
        ((32, 6, 1, 1), ""),
        ((9, 2, 3, 3), "<group=3>"),
        ((6, 1, 3, 3), "<group=6>"),
        ((4, 6, 2, 2, 2), "<dilations=[2,1,1]>"),
    ],
)
@pytest.mark.parametrize("bias", ["", ", b"])
def test_convolutions_of_all_kinds(
    both: Callable[..., list[str]], shape: tuple[int, ...], attributes: str, dtype: Any, bias: str
) -> None:
    constants = weights(shape, dtype)
    if not bias:
        del constants["b"]
    made = model(f"c = Conv{attributes}(x, w{bias}) {NORMALIZED}", constants, len(shape), dtype)
    assert both(made, 2e-2 if dtype is np.float16 else 1e-4) == ["NormalizedConv"]


def test_all_versions_that_only_infer(both: Callable[..., list[str]]) -> None:
    for opset in (7, 9, 14, 15):
        assert both(model(f"c = Conv(x, w, b) {NORMALIZED}", weights((8, 6, 3, 3), np.float32), opset=opset)) == [
            "NormalizedConv"
        ]


@pytest.mark.parametrize(
    "nodes",
    [
        "c = Conv(x, w, b) n = BatchNormalization(c, scale, shift, mean, var) r = Relu(c) y = Add(n, r)",
        f"c = Conv(x, w, b) m = Identity(mean) k = Mul(m, x0) {NORMALIZED.replace('mean', 'k')}",
        "c = Relu(x) y = BatchNormalization(c, scale, shift, mean, var)",
        "c = ConvTranspose(x, w, b) y = BatchNormalization(c, scale, shift, mean, var)",
        "c = Conv(x, w, b) y, m, v = BatchNormalization<training_mode=1>(c, scale, shift, mean, var)",
    ],
    ids=["read twice", "computed", "no convolution", "transposed", "training"],
)
def test_others_stay_as_they_are(both: Callable[..., list[str]], nodes: str) -> None:
    constants = weights((6, 6, 3, 3), np.float32) | {"x0": np.ones(6, np.float32)}
    made = model(nodes, {name: value for name, value in constants.items() if name in nodes})
    assert "NormalizedConv" not in both(made)


def test_an_output_of_the_graph_stays(both: Callable[..., list[str]]) -> None:
    made = model(f"c = Conv(x, w, b) {NORMALIZED}", weights((8, 6, 3, 3), np.float32))
    made.graph.output.append(helper.make_tensor_value_info("c", 1, ["a", "b", "c", "d"]))
    assert both(made) == ["Conv", "BatchNormalization"]


def test_bodies_too() -> None:
    inner = model(f"c = Conv(x, w, b) {NORMALIZED}", weights((6, 6, 1, 1), np.float32)).graph
    del inner.input[:]
    branch = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z"])], "else", [], [helper.make_tensor_value_info("z", 1, None)]
    )
    node = helper.make_node("If", ["p"], ["y"], then_branch=inner, else_branch=branch)
    infos = [helper.make_tensor_value_info("x", 1, ["N", 6, 5, 5]), helper.make_tensor_value_info("p", 9, [])]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", 1, ["N", 6, 5, 5])])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    read = proto.from_model(made)
    calls = [call for verdict in capability.Analyzer(read, REGISTRY).verdicts() for call in verdict.calls]
    (whole,) = folding.folded(read, calls)
    assert [call.node.op_type for call in whole.bodies["then_branch"]] == ["NormalizedConv"]
    x = np.random.default_rng(2).standard_normal((1, 6, 5, 5), np.float32)
    theirs = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": x, "p": np.array(True)}
    (ours,) = ort_ep.InferenceSession(made.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(ours, theirs.run(None, feeds)[0], 1e-4, 1e-4)


def test_a_users_convolution_stays(both: Callable[..., list[str]]) -> None:
    registered = REGISTRY.lookup("", "Conv", 11)
    assert registered is not None
    made = proto.from_model(model(f"c = Conv(x, w, b) {NORMALIZED}", weights((8, 6, 3, 3), np.float32)))
    calls = [call for verdict in capability.Analyzer(made, REGISTRY).verdicts() for call in verdict.calls]
    calls[0] = replace(calls[0], handler=replace(registered, override=True))
    assert [call.node.op_type for call in folding.folded(made, calls)] == ["Conv", "BatchNormalization"]


MODEL = """
import sys
import numpy as np, onnx
from onnx import helper

rng = np.random.default_rng(0)
nodes, initializers, x = [], [], "x"
def add(name, value):
    initializers.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))
    return name
for i in range(12):
    w = add(f"w{i}", rng.standard_normal((512, 512, 3, 3)) / 70)
    channels = [add(f"{kind}{i}", rng.uniform(0.5, 1, 512)) for kind in ("scale", "shift", "mean", "var")]
    nodes.append(helper.make_node("Conv", [x, w], [f"c{i}"], pads=[1, 1, 1, 1]))
    nodes.append(helper.make_node("BatchNormalization", [f"c{i}", *channels], [f"y{i}"]))
    x = f"y{i}"
ends = [helper.make_tensor_value_info(name, 1, [1, 512, 4, 4]) for name in ("x", x)]
graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initializers)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), sys.argv[1])
"""
PEAK = """
import sys
from pathlib import Path
import psutil
import ort_ep
ort_ep.InferenceSession(sys.argv[2])
before = psutil.Process().memory_info().rss
session = ort_ep.InferenceSession(sys.argv[1])
assert ort_ep.claim_report(session).cpu_nodes == 0
# getrusage also knows the parent's peak
peak = int(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])
print((peak * 1024 - before) / (12 * 512 * 512 * 9 * 4))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of resident memory in KiB")
def test_weights_are_in_memory_twice_at_most(tmp_path: Path) -> None:
    large, tiny = tmp_path / "large.onnx", tmp_path / "tiny.onnx"
    onnx.save(model(f"c = Conv(x, w, b) {NORMALIZED}", weights((8, 6, 3, 3), np.float32)), tiny)

    def ran(code: str, *paths: Path) -> str:
        command = [sys.executable, "-c", code, *map(str, paths)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    ran(MODEL, large)
    assert float(ran(PEAK, large, tiny)) < 2.3


def test_optimizers_that_a_user_disables_stay_disabled() -> None:
    """ONNX Runtime folds constants unless it is told not to, and normalizations too, but in sessions of ours."""
    text = "c = Conv(x, w, b) n = BatchNormalization(c, scale, shift, mean, var) k = Add(one, one) y = Mul(n, k)"
    content = model(text, weights((8, 6, 3, 3), np.float32) | {"one": np.ones(1, np.float32)}).SerializeToString()

    def offered(session: onnxruntime.InferenceSession) -> set[str]:
        return {node.op_type for node in ort_ep.claim_report(session).nodes}

    unfolded = onnxruntime.SessionOptions()
    unfolded.add_session_config_entry("optimization.disable_specified_optimizers", "ConstantFolding")
    assert offered(ort_ep.InferenceSession(content)) == {"Conv", "BatchNormalization", "Mul"}
    assert offered(ort_ep.InferenceSession(content, unfolded)) == {"Conv", "BatchNormalization", "Add", "Mul"}
    by_options = onnxruntime.InferenceSession(content, ort_ep.session_options())
    assert offered(by_options) == {"Conv", "BatchNormalization", "Mul"}
