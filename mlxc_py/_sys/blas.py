"""Send the BLAS and LAPACK calls of MLX's Linux CPU wheel, which links a reference BLAS, to OpenBLAS."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxc_py._sys import support

SWITCH = "MLXC_PY_BLAS"
THREADS = "MLXC_PY_BLAS_THREADS"
PREFIX = "scipy_"
# All that MLX calls of BLAS and LAPACK; scipy-openblas32 has each with its prefix and the same ABI (32-bit integers).
SYMBOLS = (
    *(f"cblas_{t}gemm" for t in "sdc"),
    *(f"{t}{name}_" for name in ("geqrf", "orgqr", "getrf", "getri", "potrf", "trtri", "syevd") for t in "sd"),
    "cheevd_",
    *(f"{t}{name}_" for name in ("geev", "gesdd") for t in "sdc"),
)
_OFF = ("0", "off", "reference")
_CODES = {
    -1: "not applicable on this platform",
    -2: "libmlx is not mapped from {library}",
    -3: "the dynamic section of {library} cannot be read",
    -4: "a target is missing",
    -5: "the relocated imports of {library} cannot be made writable",
}
_log = logging.getLogger("mlxc_py")
_lock = threading.Lock()


@dataclass(frozen=True)
class BlasStatus:
    """Which BLAS MLX calls: the routed symbols, the library behind them, or the reason why nothing was routed."""

    routed: tuple[str, ...] = ()
    library: str | None = None
    threads: int | None = None
    config: str | None = None
    reason: str | None = "libmlxc is not loaded yet"

    def __str__(self) -> str:
        if not self.routed:
            return f"MLX's own ({self.reason})"
        return f"{self.config} ({len(self.routed)} functions, {self.threads} thread(s), {self.library})"


_status = BlasStatus()


class _Unrouted(Exception):
    """Nothing was routed; `worth_a_warning` tells a problem from a platform or a wish."""

    def __init__(self, reason: str, worth_a_warning: bool = True) -> None:
        super().__init__(reason)
        self.worth_a_warning = worth_a_warning


def status() -> BlasStatus:
    """What `route` did in this process."""
    return _status


def route(libmlx_path: str) -> None:
    """Route the BLAS imports of the mapped libmlx, whoever mapped it; problems end in `status()` and one warning."""
    global _status
    with _lock:
        if _status.routed:
            return
        try:
            _status = _route(libmlx_path)
        except _Unrouted as e:
            _status = BlasStatus(reason=str(e))
            if e.worth_a_warning:
                _log.warning("MLX keeps its reference BLAS, which is slow: %s", e)


def _route(libmlx_path: str) -> BlasStatus:
    if os.environ.get(SWITCH, "").lower() in _OFF:
        raise _Unrouted(f"{SWITCH}={os.environ[SWITCH]}", worth_a_warning=False)
    if sys.platform != "linux":
        raise _Unrouted("not applicable on this platform", worth_a_warning=False)
    if support.library() is None:
        raise _Unrouted(f"no native support library: {support.reason()}")
    path = openblas_path()
    if path is None:
        raise _Unrouted("scipy-openblas32 is not installed: pip install scipy-openblas32, or the extra mlxc-py[cpu]")
    try:
        openblas = ctypes.CDLL(str(path))
        targets = [_address(openblas, PREFIX + name) for name in SYMBOLS]
        set_threads, get_threads, config = (
            openblas[f"{PREFIX}openblas_{name}"] for name in ("set_num_threads", "get_num_threads", "get_config")
        )
    except (OSError, AttributeError) as e:
        raise _Unrouted(f"{path}: {e}") from e
    config.restype = ctypes.c_char_p
    routed = _write(libmlx_path, targets)
    if (threads := wanted_threads(os.environ, _log.warning)) is not None:
        set_threads(threads)
    text = (config() or b"").decode("ascii", "replace")
    return BlasStatus(tuple(routed), str(path), get_threads(), text, reason=None)


def openblas_path() -> Path | None:
    """The installed scipy-openblas32's library; the package is not imported for it, which would load it RTLD_GLOBAL."""
    try:
        spec = importlib.util.find_spec("scipy_openblas32")
    except (ImportError, ValueError):
        return None
    folders = (spec.submodule_search_locations or []) if spec else []
    found = (Path(f) / "lib" / "libscipy_openblas.so" for f in folders)
    return next((p for p in found if p.is_file()), None)


def wanted_threads(environ: Any, warn: Callable[..., None]) -> int | None:
    """Threads to set: the option's, else 1 (spinning threads starve MLX's own), None where the user told OpenBLAS."""
    if text := environ.get(THREADS):
        if text.isascii() and text.isdigit() and int(text) > 0:
            return int(text)
        warn("%s=%s is ignored: it must be a positive number", THREADS, text)
    return None if environ.get("OPENBLAS_NUM_THREADS") else 1


def _write(libmlx_path: str, targets: list[int]) -> list[str]:
    n = len(SYMBOLS)
    names = (ctypes.c_char_p * n)(*(s.encode() for s in SYMBOLS))
    slots = (ctypes.c_int * n)()
    pointer = ctypes.c_void_p
    write = support.function(
        "mlxc_support_route", ctypes.c_int, ctypes.c_char_p, pointer, pointer, ctypes.c_size_t, pointer
    )
    done = write(os.fsencode(libmlx_path), names, (ctypes.c_void_p * n)(*targets), n, slots)
    if done < 0:
        raise _Unrouted(_CODES.get(done, f"code {done}").format(library=libmlx_path), worth_a_warning=done != -1)
    if done == 0:
        raise _Unrouted(f"{libmlx_path} imports no BLAS function", worth_a_warning=False)
    return [name for name, found in zip(SYMBOLS, slots, strict=True) if found]


def _address(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(library[name], ctypes.c_void_p).value
    if not address:
        raise _Unrouted(f"{name} has no address")
    return address
