"""Tapes against the same graph built directly: results, what is evaluated once, and how few operations are left."""

from __future__ import annotations

import ctypes
import gc
import mmap
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import cpu_indexing, tape
from mlxc_py import cpu_primitives as primitives

pytestmark = pytest.mark.skipif(not tape.supported(), reason="this libmlxc records no tapes")

Build = Callable[..., list[mx.Array]]


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    with mx.stream(mx.cpu):
        yield


def recorded(build: Build, *shapes: tuple[int, ...]) -> tape.Tape:
    opened = [tape.placeholder(shape, mx.float32) for shape in shapes]
    return tape.Tape(opened, build(*opened))


def floats(seed: int, *shape: int) -> mx.Array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def same(build: Build, *inputs: mx.Array) -> tape.Tape:
    """Check a tape of `build` on `inputs`; returns it."""
    made = recorded(build, *(x.shape for x in inputs))
    for ours, theirs in zip(made(inputs), build(*inputs), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=1e-5, atol=1e-5)
    return made


def test_replays_with_other_inputs() -> None:
    made = recorded(lambda x, b: [mx.exp(x) @ x.T + b, *mx.split(x, [1], 1), x, b], (3, 4), (3,))
    for seed in range(3):
        x, b = floats(seed, 3, 4), floats(seed + 9, 3)
        y, first, rest, same_x, same_b = made([x, b])
        np.testing.assert_allclose(np.array(y), np.array(mx.exp(x) @ x.T + b), rtol=1e-5)
        np.testing.assert_array_equal(np.array(first), np.array(x)[:, :1])
        np.testing.assert_array_equal(np.array(rest), np.array(x)[:, 1:])
        np.testing.assert_array_equal(np.array(same_x), np.array(x))
        np.testing.assert_array_equal(np.array(same_b), np.array(b))


