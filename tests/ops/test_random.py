"""Random operators: type, shape, moments, and what a seed means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ort_ep import dtypes

Run = Callable[..., Any]
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


@pytest.fixture
def run(model_of: Callable[..., Any], plan_of: Callable[..., Any]) -> Run:
    def run(op: str, *inputs: Any, like: Any, **attributes: Any) -> Any:
        model = model_of(op, inputs, 22, "", (), [like], **attributes)
        (value,) = plan_of(model, {f"x{i}": value for i, value in enumerate(inputs)})
        assert (value.dtype, value.shape) == (like.dtype, like.shape)
        return value

    return run


@pytest.mark.parametrize("dtype", FLOATS)
def test_moments(run: Run, dtype: Any) -> None:
    code, like = dtypes.BY_NUMPY[np.dtype(dtype)].code, np.zeros((100, 100), dtype)
    shape = {"shape": [100, 100], "dtype": code}
    for value in (
        run("RandomNormal", like=like, mean=2.0, scale=3.0, **shape),
        run("RandomNormalLike", like, like=like, mean=2.0, scale=3.0),
    ):
        assert abs(value.astype(np.float64).mean() - 2) < 0.2
        assert abs(value.astype(np.float64).std() - 3) < 0.2
    for value in (
        run("RandomUniform", like=like, low=2.0, high=4.0, **shape),
        run("RandomUniformLike", np.zeros((100, 100), np.int32), like=like, low=2.0, high=4.0, dtype=code),
    ):
        wide = value.astype(np.float64)
        assert wide.min() >= 2
        assert wide.max() <= 4
        assert abs(wide.mean() - 3) < 0.1


@pytest.mark.parametrize("op", ["RandomNormal", "RandomUniform"])
def test_seeds(run: Run, op: str) -> None:
    like = np.zeros(50, np.float32)
    assert (run(op, like=like, shape=[50]) != run(op, like=like, shape=[50])).any()
    seeded = [run(op, like=like, shape=[50], seed=3.5) for _ in range(2)]
    np.testing.assert_array_equal(*seeded)
    assert (seeded[0] != run(op, like=like, shape=[50], seed=4.5)).any()


def test_multinomial(run: Run) -> None:
    odds = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], np.float32))
    value = run("Multinomial", odds, like=np.zeros((2, 4000), np.int32), sample_size=4000)
    shares = np.stack([np.bincount(row, minlength=3) / 4000 for row in value])
    np.testing.assert_allclose(shares, np.exp(odds), atol=0.04)
