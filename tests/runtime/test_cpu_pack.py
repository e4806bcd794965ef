"""Packed weights are what they are said to be, wherever the originals lie in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import cpu_primitives

pytestmark = pytest.mark.skipif(not cpu_primitives.isa(), reason="only libmlxc of mlxc-py packs")

SHAPES = [((32, 3, 3, 8), 1), ((40, 2, 3, 6), 2), ((5, 1, 1, 70), 1), ((48, 7, 7, 3), 3), ((16, 1, 5, 1), 1)]
ORDERS = [(0, 1, 2, 3), (0, 3, 1, 2), (3, 1, 2, 0), (1, 2, 3, 0)]  # how the axes lie in memory, the last one densely


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    with mx.stream(mx.cpu):
        yield


def lying(content: np.ndarray[Any, Any], order: tuple[int, ...]) -> mx.Array:
    """The content as a view of an array whose axes have another order."""
    back = [order.index(axis) for axis in range(4)]
    return mx.array(np.ascontiguousarray(content.transpose(order))).transpose(back)


def blocks(w: np.ndarray[Any, Any], groups: int, quad: int) -> np.ndarray[Any, Any]:
    made = w.shape[0] // groups
    split = w.reshape(groups, made, -1, w.shape[3])
    filled = np.pad(split, [(0, 0), (0, -made % 16), (0, 0), (0, -w.shape[3] % quad)])
    parts = filled.reshape(groups, -1, 16, filled.shape[2] * filled.shape[3] // quad, quad)
    return parts.swapaxes(2, 3).reshape(groups, parts.shape[1], -1, 16 * quad)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_floats(shape: tuple[int, ...], groups: int, order: tuple[int, ...]) -> None:
    w = np.random.default_rng(0).standard_normal(shape, np.float32)
    if not cpu_primitives.packs(mx.array(w), groups):
        pytest.skip("without AVX2 BLAS is faster")
    packed = cpu_primitives.pack(lying(w, order), groups)
    np.testing.assert_array_equal(np.array(packed.blocks), blocks(w, groups, 1))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_bytes(shape: tuple[int, ...], groups: int, order: tuple[int, ...], dtype: Any) -> None:
    limits = np.iinfo(dtype)
    w = np.random.default_rng(0).integers(limits.min, limits.max, shape, dtype, endpoint=True)
    levels = (w.astype(int) - (128 if dtype is np.uint8 else 0)).astype(np.int8)
    packed = cpu_primitives.pack_bytes(lying(w, order), None, groups)
    np.testing.assert_array_equal(np.array(packed.blocks), blocks(levels, groups, 4))
    np.testing.assert_array_equal(np.array(packed.sums), levels.sum((1, 2, 3), dtype=np.int32))
