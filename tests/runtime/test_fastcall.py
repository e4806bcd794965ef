"""Fast calls: both ways (native, ctypes) give the same arrays, errors and streams; nothing leaks."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mlxc_py import state
from mlxc_py._sys import fastcall, load, plaincall
from mlxc_py._sys import mlx as c


class Failure(Exception):
    """What the tests' on_error raises."""


def on_error(name: str) -> None:
    """Raise what MLX said."""
    raise Failure(f"{name}: {load.take_error()}")


class Way:
    """One of the two ways: a class for arrays, its calls, and the functions about streams."""

    def __init__(self, module: Any, bind: Any) -> None:
        class Array(module.Handle):
            __slots__ = ("__weakref__",)

        self.Array: Any = Array
        self.bind = bind
        self.module = module
        self.set_resolver = module.set_resolver

    def caller(self, fail: Any = on_error) -> Any:
        """The functions as attributes."""
        return fastcall.Caller(self.Array, fail)


@pytest.fixture(params=["native", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """Each way in turn, with this thread's default CPU stream."""
    if request.param == "native":
        if not fastcall.NATIVE:
            pytest.skip("no native library")
        chosen = Way(fastcall, fastcall._bind)
    else:
        chosen = Way(plaincall, plaincall.bind)
        monkeypatch.setattr(fastcall, "_bind", plaincall.bind)
        monkeypatch.setattr(fastcall, "_reader", plaincall.reader)
        monkeypatch.setattr(fastcall, "_data_reader", plaincall.data_reader)
    stream = c.mlx_default_cpu_stream_new()
    chosen.module.set_stream(stream, True)
    yield chosen
    chosen.module.set_stream(0, False)
    chosen.set_resolver(state.current_handle)
    c.mlx_stream_free(stream)


@pytest.fixture
def call(way: Way) -> Any:
    """The functions of the way under test."""
    return way.caller()


def shape_of(array: Any) -> tuple[int, ...]:
    """Shape by the C functions."""
    return tuple(c.mlx_array_dim(array.handle, i) for i in range(c.mlx_array_ndim(array.handle)))


def numpy_of(call: Any, array: Any) -> np.ndarray:
    """The values as float32."""
    dense = call.mlx_contiguous(call.mlx_astype(array, c.MLX_FLOAT32), False)
    assert c.mlx_array_eval(dense.handle) == 0
    n = c.mlx_array_size(dense.handle)
    data = ctypes.cast(c.mlx_array_data_float32(dense.handle), ctypes.POINTER(ctypes.c_float))
    return np.array(data[:n], np.float32).reshape(shape_of(dense))


def arange(call: Any, *shape: int) -> tuple[Any, np.ndarray]:
    """An array of 0, 1, 2... and its numpy twin."""
    n = int(np.prod(shape))
    array = call.mlx_reshape(call.mlx_arange(0.0, float(n), 1.0, c.MLX_FLOAT32), shape)
    return array, np.arange(n, dtype=np.float32).reshape(shape)


def test_each_kind_of_argument_arrives(call: Any) -> None:
    a, host = arange(call, 2, 3, 4)
    cases: list[tuple[Any, np.ndarray]] = [
        (call.mlx_add(a, a), host + host),
        (call.mlx_sum_axis(a, -1, True), host.sum(-1, keepdims=True)),
        (call.mlx_sum_axis(a, -1, 256), host.sum(-1, keepdims=True)),
        (call.mlx_sum_axes(a, (0, 2), False), host.sum((0, 2))),
        (call.mlx_sum_axes(a, [np.int64(0), 2], False), host.sum((0, 2))),
        (call.mlx_reshape(a, 24), host.reshape(24)),
        (call.mlx_array_new_data(host.tobytes(), host.shape, c.MLX_FLOAT32), host),
        (call.mlx_array_new_data(host.ctypes.data, [24], c.MLX_FLOAT32), host.reshape(24)),
        (call.mlx_array_new_data(host, host.shape, c.MLX_FLOAT32), host),
        (call.mlx_array_new_data(memoryview(host.tobytes()), host.shape, c.MLX_FLOAT32), host),
        (call.mlx_array_new_data(None, (0, 3), c.MLX_FLOAT32), np.zeros((0, 3))),
        (call.mlx_array_new_float(1.5), np.array(1.5)),
        (call.mlx_array_new_int(-3), np.array(-3)),
        (call.mlx_transpose_axes(a, (2, 0, 1)), host.transpose(2, 0, 1)),
        (call.mlx_slice(a, (0, 1, 3), (2, 3, -5), (1, 1, -2)), host[0:2, 1:3, 3::-2]),
        (call.mlx_concatenate_axis([a, a, a], 1), np.concatenate([host] * 3, 1)),
        (call.mlx_concatenate_axis((a,) * 200, 0), np.concatenate([host] * 200, 0)),
        (call.mlx_ones((2, 2), c.MLX_FLOAT32), np.ones((2, 2))),
        (call.mlx_nan_to_num(call.mlx_divide(a, a), 7.0, None, None), np.where(host == 0, 7, 1)),
        (call.mlx_linspace(0.0, 1.0, 5, c.MLX_FLOAT32), np.linspace(0, 1, 5)),
        (call.mlx_einsum("ijk->kj", [a]), np.einsum("ijk->kj", host)),
        (call.mlx_random_bits((0,), 4, None), np.zeros(0)),
    ]
    for result, expected in cases:
        got = numpy_of(call, result)
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected)


def test_floats_optionals_and_empty_handles_arrive(call: Any) -> None:
    x, host = arange(call, 2, 8)
    norm = host / np.sqrt((host**2).mean(-1, keepdims=True) + 0.5)
    np.testing.assert_allclose(numpy_of(call, call.mlx_fast_rms_norm(x, None, 0.5)), norm, rtol=1e-5)
    centred = host - host.mean(-1, keepdims=True)
    layer = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 0.25)
    np.testing.assert_allclose(numpy_of(call, call.mlx_fast_layer_norm(x, None, None, 0.25)), layer, rtol=1e-5)
    rows = call.mlx_reshape(x, (1, 2, 8))
    turned = numpy_of(call, call.mlx_fast_rope(rows, 8, False, 10000.0, 1.0, 3, None))
    angle = 3 + np.arange(2)[:, None] * 1.0
    angle = angle * 10000.0 ** (-np.arange(4)[None, :] / 4)
    left, right = host[:, :4], host[:, 4:]
    expected = np.concatenate(
        [left * np.cos(angle) - right * np.sin(angle), left * np.sin(angle) + right * np.cos(angle)], -1
    )
    np.testing.assert_allclose(turned[0], expected, atol=1e-4)


