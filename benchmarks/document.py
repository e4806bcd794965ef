"""Put measured figures into docs/PERFORMANCE.md: files that `--json` has written, named like their benchmarks.

    python benchmarks/document.py corpus.json gpu.json ...

What corpus.json says was printed goes into the block below the comment <!-- corpus -->, and so on.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import output

DOCUMENT = output.ROOT / "docs" / "PERFORMANCE.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    text = DOCUMENT.read_text(encoding="utf-8")
    for file in parser.parse_args().files:
        found = json.loads(file.read_text(encoding="utf-8"))
        command = re.sub(r" --(json|plot) \S+", "", found["command"])
        block = f"<!-- {file.stem} -->\n```text\n$ {command}\n{found['printed']}\n```\n"
        place = re.compile(rf"<!-- {re.escape(file.stem)} -->\n```text\n.*?```\n", re.DOTALL)
        text, count = place.subn(lambda _, block=block: block, text)
        if count != 1:
            parser.error(f"{DOCUMENT} has {count} blocks for {file.stem}")
    DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
