"""Copies to and from a CUDA device's own memory; elsewhere there is none, and the functions say so."""

from __future__ import annotations

import gc
import re
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import device_memory

cuda = pytest.mark.skipif(not device_memory.supported(), reason="MLX has no CUDA device here")


@pytest.mark.skipif(device_memory.supported(), reason="this MLX has a CUDA device")
def test_without_cuda_it_says_so() -> None:
    x = np.ones(4, np.float32)
    with pytest.raises(mx.UnsupportedError, match="no CUDA device"):
        device_memory.copy_to_device(x.ctypes.data, x.shape, mx.float32)
    with pytest.raises(mx.UnsupportedError, match="no CUDA device"):
        device_memory.copy_to(mx.array(x), x.ctypes.data)


def test_mlx_still_describes_cuda_buffers_as_ours() -> None:
    """native/mlxc repeats the struct, because MLX's header of it needs CUDA's toolkit."""
    spec = find_spec("mlx")
    assert spec is not None and spec.submodule_search_locations
    header = Path(next(iter(spec.submodule_search_locations)), "include/mlx/backend/cuda/allocator.h")
    if not header.is_file():
        pytest.skip(f"this mlx wheel has no {header}")
    (members,) = re.findall(r"struct CudaBuffer \{(.*?)\};", header.read_text(), re.S)
    assert re.findall(r"^\s*([\w*]+) (\w+);", members, re.M) == [
        ("void*", "data"),
        ("size_t", "size"),
        ("int", "device"),
    ]


@cuda
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (1000,), (257, 1031), (2221, 5003), (0, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_])
def test_bytes_arrive_and_come_back(shape: tuple[int, ...], dtype: type) -> None:
    x: np.ndarray[Any, Any] = np.ascontiguousarray(
        (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7).astype(dtype)
    )
    a = device_memory.copy_to_device(x.ctypes.data, shape, mx.dtype_of(x.dtype))
    y = np.empty_like(x)
    device_memory.copy_to(a, y.ctypes.data)
    np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(np.array(a), x)  # and where the host reads it itself
    np.testing.assert_array_equal(np.array(mx.stack([a, a]))[1], x)


@cuda
def test_a_result_is_read_where_it_lies() -> None:
    x = np.arange(1 << 16, dtype=np.float32)
    a = device_memory.copy_to_device(x.ctypes.data, x.shape, mx.float32)
    part = mx.contiguous((a * 2)[1000:3000])
    y = np.empty(2000, np.float32)
    with pytest.raises(mx.MLXError, match="evaluate"):
        device_memory.copy_to(part, y.ctypes.data)
    mx.eval(part)
    device_memory.copy_to(part, y.ctypes.data)
    np.testing.assert_array_equal(y, 2 * x[1000:3000])
    turned = mx.eval(b := a.reshape(256, 256).T) or b
    with pytest.raises(mx.MLXError, match="row-contiguous"):
        device_memory.copy_to(turned, y.ctypes.data)


@cuda
def test_buffers_are_reused_only_when_free() -> None:
    x = np.arange(1 << 20, dtype=np.int32) % 100
    wrong: list[int] = []

    def work(seed: int) -> None:
        with mx.stream(mx.new_thread_unsafe_stream(mx.gpu)):
            for i in range(40):
                given = x + (seed * 100 + i)
                total = device_memory.copy_to_device(given.ctypes.data, given.shape, mx.int32).sum()
                if total.item() != given.sum():
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert wrong == []


@cuda
def test_a_donated_or_moved_buffer_is_released_once() -> None:
    x = np.ones(1 << 18, np.float32)
    for _ in range(20):
        a = device_memory.copy_to_device(x.ctypes.data, x.shape, mx.float32)
        assert np.array(a)[5] == 1  # moves it to managed memory
        b = device_memory.copy_to_device(x.ctypes.data, x.shape, mx.float32)
        c = b + 1
        del b
        mx.eval(c)  # may take b's buffer over
        assert c[7].item() == 2
