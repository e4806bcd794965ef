"""Arrays filled through their own memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import mlxc_py as mx


def test_bytes_are_the_arrays_memory() -> None:
    array, memory = mx.uninitialized((3, 5), mx.float32)
    want = np.arange(15, dtype=np.float32)
    memory[:] = want.view(np.uint8)
    assert memory.ctypes.data == array.address
    np.testing.assert_array_equal(np.array(array), want.reshape(3, 5))


def test_view_keeps_the_array() -> None:
    array, memory = mx.uninitialized((1 << 16,), mx.uint8)
    memory[:] = 7
    del array
    gc.collect()
    assert memory.min() == memory.max() == 7


@pytest.mark.parametrize("shape", [(), (0,), (0, 3)])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    array, memory = mx.uninitialized(shape, mx.int16)
    assert array.shape == shape
    assert memory.nbytes == array.nbytes


@pytest.mark.skipif(mx.cuda.is_available(), reason="CUDA's managed memory is promised beyond what there is")
def test_too_large_is_an_error() -> None:
    with pytest.raises(MemoryError, match="cannot allocate"):
        mx.uninitialized((1 << 30, 1 << 12), mx.uint8)
