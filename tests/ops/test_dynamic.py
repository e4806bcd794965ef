"""Operators whose output shape depends on data, alone and between other operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

Check = Callable[..., None]
Draw = Callable[..., Any]


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "uint8", "float32", "float64"])
@pytest.mark.parametrize("shape", [(0,), (7,), (3, 4), (2, 0, 3)])
def test_non_zero(check: Check, draw: Draw, dtype: str, shape: tuple[int, ...]) -> None:
    x = draw(dtype, *shape, high=2)
    check("NonZero", x, expect=np.array(np.nonzero(x), np.int64))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(check: Check, draw: Draw, axis: int | None) -> None:
    x, condition = draw(np.float32, 3, 4), np.array([True, False, True])
    attributes = {} if axis is None else {"axis": axis}
    check("Compress", x, condition, expect=np.compress(condition, x, axis), **attributes)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("dtype", ["int64", "float32", "int8"])
def test_unique(check: Check, axis: int | None, ordered: int, dtype: str) -> None:
    x = np.array([[2, 1, 2], [3, 0, 3], [2, 1, 2]], dtype)
    attributes = {} if axis is None else {"axis": axis}
    check("Unique", x, expect="cpu", outputs=4, sorted=ordered, **attributes)
    check("Unique", x, expect="cpu", sorted=ordered, **attributes)


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("limits", [(3, 0.5, 0.2), (1, 0.0, 0.0), (10, 0.9, None), (2, None, None), (None, None, None)])
def test_non_max_suppression(check: Check, draw: Draw, centred: int, limits: tuple[float | None, ...]) -> None:
    boxes, scores = np.abs(draw(np.float32, 2, 12, 4)), np.abs(draw(np.float32, 2, 3, 12))
    scores[0, 0, :4] = 0.7
    most, overlap, score = limits
    inputs = [
        None if most is None else np.array([most], np.int64),
        None if overlap is None else np.array([overlap], np.float32),
        None if score is None else np.array([score], np.float32),
    ]
    check("NonMaxSuppression", boxes, scores, *inputs, expect="cpu", center_point_box=centred)


def test_between_other_operators(plan_of: Callable[..., Any], same: Check) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[N] x) => (float[M] y) {
        kept = Relu (x)
        found = NonZero (kept)
        row = Transpose <perm = [1, 0]> (found)
        picked = GatherND (kept, row)
        y = Add (picked, picked)
    }
    """
    x = np.array([-1, 2, 0, 3, -4, 5], np.float32)
    (y,) = plan_of(onnx.parser.parse_model(text), {"x": x})
    same(y, np.array([4, 6, 10], np.float32))


def test_values_known_only_at_run_time_may_set_a_shape(check: Check, draw: Draw) -> None:
    x = draw(np.float32, 2, 6)
    check("Reshape", x, np.array([3, -1]), expect=x.reshape(3, 4))
    check("TopK", x, np.array([2]), expect="cpu", outputs=2)
    check("Tile", x, np.array([2, 1]), expect=np.tile(x, (2, 1)))
    check("Pad", x, np.array([1, 0, 0, 2]), expect=np.pad(x, [(1, 0), (0, 2)]))
    check("OneHot", np.array([0, 2]), np.array(3), np.array([0, 1], np.int64), expect=np.eye(3, dtype=np.int64)[[0, 2]])
