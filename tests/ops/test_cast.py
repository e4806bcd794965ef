"""Casts between every pair of types that MLX holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ort_ep import dtypes

Check = Callable[..., None]
TYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    ml_dtypes.bfloat16,
]


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", TYPES)
def test_cast(check: Check, source: Any, target: Any) -> None:
    values = np.array([0, 1, 2, 100, 127])
    if np.dtype(source).kind not in "bu" and np.dtype(target).kind not in "u":
        values = np.concatenate([values, [-1, -100]])
    x = values.astype(source)
    if np.dtype(source).kind == "f" and np.dtype(target).kind != "u":
        x = np.concatenate([x, np.array([0.5, -1.75, 3.25], source)])
    check("Cast", x, expect=x.astype(target), to=dtypes.BY_NUMPY[np.dtype(target)].code)
    check("CastLike", x, np.zeros(1, target), expect=x.astype(target))


def test_small_numbers_and_nan_are_true(check: Check) -> None:
    x = np.array([0.0, -0.0, 1e-30, np.nan, np.inf], np.float32)
    check("Cast", x, expect=np.array([False, False, True, True, True]), to=9)


def test_bits(check: Check) -> None:
    x = np.array([1.0, -2.0], np.float32)
    check("BitCast", x, expect=x.view(np.int32), opset=26, to=6)


def test_types_that_mlx_lacks(reasons: Callable[..., list[str]]) -> None:
    assert "float8_e4m3fn" in reasons("Cast", np.zeros(2, np.float32), to=17)[0]
