"""Runs without Python: when they happen, what they compare, where results lie, and what fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from mlxc_py import tape

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import ort_ep  # noqa: E402  after the check for onnxruntime
from ort_ep import runtime  # noqa: E402

pytestmark = pytest.mark.skipif(not tape.supported(), reason="this libmlxc records no tapes")

HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
Array = np.ndarray[Any, Any]


def session(graph: str) -> Any:
    return ort_ep.InferenceSession(
        onnx.parser.parse_model(f"{HEAD} {graph}").SerializeToString(), device="cpu", on_compute_error="raise"
    )


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def through_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of inputs of each run that Python sees."""
    seen: list[int] = []
    run = runtime.Compute.__call__

    def counted(self: runtime.Compute, inputs: Any) -> Any:
        seen.append(len(inputs))
        return run(self, inputs)

    monkeypatch.setattr(runtime.Compute, "__call__", counted)
    yield seen


def test_runs_alike_need_no_python_and_are_counted(through_python: list[int]) -> None:
    made = session("g (float[N] x, float[1] b) => (float[N] y, float[N] z) { y = Add(x, b) z = Exp(y) }")
    counter = ort_ep.claim_report(made).runs
    for n in (4, 5, 4, 0, 0, 0, 0):
        for seed in range(6):
            x, b = floats(n, seed=seed), floats(1, seed=seed)
            before = len(through_python)
            y, z = made.run(None, {"x": x, "b": b})
            np.testing.assert_array_equal(y, x + b)
            np.testing.assert_allclose(z, np.exp(x + b), rtol=1e-5)
        assert len(through_python) == before  # the last of them did not
    assert counter.count == 42
    assert len(through_python) < 20
    assert counter.total_ns > counter.evaluating_ns > 0


def test_other_types_shapes_and_host_values_go_another_way(through_python: list[int]) -> None:
    made = session("g (float[a, b] x, int64[R] shape) => (float[c, d] y) { t = Neg(x) y = Reshape(t, shape) }")
    for shape in ([4, 6], [6, 4], [4, 6], [2, 12]):
        for given in ((3, 8), (8, 3)):
            for seed in range(4):
                x = floats(*given, seed=seed)
                (y,) = made.run(None, {"x": x, "shape": np.array(shape)})
                np.testing.assert_array_equal(y, -x.reshape(shape))
    count = ort_ep.claim_report(made).runs.count
    assert count == 32 > len(through_python)


def test_results_lie_where_the_caller_wants_them() -> None:
    """Also where an input lies, which is read to the end."""
    made = session("g (float[64, 64] x) => (float[64, 64] y) { t = MatMul(x, x) y = Sub(t, x) }")
    start = floats(64, 64) / 8
    for in_place in (False, True):
        for _ in range(5):
            x = start.copy()
            y = x if in_place else np.zeros_like(x)
            binding = made.io_binding()
            binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
            binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
            made.run_with_iobinding(binding)
            np.testing.assert_allclose(y, start @ start - start, rtol=1e-4, atol=1e-5)


def test_an_output_where_an_input_lies_that_another_passes_on() -> None:
    made = session("g (float[64, 64] x) => (float[64, 64] y, float[64, 64] z) { y = MatMul(x, x) z = Identity(x) }")
    start = floats(64, 64) / 8
    for _ in range(5):
        x, z = start.copy(), np.zeros_like(start)
        binding = made.io_binding()
        binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
        for name, array in (("y", x), ("z", z)):
            binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        made.run_with_iobinding(binding)
    np.testing.assert_allclose(x, start @ start, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(z, start)


def test_outputs_that_share_memory() -> None:
    made = session(
        """g (float[32, 256] x, float[256, 256] w)
        => (float[32, 256] a, float[256, 32] b, float[8192] c, float[32, 256] d) {
        a = MatMul(x, w) b = Transpose(a) m = Constant <value_ints = [-1]> () t = Relu(a) c = Reshape(t, m)
        d = Identity(a) }"""
    )
    w = floats(256, 256, seed=9)
    for seed in range(6):
        x = floats(32, 256, seed=seed)
        right = x @ w
        a, b, c, d = made.run(None, {"x": x, "w": w})
        for got, wanted in ((a, right), (b, right.T), (c, np.maximum(right, 0).ravel()), (d, right)):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_results_outlive_later_runs() -> None:
    made = session("g (float[N] x) => (float[N] y) { t = Exp(x) y = Add(t, x) }")
    kept = [(x, made.run(None, {"x": x})[0]) for x in (floats(1 << 16, seed=seed) for seed in range(8))]
    del made
    for x, y in kept:
        np.testing.assert_allclose(y, np.exp(x) + x, rtol=1e-5, atol=1e-5)


def test_a_run_that_fails_is_told_by_python_and_is_alone(through_python: list[int]) -> None:
    made = session("g (float[2, 2] x) => (float[2, 2] y) { y = com.microsoft.Inverse(x) }")
    good, bad = np.array([[2, 0], [0, 4]], np.float32), np.zeros((2, 2), np.float32)
    for _ in range(4):
        made.run(None, {"x": good})
    before = len(through_python)
    for _ in range(2):
        with pytest.raises(Exception, match="LU factorization failed"):
            made.run(None, {"x": bad})
        np.testing.assert_allclose(made.run(None, {"x": good})[0], [[0.5, 0], [0, 0.25]])
    assert len(through_python) > before
    assert len(ort_ep.claim_report(made).failures) == 1  # the same message twice


def test_threads_that_run_different_shapes_at_once() -> None:
    made = session("g (float[N, 64] x, float[64, 64] w) => (float[N, 64] y) { t = MatMul(x, w) y = Tanh(t) }")
    w, wrong = floats(64, 64) / 8, []
    feeds = [floats(n, 64, seed=n) for n in (1, 2, 64, 65)]
    right = [np.tanh(x @ w) for x in feeds]

    def work(offset: int) -> None:
        for i in range(200):
            which = (i // 20 + offset) % len(feeds)
            (y,) = made.run(None, {"x": feeds[which], "w": w})
            if not np.allclose(y, right[which], atol=1e-5):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert ort_ep.claim_report(made).runs.count == 1200
