"""Reductions, scans, sorting, against mlx.core."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from capi_compare import Case, case, compare
from capi_harness import CApi

RNG = np.random.default_rng(2)
X = RNG.uniform(-2, 2, (3, 4, 5)).astype("f4")
Z = RNG.uniform(-2, 2, (3, 4, 5)).astype("f4")
N = RNG.integers(0, 4, (3, 4, 5)).astype("i4")
B = RNG.random((3, 4, 5)) > 0.3
SAMPLES = {"float32": X, "int32": N, "bool": B}

REDUCTIONS = ["all", "any", "logsumexp", "max", "mean", "median", "min", "prod", "sum"]
WITH_DDOF = ["std", "var"]
SCANS = ["cummax", "cummin", "logcumsumexp"]


@pytest.mark.parametrize("dtype", SAMPLES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(capi: CApi, name: str, dtype: str) -> None:
    x = SAMPLES[dtype]
    function = getattr(mx, name)
    compare(capi, Case(name, (x, False), lambda a, keep: function(a, keepdims=keep)))
    compare(capi, Case(name, (x, True), lambda a, keep: function(a, keepdims=keep)))
    compare(capi, Case(f"{name}_axis", (x, -1, True), function))
    compare(capi, Case(f"{name}_axis", (x, 7, True), function))
    compare(capi, Case(f"{name}_axes", (x, (0, 2), False), function))


@pytest.mark.parametrize("dtype", SAMPLES)
def test_count_nonzero(capi: CApi, dtype: str) -> None:
    x = SAMPLES[dtype]
    wanted = np.count_nonzero
    np.testing.assert_array_equal(capi.op("count_nonzero", x, False), wanted(x))
    np.testing.assert_array_equal(capi.op("count_nonzero_axis", x, 1, True), wanted(x, axis=1, keepdims=True))
    np.testing.assert_array_equal(capi.op("count_nonzero_axes", x, (0, 1), False), wanted(x, axis=(0, 1)))


@pytest.mark.parametrize("name", WITH_DDOF)
def test_reductions_with_ddof(capi: CApi, name: str) -> None:
    function = getattr(mx, name)
    compare(capi, Case(name, (X, False, 1), lambda a, keep, ddof: function(a, keepdims=keep, ddof=ddof)))
    compare(capi, Case(f"{name}_axis", (X, 1, True, 0), function))
    compare(capi, Case(f"{name}_axes", (X, (0, 1), False, 2), function))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_arg_reductions(capi: CApi, name: str, dtype: str) -> None:
    function = getattr(mx, name)
    compare(capi, Case(name, (SAMPLES[dtype], False), lambda a, keep: function(a, keepdims=keep)))
    compare(capi, Case(f"{name}_axis", (SAMPLES[dtype], 1, True), function))


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(capi: CApi, name: str, reverse: bool) -> None:
    function = getattr(mx, name)

    def flat(a: Any, reverse: bool, inclusive: bool) -> Any:
        return function(a.reshape(-1), 0, reverse=reverse, inclusive=inclusive)

    compare(capi, Case(name, (X, reverse, True), flat))
    compare(capi, Case(f"{name}_axis", (X, 1), function, {"reverse": reverse, "inclusive": False}))


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("dtype", [None, np.float64])
def test_scans_with_dtype(capi: CApi, name: str, dtype: type | None) -> None:
    scan = getattr(np, name)
    wide = "f4" if dtype is None else "f8"
    got = capi.op(name, X, False, True, dtype)
    assert got.dtype == wide
    np.testing.assert_allclose(got, scan(X.astype("f8")), rtol=1e-4, atol=1e-5)
    got = capi.op(f"{name}_axis", X, 1, True, True, dtype)
    assert got.dtype == wide
    np.testing.assert_allclose(got, scan(X.astype("f8")[:, ::-1], axis=1)[:, ::-1], rtol=1e-4, atol=1e-5)


def flattened(function: Any) -> Any:
    return lambda a, *args: function(a, *args, axis=None)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(
    "c",
    [
        case("sort", X, ref=flattened(mx.sort)),
        case("sort_axis", X, 1),
        case("argsort", X, ref=flattened(mx.argsort)),
        case("argsort_axis", X, -2),
        case("topk", X, 3, ref=flattened(mx.topk)),
        case("topk_axis", X, 2, 1),
    ],
)
def test_sorting(capi: CApi, c: Case, dtype: str) -> None:
    compare(capi, c._replace(args=(SAMPLES[dtype], *c.args[1:])))


def test_partitions(capi: CApi) -> None:
    flat = capi.op("partition", X, 20)
    assert flat[:20].max() <= flat[20] <= flat[21:].min()
    order = capi.op("argpartition", X, 20)
    assert X.ravel()[order[:20]].max() <= X.ravel()[order[20]]
    rows = capi.op("partition_axis", X, 2, 1)
    assert (rows[:, :2].max(1) <= rows[:, 2]).all() and (rows[:, 2] <= rows[:, 3:].min(1)).all()
    order = capi.op("argpartition_axis", X, 2, 1)
    np.testing.assert_array_equal(np.sort(np.take_along_axis(X, order, 1), 1), np.sort(X, 1))
    assert (np.take_along_axis(X, order, 1)[:, :2].max(1) <= np.take_along_axis(X, order, 1)[:, 2]).all()


@pytest.mark.parametrize(
    "c",
    [
        case(
            "softmax",
            X,
            precise=True,
            ref=lambda a, precise: mx.softmax(a.reshape(-1), 0, precise=precise).reshape(a.shape),
        ),
        case("softmax_axis", X, -1, precise=True),
        case("softmax_axis", X.astype("f2"), 0, precise=True),
        case("softmax_axes", X, (0, 2), precise=False),
        case("vecdot", X, Z, axis=1),
    ],
)
def test_softmax_and_dot(capi: CApi, c: Case) -> None:
    compare(capi, c)