@pytest.mark.parametrize("most", [16, 9])
def test_a_call_with_many_arguments_arrives(call: Any, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastcall, "_MOST_WORDS", most)
    x, host = arange(call, 1, 5, 5, 2)
    w, kernel = arange(call, 3, 2, 2, 2)
    got = numpy_of(call, call.mlx_conv_general(x, w, (2, 1), (1, 0), (0, 1), (1, 1), (1, 1), 1, False))
    padded = np.pad(host, ((0, 0), (1, 0), (0, 1), (0, 0)))
    expected = np.stack(
        [
            [[(padded[0, 2 * i : 2 * i + 2, j : j + 2] * kernel[o]).sum() for o in range(3)] for j in range(5)]
            for i in range(3)
        ]
    )[None]
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments", "error", "text"),
    [
        ("mlx_add", ("a", 2.0), TypeError, "mlx_add: argument 2 must be an array"),
        ("mlx_add", ("a",), TypeError, "^mlx_add.*1 "),
        ("mlx_add", ("a", "a", None, None), TypeError, "^mlx_add.* 4 "),
        ("mlx_reshape", ("a", (5, 5)), Failure, "mlx_reshape: .*Cannot reshape array of size 24"),
        ("mlx_reshape", ("a", 24.0), TypeError, None),
        ("mlx_array_new_data", ("a", (1,), 10), TypeError, None),
        ("mlx_array_new_data", (np.zeros((4, 4))[:, 1], (4,), 10), (BufferError, ValueError), None),
        ("mlx_array_new_data", (b"", (2,), 999), Failure, "mlx_array_new_data"),
        ("mlx_reshape", ("a", (2.5,)), TypeError, None),
        ("mlx_reshape", ("a", (1 << 40,)), OverflowError, None),
        ("mlx_sum_axis", ("a", 1 << 32, False), OverflowError, "4294967296"),
        ("mlx_ones", ((2,), (1 << 32) + 10), OverflowError, None),
        ("mlx_dequantize", ("a", "a", None, 1 << 32, 4, "affine", None, None), OverflowError, None),
        ("mlx_sum_axis", ("a", "one", False), TypeError, None),
        ("mlx_concatenate_axis", (["a", 1], 0), TypeError, "argument 1 must be a sequence of arrays"),
        ("mlx_concatenate_axis", (["a", "a"], 9), Failure, "mlx_concatenate_axis: "),
        ("mlx_fast_rms_norm", ("a", None, "small"), (TypeError, ValueError), None),
        ("mlx_einsum", (b"ij", ["a"]), (TypeError, AttributeError), None),
    ],
)
def test_wrong_arguments_are_errors_that_name_them(
    call: Any, name: str, arguments: tuple[Any, ...], error: Any, text: str | None
) -> None:
    a, _ = arange(call, 2, 3, 4)

    def actual(value: Any) -> Any:
        if isinstance(value, list):
            return [actual(v) for v in value]
        return a if isinstance(value, str) and value == "a" else value

    with pytest.raises(error, match=text):
        getattr(call, name)(*map(actual, arguments))


