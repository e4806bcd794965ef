"""Products, convolutions, quantisation, linear algebra, Fourier transforms."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from capi_compare import Case, assert_same, case, compare
from capi_harness import CApi

RNG = np.random.default_rng(4)


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype("f4")


A, B, C = f(3, 4), f(4, 5), f(3, 5)
SQUARE = f(4, 4)
POSITIVE = (SQUARE @ SQUARE.T + 4 * np.eye(4, dtype="f4")).astype("f4")
V, W = f(4), f(4)
I4 = np.array([1, 0, 1], "u4")

PRODUCTS = [
    case("matmul", A, B),
    case("matmul", A, A),
    case("addmm", C, A, B, 0.5, 2.0, ref=lambda c, a, b, alpha, beta: mx.addmm(c, a, b, alpha, beta)),
    case("inner", A, f(2, 4)),
    case("outer", V, W),
    case("kron", A, B),
    case(
        "tensordot",
        f(2, 3, 4),
        f(4, 3, 5),
        (1, 2),
        (1, 0),
        ref=lambda a, b, i, j: mx.tensordot(a, b, [list(i), list(j)]),
    ),
    case("tensordot_axis", A, B, 1),
    case("einsum", "ij,jk->ki", [A, B], ref=lambda text, v: mx.einsum(text, *v)),
    case("block_masked_mm", f(64, 64), f(64, 64), 32, np.array([[True, False], [True, True]]), None, None),
    case("gather_mm", f(3, 4, 5), f(3, 5, 6), None, I4, sorted_indices=False),
    case("segmented_mm", f(4, 6), f(6, 3), np.array([[0, 2], [2, 6]], "u4")),
]


@pytest.mark.parametrize("c", PRODUCTS)
def test_products(capi: CApi, c: Case) -> None:
    compare(capi, c)


CONVOLUTIONS = [
    case("conv1d", f(2, 9, 4), f(3, 3, 2), 2, 1, 1, 2),
    case("conv2d", f(1, 7, 8, 2), f(3, 3, 2, 2), 1, 2, 1, 0, 1, 2, 1,
         ref=lambda x, w, s0, s1, p0, p1, d0, d1, g: mx.conv2d(x, w, (s0, s1), (p0, p1), (d0, d1), g)),
    case("conv3d", f(1, 4, 5, 6, 2), f(3, 2, 2, 2, 2), 1, 1, 2, 0, 1, 0, 1, 1, 1, 1,
         ref=lambda x, w, *a: mx.conv3d(x, w, a[0:3], a[3:6], a[6:9], a[9])),
    case("conv_general", f(1, 7, 8, 2), f(3, 3, 2, 2), (1, 2), (1, 0), (2, 1), (1, 1), (2, 1), 1, True,
         ref=lambda x, w, s, lo, hi, kd, d, g, flip: mx.conv_general(
             x, w, list(s), (list(lo), list(hi)), list(kd), list(d), g, flip)),
    case("conv_transpose1d", f(2, 5, 4), f(3, 3, 4), 2, 1, 1, 1, 1),
    case("conv_transpose2d", f(1, 5, 6, 2), f(3, 3, 2, 2), 2, 1, 1, 0, 1, 1, 1, 0, 1,
         ref=lambda x, w, *a: mx.conv_transpose2d(x, w, a[0:2], a[2:4], a[4:6], a[6:8], a[8])),
    case("conv_transpose3d", f(1, 3, 4, 3, 2), f(3, 2, 2, 2, 2), 1, 2, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1,
         ref=lambda x, w, *a: mx.conv_transpose3d(x, w, a[0:3], a[3:6], a[6:9], a[9:12], a[12])),
]  # fmt: skip


@pytest.mark.parametrize("c", CONVOLUTIONS)
def test_convolutions(capi: CApi, c: Case) -> None:
    compare(capi, c)


# ---- quantisation
WEIGHTS = f(3, 64, 128)
Q, SCALES, BIASES = (np.array(a) for a in mx.quantize(mx.array(WEIGHTS), 64, 4))
XQ = f(3, 2, 128)
QUANTISED = [
    case("quantize", WEIGHTS, 64, 4, "affine", None, ref=lambda w, g, b, mode, _: mx.quantize(w, g, b, mode=mode)),
    case("dequantize", Q, SCALES, BIASES, 64, 4, "affine", None, None,
         ref=lambda q, s, b, g, n, *_: mx.dequantize(q, s, b, g, n)),
    case("quantized_matmul", XQ[0], Q[0], SCALES[0], BIASES[0], True, 64, 4, "affine",
         ref=lambda x, q, s, b, t, g, n, mode: mx.quantized_matmul(x, q, s, b, t, g, n)),
    case("gather_qmm", XQ, Q, SCALES, BIASES, None, I4, True, 64, 4, "affine", False,
         ref=lambda x, q, s, b, _, r, t, g, n, *m: mx.gather_qmm(
             x, q, s, b, rhs_indices=r, transpose=t, group_size=g, bits=n)),
]  # fmt: skip


@pytest.mark.parametrize("c", QUANTISED)
def test_quantisation(capi: CApi, c: Case) -> None:
    compare(capi, c)


def test_products_of_quantised_operands(capi: CApi) -> None:
    # The CPU back end has them for mxfp8 and nvfp4 at most; what mlx.core says is what the C API says.
    w, scales = (np.array(a) for a in mx.quantize(mx.array(WEIGHTS[0]), mode="mxfp8"))
    compare(
        capi,
        Case(
            "qqmm",
            (XQ[0], w, scales, 32, 8, "mxfp8", None, None),
            lambda x, w, s, g, b, mode, *_: mx.qqmm(x, w, s, g, b, mode),
        ),
    )
    w, scales = (np.array(a) for a in mx.quantize(mx.array(WEIGHTS), mode="mxfp8"))
    compare(
        capi,
        Case(
            "gather_qqmm",
            (XQ, w, scales, None, I4, 32, 8, "mxfp8", None, None, False),
            lambda x, w, s, _, r, g, b, mode, *__: mx.gather_qqmm(
                x, w, s, rhs_indices=r, group_size=g, bits=b, mode=mode
            ),
        ),
    )


# ---- linear algebra
def lu_solution(capi: CApi, a: np.ndarray) -> np.ndarray:
    factors, pivots = capi.op("linalg_lu_factor", a)
    lower, upper = np.tril(factors, -1) + np.eye(len(a)), np.triu(factors)
    rows = list(range(len(a)))
    for i, p in enumerate(pivots):
        rows[i], rows[p] = rows[p], rows[i]
    return (lower @ upper)[np.argsort(rows)]


LINALG = [
    case("linalg_cholesky", POSITIVE, False),
    case("linalg_cholesky", POSITIVE, True),
    case("linalg_cholesky_inv", np.linalg.cholesky(POSITIVE), False),
    case("linalg_cross", f(3, 4), f(3, 4), 0),
    case("linalg_det", SQUARE),
    case("linalg_slogdet", SQUARE),
    case("linalg_eigvals", POSITIVE),
    case("linalg_eigvalsh", POSITIVE, "L"),
    case("linalg_inv", POSITIVE),
    case("linalg_pinv", A),
    case("linalg_norm", A, 1.0, (0,), True),
    case("linalg_norm_l2", A, None, False, ref=lambda a, axis, keep: mx.linalg.norm(a, axis=axis, keepdims=keep)),
    case("linalg_norm_l2", A, (1,), True, ref=lambda a, axis, keep: mx.linalg.norm(a, axis=list(axis), keepdims=keep)),
    case("linalg_norm_matrix", A, "fro", (0, 1), False),
    case("linalg_solve", POSITIVE, C[:, :4].T.copy()),
    case("linalg_solve_triangular", np.tril(POSITIVE), V, upper=False),
    case("linalg_tri_inv", np.triu(POSITIVE), True),
]


@pytest.mark.parametrize("c", LINALG)
def test_linalg(capi: CApi, c: Case) -> None:
    compare(capi, c)


def test_factorisations(capi: CApi) -> None:
    q, r = capi.op("linalg_qr", A)
    np.testing.assert_allclose(q @ r, A, atol=1e-5)
    u, s, vt = capi.op("linalg_svd", A, True)
    np.testing.assert_allclose(u[:, :3] * s @ vt[:3], A, atol=1e-5)
    assert_same(capi.op("linalg_svd", A, False), [s])
    values, vectors = capi.op("linalg_eigh", POSITIVE, "U")
    np.testing.assert_allclose(POSITIVE @ vectors, vectors * values, atol=1e-4)
    values, vectors = capi.op("linalg_eig", SQUARE)
    np.testing.assert_allclose(SQUARE @ vectors, vectors * values, atol=1e-4)
    rows, lower, upper = capi.op("linalg_lu", SQUARE)
    np.testing.assert_allclose(lower[rows] @ upper, SQUARE, atol=1e-5)
    np.testing.assert_allclose(lu_solution(capi, SQUARE), SQUARE, atol=1e-5)


def test_norm_tells_no_axes_from_an_empty_list(capi: CApi) -> None:
    assert_same(capi.op("linalg_norm_l2", A, None, False), np.float32(np.linalg.norm(A)).reshape(()))
    compare(capi, Case("linalg_norm_l2", (A, (), False), lambda a, *_: mx.linalg.norm(a, axis=[])))


# ---- Fourier transforms
REAL, COMPLEX = f(4, 6), (f(4, 6) + 1j * f(4, 6)).astype("c8")
NORMS = ["backward", "ortho", "forward"]
ONE_AXIS = {"fft": COMPLEX, "ifft": COMPLEX, "rfft": REAL, "irfft": COMPLEX}


@pytest.mark.parametrize("norm", range(3))
@pytest.mark.parametrize("name", ONE_AXIS)
def test_transforms(capi: CApi, name: str, norm: int) -> None:
    x = ONE_AXIS[name]
    one, two, many = (getattr(mx.fft, name + end) for end in ("", "2", "n"))

    def named(function: Any) -> Any:
        return lambda a, n, axes, code: function(a, n, axes, NORMS[code])

    compare(capi, Case(f"fft_{name}", (x, 5, 1, norm), named(one)))
    compare(capi, Case(f"fft_{name}2", (x, (3, 6), (0, 1), norm), named(two)))
    compare(capi, Case(f"fft_{name}n", (x, (4, 8), (1, 0), norm), named(many)))


@pytest.mark.parametrize(
    "c",
    [
        case("fft_fftfreq", 7, 0.5, ref=lambda n, d: mx.array(np.fft.fftfreq(n, d).astype("f4"))),
        case("fft_rfftfreq", 8, 0.5, ref=lambda n, d: mx.array(np.fft.rfftfreq(n, d).astype("f4"))),
        case("fft_fftshift", REAL, (0, 1)),
        case("fft_ifftshift", REAL, (1,)),
    ],
)
def test_frequencies(capi: CApi, c: Case) -> None:
    compare(capi, c)
