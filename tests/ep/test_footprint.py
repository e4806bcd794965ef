"""What a session keeps in Python while it lives, and what it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

NODES = 200
CODE = f"""
import gc, json, sys
import numpy as np, onnx
from onnx import helper
import mlxc_py as mx
import ort_ep
from mlxc_py._sys import support
from ort_ep import graph, shared_initializers as si

nodes, weights = [], []
for i in range({NODES} // 2):
    content = np.eye(64, dtype=np.float32) + i
    weights.append(onnx.numpy_helper.from_array(content, f"w{{i}}"))
    nodes.append(helper.make_node("MatMul", [f"x{{i}}", f"w{{i}}"], [f"y{{i}}"], name=f"product_{{i}}"))
    nodes.append(helper.make_node("Softmax", [f"y{{i}}"], [f"x{{i + 1}}"], name=f"softmax_{{i}}", axis=-1))
ends = [helper.make_tensor_value_info(name, 1, [1, 64]) for name in ("x0", "x{NODES // 2}")]
made = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
feeds = {{"x0": np.ones((1, 64), np.float32)}}

def settle():
    gc.collect()
    mx.clear_cache()
    return sys.getallocatedblocks()

def sessions(count):
    made = [ort_ep.InferenceSession(model) for _ in range(count)]
    for session in made:
        session.run(None, feeds)
    return made

for _ in range(3):
    sessions(2)
    start = settle()
live = sessions(1)
one = settle()
live += sessions(4)
five = settle()
kinds = (graph.Node, graph.Value, graph.Graph, graph.Initializer)
kept = sum(isinstance(item, kinds) for item in gc.get_objects())
report = ort_ep.claim_report(live[0])
names = " ".join(node.name for node in report.nodes)
del report, live
after = settle()
print(json.dumps({{
    "one": one - start, "more": (five - one) / 4, "after": after - start, "kept": kept, "names": names,
    "buffers": len(si._buffers), "arrays": len(si._arrays()), "owners": support.held(),
}}))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_session_keeps_few_objects_for_each_node(found: dict[str, Any]) -> None:
    assert found["more"] < 15 * NODES


def test_the_graph_is_gone_when_the_session_is_made(found: dict[str, Any]) -> None:
    assert found["kept"] == 0


def test_reports_are_kept_as_text_and_complete(found: dict[str, Any]) -> None:
    expected = {f"{kind}_{i}" for kind in ("product", "softmax") for i in range(NODES // 2)}
    assert sorted(found["names"].split()) == sorted(expected)


def test_closed_sessions_leave_nothing_in_python(found: dict[str, Any]) -> None:
    assert found["after"] < NODES / 4  # caches of Python and numpy
    assert (found["buffers"], found["arrays"], found["owners"]) == (0, 0, 0)


SCHEMALESS = """
import numpy as np, onnx
import ort_ep

model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
g (float[1, 2, 8, 8] x, int64[2] i) => (float[1, 2, 2, 8] y, int32[1, 2, 2, 8] z) {
    a = MaxPool <kernel_shape = [2, 1], strides = [2, 1]> (x)
    y = Gather <axis = 2> (a, i)
    z = Cast <to = 6> (y)
}''').SerializeToString()

def unwanted(*_):
    raise AssertionError("onnx's schemas take 6 MiB and stay")

onnx.defs.get_schema = unwanted
session = ort_ep.InferenceSession(model, strict=True)
y, z = session.run(None, {"x": np.ones((1, 2, 8, 8), np.float32), "i": np.array([0, 3])})
assert y.sum() == z.sum() == 32
"""


def test_claiming_needs_none_of_onnxs_schemas() -> None:
    done = subprocess.run([sys.executable, "-c", SCHEMALESS], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