def test_a_released_array_is_refused_by_mlx_and_not_read(call: Any, way: Way) -> None:
    a, _ = arange(call, 3)
    empty = way.Array()
    assert empty.handle == 0
    with pytest.raises(Failure, match="mlx_add"):
        call.mlx_add(a, empty)


def test_an_on_error_that_does_not_raise_still_ends_in_an_exception(way: Way) -> None:
    call = way.caller(lambda name: None)
    a, _ = arange(way.caller(), 3)
    with pytest.raises(RuntimeError, match="mlx_reshape"):
        call.mlx_reshape(a, (5,))
    assert load.take_error() is not None


def test_properties_are_read_and_released_arrays_handed_back(call: Any, way: Way) -> None:
    a, _ = arange(call, 2, 3, 4)
    seen: list[Any] = []
    shape, size, dtype = (
        fastcall.shape_reader(seen.append),
        fastcall.reader("mlx_array_size", seen.append),
        fastcall.reader("mlx_array_dtype", seen.append),
    )
    assert (shape(a), size(a), dtype(a)) == ((2, 3, 4), 24, c.MLX_FLOAT32)
    assert shape(call.mlx_array_new_float(1.0)) == ()
    assert shape(call.mlx_ones((0, 5), c.MLX_BOOL)) == (0, 5)
    empty = way.Array()
    assert (shape(empty), size(empty), seen) == (None, None, [empty, empty])
    with pytest.raises(TypeError, match="mlx_array_size takes an array"):
        size(3)


def test_data_is_read_where_it_is_ready_and_contiguous(call: Any, way: Way) -> None:
    unfit: list[Any] = []
    data = fastcall.data_reader(unfit.append)
    a, host = arange(call, 3, 4)
    turned = call.mlx_transpose(a)
    assert (data(a), unfit) == (None, [a])
    assert c.mlx_array_eval(turned.handle) == 0
    assert np.array_equal(np.ctypeslib.as_array((ctypes.c_float * 12).from_address(data(a))), host.ravel())
    empty = way.Array()
    assert (data(turned), data(empty), unfit) == (None, None, [a, turned, empty])
    with pytest.raises(TypeError, match="data takes an array"):
        data(3)


def test_a_sequence_that_makes_its_arrays_on_demand_works(call: Any) -> None:
    class Made:
        def __len__(self) -> int:
            return 100

        def __getitem__(self, i: int) -> Any:
            if i >= 100:
                raise IndexError
            return arange(call, 1, 1000)[0]

    joined = numpy_of(call, call.mlx_concatenate_axis(Made(), 0))
    np.testing.assert_array_equal(joined, np.tile(np.arange(1000), (100, 1)))


def test_unknown_and_unsuitable_functions_say_so(call: Any) -> None:
    with pytest.raises(load.SymbolError, match="mlx-c has no function mlx_nope"):
        call.mlx_nope(1)
    with pytest.raises(load.SymbolError, match=r"call mlxc_py\._sys\.mlx\.mlx_linalg_qr"):
        call.mlx_linalg_qr(1)
    with pytest.raises(AttributeError, match="nope is not one"):
        call.nope(1)
    assert (call.has("mlx_add"), call.has("mlx_nope"), call.has("mlx_linalg_qr"), call.has("mlx_array_eval")) == (
        True,
        False,
        False,
        False,
    )


def test_every_suitable_function_binds(call: Any) -> None:
    names = [n for n in c.FUNCTIONS if call.has(n)]
    assert len(names) > 300
    for name in names:
        assert callable(call.bind(name))


def test_objects_are_of_the_given_class_without_init_and_free_their_array(call: Any, way: Way) -> None:
    a, _ = arange(call, 1 << 18)
    watch = weakref.ref(a)
    assert type(a) is way.Array
    active = ctypes.c_size_t()

    def memory() -> int:
        assert c.mlx_get_active_memory(ctypes.addressof(active)) == 0
        return active.value

    gc.collect()
    assert c.mlx_array_eval(a.handle) == 0
    full = memory()
    del a
    assert watch() is None
    assert memory() <= full - (1 << 20)


