"""numpy, the buffer protocol, DLPack, mlx.core and torch, both ways; memory wrapped in place or copied."""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import mmap
import sys
import weakref
from typing import Any

import ml_dtypes
import mlx.core as reference
import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import dlpack

HOST = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def test_asarray_is_a_view_and_array_a_copy() -> None:
    a = mx.array(HOST)
    view = np.asarray(a)
    assert view.__array_interface__["data"][0] == a.address
    assert not view.flags.writeable
    copied = np.array(a)
    assert copied.flags.writeable
    assert copied.__array_interface__["data"][0] != a.address
    address = a.address
    del a
    gc.collect()
    np.testing.assert_array_equal(view, HOST)  # the view keeps the memory
    assert view.__array_interface__["data"][0] == address


def test_array_protocol_arguments() -> None:
    a = mx.array(HOST)
    assert np.asarray(a, dtype=np.int64).dtype == np.int64
    assert a.__array__(copy=True).flags.writeable
    with pytest.raises(ValueError, match="without a copy"):
        a.__array__(np.float64, copy=False)
    t = mx.transpose(a)
    t.eval()
    with pytest.raises(ValueError, match="not row-contiguous"):
        t.__array__(copy=False)
    np.testing.assert_array_equal(np.asarray(t), HOST.T)


def test_lazy_and_strided_arrays_are_copied_out_right() -> None:
    a = mx.array(HOST)
    for ours, expected in (
        (mx.transpose(a, (2, 0, 1)) + 1, HOST.transpose(2, 0, 1) + 1),
        (a[:, ::2, ::-1], HOST[:, ::2, ::-1]),
        (mx.broadcast_to(a[0], (5, 3, 4)), np.broadcast_to(HOST[0], (5, 3, 4))),
        (a[..., 1], HOST[..., 1]),
    ):
        np.testing.assert_array_equal(np.array(ours), expected)
        assert ours.tolist() == expected.tolist()


def test_address_tells_why_not() -> None:
    a = mx.array(HOST)
    lazy = a + 1
    with pytest.raises(mx.MLXError, match="not evaluated"):
        lazy.address  # noqa: B018
    turned = mx.transpose(a)
    turned.eval()
    with pytest.raises(mx.MLXError, match="not row-contiguous"):
        turned.address  # noqa: B018
    lazy.eval()
    assert np.frombuffer(ctypes.string_at(lazy.address, lazy.nbytes), np.float32)[5] == 6.0
    assert turned.strides == (1, 4, 12)


def test_from_address_copies_or_keeps_its_owner() -> None:
    pages = np.ones(1 << 14, np.float32)  # whole pages, though perhaps not aligned
    a = mx.Array.from_address(pages.ctypes.data, (1 << 14,), mx.float32, owner=pages)
    alive = weakref.ref(pages)
    total = float(mx.sum(a))
    del pages
    gc.collect()
    assert total == float(mx.sum(a)) == 1 << 14
    del a
    mx.synchronize()
    importlib.import_module("mlxc_py._sys.support").drain()
    gc.collect()
    assert alive() is None
    assert mx.Array.from_address(0, (0, 3), mx.int8).shape == (0, 3)
    with pytest.raises(ValueError, match="NULL"):
        mx.Array.from_address(0, (3,), mx.int8)
    with pytest.raises(ValueError, match="negative"):
        mx.Array.from_address(HOST.ctypes.data, (-1,), mx.int8)


