"""Elementary functions and rounding."""

from __future__ import annotations

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops import precision
from ort_ep.registry import FLOATS, SINGLES, op


@op("Exp", since=6, dtypes=FLOATS)
def exp(x: Array) -> Array:
    return precision.exp(x)


@op("Log", since=6, dtypes=FLOATS)
def log(x: Array) -> Array:
    return precision.log(x)


@op("Sqrt", since=6, dtypes=FLOATS, fold=np.sqrt)
def sqrt(x: Array) -> Array:
    return mx.sqrt(x)


@op("Reciprocal", since=6, dtypes=FLOATS, fold=np.reciprocal)
def reciprocal(x: Array) -> Array:
    return mx.reciprocal(x)


@op("Erf", since=9, dtypes=SINGLES)
def erf(x: Array) -> Array:
    return precision.erf(x)


@op("Sin", since=7, dtypes=FLOATS)
def sin(x: Array) -> Array:
    return precision.sin(x)


@op("Cos", since=7, dtypes=FLOATS)
def cos(x: Array) -> Array:
    return precision.cos(x)


@op("Tan", since=7, dtypes=FLOATS)
def tan(x: Array) -> Array:
    return mx.tan(x)


@op("Asin", since=7, dtypes=FLOATS)
def asin(x: Array) -> Array:
    return mx.arcsin(x)


@op("Acos", since=7, dtypes=FLOATS)
def acos(x: Array) -> Array:
    return mx.arccos(x)


@op("Atan", since=7, dtypes=FLOATS)
def atan(x: Array) -> Array:
    return mx.arctan(x)


@op("Sinh", since=9, dtypes=FLOATS)
def sinh(x: Array) -> Array:
    return mx.sinh(x)


@op("Cosh", since=9, dtypes=FLOATS)
def cosh(x: Array) -> Array:
    return mx.cosh(x)


@op("Tanh", since=6, dtypes=FLOATS)
def tanh(x: Array) -> Array:
    return precision.tanh(x)


@op("Asinh", since=9, dtypes=FLOATS)
def asinh(x: Array) -> Array:
    return mx.arcsinh(x)


@op("Acosh", since=9, dtypes=FLOATS)
def acosh(x: Array) -> Array:
    return mx.arccosh(x)


@op("Atanh", since=9, dtypes=FLOATS)
def atanh(x: Array) -> Array:
    return mx.arctanh(x)


@op("Ceil", since=6, dtypes=FLOATS, fold=np.ceil)
def ceil(x: Array) -> Array:
    return mx.ceil(x)


@op("Floor", since=6, dtypes=FLOATS, fold=np.floor)
def floor(x: Array) -> Array:
    return mx.floor(x)


@op("Round", since=11, dtypes=FLOATS, fold=np.rint)
def round_half_even(x: Array) -> Array:
    return mx.round(x)
