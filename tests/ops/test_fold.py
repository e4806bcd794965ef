"""The numpy twin of an operator must say the same as the operator on MLX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mlxc_py as mx
from ort_ep.registry import REGISTRY


def ints(*values: Any) -> Any:
    return np.array(values, np.int64)


A, B, ZERO_D = ints(7, -7, 8, 3), ints(2, 2, -3, 3), np.array(5)
HALVES = np.array([0.5, -1.5, 2.5, 3.25], np.float32)
TRUTH = np.array([True, False, True, False])
CASES: dict[str, list[tuple[list[Any], dict[str, Any]]]] = {
    **{op: [([A, B], {}), ([ZERO_D, B], {}), ([ZERO_D, ZERO_D], {})] for op in ("Add", "Sub", "Mul", "Div")},
    **{op: [([A, B], {}), ([A, B, ZERO_D], {})] for op in ("Max", "Min")},
    **{op: [([A], {}), ([ZERO_D], {})] for op in ("Neg", "Abs", "Identity", "Shape", "Size")},
    **{op: [([A, B], {}), ([A, ZERO_D], {})] for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")},
    **{op: [([TRUTH, TRUTH[::-1]], {})] for op in ("And", "Or", "Xor")},
    "Not": [([TRUTH], {})],
    "Mod": [([A, B], {}), ([A, B], {"fmod": 1}), ([HALVES, HALVES[::-1]], {"fmod": 1})],
    "Pow": [([B, A[2:3]], {}), ([A, ints(2)], {}), ([HALVES, ints(2)], {}), ([A, np.array(0.5, np.float32)], {})],
    "Clip": [([A, ZERO_D, None], {}), ([A, None, ZERO_D], {}), ([A, np.array(-1), ZERO_D], {})],
    "CastLike": [([A, HALVES], {}), ([HALVES, A], {})],
    "Sum": [([HALVES, HALVES, HALVES[:1]], {})],
    **{op: [([HALVES], {})] for op in ("Ceil", "Floor", "Round", "Sign")},
    **{op: [([abs(HALVES)], {})] for op in ("Sqrt", "Reciprocal")},
    **{
        op: [([A], {}), ([A.reshape(2, 2), ints(-1)], {"keepdims": 0}), ([A[:0]], {}), ([HALVES], {"keepdims": 0})]
        for op in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin")
    },
    "ScatterND": [
        ([A, ints([2], [0]), ints(5, 6)], {}),
        ([A.reshape(2, 2), ints([1], [1]), B.reshape(2, 2)], {"reduction": "add"}),
    ],
    "Where": [([TRUTH, A, ZERO_D], {})],
    "Cast": [([A], {"to": 1}), ([ZERO_D], {"to": 6}), ([np.array([0.5, -1.5], np.float32)], {"to": 7})],
    "Gather": [([A, np.array(2)], {}), ([A, ints(0, -1)], {"axis": 0}), ([A.reshape(2, 2), ints([1])], {"axis": 1})],
    "Concat": [([A, B], {"axis": 0})],
    "Slice": [([A, ints(-1), ints(-9), ints(0), ints(-2)], {}), ([A, ints(1), ints(3)], {})],
    "Split": [([A, ints(1, 3)], {"n_outputs": 2}), ([A], {"n_outputs": 2})],
    "Reshape": [([A, ints(2, -1)], {}), ([A, ints(0)], {})],
    "Flatten": [([A.reshape(1, 2, 2)], {"axis": 1})],
    "Transpose": [([A.reshape(2, 2)], {}), ([A.reshape(1, 2, 2)], {"perm": [2, 0, 1]})],
    "Squeeze": [([A[:1], ints(0)], {}), ([A[:1]], {})],
    "Unsqueeze": [([ZERO_D, ints(0)], {}), ([A, ints(0, 2)], {})],
    "Expand": [([A, ints(2, 4)], {})],
    "Tile": [([A, ints(3)], {})],
    "ConstantOfShape": [([ints(2, 3)], {}), ([ints()], {"value": ints(4)})],
    "Range": [([np.array(1), np.array(9), np.array(3)], {})],
}


def test_every_folding_operator_is_here() -> None:
    REGISTRY.load()
    folding = {handler.name for handler in REGISTRY.handlers() if handler.fold and not handler.domain}
    assert folding - {"MelWeightMatrix"} == CASES.keys()


@pytest.mark.parametrize("op", CASES)
def test_both_sides_agree(op: str, same: Callable[..., None]) -> None:
    handler = REGISTRY.lookup("", op, 25)
    assert handler is not None
    assert handler.fold is not None
    for inputs, attributes in CASES[op]:
        folded = handler.fold(*inputs, **attributes)
        device = [v if v is None or handler.wants_host(i) else mx.array(v) for i, v in enumerate(inputs)]
        computed = handler.function(*device, **attributes)
        pairs = zip(folded, computed, strict=True) if isinstance(folded, tuple) else [(folded, computed)]
        for mine, theirs in pairs:
            same(np.array(theirs), np.asarray(mine))
