"""Matrix products of every type that ONNX allows, integers exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

Check = Callable[..., None]
Draw = Callable[..., Any]
SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((3, 0), (0, 2)),
    ((0, 3), (3, 2)),
]


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int32, np.int64, np.uint32, np.uint64]
)
@pytest.mark.parametrize("shapes", SHAPES)
def test_matmul(check: Check, draw: Draw, dtype: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    a, b = (draw(dtype, *shape) for shape in shapes)
    wide = np.float64 if np.dtype(dtype).kind not in "iu" else dtype
    expected = np.asarray(np.matmul(a.astype(wide), b.astype(wide))).astype(dtype)
    check("MatMul", a, b, expect=expected, atol={np.float16: 4e-3, ml_dtypes.bfloat16: 5e-2}.get(dtype))


def test_integer_products_are_exact_and_wrap(check: Check) -> None:
    a, b = np.full((1, 3), 2**62 + 1, np.int64), np.full((3, 1), 3, np.int64)
    check("MatMul", a, b, expect=a @ b)
    deep = np.full((1, 4096), 16129, np.int32)
    check("MatMul", deep, deep.T, expect=(deep.astype(np.int64) @ deep.T.astype(np.int64)).astype(np.int32))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("bias", [None, (), (5,), (3, 1), (3, 5)])
def test_gemm(check: Check, draw: Draw, dtype: Any, bias: tuple[int, ...] | None) -> None:
    a, b, c = draw(dtype, 4, 3), draw(dtype, 5, 4), None if bias is None else draw(dtype, *bias)
    alpha, beta = (2.0, 3.0) if np.dtype(dtype).kind == "i" else (0.5, 2.0)
    expected = alpha * (a.T.astype(np.float64) @ b.T.astype(np.float64))
    expected = expected if c is None else expected + beta * c.astype(np.float64)
    check(
        "Gemm",
        a,
        b,
        c,
        expect=expected.astype(dtype),
        transA=1,
        transB=1,
        alpha=alpha,
        beta=beta,
        atol=1e-2 if dtype is np.float16 else None,
    )


@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "bij, bjk -> bik", "ii->i", "ij->ji", "...ij,...jk->...ik", "ij,ij", "i,j->ij"]
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_einsum(check: Check, draw: Draw, equation: str, dtype: Any) -> None:
    shapes = [
        (2, 3, 3) if "b" in term or "..." in term else (3,) * len(term.strip())
        for term in equation.split("->")[0].split(",")
    ]
    inputs = [draw(dtype, *shape) for shape in shapes]
    expected = np.einsum(equation.replace(" ", ""), *(x.astype(np.float64) for x in inputs))
    check(
        "Einsum",
        *inputs,
        expect=np.asarray(expected).astype(dtype),
        equation=equation,
        atol=1e-2 if dtype is np.float16 else None,
    )


@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
@pytest.mark.parametrize("length", [3, 258, 259, 3000])
def test_matmul_integer_is_exact(check: Check, types: tuple[Any, Any], length: int) -> None:
    a, b = (
        np.full((2, length), np.iinfo(types[0]).max, types[0]),
        np.full((length, 3), np.iinfo(types[1]).max, types[1]),
    )
    zero_a, zero_b = np.array(np.iinfo(types[0]).min, types[0]), np.array([np.iinfo(types[1]).min] * 3, types[1])
    check("MatMulInteger", a, b, expect=a.astype(np.int32) @ b.astype(np.int32))
    expected = (a.astype(np.int32) - zero_a) @ (b.astype(np.int32) - zero_b)
    check("MatMulInteger", a, b, zero_a, zero_b, expect=expected)


def test_integer_gemm_is_exact(check: Check) -> None:
    a, b, c = np.full((1, 2), 2**40 + 1, np.int64), np.full((2, 1), 3, np.int64), np.array([[2**60 + 1]], np.int64)
    check("Gemm", a, b, c, expect=2 * (a @ b) + c, alpha=2.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 4, 4), (2, 1, 5, 5)])
def test_determinant(check: Check, draw: Draw, dtype: Any, shape: tuple[int, ...]) -> None:
    x = draw(dtype, *shape)
    check("Det", x, expect=np.asarray(np.linalg.det(x.astype(np.float64))).astype(dtype))
    x[..., 0] = x[..., -1]
    if shape[-1] > 1:
        check("Det", x, expect=np.zeros(shape[:-2], dtype))
