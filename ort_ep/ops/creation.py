"""Tensors made from attributes and shapes."""

from __future__ import annotations

import math

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.dtypes import to_mlx
from ort_ep.registry import ANY, NUMERIC, op


@op("ConstantOfShape", since=9, host=("shape",), dtypes=ANY, fold=True)
def constant_of_shape(shape: np.ndarray, *, value: np.ndarray | None = None) -> np.ndarray:
    value = np.zeros(1, np.float32) if value is None else value
    return np.broadcast_to(value.reshape([]), shape.tolist())


@op("EyeLike", since=9, dtypes=ANY)
def eye_like(x: Array, *, dtype: int | None = None, k: int = 0) -> Array:
    rows, columns = x.shape
    return mx.eye(rows, columns, k, x.dtype if dtype is None else to_mlx(dtype))


@op("Range", since=11, host=("start", "limit", "delta"), dtypes=NUMERIC, fold=True)
def range_(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> np.ndarray:
    span, step = limit.item() - start.item(), delta.item()
    count = max(-(-span // step) if isinstance(span, int) else math.ceil(span / step), 0)
    return (start + delta * np.arange(count).astype(start.dtype)).astype(start.dtype).reshape(count)
