"""Fixtures of tests that run other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ort_ep

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def child_environment() -> dict[str, str]:
    """The environment for a child Python that imports the packages under test, from whatever folder it runs in."""
    packages = str(Path(ort_ep.__file__).resolve().parents[1])
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([packages, inherited] if inherited else [packages])}


@pytest.fixture
def run_python(child_environment: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python arguments...` in an empty folder; TimeoutExpired where it hangs."""

    def run(
        *arguments: str, timeout: float = 120, env: dict[str, str] | None = None, executable: str = sys.executable
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [executable, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=tmp_path,
            env={**child_environment, **(env or {})},
        )

    return run
