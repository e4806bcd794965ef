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


@pytest.mark.parametrize(
    "source",
    [
        "int4",
        "uint4",
        "int2",
        "uint2",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float4_e2m1fn",
    ],
)
@pytest.mark.parametrize("constants", [(), (0,)])
def test_from_types_that_mlx_lacks(check: Check, source: str, constants: tuple[int, ...]) -> None:
    x = np.array([0, 1, 1.5, 0.5, 1, 0]).astype(np.dtype(getattr(ml_dtypes, source)))
    check("Cast", x, expect=x.astype(np.float32), opset=25, to=1, constants=constants)
    check("Cast", x, expect=x.astype(np.float16), opset=25, to=10, constants=constants)


@pytest.mark.parametrize("source", ["int4", "uint4", "float8_e4m3fn"])
def test_dequantised(check: Check, source: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, source))
    x, scale = np.array([[0, 1, 3, 2], [1, 2, 0, 3]]).astype(dtype), np.array([0.5, 2.0], np.float32)
    zero = np.array([0, 0 if "float" in source else 1]).astype(dtype)
    expected = (x.astype(np.float32) - zero.astype(np.float32)[:, None]) * scale[:, None]
    check("DequantizeLinear", x, scale, zero, expect=expected, axis=0, constants=(0, 1, 2))
    check("DequantizeLinear", x, scale, expect=x.astype(np.float32) * scale[:, None], axis=0)
