"""Families of cases, each run in a process of its own: one that dies is a failure of its case, and the next goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FAMILIES = (
    "elementwise",
    "tensors",
    "networks",
    "quantised",
    "structures",
    "learning",
    "microsoft",
    "microsoft_attention",
    "microsoft_rare",
)
# Of ai.onnx what is not deprecated at opset 28, of ai.onnx.ml all names.
TOTALS = {"": 201, "ai.onnx.ml": 19, "com.microsoft": 150}
NOT_IN_ONNX = {"SimplifiedLayerNormalization", "Scatter", "Upsample"}  # ONNX Runtime's own, and two deprecated ones
FOLDER = Path(__file__).resolve().parent
TIMEOUT = 600

Row = dict[str, Any]


def records(family: str) -> Iterator[Row]:
    """One record per triple of a family, in order."""
    done = 0
    while True:
        command = [sys.executable, str(FOLDER), "--family", family, "--start", str(done)]
        child = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        started: Row = {}
        for line in child.stdout.splitlines():
            event = json.loads(line)
            if "outcome" in event:
                done, started = done + 1, {}
                yield event
            else:
                started = event
        if not child.returncode:
            return
        if not started:
            raise RuntimeError(
                f"{family}: the process ended with {child.returncode} between cases\n{child.stderr[-2000:]}"
            )
        yield started | {
            "outcome": "crash",
            "text": f"the process ended with {child.returncode}\n{child.stderr[-2000:]}",
        }
        done += 1


def describe(row: Row) -> str:
    types = ",".join(f"{variable}={name}" for variable, name in row["types"].items())
    return f"{row['domain'] or 'ai.onnx'}::{row['name']}-{row['version']}[{types}] {row['outcome']}: {row['text']}"


def failed(row: Row) -> bool:
    return row["outcome"] not in ("ok", "unfit")


def gaps() -> list[str]:
    """Operators without a case or a schema, cases without an operator, and optional inputs that a handler demands."""
    child = subprocess.run([sys.executable, str(FOLDER), "--gaps"], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(child.stdout)
    return found


def counted(rows: list[Row]) -> dict[str, set[str]]:
    """By domain, the operators of which every triple passed, and every version at least once."""
    known: dict[str, dict[str, bool]] = {domain: {} for domain in TOTALS}
    passed = {(row["domain"], row["name"], row["version"]) for row in rows if row["outcome"] == "ok"}
    for row in rows:
        names = known[row["domain"]]
        good = not failed(row) and (row["domain"], row["name"], row["version"]) in passed
        names[row["name"]] = names.get(row["name"], True) and good
    return {
        domain: {name for name, good in names.items() if good and not (name in NOT_IN_ONNX and not domain)}
        for domain, names in known.items()
    }


def unreached(rows: list[Row]) -> dict[str, str]:
    """The dtypes of a type variable that no triple of an operator's version could use, and why."""
    reached = {
        (row["domain"], row["name"], row["version"], *pair)
        for row in rows
        if row["outcome"] != "unfit"
        for pair in row["types"].items()
    }
    found = {}
    for row in rows:
        for variable, name in row["types"].items():
            if (row["domain"], row["name"], row["version"], variable, name) not in reached:
                found[f"{row['domain'] or 'ai.onnx'}::{row['name']}-{row['version']} {variable}={name}"] = row["text"]
    return found
