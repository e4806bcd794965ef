"""mlx_array: construction, properties, data."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from capi_harness import CODES, DTYPES, CApi, Failed, Slot

from mlxc_py._sys import load, mlx

NAMES = [t.name for t in DTYPES]
SCALARS: dict[str, tuple[Any, Any]] = {
    "bool": (True, np.bool_),
    "int": (-7, np.int32),
    "float": (1.5, np.float32),
    "float32": (2.5, np.float32),
    "float64": (0.1, np.float64),
    "double": (0.2, np.float64),
}


def address(values: np.ndarray) -> int:
    return values.ctypes.data


@pytest.mark.parametrize("name", SCALARS)
def test_scalars(capi: CApi, name: str) -> None:
    value, dtype = SCALARS[name]
    made = capi.numpy(capi.need(getattr(capi.c, f"mlx_array_new_{name}")(value)))
    assert made == np.array(value, dtype) and made.dtype == dtype and made.shape == ()
    handle = capi.node("copy", np.zeros(3, "f4"))
    slot = (ctypes.c_size_t * 1)(handle)
    capi.check(getattr(capi.c, f"mlx_array_set_{name}")(slot, value))
    assert slot[0] == handle
    assert capi.numpy(handle) == np.array(value, dtype)


def test_complex_scalars(capi: CApi) -> None:
    assert capi.numpy(capi.need(capi.c.mlx_array_new_complex(1.5, -2.0))) == np.complex64(1.5 - 2j)
    assert capi.numpy(capi.filled("mlx_array_set_complex", 0.5, 3.0)) == np.complex64(0.5 + 3j)


@pytest.mark.parametrize("code", range(14))
def test_data_goes_in_and_out_in_every_dtype(capi: CApi, code: int) -> None:
    dtype = DTYPES[code]
    x = np.arange(6).reshape(2, 3).astype(dtype)
    assert capi.c.mlx_dtype_size(code) == dtype.itemsize
    handle = capi.array(x)
    assert capi.c.mlx_array_dtype(handle) == code
    assert capi.c.mlx_array_itemsize(handle) == dtype.itemsize
    assert capi.c.mlx_array_size(handle) == 6
    assert capi.c.mlx_array_nbytes(handle) == 6 * dtype.itemsize
    pointer = capi.need(getattr(capi.c, f"mlx_array_data_{NAMES[code]}")(handle))
    assert ctypes.string_at(pointer, x.nbytes) == x.tobytes()
    shape, ndim = capi.pointer((3, 2))
    again = capi.filled("mlx_array_set_data", address(x), shape, ndim, code)
    np.testing.assert_array_equal(capi.numpy(again), x.reshape(3, 2))


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("code", range(14))
def test_items(capi: CApi, code: int) -> None:
    value = np.array(1).astype(DTYPES[code])
    room = ctypes.create_string_buffer(16)
    item = getattr(capi.c, f"mlx_array_item_{NAMES[code]}")
    capi.check(item(room, capi.array(value)))
    assert room.raw[: value.itemsize] == value.tobytes()
    wide, narrow = np.zeros(1, "c8"), np.zeros(1, "?")
    with pytest.raises(Failed, match="item"):
        capi.check(item(room, capi.array(narrow if value.itemsize > 1 else wide)))
    with pytest.raises(Failed, match="item"):
        capi.check(item(room, capi.array(np.zeros(2, value.dtype))))


def test_item_evaluates(capi: CApi) -> None:
    total = capi.node("sum", np.arange(4, dtype="f4"), False)
    assert capi.filled("mlx_array_item_float32", total, kind=ctypes.c_float) == 6.0


def test_shape_and_strides(capi: CApi) -> None:
    x = np.arange(24, dtype="f4").reshape(2, 3, 4)
    handle = capi.node("transpose", x)
    capi.check(capi.c.mlx_array_eval(handle))
    assert capi.c.mlx_array_ndim(handle) == 3
    assert capi.shape(handle) == (4, 3, 2)
    assert [capi.c.mlx_array_dim(handle, i) for i in (0, -1)] == [4, 2]
    strides = (ctypes.c_int64 * 3).from_address(capi.c.mlx_array_strides(handle))
    assert list(strides) == [1, 4, 12]
    assert capi.c.mlx_array_dim(handle, 3) == 0
    assert load.take_error()


def test_contiguity_flags(capi: CApi) -> None:
    def flags(handle: int) -> list[bool]:
        capi.check(capi.c.mlx_array_eval(handle))
        kinds = ("contiguous", "row_contiguous", "col_contiguous")
        return [capi.filled(f"_mlx_array_is_{k}", handle, kind=ctypes.c_bool) for k in kinds]

    x = np.arange(12, dtype="f4").reshape(3, 4)
    assert flags(capi.array(x)) == [True, True, False]
    assert flags(capi.node("transpose", x)) == [True, False, True]
    assert flags(capi.node("slice", x, (0, 0), (3, 4), (1, 2))) == [False, False, False]


def test_handles(capi: CApi) -> None:
    assert capi.c.mlx_array_new() == 0
    assert capi.c.mlx_array_free(0) == 0
    x = capi.array(np.arange(3, dtype="f4"))
    copy = capi.filled("mlx_array_set", x)
    assert copy != x
    capi.check(capi.c.mlx_array_free(x))
    np.testing.assert_array_equal(capi.numpy(copy), [0, 1, 2])
    with pytest.raises(Failed, match="non-empty mlx_array"):
        capi.filled("mlx_array_set", 0)


def test_text(capi: CApi) -> None:
    text = capi.filled("mlx_array_tostring", capi.node("add", np.array([1, 2], "i4"), np.array([1, 1], "i4")))
    assert capi.text(text) == "array([2, 3], dtype=int32)"


@pytest.mark.usefixtures("ours")
def test_evaluation(capi: CApi) -> None:
    def available(handle: int) -> bool:
        return capi.filled("_mlx_array_is_available", handle, kind=ctypes.c_bool)

    x = np.full((300, 300), 2.0, "f4")
    lazy = capi.node("matmul", x, x)
    assert not available(lazy)
    assert capi.c.mlx_array_data_float32(lazy) == 0
    assert "evaluate" in (load.take_error() or "")
    capi.check(capi.c.mlx_async_eval(capi.vector([lazy])))
    capi.check(capi.c._mlx_array_wait(lazy))
    assert available(lazy)
    assert ctypes.c_float.from_address(capi.need(capi.c.mlx_array_data_float32(lazy))).value == 1200.0
    other = capi.node("add", x, x)
    capi.check(capi.c.mlx_eval(capi.vector([other, lazy])))
    assert available(other)


def test_managed_data(capi: CApi) -> None:
    """The CPU back end copies and releases at once; others keep the data until the array goes."""
    freed: list[int] = []
    on_free = capi.keep(mlx.mlx_array_new_data_managed_dtor(freed.append))
    dtor = ctypes.cast(on_free, ctypes.c_void_p)
    x = capi.keep(np.arange(4, dtype="f4"))
    shape, ndim = capi.pointer((4,))
    handle = capi.need(capi.c.mlx_array_new_data_managed(address(x), shape, ndim, 10, dtor))
    np.testing.assert_array_equal(capi.numpy(handle), x)
    capi.check(capi.c.mlx_array_free(handle))
    handle = capi.need(capi.c.mlx_array_new_data_managed_payload(address(x), shape, ndim, 10, 77, dtor))
    np.testing.assert_array_equal(capi.numpy(handle), x)
    capi.check(capi.c.mlx_array_free(handle))
    capi.check(capi.c.mlx_synchronize(capi.stream))
    assert freed == [address(x), 77]


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize(
    ("dims", "message"), [((-4,), "negative dimension"), ((2**31 - 1,) * 3, "array too large")], ids=["-4", "huge"]
)
def test_managed_data_that_is_refused_stays_the_callers(capi: CApi, dims: tuple[int, ...], message: str) -> None:
    freed: list[int] = []
    dtor = ctypes.cast(capi.keep(mlx.mlx_array_new_data_managed_dtor(freed.append)), ctypes.c_void_p)
    shape, ndim = capi.pointer(dims)
    assert capi.c.mlx_array_new_data_managed_payload(8, shape, ndim, 10, 77, dtor) == 0
    assert message in (load.take_error() or "")
    assert freed == []


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize(
    ("data", "shape", "ndim", "dtype", "message"),
    [
        (True, (-1,), 1, 10, "negative dimension"),
        (True, (2,), -1, 10, "negative number of dimensions"),
        (True, (2,), 1, 99, "unknown dtype"),
        (False, (2,), 1, 10, "NULL data"),
        (True, None, 1, 10, "NULL data"),
        (True, (2**31 - 1,) * 3, 3, 11, "too large"),
        (True, (2**31 - 1, 2**14), 2, 11, "memory"),
    ],
)
def test_impossible_data(
    capi: CApi, data: bool, shape: tuple[int, ...] | None, ndim: int, dtype: int, message: str
) -> None:
    room = ctypes.create_string_buffer(64)
    pointer = capi.pointer(shape)[0]
    where = ctypes.addressof(room) if data else None
    assert capi.c.mlx_array_new_data(where, pointer, ndim, dtype) == 0
    assert message in (load.take_error() or "")
    slot = Slot()
    assert capi.c.mlx_array_set_data(slot.address, where, pointer, ndim, dtype) == 1
    assert slot.value == 0


@pytest.mark.usefixtures("ours")
def test_no_data_is_needed_for_no_elements(capi: CApi) -> None:
    shape, ndim = capi.pointer((2, 0))
    empty = capi.need(capi.c.mlx_array_new_data(None, shape, ndim, CODES[np.dtype("i4")]))
    assert capi.shape(empty) == (2, 0)
    assert capi.numpy(empty).size == 0