def test_creating_calling_and_failing_leave_memory_flat(call: Any) -> None:
    psutil = pytest.importorskip("psutil")
    a, _ = arange(call, 4)
    process = psutil.Process()

    def work(n: int) -> None:
        for _ in range(n):
            call.mlx_reshape(call.mlx_concatenate_axis([call.mlx_add(a, a), a], 0), (2, 4))
            with pytest.raises(Failure):
                call.mlx_reshape(a, (3,))
            with pytest.raises(TypeError):
                call.mlx_concatenate_axis([a, None, a], 0)

    work(500)
    before = process.memory_info().rss
    work(3000)
    assert process.memory_info().rss - before < 3 << 20


def test_a_stream_is_resolved_once_a_thread_until_forgotten(way: Way) -> None:
    call = way.caller()
    asked: list[int] = []
    results: list[np.ndarray] = []

    def resolve() -> int:
        asked.append(threading.get_ident())
        stream: int = c.mlx_default_cpu_stream_new()
        way.module.set_stream(stream, False)
        return stream

    way.set_resolver(resolve)

    def work() -> None:
        results.extend(numpy_of(call, arange(call, 5)[0]) for _ in range(3))
        way.module.forget_streams()
        results.append(numpy_of(call, arange(call, 5)[0]))

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(asked) == 4
    arange(call, 5)
    assert len(asked) == 4  # this thread's is pinned by the fixture
    for result in results:
        np.testing.assert_array_equal(result, np.arange(5))


def test_a_call_with_more_arguments_than_native_calls_take_arrives(call: Any) -> None:
    x, host = arange(call, 1, 2, 2, 2, 1)
    w = call.mlx_ones((1, 1, 1, 1, 1), c.MLX_FLOAT32)
    got = call.mlx_conv_transpose3d(x, w, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1)
    np.testing.assert_allclose(numpy_of(call, got), host)


def test_a_resolver_s_exception_is_the_call_s(way: Way) -> None:
    call = way.caller()
    caught: list[BaseException] = []

    def resolve() -> int:
        raise Failure("no stream here")

    way.set_resolver(resolve)

    def work() -> None:
        try:
            arange(call, 3)
        except Failure as e:
            caught.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert str(caught[0]) == "no stream here"


def test_a_stream_given_as_a_handle_is_used(call: Any) -> None:
    other = c.mlx_stream_new_device(device := c.mlx_device_new_type(c.MLX_CPU, 0))
    a = call.mlx_add(call.mlx_ones((2,), c.MLX_FLOAT32, other), call.mlx_ones((2,), c.MLX_FLOAT32, other), other)
    assert c.mlx_array_eval(a.handle) == 0
    assert numpy_of(call, a).tolist() == [2, 2]
    c.mlx_stream_free(other)
    c.mlx_device_free(device)


def test_calls_from_many_threads_are_right(way: Way) -> None:
    call = way.caller()
    wrong: list[Any] = []

    def work(k: int) -> None:
        stream = c.mlx_default_cpu_stream_new()
        way.module.set_stream(stream, True)
        for _ in range(50):
            a, host = arange(call, 4, k)
            got = numpy_of(call, call.mlx_concatenate_axis([call.mlx_add(a, a), a], 1))
            if not np.array_equal(got, np.concatenate([host + host, host], 1)):
                wrong.append(got)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2, 6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_subclasses_of_subclasses_and_their_attributes_work(way: Way) -> None:
    class Named(way.Array):  # type: ignore[name-defined]
        pass

    made = fastcall.Caller(Named, on_error).mlx_ones((2,), c.MLX_FLOAT32)
    made.name = "x"
    made.me = made
    watch = weakref.ref(made)
    assert (type(made), made.name, shape_of(made)) == (Named, "x", (2,))
    del made
    gc.collect()
    assert watch() is None


def test_exit_with_live_arrays_is_silent(run_python: Any) -> None:
    for native in ("0", "1"):
        done = run_python(
            """
            from mlxc_py._sys import fastcall, mlx as c

            class Array(fastcall.Handle):
                pass

            call = fastcall.Caller(Array, print)
            fastcall.set_stream(c.mlx_default_cpu_stream_new(), True)
            kept = [call.mlx_ones((2, 2), c.MLX_FLOAT32) for _ in range(10)]
            kept[0].cycle = kept
            print(fastcall.NATIVE)
            """,
            MLXC_PY_NO_NATIVE=native,
            MLXC_PY_BLAS="0",
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{native == '0'}\n", "")
