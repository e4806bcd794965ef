"""Elements by index on the CPU against numpy: any width, any layout, indices from either end or beyond them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import cpu_indexing

TYPES = [mx.bool_, mx.int8, mx.float16, mx.bfloat16, mx.int32, mx.float32, mx.int64, mx.float64, mx.complex64]


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    with mx.stream(mx.cpu):
        if not cpu_indexing.serves():
            pytest.skip("an official libmlxc has no CPU primitives")
        yield


def table(dtype: mx.Dtype, *shape: int) -> mx.Array:
    return mx.array(np.random.default_rng(0).integers(-9, 9, shape)).astype(dtype)


def places(length: int, *shape: int) -> np.ndarray:
    """From either end, and some beyond."""
    return np.random.default_rng(1).integers(-length - 2, length + 2, shape)


def clamped(indices: np.ndarray, length: int) -> np.ndarray:
    return np.clip(np.where(indices < 0, indices + length, indices), 0, length - 1)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (0,)])
def test_take(dtype: mx.Dtype, axis: int, shape: tuple[int, ...]) -> None:
    a = table(dtype, 4, 5, 6)
    for view in (a, a.transpose(2, 1, 0), a[::2, :, 1::2], mx.broadcast_to(a[:1, :, :1], (4, 5, 6))):
        indices = places(view.shape[axis], *shape)
        for kind in (mx.int64, mx.int32, mx.int8):
            found = np.array(cpu_indexing.take(view, mx.array(indices).astype(kind), axis))
            np.testing.assert_array_equal(found, np.take(np.array(view), clamped(indices, view.shape[axis]), axis))


def test_take_of_nothing() -> None:
    assert cpu_indexing.take(mx.zeros((3, 0)), mx.array([1, 2]), 0).shape == (2, 0)
    assert cpu_indexing.take(mx.zeros((0, 3)), mx.zeros((0,), mx.int32), 0).shape == (0, 3)
    with pytest.raises(mx.MLXError, match="length 0"):
        cpu_indexing.take(mx.zeros((0, 3)), mx.array([0]), 0)


def test_strided_indices() -> None:
    a, indices = table(mx.float32, 7, 33), mx.array(places(7, 4, 6))
    for view in (indices.transpose(), indices[:, ::2], mx.broadcast_to(indices[:1], (5, 6))):
        wanted = np.take(np.array(a), clamped(np.array(view), 7), 0)
        np.testing.assert_array_equal(np.array(cpu_indexing.take(a, view, 0)), wanted)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("count", "taps"), [(7, 1), (3, 2), (9, 5), (0, 2)])
def test_take_sums(axis: int, count: int, taps: int) -> None:
    a, random = table(mx.float32, 4, 5, 2050), np.random.default_rng(2)
    for view in (a, mx.contiguous(a.transpose()).transpose(), a[::2, :, :1], mx.broadcast_to(a[:1, :, :1], (4, 5, 6))):
        weights = random.integers(-3, 4, (count, taps)).astype(np.float32)
        indices = random.integers(-2, view.shape[axis] + 2, (count, taps)).astype(np.int32)
        slices = np.take(np.array(view), np.clip(indices, 0, view.shape[axis] - 1), axis)
        wanted = np.sum(slices * weights.reshape(count, taps, *[1] * (2 - axis)), axis + 1)
        found = cpu_indexing.take_sums(view, mx.array(indices), mx.array(weights), axis)
        np.testing.assert_array_equal(np.array(found), wanted)


def test_sums_that_can_not_be() -> None:
    a, places, weights = mx.zeros((3, 4)), mx.zeros((2, 2), mx.int32), mx.zeros((2, 2))
    for axis in (-1, 2):
        with pytest.raises(mx.MLXError, match="no such axis"):
            cpu_indexing.take_sums(a, places, weights, axis)
    for given in ((a.astype(mx.float16), places, weights), (a, weights, weights), (a, places, places)):
        with pytest.raises(mx.MLXError, match="int32 indices are needed"):
            cpu_indexing.take_sums(*given, 0)
    for given in ((a, places[0], weights[0]), (a, places, weights[:1]), (a, places[:, :0], weights[:, :0])):
        with pytest.raises(mx.MLXError, match="a row of indices"):
            cpu_indexing.take_sums(*given, 0)
    with pytest.raises(mx.MLXError, match="length 0"):
        cpu_indexing.take_sums(a[:0], places, weights, 0)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_take_elements(dtype: mx.Dtype, axis: int) -> None:
    a = table(dtype, 4, 5, 6)
    for shape in ((4, 5, 6), (3, 2, 5), (1, 1, 1), (4, 0, 6)):
        for view in (a, mx.contiguous(a.transpose()).transpose()):
            indices = places(view.shape[axis], *shape)
            whole = np.array(view)[tuple(slice(None if i == axis else n) for i, n in enumerate(shape))]
            wanted = np.take_along_axis(whole, clamped(indices, view.shape[axis]), axis)
            found = np.array(cpu_indexing.take_elements(view, mx.array(indices), axis))
            np.testing.assert_array_equal(found, wanted)


def put(a: np.ndarray, indices: np.ndarray, values: np.ndarray, axis: int, add: bool) -> np.ndarray:
    result = a.copy()
    for at in np.ndindex(indices.shape):
        to = (*at[:axis], clamped(indices[at], a.shape[axis]), *at[axis + 1 :])
        result[to] = result[to] + values[at] if add else values[at]
    return result


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_put_elements(dtype: mx.Dtype, axis: int, add: bool) -> None:
    a = table(dtype, 4, 5, 6)
    if add and dtype not in cpu_indexing.ADDABLE:
        with pytest.raises(mx.MLXError, match="to add"):
            cpu_indexing.put_elements(a, mx.zeros(a.shape, mx.int32), a, axis, add=True)
        return
    for shape in ((4, 5, 6), (2, 5, 3), (1, 1, 1), (0, 5, 6)):
        values = table(dtype, *shape[::-1]).transpose()
        for view in (a, mx.contiguous(a.transpose()).transpose(), mx.broadcast_to(a[:1, :1, :1], a.shape)):
            before, indices = np.array(view), places(a.shape[axis], *shape)
            found = cpu_indexing.put_elements(view, mx.array(indices), values, axis, add=add)
            np.testing.assert_array_equal(np.array(found), put(before, indices, np.array(values), axis, add))
            np.testing.assert_array_equal(np.array(view), before)


@pytest.mark.parametrize("add", [False, True])
def test_rows_named_by_broadcast_indices(add: bool) -> None:
    a, values = table(mx.float32, 9, 5, 7), table(mx.float32, 20, 5, 7)
    rows = places(9, 20)
    indices = mx.broadcast_to(mx.array(rows)[:, None, None], (20, 5, 7))
    found = np.array(cpu_indexing.put_elements(a, indices, values, 0, add=add))
    np.testing.assert_array_equal(found, put(np.array(a), np.array(indices), np.array(values), 0, add))


def test_special_values_are_kept() -> None:
    values = np.array([np.nan, np.inf, -0.0, 1e-45, -np.inf], np.float32)
    taken = np.array(cpu_indexing.take(mx.array(values), mx.array([4, 3, 2, 1, 0]), 0))
    np.testing.assert_array_equal(taken.view(np.int32), values[::-1].view(np.int32))
    added = np.array(cpu_indexing.put_elements(mx.ones((3,)), mx.array([0, 0, 2]), mx.array(values[:3]), 0, add=True))
    np.testing.assert_array_equal(added, [np.nan, 1, 1])


@pytest.mark.parametrize("axis", [-1, 1])
def test_no_such_axis(axis: int) -> None:
    with pytest.raises(mx.MLXError, match="axis"):
        cpu_indexing.take(mx.zeros((3,)), mx.array([0]), axis)


def test_shapes_that_do_not_fit() -> None:
    a = mx.zeros((3, 2))
    with pytest.raises(mx.MLXError, match="as many axes"):
        cpu_indexing.take_elements(a, mx.array([0]), 0)
    with pytest.raises(mx.MLXError, match="more indices"):
        cpu_indexing.take_elements(a, mx.zeros((1, 3), mx.int32), 0)
    with pytest.raises(mx.MLXError, match="a value"):
        cpu_indexing.put_elements(a, mx.zeros((1, 2), mx.int32), mx.zeros((1, 1)), 0)
