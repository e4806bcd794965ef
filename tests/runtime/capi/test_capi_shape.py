"""Shapes, indexing, slices and scatters, against mlx.core or numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from capi_compare import Case, assert_same, case, compare
from capi_harness import CApi, Failed

RNG = np.random.default_rng(3)
X = RNG.random((3, 4, 5)).astype("f4")
Y = RNG.random((3, 4, 5)).astype("f4")
M = np.arange(12, dtype="f4").reshape(3, 4)
N = np.array([2, 0, 1], "i4")
ONE = np.ones((1, 3, 1, 2), "f4")

SHAPES = [
    case("as_strided", M, (2, 3), (1, 4), 1),
    case("atleast_1d", np.array(2.0, "f4")),
    case("atleast_2d", N),
    case("atleast_3d", M),
    case("broadcast_to", N, (4, 3)),
    case("contiguous", X.transpose(2, 0, 1), False),
    case("expand_dims", M, 1),
    case("expand_dims_axes", M, (0, 3)),
    case("flatten", X, 1, -1),
    case("flip", X),
    case("flip_axes", X, (0, 2)),
    case("flip_axis", X, 1),
    case("moveaxis", X, 0, 2),
    case("reshape", X, (2, 30)),
    case("reshape", X, (7, 3)),
    case("squeeze", ONE),
    case("squeeze_axes", ONE, (0, 2)),
    case("squeeze_axis", ONE, 2),
    case("squeeze_axis", ONE, 1),
    case("swapaxes", X, 0, 2),
    case("transpose", X),
    case("transpose_axes", X, (1, 2, 0)),
    case("unflatten", X, 1, (2, -1)),
    case("number_of_elements", X, (0, 2), False, np.int32, ref=lambda a, *_: mx.array(a.shape[0] * a.shape[2])),
    case("number_of_elements", X, (0, 1), True, np.float32, ref=lambda a, *_: 1 / mx.array(12.0)),
    case("broadcast_arrays", [N, M[:, :1]], ref=lambda v: mx.broadcast_arrays(*v)),
    case("meshgrid", [N, M[0]], sparse=False, indexing="xy", ref=lambda v, **kw: mx.meshgrid(*v, **kw)),
    case("meshgrid", [N, M[0]], sparse=True, indexing="ij", ref=lambda v, **kw: mx.meshgrid(*v, **kw)),
    case("concatenate", [X, Y], ref=lambda v: mx.concatenate([a.reshape(-1) for a in v])),
    case("concatenate_axis", [X, Y], 1),
    case("stack", [X, Y]),
    case("stack_axis", [X, Y], -1),
    case("split", X, 2, 1),
    case("split", X, 2, 0),
    case("split_sections", X, (1, 3), 2, ref=lambda a, at, axis: mx.split(a, list(at), axis)),
    case("unstack", M),
    case("unstack_axis", M, axis=1),
    case("repeat", M, 2, ref=lambda a, n: mx.repeat(a.reshape(-1), n, 0)),
    case("repeat_axis", M, 2, 1),
    case("tile", M, (2, 3)),
    case("roll", M, (2,), ref=lambda a, by: mx.roll(a, by[0])),
    case("roll_axes", M, (1, 2), (0, 1)),
    case("roll_axis", M, (1,), 1, ref=lambda a, by, axis: mx.roll(a, by[0], axis)),
    case("pad", M, (0, 1), (1, 2), (0, 1), np.array(9.0, "f4"), "constant",
         ref=lambda a, *_: mx.pad(a, [(1, 0), (2, 1)], constant_values=9.0)),
    case("pad_symmetric", M, 2, np.array(0.0, "f4"), "edge", ref=lambda a, n, v, mode: mx.pad(a, n, mode)),
    case("diag", N, 1),
    case("diff", X, 2, 1),
    case("diagonal", X, 1, 0, 2),
    case("trace", M),
    case("trace_axes", X, 1, 0, 2, np.float32, ref=lambda a, k, i, j, t: mx.trace(a, k, i, j, dtype=t)),
    case("tril", M, -1),
    case("triu", M, 1),
]  # fmt: skip


@pytest.mark.parametrize("c", SHAPES)
def test_shapes(capi: CApi, c: Case) -> None:
    compare(capi, c)


TAKING = [
    case("take", X, np.array([[7, 59], [0, 1]], "i4"), ref=lambda a, i: mx.take(a, i)),
    case("take_axis", X, N, 1),
    case("take_along_axis", M, np.array([[3], [0], [2]], "i4"), 1),
    case("put_along_axis", M, np.array([[3], [0], [2]], "i4"), -np.ones((3, 1), "f4"), 1),
    case("slice", X, (0, 3, 1), (3, 0, 5), (2, -1, 2), ref=lambda a, *_: a[0:3:2, 3:0:-1, 1:5:2]),
    case("slice_dynamic", M, np.array([1], "i4"), (1,), (3, 2), ref=lambda a, *_: a[:, 1:3]),
    case("slice_update", M, np.zeros((2, 2), "f4"), (0, 1), (3, 4), (2, 2), ref=lambda a, u, *_: at(a, u, "set")),
    case("slice_update_add", M, M[:2, :2], (0, 1), (3, 4), (2, 2), ref=lambda a, u, *_: at(a, u, "add")),
    case("slice_update_max", M, M[1:, 2:], (0, 1), (3, 4), (2, 2), ref=lambda a, u, *_: at(a, u, "maximum")),
    case("slice_update_min", M, M[:2, 2:], (0, 1), (3, 4), (2, 2), ref=lambda a, u, *_: at(a, u, "minimum")),
    case("slice_update_prod", M, M[:2, 2:], (0, 1), (3, 4), (2, 2), ref=lambda a, u, *_: at(a, u, "multiply")),
    case("slice_update_dynamic", M, np.zeros((3, 2), "f4"), np.array([1], "i4"), (1,),
         ref=lambda a, u, *_: mx.concatenate([a[:, :1], u, a[:, 3:]], 1)),
    case("masked_scatter", M, M > 5, -M.ravel(), ref=lambda a, mask, src: mx.where(mask, -(a - 6), a)),
]  # fmt: skip


def at(a: mx.array, update: mx.array, how: str) -> mx.array:
    """a[0:3:2, 1:4:2] combined with an update."""
    old = a[0:3:2, 1:4:2]
    out = mx.array(a)
    out[0:3:2, 1:4:2] = update if how == "set" else getattr(mx, how)(old, update)
    return out


@pytest.mark.parametrize("c", TAKING)
def test_taking_and_slices(capi: CApi, c: Case) -> None:
    compare(capi, c)


def test_gather(capi: CApi) -> None:
    rows, columns = np.array([0, 2], "i4"), np.array([1, 3], "i4")
    got = capi.op("gather", M, [rows, columns], (0, 1), (1, 1))
    assert_same(got, M[rows, columns].reshape(2, 1, 1))
    got = capi.op("gather_single", M, rows, 0, (1, 4))
    assert_same(got, M[rows].reshape(2, 1, 4))


COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "scatter": lambda old, new: new,
    "scatter_add": np.add,
    "scatter_max": np.maximum,
    "scatter_min": np.minimum,
    "scatter_prod": np.multiply,
}


@pytest.mark.parametrize("name", COMBINE)
def test_scatters(capi: CApi, name: str) -> None:
    rows, columns = np.array([0, 2], "i4"), np.array([1, 3], "i4")
    updates = np.array([10.0, 3.0], "f4")
    wanted = M.copy()
    wanted[rows, columns] = COMBINE[name](wanted[rows, columns], updates)
    assert_same(capi.op(name, M, [rows, columns], updates.reshape(2, 1, 1), (0, 1)), wanted)
    rows_of = np.full((2, 1, 4), 5.0, "f4")
    wanted = M.copy()
    wanted[rows] = COMBINE[name](wanted[rows], rows_of[:, 0])
    assert_same(capi.op(f"{name}_single", M, rows, rows_of, 0), wanted)


def test_scatter_add_axis(capi: CApi) -> None:
    index = np.array([[1, 1, 0], [0, 2, 2], [3, 3, 3]], "i4")
    updates = np.arange(9, dtype="f4").reshape(3, 3)
    wanted = M.copy()
    np.add.at(wanted, (np.arange(3)[:, None], index), updates)
    assert_same(capi.op("scatter_add_axis", M, index, updates, 1), wanted)


def test_depends(capi: CApi) -> None:
    first, second = capi.node("copy", X), capi.node("copy", Y)
    out = capi.op("depends", capi.vector([first]), capi.vector([second]))
    assert_same(out, [X])


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((4,), (4,), 0),
        ((2,), (1,), 11),
        ((2,), (-1,), 0),
        ((2**29, 2**29), (2**62, 2**62), 2**63),
        ((-1,), (1,), 0),
    ],
)
def test_as_strided_stays_inside(capi: CApi, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> None:
    with pytest.raises(Failed, match=r"as_strided|negative"):
        capi.op("as_strided", M, shape, strides, offset)


@pytest.mark.usefixtures("ours")
def test_as_strided_may_run_backwards(capi: CApi) -> None:
    assert_same(capi.op("as_strided", M, (3, 0), (1, 1), 99), np.empty((3, 0), "f4"))
    assert_same(capi.op("as_strided", M, (12,), (-1,), 11), M.ravel()[::-1])
