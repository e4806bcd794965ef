"""Logic, comparison and selection."""

from __future__ import annotations

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.registry import ANY, BOOL, FLOATS, NUMERIC, op


@op("And", since=7, dtypes=BOOL, fold=np.logical_and)
def logical_and(a: Array, b: Array) -> Array:
    return mx.logical_and(a, b)


@op("Or", since=7, dtypes=BOOL, fold=np.logical_or)
def logical_or(a: Array, b: Array) -> Array:
    return mx.logical_or(a, b)


@op("Xor", since=7, dtypes=BOOL, fold=np.logical_xor)
def logical_xor(a: Array, b: Array) -> Array:
    return mx.not_equal(a, b)


@op("Not", since=1, dtypes=BOOL, fold=np.logical_not)
def logical_not(x: Array) -> Array:
    return mx.logical_not(x)


@op("Equal", since=7, dtypes=ANY, fold=np.equal)
def equal(a: Array, b: Array) -> Array:
    return mx.equal(a, b)


@op("Greater", since=7, dtypes=NUMERIC, fold=np.greater)
def greater(a: Array, b: Array) -> Array:
    return mx.greater(a, b)


@op("GreaterOrEqual", since=12, dtypes=NUMERIC, fold=np.greater_equal)
def greater_or_equal(a: Array, b: Array) -> Array:
    return mx.greater_equal(a, b)


@op("Less", since=7, dtypes=NUMERIC, fold=np.less)
def less(a: Array, b: Array) -> Array:
    return mx.less(a, b)


@op("LessOrEqual", since=12, dtypes=NUMERIC, fold=np.less_equal)
def less_or_equal(a: Array, b: Array) -> Array:
    return mx.less_equal(a, b)


@op("Where", since=9, dtypes=ANY, fold=np.where)
def where(condition: Array, x: Array, y: Array) -> Array:
    return mx.where(condition, x, y)


@op("IsNaN", since=9, dtypes=FLOATS)
def is_nan(x: Array) -> Array:
    return mx.isnan(x)


@op("IsInf", since=10, dtypes=FLOATS)
def is_inf(x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    negative, positive = mx.isneginf(x), mx.isposinf(x)
    if detect_negative and detect_positive:
        return mx.logical_or(negative, positive)
    if detect_negative or detect_positive:
        return negative if detect_negative else positive
    return mx.zeros_like(positive)
