"""Conversions between element types."""

from __future__ import annotations

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.dtypes import numpy_dtype, to_mlx
from ort_ep.graph import Node
from ort_ep.registry import ANY, op


def to_mlx_type(node: Node) -> str | None:
    target = node.outputs[0]
    if target is not None and target.dtype not in ANY:
        return f"MLX has no {target.dtype}"
    return None


def fold_cast(x: np.ndarray, *, to: int, saturate: int = 1, round_mode: str = "up") -> np.ndarray:
    return x.astype(numpy_dtype(to))


@op("Cast", since=6, dtypes=ANY, claim=to_mlx_type, fold=fold_cast)
def cast(x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    return x.astype(to_mlx(to))


@op("CastLike", since=15, dtypes=ANY)
def cast_like(x: Array, target: Array, *, saturate: int = 1, round_mode: str = "up") -> Array:
    return x.astype(target.dtype)


@op("BitCast", since=26, dtypes=ANY, claim=to_mlx_type)
def bit_cast(x: Array, *, to: int) -> Array:
    return mx.view(x, to_mlx(to))
