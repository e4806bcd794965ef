"""Dropout at inference: the identity. Training draws random numbers and stays on the CPU provider."""

from __future__ import annotations

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.graph import Node
from ort_ep.registry import FLOATS, op


def inference_only(node: Node) -> str | None:
    if node.input(2) is None:
        return None
    training = node.constant(2)
    return None if training is not None and not training.any() else "training_mode may be true"


@op("Dropout", since=7, dtypes=FLOATS, pure=True)
def dropout_7(x: Array, *, ratio: float = 0.5, n_outputs: int) -> tuple[Array, ...]:
    return (x, mx.ones_like(x))[:n_outputs]


@op("Dropout", since=10, dtypes=FLOATS, pure=True)
def dropout_10(x: Array, *, ratio: float = 0.5, n_outputs: int) -> tuple[Array, ...]:
    return (x, mx.ones(x.shape, mx.bool_))[:n_outputs]


@op("Dropout", since=12, host=("ratio", "training_mode"), dtypes={"data": FLOATS}, claim=inference_only, pure=True)
def dropout(
    x: Array,
    ratio: np.ndarray | None = None,
    training_mode: np.ndarray | None = None,
    *,
    seed: int | None = None,
    n_outputs: int,
) -> tuple[Array, ...]:
    return dropout_10(x, n_outputs=n_outputs)
