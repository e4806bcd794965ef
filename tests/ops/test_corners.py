"""Corners of operators that random graphs ran into: as on ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

LOWEST, INT_MIN = -(2**63) + 1, -(2**31)


def floats(*shape: int) -> Any:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def sliced(start: int, end: int, step: int) -> list[Any]:
    return [floats(4), ints(start), ints(end), ints(0), ints(step)]


# operator, inputs, which of them are constants, number of outputs, attributes
Case = tuple[str, list[Any], tuple[int, ...], int, dict[str, Any]]
CASES: dict[str, Case] = {
    "determinants of no matrices": ("Det", [floats(0, 3, 3)], (), 1, {}),
    "determinants of empty matrices": ("Det", [floats(2, 0, 0)], (), 1, {}),
    "quantised nothing": ("DynamicQuantizeLinear", [floats(0, 3)], (), 3, {}),
    "arg max of no rows": ("ArgMax", [floats(0, 3)], (), 1, {"axis": 1}),
    "arg min of no rows, the last": (
        "ArgMin",
        [floats(2, 0)],
        (),
        1,
        {"axis": 0, "keepdims": 0, "select_last_index": 1},
    ),
    "arg max over nothing, of nothing": ("ArgMax", [floats(0, 0, 5)], (), 1, {"axis": 1, "keepdims": 0}),
    "indices of no windows": ("MaxPool", [floats(1, 1, 2, 3)], (), 2, {"kernel_shape": [3, 2], "strides": [1, 2]}),
    "a window far wider than the image": (
        "MaxPool",
        [floats(4, 1, 2, 2)],
        (),
        1,
        {"kernel_shape": [2, 3], "dilations": [1, 2], "strides": [1, 2]},
    ),
    "a window far wider than the volume": (
        "MaxPool",
        [floats(1, 2, 4, 4, 5)],
        (),
        1,
        {"kernel_shape": [3, 3, 3], "dilations": [3, 1, 1], "strides": [2, 2, 1]},
    ),
    "a scalar bias of one column": ("Gemm", [floats(5, 2), floats(2, 1), floats()], (), 1, {}),
    "backwards from before the start": ("Slice", sliced(INT_MIN, LOWEST, -1), (1, 2, 3, 4), 1, {}),
    "backwards from the start": ("Slice", sliced(-4, -9, -2), (1, 2, 3, 4), 1, {}),
    "forwards from before the start": ("Slice", sliced(INT_MIN, -1, 2), (1, 2, 3, 4), 1, {}),
    "a transposed convolution that pads more than its kernel": (
        "ConvTranspose",
        [floats(1, 2, 5, 4, 3), floats(2, 3, 2, 1, 1), floats(3)],
        (1, 2),
        1,
        {"pads": [1, 0, 1, 2, 0, 0], "strides": [2, 1, 2], "output_padding": [0, 0, 1]},
    ),
    "the same of no images": (
        "ConvTranspose",
        [floats(0, 1, 4, 3), floats(1, 2, 3, 1)],
        (1,),
        1,
        {"pads": [1, 1, 2, 2], "strides": [2, 2]},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_corner(check: Callable[..., None], case: Case) -> None:
    op, inputs, constants, outputs, attributes = case
    check(op, *inputs, opset=18, constants=constants, outputs=outputs, rtol=1e-4, **attributes)
