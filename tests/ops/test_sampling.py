"""GridSample and AffineGrid against ONNX Runtime's CPU provider, far outside included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Check = Callable[..., None]
Draw = Callable[..., Any]


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(check: Check, draw: Draw, mode: str, padding: str, aligned: int) -> None:
    x, grid = draw(np.float32, 2, 3, 5, 6), 1.5 * draw(np.float32, 2, 4, 7, 2)
    how = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    check("GridSample", x, grid.astype(np.float32), opset=20, rtol=1e-4, **how)
    old = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    check("GridSample", x, grid.astype(np.float32), opset=16, rtol=1e-4, **{**how, "mode": old})


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_volumes(check: Check, draw: Draw, mode: str, padding: str) -> None:
    x, grid = draw(np.float32, 1, 2, 3, 4, 5), draw(np.float32, 1, 2, 3, 4, 3)
    check("GridSample", x, grid, opset=20, mode=mode, padding_mode=padding, rtol=1e-4)


def test_half_precision(check: Check, draw: Draw) -> None:
    x, grid = draw(np.float16, 1, 2, 4, 4), draw(np.float16, 1, 3, 3, 2)
    check("GridSample", x, grid, expect="reference", opset=22, atol=5e-3)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("size", [(2, 1, 3, 4), (2, 1, 2, 3, 4)])
def test_affine_grid(check: Check, draw: Draw, size: tuple[int, ...], aligned: int) -> None:
    rank = len(size) - 2
    theta = draw(np.float32, 2, rank, rank + 1)
    check("AffineGrid", theta, np.array(size), expect="reference", align_corners=aligned, constants=(1,))


def test_a_nan_position_does_not_end_the_process(check: Check) -> None:
    x, grid = np.ones((1, 1, 3, 3), np.float32), np.full((1, 1, 2, 2), np.nan, np.float32)
    grid[0, 0, 1] = 0
    expected = np.array([[[[np.nan, 1]]]], np.float32)
    check("GridSample", x, grid, expect=expected, opset=20, padding_mode="border")
