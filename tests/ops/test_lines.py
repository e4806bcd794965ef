"""What is derived for sizes along a line, against what would be recorded there, for every operator."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from mlxc_py import tape

SCRIPT = Path(__file__).resolve().parent / "coverage" / "evenness.py"
pytestmark = pytest.mark.skipif(not tape.supported(), reason="this libmlxc records no tapes")
# Operators that decoders are made of, which have to be derived.
DECODERS = {
    *(
        "MatMul",
        "Gemm",
        "Add",
        "Mul",
        "Concat",
        "Reshape",
        "Transpose",
        "Slice",
        "Gather",
        "Softmax",
        "Where",
        "Expand",
    ),
    *("LayerNormalization", "RMSNormalization", "Attention", "RotaryEmbedding", "Trilu", "Cast", "Split", "Unsqueeze"),
    *("MultiHeadAttention", "GroupQueryAttention", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
}


def examined(*arguments: str) -> Counter[str]:
    """How often each operator was derived as it is recorded; it never was otherwise."""
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["case"]: row["wrong"] for row in rows if row["wrong"]} == {}
    right: Counter[str] = Counter()
    for row in rows:
        right[row["case"].partition("::")[2].partition("-")[0]] += row.get("right", 0)
    return right


def test_what_lies_between_recordings_is_what_they_say() -> None:
    right = examined()
    assert sum(right.values()) > 50_000
    assert {name for name in DECODERS if not right[name]} == set()


@pytest.mark.slow
def test_what_lies_between_recordings_is_what_they_say_in_all_versions() -> None:
    assert sum(examined("--all").values()) > 100_000
