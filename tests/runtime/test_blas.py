"""BLAS routing: MLX's calls reach the given functions, in every import order, all of them or none."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest

from mlxc_py._sys import blas, load, support

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="macOS has Accelerate: nothing is routed there"),
    pytest.mark.skipif(support.library() is None, reason=f"no native library: {support.reason()}"),
]

ORDERS = {
    "mlx.core first": "import mlx.core as mx; mx.eval(mx.zeros(1)); from mlxc_py._sys import load; load.library()",
    "mlxc_py first": "from mlxc_py._sys import load; load.library(); import mlx.core as mx",
}
ORDERS = {name: f"{program}; mx.set_default_device(mx.cpu)" for name, program in ORDERS.items()}
# Replaces cblas_sgemm by a function that counts its calls and computes nothing.
COUNT_CALLS = """
import ctypes
from mlxc_py._sys import support
calls = []
PRODUCT = ctypes.CFUNCTYPE(None)
counter = PRODUCT(lambda: calls.append(1))

def send(name, target):
    names, targets, slots = (ctypes.c_char_p * 1)(name), (ctypes.c_void_p * 1)(target), (ctypes.c_int * 1)()
    return support.library()["mlxc_support_route"](
        load.library().mlx_path.encode(), names, targets, ctypes.c_size_t(1), slots), slots[0]
"""


@pytest.mark.parametrize("order", ORDERS)
def test_mlx_calls_what_its_imports_were_routed_to(run_python: Any, order: str) -> None:
    done = run_python(
        ORDERS[order]
        + COUNT_CALLS
        + """
a = mx.ones((64, 64)); mx.eval(a @ a); print(len(calls))
print(send(b"cblas_sgemm", ctypes.cast(counter, ctypes.c_void_p)))
mx.eval(a @ a); print(len(calls) > 0)
print(send(b"no_such_import", ctypes.cast(counter, ctypes.c_void_p)))
"""
    )
    assert (done.stdout.split("\n")[:4], done.stderr) == (["0", "(1, 1)", "True", "(0, 0)"], "")


@pytest.mark.parametrize("order", ORDERS)
def test_all_symbols_go_to_openblas_with_one_thread(run_python: Any, order: str) -> None:
    done = run_python(
        ORDERS[order]
        + """
import numpy as np
from mlxc_py._sys import blas
a = np.random.default_rng(0).standard_normal((200, 300)).astype(np.float32)
print(np.abs(np.array(mx.array(a) @ mx.array(a.T)) - a @ a.T).max() < 1e-3)
s = blas.status(); print(len(s.routed), s.threads, s.reason, "OpenBLAS" in s.config, "scipy_openblas" in s.library)
""",
        OPENBLAS_NUM_THREADS=None,
        MLXC_PY_BLAS_THREADS=None,
        MLXC_PY_BLAS=None,
    )
    assert (done.stdout.split("\n")[:2], done.stderr) == (["True", "24 1 None True True"], "")


STATUS = "from mlxc_py._sys import blas, load; load.library(); print(blas.status())"


@pytest.mark.parametrize("value", ["0", "reference", "OFF"])
def test_the_switch_leaves_the_reference_blas_without_a_word(run_python: Any, value: str) -> None:
    done = run_python(STATUS, MLXC_PY_BLAS=value)
    assert (done.stdout, done.stderr) == (f"MLX's own (MLXC_PY_BLAS={value})\n", "")


def test_the_threads_option_is_set(run_python: Any) -> None:
    done = run_python(STATUS, MLXC_PY_BLAS_THREADS="2")
    assert "(24 functions, 2 thread(s), " in done.stdout


@pytest.mark.parametrize(
    ("environ", "threads", "warned"),
    [
        ({}, 1, False),
        ({"MLXC_PY_BLAS_THREADS": "3"}, 3, False),
        ({"OPENBLAS_NUM_THREADS": "2"}, None, False),
        ({"OPENBLAS_NUM_THREADS": "2", "MLXC_PY_BLAS_THREADS": "4"}, 4, False),
        ({"MLXC_PY_BLAS_THREADS": "0"}, 1, True),
        ({"MLXC_PY_BLAS_THREADS": "many"}, 1, True),
        ({"MLXC_PY_BLAS_THREADS": "²"}, 1, True),
    ],
)
def test_threads_come_from_the_option_then_from_openblas_own_variable(
    environ: dict[str, str], threads: int | None, warned: bool
) -> None:
    warnings: list[str] = []
    assert blas.wanted_threads(environ, lambda text, *args: warnings.append(text % args)) == threads
    assert [("must be a positive number" in w) for w in warnings] == [True] * warned


@pytest.mark.parametrize(
    ("before", "environ", "reason"),
    [
        ("import sys; sys.modules['scipy_openblas32'] = None", {}, "scipy-openblas32 is not installed: pip install"),
        ("", {"MLXC_PY_NO_NATIVE": "1"}, "no native support library: MLXC_PY_NO_NATIVE is set"),
        (
            "from mlxc_py._sys import blas; blas.SYMBOLS += ('no_such_function',)",
            {},
            "undefined symbol: scipy_no_such_function",
        ),
        ("from mlxc_py._sys import blas; blas.openblas_path = lambda: '/dev/null'", {}, "/dev/null: file too short"),
    ],
)
def test_a_problem_is_one_warning_and_a_reason_and_nothing_is_routed(
    run_python: Any, before: str, environ: dict[str, str], reason: str
) -> None:
    done = run_python(f"{before}\n{STATUS}\nprint(blas.status().routed)", **environ)
    assert reason in done.stdout
    assert done.stdout.endswith("\n()\n")
    assert done.stderr.count("\n") == 1
    assert reason in done.stderr
    assert "MLX keeps its reference BLAS" in done.stderr


def test_one_missing_target_leaves_every_import_as_it_was(run_python: Any) -> None:
    done = run_python(
        ORDERS["mlxc_py first"]
        + COUNT_CALLS
        + """
