"""What a libmlxc was built from, written beside it by the build, which is why this needs the standard library only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SOURCES = (".c", ".cpp", ".h", ".hpp", ".map")


def stamp_path(library: Path) -> Path:
    """Where the stamp of a library lies: `libmlxc.json` beside `libmlxc.so`."""
    return library.with_suffix(".json")


def read_stamp(library: Path) -> dict[str, Any] | None:
    """The stamp of a library, None where there is none; ValueError when it cannot be read."""
    path = stamp_path(library)
    if not path.is_file():
        return None
    stamp = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(stamp, dict) or "mlx_version" not in stamp:
        raise ValueError(f"{path} is not a stamp written by the build")
    return stamp


def source_hash(native: Path) -> str:
    """SHA-256 over names and contents of the C and C++ sources below `native`."""
    import hashlib  # costs 3 ms, and only source trees hash

    digest = hashlib.sha256()
    for path in sorted(p for p in native.rglob("*") if p.suffix in SOURCES):
        digest.update(path.relative_to(native).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()
