"""Operators that work element by element, and those that reduce or scan axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import Given, Maker, Unfit, case

DOMAIN = ""


def unary(low: float | None = None, high: float = 5, tolerance: float | None = None, **attributes: Any) -> Maker:
    return lambda g: case(g(0, 3, 4, low=low, high=high), tolerance=tolerance, **attributes)


def binary(function: Any, low: float | None = None, high: float = 5) -> Maker:
    def make(g: Given) -> Any:
        x = g(0, 2, 3, 4, high=high)
        if g.version >= 7:
            return case(x, g(1, 3, 1, low=low, high=high))
        y = g(1, 3, low=low, high=high)  # before, the second operand was laid along an axis of the first
        expect = function(x, y[:, None])
        return case(x, y, broadcast=1, axis=1, expect=expect if expect.dtype == bool else expect.astype(x.dtype))

    return make


def many(g: Given) -> Any:
    return case(g(0, 2, 3, 4), g(0, 3, 1) if g.version >= 8 else g(0, 2, 3, 4), g(0, 2, 3, 4))


def clip(g: Given) -> Any:
    if g.version < 11:
        return case(g(0, 3, 4), min=-1.5, max=2.0)
    return case(g(0, 3, 4), g.at(1, 1), g.at(2, 3))


def power(g: Given) -> Any:
    if g.version < 7:
        x, y = g(0, 2, 3, low=0.5, high=3), g(1, 3, low=0, high=2)
        return case(x, y, broadcast=1, expect=x**y)
    whole = "int" in g.narrow(0)
    return case(g(0, 2, 3, low=1 if whole else 0.5, high=3), g(1, 3, low=0, high=2))


def modulo(g: Given) -> Any:
    return case(g(0, 3, 4, high=20), g(1, 4, low=1, high=6), fmod=int("float" in g.narrow(0)))


def shift(g: Given) -> Any:
    if g.narrow("T").startswith("int"):
        x, by = g(0, 3, 4, high=100), g(1, 3, 4, low=0, high=6)
        return case(x, by, direction="RIGHT", expect=x >> by)
    return case(g(0, 3, 4, high=100), g(1, 3, 4, high=6), direction="RIGHT")


def is_inf(g: Given) -> Any:
    x = g(0, 3, 4)
    x[0, :2] = np.inf, -np.inf
    x[1, 1] = np.nan
    return case(x, expect=np.isinf(x) if g.narrow(0) != "float32" else None)


def is_nan(g: Given) -> Any:
    x = g(0, 3, 4)
    x[0, :2] = np.inf, np.nan
    return case(x, expect=np.isnan(x))


def shrink(g: Given) -> Any:
    x = g(0, 3, 4)
    wide = x.astype(np.float64)
    expect = np.where(wide < -1.5, wide + 1, np.where(wide > 1.5, wide - 1, 0)).astype(x.dtype)
    return case(x, lambd=1.5, bias=1.0, expect=expect)  # ORT computes float64 in float32


def hard_max(g: Given) -> Any:
    x = g(0, 2, 3, 4)
    rows = np.moveaxis(x, 1, -1) if g.version >= 13 else x.reshape(2, 12)
    ones = (np.arange(rows.shape[-1]) == np.argmax(rows, -1)[..., None]).astype(x.dtype)
    return case(x, axis=1, expect=np.moveaxis(ones, -1, 1) if g.version >= 13 else ones.reshape(x.shape))


def where(g: Given) -> Any:
    condition, x, y = g(0, 3, 1), g(1, 2, 3, 4), g(2, 4)
    return case(condition, x, y, expect=np.where(condition, x, y))


def p_relu(g: Given) -> Any:
    return case(g(0, 2, 3, 4), g(1, 3) if g.version < 7 else g(1, 3, 1))


def narrowing(x: Any, to: Any) -> Any:
    """ml_dtypes converts between few of its own types."""
    plain = x.dtype.isbuiltin == 1 and to.isbuiltin == 1
    return x.astype(to) if plain else x.astype(np.float32).astype(to)


def cast(g: Given) -> Any:
    if g.version < 6:
        raise Unfit("the target is a string there")
    to = g.narrow("T2")
    numpy = g.dtype("T2")
    x = g(0, 3, 4, low=0, high=1 if "2" in {to[-1], g.narrow(0)[-1]} else 3)
    if "e8m0" in to + g.narrow(0):
        x = g.at(0, [[1, 2, 4, 1], [0.5, 1, 2, 4]])
    return case(x, to=g.code("T2"), expect=narrowing(x, numpy) if to in CODES else None)


CODES = {"int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e8m0fnu"}


def cast_like(g: Given) -> Any:
    x, like = g(0, 3, 4, low=0, high=1), g(1, 2)
    if "e8m0" in g.narrow(1) + g.narrow(0):
        x = g.at(0, np.ones((3, 4)))
    return case(x, like, expect=narrowing(x, like.dtype))


def bit_cast(g: Given) -> Any:
    x, to = g(0, 3, 4), g.dtype("T2")
    if x.dtype.itemsize != to.itemsize:
        raise Unfit(f"{x.dtype.name} is not as wide")
    return case(x, to=g.code("T2"), expect=x.view(to))


def mean_variance(g: Given) -> Any:
    return case(g(0, 2, 3, 4, 2)) if g.version < 9 else case(g(0, 2, 3, 4, 2), axes=[0, 2, 3])


def reduced(low: float | None = None, since: int = 18) -> Maker:
    def make(g: Given) -> Any:
        x = g(0, 2, 3, 4, low=low, high=3)
        if g.version < since:
            return case(x, axes=[1], keepdims=0)
        return case(x, np.array([1, 2]), keepdims=0, constants=[1])

    return make


def soft(g: Given) -> Any:
    return case(g(0, 2, 3, 4), axis=1)


def best(g: Given) -> Any:
    x = g(0, 3, 4, high=100)
    arg = np.argmax if g.triple.name == "ArgMax" else np.argmin
    return case(x, axis=1, keepdims=1, expect=arg(x.astype(np.float64), 1)[:, None])


def top_k(g: Given) -> Any:
    values = g.random.permutation(24).reshape(2, 12)
    x = g.at(0, values)
    picked = np.argsort(-values, 1)[:, :3]
    expect = [np.take_along_axis(x, picked, 1), picked]
    if g.version < 10:
        return case(x, axis=1, k=3, outputs=2, expect=expect)
    return case(x, np.array([3]), axis=1, outputs=2, constants=[1], expect=expect)


def cumulative(function: Any) -> Maker:
    def make(g: Given) -> Any:
        x = g(0, 3, 4, low=1, high=2)
        wide = x.astype(np.float64)
        return case(x, g.at(1, 1), constants=[1], expect=function(wide, 1).astype(x.dtype))

    return make


CASES: dict[str, Maker] = {
    **dict.fromkeys(("Abs", "Ceil", "Floor", "Identity", "Neg", "Not", "Relu", "Round", "Sign"), unary()),
    **dict.fromkeys(("Asinh", "Atan", "Cos", "Erf", "Mish", "Sigmoid", "Sin", "Softplus", "Softsign", "Tanh"), unary()),
    **dict.fromkeys(("Cosh", "Exp", "Sinh"), unary(high=2)),
    **dict.fromkeys(("Acos", "Asin", "Atanh", "Tan"), unary(high=0.9)),
    **dict.fromkeys(("Acosh", "Log", "Reciprocal", "Sqrt"), unary(low=1.1)),
    "HardSwish": unary(tolerance=1e-6),  # its function body holds a sixth as float32
    "BitwiseNot": unary(),
    "Celu": unary(alpha=1.5),
    "Elu": unary(alpha=1.5),
    "Gelu": unary(),
    "HardSigmoid": unary(alpha=0.3, beta=0.4, tolerance=1e-6),
    "LeakyRelu": unary(alpha=0.3, tolerance=1e-6),
    "Selu": unary(alpha=1.5, gamma=1.2, tolerance=1e-6),
    "Shrink": shrink,
    "Swish": unary(alpha=1.5),
    "ThresholdedRelu": unary(alpha=1.5),
    "Add": binary(np.add),
    "Div": binary(lambda x, y: np.trunc(x.astype(np.float64) / y) if x.dtype.kind in "iu" else x / y, low=1),
    "Mul": binary(np.multiply),
    "Sub": binary(np.subtract),
    **{name: binary(getattr(np, f"logical_{name.lower()}")) for name in ("And", "Or", "Xor")},
    **{f"Bitwise{name}": binary(getattr(np, f"bitwise_{name.lower()}"), high=100) for name in ("And", "Or", "Xor")},
    **{name: binary(getattr(np, name.lower()), high=2) for name in ("Equal", "Greater", "Less")},
    **dict.fromkeys(("GreaterOrEqual", "LessOrEqual"), binary(None, high=2)),
    "SwiGLU": lambda g: case(g(0, 2, 3, 4), g(1, 2, 3, 4)),
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), many),
    "BitCast": bit_cast,
    "BitShift": shift,
    "Cast": cast,
    "CastLike": cast_like,
    "Clip": clip,
    "IsInf": is_inf,
    "IsNaN": is_nan,
    "Mod": modulo,
    "PRelu": p_relu,
    "Pow": power,
    "Where": where,
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSumSquare"), reduced()),
    **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp", "ReduceProd"), reduced(low=1)),
    "ReduceSum": reduced(since=13),
    "Hardmax": hard_max,
    **dict.fromkeys(("LogSoftmax", "Softmax"), soft),
    **dict.fromkeys(("ArgMax", "ArgMin"), best),
    "CumProd": cumulative(np.cumprod),
    "CumSum": cumulative(np.cumsum),
    "MeanVarianceNormalization": mean_variance,
    "TopK": top_k,
}
