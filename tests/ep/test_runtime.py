from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mlxc_py as mx
from mlxc_py._sys import support
from ort_ep import dtypes, kernel_cache, streams
from ort_ep.plan import Plan
from ort_ep.registry import ANY, Registry
from ort_ep.runtime import EP_FAIL, Compute, ComputeError

HEAD = '<ir_version: 8, opset_import: ["": 17, "my": 1]>'
Planned = Callable[[Any, Registry], Plan]
MakeCompute = Callable[..., Compute]


def identity(elem_type: int) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, elem_type, ["N"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("name", sorted(ANY))
def test_every_dtype_crosses_the_boundary_bit_by_bit(toy: Registry, planned: Planned, run: Any, name: str) -> None:
    row = dtypes.BY_NAME[name]
    assert row.numpy is not None
    if name == "bool":
        x = np.array([True, False, True])
    elif row.numpy.kind in "iu":
        whole = np.iinfo(row.numpy)
        x = np.array([whole.min, 0, whole.max], row.numpy)
    else:
        limits = ml_dtypes.finfo(row.numpy)
        x = np.array([limits.min, -0.0, limits.tiny, np.inf, np.nan], row.numpy)
    (y,) = run(planned(identity(row.code), toy), {"x": x})
    assert y.dtype == x.dtype
    assert y.tobytes() == x.tobytes()


def test_unsupported_types_have_no_mlx_dtype() -> None:
    for name in ("string", "complex128", "float8_e4m3fn", "int4"):
        with pytest.raises(TypeError, match=f"MLX has no dtype for {name}"):
            dtypes.to_mlx(dtypes.BY_NAME[name].code)
    assert dtypes.name_of(99) == "ONNX element type 99"


def test_table_agrees_with_onnx() -> None:
    known = {value for name, value in TensorProto.DataType.items() if name != "UNDEFINED"}
    assert known <= set(dtypes.ELEM_TYPES)
    for code in known - {TensorProto.STRING}:
        assert helper.tensor_dtype_to_np_dtype(code) == dtypes.numpy_dtype(code)


def test_wrong_inputs_are_errors_that_fall_back(toy: Registry, planned: Planned, compute: MakeCompute) -> None:
    messages: list[tuple[str, bool]] = []
    made = compute(planned(identity(1), toy), failed=lambda *what: messages.append(what))
    x = np.zeros(2, np.int64)
    with pytest.raises(ComputeError, match="input x is int64, not float32") as caught:
        made([(x.ctypes.data, 7, (2,))])
    assert caught.value.ort_status_code == EP_FAIL
    with pytest.raises(ComputeError, match="2 inputs were given, g has 1"):
        made([None, None])
    assert [first for _, first in messages] == [True, False]


def test_runs_are_watched_until_one_has_succeeded(
    toy: Registry, planned: Planned, compute: MakeCompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[object] = []

    @contextmanager
    def announced(warn: object) -> Iterator[None]:
        watched.append(warn)
        yield

    monkeypatch.setattr(kernel_cache, "announced", announced)
    source = onnx.parser.parse_model(f"{HEAD} g (float[N] x) => (float[N] y) {{ y = Relu(x) }}")
    made = compute(planned(source, toy), warn=print)
    x = np.ones(3, np.float32)
    with pytest.raises(ComputeError, match="not float32"):
        made([(x.ctypes.data, 7, x.shape)])
    for _ in range(3):
        made([(x.ctypes.data, 1, x.shape)])
    assert watched == [print, print]


def test_outputs_own_their_memory(toy: Registry, planned: Planned, compute: MakeCompute) -> None:
    source = onnx.parser.parse_model(f"{HEAD} g (float[N] x) => (float[N] y) {{ y = Relu(x) }}")
    made = compute(planned(source, toy))
    x = np.ones(1000, np.float32)
    ((shape, address, nbytes, owner),) = made([(x.ctypes.data, 1, x.shape)])
    x[:] = 9
    assert (shape, nbytes) == ((1000,), 4000)
    np.testing.assert_array_equal(np.array(owner), 1)
    assert callable(address) or address % 4 == 0  # a function where the bytes are in a device's own memory


def test_large_inputs_are_read_where_they_lie_and_never_written(
    toy: Registry, planned: Planned, compute: MakeCompute
) -> None:
    body = "y = Identity(x) z = Relu(x) t = Add(z, z) u = Mul(t, t)"
    source = onnx.parser.parse_model(f"{HEAD} g (float[N] x) => (float[N] y, float[N] u) {{ {body} }}")
    made = compute(planned(source, toy))
    before = support.held()
    for sign in (1, -1):  # another content at the same address
        x = sign * np.arange(1 << 16, dtype=np.float32)
        kept = x.copy()
        (_, _, _, y), (_, _, _, u) = made([(x.ctypes.data, 1, x.shape)])
        np.testing.assert_array_equal(np.array(y), kept)
        np.testing.assert_array_equal(np.array(u), np.square(2 * np.maximum(kept, 0)))
        np.testing.assert_array_equal(x, kept)
        del y, u
    support.drain()
    assert support.held() <= before


MIXED = f"""{HEAD} g (float[N] x, int64[K] s) => (float[a, b] y, int64[c, d] i) {{
    e = Exp(x) t = Add(e, x) u = Mul(t, t) y = Reshape(u, s) r = Relu(x) i = NonZero(r) }}"""


def test_any_number_of_threads_may_run_any_plan(toy: Registry, planned: Planned, compute: MakeCompute) -> None:
    plans = [planned(onnx.parser.parse_model(MIXED), toy) for _ in range(3)]
    computes = [compute(built) for built in plans]
    wrong: list[str] = []
    start = threading.Barrier(6)

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        start.wait()
        for i in range(25):
            x = random.standard_normal(12 * (1 + i % 3)).astype(np.float32)
            s = np.array([2, -1])
            (_, _, _, y), (_, _, _, nonzero) = computes[(seed + i) % 3](
                [(x.ctypes.data, 1, x.shape), (s.ctypes.data, 7, (2,))]
            )
            if not np.allclose(np.array(y), ((np.exp(x) + x) ** 2).reshape(2, -1), rtol=1e-5):
                wrong.append(f"thread {seed} run {i}")
            if not np.array_equal(np.asarray(nonzero), np.array(np.nonzero(np.maximum(x, 0)))):
                wrong.append(f"thread {seed} run {i}: indices")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_interrupted_evaluation_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    start = mx.async_eval

    def interrupted(*arrays: mx.Array) -> None:
        start(*arrays)
        raise KeyboardInterrupt

    lock = threading.Lock()
    with streams.pool("cpu").lease() as stream:
        product = mx.matmul(mx.ones((1024, 1024)), mx.ones((1024, 1024)))
        monkeypatch.setattr(stream, "lock", lock)
        monkeypatch.setattr(mx, "async_eval", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.evaluate([product])
    assert product.address  # an error while it is under way
    assert not lock.locked()


def test_streams_are_bounded_and_shared() -> None:
    pool = streams.StreamPool(mx.cpu, 2)
    with pool.lease() as a, pool.lease() as b, pool.lease() as c:
        assert a is not b
        assert c in (a, b)
        assert sorted([a.users, b.users]) == [1, 2]
    with pool.lease() as d:
        assert d in (a, b)
    assert (a.users, b.users) == (0, 0)
    assert streams.pool("cpu") is streams.pool("cpu")


def test_failing_run_gives_its_stream_back() -> None:
    pool = streams.StreamPool(mx.cpu, 1)
    with pytest.raises(KeyError), pool.lease():
        raise KeyError("x")
    with pool.lease() as stream:
        assert stream.users == 1


THREADS = """
import threading, psutil, numpy as np, onnx
from ort_ep import capability, engine, planner, proto, runtime, streams
from ort_ep.registry import ANY, Registry
import mlxc_py as mx
registry = Registry()
registry.op("Relu", since=6)(lambda x: mx.maximum(x, 0))
graph = proto.from_model(onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Relu(x) }'))
calls = [call for verdict in capability.Analyzer(graph, registry).verdicts() for call in verdict.calls]
built = planner.build(graph, calls)
compute = runtime.Compute(built, engine.EagerEngine(built), streams.pool("cpu"), fall_back=True, failed=print)
x = np.ones(8, np.float32)
def once():
    compute([(x.ctypes.data, 1, x.shape)])
before = psutil.Process().num_threads()
for _ in range(60):
    thread = threading.Thread(target=once)
    thread.start()
    thread.join()
print(psutil.Process().num_threads() - before)
"""


def test_threads_that_end_leave_no_threads_behind() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) <= 4
    assert done.stderr == ""


FORK = (
    THREADS.split("before =")[0]
    + """
import os
once()
child = os.fork()
if child == 0:
    try:
        once()
    except runtime.ComputeError as error:
        print(error.ort_status_code, error, flush=True)
        os._exit(3)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_forked_child_gets_a_clear_error_and_no_fallback() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["1 MLX cannot run in a forked child process; start it with 'spawn'", "3"]
