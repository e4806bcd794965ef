"""Conversions between element types."""

from __future__ import annotations

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.dtypes import ELEM_TYPES, numpy_dtype, to_mlx
from ort_ep.graph import Node
from ort_ep.registry import ANY, op

# int4, float8 and the like: types that MLX lacks, whose values arrive as numpy
NARROW = frozenset(row.name for row in ELEM_TYPES.values() if row.numpy and not row.mlx and row.bits <= 8)


def held(x: Array | np.ndarray) -> Array:
    """The values of an input in a type that MLX has: int32 or float32 for one that it lacks."""
    if isinstance(x, Array):
        return x
    return mx.array(x.astype(np.int32 if "int" in x.dtype.name else np.float32))


def to_mlx_type(node: Node) -> str | None:
    target = node.outputs[0]
    if target is not None and target.dtype not in ANY:
        return f"MLX has no {target.dtype}"
    return None


def fold_cast(x: np.ndarray, *, to: int, saturate: int = 1, round_mode: str = "up") -> np.ndarray:
    return x.astype(numpy_dtype(to))


@op("Cast", since=6, dtypes=ANY | NARROW, claim=to_mlx_type, fold=fold_cast)
def cast(x: Array | np.ndarray, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    return held(x).astype(to_mlx(to))


@op("CastLike", since=15, dtypes={"T1": ANY | NARROW, "T2": ANY})
def cast_like(x: Array | np.ndarray, target: Array, *, saturate: int = 1, round_mode: str = "up") -> Array:
    return held(x).astype(target.dtype)


@op("BitCast", since=26, dtypes=ANY, claim=to_mlx_type)
def bit_cast(x: Array, *, to: int) -> Array:
    return mx.view(x, to_mlx(to))
