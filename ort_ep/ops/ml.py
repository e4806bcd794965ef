"""Operators of ai.onnx.ml on numbers; what has strings or maps stays on the CPU provider."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.graph import Node
from ort_ep.ops import precision
from ort_ep.ops.indexing import gather
from ort_ep.ops.reduction import arg_max
from ort_ep.registry import INDEX, op

ML = "ai.onnx.ml"
TABULAR = INDEX | {"float32", "float64"}


def softmax_zero(scores: Array) -> Array:
    """Softmax in which scores of zero stay zero."""
    peak = mx.max(scores, -1, keepdims=True)
    shares = mx.where(mx.abs(scores) > 1e-7, precision.exp(scores - peak), scores * precision.exp(-peak))
    return shares / mx.sum(shares, -1, keepdims=True)


POST_TRANSFORMS: dict[str, Callable[[Array], Array]] = {
    "NONE": lambda scores: scores,
    "LOGISTIC": precision.sigmoid,
    "PROBIT": lambda scores: math.sqrt(2) * mx.erfinv(2 * scores - 1),
    "SOFTMAX": lambda scores: precision.softmax(scores, -1),
    "SOFTMAX_ZERO": softmax_zero,
}


def known_transform(node: Node) -> str | None:
    """Only the post_transforms of the specification."""
    name = node.attributes.get("post_transform", "NONE")
    return None if name in POST_TRANSFORMS else f"post_transform {name} is not supported"


@op("Normalizer", domain=ML, dtypes=TABULAR)
def normalizer(x: Array, *, norm: str = "MAX") -> Array:
    x = x.astype(mx.float32)
    match norm:
        case "L1":
            size = mx.sum(mx.abs(x), -1, keepdims=True)
        case "L2":
            size = mx.sqrt(mx.sum(mx.square(x), -1, keepdims=True))
        case _:
            size = mx.max(x, -1, keepdims=True)
    return mx.where(size == 0, x, x / size)


@op("Scaler", domain=ML, dtypes=TABULAR)
def scaler(x: Array, *, offset: Sequence[float] = (0.0,), scale: Sequence[float] = (1.0,)) -> Array:
    return (x.astype(mx.float32) - mx.array(offset, mx.float32)) * mx.array(scale, mx.float32)


@op("Binarizer", domain=ML, dtypes=TABULAR)
def binarizer(x: Array, *, threshold: float = 0.0) -> Array:
    return (x > threshold).astype(x.dtype)


@op("Imputer", domain=ML, dtypes=TABULAR)
def imputer(
    x: Array,
    *,
    imputed_value_floats: Sequence[float] = (),
    imputed_value_int64s: Sequence[int] = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Array:
    if imputed_value_floats:
        missing = mx.isnan(x) if np.isnan(replaced_value_float) else x == replaced_value_float
        return mx.where(missing, mx.array(imputed_value_floats, x.dtype), x)
    return mx.where(x == replaced_value_int64, mx.array(imputed_value_int64s, x.dtype), x)


@op("FeatureVectorizer", domain=ML, dtypes=TABULAR)
def feature_vectorizer(*inputs: Array, inputdimensions: Sequence[int] = ()) -> Array:
    rows = [x.astype(mx.float32).reshape([x.shape[0], math.prod(x.shape[1:])]) for x in inputs]
    return mx.concatenate([row[:, :size] for row, size in zip(rows, inputdimensions, strict=True)], 1)


@op("ArrayFeatureExtractor", domain=ML, dtypes={"x": TABULAR})
def array_feature_extractor(x: Array, y: Array) -> Array:
    chosen = gather(x, y.flatten(), axis=-1)
    return chosen.reshape([1, -1]) if x.ndim == 1 else chosen


@op("LinearRegressor", domain=ML, dtypes=TABULAR, claim=known_transform)
def linear_regressor(
    x: Array,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    post_transform: str = "NONE",
    targets: int = 1,
) -> Array:
    return POST_TRANSFORMS[post_transform](linear_scores(x, coefficients, intercepts, targets))


def several_integer_classes(node: Node) -> str | None:
    """Two or more integer labels, with a score for each."""
    if len(node.attributes.get("classlabels_ints", ())) < 2 or len(node.attributes.get("intercepts", ())) < 2:
        return "only integer labels, with a score for each, are translated"
    return known_transform(node)


@op("LinearClassifier", domain=ML, dtypes={"x": TABULAR}, claim=several_integer_classes)
def linear_classifier(
    x: Array,
    *,
    classlabels_ints: Sequence[int],
    classlabels_strings: Sequence[str] = (),
    coefficients: Sequence[float],
    intercepts: Sequence[float],
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Array, Array]:
    scores = linear_scores(x, coefficients, intercepts, len(intercepts))
    label = mx.take(mx.array(classlabels_ints, mx.int64), arg_max(scores, axis=-1, keepdims=0))
    return label, POST_TRANSFORMS[post_transform](scores)


def linear_scores(x: Array, coefficients: Sequence[float], intercepts: Sequence[float], targets: int) -> Array:
    rows = x.astype(mx.float32).reshape([-1, x.shape[-1]])
    # ORT, too, leaves coefficients alone that the features don't reach
    used = mx.array(coefficients[: targets * x.shape[-1]], mx.float32)
    product = mx.matmul(rows, used.reshape([targets, -1]).T)
    return product + mx.array(intercepts, mx.float32) if intercepts else product
