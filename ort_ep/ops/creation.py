"""Tensors made from attributes and shapes."""

from __future__ import annotations

import math

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.dtypes import numpy_dtype, to_mlx
from ort_ep.ops.cast import to_mlx_type
from ort_ep.registry import ANY, NUMERIC, op


@op("ConstantOfShape", since=9, host=("shape",), dtypes=ANY, fold=True)
def constant_of_shape(shape: np.ndarray, *, value: np.ndarray | None = None) -> np.ndarray:
    value = np.zeros(1, np.float32) if value is None else value
    return np.broadcast_to(value.reshape([]), shape.tolist())


@op("EyeLike", since=9, dtypes=ANY)
def eye_like(x: Array, *, dtype: int | None = None, k: int = 0) -> Array:
    rows, columns = x.shape
    diagonal = mx.arange(rows)[:, None] + max(-rows, min(k, columns)) == mx.arange(columns)
    return diagonal.astype(x.dtype if dtype is None else to_mlx(dtype))


@op("Range", since=11, host=("start", "limit", "delta"), dtypes=NUMERIC, fold=True)
def range_(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> np.ndarray:
    span, step = limit.item() - start.item(), delta.item()
    count = max(-(-span // step) if isinstance(span, int) else math.ceil(span / step), 0)
    return (start + delta * np.arange(count).astype(start.dtype)).astype(start.dtype).reshape(count)


@op("Range", since=27, host=("start", "limit", "delta"), dtypes=NUMERIC, fold=True)
def range_27(start: np.ndarray, limit: np.ndarray, delta: np.ndarray, *, stash_type: int = 1) -> np.ndarray:
    if stash_type != 1 or start.dtype.itemsize != 2 or start.dtype.kind in "iu":
        return range_(start, limit, delta)
    return range_(*(value.astype(np.float32) for value in (start, limit, delta))).astype(start.dtype)


@op(
    "MelWeightMatrix",
    since=17,
    host=("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz"),
    dtypes=NUMERIC,
    claim=to_mlx_type,
    fold=True,
)
def mel_weight_matrix(
    num_mel_bins: np.ndarray,
    dft_length: np.ndarray,
    sample_rate: np.ndarray,
    lower_edge_hertz: np.ndarray,
    upper_edge_hertz: np.ndarray,
    *,
    output_datatype: int = 1,
) -> np.ndarray:
    bins, length, rate = int(num_mel_bins.item()), int(dft_length.item()), int(sample_rate.item())
    low, high = (2595 * np.log10(1 + edge.item() / 700) for edge in (lower_edge_hertz, upper_edge_hertz))
    mels = np.arange(bins + 2) * ((high - low) / (bins + 2)) + low
    centres = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(np.int64)
    left, middle, right = centres[:-2], centres[1:-1], centres[2:]
    spectrum = np.arange(length // 2 + 1)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = np.where(middle == left, spectrum == middle, (spectrum - left) / (middle - left))
        falling = (right - spectrum) / (right - middle)
    weights = np.where(spectrum <= middle, rising, falling)
    inside = (spectrum >= left) & ((spectrum <= middle) | (spectrum < right))
    return np.where(inside, weights, 0).astype(numpy_dtype(output_datatype))
