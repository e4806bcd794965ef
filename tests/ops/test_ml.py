"""Operators of ai.onnx.ml against ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

Check = Callable[..., None]
Draw = Callable[..., Any]
ML = "ai.onnx.ml"


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(check: Check, draw: Draw, norm: str, dtype: Any) -> None:
    check("Normalizer", draw(dtype, 4, 3, high=9) + dtype(1), domain=ML, norm=norm)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_scaler(check: Check, draw: Draw, dtype: Any) -> None:
    x = draw(dtype, 4, 3, high=9)
    check("Scaler", x, domain=ML, offset=[1.0, 2.0, 3.0], scale=[0.5, 1.0, 2.0])


def test_binarizer_and_imputer(check: Check, draw: Draw) -> None:
    x = draw(np.float32, 4, 3)
    check("Binarizer", x, domain=ML, threshold=0.25)
    x[1, 1] = x[2, 0] = np.nan
    check("Imputer", x, domain=ML, imputed_value_floats=[7.0, 8.0, 9.0], replaced_value_float=float("nan"))
    check("Imputer", draw(np.int64, 4, 3), domain=ML, imputed_value_int64s=[99], replaced_value_int64=2)


def test_features(check: Check, draw: Draw) -> None:
    a, b = draw(np.float32, 3, 2), draw(np.float32, 3, 4)
    check("FeatureVectorizer", a, b, domain=ML, inputdimensions=[2, 4])
    check("ArrayFeatureExtractor", b, np.array([[3, 0]]), domain=ML)
    check("ArrayFeatureExtractor", b[0], np.array([[3, 0]]), domain=ML)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_linear_models(check: Check, draw: Draw, transform: str) -> None:
    x = draw(np.float32, 5, 4)
    weights = {"coefficients": draw(np.float32, 12).tolist(), "intercepts": [0.1, -0.2, 0.3]}
    check("LinearRegressor", x, domain=ML, targets=3, post_transform=transform, rtol=1e-4, **weights)
    labels = {"classlabels_ints": [7, 5, 9], "multi_class": 1}
    check("LinearClassifier", x, domain=ML, outputs=2, post_transform=transform, rtol=1e-4, **labels, **weights)


def test_declined_forms(reasons: Callable[..., list[str]]) -> None:
    x = np.zeros((1, 2), np.float32)
    weights = {"coefficients": [1.0, 2.0], "intercepts": [0.5]}
    one_score = reasons("LinearClassifier", x, domain=ML, classlabels_ints=[0, 1], outputs=2, **weights)
    assert "integer labels" in one_score[0]


@pytest.mark.parametrize("transform", ["PROBIT", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_transforms(check: Check, draw: Draw, transform: str) -> None:
    x = np.abs(draw(np.float32, 3, 2)).clip(0, 1)
    how = {"coefficients": [0.2, 0.3, 0.1, 0.4], "intercepts": [0.1, 0.2], "targets": 2, "post_transform": transform}
    check("LinearRegressor", x, domain=ML, rtol=1e-3, **how)


@pytest.mark.parametrize("zeros", [0, 1])
@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64])
def test_one_hot_encoder(check: Check, dtype: Any, zeros: int) -> None:
    x = np.array([[3, 5], [7, 3]] if not zeros else [[3, 4], [7, -1]], dtype)
    check("OneHotEncoder", x, domain=ML, cats_int64s=[3, 5, 7], zeros=zeros)


def test_one_hot_encoder_of_int32(check: Check) -> None:
    expected = np.array([[0, 1, 0], [0, 0, 0]], np.float32)
    check("OneHotEncoder", np.array([5, 4], np.int32), expect=expected, domain=ML, cats_int64s=[3, 5, 7])


PAIRS: list[tuple[Any, str, list[Any], str, list[Any]]] = [
    (np.int64, "keys_int64s", [1, 5, -3], "values_floats", [0.5, 2.0, -1.0]),
    (np.int64, "keys_int64s", [1, 5, -3], "values_int64s", [7, 8, 9]),
    (np.float32, "keys_floats", [1.0, float("nan"), -3.0], "values_int64s", [7, 8, 9]),
    (np.float32, "keys_floats", [1.0, 5.0, -3.0], "values_floats", [0.5, 2.0, -1.0]),
]


@pytest.mark.parametrize(("dtype", "keys", "of", "values", "to"), PAIRS)
def test_label_encoder(check: Check, dtype: Any, keys: str, of: list[Any], values: str, to: list[Any]) -> None:
    x = np.array([[1, 5, 4], [-3, 1, 0]], dtype)
    if dtype is np.float32:
        x[0, 1] = np.nan
    example = np.zeros(x.shape, np.float32 if values == "values_floats" else np.int64)
    check("LabelEncoder", x, domain=ML, outputs=[example], **{keys: of, values: to})
    check(
        "LabelEncoder", x, domain=ML, outputs=[example], default_int64=42, default_float=4.5, **{keys: of, values: to}
    )


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.float64, np.int32, np.int16])
def test_label_encoder_of_tensors(check: Check, kind: Any) -> None:
    keys, values = np.array([1, 5, 3], kind), np.array([10, 20, 30], kind)
    x = np.array([[3, 1], [5, 9]], kind)
    how = {"keys_tensor": keys, "values_tensor": values, "default_tensor": np.array([7], kind)}
    tensors = {name: numpy_helper.from_array(value) for name, value in how.items()}
    check("LabelEncoder", x, expect=np.array([[30, 10], [20, 7]], kind), domain=ML, **tensors)


KERNELS = [
    ("LINEAR", [0.0, 0.0, 0.0]),
    ("POLY", [0.5, 1.0, 2.0]),
    ("RBF", [0.3, 0.0, 0.0]),
    ("SIGMOID", [0.2, 0.1, 0.0]),
]


@pytest.mark.parametrize(("kernel", "parameters"), KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_support_vector_regressor(
    check: Check, draw: Draw, kernel: str, parameters: list[float], one_class: int
) -> None:
    x = draw(np.float32, 6, 3)
    how: dict[str, Any] = {"kernel_type": kernel, "one_class": one_class, "rho": [0.3], "domain": ML}
    how |= {"kernel_params": parameters}
    supports = {"support_vectors": draw(np.float32, 12).tolist(), "n_supports": 4}
    check("SVMRegressor", x, coefficients=draw(np.float32, 4).tolist(), rtol=1e-3, **supports, **how)
    if kernel == "LINEAR":
        check("SVMRegressor", x, coefficients=draw(np.float32, 3).tolist(), rtol=1e-3, **how)


@pytest.mark.parametrize(("kernel", "parameters"), KERNELS)
def test_support_vector_classifier(check: Check, draw: Draw, kernel: str, parameters: list[float]) -> None:
    how: dict[str, Any] = {"kernel_type": kernel, "classlabels_ints": [2, 5, 7, 8], "vectors_per_class": [2, 1, 3, 2]}
    how |= {"kernel_params": parameters}
    how |= {"coefficients": draw(np.float32, 24).tolist(), "support_vectors": draw(np.float32, 24).tolist()}
    x, rho = draw(np.float32, 12, 3), draw(np.float32, 6).tolist()
    check("SVMClassifier", x, domain=ML, outputs=2, rtol=1e-3, rho=rho, **how)
