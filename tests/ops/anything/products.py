"""Products of matrices over every rank that broadcasts, empty operands, and sums in Einstein's notation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from drawn import FLOATS, SEEDS, broadcast, values
from hypothesis import given
from hypothesis import strategies as st

Check = Callable[..., None]
SIZES = st.integers(0, 4)
TOLERANCE = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-12}


@given(seed=SEEDS, batch=broadcast(2), sizes=st.tuples(SIZES, SIZES, SIZES), dtype=st.sampled_from(FLOATS))
def test_matmul(check: Check, seed: int, batch: Any, sizes: tuple[int, int, int], dtype: str) -> None:
    m, k, n = sizes
    a, b = values(seed, dtype, (*batch[0], m, k)), values(seed + 1, dtype, (*batch[1], k, n))
    tolerance = TOLERANCE[dtype]
    expect = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(dtype)
    check("MatMul", a, b, expect=expect, rtol=tolerance, atol=tolerance)


@given(seed=SEEDS, rank=st.integers(1, 3), sizes=st.tuples(SIZES, SIZES), left=st.booleans())
def test_vectors(check: Check, seed: int, rank: int, sizes: tuple[int, int], left: bool) -> None:
    vector, matrix = values(seed, "float32", sizes[:1]), values(seed + 1, "float32", sizes[::-1] if left else sizes)
    if rank == 1:
        matrix = values(seed + 1, "float32", sizes[:1])
    elif rank == 3:
        matrix = np.stack([matrix, matrix])
    vector_first = rank > 1 and not left
    pair = (vector, matrix) if vector_first or rank == 1 else (matrix, vector)
    expect = np.asarray(np.matmul(*(x.astype(np.float64) for x in pair))).astype(np.float32)
    check("MatMul", *pair, expect=expect, rtol=1e-5)


@given(
    seed=SEEDS,
    sizes=st.tuples(SIZES, SIZES, SIZES),
    turned=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    bias=st.sampled_from(["absent", "scalar", "row", "column", "one", "whole"]),
    factors=st.tuples(st.sampled_from([1.0, 0.5]), st.sampled_from([1.0, 0.0, -2.0])),
    dtype=st.sampled_from((*FLOATS, "int32", "int64")),
)
def test_gemm(
    check: Check, seed: int, sizes: tuple[int, int, int], turned: Any, bias: str, factors: Any, dtype: str
) -> None:
    m, k, n = sizes
    alpha, beta = (1.0, 1.0) if dtype.startswith("int") else factors
    a = values(seed, dtype, (k, m) if turned[0] else (m, k))
    b = values(seed + 1, dtype, (n, k) if turned[1] else (k, n))
    extent = {"scalar": (), "row": (n,), "column": (m, 1), "one": (1, 1), "whole": (m, n)}.get(bias)
    c = None if extent is None else values(seed + 2, dtype, extent)
    wide_a, wide_b = (x.T if turn else x for x, turn in zip((a, b), turned, strict=True))
    y = alpha * (wide_a.astype(np.float64) @ wide_b.astype(np.float64))
    y = y if c is None else y + beta * c.astype(np.float64)
    tolerance = TOLERANCE.get(dtype)
    how: dict[str, Any] = {"alpha": alpha, "beta": beta, "transA": turned[0], "transB": turned[1]}
    check("Gemm", a, b, c, expect=y.astype(dtype), rtol=tolerance, atol=tolerance, **how)


EQUATIONS = [
    "ij,jk->ik",
    "bij,bjk->bik",
    "ij->ji",
    "ii->i",
    "ij->",
    "i,j->ij",
    "ijk,k->ij",
    "...ij,...jk->...ik",
    "ij,ij",
]


@given(seed=SEEDS, equation=st.sampled_from(EQUATIONS), lengths=st.tuples(*[st.integers(0, 3)] * 4))
def test_einsum(check: Check, seed: int, equation: str, lengths: tuple[int, ...]) -> None:
    extent = dict(zip("bijk", lengths, strict=True))
    terms = equation.split("->")[0].replace("...", "b").split(",")
    given_ = [values(seed + at, "float32", [extent[letter] for letter in term]) for at, term in enumerate(terms)]
    expect = np.asarray(np.einsum(equation, *(x.astype(np.float64) for x in given_))).astype(np.float32)
    check("Einsum", *given_, expect=expect, equation=equation, rtol=1e-5)
