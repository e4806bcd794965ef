"""Conversions between element types."""

from __future__ import annotations

import numpy as np

import mlxc_py as mx
from mlxc_py import Array, cpu_primitives
from ort_ep.dtypes import BY_NUMPY, NARROW, name_of, numpy_dtype, to_mlx
from ort_ep.graph import Node
from ort_ep.ops.narrow import held, narrowed
from ort_ep.registry import ANY, op


def to_mlx_type(node: Node) -> str | None:
    """The result must be of a dtype that MLX has."""
    target = node.outputs[0]
    if target is not None and target.dtype not in ANY:
        return f"MLX has no {target.dtype}"
    return None


def fold_cast(x: np.ndarray, *, to: int, saturate: int = 1, round_mode: str = "up") -> np.ndarray:
    if name_of(to) in NARROW:
        return narrowed(x.astype(np.float32) if x.dtype not in BY_NUMPY else x, to, bool(saturate), round_mode)
    return x.astype(numpy_dtype(to))


@op("Cast", since=6, dtypes={"x": ANY | NARROW, "return": ANY | NARROW}, fold=fold_cast)
def cast(x: Array | np.ndarray, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    x = held(x)
    return (
        narrowed(x, to, bool(saturate), round_mode) if name_of(to) in NARROW else cpu_primitives.convert(x, to_mlx(to))
    )


def fold_cast_like(x: np.ndarray, target: np.ndarray, *, saturate: int = 1, round_mode: str = "up") -> np.ndarray:
    return fold_cast(x, to=BY_NUMPY[target.dtype].code, saturate=saturate, round_mode=round_mode)


@op("CastLike", since=15, dtypes=dict.fromkeys(("x", "target", "return"), ANY | NARROW), fold=fold_cast_like)
def cast_like(x: Array | np.ndarray, target: Array | np.ndarray, *, saturate: int = 1, round_mode: str = "up") -> Array:
    if isinstance(target, Array):
        return cpu_primitives.convert(held(x), target.dtype)
    return narrowed(held(x), BY_NUMPY[target.dtype].code, bool(saturate), round_mode)


@op("BitCast", since=26, dtypes=ANY, claim=to_mlx_type)
def bit_cast(x: Array, *, to: int) -> Array:
    return mx.view(x, to_mlx(to))
