"""Functions that work element by element, against mlx.core."""

from __future__ import annotations

import ctypes
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from capi_compare import Case, case, compare
from capi_harness import CApi

RNG = np.random.default_rng(1)
SAMPLES: dict[str, tuple[np.ndarray, np.ndarray]] = {
    "float32": (RNG.uniform(0.1, 0.9, (4, 6)).astype("f4"), RNG.uniform(1.1, 2, (4, 6)).astype("f4")),
    "float16": (RNG.uniform(0.1, 0.9, (4, 6)).astype("f2"), RNG.uniform(1.1, 2, (1, 6)).astype("f2")),
    "int32": (RNG.integers(1, 9, (4, 6)).astype("i4"), RNG.integers(1, 4, (6,)).astype("i4")),
    "bool": (RNG.random((4, 6)) > 0.5, RNG.random((4, 6)) > 0.5),
    "complex64": ((RNG.random((2, 3)) + 1j * RNG.random((2, 3))).astype("c8"), np.full((2, 3), 1 + 2j, "c8")),
}
SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan], "f4")

UNARY = """abs arccos arccosh arcsin arcsinh arctan arctanh bitwise_invert ceil conjugate copy cos cosh degrees erf
    erfinv exp expm1 floor imag isfinite isinf isnan isneginf isposinf log log10 log1p log2 logical_not negative
    positive radians real reciprocal rsqrt sigmoid sign sin sinh sqrt square stop_gradient tan tanh trunc"""
BINARY = """add arctan2 bitwise_and bitwise_or bitwise_xor divide divmod equal floor_divide greater greater_equal
    left_shift less less_equal logaddexp logical_and logical_or logical_xor maximum minimum multiply not_equal power
    remainder right_shift subtract"""

REFERENCES: dict[str, Any] = {"copy": mx.array}


@pytest.mark.parametrize("dtype", SAMPLES)
@pytest.mark.parametrize("name", UNARY.split())
def test_unary(capi: CApi, name: str, dtype: str) -> None:
    compare(capi, Case(name, SAMPLES[dtype][:1], REFERENCES.get(name)))


@pytest.mark.parametrize("name", ["abs", "ceil", "isnan", "isinf", "sign", "exp", "floor", "sqrt", "trunc"])
def test_unary_at_the_edges(capi: CApi, name: str) -> None:
    compare(capi, Case(name, (SPECIAL,)))


@pytest.mark.parametrize("dtype", SAMPLES)
@pytest.mark.parametrize("name", BINARY.split())
def test_binary(capi: CApi, name: str, dtype: str) -> None:
    compare(capi, Case(name, SAMPLES[dtype]))


X, Y = SAMPLES["float32"]
N, M = SAMPLES["int32"]


@pytest.mark.parametrize(
    "c",
    [
        case("clip", X, np.array(0.3, "f4"), np.array(0.7, "f4")),
        case("clip", X, None, np.full(6, 0.5, "f4")),
        case("isclose", X, X + np.float32(1e-9), 1e-5, 1e-8, equal_nan=False),
        case("isclose", SPECIAL, SPECIAL, 1e-5, 1e-8, equal_nan=True),
        case("allclose", X, Y, 1e-5, 1e-8, equal_nan=False),
        case("allclose", X, Y, 10.0, 10.0, equal_nan=False),
        case("array_equal", SPECIAL, SPECIAL, equal_nan=True),
        case("array_equal", SPECIAL, SPECIAL, equal_nan=False),
        case("nan_to_num", SPECIAL, 5.0, 7.0, None),
        case("nan_to_num", SPECIAL, 5.0, None, -9.0),
        case("round", X, 1),
        case("where", X > 0.5, X, Y),
        case("astype", X * 100, np.int32, ref=lambda a, t: a.astype(t)),
        case("astype", N, np.float16, ref=lambda a, t: a.astype(t)),
        case("view", X, np.int32, ref=lambda a, t: mx.view(a, t)),
        case("to_fp8", X),
        case("from_fp8", RNG.integers(0, 120, (4, 6)).astype("u1"), np.float32),
        case("hadamard_transform", RNG.random((3, 8)).astype("f4"), None),
        case("hadamard_transform", RNG.random((3, 8)).astype("f4"), 0.25),
        case("searchsorted", np.sort(X.ravel()), Y - 1, side="left"),
        case("searchsorted", np.arange(5, dtype="i4"), M, side="right"),
    ],
)
def test_with_parameters(capi: CApi, c: Case) -> None:
    compare(capi, c)


def test_a_failing_call_leaves_the_result_alone(capi: CApi) -> None:
    x = capi.array(X)
    handle = capi.node("copy", X)
    slot = (ctypes.c_size_t * 1)(handle)
    assert capi.c.mlx_matmul(slot, x, x, capi.stream) == 1
    assert slot[0] == handle
    np.testing.assert_array_equal(capi.numpy(handle), X)


def test_a_result_handle_is_assigned_in_place(capi: CApi) -> None:
    x, y = capi.array(X), capi.array(Y)
    handle = capi.node("copy", X)
    slot = (ctypes.c_size_t * 1)(handle)
    assert capi.c.mlx_multiply(slot, x, y, capi.stream) == 0
    assert slot[0] == handle
    np.testing.assert_allclose(capi.numpy(handle), X * Y, rtol=1e-6)
