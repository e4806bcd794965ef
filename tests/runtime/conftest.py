"""Fixtures of the runtime tests."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mlxc_py

RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def on_cpu() -> Iterator[None]:
    """The CPU is the default device: what the test is about is not on a GPU."""
    before = mlxc_py.default_device()
    mlxc_py.set_default_device(mlxc_py.cpu)
    yield
    mlxc_py.set_default_device(before)


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Run a program in an interpreter of its own, with the package under test; a value of None removes a variable."""

    def run(code: str, **environ: str | None) -> subprocess.CompletedProcess[str]:
        package = Path(mlxc_py.__file__).parents[1]
        paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
        merged = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environ}
        env = {k: v for k, v in merged.items() if v is not None}
        program = [sys.executable, "-c", textwrap.dedent(code)]
        return subprocess.run(program, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    return run
