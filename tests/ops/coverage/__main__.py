"""How many operators run on MLX at every version and for every dtype that docs/OPS.md states.

python tests/ops/coverage              every family in a process of its own, then the counts and what is missing
python tests/ops/coverage --unreached  also the dtypes that no model can give an operator, and why
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from children import FAMILIES, NOT_IN_ONNX, TOTALS, counted, describe, failed, records, unreached


def child(family: str, start: int) -> None:
    """Run the cases of a family from one on, and write a line before and after each."""
    harness = importlib.import_module("harness")
    module = importlib.import_module(family)
    position = 0
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)  # what libraries print is not ours
        for domain, name in harness.operators():
            if domain != module.DOMAIN or name not in module.CASES:
                continue
            for triple in harness.triples(domain, name):
                position += 1
                if position > start:
                    print(json.dumps(harness.plain(triple)), file=out)
                    print(json.dumps(harness.attempt(module.CASES[name], triple)), file=out)


def gaps() -> list[str]:
    harness = importlib.import_module("harness")
    cases = {(module.DOMAIN, name) for module in map(importlib.import_module, FAMILIES) for name in module.CASES}
    names = [f"{domain or 'ai.onnx'}::{name}" for domain, name in sorted(cases ^ set(harness.operators()))]
    unknown = [f"{name} is not known to ONNX Runtime" for name in harness.unknown()]
    return [*names, *unknown, *harness.demanded()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, help="run one family here and write its records as JSON lines")
    parser.add_argument("--start", type=int, default=0, help="with --family: leave out as many cases")
    parser.add_argument("--gaps", action="store_true", help="list what lacks a case or schema, and wrong demands")
    parser.add_argument("--unreached", action="store_true", help="list the dtypes that no model can give an operator")
    parser.add_argument("--json", type=Path, help="write the records here")
    arguments = parser.parse_args()
    if arguments.family:
        child(arguments.family, arguments.start)
        return 0
    if arguments.gaps:
        print(json.dumps(gaps()))
        return 0
    rows = []
    for family in FAMILIES:
        begin = time.perf_counter()
        found = list(records(family))
        rows += found
        outcomes = Counter("pass" if row["outcome"] == "ok" else row["outcome"] for row in found)
        told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        print(f"{family:20} {len(found):5} cases: {told} ({time.perf_counter() - begin:.1f} s)", flush=True)
    for row in filter(failed, rows):
        print(describe(row))
    if arguments.unreached:
        for what, why in unreached(rows).items():
            print(f"unreached: {what}: {why}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    counts = counted(rows)
    for domain, total in TOTALS.items():
        print(f"{domain or 'ai.onnx'}: {len(counts[domain])} of {total}")
    for what in missing(counts):
        print(f"missing: {what}")
    return int(any(map(failed, rows)))


def missing(counts: dict[str, set[str]]) -> list[str]:
    """The operators that do not count, by the reason that docs/OPS.md gives, or because a case failed."""
    harness = importlib.import_module("harness")
    groups: dict[tuple[str, str], list[str]] = {}
    for domain, reasons in harness.gen_ops.DECLINED.items():
        for name, why in reasons.items():
            groups.setdefault((domain, why), []).append(name)
    for domain, name in harness.operators():
        if name not in counts[domain] and not (name in NOT_IN_ONNX and not domain):
            groups.setdefault((domain or "ai.onnx", "a case failed"), []).append(name)
    return [f"{domain}: {', '.join(sorted(names))}: {why}" for (domain, why), names in groups.items()]


if __name__ == "__main__":
    sys.exit(main())
