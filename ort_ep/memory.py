"""Freed memory back to the system: what loading and closing a large model leaves in the C heap."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final

WORTH_GIVING_BACK: Final = 16 << 20
"""Bytes of weights from which on the walk over the heap (some 30 ms for 100 MB) pays."""


def give_back() -> None:
    """Return free heap pages: glibc keeps those of ORT's parsed model and dropped weights. Nothing elsewhere."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
