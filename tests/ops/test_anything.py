"""The properties in anything/, one process for each family: one that dies is a failure, not the end of the run."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent / "anything"
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("conftest", "drawn"))


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        f"pythonpath={shlex.quote(str(FOLDER))}",
    ]
    child = subprocess.run([*command, str(FOLDER / f"{family}.py")], capture_output=True, text=True, timeout=600)
    assert child.returncode == 0, child.stdout[-8000:] + child.stderr[-2000:]
