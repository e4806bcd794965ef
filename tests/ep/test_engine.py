"""The compiled engine against the eager one: same results, and what is traced, kept, given up and freed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import mlxc_py as mx
from mlxc_py import tape
from ort_ep import compiled, direct, dtypes, plan, streams
from ort_ep.engine import EagerEngine
from ort_ep.options import OptionError, Options
from ort_ep.registry import Registry
from ort_ep.report import CompileReport
from ort_ep.traces import MAX_KEY_BYTES

HEAD = '<ir_version: 8, opset_import: ["": 17, "my": 1]>'
Planned = Callable[[ModelProto, Registry], plan.Plan]
ENGINES = ("tape", "compile")


class Harness:
    """One plan on an engine, fed and read as numpy."""

    def __init__(self, built: plan.Plan, engine: str, limit: int = 8) -> None:
        self.report = CompileReport()
        self.warnings: list[str] = []
        self.plan = built
        options = Options(engine=engine, compile_cache=limit)
        self.engine = compiled.engine(built, options, "cpu", self.report, self.warnings.append)

    def __call__(self, *arrays: Any) -> list[np.ndarray[Any, Any]]:
        with streams.pool("cpu").lease() as stream:
            inputs = [
                array if array is None or i in self.plan.host_inputs else mx.array(array)
                for i, array in enumerate(arrays)
            ]
            return [np.array(value) for value in self.engine.run(inputs, stream)]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "tape" and not tape.supported():
        pytest.skip("this libmlxc records no tapes")
    return str(request.param)


@pytest.fixture
def pair(planned: Planned, toy: Registry, engine: str) -> Callable[..., tuple[Harness, Harness]]:
    """A graph on the compiled and on the eager engine."""

    def make(body: str, limit: int = 8) -> tuple[Harness, Harness]:
        source = onnx.parser.parse_model(f"{HEAD} {body}")
        built = planned(source, toy)
        return Harness(built, engine, limit), Harness(built, "eager")

    return make


def same(pair: tuple[Harness, Harness], *arrays: Any) -> None:
    for ours, theirs in zip(pair[0](*arrays), pair[1](*arrays), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(ours, theirs)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7 - 1


Pair = Callable[..., tuple[Harness, Harness]]


def test_one_trace_for_each_shape(pair: Pair) -> None:
    both = pair("g (float[N, M] x, float[M] b) => (float[N, M] y) { t = Exp(x) y = Add(t, b) }")
    for shape in ((2, 3), (4, 3), (2, 3), (1, 1), (0, 3), (2, 0), (4, 3)):
        same(both, floats(*shape), floats(shape[1]))
        same(both, -floats(*shape), floats(shape[1]) * 2)
    assert both[0].report.traces == 5
    assert (both[0].report.evictions, both[0].warnings) == (0, [])


def test_fused_kernels_of_a_gpu_get_no_empty_arrays(pair: Pair, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.PooledStream, "on_gpu", True)
    both = pair("g (float[N, 4] x) => (float[N, 4] y) { t = Exp(x) y = Add(t, x) }")
    for rows in (0, 2, 0):
        same(both, floats(rows, 4))
    assert both[0].report.traces == (1 if engine == "compile" else 2)
    assert both[0].warnings == []
    inside = pair(
        """g (float[N] x, int64[1] wanted) => (float[M] y) {
        e = Exp(x) c = Reshape(e, wanted) y = Add(c, c) }"""
    )
    same(inside, floats(0), np.array([0]))
    assert inside[0].report.traces == (engine != "compile")


def test_shape_arithmetic_is_part_of_the_trace(pair: Pair) -> None:
    both = pair(
        """g (float[N, 3, 4] x) => (float[a, b] y, int64[c] s) {
        zero = Constant <value_int = 0> () rest = Constant <value_ints = [-1]> ()
        one = Constant <value_ints = [1]> () s = Shape(x) n = Gather <axis = 0> (s, zero) n1 = Reshape(n, one)
        shape = Concat <axis = 0> (n1, rest) t = Add(x, x) y = Reshape(t, shape) }"""
    )
    for n in (2, 5, 2):
        same(both, floats(n, 3, 4))
    assert both[0].report.traces == 2


def test_values_read_on_the_host_are_part_of_the_key(pair: Pair) -> None:
    both = pair("g (float[N] x, int64[R] shape) => (float[a, b] y) { t = Exp(x) y = Reshape(t, shape) }")
    for shape in ([2, 3], [3, 2], [2, 3], [6, 1]):
        same(both, floats(6), np.array(shape, np.int64))
    assert both[0].report.traces == 3


def test_inputs_outputs_constants_in_any_combination(pair: Pair) -> None:
    same(pair("g (float[N] x) => (float[N] y, float[N] y2) { y = Relu(x) y2 = Relu(x) }"), floats(5))
    same(pair("g (float[N] x, float[N] z) => (float[N] y) { y = Add(x, z) }"), *[floats(5)] * 2)
    constant = "c = Constant <value = float[2] {1, 2}> ()"
    both = pair(f"g (float[2] x) => (float[2] y, float[2] c) {{ {constant} y = Add(x, c) }}")
    same(both, floats(2))
    same(both, floats(2) + 1)
    same(pair("g (float[N] x) => (float[N] x2, float[N] y) { x2 = Identity(x) y = Exp(x2) }"), floats(3))
    same(pair("g (float[N] x, float lo) => (float[N] y) { y = Clip(x, lo) }"), floats(4), np.float32(0.25))


def test_an_absent_input_is_part_of_the_key(pair: Pair) -> None:
    both = pair("g (float[N] x, float low, float high) => (float[N] y) { y = Clip(x, low, high) }")
    same(both, floats(9), np.float32(-0.5), np.float32(0.1))
    same(both, floats(9), None, np.float32(0.1))
    same(both, floats(9), np.float32(-0.5), None)
    assert both[0].report.traces == 3


def test_segments_between_host_steps_are_traced_each(pair: Pair) -> None:
    both = pair(
        """g (float[N] x) => (int64[a, b] i, float[a, b] y) {
        t = Relu(x) i = NonZero(t) f = Cast <to = 1> (i) u = Add(f, f) y = Mul(u, u) }"""
    )
    same(both, np.array([1, 0, 2, 0], np.float32))
    same(both, np.array([3, 0, 0, 4], np.float32))  # as many results: the same two traces
    assert both[0].report.traces == 2
    same(both, np.array([3, 3, 3, 4], np.float32))
    assert both[0].report.traces == 3


def test_random_operators_differ_from_run_to_run(pair: Pair, toy: Registry) -> None:
    @toy.op("RandomNormalLike", since=1)
    def random_like(x: mx.Array) -> mx.Array:
        return mx.random.normal(x.shape)

    ours, _ = pair("g (float[N] x) => (float[N] y) { r = RandomNormalLike(x) t = Exp(r) y = Add(t, x) }")
    first, second = ours(floats(64))[0], ours(floats(64))[0]
    assert not np.array_equal(first, second)
    assert ours.report.traces == 1  # of what follows


def test_the_least_recently_used_trace_goes_first(pair: Pair) -> None:
    ours, eager = pair("g (float[N] x) => (float[N] y) { t = Exp(x) y = Add(t, x) }", 2)
    for n in (1, 2, 1, 3, 1):
        same((ours, eager), floats(n))
    assert (ours.report.traces, ours.report.evictions) == (3, 1)
    same((ours, eager), floats(2))
    assert (ours.report.traces, ours.report.evictions) == (4, 2)


def test_memory_stays_flat_over_many_shapes(pair: Pair) -> None:
    ours, _ = pair("g (float[N] x) => (float[N] y) { t = Exp(x) y = Add(t, x) }", 4)
    for n in range(1, 10):
        ours(floats(n))
        ours(floats(n))
    before = mx.get_active_memory()
    for n in range(10, 150):
        ours(floats(n))
        ours(floats(n))
    assert ours.report.evictions == 149 - 4
    assert mx.get_active_memory() <= before


@pytest.mark.parametrize("failure", [ValueError("not while tracing"), MemoryError()])
def test_what_cannot_be_traced_runs_eagerly_and_says_so_once(pair: Pair, toy: Registry, failure: Exception) -> None:
    calls = []

    @toy.op("Softplus")
    def moody(x: mx.Array) -> mx.Array:
        calls.append(x.shape)
        if len(calls) == 1:
            raise failure
        return x + 1

    ours, _ = pair("g (float[N] x) => (float[N] y) { t = Softplus(x) y = Exp(t) }")
    for _ in range(3):
        np.testing.assert_allclose(ours(floats(3))[0], np.exp(floats(3) + 1), rtol=1e-5)
    assert len(calls) == 1 + 1 + 3  # tracing, the check, three runs
    assert ours.report.traces == 0
    assert len(ours.warnings) == len(ours.report.uncompiled) == 1
    assert "runs uncompiled: Softplus" in ours.warnings[0]
    assert (str(failure) or type(failure).__name__) in ours.warnings[0]


def test_a_handler_that_reads_its_values_runs_eagerly(pair: Pair, toy: Registry) -> None:
    @toy.op("Softsign")
    def peek(x: mx.Array) -> mx.Array:
        return x * float(np.array(x).sum())

    ours, eager = pair("g (float[N] x) => (float[N] y) { t = Softsign(x) y = Exp(t) }")
    for scale in (0.1, 0.2):
        same((ours, eager), np.full(3, scale, np.float32))
    assert ours.report.traces == 0
    assert len(ours.warnings) == 1


def test_a_handler_that_fails_raises_its_own_error_in_every_run(pair: Pair, toy: Registry) -> None:
    @toy.op("Broken", domain="my")
    def broken(x: mx.Array) -> mx.Array:
        raise ValueError("never works")

    ours, _ = pair("g (float[N] x) => (float[N] y) { y = my.Broken(x) }")
    for _ in range(2):
        with pytest.raises(plan.OperatorError, match=r"my::Broken.*never works"):
            ours(floats(2))
    assert ours.warnings == []


def test_large_host_values_are_not_kept_as_keys(pair: Pair, toy: Registry) -> None:
    toy.op("Neg", host=("x",))(lambda x: mx.array(x) * 2)
    ours, eager = pair("g (float[N] x) => (float[N] y) { t = Neg(x) y = Exp(t) }")
    same((ours, eager), np.zeros(MAX_KEY_BYTES, np.float32))
    assert ours.report.traces == 0
    same((ours, eager), floats(8))
    assert ours.report.traces == 1


def test_results_do_not_depend_on_the_memory_of_inputs(pair: Pair) -> None:
    ours, _ = pair("g (float[N] x, int64[R] shape) => (float[a] y) { y = Reshape(x, shape) }")
    shape = np.array([4], np.int64)
    first = ours(floats(4), shape)
    shape[0] = 2  # ORT reuses its memory; a trace made from it must not look again
    with pytest.raises(Exception, match="reshape"):
        ours(floats(4), shape)
    np.testing.assert_array_equal(first[0], ours(floats(4), np.array([4], np.int64))[0])


def test_threads_share_a_plan(pair: Pair) -> None:
    ours, eager = pair("g (float[N, N] x, float[N] b) => (float[N, N] y) { t = Exp(x) u = Mul(t, x) y = Add(u, b) }")
    feeds = [(floats(n, n) / 10, floats(n)) for n in (2, 3, 4, 5)]
    right = [eager(*feed)[0] for feed in feeds]
    wrong: list[int] = []

    def work(offset: int) -> None:
        for i in range(40):
            which = (i + offset) % len(feeds)
            if not np.array_equal(ours(*feeds[which])[0], right[which]):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert ours.warnings == []


def test_a_closed_engine_frees_its_memory_and_refuses_to_run(pair: Pair) -> None:
    def active() -> int:
        gc.collect()
        mx.clear_cache()
        return mx.get_active_memory()

    before = active()
    body = "g (float[N, 400] x) => (float[N, 400] y) { t = Mul(x, x) y = Exp(t) }"
    ours, _ = pair(body)
    for n in range(1, 5):
        ours(floats(n, 400))
    ours.engine.close()
    with pytest.raises(RuntimeError, match="this plan is closed"):
        ours(floats(2, 400))
    del ours
    assert active() <= before


def test_the_engine_is_chosen_by_option_and_device(
    planned: Planned, toy: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = planned(onnx.parser.parse_model(f"{HEAD} g (float[N] x) => (float[N] y) {{ y = Exp(x) }}"), toy)

    def chosen(name: str) -> Any:
        return compiled.engine(built, Options(engine=name), "cpu", CompileReport(), lambda message: None)

    assert isinstance(chosen("eager"), EagerEngine)
    assert isinstance(chosen("compile")._recorder, compiled.CompileRecorder)
    if tape.supported():
        assert isinstance(chosen("auto")._recorder, compiled.TapeRecorder)
    monkeypatch.setattr(tape, "supported", lambda: False)
    assert isinstance(chosen("auto")._recorder, compiled.CompileRecorder)
    with pytest.raises(OptionError, match="records no tapes: use compile or eager"):
        chosen("tape")


def directly(ours: Harness, *arrays: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]] | None:
    """What a run from host memory to host memory gives, None where there is no such way."""
    given = [None if a is None else (a.ctypes.data, dtypes.BY_NUMPY[a.dtype].code, a.shape) for a in arrays]
    with streams.pool("cpu").lease() as stream:
        results = ours.engine.direct(given, stream)
    if results is None:
        return None
    for shape, address, nbytes, owner in results:
        assert isinstance(owner, mx.Array) and owner.evaluated
        assert (owner.shape, owner.nbytes, owner.address) == (shape, nbytes, address)
    return [np.array(owner) for _, _, _, owner in results]


def test_a_traced_plan_runs_from_host_memory_in_one_call(pair: Pair, engine: str) -> None:
    body = "t = Clip(x, low) y = Add(t, t) z = Exp(x)"
    ours, eager = pair(f"g (float[N] x, float low) => (float[N] y, float[N] z) {{ {body} }}", 2)
    low = np.float32(0.5)
    for n in (4, 5, 0):
        feed = floats(n), np.array(low)
        assert directly(ours, *feed) is None  # not traced yet
        ours(*feed)
        for sign in (1, -1):
            results = directly(ours, sign * floats(n), feed[1])
            if engine == "compile":
                assert results is None
                continue
            assert results is not None
            for got, right in zip(results, eager(sign * floats(n), feed[1]), strict=True):
                np.testing.assert_array_equal(got, right)
    assert (ours.report.traces, ours.report.evictions) == (3, 1)
    ours.engine.close()
    assert directly(ours, floats(5), np.array(low)) is None


@pytest.mark.parametrize(
    "body",
    [
        "(float[N] x) => (int64[1] y) { y = Shape(x) }",
        "(float[N] x) => (int64[a, b] y) { t = Relu(x) y = NonZero(t) }",
    ],
    ids=["values on the host", "a host step"],
)
def test_other_plans_run_through_arrays(pair: Pair, body: str) -> None:
    ours, _ = pair(f"g {body}")
    ours(floats(4))
    assert directly(ours, floats(4)) is None


def test_what_is_read_on_the_host_chooses_the_trace(pair: Pair, engine: str) -> None:
    ours, _ = pair("g (float[N] x, int64[R] shape) => (float[a, b] y) { y = Reshape(x, shape) }")
    for shape in ([2, 2], [4, 1], [2, 2]):
        ours(floats(4), np.array(shape))
    assert ours.report.traces == 2
    for shape in ([2, 2], [4, 1]):
        results = directly(ours, floats(4), np.array(shape))
        if engine == "compile":
            assert results is None
        else:
            assert results is not None
            np.testing.assert_array_equal(results[0], floats(4).reshape(shape))
    assert directly(ours, floats(4), np.array([1, 4])) is None  # not traced yet
    assert directly(ours, floats(4), np.ones(4096, np.int64)) is None  # too long for a key


@pytest.mark.parametrize("body", ["c = Exp(b) y = Sub(c, a)", "y = Sub(b, a)", "c = Add(b, n) y = Sub(c, a)"])
def test_a_tape_gets_inputs_in_the_order_of_the_plans(pair: Pair, engine: str, body: str) -> None:
    """What runs without Python knows no other."""
    if engine == "compile":
        pytest.skip("only tapes run directly")
    ours, _ = pair(f"g (float[2] a, float[2] b, float[2] n) => (float[2] y) {{ {body} }}")
    ours(floats(2), floats(2), floats(2))
    reader = ours.engine._direct_inputs  # type: ignore[union-attr]
    assert reader is not None
    _, addresses = reader.read(
        [(place, dtypes.BY_NUMPY[np.dtype(np.float32)].code, (2,)) for place in range(len(ours.plan.inputs))], 0
    ) or ((), [])
    assert addresses and addresses == sorted(addresses)


def test_bit_patterns_never_pass_directly() -> None:
    passing = {row.name for row in dtypes.ELEM_TYPES.values() if direct.passes(plan.Port(0, "x", row.code))}
    assert passing >= {"float32", "bool", "bfloat16", "complex64"}
    assert not passing & {"int4", "uint2", "float8_e4m3fn", "string", "complex128"}
    assert not direct.passes(plan.Port(0, "x", 99))


def test_a_direct_run_counts_as_a_use(pair: Pair, engine: str) -> None:
    if engine == "compile":
        pytest.skip("only tapes run directly")
    ours, _ = pair("g (float[N] x) => (float[N] y) { t = Exp(x) y = Add(t, x) }", 2)
    for n in (1, 2):
        ours(floats(n))
    assert directly(ours, floats(1)) is not None
    ours(floats(3))
    assert directly(ours, floats(1)) is not None
    assert directly(ours, floats(2)) is None


@pytest.mark.parametrize(
    ("fuse", "device", "mode"),
    [("on", "cpu", "no_fuse"), ("auto", "gpu", "enabled"), ("on", "gpu", "enabled"), ("off", "gpu", "no_fuse")],
)
def test_mlx_makes_kernels_on_a_gpu_only(
    planned: Planned, toy: Registry, monkeypatch: pytest.MonkeyPatch, fuse: str, device: str, mode: str
) -> None:
    set_to: list[mx.CompileMode] = []
    monkeypatch.setattr(mx, "set_compile_mode", set_to.append)
    built = planned(onnx.parser.parse_model(f"{HEAD} g (float[N] x) => (float[N] y) {{ y = Exp(x) }}"), toy)
    compiled.engine(built, Options(engine="compile", fuse=fuse), device, CompileReport(), lambda message: None)
    assert set_to == [mx.CompileMode[mode]]


NO_COMPILER = """
import sys
import numpy as np
import onnx
import ort_ep

