"""Forms before opset 7: no oracle runs them any more but the backend's cases, so they are compared by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Check = Callable[..., None]
Draw = Callable[..., Any]


@pytest.mark.parametrize(
    ("axis", "shape"), [(None, (2, 3, 4)), (None, (4,)), (1, (3,)), (0, (2, 3)), (1, (3, 4)), (-2, (3,)), (0, (2,))]
)
@pytest.mark.parametrize(("op", "function"), [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply)])
def test_broadcasting_from_an_axis(
    check: Check, draw: Draw, op: str, function: Any, axis: int | None, shape: tuple[int, ...]
) -> None:
    a, b = draw(np.float32, 2, 3, 4), draw(np.float32, *shape)
    first = 3 - len(shape) if axis is None else axis % 3
    placed = b.reshape([1] * first + [*shape] + [1] * (3 - first - len(shape)))
    settings = {"broadcast": int(shape != a.shape)} | ({} if axis is None else {"axis": axis})
    check(op, a, b, expect=function(a, placed), opset=6, **settings)


def test_comparisons_and_logic(check: Check, draw: Draw) -> None:
    a, b = draw(np.float32, 2, 3), draw(np.float32, 2)
    check("Greater", a, b, expect=a > b[:, None], opset=6, broadcast=1, axis=0)
    p, q = draw(np.bool_, 2, 3), draw(np.bool_, 2)
    check("Xor", p, q, expect=p ^ q[:, None], opset=6, broadcast=1, axis=0)


def test_slopes_belong_to_channels(check: Check, draw: Draw) -> None:
    x, slope = draw(np.float32, 2, 3, 4), draw(np.float32, 3)
    check("PRelu", x, slope, expect=np.where(x < 0, x * slope[:, None], x), opset=6)


def test_products_and_pooling(check: Check, draw: Draw) -> None:
    a, b, c = draw(np.float32, 2, 3), draw(np.float32, 3, 4), draw(np.float32, 4)
    check("Gemm", a, b, c, expect=0.5 * (a @ b) + 2 * c, opset=6, alpha=0.5, beta=2.0, broadcast=1)
    x = draw(np.float32, 1, 1, 4)
    check("AveragePool", x, expect=(x[..., :-1] + x[..., 1:]) / 2, opset=6, kernel_shape=[2])


def test_training_is_declined(check: Check, draw: Draw, reasons: Callable[..., list[str]]) -> None:
    x, one = draw(np.float32, 2, 3, 4), np.ones(3, np.float32)
    check("BatchNormalization", x, one, one * 2, one * 0, one, expect=x + 2, opset=6, is_test=1, epsilon=0.0)
    assert "training" in reasons("BatchNormalization", x, one, one, one, one, opset=6)[0]
    check("Dropout", x, expect=x, opset=6, is_test=1)
    assert "training" in reasons("Dropout", x, opset=6)[0]


def test_shapes_and_statistics_by_attributes(check: Check, draw: Draw) -> None:
    x = draw(np.float32, 2, 3, 4, 5)
    check("Reshape", x, expect=x.reshape(2, 12, 5), opset=4, shape=[0, -1, 5])
    check("ThresholdedRelu", x, expect=np.where(x > 0.5, x, 0), opset=7, alpha=0.5)
    for axes in ((0, 2, 3), (0, 1, 2, 3)):
        centred = x - x.mean(axes, keepdims=True)
        across = {"across_channels": int(1 in axes), "opset": 8}
        normal = centred / x.std(axes, keepdims=True)
        check("MeanVarianceNormalization", x, expect=normal, rtol=1e-5, **across)
        check("MeanVarianceNormalization", x, expect=centred, rtol=1e-5, normalize_variance=0, **across)
