"""The one table between ONNX element types, numpy dtypes and MLX dtypes.

Dtypes are named as numpy and ml_dtypes name them ("float32", "bfloat16", "int4"): registry sets, claim reasons and
docs/OPS.md all use these names.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np

import mlxc_py as mx


@dataclass(frozen=True, slots=True)
class ElemType:
    """One ONNX element type: `numpy` holds it on the host, `mlx` names the MLX dtype of the same values, or None."""

    code: int
    name: str
    numpy: np.dtype[Any] | None
    bits: int
    mlx: str | None = None

    def nbytes(self, count: int) -> int:
        """Bytes that `count` elements take in an ONNX tensor (sub-byte types are packed)."""
        return (count * self.bits + 7) // 8


def _rows() -> list[ElemType]:
    plain = {"float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "float16": 10}
    plain |= {"float64": 11, "uint32": 12, "uint64": 13, "complex64": 14}
    rows = [ElemType(code, name, np.dtype(name), np.dtype(name).itemsize * 8, name) for name, code in plain.items()]
    rows += [
        ElemType(8, "string", None, 0),
        ElemType(9, "bool", np.dtype(np.bool_), 8, "bool_"),
        ElemType(15, "complex128", np.dtype(np.complex128), 128),
        ElemType(16, "bfloat16", np.dtype(ml_dtypes.bfloat16), 16, "bfloat16"),
    ]
    narrow = [(17, "float8_e4m3fn", 8), (18, "float8_e4m3fnuz", 8), (19, "float8_e5m2", 8), (20, "float8_e5m2fnuz", 8)]
    narrow += [(21, "uint4", 4), (22, "int4", 4), (23, "float4_e2m1fn", 4), (24, "float8_e8m0fnu", 8)]
    narrow += [(25, "uint2", 2), (26, "int2", 2), (27, "float6_e2m3fn", 6), (28, "float6_e3m2fn", 6)]
    return rows + [ElemType(code, name, np.dtype(getattr(ml_dtypes, name)), bits) for code, name, bits in narrow]


ELEM_TYPES: Final[dict[int, ElemType]] = {row.code: row for row in _rows()}
OF_MLX: Final = frozenset(row.code for row in ELEM_TYPES.values() if row.mlx)
NARROW: Final = frozenset(row.name for row in ELEM_TYPES.values() if row.numpy and not row.mlx and row.bits <= 8)
NARROW_CODES: Final = frozenset(row.code for row in ELEM_TYPES.values() if row.name in NARROW)
BY_NAME: Final[dict[str, ElemType]] = {row.name: row for row in ELEM_TYPES.values()}
BY_NUMPY: Final[dict[np.dtype[Any], ElemType]] = {row.numpy: row for row in ELEM_TYPES.values() if row.numpy}


def name_of(code: int) -> str:
    """The dtype's name for messages, also for a code this table does not know."""
    row = ELEM_TYPES.get(code)
    return row.name if row else f"ONNX element type {code}"


@cache
def to_mlx(code: int) -> mx.Dtype:
    """The MLX dtype of an ONNX element type; TypeError where MLX has none."""
    row = ELEM_TYPES.get(code)
    if row is None or row.mlx is None:
        raise TypeError(f"MLX has no dtype for {name_of(code)}; such tensors stay on the CPU provider")
    dtype: mx.Dtype = getattr(mx, row.mlx)
    return dtype


def device_dtype(code: int) -> mx.Dtype:
    """The MLX dtype that carries an element type: of one that MLX lacks, uint8 carries the bit patterns."""
    row = ELEM_TYPES.get(code)
    return mx.uint8 if row is not None and row.name in NARROW else to_mlx(code)


def of_codes(row: ElemType, codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bit patterns, one per uint8, as values of a type of at most 8 bits."""
    assert row.numpy is not None
    if "float" in row.name:
        return codes.view(row.numpy)
    if row.name.startswith("int"):
        sign = 1 << (row.bits - 1)
        codes = (codes.astype(np.int8) ^ sign) - sign
    return codes.astype(row.numpy)


def packed(code: int, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of an ONNX tensor: sub-byte values, given as such or as bit patterns, share bytes, first one lowest."""
    row = ELEM_TYPES[code]
    content = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray makes 0-d arrays 1-d
    if row.bits >= 8:
        return content
    content = content.reshape(-1)
    codes = content.view(np.uint8) if content.dtype.itemsize == 1 else content.astype(np.int8).view(np.uint8)
    lowest = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, : row.bits]
    return np.packbits(lowest.reshape(-1), bitorder="little")


def on_device(value: mx.Array | np.ndarray[Any, Any]) -> mx.Array:
    """The value as an MLX array of the same dtype (numpy's float64 included, which mx.array would make float32)."""
    return mx.array(value, to_mlx(BY_NUMPY[value.dtype].code)) if isinstance(value, np.ndarray) else value


def numpy_dtype(code: int) -> np.dtype[Any]:
    """The numpy dtype that holds an ONNX element type; TypeError for strings and unknown codes."""
    row = ELEM_TYPES.get(code)
    if row is None or row.numpy is None:
        raise TypeError(f"numpy has no fixed-size dtype for {name_of(code)}")
    return row.numpy
