"""All backend cases of the onnx package through ONNX Runtime; benchmarks/backend_cases.py runs them in children."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "backend_cases.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def script() -> ModuleType:
    sys.path.insert(0, str(SCRIPT.parent))
    return importlib.import_module(SCRIPT.stem)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One record per case; made in a process of its own, since children are forked and MLX does not survive that."""
    out = tmp_path_factory.mktemp("backend") / "rows.json"
    subprocess.run([sys.executable, str(SCRIPT), "--json", str(out)], check=True, timeout=1200, capture_output=True)
    found: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
    return found


def test_every_case_is_there(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == len({(row["kind"], row["name"]) for row in rows}) >= 2024


def test_nothing_fails_that_is_not_expected_to(script: ModuleType, rows: list[dict[str, Any]]) -> None:
    assert [f"{row['name']}: {row['mine']}" for row in rows if script.outcome(row) == "fail"] == []


def test_what_is_expected_to_fail_does(script: ModuleType, rows: list[dict[str, Any]]) -> None:
    assert [row["name"] for row in rows if not row["mine"] and script.reason(row["name"], script.EXPECTED)] == []


def test_nothing_that_the_cpu_provider_passes_is_failed(script: ModuleType, rows: list[dict[str, Any]]) -> None:
    assert script.regressions(rows) == []


def test_goals(script: ModuleType, rows: list[dict[str, Any]]) -> None:
    assert sum(not row["mine"] for row in rows) >= 1950
    node = [row for row in rows if row["kind"] == "node"]
    assert sum(script.outcome(row) == "on MLX" for row in node) >= 0.9 * len(node)