names = (ctypes.c_char_p * 2)(b"cblas_sgemm", b"cblas_dgemm")
targets = (ctypes.c_void_p * 2)(ctypes.cast(counter, ctypes.c_void_p), None)
slots = (ctypes.c_int * 2)()
print(support.library()["mlxc_support_route"](
    load.library().mlx_path.encode(), names, targets, ctypes.c_size_t(2), slots), list(slots))
a = mx.ones((64, 64)); mx.eval(a @ a); print(len(calls), (a @ a)[0, 0].item())
"""
    )
    assert (done.stdout.split("\n")[:2], done.stderr) == (["-4 [0, 0]", "0 64.0"], "")


def test_a_library_that_is_not_mapped_is_said_to_be_so(run_python: Any) -> None:
    code = "from mlxc_py._sys import blas; blas.route({!r}); print(blas.status().reason)"
    for path in ("/no/such/libmlx.so", str(support.path())[:-3] + ".missing"):
        assert run_python(code.format(path)).stdout == f"libmlx is not mapped from {path}\n"


def test_a_library_without_blas_imports_is_left_alone(run_python: Any) -> None:
    done = run_python("from mlxc_py._sys import blas, support; blas.route(str(support.path())); print(blas.status())")
    assert (done.stdout, done.stderr) == (f"MLX's own ({support.path()} imports no BLAS function)\n", "")


def test_routing_again_from_many_threads_while_mlx_computes_is_harmless(run_python: Any) -> None:
    done = run_python(
        ORDERS["mlxc_py first"]
        + """
import threading
import numpy as np
from mlxc_py._sys import blas
a = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float32); expected = a @ a
targets = [blas._address(__import__("ctypes").CDLL(str(blas.openblas_path())), "scipy_" + s) for s in blas.SYMBOLS]
wrong = []

def compute():
    for _ in range(100):
        if np.abs(np.array(mx.array(a) @ mx.array(a)) - expected).max() > 1e-3:
            wrong.append(1)

def route():
    for _ in range(200):
        if len(blas._write(load.library().mlx_path, targets)) != 24:
            wrong.append(2)

threads = [threading.Thread(target=f) for f in (compute, route, route, compute)]
[t.start() for t in threads]; [t.join() for t in threads]
print(wrong)
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [5, 96])
def test_lapack_results_are_right(dtype: Any, n: int) -> None:
    mx = pytest.importorskip("mlx.core")
    load.library()
    rng = np.random.default_rng(n)
    a = rng.standard_normal((n, n)).astype(dtype)
    spd = (a @ a.T + n * np.eye(n)).astype(dtype)
    limit = {np.float32: 2e-3, np.float64: 1e-10}[dtype] * n
    with mx.stream(mx.cpu):
        on = mx.array(a, dtype=mx.float64 if dtype is np.float64 else mx.float32)
        on_spd = mx.array(spd, dtype=on.dtype)
        np.testing.assert_allclose(np.array(mx.linalg.inv(on_spd)), np.linalg.inv(spd), atol=limit)
        np.testing.assert_allclose(np.array(mx.linalg.cholesky(on_spd)), np.linalg.cholesky(spd), atol=limit)
        u, s, vt = (np.array(x) for x in mx.linalg.svd(on))
        np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), atol=limit)
        np.testing.assert_allclose(u * s @ vt, a, atol=limit)
        values, vectors = (np.array(x) for x in mx.linalg.eigh(on_spd))
        np.testing.assert_allclose(values, np.linalg.eigvalsh(spd), atol=limit)
        np.testing.assert_allclose(vectors * values @ vectors.T, spd, atol=limit)
        q, r = (np.array(x) for x in mx.linalg.qr(on))
        np.testing.assert_allclose(q @ r, a, atol=limit)
        np.testing.assert_allclose(q.T @ q, np.eye(n), atol=limit)
        lower = np.tril(spd)
        inverse = np.array(mx.linalg.tri_inv(mx.array(lower, dtype=on.dtype)))
        np.testing.assert_allclose(inverse, np.linalg.inv(lower), atol=limit)
        distance = np.abs(np.array(mx.linalg.eigvals(on))[:, None] - np.linalg.eigvals(a)[None, :])
        assert distance.min(axis=0).max() < max(limit, 1e-3)  # complex64 whatever the input


def test_complex_products_and_decompositions_are_right() -> None:
    mx = pytest.importorskip("mlx.core")
    load.library()
    rng = np.random.default_rng(7)
    a = (rng.standard_normal((24, 24)) + 1j * rng.standard_normal((24, 24))).astype(np.complex64)
    hermitian = a + a.conj().T
    with mx.stream(mx.cpu):
        np.testing.assert_allclose(np.array(mx.array(a) @ mx.array(a)), a @ a, atol=1e-3)
        np.testing.assert_allclose(
            np.array(mx.linalg.eigvalsh(mx.array(hermitian))), np.linalg.eigvalsh(hermitian), atol=1e-3
        )
        s = np.array(mx.linalg.svd(mx.array(a), compute_uv=False))
        np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), atol=1e-3)


def test_concurrent_products_are_right() -> None:
    mx = pytest.importorskip("mlx.core")
    load.library()
    a = np.random.default_rng(3).standard_normal((128, 128)).astype(np.float32)
    expected, wrong = a @ a, []

    def work() -> None:
        for _ in range(50):
            result = np.array(mx.matmul(mx.array(a), mx.array(a), stream=mx.cpu))
            wrong.extend([1] * bool(np.abs(result - expected).max() > 1e-3))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
