"""docs/low_level.md: its program runs as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlxc_py._sys import load, mlx, ort_api


def test_the_program_runs(repository: Path, tmp_path: Path, package_environment: dict[str, str]) -> None:
    try:
        load.library()
    except load.LibraryError as e:
        pytest.skip(str(e))
    (program,) = re.findall(r"```python\n(.*?)```", (repository / "docs" / "low_level.md").read_text(), re.DOTALL)
    file = tmp_path / "program.py"
    file.write_text(program)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, env=package_environment)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "running sums: [14, 46, 32, 109]"
    assert lines[1].startswith("refused: [matmul]")
    assert lines[2].startswith("mlx-c ")


def test_names_that_it_mentions_exist(repository: Path) -> None:
    text = (repository / "docs" / "low_level.md").read_text()
    for name in set(re.findall(r"\bmlx\.(\w+)", text)) - {"h"}:
        assert hasattr(mlx, name), name
    for name in set(re.findall(r"\bload\.(\w+)", text)):
        assert hasattr(load, name), name
    for name in set(re.findall(r"\bort_api\.(\w+)", text)):
        assert hasattr(ort_api, name), name
