"""Matrix products. MLX multiplies float matrices only: integers are summed exactly by other means."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

import numpy as np

import mlxc_py as mx
from mlxc_py import Array, cpu_primitives
from mlxc_py.cpu_primitives import Packed
from ort_ep.ops.precision import accumulated, is_float, narrow
from ort_ep.registry import FLOATS, op
from ort_ep.streams import cpu_stream

PRODUCTS = FLOATS | {"int32", "int64", "uint32", "uint64"}

# the most products of two 8-bit differences that a float32 sum holds exactly: 258 * 255 * 255 < 2**24
EXACT_TERMS = 258


def packed(b: Array, weights: bool) -> Array | Packed:
    """The second factor of a product; weights, the same from run to run, are packed where our own product wants it."""
    if not is_float(b):
        return b
    wide = accumulated(b)
    return cpu_primitives.pack_matrix(wide) if weights and cpu_primitives.packs_matrix(wide) else wide


def factor(b: Array, *, transB: int = 0) -> Array | Packed:
    """The prepared second input of a product."""
    return packed(b.T if transB else b, b.evaluated)


@op("MatMul", since=1, dtypes=PRODUCTS, prepare={"b": factor})
def matmul(a: Array, b: Array | Packed) -> Array:
    if isinstance(b, Packed) or is_float(a):
        return narrow(product(accumulated(a), b), a.dtype)
    rows, columns = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    sums = mx.sum(rows[..., None] * columns[..., None, :, :], -2).astype(a.dtype)
    sums = sums.squeeze(-2) if a.ndim == 1 else sums
    return sums.squeeze(-1) if b.ndim == 1 else sums


class Factors(TypedDict, total=False):
    """Gemm's attributes."""

    alpha: float
    beta: float
    transA: int
    transB: int


def product(a: Array, b: Array | Packed, bias: Array | None = None) -> Array:
    """a @ b + bias."""
    if isinstance(b, Packed):
        return cpu_primitives.matmul(a, b, bias)
    y = mx.matmul(a, accumulated(b))
    return y if bias is None else y + bias


@op("Gemm", since=7, dtypes=PRODUCTS, prepare={"b": factor})
def gemm(
    a: Array,
    b: Array | Packed,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    a = a.T if transA else a
    if not is_float(a):
        sums = scaled(matmul(a, b), alpha)
        return sums if c is None else sums + scaled(c, beta)
    wide = accumulated(a)
    if c is None:
        sums = product(wide, b)
        return narrow(sums if alpha == 1 else sums * alpha, a.dtype)
    columns = b.made if isinstance(b, Packed) else b.shape[1]
    if alpha == beta == 1 and c.shape[-1:] == (c.size,) == (columns,):
        return narrow(product(wide, b, accumulated(c).reshape([-1])), a.dtype)
    if isinstance(b, Packed):
        return narrow(product(wide, b) * alpha + accumulated(c) * beta, a.dtype)
    return mx.addmm(c.astype(wide.dtype), wide, b, alpha, beta).astype(a.dtype)


def scaled(x: Array, factor: float) -> Array:
    """x * factor in x's type; by a whole factor integers stay exact."""
    return x * int(factor) if factor.is_integer() else (x * factor).astype(x.dtype)


@op("Einsum", since=12, dtypes=FLOATS)
def einsum(*inputs: Array, equation: str) -> Array:
    wide = [accumulated(x) for x in inputs]
    return mx.einsum(equation.replace(" ", ""), *wide).astype(inputs[0].dtype)


class ExactFactor(NamedTuple):
    """The second factor of an exact product: float32 [..., parts, terms, N] for `length` terms in all.

    column: it was a vector, so that the product has no last axis.
    """

    weights: Array
    length: int
    column: bool

    @classmethod
    def of(cls, b: Array) -> ExactFactor:
        """Of matrices [..., K, N], or a vector, whose elements lie within 8 bits and a sign."""
        matrix = b[:, None] if b.ndim == 1 else b
        *batch, length, columns = matrix.shape
        parts, terms = max(-(-length // EXACT_TERMS), 1), min(length, EXACT_TERMS)
        padded = mx.pad(matrix, [(0, 0)] * len(batch) + [(0, parts * terms - length), (0, 0)])
        weights = padded.reshape([*batch, parts, terms, columns]).astype(mx.float32)
        return cls(weights, length, column=b.ndim == 1)


def exact_product(a: Array, b: ExactFactor) -> Array:
    """a [..., K] times a factor in int32, exact for any K, where a's elements lie within 8 bits and a sign."""
    parts, terms, _ = b.weights.shape[-3:]
    rows = a[None] if a.ndim == 1 else a
    rows = mx.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, parts * terms - b.length)]).astype(mx.float32)
    split = mx.moveaxis(rows.reshape([*rows.shape[:-1], parts, terms]), -2, -3)
    sums = mx.sum(mx.matmul(split, b.weights).astype(mx.int32), -3)
    sums = sums.squeeze(-1) if b.column else sums
    return sums.squeeze(-1 if b.column else -2) if a.ndim == 1 else sums


@op("Det", since=11, dtypes=frozenset({"float32", "float64"}))
def det(x: Array) -> Array:
    size = x.shape[-1]
    if not x.size:
        return mx.ones(x.shape[:-2], x.dtype)
    # LAPACK runs on the CPU only
    pivots, _, upper = mx.linalg.lu(x, stream=cpu_stream())
    swaps = mx.array(np.triu(np.ones((size, size), bool), 1))
    inversions = mx.sum(mx.logical_and(pivots[..., :, None] > pivots[..., None, :], swaps), [-2, -1])
    sign = mx.where(inversions % 2 == 1, -1, 1).astype(x.dtype)
    return sign * mx.prod(mx.diagonal(upper, 0, -2, -1), -1)
