"""Copies of arrays that lie otherwise than row by row, as tapes make them on the CPU, against numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations

import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import cpu_primitives as cpu
from mlxc_py.tape import Tape, placeholder

TYPES = [mx.bool_, mx.uint8, mx.float16, mx.bfloat16, mx.float32, mx.int64, mx.float64, mx.complex64]
Build = Callable[[mx.Array], mx.Array]


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    if cpu.isa() is None:
        pytest.skip("an official libmlxc has no CPU primitives")
    with mx.stream(mx.cpu):
        yield


def check(x: mx.Array, build: Build, own: int = 1) -> None:
    """A tape's result beside that of MLX's own operations."""
    hole = placeholder(x.shape, x.dtype)
    tape = Tape([hole], [build(hole)])
    assert tape.count("CpuRows") == own
    (found,) = tape([x])
    wanted = build(x)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(np.array(found), np.array(wanted))


def counted(dtype: mx.Dtype, *shape: int) -> mx.Array:
    return (mx.arange(int(np.prod(shape))).reshape(shape) % 251).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (17, 33), (1, 600), (600, 3), (7, 520), (520, 9)])
def test_turned_matrices(dtype: mx.Dtype, shape: tuple[int, int]) -> None:
    check(counted(dtype, *shape), lambda x: mx.contiguous(x.transpose()))


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_turned_images(order: tuple[int, ...]) -> None:
    for shape in ((2, 3, 17, 19), (1, 20, 1, 18), (2, 1, 0, 3)):
        check(counted(mx.float32, *shape), lambda x: mx.contiguous(mx.transpose(x, order)))
        check(counted(mx.float32, *shape), lambda x: mx.transpose(x, order).reshape([-1] if x.size else [0, 2]))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2, 1::3],
        lambda x: x[:, ::-1, ::-1],
        lambda x: mx.broadcast_to(x[:1, :, :1], x.shape),
        lambda x: x[1:3, 2:, :5].transpose(2, 0, 1),
        lambda x: x,
    ],
    ids=["strides", "reversed", "broadcast", "part", "whole"],
)
@pytest.mark.parametrize("dtype", [mx.uint8, mx.float32], ids=str)
def test_views(view: Build, dtype: mx.Dtype) -> None:
    x = counted(dtype, 6, 18, 20)
    check(x, lambda a: mx.contiguous(view(a)))
    check(x, lambda a: view(a).reshape([2, -1]))


@pytest.mark.parametrize(
    "shape", [(6, 4, 5, 2), (24, 10), (6, 2, 2, 10), (240,), (1, 6, 1, 20, 2), (3, 2, 40), (5, 48)]
)
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_other_shapes_of_views(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    x = counted(mx.float32, 6, 5, 8)
    check(x, lambda a: mx.transpose(a, order).reshape(shape))
    check(x[:, :1], lambda a: mx.broadcast_to(a, (6, 5, 8)).reshape(shape))


def test_bits_are_kept() -> None:
    x = np.array([[np.nan, np.inf, -0.0], [1e-45, -np.inf, 1]], np.float32)
    hole = placeholder((2, 3), mx.float32)
    (found,) = Tape([hole], [mx.contiguous(hole.transpose())])([mx.array(x)])
    np.testing.assert_array_equal(np.array(found).view(np.int32), np.ascontiguousarray(x.T).view(np.int32))


def test_more_elements_than_an_int_counts() -> None:
    """A view of few bytes: whose axes together are more than MLX's shapes can tell."""
    hole = placeholder((1, 4), mx.uint8)
    rows = mx.broadcast_to(hole, (2**29 + 100, 4))
    tape = Tape([hole], [rows.reshape(2, 2**28 + 50, 4)[:, -3:], rows[:, 1:2].reshape(4, -1)[2:3, :2]])
    assert tape.count("CpuRows") == 2
    last, some = tape([mx.array([[1, 2, 3, 4]], mx.uint8)])
    np.testing.assert_array_equal(np.array(last), np.broadcast_to([1, 2, 3, 4], (2, 3, 4)))
    np.testing.assert_array_equal(np.array(some), [[2, 2]])
    (one,) = Tape([hole], [mx.broadcast_to(hole[:, :1], (2**29 + 100, 4)).reshape(2, -1)[:, -2:]])(
        [mx.array([[7, 0, 0, 0]], mx.uint8)]
    )
    np.testing.assert_array_equal(np.array(one), [[7, 7], [7, 7]])
