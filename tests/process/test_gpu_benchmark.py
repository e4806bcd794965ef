"""benchmarks/gpu.py on whatever device there is: every side runs, agrees, and is in the table and the JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"
SMALL = ["--layers", "1", "--hidden", "64", "--width", "64", "--runs", "2", "--seconds", "0.1", "--tf32", "off"]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("models", "batches", "limit"), [(["encoder", "mlp"], [1, 2], 1e-2), (["resnet50"], [1], 1e-3)]
)
def test_every_side_runs_and_agrees(tmp_path: Path, models: list[str], batches: list[int], limit: float) -> None:
    out = tmp_path / "gpu.json"
    command = [sys.executable, str(SCRIPT), "--models", *models, "--batches", *map(str, batches), *SMALL]
    done = subprocess.run(
        [*command, "--json", str(out)], cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [row["batch"] for row in rows] == batches * len(models)
    for row in rows:
        assert row["model"] in done.stdout
        assert row["on_mlx"] == 1
        assert max(row["deviation"], row["mlx_deviation"]) < limit
        assert min(row["ep"], row["mlx"], row["mlx_device"], row["ort_cpu"]) > 0
        assert 0 < row["ep_eval"] < row["ep"]
        assert {"EP / mlx, numpy", "EP numpy / eval", "ORT CPU / EP"} <= row["ratios"].keys()