body = "g (float[N] x) => (float[N] y) { t = Exp(x) u = Mul(t, x) y = Add(u, t) }"
model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + body).SerializeToString()
session = ort_ep.InferenceSession(model, engine=sys.argv[1], fuse="on", on_compute_error="raise")
for n in (3, 5, 3):
    x = np.arange(n, dtype=np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.exp(x) * x + np.exp(x), rtol=1e-5)
report = ort_ep.claim_report(session)
print(report.compile.traces, report.compile.uncompiled)
"""


def test_nothing_needs_a_compiler_or_leaves_files(engine: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", NO_COMPILER, engine], capture_output=True, text=True, timeout=120, env=environment
    )
    assert (done.returncode, done.stdout) == (0, "2 []\n"), done.stderr
    assert not (tmp_path / "mlx").exists()  # where MLX keeps what it compiles


PROGRAM = """
import gc, sys, threading
import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper
import mlxc_py as mx
import ort_ep
from mlxc_py import closure

engine, case = sys.argv[1:]
weights = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
x, y = (helper.make_tensor_value_info(name, 1, ["N", 64]) for name in "xy")
graph = helper.make_graph(nodes, "g", [x], [y], [weights])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
feed = {"x": np.ones((3, 64), np.float32)}

def session():
    made = ort_ep.InferenceSession(model, engine=engine, on_compute_error="raise")
    assert made.run(None, feed)[0][0, 0] == 64
    return made

if case == "drop":
    for _ in range(30):
        kept = session()
        thread = threading.Thread(target=kept.run, args=(None, feed))
        thread.start(); thread.join()
        del kept
        gc.collect()
    assert mx.get_active_memory() <= 64, mx.get_active_memory()  # scalars that handlers share
    assert not closure._functions
elif case == "exit":
    kept = [session() for _ in range(3)]
elif case == "daemon":
    kept = session()
    def loop():
        while True:
            kept.run(None, feed)
    for _ in range(2):
        threading.Thread(target=loop, daemon=True).start()
    import time; time.sleep(0.2)
print("done")
"""


@pytest.mark.parametrize("case", ["drop", "exit", "daemon"])
def test_sessions_end_cleanly(engine: str, case: str) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, engine, case], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    # a daemon's run may fall into the end of the interpreter, which ONNX Runtime logs
    assert not done.stderr or (case == "daemon" and "the Python interpreter is shutting down" in done.stderr)


@pytest.fixture(autouse=True)
def _streams_idle() -> Iterator[None]:
    yield
    mx.synchronize()
