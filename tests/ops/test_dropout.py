"""Dropout is the identity at inference, and declined where it may train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def test_inference(check: Callable[..., None], draw: Callable[..., Any]) -> None:
    x = draw(np.float32, 3, 4)
    check("Dropout", x, expect=[x, np.ones_like(x, bool)], outputs=2)
    check("Dropout", x, np.array(0.5, np.float32), np.array(False), expect=x, constants=(1, 2))
    check("Dropout", x, expect=[x, np.ones_like(x, bool)], opset=11)
    check("Dropout", x, expect=x, opset=9, ratio=0.25)


def test_training_is_declined(reasons: Callable[..., list[str]], draw: Callable[..., Any]) -> None:
    x = draw(np.float32, 3)
    assert "training_mode" in reasons("Dropout", x, np.array(0.5, np.float32), np.array(True))[0]
