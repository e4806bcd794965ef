"""Dropout: the identity at inference; in training it drops elements and scales the rest."""

from __future__ import annotations

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops.random import new_key
from ort_ep.registry import FLOATS, MICROSOFT, op


@op("Dropout", since=7, dtypes=FLOATS)
def dropout_7(x: Array, *, ratio: float = 0.5, n_outputs: int) -> tuple[Array, ...]:
    return (x, mx.ones_like(x))[:n_outputs]


@op("Dropout", since=10, dtypes=FLOATS)
def dropout_10(x: Array, *, ratio: float = 0.5, n_outputs: int) -> tuple[Array, ...]:
    return (x, mx.ones(x.shape, mx.bool_))[:n_outputs]


@op("Dropout", since=12, host=("ratio", "training_mode"), dtypes={"x": FLOATS})
def dropout(
    x: Array,
    ratio: np.ndarray | None = None,
    training_mode: np.ndarray | None = None,
    *,
    seed: int | None = None,
    n_outputs: int,
) -> tuple[Array, ...]:
    dropped = 0.5 if ratio is None else float(ratio.item())
    if training_mode is None or not training_mode.item() or dropped == 0:
        return dropout_10(x, n_outputs=n_outputs)
    mask = mx.random.uniform(0, 1, x.shape, key=new_key(seed)) >= dropped
    return (mx.where(mask, x / (1 - dropped), mx.zeros_like(x)), mask)[:n_outputs]


@op("BiasDropout", domain=MICROSOFT, host=("ratio", "training_mode"), dtypes={"data": FLOATS}, pure=False)
def bias_dropout(
    data: Array,
    bias: Array,
    residual: Array | None = None,
    ratio: np.ndarray | None = None,
    training_mode: np.ndarray | None = None,
    *,
    seed: int | None = None,
    n_outputs: int,
) -> tuple[Array, ...]:
    y, *mask = dropout(data + bias, ratio, training_mode, seed=seed, n_outputs=n_outputs)
    return (y if residual is None else y + residual, *mask)
