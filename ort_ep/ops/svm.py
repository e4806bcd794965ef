"""Support vector machines of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.graph import Node
from ort_ep.ops import precision
from ort_ep.ops.ml import ML, POST_TRANSFORMS, TABULAR, known_transform
from ort_ep.ops.reduction import arg_max
from ort_ep.registry import op


def radial(x: Array, vectors: Array, gamma: float, constant: float, degree: float) -> Array:
    squares = mx.sum(mx.square(x[:, None] - vectors), -1)
    return precision.exp(-gamma * squares)


# of rows [N, features], support vectors [S, features], and gamma, coef0 and degree
KERNELS: dict[str, Callable[[Array, Array, float, float, float], Array]] = {
    "LINEAR": lambda x, v, gamma, constant, degree: mx.matmul(x, v.T),
    "POLY": lambda x, v, gamma, constant, degree: mx.power(gamma * mx.matmul(x, v.T) + constant, degree),
    "SIGMOID": lambda x, v, gamma, constant, degree: precision.tanh(gamma * mx.matmul(x, v.T) + constant),
    "RBF": radial,
}


def kernel_of(x: Array, vectors: Sequence[float], count: int, kind: str, parameters: Sequence[float]) -> Array:
    """[N, count]: the kernel of every row and support vector."""
    rows = x.astype(mx.float32).reshape([-1, x.shape[-1]])
    gamma, constant, degree = parameters or (0.0, 0.0, 0.0)
    return KERNELS[kind](rows, mx.array(vectors, mx.float32).reshape([count, -1]), gamma, constant, degree)


@op("SVMRegressor", domain=ML, dtypes=TABULAR, claim=known_transform)
def svm_regressor(
    x: Array,
    *,
    coefficients: Sequence[float],
    kernel_params: Sequence[float] = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Sequence[float],
    support_vectors: Sequence[float] = (),
) -> Array:
    if n_supports:
        products = kernel_of(x, support_vectors, n_supports, kernel_type, kernel_params)
        weights = mx.array(coefficients, mx.float32).reshape([-1, 1])
    else:
        # without support vectors the coefficients are the one vector
        products = kernel_of(x, coefficients, 1, kernel_type, kernel_params)
        weights = mx.ones([1, 1])
    y = mx.matmul(products, weights) + rho[0]
    if one_class:
        return mx.where(y > 0, mx.ones_like(y), -mx.ones_like(y))
    return POST_TRANSFORMS[post_transform](y)


def integer_votes(node: Node) -> str | None:
    """Support vectors, three or more integer labels, and no probabilities."""
    attributes = node.attributes
    if len(attributes.get("classlabels_ints", ())) < 3:
        return "only machines with three or more integer labels are translated"
    if attributes.get("prob_a"):
        return "probabilities need an iteration that ends when it has converged"
    if not attributes.get("vectors_per_class"):
        return "linear machines are not translated"
    return known_transform(node)


@op("SVMClassifier", domain=ML, dtypes={"x": TABULAR}, claim=integer_votes)
def svm_classifier(
    x: Array,
    *,
    classlabels_ints: Sequence[int],
    classlabels_strings: Sequence[str] = (),
    coefficients: Sequence[float],
    kernel_params: Sequence[float] = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Sequence[float] = (),
    prob_b: Sequence[float] = (),
    rho: Sequence[float],
    support_vectors: Sequence[float],
    vectors_per_class: Sequence[int],
) -> tuple[Array, Array]:
    total, classes = sum(vectors_per_class), len(classlabels_ints)
    products = kernel_of(x, support_vectors, total, kernel_type, kernel_params)
    ends = np.cumsum([0, *vectors_per_class])
    rows = np.reshape(np.array(coefficients, np.float32), (-1, total))
    pairs = list(combinations(range(classes), 2))
    # each pair of classes is told apart by the vectors of the two alone
    weights = np.zeros([total, len(pairs)], np.float32)
    votes_for, votes_against = (np.zeros([len(pairs), classes], np.float32) for _ in range(2))
    for column, (one, other) in enumerate(pairs):
        weights[ends[one] : ends[one + 1], column] = rows[other - 1, ends[one] : ends[one + 1]]
        weights[ends[other] : ends[other + 1], column] = rows[one, ends[other] : ends[other + 1]]
        votes_for[column, one] = votes_against[column, other] = 1
    scores = mx.matmul(products, mx.array(weights)) + mx.array(rho, mx.float32)
    won = (scores > 0).astype(mx.float32)
    votes = mx.matmul(won, mx.array(votes_for)) + mx.matmul(1 - won, mx.array(votes_against))
    labels = mx.array(list(classlabels_ints), mx.int64)
    return mx.take(labels, arg_max(votes, axis=-1, keepdims=0)), POST_TRANSFORMS[post_transform](scores)
