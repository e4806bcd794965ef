"""Concurrent runs of convolution models: a stream shared without its lock crashes here, and in no lighter test."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

SECONDS = 8

PROGRAM = """
import sys, threading, time
import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper
import ort_ep

def network(seed):
    random = np.random.default_rng(seed)
    nodes, weights, last, channels = [], [], "x", 8
    for i in range(6):
        weights.append(numpy_helper.from_array(random.normal(0, 0.1, (16, channels, 3, 3)).astype(np.float32), f"w{i}"))
        nodes.append(helper.make_node("Conv", [last, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"]))
        last, channels = f"r{i}", 16
    nodes.append(helper.make_node("MaxPool", [last], ["p"], kernel_shape=[2, 2], strides=[2, 2]))
    nodes.append(helper.make_node("Flatten", ["p"], ["f"]))
    nodes.append(helper.make_node("Transpose", ["f"], ["t"]))
    nodes.append(helper.make_node("MatMul", ["f", "t"], ["y"]))
    x = helper.make_tensor_value_info("x", 1, ["N", 8, 16, 16])
    y = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()

models = [network(seed) for seed in range(3)]
mine = [ort_ep.InferenceSession(model) for model in models]
cpu = [ort.InferenceSession(model, providers=["CPUExecutionProvider"]) for model in models]
feeds = [np.random.default_rng(seed).standard_normal((2 + seed % 3, 8, 16, 16)).astype(np.float32) for seed in range(6)]
right = [[session.run(None, {"x": x})[0] for x in feeds] for session in cpu]
end = time.time() + float(sys.argv[1])
wrong, runs = [], []

def work(thread):
    i = thread
    while time.time() < end:
        model, feed = i % 3, (i * 7 + thread) % 6
        (y,) = mine[model].run(None, {"x": feeds[feed]})
        runs.append(i)
        if not np.allclose(y, right[model][feed], rtol=1e-3, atol=1e-4):
            wrong.append((thread, i))
        i += 1

threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
failures = [ort_ep.claim_report(session).failures for session in mine]
print(len(wrong), sum(map(len, failures)), len(runs) > 20)
"""


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_convolutions_on_many_threads(attempt: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(SECONDS)], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "0", "True"]
