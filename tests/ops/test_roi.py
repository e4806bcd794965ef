"""RoiAlign against ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Check = Callable[..., None]
Draw = Callable[..., Any]
ROIS = np.array([[0, 0, 5, 4], [1.5, 2.5, 7, 7.5], [-3, -2, 20, 3], [4, 4, 4.2, 4.1], [3, 3, 2, 2]], np.float32)


@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(check: Check, draw: Draw, mode: str, ratio: int, transformation: str) -> None:
    x = draw(np.float32, 2, 3, 8, 9)
    how = {"mode": mode, "sampling_ratio": ratio, "output_height": 3, "output_width": 2, "spatial_scale": 0.75}
    batches = np.array([0, 1, 1, 0, 1])
    check("RoiAlign", x, ROIS, batches, opset=16, rtol=1e-4, coordinate_transformation_mode=transformation, **how)
    check("RoiAlign", x, ROIS, batches, opset=10, rtol=1e-4, constants=(1, 2), **how)


def test_no_regions(check: Check, draw: Draw) -> None:
    x = draw(np.float32, 1, 2, 4, 4)
    none = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    check("RoiAlign", x, *none, expect=np.zeros((0, 2, 1, 1), np.float32), opset=16)
