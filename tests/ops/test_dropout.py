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


def test_training_drops_and_scales(plan_of: Callable[..., Any], model_of: Callable[..., Any]) -> None:
    x = np.ones((100, 100), np.float32)
    inputs = [x, np.array(0.25, np.float32), np.array(True)]
    outputs = [x, np.ones_like(x, bool)]
    model = model_of("Dropout", inputs, 21, "", (1, 2), outputs)
    y, mask = plan_of(model, {"x0": x})
    assert 0.7 < mask.mean() < 0.8
    np.testing.assert_allclose(y, np.where(mask, x / 0.75, 0), rtol=1e-6)
    again = plan_of(model, {"x0": x})[1]
    assert (again != mask).any()
    seeded = model_of("Dropout", inputs, 21, "", (1, 2), outputs, seed=7)
    np.testing.assert_array_equal(plan_of(seeded, {"x0": x})[1], plan_of(seeded, {"x0": x})[1])
