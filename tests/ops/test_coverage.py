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
GOALS = {"": 196, "ai.onnx.ml": 15, "com.microsoft": 105}

knows_all = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < KNOWS_ALL,
    reason=f"onnxruntime {onnxruntime.__version__} does not know every operator",
)
# A family of four cases, of which the third ends its process.
DYING = """
import json, os, sys
for number in range(int(sys.argv[4]), 4):
    row = {"domain": "", "name": "Abs", "version": number, "types": {"T": "int8"}}
    print(json.dumps(row), flush=True)
    if number == 2:
        os.abort()
    print(json.dumps(row | {"outcome": "ok", "text": ""}), flush=True)
"""


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


@knows_all
@pytest.mark.parametrize("family", children.FAMILIES)
def test_every_version_and_dtype_runs_on_mlx_and_is_right(family: str) -> None:
    assert [children.describe(row) for row in rows(family) if children.failed(row)] == []


@knows_all
def test_every_operator_has_a_case_and_does_without_what_is_optional() -> None:
    assert children.gaps() == []


@knows_all
def test_goals() -> None:
    counts = children.counted([row for family in children.FAMILIES for row in rows(family)])
    assert {domain: len(names) for domain, names in counts.items() if len(names) < GOALS[domain]} == {}


def test_a_case_that_ends_its_process_is_one_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__main__.py").write_text(DYING)
    monkeypatch.setattr(children, "FOLDER", tmp_path)
    found = list(children.records("elementwise"))
    assert [row["version"] for row in found] == [0, 1, 2, 3]
    assert [row["outcome"] for row in found] == ["ok", "ok", "crash", "ok"]
    assert "Abs-2[T=int8] crash: the process ended with -6" in children.describe(found[2])
    assert children.counted(found)[""] == set()
    assert children.counted([row for row in found if row["outcome"] == "ok"])[""] == {"Abs"}


def test_a_process_that_ends_between_cases_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__main__.py").write_text("raise SystemExit('no library')")
    monkeypatch.setattr(children, "FOLDER", tmp_path)
    with pytest.raises(RuntimeError, match=r"(?s)elementwise: the process ended with 1 .*no library"):
        list(children.records("elementwise"))
