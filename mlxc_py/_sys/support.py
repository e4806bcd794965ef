"""libmlxc_support, the small C library of native/support; everything here also works where it was not built."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

from mlxc_py._sys.stamp import source_hash

ENVIRONMENT_SWITCH = "MLXC_PY_NO_NATIVE"

_MACHINE_WORD = ctypes.c_uint64
_BATCH = 64


def path() -> Path:
    """Where the library is, or would be."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return Path(__file__).resolve().parents[1] / "lib" / f"libmlxc_support.{suffix}"


def _load() -> tuple[ctypes.PyDLL | None, str]:
    if os.environ.get(ENVIRONMENT_SWITCH, "0") not in ("", "0"):
        return None, f"{ENVIRONMENT_SWITCH} is set"
    if not path().is_file():
        return None, f"{path()} was not built: reinstall with a C compiler"
    if _stale():
        return None, f"{path()} was built from other sources than native/support holds: run native/build.py"
    try:
        # PyDLL keeps the GIL during calls, which the functions that touch Python objects need and the others allow.
        return ctypes.PyDLL(str(path())), ""
    except OSError as e:
        return None, f"{path()} does not load: {e}"


def _stale() -> bool:
    stamp, sources = path().with_suffix(".json"), path().parents[2] / "native" / "support"
    if not (stamp.is_file() and sources.is_dir()):
        return False
    return bool(json.loads(stamp.read_text(encoding="utf-8"))["source_hash"] != source_hash(sources))


_library, _reason = _load()


def library() -> ctypes.PyDLL | None:
    """The loaded library, None where there is none: `reason()` says why."""
    return _library


def reason() -> str:
    """Why there is no native library; empty when there is one."""
    return _reason


def function(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the library with its ctypes types set; call only where `library()` is not None."""
    assert _library is not None, _reason
    found = _library[name]
    found.restype, found.argtypes = result, arguments
    return found


# ---------------------------------------------------------------- owners of wrapped memory
_owners: dict[int, object] = {}
_tokens = itertools.count(1)
RELEASE = 0
"""Address of the destructor to pass beside `hold`'s payload; 0 without the native library: copy instead of wrapping."""

if _library is not None:
    _owner_new = function("mlxc_support_owner_new", ctypes.c_void_p, _MACHINE_WORD)
    _drain = function("mlxc_support_drain", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
    RELEASE = ctypes.cast(_library["mlxc_support_owner_release"], ctypes.c_void_p).value or 0


def hold(owner: object) -> int:
    """Keep `owner` alive until MLX runs RELEASE on the returned payload and `drain` is called after that.

    The payload is for `mlx_array_new_data_managed_payload`. If that call fails the owner is kept for good: nothing
    tells whether MLX has run the destructor.
    """
    drain()
    token = next(_tokens)
    _owners[token] = owner
    payload: int | None = _owner_new(token)
    if payload is None:
        del _owners[token]
        raise MemoryError("no memory to record the owner of a wrapped buffer")
    return payload


def drain() -> int:
    """Drop the owners whose memory MLX has released, and return how many; any thread, at points of its choice."""
    if not RELEASE or not _owners:
        return 0
    dropped = 0
    tokens = (_MACHINE_WORD * _BATCH)()
    while n := _drain(tokens, _BATCH):
        for token in tokens[:n]:
            _owners.pop(token, None)
        dropped += n
    return dropped


def held() -> int:
    """How many owners are kept alive now."""
    return len(_owners)
