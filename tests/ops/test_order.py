"""TopK against ONNX Runtime's CPU provider, ties and extreme integers included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Check = Callable[..., None]
Draw = Callable[..., Any]


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
)
@pytest.mark.parametrize("largest", [0, 1])
def test_top_k(check: Check, draw: Draw, dtype: str, largest: int) -> None:
    x = draw(dtype, 3, 6, high=4)
    if np.dtype(dtype).kind in "iu":
        x[0, :2] = np.iinfo(dtype).min, np.iinfo(dtype).max
    for axis, k in ((-1, 4), (0, 2), (1, 6)):
        wide = x.astype(object)
        order = np.argsort(-wide if largest else wide, axis, kind="stable").take(range(k), axis)
        check("TopK", x, np.array([k]), expect=[np.take_along_axis(x, order, axis), order], axis=axis, largest=largest)


def test_edges(check: Check) -> None:
    x = np.zeros((2, 0), np.float32)
    check("TopK", x, np.array([0]), expect=[x, np.zeros((2, 0), np.int64)])
    y = np.ones((2, 3), np.float32)
    check("TopK", y, np.array([0]), expect=[y[:, :0], np.zeros((2, 0), np.int64)])


def test_the_attribute_form(check: Check, draw: Draw) -> None:
    check("TopK", draw(np.float32, 3, 5), opset=9, k=2, outputs=2)
