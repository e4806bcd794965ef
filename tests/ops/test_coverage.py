"""Every operator, version and dtype that docs/OPS.md states, through ONNX Runtime on MLX; see coverage/__main__.py."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import onnxruntime
import pytest

FOLDER = Path(__file__).resolve().parent / "coverage"
KNOWS_ALL = (1, 32)  # what is stated goes by ONNX Runtime's schemas, and older ones lack operators and forms
GOALS = {"": 196, "ai.onnx.ml": 15, "com.microsoft": 86}

pytestmark = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < KNOWS_ALL,
    reason=f"onnxruntime {onnxruntime.__version__} does not know every operator",
)


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


children = load("children")


@cache
def rows(family: str) -> list[dict[str, Any]]:
    return list(children.records(family))


@pytest.mark.parametrize("family", children.FAMILIES)
def test_every_version_and_dtype_runs_on_mlx_and_is_right(family: str) -> None:
    assert [children.describe(row) for row in rows(family) if children.failed(row)] == []


def test_every_operator_has_a_case() -> None:
    assert children.uncovered() == []


def test_goals() -> None:
    counts = children.counted([row for family in children.FAMILIES for row in rows(family)])
    assert {domain: len(names) for domain, names in counts.items() if len(names) < GOALS[domain]} == {}
