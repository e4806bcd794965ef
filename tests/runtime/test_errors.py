"""Errors: their classes and words, guards against what would end the process, nothing printed at exit, fork."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import mlx.core as reference
import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import errors, guards

A = mx.array(np.arange(6, dtype=np.float32).reshape(2, 3))


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda: mx.reshape(A, (4, 4)), mx.MLXValueError, "reshape: .*Cannot reshape array of size 6"),
        (lambda: A.reshape(4, 4), ValueError, "reshape: "),
        (lambda: A + mx.ones((5,)), ValueError, "add: .*broadcast"),
        (lambda: mx.sum(A, axis=5), IndexError, "sum: Invalid axis 5"),
        (lambda: mx.matmul(A, A), mx.MLXError, "matmul: "),
        (lambda: mx.take(A, [7]), IndexError, "index 7 is out of bounds for a dimension of size 6"),
        (lambda: mx.take(A, 3, axis=1), IndexError, "index 3"),
        (lambda: mx.take(A, [0.5]), TypeError, "indices must be integers"),
        (lambda: mx.take_along_axis(A, [[9]], axis=1), IndexError, "index 9"),
        (lambda: mx.put_along_axis(A, A.astype(mx.int32), A, axis=-3), IndexError, "axis -3 is out of bounds"),
        (lambda: mx.put_along_axis(A, [[0], [5]], 1.0, axis=1), IndexError, "put_along_axis: index 5"),
        (lambda: mx.take(A, mx.array([0]), axis=-3), IndexError, "axis -3 is out of bounds"),
        (lambda: mx.scatter_add_axis(A, [[7]], 1.0, 1), IndexError, "scatter_add_axis: index 7"),
        (lambda: mx.gather(A, [[9]], (0,), (1, 3)), IndexError, "gather: index 9"),
        (lambda: mx.gather(A, [[0]], (0, 1), (1, 1)), ValueError, "1 index arrays for 2 axes"),
        (lambda: mx.scatter(A, [[-3]], mx.ones((1, 1, 3)), (0,)), IndexError, "scatter: index -3"),
        (lambda: mx.slice(A, [1, 2], (0, 1), (1, 2)), IndexError, r"slice of 2 cannot start at 2 of axis 1 \(size 3\)"),
        (lambda: mx.slice_update(A, mx.ones((2, 3)), [1], (0,)), IndexError, "cannot start at 1"),
        (lambda: mx.topk(mx.zeros((2, 0)), 1), ValueError, "topk: "),
        (lambda: mx.zeros((2, -1)), ValueError, "negative dimensions"),
        (lambda: mx.full((-1,), 1.0), ValueError, "negative"),
        (lambda: mx.zeros((2**31,)), OverflowError, "32-bit|2147483648"),
        # ctypes and the ABI would both drop the upper half of these
        (lambda: mx.argmax(mx.ones((2, 2)), 2**32), OverflowError, "4294967296"),
        (lambda: mx.split(mx.ones((2, 2)), 2**32 + 2), OverflowError, "4294967298"),
        (lambda: mx.quantize(mx.ones((4, 64)), 2**32 + 64, 4), OverflowError, "4294967360"),
        (lambda: mx.as_strided(A, (100,), (1,)), IndexError, "elements 0 to 99 of an array that has 6"),
        (lambda: mx.as_strided(A, (2,), (-1,)), IndexError, "elements -1 to 0"),
        (lambda: mx.as_strided(A, (2, 2), (1,)), ValueError, "2 dimensions but 1 strides"),
        (lambda: mx.conv2d(A, A, stride=(1, 2, 3)), ValueError, "stride needs one int or 2"),
        (lambda: mx.fft.fft(A, norm="no"), ValueError, "norm must be backward"),
        (lambda: mx.fft.fft(A, axis=4), IndexError, "axis 4"),
        (lambda: mx.pad(A, [(1, 1)] * 3), ValueError, "3 pairs for 2 axes"),
        (lambda: mx.arange(), TypeError, "arange"),
        (lambda: mx.softmax(A, axis="x"), TypeError, None),
        (lambda: mx.quantized_matmul(mx.zeros((0, 64)), A, A), ValueError, "dimension of size 0"),
        (lambda: mx.random.categorical(A, shape=(2,), num_samples=2), ValueError, "only one of"),
        (lambda: mx.split(A, 4), mx.MLXError, "split: "),
        (lambda: mx.einsum("ij", 3, "x"), TypeError, None),
        (lambda: mx.array([1], "float32"), TypeError, "dtype must be a Dtype"),
        (lambda: mx.broadcast_shapes((2, 3), (4,)), ValueError, "broadcast"),
        (lambda: mx.linalg.inv(mx.zeros((2, 2)), stream=mx.cpu).eval(), mx.MLXError, "eval: "),
        (lambda: mx.load("x.npy", "gguf"), FileNotFoundError, "no file"),
    ],
    ids=range(42),
)
def test_words_and_classes(call: Any, kind: type[Exception], says: str | None) -> None:
    with pytest.raises(kind, match=says):
        pytest.fail(f"gave {call()}")


def test_integers_that_older_mlx_dies_of(monkeypatch: pytest.MonkeyPatch) -> None:
    three = mx.array([3])
    assert (three // mx.array([2])).tolist() == [1]
    monkeypatch.setattr(guards, "_before_0_32", lambda: True)
    for call in (lambda: three // 0, lambda: three % mx.array([1, 0]), lambda: mx.divmod(three, 0)):
        with pytest.raises(mx.MLXValueError, match="division of integers by zero"):
            call()
    with pytest.raises(mx.MLXValueError, match="negative power"):
        three**-1
    assert (three**2).tolist() == [9]
    assert (three / 2 // 0.5).tolist() == [3.0]


def test_empty_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
        ("sort", (2, 0), {}),
        ("argsort", (0,), {"axis": None}),
        ("cumsum", (0, 3), {"axis": 0}),
        ("logcumsumexp", (2, 0), {}),
        ("topk", (0, 2), {"k": 0, "axis": 0}),
    ]
    for name, shape, more in calls:
        theirs = getattr(reference, name)(reference.zeros(shape), **more)
        assert getattr(mx, name)(mx.zeros(shape), **more).shape == theirs.shape
    monkeypatch.setattr(guards, "_before_0_32", lambda: True)
    for name, shape, more in calls:
        with pytest.raises(mx.MLXValueError, match=f"{name}: the axis has size 0"):
            getattr(mx, name)(mx.zeros(shape), **more)


def test_the_kind_is_read_from_the_message() -> None:
    for text, kind in (
        ("expected a non-empty mlx_array", errors.ClosedError),
        ("There is no Stream(cpu, 3) in current thread.", errors.MLXStreamError),
        ("std::bad_alloc", errors.MLXMemoryError),
        ("[take] Index 3 out of bounds", errors.MLXIndexError),
        ("[matmul] shapes", errors.MLXValueError),
        ("something else", errors.MLXError),
        (None, errors.MLXError),
    ):
        problem = errors.error("call", text)
        assert type(problem) is kind
        assert str(problem).startswith("call: ")
    assert issubclass(mx.MLXError, RuntimeError)
    assert issubclass(mx.MLXIndexError, IndexError)


def test_huge_allocations_are_errors(run_python: Any) -> None:
    done = run_python(
        """
        import mlxc_py as mx
        try:
            mx.zeros((1 << 20, 1 << 20)).eval()
        except mx.MLXError as problem:
            print("refused", type(problem).__name__)
        print(mx.array([1, 2]).tolist())
        """
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["[1, 2]"]), done
    assert "refused" in done.stdout


EXITS = {
    "nothing": "pass",
    "arrays alive": "a = mx.array([1.0]) + 1; b = [a, a * 2]; mx.eval(b)",
    "arrays in a cycle": "a = mx.array([1.0]); cycle = [a]; cycle.append(cycle)",
    "compiled functions": "f = mx.compile(lambda x: x + 1); f(mx.array([1.0]))",
    "gradients and closures": "c = mx.Closure(lambda xs: xs); g = mx.grad(lambda x: x * x); g(mx.array(1.0))",
    "lazy custom function": "f = mx.checkpoint(lambda x: x * 2); a = f(mx.array([1.0]))",
    "lent memory": "import numpy as np; a = mx.array([1.0]); v = np.from_dlpack(a); capsule = a.__dlpack__()",
    "a view": "import numpy as np; v = np.asarray(mx.array([1.0]) + 1)",
    "streams": "\ns = mx.new_stream(mx.cpu)\n"
    "try: t = mx.new_thread_unsafe_stream(mx.cpu)\n"
    "except NotImplementedError: t = s\n"
    "mx.add(1, 2, stream=t).eval()",
    "a failure": "\ntry: mx.reshape(mx.array([1]), (2,))\nexcept mx.MLXError as e: kept = e",
    "a daemon thread": "import threading, time\n"
    "def work():\n"
    "    f = mx.compile(lambda x: mx.exp(x))\n"
    "    while True: mx.eval(f(mx.ones((1000,))))\n"
    "threading.Thread(target=work, daemon=True).start(); time.sleep(0.2)",
    "mlx.core too": "import mlx.core as mc; a = mc.array([1.0]) + 1; b = mx.array([1.0]) + 1; mx.eval(b); mc.eval(a)",
    "a kept exception": "\ndef bad(x): raise ValueError\n"
    "try: mx.compile(bad)(mx.array([1.0]))\nexcept ValueError as e: kept = e",
    "owners later than modules": "import ctypes, os, sys\n"
    "from mlxc_py import tape\n"
    "os.kept = [mx.StringVector(['a'])]\n"
    "if tape.supported(): x = tape.placeholder((2,), mx.float32); os.kept.append(tape.Tape([x], [x + 1]))\n"
    "for module in list(sys.modules.values()): ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))",
    "loaded lazily": "mx.save('a.npy', mx.array([1.0])); a = mx.load('a.npy')",
}


def test_headers_that_a_gpu_kernel_lacks_are_named() -> None:
    text = 'Failed to compile kernel: mma.h(55): catastrophic error: cannot open source file "crt/mma.h"'
    assert str(errors.error("eval", text)).endswith("pip install nvidia-cuda-crt")


def said(done: Any) -> list[str]:
    """Lines on stderr, without the warning that a machine without the native library gets."""
    return [line for line in done.stderr.splitlines() if "reference BLAS" not in line]


@pytest.mark.parametrize("name", EXITS)
def test_nothing_is_printed_at_exit(name: str, run_python: Any) -> None:
    done = run_python(f"import mlxc_py as mx\n{EXITS[name]}\n")
    assert (done.returncode, done.stdout, said(done)) == (0, "", [])


@pytest.mark.skipif(mx.cuda.is_available(), reason="CUDA does not survive a fork: such a child ends by a signal")
@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_child_gets_an_error_and_can_end(run_python: Any) -> None:
    done = run_python(
        """
        import os, sys, warnings
        import mlxc_py as mx
        from mlxc_py.tape import Tape, evaluate
        warnings.simplefilter("ignore")  # newer Pythons warn of every fork
        a = mx.array([1.0]) + 1
        a.eval()
        child = os.fork()
        if child == 0:
            b = a * 2
            saves = [lambda save=save: save("b", {"b": b}) for save in (mx.save_safetensors, mx.save_gguf)]
            waits = [b.eval, b.tolist, mx.synchronize, lambda: mx.eval(b), lambda: mx.async_eval(b)]
            records = [lambda: Tape([], [b]), lambda: evaluate([b])]
            for compute in [*waits, *saves, lambda: mx.save("b", b), *records]:
                try:
                    compute()
                    os._exit(1)
                except mx.MLXError as problem:
                    assert "spawn" in str(problem)
            del a, b
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), a.tolist())
        """
    )
    assert (done.returncode, done.stdout, said(done)) == (0, "7 [2.0]\n", [])


def test_the_package_imports_without_a_library(run_python: Any) -> None:
    done = run_python(
        """
        import mlxc_py as mx
        import mlxc_py._sys.mlx, mlxc_py.errors, mlxc_py.dtype
        print(mx.float32, mx.pi > 3)
        try:
            mx.array([1])
        except Exception as problem:
            print(type(problem).__name__, "/missing" in str(problem))
        """,
        MLXC_PY_LIBRARY="/missing/libmlxc.so",
    )
    assert (done.returncode, done.stdout) == (0, "mlxc_py.float32 True\nLibraryError True\n"), done


def test_unknown_names_are_attribute_errors() -> None:
    for name in ("nothing", "local", "Sequence", "index", "_private"):
        with pytest.raises(AttributeError, match=name):
            getattr(mx, name)


@pytest.mark.parametrize(
    "call",
    [
        lambda: mx.array([1.0], dtype="float32"),
        lambda: mx.zeros((2,), dtype="float32"),
        lambda: mx.ones((2,)).astype("float32"),
        lambda: mx.full((2,), 1.0, dtype="float32"),
        lambda: mx.arange(3, dtype="float32"),
        lambda: mx.cumsum(mx.ones((2,)), dtype="float32"),
        lambda: mx.random.normal((2,), dtype="float32"),
    ],
)
def test_a_dtype_by_name_is_refused_in_words(call: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"dtype must be a Dtype such as mx.float32, not 'float32'"):
        call()
