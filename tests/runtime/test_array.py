"""Array: construction, attributes, conversions to Python, ownership, copies, text."""

from __future__ import annotations

import array as std_array
import copy
import gc
import pickle
import threading
import weakref
from typing import Any

import mlx.core as reference
import numpy as np
import psutil
import pytest

import mlxc_py as mx


@pytest.mark.parametrize(
    "value",
    [True, 3, -(2**40), 1.5, 2 + 1j, [], [1, 2], [[1.5, 2], [3, 4]], [True, 2], [1, 2.5], ((1, 2), (3, 4)), [2**40]],
    ids=str,
)
def test_dtypes_of_python_values(value: Any) -> None:
    ours, theirs = mx.array(value), reference.array(value)
    assert ours.dtype.name == str(theirs.dtype).rpartition(".")[2].rstrip("_")
    assert ours.shape == theirs.shape
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("dtype", [d for d in mx.DTYPES if d is not mx.bfloat16], ids=repr)
def test_numpy_round_trip(dtype: mx.Dtype) -> None:
    host = np.arange(-3, 3).astype(dtype.numpy).reshape(2, 3)
    for source in (host, host.T, host[::-1, ::2], np.asfortranarray(host)):
        a = mx.array(source, dtype)
        assert (a.dtype, a.shape, a.itemsize, a.nbytes) == (dtype, source.shape, dtype.size, source.nbytes)
        back = np.array(a)
        assert back.dtype == dtype.numpy
        np.testing.assert_array_equal(back, source)


def test_numpy_defaults_follow_mlx_core() -> None:
    assert mx.array(np.zeros(2)).dtype is mx.float32
    assert mx.array(np.zeros(2), mx.float64).dtype is mx.float64
    assert mx.array(np.zeros(2, np.int64)).dtype is mx.int64
    assert mx.array(np.zeros(2, ">i4")).dtype is mx.int32
    assert mx.array(np.float32(2)).dtype is mx.float32
    assert mx.dtype_of(np.dtype("float16")) is mx.float16
    with pytest.raises(TypeError, match="MLX has no dtype for <U4"):
        mx.array(np.array(["text"]))
    with pytest.raises(TypeError, match="cannot make an array of object"):
        mx.array(object())
    with pytest.raises(ValueError, match="different lengths"):
        mx.array([[1, 2], [3]])
    with pytest.raises(TypeError, match="must hold numbers"):
        mx.array(["a"])


def test_other_sources() -> None:
    assert mx.array(std_array.array("f", [1, 2])).tolist() == [1.0, 2.0]
    assert mx.array(b"\x01\x02").dtype is mx.uint8
    assert mx.array(memoryview(np.arange(6).reshape(2, 3))).shape == (2, 3)
    assert mx.array([mx.array([1, 2]), mx.array([3, 4])]).tolist() == [[1, 2], [3, 4]]
    assert mx.array(mx.array([1, 2]), mx.float32).dtype is mx.float32
    assert mx.asarray([1, 2]).tolist() == [1, 2]
    a = mx.array([1])
    assert mx.asarray(a) is a
    assert mx.asarray(a, copy=True) is not a


def test_item_converts_by_dtype() -> None:
    for dtype in mx.DTYPES:
        value = mx.array([1], dtype).item()
        assert value == 1
        assert type(value) is {"b": bool, "i": int, "u": int, "c": complex}.get(dtype.numpy.kind, float)
    assert mx.array([[2.5]]).item() == 2.5
    with pytest.raises(ValueError, match=r"one element .* shape \(2,\)"):
        mx.array([1, 2]).item()
    a = mx.array(3)
    assert (int(a), float(a), complex(a), bool(a), [0, 1, 2, 3][a], f"{a:03d}") == (3, 3.0, 3 + 0j, True, 3, "003")
    with pytest.raises(TypeError, match="only an integer array"):
        [0][mx.array(0.0)]
    assert bytes(mx.array([1, 2], mx.uint8)) == b"\x01\x02"


def test_text() -> None:
    for value in ([[1.5, 2], [3, 4]], 1, [True, False], [], [[[1], [2]], [[3], [4]]], 0.5, True, 1 + 2j):
        assert repr(mx.array(value)) == repr(reference.array(value))
        assert f"{mx.array(value)}" == f"{reference.array(value)}"
    with pytest.raises(TypeError, match="is for scalars"):
        f"{mx.array([1, 2]):.2f}"
    assert str(mx.float32) == "mlxc_py.float32"
    with mx.printoptions(precision=3):
        assert repr(mx.array(1.23456)) == "array(1.23, dtype=float32)"
    assert mx.get_printoptions().precision == 6


