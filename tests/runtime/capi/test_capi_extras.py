"""What libmlxc exports beyond mlx-c (native/mlxc/extras.h); absent from an official library."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from capi_harness import CODES, CApi

from mlxc_py._sys import load, mlx

pytestmark = pytest.mark.usefixtures("ours")

X = np.arange(6, dtype="f4").reshape(2, 3)


def extra(name: str, result: Any, *arguments: Any) -> Any:
    function = load.library().function(name)
    function.restype, function.argtypes = result, arguments
    return function


def test_the_mlx_it_was_built_for(capi: CApi) -> None:
    version = extra("mlxc_py_build_mlx_version", ctypes.c_char_p)
    assert version().decode() == load.library().mlx_version == capi.op("version")


def test_tracers(capi: CApi) -> None:
    is_tracer = extra("mlxc_py_array_is_tracer", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    seen: list[bool] = []

    def tell(handle: int) -> bool:
        cell = ctypes.c_bool()
        capi.check(is_tracer(ctypes.byref(cell), handle))
        return cell.value

    def call(v: list[int]) -> list[int]:
        seen.append(tell(v[0]))
        return v

    compiled = capi.filled("mlx_compile", capi.closure(call), False)
    capi.filled("mlx_closure_apply", compiled, capi.vector([X]))
    assert all(seen) and seen
    assert not tell(capi.array(X))
    assert is_tracer(None, capi.array(X)) == 1


def borrow(capi: CApi, x: np.ndarray, freed: list[int], payload: int) -> int:
    make = extra(
        "mlxc_py_array_new_borrowed",
        ctypes.c_size_t,
        *[ctypes.c_void_p] * 2,
        ctypes.c_int,
        ctypes.c_int,
        *[ctypes.c_void_p] * 2,
    )
    dtor = ctypes.cast(capi.keep(mlx.mlx_array_new_data_managed_payload_dtor(freed.append)), ctypes.c_void_p)
    shape, ndim = capi.pointer(x.shape)
    return make(x.ctypes.data if x.size else None, shape, ndim, CODES[x.dtype], payload, dtor)


def test_borrowed_data(capi: CApi) -> None:
    freed: list[int] = []
    x = capi.keep(X.copy())
    borrowed = capi.need(borrow(capi, x, freed, 5))
    np.testing.assert_array_equal(capi.op("add", borrowed, np.ones((1, 3), "f4")), X + 1)
    # Never written to, although the graph holds the only reference by then.
    total = capi.node("exp", capi.node("negative", borrowed))
    capi.check(capi.c.mlx_array_free(borrowed))
    np.testing.assert_allclose(capi.numpy(total), np.exp(-X), rtol=1e-6)
    np.testing.assert_array_equal(x, X)
    capi.check(capi.c.mlx_synchronize(capi.stream))
    assert freed == [5]


def test_borrowed_data_is_read_where_it_is(capi: CApi) -> None:
    if capi.op("metal_is_available") or capi.op("cuda_is_available"):
        pytest.skip("a GPU back end may copy")
    x = capi.keep(X.copy())
    borrowed = capi.need(borrow(capi, x, [], 0))
    assert capi.c.mlx_array_data_float32(borrowed) == x.ctypes.data


def test_borrowing_nothing(capi: CApi) -> None:
    freed: list[int] = []
    assert borrow(capi, np.empty((0, 3), "f4"), freed, 9) == 0
    assert load.take_error()
    assert freed == []
