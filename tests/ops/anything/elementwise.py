"""Elementwise operators over every rank, empty axes, broadcasting, special values and absent bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from drawn import FLOATS, INTS, SEEDS, broadcast, shapes, values
from hypothesis import given
from hypothesis import strategies as st

Check = Callable[..., None]
UNARY: dict[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Neg": np.negative,
    "Sign": np.sign,
    "Ceil": np.ceil,
    "Floor": np.floor,
    "Round": np.round,
    "Exp": np.exp,
    "Sin": np.sin,
    "Tanh": np.tanh,
    "Relu": lambda x: np.where(x < 0, np.zeros_like(x), x),
    "IsNaN": np.isnan,
    "IsInf": np.isinf,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softsign": lambda x: x / (1 + np.abs(x)),
}
ONLY_FLOATS = UNARY.keys() - {"Abs", "Neg", "Sign", "Relu"}
BINARY: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Max": np.maximum,
    "Min": np.minimum,
}
WHOLE: dict[str, Callable[..., Any]] = {
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
}
# What comes out for infinities is right to the tolerance only where numpy computes it in double precision.
WIDE = ("Exp", "Sin", "Tanh", "Sigmoid", "Softsign")


@given(seed=SEEDS, op=st.sampled_from(sorted(UNARY)), shape=shapes(), data=st.data())
def test_unary(check: Check, seed: int, op: str, shape: tuple[int, ...], data: st.DataObject) -> None:
    kinds = FLOATS if op in ONLY_FLOATS else FLOATS + INTS
    kinds = tuple(kind for kind in kinds if not (op == "Neg" and kind.startswith("u")))
    x = values(seed, data.draw(st.sampled_from(kinds)), shape, special=op not in ("Sin", "Sign", "Softsign"))
    with np.errstate(all="ignore"):
        y = UNARY[op](x.astype(np.float64) if op in WIDE else x)
    check(op, x, expect=np.asarray(y).astype(bool if op in ("IsNaN", "IsInf") else x.dtype))


@given(seed=SEEDS, op=st.sampled_from(sorted(BINARY | WHOLE)), pair=broadcast(2), data=st.data())
def test_binary(check: Check, seed: int, op: str, pair: Any, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(INTS if op in WHOLE else FLOATS + INTS))
    x, y = (values(seed + index, dtype, shape, special=True) for index, shape in enumerate(pair))
    with np.errstate(all="ignore"):
        check(op, x, y, expect=np.asarray((BINARY | WHOLE)[op](x, y)))


@given(seed=SEEDS, op=st.sampled_from(["Div", "Mod"]), pair=broadcast(2), dtype=st.sampled_from(INTS))
def test_integer_division(check: Check, seed: int, op: str, pair: Any, dtype: str) -> None:
    x, y = (values(seed + index, dtype, shape) for index, shape in enumerate(pair))
    y = np.where(y == 0, np.ones_like(y), y)
    down = np.asarray(x.astype(object) // y.astype(object)) if x.size and y.size else x // y
    if op == "Mod":
        check(op, x, y, expect=np.asarray(np.mod(x, y)))
        return
    toward_zero = np.trunc(np.divide(x.astype(np.float64), y.astype(np.float64)))
    assert down.shape == toward_zero.shape
    check(op, x, y, expect=toward_zero.astype(dtype))


@given(seed=SEEDS, pair=broadcast(2), dtype=st.sampled_from(FLOATS))
def test_float_remainder(check: Check, seed: int, pair: Any, dtype: str) -> None:
    x, y = (values(seed + index, dtype, shape) for index, shape in enumerate(pair))
    check("Mod", x, y, expect=np.asarray(np.fmod(x, y)), fmod=1)


@given(seed=SEEDS, three=broadcast(3), dtype=st.sampled_from(("bool", *FLOATS, *INTS)))
def test_where(check: Check, seed: int, three: Any, dtype: str) -> None:
    condition = values(seed, "bool", three[0])
    x, y = (values(seed + index, dtype, shape, special=True) for index, shape in enumerate(three[1:]))
    check("Where", condition, x, y, expect=np.asarray(np.where(condition, x, y)))


@given(seed=SEEDS, several=st.integers(1, 4).flatmap(broadcast), op=st.sampled_from(["Max", "Min", "Sum", "Mean"]))
def test_variadic(check: Check, seed: int, several: Any, op: str) -> None:
    given_ = [values(seed + index, "float32", shape) for index, shape in enumerate(several)]
    stacked = np.stack(np.broadcast_arrays(*(x.astype(np.float64) for x in given_)))
    reduce: Any = {"Max": np.max, "Min": np.min, "Sum": np.sum, "Mean": np.mean}[op]
    check(op, *given_, expect=np.asarray(reduce(stacked, 0)).astype(np.float32))


@given(seed=SEEDS, shape=shapes(), dtype=st.sampled_from(FLOATS + INTS), low=st.booleans(), high=st.booleans())
def test_clip_with_absent_bounds(
    check: Check, seed: int, shape: tuple[int, ...], dtype: str, low: bool, high: bool
) -> None:
    x, least, most = values(seed, dtype, shape), np.array(1, dtype), np.array(3, dtype)
    y = np.maximum(x, least) if low else x
    y = np.minimum(y, most) if high else y
    check("Clip", x, least if low else None, most if high else None, expect=np.asarray(y))


@given(seed=SEEDS, pair=broadcast(2), kinds=st.tuples(st.sampled_from(FLOATS), st.sampled_from(FLOATS + INTS)))
def test_powers_of_mixed_types(check: Check, seed: int, pair: Any, kinds: tuple[str, str]) -> None:
    if kinds[1] == "uint64":
        return
    x, y = values(seed, kinds[0], pair[0], low=1), values(seed + 1, kinds[1], pair[1])
    y = np.clip(y, 0, 3)
    expect = np.asarray(x.astype(np.float64) ** y.astype(np.float64)).astype(kinds[0])
    check("Pow", x, y, expect=expect, rtol=None if kinds[0] == "float64" and "float" not in kinds[1] else 4e-3)


@given(seed=SEEDS, shape=shapes(), slopes=shapes(most=2), dtype=st.sampled_from(FLOATS))
def test_slopes(check: Check, seed: int, shape: tuple[int, ...], slopes: tuple[int, ...], dtype: str) -> None:
    try:
        fits = np.broadcast_shapes(shape, slopes) == shape
    except ValueError:
        fits = False
    if not fits:
        slopes = ()
    x, slope = values(seed, dtype, shape), values(seed + 1, dtype, slopes)
    check("PRelu", x, slope, expect=np.asarray(np.where(x < 0, x * slope, x)).astype(dtype))


@given(seed=SEEDS, shape=shapes(), left=st.booleans(), dtype=st.sampled_from(INTS[4:]))
def test_bit_shift(check: Check, seed: int, shape: tuple[int, ...], left: bool, dtype: str) -> None:
    x, by = values(seed, dtype, shape), values(seed + 1, dtype, shape) % np.array(8, dtype)
    expect = np.asarray(np.left_shift(x, by) if left else np.right_shift(x, by))
    check("BitShift", x, by, expect=expect, direction="LEFT" if left else "RIGHT")