def test_copies_and_pickles() -> None:
    a = mx.array(np.arange(6, dtype=np.float32).reshape(2, 3))
    t = mx.transpose(a)
    for other in (copy.copy(t), copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert other is not t
        np.testing.assert_array_equal(np.array(other), np.array(t))
    b = mx.array([1.5], mx.bfloat16)
    assert pickle.loads(pickle.dumps(b)).tolist() == [1.5]
    assert pickle.loads(pickle.dumps(mx.bool_)) is mx.bool_
    assert pickle.loads(pickle.dumps(mx.array(np.zeros((0, 2))))).shape == (0, 2)


def test_hash_is_by_identity() -> None:
    a, b = mx.array([1]), mx.array([1])
    assert len({a: 1, b: 2}) == 2


def test_use_after_close_is_an_error() -> None:
    a, b = mx.array([1.0, 2.0]), mx.array([1.0])
    a.close()
    a.close()
    assert a.handle == 0
    assert repr(a) == "array(<closed>)"
    uses: list[Any] = [
        lambda: a + b,
        lambda: b + a,
        lambda: a.shape,
        lambda: a.dtype,
        lambda: a.ndim,
        lambda: a.size,
        lambda: a.nbytes,
        lambda: a.eval(),
        lambda: mx.eval(a),
        lambda: a[0],
        lambda: np.array(a),
        lambda: a.item(),
        lambda: a.address,
        lambda: mx.concatenate([b, a]),
        lambda: mx.fast.layer_norm(b, a, None, 1e-5),
        lambda: mx.clip(b, a, None),
        lambda: mx.split(a, 2),
        lambda: mx.array(a),
        lambda: a.__dlpack__(),
        lambda: copy.copy(a),
    ]
    for i, use in enumerate(uses):
        with pytest.raises(mx.MLXError):
            pytest.fail(f"use {i} gave {use()}")


def test_objects_that_failed_to_be_made_are_harmless() -> None:
    class Strange:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            mx.array(Strange())
    half_made = mx.Array.__new__(mx.Array)
    assert half_made.handle == 0
    del half_made
    gc.collect()


def test_arrays_are_released() -> None:
    before = mx.get_active_memory()
    a = mx.ones((1000, 1000))
    a.eval()
    alive = weakref.ref(a)
    assert mx.get_active_memory() - before >= 4_000_000
    mx.synchronize()  # a GPU's stream holds what it works on
    del a
    assert alive() is None
    assert mx.get_active_memory() - before < 100_000


def test_arrays_may_die_on_another_thread() -> None:
    arrays = [mx.array(np.ones(1000, np.float32)) for _ in range(50)]
    mx.eval(arrays)
    before = mx.get_active_memory()
    thread = threading.Thread(target=arrays.clear)
    thread.start()
    thread.join()
    assert mx.get_active_memory() <= before - 50 * 4000


def grows(action: Any, rounds: int) -> int:
    """Bytes of resident memory that repeated calls add, after a warm-up."""
    process = psutil.Process()
    for _ in range(rounds // 10):
        action()
    gc.collect()
    before = process.memory_info().rss
    for _ in range(rounds):
        action()
    gc.collect()
    return process.memory_info().rss - before


def failing() -> None:
    """A call that MLX refuses."""
    with pytest.raises(mx.MLXError):
        mx.reshape(mx.ones((2, 3)), (4, 4))


ACTIONS = {
    "create": (lambda: mx.array(1.0), 100_000),
    "op": (lambda: ONE + ONE, 100_000),
    "numpy": (lambda: np.array(mx.array(HOST)), 10_000),
    "index": (lambda: ROWS[1:, 0], 10_000),
    "split": (lambda: mx.split(ROWS, 2), 10_000),
    "fail": (failing, 5_000),
    "closure": (lambda: mx.Closure(lambda xs: xs)(ONE), 5_000),
    "compile": (lambda: mx.compile(lambda x: x + 1)(ONE), 500),
    "grad": (lambda: mx.grad(lambda x: x * x)(ONE), 1_000),
    "dlpack": (lambda: ROWS.__dlpack__(), 10_000),
    "stream": (lambda: mx.default_stream(mx.cpu), 10_000),
}
ONE = mx.array(1.0)
ROWS = mx.array(np.ones((4, 4), np.float32))
HOST = np.ones(16, np.float32)


@pytest.mark.parametrize("name", ACTIONS)
def test_memory_stays_flat(name: str) -> None:
    action, rounds = ACTIONS[name]
    assert grows(action, rounds) < 2_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIONS)
def test_memory_stays_flat_for_long(name: str) -> None:
    action, rounds = ACTIONS[name]
    assert grows(action, rounds * 10) < 4_000_000
