"""What can kill a process must come back as a return code; what still may is tried in a process of its own."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from capi_harness import CApi, Failed, Slot

from mlxc_py._sys import load, mlx

pytestmark = pytest.mark.usefixtures("ours")

X = np.arange(6, dtype="f4").reshape(2, 3)
SINGULAR = np.zeros((3, 3), "f4")
RunPython = Callable[..., subprocess.CompletedProcess[str]]

# How a program of its own starts: the raw bindings, a CPU stream, and helpers for arrays and results.
START = """
import ctypes, struct
from mlxc_py._sys import load, mlx
S = mlx.mlx_default_cpu_stream_new()
cell = (ctypes.c_size_t * 1)()
def ints(*v): return struct.pack(f"{len(v)}i", *v), len(v)
def array(*values, shape=None, code=10, kind="f"):
    shape = shape or (len(values),)
    return mlx.mlx_array_new_data(struct.pack(f"{len(values)}{kind}", *values), ints(*shape)[0], len(shape), code)
def call(f, *args):
    cell[0] = 0
    return f(cell, *args), cell[0]
def tell(rc): print(rc, load.take_error())
"""


# ---- empty handles and NULL pointers, for every function that takes them
def plain_values(params: list[tuple[str, str]], stream: int) -> list[object]:
    """Harmless values for the parameters that are no handles."""
    values: dict[str, object] = {"mlx_stream": stream, "float": 1.0, "double": 1.0, "const char*": b"", "mlx_dtype": 10}
    out: list[object] = []
    for kind, _ in params:
        out.append(values.get(kind, 0 if not kind.endswith("*") else None))
    return out


OPERATIONS = [
    name
    for name, signature in mlx.FUNCTIONS.items()
    if signature.result == "int"
    and [t for t, _ in signature.params[:2]] == ["mlx_array*", "mlx_array"]
    and signature.params[-1][0] == "mlx_stream"
]


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_refuse_empty_arrays_and_no_result(capi: CApi, name: str) -> None:
    params = list(mlx.FUNCTIONS[name].params)
    function = getattr(capi.c, name)
    slots = [Slot() for t, _ in params if t == "mlx_array*"]
    rest = plain_values(params[len(slots) :], capi.stream)
    assert function(*(s.address for s in slots), *rest) == 1
    assert load.take_error()
    assert all(s.value == 0 for s in slots)
    filled = [capi.array(X) if t == "mlx_array" else v for (t, _), v in zip(params[len(slots) :], rest, strict=True)]
    assert function(*([None] * len(slots)), *filled) == 1
    assert load.take_error()


def test_no_stream(capi: CApi) -> None:
    slot = Slot()
    assert capi.c.mlx_add(slot.address, capi.array(X), capi.array(X), 0) == 1
    assert load.take_error() == "expected a non-empty mlx_stream"


MOST = 2**31 - 1


@pytest.mark.parametrize("name", ["zeros", "ones"])
@pytest.mark.parametrize("shape", [(-1,), (3, -7), (MOST,) * 3])
def test_impossible_shapes(capi: CApi, name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(Failed):
        capi.op(name, shape, np.float32)


ONE, NO_MORE = np.array(1.0, "f4"), (MOST,) * 3
# In 64 bits the bytes of these wrap to a few GiB, which a large machine would give and MLX would write past.
UNCOUNTABLE: dict[str, tuple[object, ...]] = {
    "full": (NO_MORE, ONE, np.float32),
    "broadcast_to": (ONE, NO_MORE),
    "eye": (2**30 + 2, 2**31 - 3, 0, np.int64),
    "tile": (ONE, NO_MORE),
    "random_bits": (NO_MORE, 4, None),
    "random_normal": (NO_MORE, np.float32, 0.0, 1.0, None),
}


@pytest.mark.parametrize("name", ["zeros", "ones", *UNCOUNTABLE])
def test_bytes_that_cannot_be_counted(capi: CApi, name: str) -> None:
    with pytest.raises(Failed, match="array too large"):
        capi.node(name, *UNCOUNTABLE.get(name, (NO_MORE, np.float32)))


def test_views_whose_sum_cannot_be_counted(capi: CApi) -> None:
    row, column = (capi.node("broadcast_to", ONE, shape) for shape in ((1, MOST), (MOST, 1)))
    with pytest.raises(Failed, match="array too large"):
        capi.node("add", row, column)
    slot = Slot()
    assert capi.c.mlx_broadcast_arrays(slot.address, capi.vector([row, column]), capi.stream) == 1
    assert "array too large" in load.take_error()
    assert capi.c.mlx_array_size(capi.node("zeros", (MOST, MOST, 0), np.float32)) == 0


@pytest.mark.parametrize("call", ["random_normal", "random_uniform", "broadcast_to", "full"])
def test_negative_dimensions(capi: CApi, call: str) -> None:
    low, high = np.array(0.0, "f4"), np.array(1.0, "f4")
    args: dict[str, tuple[object, ...]] = {
        "random_normal": ((2, -3), np.float32, 0.0, 1.0, None),
        "random_uniform": (low, high, (2, -3), np.float32, None),
        "broadcast_to": (low, (2, -3)),
        "full": ((-2, 3), low, np.float32),
    }
    with pytest.raises(Failed):
        capi.op(call, *args[call])


@pytest.mark.parametrize("name", ["inv", "lu", "lu_factor", "solve", "solve_triangular", "tri_inv", "cholesky_inv"])
def test_factorising_nothing(capi: CApi, name: str) -> None:
    """On the CPU this divided by zero."""
    empty = np.empty((0, 0), "f4")
    more = {"solve": (empty,), "solve_triangular": (empty, True), "tri_inv": (True,), "cholesky_inv": (True,)}
    with pytest.raises(Failed, match="no elements"):
        capi.op(f"linalg_{name}", empty, *more.get(name, ()))


@pytest.mark.parametrize("call", ["reshape", "unflatten"])
def test_shapes_of_nothing(capi: CApi, call: str) -> None:
    empty, axis = np.empty((2, 0), "f4"), (1,) if call == "unflatten" else ()
    with pytest.raises(Failed, match="negative dimension"):
        capi.op(call, empty, *axis, (2, 9, 0, -9))
    with pytest.raises(Failed):
        capi.op(call, empty, *axis, (0, -1))


def test_integer_divmod_by_zero_ends_nothing(capi: CApi) -> None:
    a, b = np.array([7, -7, 5], "i4"), np.array([2, 2, 0], "i4")
    quotient, remainder = capi.op("divmod", a, b)
    np.testing.assert_array_equal(quotient, capi.op("floor_divide", a, b))
    np.testing.assert_array_equal(remainder, capi.op("remainder", a, b))


OUT_OF_RANGE = [
    ("number_of_elements", (np.array(1.0, "f4"), (-1,), False, np.int8), "axis out of range"),
    ("slice_dynamic", (X, np.array([1, 1], "i4"), (0,), (1, 3)), "number of starts"),
    ("slice_update_dynamic", (X[0], X, np.empty(0, "i4"), ()), "more dimensions"),
    ("diagonal", (X, -(2**31), 0, 1), "offset"),
    ("trace_axes", (X, 2**31 - 1, 0, 1, np.float32), "offset"),
]


@pytest.mark.parametrize(("name", "args", "message"), OUT_OF_RANGE)
def test_out_of_range(capi: CApi, name: str, args: tuple[object, ...], message: str) -> None:
    with pytest.raises(Failed, match=message):
        capi.op(name, *args)


def test_unknown_dtypes(capi: CApi) -> None:
    slot = Slot()
    assert capi.c.mlx_astype(slot.address, capi.array(X), 14, capi.stream) == 1
    assert load.take_error() == "unknown dtype"
    assert capi.c.mlx_dtype_size(99) == 0


# ---- memory
HUGE = (2**18, 2**20)  # 1 TiB of float32


@pytest.mark.skipif(mx.cuda.is_available(), reason="CUDA's managed memory is promised beyond what there is")
@pytest.mark.parametrize("call", ["zeros", "random", "sum of zeros"])
def test_a_terabyte_is_an_error(capi: CApi, call: str) -> None:
    key = np.array([0, 1], "u4")
    if call == "random":
        huge = capi.filled("mlx_random_bits", *capi.pointer(HUGE), 4, capi.array(key), capi.stream)
    else:
        huge = capi.filled("mlx_zeros", *capi.pointer(HUGE), 10, capi.stream)
    if call == "sum of zeros":
        huge = capi.node("sum", capi.node("add", huge, np.ones(1, "f4")), False)
    for _ in range(2):
        assert capi.c.mlx_array_eval(huge) == 1
        assert "1099511627776 bytes" in (load.take_error() or "")
    np.testing.assert_array_equal(capi.op("add", X, X), X + X)


# ---- worker threads
def failed(capi: CApi) -> tuple[int, int]:
    """(an intermediate, a result) of an evaluation that failed in a worker thread."""
    inverse = capi.node("linalg_inv", SINGULAR)
    total = capi.node("add", inverse, np.ones((3, 3), "f4"))
    assert capi.c.mlx_array_eval(total) == 1
    assert "Inverse" in (load.take_error() or "")
    return inverse, total


@pytest.mark.parametrize("which", ["intermediate", "result"])
def test_an_array_whose_evaluation_failed_stays_failed(capi: CApi, which: str) -> None:
    a = failed(capi)[which == "result"]
    room = Slot()
    for rc in (
        capi.c.mlx_array_eval(a),
        capi.c._mlx_array_wait(a),
        capi.c.mlx_vector_array_append_value(capi.vector([X]), a),
        capi.c.mlx_add(room.address, a, capi.array(SINGULAR), capi.stream),
        capi.c.mlx_array_tostring(room.address, a),
    ):
        assert rc == 1
    assert capi.c.mlx_array_data_float32(a) == 0
    assert "its evaluation failed: [Inverse" in (load.take_error() or "")
    assert capi.shape(a) == (3, 3)  # what is known without data still is
    capi.check(capi.c.mlx_array_free(a))
    np.testing.assert_array_equal(capi.op("add", X, X), X + X)


def test_an_asynchronous_failure_is_reported_by_who_waits(capi: CApi) -> None:
    inverse = capi.node("linalg_inv", SINGULAR)
    rc = capi.c.mlx_async_eval(capi.vector([inverse]))
    assert rc or capi.c.mlx_array_eval(inverse) == 1
    assert "Inverse" in (load.take_error() or "")
    assert capi.c.mlx_array_eval(inverse) == 1


def test_a_long_graph_fails_as_a_whole(capi: CApi) -> None:
    """Here the error arrives while the rest of the graph is still being scheduled."""
    last = first = capi.node("linalg_inv", SINGULAR)
    one = capi.array(np.ones((3, 3), "f4"))
    middle = []
    for i in range(3000):
        last = capi.node("add", last, one)
        if i % 1000 == 0:
            middle.append(last)
    for a in (last, last, first):
        assert capi.c.mlx_array_eval(a) == 1
        assert "Inverse" in (load.take_error() or "")
    for a in middle[:1]:
        assert capi.c.mlx_array_eval(a) == 1


def test_an_asynchronous_failure_that_synchronize_reports(capi: CApi) -> None:
    inverse = capi.node("linalg_inv", SINGULAR)
    codes = [capi.c.mlx_async_eval(capi.vector([inverse])), capi.c.mlx_synchronize(capi.stream)]
    assert 1 in codes
    assert capi.c.mlx_array_eval(inverse) == 1
    assert "Inverse" in (load.take_error() or "")


def test_the_wrong_thread_leaves_an_array_as_it_was(capi: CApi) -> None:
    lazy = capi.node("add", X, X)
    seen: list[tuple[int, str | None]] = []
    thread = threading.Thread(target=lambda: seen.append((capi.c.mlx_array_eval(lazy), load.take_error())))
    thread.start()
    thread.join()
    assert seen[0][0] == 1 and "Stream(cpu, " in (seen[0][1] or "")
    np.testing.assert_array_equal(capi.numpy(lazy), X + X)


def test_a_failure_leaves_others_alone(capi: CApi) -> None:
    other = capi.node("add", X, X)
    failed(capi)
    np.testing.assert_array_equal(capi.numpy(other), X + X)
    again = capi.node("linalg_inv", np.eye(3, dtype="f4"))
    np.testing.assert_array_equal(capi.numpy(again), np.eye(3))


# ---- in processes of their own
PROGRAMS = {
    "quantized_matmul of no rows": (
        "w = array(*[0] * 8, shape=(2, 4), code=3, kind='I'); s = array(1, 1, shape=(2, 1)); x = array(shape=(0, 32))",
        "mlx.mlx_quantized_matmul, x, w, s, s, True, 32 | 1 << 32, 4 | 1 << 32, b'affine', S",
    ),
    "sort along no elements": ("x = array(shape=(2, 0))", "mlx.mlx_sort_axis, x, 1, S"),
    "cumsum along no elements": ("x = array(shape=(2, 0))", "mlx.mlx_cumsum_axis, x, 1, False, True, 0, S"),
    "remainder by zero": (
        "x = array(1, 2, code=7, kind='i'); z = array(0, 0, code=7, kind='i')",
        "mlx.mlx_remainder, x, z, S",
    ),
    "floor_divide by zero": (
        "x = array(1, 2, code=7, kind='i'); z = array(0, 0, code=7, kind='i')",
        "mlx.mlx_floor_divide, x, z, S",
    ),
    "integer power with a negative exponent": (
        "x = array(2, 3, code=7, kind='i'); z = array(-1, -2, code=7, kind='i')",
        "mlx.mlx_power, x, z, S",
    ),
    "take along an axis that is not there": (
        "x = array(1, 2); i = array(0, code=7, kind='i')",
        "mlx.mlx_take_along_axis, x, i, -9, S",
    ),
    "as_strided outside": ("x = array(1, 2)", "mlx.mlx_as_strided, x, *ints(9), struct.pack('q', 1 << 40), 1, 0, S"),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_nothing_here_kills_a_process(run_python: RunPython, what: str) -> None:
    before, call = PROGRAMS[what]
    done = run_python(f"{START}\n{before}\nrc, a = call({call})\ntell(rc or mlx.mlx_array_eval(a))\nprint('alive')")
    assert done.returncode == 0, done.stderr
    assert "alive" in done.stdout


def test_many_failures_block_nothing(run_python: RunPython) -> None:
    """MLX alone waits for ever at the next evaluation after a hundred of them."""
    code = f"""{START}
Z = array(*[0] * 9, shape=(3, 3))
for how in (mlx.mlx_eval, mlx.mlx_async_eval):
    for _ in range(250):
        inverse = call(mlx.mlx_linalg_inv, Z, S)[1]
        rc = how(mlx.mlx_vector_array_new_value(inverse))
        assert rc or mlx.mlx_array_eval(inverse) == 1
tell(mlx.mlx_array_eval(call(mlx.mlx_add, Z, Z, S)[1]))
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 ")


def test_without_a_handler_an_error_is_printed_and_ends_the_program(run_python: RunPython) -> None:
    code = f"{START}\nmlx.mlx_set_error_handler(None, 0, None)\nmlx.mlx_load(cell, b'/%s%n', S)\nprint('unreachable')"
    done = run_python(code)
    assert done.returncode == 255
    assert done.stdout.startswith("MLX error: ") and "/%s%n" in done.stdout
    assert "unreachable" not in done.stdout
