"""Operators of ai.onnx.ml against ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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
