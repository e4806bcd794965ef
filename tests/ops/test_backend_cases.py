"""ONNX's own node cases: every one whose operators are all claimed must give ONNX's expected outputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ort_ep import proto
from ort_ep.capability import Analyzer

# A case that fails, and why it may.
EXPECTED_FAILURES: dict[str, str] = {}
# Their expected values come from numpy's generator: only dtype and shape can be compared.
RANDOM = {
    *(f"test_bernoulli{form}{body}" for form in ("", "_double", "_seed") for body in ("", "_expanded")),
    *(f"test_training_dropout{form}" for form in ("", "_default", "_default_mask", "_mask")),
}
# Fewer claimed cases than this are a regression of the claims.
CLAIMED = {"cpu": 1650, "gpu": 1500}  # GPUs have no float64


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases' own generators divide by zero and overflow
        from onnx.backend.test.loader import load_model_tests

        found: list[Any] = load_model_tests(kind="node")
    return found


def array(value: Any) -> Any:
    return np.asarray(numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value)


def claimed(model: onnx.ModelProto, device: str) -> bool:
    return all(verdict.claimed for verdict in Analyzer(proto.from_model(model), device=device).verdicts())


def failure(case: Any, plan_of: Callable[..., Any], same: Callable[..., None]) -> str:
    names = [value.name for value in case.model.graph.input]
    try:
        for inputs, outputs in case.data_sets:
            actual = plan_of(case.model, dict(zip(names, map(array, inputs), strict=True)))
            for mine, theirs in zip(actual, map(array, outputs), strict=True):
                if case.name in RANDOM:
                    same(np.zeros_like(mine), np.zeros_like(theirs))
                    continue
                wide = theirs.dtype.itemsize > 2
                tolerance = (1e-3, 1e-5) if wide else (1e-2, 1e-2)
                same(mine, theirs, rtol=max(case.rtol, tolerance[0]), atol=max(case.atol, tolerance[1]))
    except Exception as error:
        return f"{case.name}: {type(error).__name__}: {error}"[:600]
    return ""


def test_node_cases(cases: list[Any], plan_of: Callable[..., Any], same: Callable[..., None], device: str) -> None:
    chosen = [case for case in cases if claimed(case.model, device)]
    assert len(chosen) >= CLAIMED[device], len(chosen)
    failures = {case.name: text for case in chosen if (text := failure(case, plan_of, same))}
    assert failures.keys() == EXPECTED_FAILURES.keys(), "\n".join(failures.values())
