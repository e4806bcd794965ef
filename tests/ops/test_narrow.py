"""Every float16 value, in each type that MLX lacks, as ml_dtypes converts it; device and host alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mlxc_py as mx
from ort_ep.dtypes import BY_NAME, NARROW, of_codes, packed
from ort_ep.graph import decode
from ort_ep.ops.narrow import narrowed

EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
SMALL_FLOATS = sorted(name for name in NARROW if "float" in name and name != "float8_e8m0fnu")
Array = np.ndarray[Any, Any]


def both(x: Array, name: str, **settings: Any) -> Array:
    """The converted values, once they are the same from MLX and from numpy."""
    row = BY_NAME[name]
    device = np.array(narrowed(mx.array(x), row.code, **settings))
    host = narrowed(x, row.code, **settings)
    assert device.dtype == np.uint8
    assert host.dtype == row.numpy
    np.testing.assert_array_equal(of_codes(row, device).astype(np.float32), host.astype(np.float32))
    return host


def alike(ours: Array, theirs: Array) -> None:
    if "float8" not in theirs.dtype.name:  # no NaN in these: what a NaN becomes is nobody's rule
        ours, theirs = ours[~np.isnan(EVERY)], theirs[~np.isnan(EVERY)]
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    known = ~np.isnan(theirs)
    np.testing.assert_array_equal(ours.view(np.uint8)[known], theirs.view(np.uint8)[known])


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_rounding_and_overflow(name: str) -> None:
    dtype = BY_NAME[name].numpy
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alike(both(EVERY, name, saturate=False), EVERY.astype(dtype))


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_saturation(name: str) -> None:
    dtype = BY_NAME[name].numpy
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alike(both(EVERY, name), np.clip(EVERY, -largest, largest).astype(dtype))


def test_powers_of_two() -> None:
    x = np.array([0.0, 2**-127, 2**-126, 1.0, 1.4, 1.5, 1.6, 3.0, 2.0**127, 3e38, np.inf, np.nan], np.float32)
    codes = {
        "up": [0, 0, 1, 127, 128, 128, 128, 129, 254, 254, 254, 255],
        "down": [0, 0, 1, 127, 127, 127, 127, 128, 254, 254, 254, 255],
        "nearest": [0, 0, 1, 127, 127, 128, 128, 129, 254, 254, 254, 255],
    }
    for mode, expected in codes.items():
        assert both(x, "float8_e8m0fnu", round_mode=mode).view(np.uint8).tolist() == expected
    rough = both(x, "float8_e8m0fnu", saturate=False, round_mode="nearest").view(np.uint8)
    assert rough.tolist() == [255, 0, 1, 127, 127, 128, 128, 129, 254, 255, 255, 255]


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2"])
def test_integers_keep_their_lowest_bits(name: str) -> None:
    x = np.arange(-20, 20, dtype=np.int32)
    row = BY_NAME[name]
    np.testing.assert_array_equal(both(x, name), of_codes(row, (x & ((1 << row.bits) - 1)).astype(np.uint8)))


@pytest.mark.parametrize("name", sorted(NARROW))
@pytest.mark.parametrize("count", [0, 1, 3, 8, 13])
def test_packing_is_the_inverse_of_decoding(name: str, count: int) -> None:
    row = BY_NAME[name]
    codes = np.random.default_rng(count).integers(0, 1 << row.bits, count).astype(np.uint8)
    values = of_codes(row, codes)
    for form in (codes, values):
        content = packed(row.code, form)
        assert content.nbytes == row.nbytes(count)
        again = decode(row.code, [count], content.view(np.uint8))
        np.testing.assert_array_equal(again.view(np.uint8), values.view(np.uint8))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "int4", "uint4", "uint2"])
def test_there_and_back_inside_one_plan(plan_of: Callable[..., Any], name: str) -> None:
    import onnx

    types = {"float8_e4m3fn": "float8e4m3fn", "float8_e5m2": "float8e5m2"}
    model = onnx.parser.parse_model(
        f"""<ir_version: 11, opset_import: ["": 23]>
        g (float[N] x, float s, {types.get(name, name)} z) => (float[N] y) {{
        q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }}"""
    )
    x = np.array([-9, -0.6, 0, 0.24, 0.26, 1, 1.5, 2, 700], np.float32)
    zero = np.zeros((), BY_NAME[name].numpy)
    (y,) = plan_of(model, {"x": x, "s": np.array(0.5, np.float32), "z": zero})
    limits = ml_dtypes.finfo(zero.dtype) if "float" in name else ml_dtypes.iinfo(zero.dtype)
    levels = np.clip(x / 0.5, float(limits.min), float(limits.max))
    levels = levels.astype(zero.dtype) if "float" in name else np.round(levels)
    np.testing.assert_array_equal(y, levels.astype(np.float32) * 0.5)
