"""What threads that come and go leave behind, counted in a process of its own."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable

Run = Callable[..., subprocess.CompletedProcess[str]]

CODE = """
import threading
import numpy as np
import onnx
import psutil
import ort_ep

graph = onnx.parser.parse_graph(
    "g (float[N, 64] x) => (float[N, 64] y) { t = Transpose(x) u = MatMul(x, t) v = MatMul(u, x) y = Relu(v) }"
)
model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
session = ort_ep.InferenceSession(model.SerializeToString(), strict=True)
failures = []

def run(seed):
    x = np.random.default_rng(seed).standard_normal((8, 64)).astype(np.float32)
    try:
        y = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(y, np.maximum(x @ x.T @ x, 0), rtol=1e-3, atol=1e-3)
    except Exception as error:
        failures.append(error)

run(0)
process = psutil.Process()
before = process.num_threads()
for seed in range(60):
    thread = threading.Thread(target=run, args=(seed,))
    thread.start()
    thread.join()
print(process.num_threads() - before, failures)
"""


def test_sixty_short_threads(run_python: Run) -> None:
    """A stream per thread would leave one operating-system thread behind for each of them."""
    ended = run_python("-c", textwrap.dedent(CODE))
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
    more, failures = ended.stdout.split(maxsplit=1)
    assert int(more) <= 4
    assert failures.strip() == "[]"
