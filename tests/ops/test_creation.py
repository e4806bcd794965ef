"""Tensors from attributes and shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from ort_ep import dtypes

Check = Callable[..., None]
TYPES = ["bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 3)])
def test_constant_of_shape(check: Check, dtype: str, shape: tuple[int, ...]) -> None:
    value = np.array([1], dtype)
    target = np.array(shape, np.int64)
    for constants in ((), (0,)):
        check(
            "ConstantOfShape",
            target,
            expect=np.ones(shape, dtype),
            value=numpy_helper.from_array(value),
            constants=constants,
        )
        check("ConstantOfShape", target, expect=np.zeros(shape, np.float32), constants=constants)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("k", [-1, 0, 2])
def test_eye(check: Check, dtype: str, k: int) -> None:
    x = np.zeros((3, 4), np.int32)
    check("EyeLike", x, expect=np.eye(3, 4, k, dtype), k=k, dtype=dtypes.BY_NAME[dtype].code)
    check("EyeLike", x, expect=np.eye(3, 4, k, np.int32), k=k)


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize(("start", "limit", "delta"), [(0, 5, 1), (5, 0, -2), (3, 3, 1), (0, -4, 1), (1, 10, 3)])
def test_range(check: Check, dtype: str, start: int, limit: int, delta: int) -> None:
    ends: list[Any] = [np.array(value, dtype) for value in (start, limit, delta)]
    for constants in ((), (0, 1, 2)):
        check("Range", *ends, expect=np.arange(start, limit, delta).astype(dtype), constants=constants)


def test_range_of_64_bits_is_exact(check: Check) -> None:
    start = 2**60
    check("Range", *(np.array(v) for v in (start, start + 3, 1)), expect=np.arange(start, start + 3))


@pytest.mark.parametrize("constants", [(), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("bins", [1, 8, 40])
def test_mel_weights(check: Check, bins: int, constants: tuple[int, ...]) -> None:
    values: list[Any] = [np.array(value, np.int64) for value in (bins, 64, 8192)]
    edges: list[Any] = [np.array(value, np.float32) for value in (0, 4096)]
    check("MelWeightMatrix", *values, *edges, expect="cpu", constants=constants)