def on_host(made: tape.Tape, *inputs: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    arrays, addresses, nanoseconds = made.run([x.ctypes.data if x.size else 0 for x in inputs])
    assert all(a.evaluated for a in arrays)
    assert [a.address for a in arrays] == addresses
    assert nanoseconds > 0
    return [np.array(a) for a in arrays]


def test_runs_from_host_memory_in_one_call() -> None:
    made = recorded(lambda x, b: [mx.maximum(mx.abs(x), b), mx.contiguous(x.T), x], (3, 4), ())
    for seed in range(3):
        x, b = np.array(floats(seed, 3, 4)), np.array(np.float32(seed / 4))
        kept = x.copy()
        y, turned, same_x = on_host(made, x, b)
        np.testing.assert_array_equal(y, np.maximum(np.abs(kept), b))
        np.testing.assert_array_equal(turned, kept.T)
        np.testing.assert_array_equal(same_x, kept)
        np.testing.assert_array_equal(x, kept)
    empty = recorded(lambda x: [mx.exp(x)], (0, 4))
    assert on_host(empty, np.zeros((0, 4), np.float32))[0].shape == (0, 4)


def test_input_memory_is_never_written() -> None:
    made = recorded(lambda x: [mx.exp(mx.negative(mx.abs(x)))], (1 << 16,))
    memory = np.ones((1 << 16) * 4 + 1, np.uint8)
    for offset in (0, 1):  # elements that do not lie at multiples of their size are copied
        x = memory[offset : offset + (1 << 18)].view(np.float32)
        kept = x.copy()
        np.testing.assert_allclose(on_host(made, x)[0], np.exp(-np.abs(kept)), rtol=1e-5)
        np.testing.assert_array_equal(x, kept)


ON_ITS_OWN_THREAD = """
import os, numpy as np
import mlxc_py as mx
from mlxc_py import tape

with mx.stream(mx.new_thread_unsafe_stream(mx.cpu)):
    x = tape.placeholder((8, 8), mx.float32)
    made = tape.Tape([x], [mx.sort(mx.exp(x @ x), -1).reshape(4, 16)])
given = np.eye(8, dtype=np.float32)
before = len(os.listdir("/proc/self/task"))
y = made.run([given.ctypes.data])[0][0]
z = made([mx.array(given)])[0]
assert z.evaluated and np.array_equal(np.array(y), np.array(z))
print(tape.on_calling_thread(), len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or mx.cuda.is_available(),
    reason="elsewhere, and with CUDA's allocator, MLX's worker threads compute",
)
def test_tapes_start_no_thread() -> None:
    done = subprocess.run([sys.executable, "-c", ON_ITS_OWN_THREAD], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "0"]), done.stderr


def filled(made: tape.Tape, results: Sequence[int], inputs: Sequence[int]) -> int:
    """What C gets from running a tape into memory."""
    function, handle = made.native_run()
    fill = ctypes.CFUNCTYPE(ctypes.c_int)(function)
    fill.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_void_p] * 3, ctypes.c_size_t]
    spent = ctypes.c_int64()
    given = (ctypes.c_void_p * (len(inputs) + 1))(*inputs)
    wanted = (ctypes.c_void_p * (len(results) + 1))(*results)
    failed: int = fill(wanted, len(results), ctypes.byref(spent), handle, given, len(inputs))
    assert failed or spent.value > 0
    return failed


def test_outputs_are_brought_to_given_memory() -> None:
    size = 1 << 14
    made = recorded(lambda x: [mx.exp(x), mx.contiguous(mx.exp(x).reshape(128, 128).T), x, mx.abs(x)], (size,))
    memory = np.zeros((5, 4 * size + 64), np.uint8)
    for offset in (0, 1, 4, 16):  # elements that do not lie at multiples of their size, too
        x = np.array(floats(offset, size))
        results = [row[offset : offset + 4 * size] for row in memory[:3]]
        memory[:] = 0
        assert filled(made, [*(row.ctypes.data for row in results), 0], [x.ctypes.data]) == 0
        got = [row.view(np.float32) for row in results]
        np.testing.assert_allclose(got[0], np.exp(x), rtol=1e-5)
        np.testing.assert_array_equal(got[1].reshape(128, 128), got[0].reshape(128, 128).T)
        np.testing.assert_array_equal(got[2], x)
        assert not memory[:, :offset].any() and not memory[:, offset + 4 * size :].any() and not memory[3:].any()
    before = mx.get_active_memory()
    for _ in range(20):
        assert filled(made, [row.ctypes.data for row in memory[:4]], [x.ctypes.data]) == 0
    assert mx.get_active_memory() == before


def test_a_failure_to_bring_outputs_is_a_status() -> None:
    made = recorded(lambda x: [mx.linalg.inv(x), mx.exp(x)], (2, 2))
    x, y = np.zeros((2, 2), np.float32), np.zeros((2, 2, 2), np.float32)
    assert filled(made, [y[0].ctypes.data, y[1].ctypes.data], [x.ctypes.data])
    assert filled(made, [y[0].ctypes.data], [x.ctypes.data])
    x[:] = [[2, 0], [0, 4]]
    assert not filled(made, [y[0].ctypes.data, y[1].ctypes.data], [x.ctypes.data])
    np.testing.assert_allclose(y[0], [[0.5, 0], [0, 0.25]])
    transposed = recorded(lambda x: [x.T], (3, 4))
    assert filled(transposed, [y.ctypes.data], [np.zeros((3, 4), np.float32).ctypes.data])


def test_inputs_at_the_start_of_a_mapping() -> None:
    """The page before is no memory of ours, so nothing may be read there."""
    page = mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, 3 * page), np.float32)
    x = memory[page // 4 : 2 * page // 4]
    x[:] = np.arange(page // 4)
    assert x.ctypes.data % page == 0
    made = recorded(lambda x: [mx.contiguous(x)], (page // 4,))
    np.testing.assert_array_equal(on_host(made, x)[0], np.arange(page // 4))
    borrowed = mx.Array.from_address(x.ctypes.data, x.shape, mx.float32, owner=memory)
    np.testing.assert_array_equal(np.array(mx.contiguous(borrowed)), np.arange(page // 4))
    assert borrowed.address != x.ctypes.data


def test_wrong_runs_are_errors() -> None:
    made = recorded(lambda x: [mx.exp(x)], (4,))
    with pytest.raises(ValueError, match="the tape has 1 inputs, 0 were given"):
        made.run([])
    with pytest.raises(mx.MLXError, match="NULL data"):
        made.run([0])
    with pytest.raises(mx.MLXError, match="output is not row-contiguous"):
        recorded(lambda x: [x.T], (3, 4)).run([np.zeros((3, 4), np.float32).ctypes.data])
    made.close()
    with pytest.raises(mx.MLXError, match="closed"):
        made.run([np.zeros(4, np.float32).ctypes.data])


def test_an_evaluation_that_fails_is_an_error_of_that_run_alone() -> None:
    made = recorded(lambda x: [mx.linalg.inv(x)], (2, 2))
    with pytest.raises(mx.MLXError):
        made.run([np.zeros((2, 2), np.float32).ctypes.data])
    x = np.array([[2, 0], [0, 4]], np.float32)
    np.testing.assert_allclose(on_host(made, x)[0], [[0.5, 0], [0, 0.25]])


RUNS_OF_ONE_STREAM = """
import threading, numpy as np
import mlxc_py as mx
from mlxc_py import tape

stream, rounds = mx.new_thread_unsafe_stream(mx.cpu), 400
with mx.stream(stream):
    x = tape.placeholder((64, 64), mx.float32)
    y = x
    for _ in range(10):
        y = mx.tanh(y @ x)
    made = tape.Tape([x], [y])
data = [np.random.default_rng(i).standard_normal((64, 64)).astype(np.float32) / 8 for i in range(4)]
right = [np.array(made.run([x.ctypes.data])[0][0]) for x in data]
wrong = []

def run(i):
    for k in range(rounds):
        if not np.array_equal(np.array(made.run([data[i].ctypes.data])[0][0]), right[i]):
            wrong.append((i, k))

def evaluate(i):
    for k in range(rounds):
        with mx.stream(stream):
            y = mx.array(data[i]) * 2 + k
        mx.eval(y)
        if not np.allclose(np.array(y), data[i] * 2 + k):
            wrong.append((i, k))

threads = [threading.Thread(target=what, args=(i,)) for i in range(4) for what in (run, evaluate)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not wrong, wrong[:5]
print("right")
"""


def test_threads_share_a_stream() -> None:
    done = subprocess.run([sys.executable, "-c", RUNS_OF_ONE_STREAM], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr[-2000:]) == (0, "right\n", "")


def test_a_chain_of_twenty_thousand_operations() -> None:
    def build(x: mx.Array) -> list[mx.Array]:
        for _ in range(20_000):
            x = mx.abs(x)
        return [x]

    made = recorded(build, (2,))
    assert len(made) == 20_000
    np.testing.assert_array_equal(np.array(made([mx.array([-1.0, 2.0])])[0]), [1, 2])


def test_wrong_use_is_an_error() -> None:
    made = recorded(lambda x: [x + 1], (3,))
    with pytest.raises(mx.MLXError, match="another shape or type"):
        made([floats(0, 4)])
    with pytest.raises(mx.MLXError, match="another shape or type"):
        made([mx.zeros(3, mx.int32)])
    with pytest.raises(mx.MLXError, match="without a primitive"):
        mx.eval(tape.placeholder((2,), mx.float32))
    with pytest.raises(mx.MLXError, match="placeholder that is not among the tape's inputs"):
        tape.Tape([], [tape.placeholder((2,), mx.float32) + 1])
    made.close()
    made.close()
    with pytest.raises(mx.ClosedError):
        made([floats(0, 3)])


def test_constants_are_computed_once_and_shared_between_tapes() -> None:
    w = floats(1, 256, 512)
    mx.eval(w)
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    packed = w.nbytes

    def build(x: mx.Array) -> list[mx.Array]:
        return [x @ mx.contiguous(w.T)]

    made = [recorded(build, (n, 512)) for n in range(1, 9)]
    assert [len(one) for one in made] == [1] * 8
    assert mx.get_active_memory() - before == packed
    x = floats(2, 3, 512)
    np.testing.assert_allclose(np.array(made[2]([x])[0]), np.array(x @ w.T), rtol=1e-4, atol=1e-4)
    del made
    gc.collect()
    mx.clear_cache()
    rounding = 8192 if mx.default_device().type == mx.gpu else 1  # CUDA's allocator gives whole pieces of that size
    assert mx.get_active_memory() - before <= -(-x.nbytes // rounding) * rounding


CONSTANTS = """
import mlxc_py as mx
from mlxc_py import tape

weights = mx.ones(4)
mx.eval(weights)

def record(step, depth):
    x = tape.placeholder((4,), mx.float32)
    y = weights
    for _ in range(depth):
        y = step(y)
    return tape.Tape([x], [x + y])

first, second = (record(lambda y: (y + y) / 2, 200) for _ in range(2))  # compared path by path: 2 ** 200 steps
deep, again = (record(mx.negative, 50_000) for _ in range(2))  # let go of one by one
print(*[made([mx.zeros(4)])[0].tolist() == [1.0] * 4 for made in (first, second, deep, again)])
del first, second, deep, again
print("freed")
"""


def test_deep_constants_with_shared_parts() -> None:
    done = subprocess.run([sys.executable, "-c", CONSTANTS], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr[-2000:]) == (0, "True True True True\nfreed\n", "")


def test_large_constants_that_are_cheap_to_compute_are_not_kept() -> None:
    before = mx.get_active_memory()
    made = recorded(lambda x: [x + mx.zeros((1024, 1024)) + mx.arange(1024)], (1024, 1))
    assert mx.get_active_memory() - before < 1 << 20
    assert made([mx.ones((1024, 1))])[0][5, 7].item() == 8


def test_transposes_between_convolutions_cancel() -> None:
    w = floats(3, 8, 3, 3, 8)
    bias, scale = floats(4, 1, 8, 1, 1), floats(5, 8, 1, 1)

    def conv(x: mx.Array) -> mx.Array:
        return mx.conv_general(x.transpose(0, 2, 3, 1), w, padding=1).transpose(0, 3, 1, 2)

    def build(x: mx.Array) -> list[mx.Array]:
        y = mx.maximum(conv(x) + bias, 0)
        y = conv(mx.pad(y, [(0, 0), (0, 0), (1, 0), (0, 1)]))[:, :, 1:, :-1]
        gate = mx.sigmoid(mx.mean(y, (2, 3), keepdims=True))
        first, second = mx.split(conv(y * gate * scale), 2, 1)
        return [conv(mx.concatenate([first, second], 1) + y)]

    made = same(build, floats(6, 1, 8, 6, 6))
    assert made.count("Convolution") == 4
    # one in, one out, and what moves the axes of the small operands
    assert made.count("Transpose") <= 4


def test_shuffled_channels_are_turned_once() -> None:
    w = floats(7, 12, 1, 1, 12)

    def conv(x: mx.Array) -> mx.Array:
        return mx.conv_general(x.transpose(0, 2, 3, 1), w).transpose(0, 3, 1, 2)

    def build(x: mx.Array) -> list[mx.Array]:
        grouped = conv(x).reshape(1, 3, 4, 6, 6).transpose(0, 2, 1, 3, 4)
        return [conv(grouped.reshape(1, 12, 6, 6)).transpose(0, 2, 3, 1)]

    made = same(build, floats(8, 1, 12, 6, 6))
    assert made.count("Transpose") == 2  # of the input, and the shuffle


def test_images_are_resized_as_they_lie() -> None:
    places, weights = mx.array([[0, 1], [2, 5], [5, 3]], mx.int32), floats(3, 3, 2)

    def build(x: mx.Array) -> list[mx.Array]:
        y = (x * 2).transpose(0, 3, 1, 2)
        for axis in (2, 3):
            y = cpu_indexing.take_sums(y, places, weights, axis)
        return [(y + 1).transpose(0, 2, 3, 1)]

    with mx.stream(mx.cpu):
        assert same(build, floats(8, 2, 6, 7, 5)).count("Transpose") == 0


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 1, 0, 2), (1, 0, 2, 3), (2, 3, 0, 1)])
@pytest.mark.parametrize("given", [(2, 3, 4, 6), (1, 6, 1, 4), (4, 1, 1, 3), (1, 1, 1, 1)])
def test_reshapes_of_transposed_arrays(order: tuple[int, ...], given: tuple[int, ...]) -> None:
    moved = tuple(given[axis] for axis in order)
    size = int(np.prod(given))
    shapes = [(size,), (1, *moved), (moved[0] * moved[1], *moved[2:]), (*moved[:2], moved[2] * moved[3], 1)]
    shapes += [(moved[0], 1, -1), (*moved[:3], 1, moved[3]), (size, 1, 1), moved[::-1]]

    def build(x: mx.Array) -> list[mx.Array]:
        turned = (x * 2).transpose(order)
        results = [turned.reshape(shape) + 1 for shape in shapes]
        return [*results, *(y.transpose(tuple(range(y.ndim))[::-1]) for y in results)]

    same(build, floats(9, *given))


def test_a_bias_is_turned_once_however_large_the_image() -> None:
    bias = mx.arange(8, dtype=mx.float32).reshape(1, 8, 1, 1)

    def biased(x: mx.Array) -> list[mx.Array]:
        inside = x.transpose(0, 2, 3, 1) * 2
        return [(inside.transpose(0, 3, 1, 2) + bias).transpose(0, 2, 3, 1)]

    x = np.random.default_rng(3).standard_normal((16, 8, 96, 96)).astype(np.float32)
    opened = tape.placeholder(x.shape, mx.float32)
    made = tape.Tape([opened], biased(opened))
    assert made.count("Transpose") == 1  # of the input
    np.testing.assert_array_equal(np.array(made([mx.array(x)])[0]), np.array(biased(mx.array(x))[0]))


def test_arithmetic_becomes_one_operation() -> None:
    row, column = floats(7, 40), floats(8, 30, 1)

    def build(x: mx.Array, y: mx.Array) -> list[mx.Array]:
        z = mx.maximum((x * row + y) / 3, -1) - column
        return [primitives.silu(z) * z + mx.minimum(y, 0.5)]

    made = same(build, floats(9, 2, 30, 40), floats(10, 2, 30, 40))
    assert (len(made), made.count("CpuFused")) == (1, 1)


def test_a_value_that_others_read_stays() -> None:
    def build(x: mx.Array) -> list[mx.Array]:
        y = x * 2 + 1
        return [y - x, mx.sum(y), y * y]

    assert same(build, floats(11, 5, 7)).count("CpuFused") == 3


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (3, 0), (1, 1), (2, 1, 3), (3, 2000), (2000, 3), (7, 1030)])
def test_arithmetic_on_any_shape(shape: tuple[int, ...]) -> None:
    b = floats(12, *shape[-1:])
    turned = floats(13, *shape[::-1])

    def build(x: mx.Array, y: mx.Array) -> list[mx.Array]:
        return [(x + b) * 2 - y.T, x - y.T, mx.maximum(b * 2 + 1, x)]

    same(build, floats(14, *shape), turned)


POINT: dict[str, Any] = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}


@pytest.mark.skipif(primitives.isa() in (None, "baseline"), reason="convolutions are MLX's")
@pytest.mark.parametrize("channels", [1, 3, 40, 1100])
def test_arithmetic_after_a_convolution_becomes_part_of_it(channels: int) -> None:
    w, bias, other = floats(15, channels, 1, 1, 3), floats(16, channels), floats(17, channels, 1, 1, 3)

    def build(x: mx.Array, residual: mx.Array) -> list[mx.Array]:
        y, z = primitives.convolution(x, w, bias, **POINT), primitives.convolution(x, other, **POINT)
        return [mx.maximum(primitives.silu(y) * y * bias + residual * 2 + z, 0)]

    turned = floats(18, 2, channels, 9, 10).transpose(0, 2, 3, 1)
    made = same(build, floats(19, 2, 9, 10, 3), turned)
    assert (made.count("CpuConvolution"), made.count("CpuFused")) == (2, 0)


@pytest.mark.skipif(primitives.isa() in (None, "baseline"), reason="convolutions are MLX's")
def test_what_does_not_lie_like_a_convolution_stays_beside_it() -> None:
    w = floats(20, 8, 1, 1, 3)

    def build(x: mx.Array, column: mx.Array, large: mx.Array) -> list[mx.Array]:
        rows = primitives.convolution(x, w, **POINT) * column  # another operand, for each row of pixels
        larger = primitives.convolution(x, w, **POINT) * 2 + large  # a result of another shape
        read = primitives.convolution(x, w, **POINT)  # by others, too
        return [rows, larger, read * 2, mx.sum(read)]

    made = same(build, floats(21, 1, 4, 5, 3), floats(22, 4, 1, 1), floats(23, 2, 4, 5, 8))
    assert made.count("CpuConvolution") == 3


@pytest.mark.skipif(primitives.isa() in (None, "baseline"), reason="convolutions are MLX's")
@pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
def test_arithmetic_after_products(lead: tuple[int, ...]) -> None:
    b, bias = floats(24, 12, 20), floats(25, 20)
    levels = (b * 40).astype(mx.int8)

    def build(a: mx.Array) -> list[mx.Array]:
        bytes_, scale, zero = primitives.dynamic_quantize(a)
        total = primitives.integer_matmul(bytes_, primitives.pack_byte_matrix(levels), zero).astype(mx.float32)
        return [mx.maximum(total * (scale * 0.025) + bias, 0), primitives.matmul(a, b) * 3 + bias]

    same(build, floats(26, *lead, 12))


@pytest.mark.parametrize("dtype", [mx.int8, mx.uint8])
@pytest.mark.parametrize("zero", [0, 7, 120])
def test_bytes_that_are_floats_again_become_arithmetic(dtype: mx.Dtype, zero: int) -> None:
    scale, offset = mx.array(0.03125), mx.array([zero], dtype)

    def build(x: mx.Array) -> list[mx.Array]:
        levels = primitives.quantize(x + 1, scale, offset)
        other = primitives.quantize(x * 2, scale, offset)
        again = primitives.dequantize(other, scale * 2, offset)  # another scale: not the same floats
        return [primitives.dequantize(levels, scale, offset) * 3, again, other]

    special = mx.array([np.inf, -np.inf, np.nan, 1e30, -1e30, 0.0, -0.0])
    x = mx.concatenate([special, floats(27, 1000) * 5, mx.arange(-600, 600) / 64])
    opened = tape.placeholder(x.shape, x.dtype)
    made = tape.Tape([opened], build(opened))
    for ours, theirs in zip(made([x]), build(x), strict=True):
        np.testing.assert_array_equal(np.array(ours), np.array(theirs))
    if primitives.isa() is not None:
        assert (made.count("CpuQuantize"), made.count("CpuDequantize")) == (1, 1)


def test_not_a_number_stays() -> None:
    x = mx.array([np.nan, 1.0, -np.inf, np.inf, -0.0])
    same(lambda a: [mx.maximum(a, 0) + 1, mx.minimum(0 * a + 1, a), mx.maximum(0.5 * a, a) * 2], x)


def test_threads_replay_one_tape() -> None:
    stream = mx.new_thread_unsafe_stream(mx.cpu)
    lock = threading.Lock()
    with mx.stream(stream):
        made = recorded(lambda x: [mx.exp(x) @ x.T * 2 + 1], (8, 8))
    feeds = [floats(seed, 8, 8) for seed in range(4)]
    right = [np.array(mx.exp(x) @ x.T * 2 + 1) for x in feeds]
    wrong: list[int] = []

    def work(which: int) -> None:
        for _ in range(50):
            (y,) = made([feeds[which]])
            with lock:
                mx.eval(y)
            if not np.allclose(np.array(y), right[which], rtol=1e-4):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- random graphs
UNARY = (mx.abs, mx.negative, primitives.sigmoid, primitives.silu, lambda x: mx.maximum(x, 0))
BINARY = (
    mx.add,
    mx.maximum,
    primitives.add,
    primitives.multiply,
    primitives.subtract,
    lambda a, b: mx.where(a > b, a, b),
)
LARGEST = 4000
KINDS = ("turn", "turn", "unary", "binary", "reduce", "join", "cut", "pad", "split", "gate", "flat", "more")


def grown(rng: random.Random, values: list[mx.Array]) -> list[mx.Array]:
    """One more operation on the values; none where it does not fit."""
    x = rng.choice(values)
    rank = x.ndim
    axis = rng.randrange(rank)
    alike = [y for y in values if y.shape == x.shape]
    kind = rng.choice(
        ("turn", "turn", "unary", "binary", "reduce", "join", "cut", "pad", "split", "gate", "flat", "more")
    )
    if kind == "turn":
        return [x.transpose(rng.sample(range(rank), rank))]
    if kind == "unary":
        return [rng.choice(UNARY)(x)]
    if kind == "binary":
        return [rng.choice(BINARY)(x, rng.choice(alike))]
    if kind == "reduce":
        return [rng.choice((mx.sum, mx.max, mx.mean))(x, axis, keepdims=rng.random() < 0.8 or rank < 3)]
    if kind == "join" and x.size < LARGEST:
        return [mx.concatenate([x, rng.choice(alike)], axis)]
    if kind == "cut":
        step = rng.choice((1, 2, -1))
        return [x[(slice(None),) * axis + (slice(None, None, step),)]]
    if kind == "pad" and x.size < LARGEST:
        return [mx.pad(x, [(rng.randrange(2), rng.randrange(2)) for _ in range(rank)], constant_values=1.5)]
    if kind == "split" and x.shape[axis] > 1:
        return list(mx.split(x, [x.shape[axis] // 2], axis))
    if kind == "gate":
        return [rng.choice((primitives.multiply, primitives.add, mx.subtract))(x, mx.mean(x, axis, keepdims=True))]
    if kind == "flat" and rank > 2:
        return [x.reshape([x.shape[0], -1])]
    if kind == "more" and rank < 5:
        return [mx.expand_dims(x, axis)]
    return []


def random_graph(seed: int) -> Build:
    def build(*inputs: mx.Array) -> list[mx.Array]:
        rng = random.Random(seed)
        values: list[mx.Array] = list(inputs)
        for _ in range(rng.randint(3, 14)):
            values += grown(rng, values)
        return [*rng.choices(values, k=3), values[-1]]

    return build


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_random_graphs(first: int) -> None:
    for seed in range(first, first + 100):
        rng = random.Random(seed)
        shape: Sequence[int] = rng.choices(range(1, 6), k=rng.choice((3, 4)))
        same(random_graph(seed), floats(seed, *shape), floats(seed + 1, *shape))


def test_equal_operations_are_one() -> None:
    x = tape.placeholder((4, 6), mx.float32)

    def turned(angle: float) -> mx.Array:
        rows = mx.take(x, mx.array([0, 3]), 0)  # a constant of its own, equal to the others
        return mx.matmul(rows, rows.swapaxes(0, 1)) + mx.array(angle)

    recorded = tape.Tape([x], [turned(1.0), turned(1.0), turned(2.0)])
    assert recorded.count("Matmul") + recorded.count("CpuMatmul") == 1
    value = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    first, second, third = (np.array(a) for a in recorded([mx.array(value)]))
    wanted = value[[0, 3]] @ value[[0, 3]].T
    np.testing.assert_allclose(first, wanted + 1, rtol=1e-5)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(third, wanted + 2, rtol=1e-5)


# ------------------------------------------------------------ evaluating a graph on the calling thread
def test_evaluate_is_eval() -> None:
    with mx.stream(mx.cpu):
        x = mx.array(np.random.default_rng(0).standard_normal((6, 6), np.float32))
        mx.eval(x)
        q, r = mx.linalg.qr(x)
        parts = mx.split(mx.exp(x), 3, 1)
        chain = x
        for _ in range(20_000):
            chain = chain + 1
        sums = [part.sum() for part in parts]
        tape.evaluate([r, *sums, chain, parts[1], x, r])
        assert all(array.evaluated for array in (q, r, *sums, chain, *parts))
        tape.evaluate([])
    content = np.array(x)
    np.testing.assert_allclose(np.array(q) @ np.array(r), content, atol=1e-5)
    np.testing.assert_allclose(np.array(parts[1]), np.exp(content)[:, 2:4], rtol=1e-5)
    np.testing.assert_allclose(sum(np.array(s) for s in sums), np.exp(content).sum(), rtol=1e-5)
    np.testing.assert_allclose(np.array(chain), content + 20_000, rtol=1e-5)


def test_evaluate_waits_for_what_another_stream_computes() -> None:
    with mx.stream(mx.new_thread_unsafe_stream(mx.cpu)):
        x = mx.ones((300, 300))
        for _ in range(30):
            x = mx.sort(x @ x / 300, -1)
        mx.async_eval(x)
    with mx.stream(mx.cpu):
        y = x.sum()
        tape.evaluate([y])
    assert y.item() == 300 * 300


def test_evaluate_fails_as_eval_does_and_can_be_repeated() -> None:
    with mx.stream(mx.cpu):
        singular = mx.linalg.inv(mx.zeros((3, 3)))
        for _ in range(150):
            with pytest.raises(mx.MLXError):
                tape.evaluate([singular])
        with pytest.raises(mx.MLXError):
            tape.evaluate([tape.placeholder((2,), mx.float32) + 1])
        fine = mx.linalg.inv(mx.eye(3)) + 1
        tape.evaluate([fine])
    np.testing.assert_array_equal(np.array(fine), np.eye(3) + 1)
