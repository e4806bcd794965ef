"""Codes of the types that MLX lacks: 8-bit floats and less, integers of fewer than 8 bits.

On the device such a tensor is a uint8 array of bit patterns, one per element; on the host numpy has the type itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.dtypes import BY_NAME, ELEM_TYPES, of_codes, to_mlx

T = TypeVar("T", Array, np.ndarray)


@dataclass(frozen=True, slots=True)
class Float:
    """A small float: width of the mantissa, lowest exponent, and the codes of its special values."""

    mantissa: int
    lowest: int
    largest: int
    overflow: int
    nan: int
    sign: int = 0x80
    signed_zero: bool = True


FLOATS = {
    "float8_e4m3fn": Float(3, -6, 0x7E, 0x7F, 0x7F),
    "float8_e4m3fnuz": Float(3, -7, 0x7F, 0x80, 0x80, signed_zero=False),
    "float8_e5m2": Float(2, -14, 0x7B, 0x7C, 0x7F),
    "float8_e5m2fnuz": Float(2, -15, 0x7F, 0x80, 0x80, signed_zero=False),
    "float4_e2m1fn": Float(1, 0, 0x07, 0x07, 0x08, sign=0x08),
    "float6_e2m3fn": Float(3, 0, 0x1F, 0x1F, 0x20, sign=0x20),
    "float6_e3m2fn": Float(2, -2, 0x1F, 0x1F, 0x20, sign=0x20),
}


def held(x: Array | np.ndarray) -> Array:
    """The values of an input in a type that MLX has: int32 or float32 for one that it lacks."""
    if isinstance(x, Array):
        return x
    row = ELEM_TYPES[BY_NAME[x.dtype.name].code]
    return (
        mx.array(x, to_mlx(row.code)) if row.mlx else mx.array(x.astype(np.int32 if is_int(row.name) else np.float32))
    )


def is_int(name: str) -> bool:
    return "int" in name


def narrowed(x: T, code: int, saturate: bool = True, round_mode: str = "up") -> T:
    """x in an element type that MLX lacks: uint8 codes of an Array, the type itself of a numpy array."""
    row = ELEM_TYPES[code]
    if is_int(row.name):
        codes = x.astype(_of(x, "int32")) & ((1 << row.bits) - 1)
    elif row.name == "float8_e8m0fnu":
        codes = power_codes(x.astype(_of(x, "float32")), saturate, round_mode)
    else:
        codes = float_codes(x.astype(_of(x, "float32")), FLOATS[row.name], saturate)
    codes = codes.astype(_of(x, "uint8"))
    return of_codes(row, codes) if isinstance(codes, np.ndarray) else codes


def float_codes(x: T, kind: Float, saturate: bool) -> T:
    """Rounded to nearest, ties to even. Codes are in the order of their values, so a carry needs no care."""
    xp = np if isinstance(x, np.ndarray) else mx
    pattern = bits(x)
    size = xp.abs(x)
    infinite = size == np.inf
    finite = xp.where(infinite | xp.isnan(x), xp.zeros_like(size), size)
    exponent = xp.maximum((bits(finite) >> 23).astype(_of(x, "int32")) - 127, kind.lowest)
    steps = xp.round(finite * power_of_two(kind.mantissa - exponent)).astype(_of(x, "int32"))
    codes = ((exponent - kind.lowest) << kind.mantissa) + steps
    codes = xp.where(infinite | (codes > kind.largest), kind.largest if saturate else kind.overflow, codes)
    codes = xp.where(xp.isnan(x), kind.nan, codes)
    negative = (pattern >> 31) > 0
    if not kind.signed_zero:
        negative = negative & (codes > 0)
    return xp.where(negative, codes | kind.sign, codes)


def power_codes(x: T, saturate: bool, round_mode: str) -> T:
    """Powers of two from 2**-127 on: the exponent's field of a float32, 255 for NaN."""
    xp = np if isinstance(x, np.ndarray) else mx
    pattern = (bits(x) & 0x7FFFFFFF).astype(_of(x, "int32"))
    field, rest = pattern >> 23, pattern & 0x7FFFFF
    # below the normal numbers 2**-127 is the half of the mantissa's range
    half = xp.where(field > 0, 0x400000, 0x600000)
    exact = xp.where(field > 0, 0, 0x400000)
    up = {"up": rest > exact, "down": rest < 0, "nearest": rest >= half}[round_mode]
    codes = field + up.astype(_of(x, "int32"))
    too_large = (codes > 254) | (field == 255)
    codes = xp.where(too_large, 254 if saturate else 255, codes)
    if not saturate:
        codes = xp.where(pattern < 0x400000, 255, codes)
    return xp.where(xp.isnan(x), 255, codes)


def bits(x: T) -> T:
    """float32 as uint32."""
    return x.view(np.uint32) if isinstance(x, np.ndarray) else mx.view(x, mx.uint32)


def power_of_two(exponent: T) -> T:
    pattern = (exponent + 127) << 23
    return pattern.view(np.float32) if isinstance(pattern, np.ndarray) else mx.view(pattern, mx.float32)


def _of(x: Array | np.ndarray, name: str) -> Any:
    """The dtype of that name for a value of x's kind."""
    return np.dtype(name) if isinstance(x, np.ndarray) else getattr(mx, name)
