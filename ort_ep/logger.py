"""ONNX Runtime's logger, reached through the plugin library: it belongs to the session and obeys its severity."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from enum import IntEnum
from functools import cache

_fallback = logging.getLogger("ort_ep")


class Severity(IntEnum):
    VERBOSE = 0
    INFO = 1
    WARNING = 2
    ERROR = 3


_LEVELS = {
    Severity.VERBOSE: logging.DEBUG,
    Severity.INFO: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR,
}


class Logger:
    """Writes to the OrtLogger at `address`, or to Python's `ort_ep` logger where there is none."""

    def __init__(self, address: int) -> None:
        self._address = address
        self._plugin = _plugin_log() if address else None

    def write(self, severity: Severity, message: str) -> None:
        frame = sys._getframe(1)
        code = frame.f_code
        if self._plugin is not None:
            place = os.path.basename(code.co_filename).encode()
            text = message.encode(errors="replace")
            if self._plugin(self._address, int(severity), text, place, frame.f_lineno, code.co_name.encode()):
                return
        _fallback.log(_LEVELS[severity], message)


def _plugin_log() -> ctypes._NamedFuncPointer:
    from ort_ep import factory, get_library_path

    return _log_of(factory.library_path or get_library_path())


@cache
def _log_of(library: str) -> ctypes._NamedFuncPointer:
    write = ctypes.CDLL(library).mlx_plugin_log
    text = ctypes.c_char_p
    write.argtypes = [ctypes.c_void_p, ctypes.c_int, text, text, ctypes.c_int, text]
    write.restype = ctypes.c_int
    return write