def test_from_address_where_a_mapping_begins() -> None:
    pages = mmap.mmap(-1, 1 << 16)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert protect(start, mmap.PAGESIZE, 0) == 0  # whoever reads before the data ends the process
    try:
        a = mx.Array.from_address(start + mmap.PAGESIZE, (4096,), mx.float32, owner=pages)
        assert np.array(mx.contiguous(a)).tolist() == [0] * 4096
    finally:
        protect(start, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 lets no Python class export a buffer")
def test_buffer_protocol() -> None:
    view = memoryview(mx.array(HOST))
    assert (view.shape, view.format, view.readonly) == ((2, 3, 4), "f", True)
    assert view.tolist() == HOST.tolist()
    with pytest.raises(BufferError, match="bfloat16"):
        memoryview(mx.array([1], mx.bfloat16))


@pytest.mark.parametrize("dtype", mx.DTYPES, ids=repr)
@pytest.mark.parametrize("version", [None, (1, 0), (2, 5)])
def test_dlpack_round_trip(request: pytest.FixtureRequest, dtype: mx.Dtype, version: tuple[int, int] | None) -> None:
    class OneVersion:
        def __init__(self, array: mx.Array) -> None:
            self.array = array

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(max_version=version)

    a = mx.array([[1, 0, 3], [4, 5, 6]], dtype)
    if dtype is mx.float64:
        request.getfixturevalue("on_cpu")  # GPUs have no float64
    for source in (a, mx.transpose(a), a[:, :0], mx.sum(a)):
        b = mx.from_dlpack(OneVersion(source))
        assert (b.dtype, b.shape) == (source.dtype, source.shape)
        np.testing.assert_array_equal(np.array(b), np.array(source))
    assert not dlpack._lent


def test_numpy_consumes_dlpack() -> None:
    a = mx.array(HOST)
    view = np.from_dlpack(a)
    np.testing.assert_array_equal(view, HOST)
    assert len(dlpack._lent) == 1
    del a, view
    gc.collect()
    assert not dlpack._lent


def test_numpy_produces_dlpack() -> None:
    np.testing.assert_array_equal(np.array(mx.from_dlpack(HOST[::-1, :, ::2])), HOST[::-1, :, ::2])
    with pytest.raises(BufferError, match="copied"):
        mx.from_dlpack(HOST, copy=False)


def test_unconsumed_capsules_release_the_array() -> None:
    a = mx.array(HOST)
    for version in (None, (1, 0)):
        capsule = a.__dlpack__(max_version=version)
        assert len(dlpack._lent) == 1
        del capsule
        assert not dlpack._lent


def test_dlpack_says_what_it_cannot_do() -> None:
    a = mx.array(HOST)
    assert a.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="host memory"):
        a.__dlpack__(dl_device=(2, 0))
    once = a.__dlpack__()

    class Used:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **options: Any) -> Any:
            return once

    mx.from_dlpack(Used())
    with pytest.raises(BufferError, match="used already"):
        mx.from_dlpack(Used())

    class Elsewhere(Used):
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with pytest.raises(BufferError, match="device"):
        mx.from_dlpack(Elsewhere())


def test_copies_through_dlpack_are_writable() -> None:
    a = mx.array(HOST)
    writable = np.from_dlpack(a, copy=True) if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else HOST.copy()
    writable[0] = 0
    np.testing.assert_array_equal(np.array(a), HOST)


@pytest.mark.parametrize("dtype", ["bool_", "int8", "uint32", "int64", "float16", "bfloat16", "float32", "complex64"])
def test_mlx_core_arrays(dtype: str) -> None:
    theirs = reference.array([[1, 0, 2], [3, 4, 5]], getattr(reference, dtype))
    ours = mx.array(theirs)
    assert ours.dtype is getattr(mx, dtype)
    assert ours.tolist() == theirs.tolist()
    back = reference.array(np.array(ours)) if dtype != "bfloat16" else reference.array(ours.view(mx.uint16))
    assert back.shape == (2, 3)
    if dtype != "bfloat16":
        assert back.tolist() == theirs.tolist()
    turned = mx.array(theirs.T)
    assert turned.tolist() == theirs.T.tolist()


def test_mlx_core_takes_our_arrays() -> None:
    ours = mx.array(HOST)
    assert reference.array(ours).tolist() == HOST.tolist()
    assert (reference.array(HOST) + np.array(ours)).tolist() == (HOST * 2).tolist()


def test_numpy_functions_take_our_arrays() -> None:
    a = mx.array(HOST)
    np.testing.assert_allclose(np.sin(a), np.sin(HOST))
    np.testing.assert_array_equal(np.concatenate([a, HOST]), np.concatenate([HOST, HOST]))
    assert isinstance(a + HOST, mx.Array)
    assert np.array(mx.array([1.5], mx.bfloat16)).dtype == ml_dtypes.bfloat16


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch() -> None:
    torch = importlib.import_module("torch")
    ours = mx.array(HOST)
    theirs = torch.from_dlpack(ours)
    assert theirs.shape == (2, 3, 4)
    assert theirs.sum().item() == HOST.sum()
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        source = torch.arange(6).reshape(2, 3).to(dtype)
        back = mx.array(source.T)
        assert back.tolist() == source.T.tolist()
