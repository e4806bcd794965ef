"""Kernels that MLX compiles for an NVIDIA GPU at a model's first run: kept in a folder of the user's, and announced.

MLX keeps them in the system's folder for temporary files, for every GPU and everybody alike, and takes what a killed
process left half written for a kernel.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import mlxc_py as mx
from mlxc_py._sys import load

VARIABLE: Final = "MLX_PTX_CACHE_DIR"
# What is younger may still be written.
SETTLED_SECONDS: Final = 60
PATIENCE_SECONDS: Final = 5.0

_lock: Final = threading.Lock()
_kept = False


def keep() -> None:
    """Let MLX keep its kernels where they outlast a restart, unless MLX_PTX_CACHE_DIR says where; CUDA only."""
    global _kept
    with _lock:
        if _kept or VARIABLE in os.environ or not mx.cuda.is_available():
            return
        _kept = True
        chosen = folder(os.environ, load.library().mlx_version, mx.device_info(mx.gpu))
        try:
            chosen.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_incomplete(chosen)
        except OSError:  # a read-only home: MLX's own place will do
            return
        os.environ[VARIABLE] = str(chosen)


def folder(environ: Mapping[str, str], version: str, device: Mapping[str, str | int]) -> Path:
    """Where kernels of this MLX for this kind of GPU are kept: their names tell neither."""
    cache = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".cache")
    major, minor = device.get("compute_capability_major", 0), device.get("compute_capability_minor", 0)
    return cache / "mlxc-py" / "kernels" / f"mlx-{version}-sm_{major}{minor}"


def remove_incomplete(kernels: Path) -> None:
    """Remove kernels without their source, which MLX writes last; it would take them for complete for ever."""
    for binary in kernels.rglob("*.ptx"):
        source = binary.with_suffix(".cu")
        complete = source.is_file() and source.stat().st_size
        if not complete and time.time() - binary.stat().st_mtime > SETTLED_SECONDS:
            binary.unlink(missing_ok=True)


@contextmanager
def announced(warn: Callable[[str], None]) -> Iterator[None]:
    """Say what a run is doing if it takes long; `warn` has returned when this ends."""
    timer = threading.Timer(PATIENCE_SECONDS, warn, [_message()])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _message() -> str:
    where = os.environ.get(VARIABLE)
    return (
        "the first run takes long: MLX compiles kernels for the GPU, some seconds for each combination of operations; "
        + (f"they are kept in {where} for later processes; " if where else "")
        + "fuse=off runs sooner and then slower"
    )
