"""DeformConv and MaxRoiPool against ONNX's reference and ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

Check = Callable[..., None]
Draw = Callable[..., Any]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("groups", [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("mask", [True, False])
def test_deform_conv(check: Check, draw: Draw, dtype: Any, groups: tuple[int, int], mask: bool) -> None:
    group, offset_group = groups
    x, w = draw(dtype, 2, 4, 6, 7), draw(dtype, 6, 4 // group, 3, 2)
    output = (4, 6)
    offset = draw(dtype, 2, offset_group * 12, *output)
    given = [x, w, offset, draw(dtype, 6), draw(dtype, 2, offset_group * 6, *output) if mask else None]
    how = {"group": group, "offset_group": offset_group, "pads": [1, 0, 1, 2], "dilations": [2, 3]}
    wide = [None if value is None else value.astype(np.float64) for value in given]
    expected = deformed(wide, group, offset_group).astype(dtype)
    atol = 0.1 if np.dtype(dtype).itemsize == 2 else 1e-4
    check("DeformConv", *given, expect=expected, opset=22, atol=atol, **how)


def test_deform_conv_with_strides(check: Check, draw: Draw) -> None:
    x, w, offset = draw(np.float32, 1, 2, 6, 7), draw(np.float32, 3, 2, 2, 2), draw(np.float32, 1, 8, 3, 6)
    check("DeformConv", x, w, offset, expect="reference", opset=19, rtol=1e-4, strides=[2, 1])


def deformed(given: list[Any], group: int, offset_group: int) -> np.ndarray[Any, Any]:
    """The convolution above, one output at a time, in double precision."""
    x, w, offset, b, mask = given
    y = np.zeros((2, 6, 4, 6)) + b[:, None, None]
    for n, o, i, j, c, p, q in np.ndindex(2, 6, 4, 6, 4 // group, 3, 2):
        channel = o // (6 // group) * (4 // group) + c
        tap = channel // (4 // offset_group) * 6 + p * 2 + q
        row, column = i - 1 + 2 * p + offset[n, 2 * tap, i, j], j + 3 * q + offset[n, 2 * tap + 1, i, j]
        top, left = int(np.floor(row)), int(np.floor(column))
        value = 0.0
        for r, s in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
            if 0 <= r < 6 and 0 <= s < 7:
                value += x[n, channel, r, s] * (1 - abs(row - r)) * (1 - abs(column - s))
        y[n, o, i, j] += w[o, c, p, q] * value * (1 if mask is None else mask[n, tap, i, j])
    return y


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("bins", [(1, 1), (2, 3), (5, 4)])
def test_max_roi_pool(check: Check, draw: Draw, scale: float, bins: tuple[int, int]) -> None:
    rois = np.array([[0, 0, 0, 5, 5], [1, 2, 1, 9, 7], [1, 3, 3, 3, 3], [0, 20, 20, 25, 25]], np.float32)
    check("MaxRoiPool", draw(np.float32, 2, 3, 8, 9), rois, pooled_shape=list(bins), spatial_scale=scale)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_max_roi_pool_types(check: Check, draw: Draw, dtype: Any) -> None:
    x, rois = draw(dtype, 1, 2, 4, 4), np.array([[0, 1, 1, 2, 3]], dtype)
    check("MaxRoiPool", x, rois, expect=x[:, :, 1:4, 1:3].max((2, 3), keepdims=True), pooled_shape=[1, 1])
