"""MLX's element types, and the numpy dtypes they correspond to (bfloat16 through ml_dtypes)."""

from __future__ import annotations

import enum
from typing import Any

import ml_dtypes
import numpy as np


class DtypeCategory(enum.Enum):
    """Families of dtypes, for issubdtype."""

    complexfloating = "complexfloating"
    floating = "floating"
    inexact = "inexact"
    signedinteger = "signedinteger"
    unsignedinteger = "unsignedinteger"
    integer = "integer"
    number = "number"
    generic = "generic"


complexfloating = DtypeCategory.complexfloating
floating = DtypeCategory.floating
inexact = DtypeCategory.inexact
signedinteger = DtypeCategory.signedinteger
unsignedinteger = DtypeCategory.unsignedinteger
integer = DtypeCategory.integer
number = DtypeCategory.number
generic = DtypeCategory.generic

_PARENT = {
    complexfloating: inexact,
    floating: inexact,
    inexact: number,
    signedinteger: integer,
    unsignedinteger: integer,
    integer: number,
    number: generic,
}


class Dtype:
    """An element type: `name`, `size` in bytes, `code` (MLX's enum value) and `numpy` (its numpy dtype)."""

    __slots__ = ("category", "code", "name", "numpy", "size")

    def __init__(self, name: str, code: int, numpy: Any, category: DtypeCategory) -> None:
        self.name = name
        self.code = code
        self.numpy: np.dtype[Any] = np.dtype(numpy)
        self.size = self.numpy.itemsize
        self.category = category

    def __repr__(self) -> str:
        return f"mlxc_py.{self.name}"

    def __reduce__(self) -> str:
        return self.name + "_" if self.name == "bool" else self.name


bool_ = Dtype("bool", 0, np.bool_, generic)
uint8 = Dtype("uint8", 1, np.uint8, unsignedinteger)
uint16 = Dtype("uint16", 2, np.uint16, unsignedinteger)
uint32 = Dtype("uint32", 3, np.uint32, unsignedinteger)
uint64 = Dtype("uint64", 4, np.uint64, unsignedinteger)
int8 = Dtype("int8", 5, np.int8, signedinteger)
int16 = Dtype("int16", 6, np.int16, signedinteger)
int32 = Dtype("int32", 7, np.int32, signedinteger)
int64 = Dtype("int64", 8, np.int64, signedinteger)
float16 = Dtype("float16", 9, np.float16, floating)
float32 = Dtype("float32", 10, np.float32, floating)
float64 = Dtype("float64", 11, np.float64, floating)
bfloat16 = Dtype("bfloat16", 12, ml_dtypes.bfloat16, floating)
complex64 = Dtype("complex64", 13, np.complex64, complexfloating)

DTYPES: tuple[Dtype, ...] = (
    bool_,
    uint8,
    uint16,
    uint32,
    uint64,
    int8,
    int16,
    int32,
    int64,
    float16,
    float32,
    float64,
    bfloat16,
    complex64,
)
"""Indexed by MLX's enum value."""

_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES}


def dtype_of(dtype: Any) -> Dtype:
    """The Dtype for a Dtype, numpy dtype or anything numpy takes as one; TypeError where MLX has none."""
    if isinstance(dtype, Dtype):
        return dtype
    if isinstance(dtype, np.dtype) and dtype in _BY_NUMPY:
        return _BY_NUMPY[dtype]
    found = _BY_NUMPY.get(np.dtype(dtype).newbyteorder("="))
    if found is None:
        raise TypeError(f"MLX has no dtype for {np.dtype(dtype)}; it has {', '.join(d.name for d in DTYPES)}")
    return found


def issubdtype(arg1: Dtype | DtypeCategory, arg2: Dtype | DtypeCategory) -> bool:
    """Whether arg1 is arg2 or lies in its family."""
    if isinstance(arg2, Dtype):
        return arg1 is arg2
    category: DtypeCategory | None = arg1.category if isinstance(arg1, Dtype) else arg1
    while category is not None:
        if category is arg2:
            return True
        category = _PARENT.get(category)
    return False


_KINDS: dict[str, tuple[DtypeCategory, ...]] = {
    "signed integer": (signedinteger,),
    "unsigned integer": (unsignedinteger,),
    "integral": (integer,),
    "real floating": (floating,),
    "complex floating": (complexfloating,),
    "numeric": (number,),
}


def isdtype(dtype: Dtype, kind: Dtype | str | tuple[Dtype | str, ...]) -> bool:
    """Whether dtype is of a kind of the array API standard ("bool", "integral", "real floating", ...)."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, Dtype):
        return dtype is kind
    if kind == "bool":
        return dtype is bool_
    if kind not in _KINDS:
        raise ValueError(f"isdtype: unknown kind {kind!r}; known: bool, {', '.join(_KINDS)}")
    return any(issubdtype(dtype, category) for category in _KINDS[kind])


class finfo:
    """Limits of a floating dtype: min, max, eps, smallest_normal, bits."""

    def __init__(self, dtype: Dtype) -> None:
        if not issubdtype(dtype, inexact):
            raise ValueError(f"finfo: {dtype.name} is not a floating dtype")
        info = ml_dtypes.finfo(dtype.numpy)
        self.dtype = float32 if dtype is complex64 else dtype
        self.min, self.max = float(info.min), float(info.max)
        self.eps, self.smallest_normal = float(info.eps), float(info.smallest_normal)
        self.bits = int(info.bits)

    def __repr__(self) -> str:
        return f"finfo(min={self.min}, max={self.max}, dtype={self.dtype.name})"


class iinfo:
    """Limits of an integer dtype: min, max, bits."""

    def __init__(self, dtype: Dtype) -> None:
        if not issubdtype(dtype, integer):
            raise ValueError(f"iinfo: {dtype.name} is not an integer dtype")
        info = np.iinfo(dtype.numpy)
        self.dtype, self.min, self.max, self.bits = dtype, int(info.min), int(info.max), int(info.bits)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype.name})"
