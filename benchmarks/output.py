"""What every benchmark does with its results: a table, `--json FILE`, `--plot FILE`; and children that measure.

Importing it puts the clone, and what the corpus tests share, on the path.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "models")]
Row = Mapping[str, Any]


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures and what the machine is here")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures here; needs matplotlib")
    return made


def machine() -> dict[str, Any]:
    """What a figure needs beside it to mean something."""
    versions = {}
    for name in ("mlx", "numpy", "onnx", "onnxruntime"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = ""
    kind = platform.processor() or platform.machine()
    with suppress(OSError):  # not Linux
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        kind = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), kind)
    return {"cpu": kind, "cores": os.cpu_count(), "python": platform.python_version(), **versions}


def show(
    options: argparse.Namespace,
    rows: Sequence[Row],
    columns: Sequence[str] = (),
    *,
    notes: Sequence[str] = (),
    bars: Sequence[str] = (),
    label: Sequence[str] = (),
    unit: str = "ms",
) -> None:
    """Print rows (all columns by default) and notes; write and draw what the options ask for.

    The drawing has the columns `bars` of each row, which is named by its columns `label`.
    """
    if not rows:
        sys.exit("\n".join(["nothing could be measured", *notes]))
    chosen = list(columns or rows[0])
    printed = "\n".join([table(rows, chosen), *([""] if notes else []), *notes])
    print(printed)
    save(options, rows, printed)
    if options.plot:
        draw(options.plot, rows, bars, label or chosen[:1], unit)


def save(options: argparse.Namespace, rows: Sequence[Row], printed: str, **further: Any) -> None:
    """Write the rows, the machine and what was printed, where `--json` is given."""
    if options.json:
        command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
        found = {"machine": machine(), "command": command, **further, "printed": printed, "rows": rows}
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


# ---------------------------------------------------------------- text
def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Aligned columns."""
    lines = [list(columns), *([text(row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    made = []
    for line in lines:
        cells = [
            cell.ljust(w) if isinstance(rows[0].get(name), str) else cell.rjust(w)
            for name, cell, w in zip(columns, line, widths, strict=True)
        ]
        made.append("  ".join(cells).rstrip())
    return "\n".join(made)


def text(value: Any) -> str:
    """A number with three digits that count; nothing as a dash."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    if size == 0 or not math.isfinite(size):
        return f"{value:g}"
    if size < 1e-3:
        return f"{value:.1e}"
    return f"{value:.{max(0, min(3, 2 - math.floor(math.log10(size))))}f}"


# ---------------------------------------------------------------- drawing
def draw(file: Path, rows: Sequence[Row], bars: Sequence[str], label: Sequence[str], unit: str) -> None:
    """One group of horizontal bars for each row, on a logarithmic axis."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ModuleNotFoundError:
        sys.exit("--plot needs matplotlib: pip install '.[bench]'")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    thickness = 0.8 / len(bars)
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.22 * len(rows) * max(2, len(bars))), layout="constrained")
    for i, name in enumerate(bars):
        places = [row + i * thickness for row in range(len(rows))]
        axes.barh(places, [row.get(name) or math.nan for row in rows], thickness, label=name)
    middle = 0.4 - thickness / 2
    axes.set_yticks(
        [row + middle for row in range(len(rows))], [" ".join(str(r[name]) for name in label) for r in rows]
    )
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(unit)
    axes.grid(axis="x", alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


# ---------------------------------------------------------------- children
def in_a_process(arguments: Sequence[str], environ: Mapping[str, str | None] = os.environ) -> Any:
    """What this script prints as JSON, last, when run with other arguments; RuntimeError with its last words.

    `environ` is added to this process's, without what is None.
    """
    merged: dict[str, str | None] = {**os.environ, **environ}
    merged["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, sys.argv[0], *arguments]
    kept = {name: value for name, value in merged.items() if value is not None}
    done = subprocess.run(command, env=kept, capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"{' '.join(arguments)} ended with status {done.returncode}: {words[-1]}")
    return json.loads(done.stdout.splitlines()[-1])
