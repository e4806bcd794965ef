"""The functional API's results against mlx.core in the same process, and against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import mlx.core as reference
import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py._sys import load

Build = Callable[[Any, Callable[[Any], Any]], Any]
RNG = np.random.default_rng(7)
X = RNG.standard_normal((2, 3, 4)).astype(np.float32)
Y = RNG.standard_normal((2, 3, 4)).astype(np.float32)
POSITIVE = np.abs(X) + 0.5
UNIT = np.tanh(X)
M = RNG.standard_normal((4, 4)).astype(np.float32)
SPD = (M @ M.T + 4 * np.eye(4)).astype(np.float32)
I32 = RNG.integers(-9, 9, (2, 3, 4)).astype(np.int32)
J32 = RNG.integers(1, 9, (2, 3, 4)).astype(np.int32)
B = X > 0
IMAGE = RNG.standard_normal((1, 6, 6, 4)).astype(np.float32)
KERNEL = RNG.standard_normal((3, 3, 3, 4)).astype(np.float32)
VOLUME = RNG.standard_normal((1, 4, 4, 4, 2)).astype(np.float32)
SEQUENCE = RNG.standard_normal((2, 8, 4)).astype(np.float32)
WEIGHTS = RNG.standard_normal((8, 64)).astype(np.float32)
HEADS = RNG.standard_normal((1, 2, 5, 8)).astype(np.float32)

UNARY = {
    "abs arctan arcsinh ceil cos cosh degrees erf exp expm1 floor isfinite isinf isnan isneginf isposinf negative"
    " radians round sigmoid sign sin sinh square tan tanh trunc positive logical_not stop_gradient copy": X,
    "log log10 log1p log2 reciprocal rsqrt sqrt arccosh": POSITIVE + 1,
    "arccos arcsin arctanh erfinv": UNIT * 0.9,
    "bitwise_invert": I32,
}
BINARY = {
    "add subtract multiply divide maximum minimum arctan2 logaddexp equal not_equal less less_equal greater"
    " greater_equal logical_and logical_or logical_xor floor_divide remainder": (X, Y),
    "power": (POSITIVE, Y),
    "bitwise_and bitwise_or bitwise_xor": (I32, J32),
    "left_shift right_shift": (J32, J32 % 5),
}
REDUCTIONS = "sum prod mean max min var std all any logsumexp argmax argmin median softmax"
# Every other function: one call or more with the module and a maker of arrays.
CASES: dict[str, Build] = {
    "addmm": lambda m, a: m.addmm(a(M), a(M), a(SPD), alpha=0.5, beta=2.0),
    "allclose": lambda m, a: m.allclose(a(X), a(X + 1e-7)),
    "arange": lambda m, a: [m.arange(5), m.arange(1, 7, 2), m.arange(0.0, 1.0, 0.25), m.arange(3, dtype=m.float16)],
    "argpartition": lambda m, a: m.sort(m.argpartition(a(X), 2, axis=-1)[..., :2]),
    "argsort": lambda m, a: [m.argsort(a(X)), m.argsort(a(X), axis=None), m.argsort(a(X), axis=0)],
    "array_equal": lambda m, a: [m.array_equal(a(X), a(X)), m.array_equal(a(X), a(Y))],
    "as_strided": lambda m, a: m.as_strided(a(X), (3, 2), (1, 2), 1),
    "astype": lambda m, a: [m.astype(a(X), m.int32), a(X).astype(m.bfloat16).astype(m.float32)],
    "atleast": lambda m, a: [m.atleast_1d(a(1.0)), m.atleast_2d(a(1.0)), *m.atleast_3d(a(1.0), a(X))],
    "bartlett": lambda m, a: [m.bartlett(5), m.blackman(5), m.hamming(5), m.hanning(5)],
    "broadcast_arrays": lambda m, a: list(m.broadcast_arrays(a(X), a(X[0]), a(1.0))),
    "broadcast_to": lambda m, a: m.broadcast_to(a(X[0]), (2, 3, 4)),
    "clip": lambda m, a: [m.clip(a(X), -0.5, 0.5), m.clip(a(X), None, a(Y)), m.clip(a(I32), 0, None)],
    "concatenate": lambda m, a: [m.concatenate([a(X), a(Y)], axis=1), m.concatenate([a(X), a(Y)], axis=None)],
    "conjugate": lambda m, a: m.conjugate(a(X.astype(np.complex64) * 1j)),
    "contiguous": lambda m, a: m.contiguous(m.transpose(a(X))),
    "conv1d": lambda m, a: m.conv1d(a(SEQUENCE), a(KERNEL[:, 0]), padding=1, stride=2),
    "conv2d": lambda m, a: [m.conv2d(a(IMAGE), a(KERNEL), padding=1), m.conv2d(a(IMAGE), a(KERNEL), (2, 1), (0, 1))],
    "conv3d": lambda m, a: m.conv3d(a(VOLUME), a(RNG_KERNEL3), padding=1, stride=(1, 2, 1)),
    "conv_general": lambda m, a: m.conv_general(
        a(IMAGE),
        a(KERNEL),
        stride=(2, 1),
        padding=([0, 1], [2, 1]),
        kernel_dilation=(1, 2),
        input_dilation=2,
        flip=True,
    ),
    "conv_transpose1d": lambda m, a: m.conv_transpose1d(a(SEQUENCE), a(KERNEL[:, 0]), stride=2, output_padding=1),
    "conv_transpose2d": lambda m, a: m.conv_transpose2d(a(IMAGE), a(KERNEL), stride=(2, 1), padding=1),
    "conv_transpose3d": lambda m, a: m.conv_transpose3d(a(VOLUME), a(RNG_KERNEL3), stride=2),
    "convolve": lambda m, a: [m.convolve(a(X[0, 0]), a(Y[0, 0, :3]), mode) for mode in ("full", "same", "valid")],
    "count_nonzero": lambda m, a: [m.count_nonzero(a(I32)), m.count_nonzero(a(I32), axis=(0, 1), keepdims=True)],
    "cumulative": lambda m, a: [
        getattr(m, f)(a(X), axis, reverse=reverse, inclusive=inclusive)
        for f in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
        for axis, reverse, inclusive in ((1, False, True), (None, True, True), (-1, False, False))
    ],
    "cumsum dtype": lambda m, a: m.cumsum(a(I32), 0, dtype=m.int64),
    "depends": lambda m, a: m.depends([a(X)], [a(Y)]),
    "diag": lambda m, a: [m.diag(a(M)), m.diag(a(M[0]), 1), m.diagonal(a(X), 1, 0, 2)],
    "diff": lambda m, a: [m.diff(a(X)), m.diff(a(X), 2, 1)],
    "divmod": lambda m, a: list(m.divmod(a(X), a(POSITIVE))),
    "einsum": lambda m, a: m.einsum("ijk,lk->jil", a(X), a(M)),
    "expand_dims": lambda m, a: [m.expand_dims(a(X), 1), m.expand_dims(a(X), (0, -1))],
    "eye": lambda m, a: [m.eye(3), m.eye(2, 4, 1), m.identity(3, m.int32), m.tri(3, 4, 1), m.eye(3, dtype=m.int8)],
    "flatten": lambda m, a: [m.flatten(a(X)), m.flatten(a(X), 1)],
    "flip": lambda m, a: [m.flip(a(X)), m.flip(a(X), 1), m.flip(a(X), (0, 2))],
    "fp8": lambda m, a: m.from_fp8(m.to_fp8(a(X)), m.float32),
    "full": lambda m, a: [m.full((2, 3), 1.5), m.full(3, 2, m.int8), m.full(3, a(X[0, 0, :1])), m.full_like(a(I32), 3)],
    "gather_mm": lambda m, a: m.gather_mm(a(X), a(X.swapaxes(1, 2)), rhs_indices=a(np.array([1, 0], np.uint32))),
    "hadamard": lambda m, a: m.hadamard_transform(a(WEIGHTS), scale=0.5),
    "inner": lambda m, a: [m.inner(a(M), a(SPD)), m.outer(a(M[0]), a(M[1])), m.kron(a(M), a(M[:2]))],
    "isclose": lambda m, a: m.isclose(a(X), a(X + 1e-9)),
    "linspace": lambda m, a: [m.linspace(0, 1, 5), m.linspace(0, 1, 5, endpoint=False), m.linspace(1, 3)],
    "matmul": lambda m, a: [m.matmul(a(X), a(M)), a(M) @ a(M[0]), m.vecdot(a(X), a(Y)), m.vecdot(a(X), a(Y), axis=0)],
    "matrix_transpose": lambda m, a: [m.matrix_transpose(a(X)), a(X).mT, a(M).T],
    "meshgrid": lambda m, a: [*m.meshgrid(a(M[0]), a(M[1, :3])), *m.meshgrid(a(M[0]), a(M[1]), indexing="ij")],
    "minmax": lambda m, a: list(m.minmax(a(X), 1, True)),
    "moveaxis": lambda m, a: [m.moveaxis(a(X), 0, 2), m.swapaxes(a(X), 0, 1), m.permute_dims(a(X), (2, 0, 1))],
    "nan_to_num": lambda m, a: m.nan_to_num(a(np.array([np.nan, np.inf, -np.inf, 1], np.float32)), 1.0, 9.0),
    "ones": lambda m, a: [m.ones((2, 3)), m.zeros(4, m.int16), m.ones_like(a(I32)), m.zeros_like(a(X), m.int8)],
    "pad": lambda m, a: [
        m.pad(a(X), 1),
        m.pad(a(X), (1, 2), constant_values=3.5),
        m.pad(a(X), [(0, 1), (1, 0), (2, 2)], mode="edge"),
    ],
    "partition": lambda m, a: m.sort(m.partition(a(X), 2)[..., :3]),
    "put_along_axis": lambda m, a: [
        m.put_along_axis(a(X), a(np.zeros((2, 3, 1), np.int32)), a(Y[..., :1]), axis=-1),
        m.put_along_axis(a(X), a(np.array([0, 5])), a(np.float32([1, 2])), axis=None),
    ],
    "quantize": lambda m, a: [
        *m.quantize(a(WEIGHTS), 32, 8),
        m.dequantize(*m.quantize(a(WEIGHTS), 32, 8), group_size=32, bits=8),
        # Two groups a row: of rows of one group MLX 0.32.4 makes wrong products on an H100 or H200.
        m.quantized_matmul(a(WEIGHTS[:2]), *m.quantize(a(WEIGHTS), 32, 4), True, 32, 4),
    ],
    "real": lambda m, a: [m.real(a(X.astype(np.complex64) + 1j)), m.imag(a(X.astype(np.complex64) + 1j))],
    "repeat": lambda m, a: [m.repeat(a(X), 2), m.repeat(a(X), 2, axis=1), m.tile(a(X), (2, 1)), m.tile(a(X), 2)],
    "reshape": lambda m, a: [m.reshape(a(X), (4, -1)), a(X).reshape(6, 4), a(X).reshape((2, 12)), a(X).reshape(-1)],
    "roll": lambda m, a: [m.roll(a(X), 1), m.roll(a(X), 2, 1), m.roll(a(X), (1, 2), (0, 2))],
    "round": lambda m, a: m.round(a(X), 1),
    "searchsorted": lambda m, a: m.searchsorted(a(np.sort(M[0])), a(M[1]), side="right"),
    "segmented_mm": lambda m, a: m.segmented_mm(a(M), a(SPD), a(np.array([[0, 2], [2, 4]], np.uint32))),
    "slice": lambda m, a: [
        m.slice(a(X), a(np.array([1, 0])), (1, 2), (2, 2, 2)),
        m.slice_update(a(X), a(Y[:, :1]), a(np.array([1])), (1,)),
    ],
    "softmax": lambda m, a: [m.softmax(a(X), axis=-1, precise=True), m.softmax(a(X), (0, 1))],
    "sort": lambda m, a: [m.sort(a(X)), m.sort(a(X), axis=None), m.topk(a(X), 2), m.topk(a(X), 3, axis=None)],
    "split": lambda m, a: [*m.split(a(X), 2, axis=2), *m.split(a(X), [1, 2], axis=1), *a(X).split(2)],
    "squeeze": lambda m, a: [m.squeeze(a(X[:1])), m.squeeze(a(X[:1, :, :1]), (0, 2)), a(X[:1]).squeeze(0)],
    "stack": lambda m, a: [m.stack([a(X), a(Y)]), m.stack([a(X), a(Y)], axis=-1), *m.unstack(a(X), axis=1)],
    "take": lambda m, a: [
        m.take(a(X), a(np.array([0, 5, 23]))),
        m.take(a(X), a(np.array([[2, 0]])), axis=1),
        m.take(a(X), 1, axis=0),
        m.take_along_axis(a(X), a(np.argsort(X, 1)), axis=1),
        m.take_along_axis(a(X), a(np.array([3, 7])), axis=None),
    ],
    "tensordot": lambda m, a: [m.tensordot(a(X), a(M), 1), m.tensordot(a(X), a(Y), [[0, 1], [0, 1]])],
    "trace": lambda m, a: [m.trace(a(M)), m.trace(a(X), 1, 0, 2), m.trace(a(I32), dtype=m.int64)],
    "tril": lambda m, a: [m.tril(a(M)), m.triu(a(M), 1)],
    "unflatten": lambda m, a: m.unflatten(a(X), 2, (2, 2)),
    "view": lambda m, a: a(X).view(m.int32),
    "where": lambda m, a: [m.where(a(B), a(X), a(Y)), m.where(a(B), a(X), 0.0), m.where(a(B), 1, 0)],
    "fast.layer_norm": lambda m, a: [
        m.fast.layer_norm(a(X), a(M[0]), a(M[1]), 1e-5),
        m.fast.layer_norm(a(X), None, None, 1e-5),
        m.fast.rms_norm(a(X), a(M[0]), 1e-5),
    ],
    "fast.rope": lambda m, a: [
        m.fast.rope(a(HEADS), 8, traditional=False, base=10000.0, scale=1.0, offset=3),
        m.fast.rope(a(HEADS), 4, traditional=True, base=None, scale=2.0, offset=0, freqs=a(POSITIVE[0, 0, :2])),
        m.fast.rope(a(HEADS), 8, traditional=False, base=100.0, scale=1.0, offset=a(np.array([2], np.int32))),
    ],
    "fast.sdpa": lambda m, a: [
        m.fast.scaled_dot_product_attention(a(HEADS), a(HEADS), a(HEADS), scale=0.5),
        m.fast.scaled_dot_product_attention(a(HEADS), a(HEADS), a(HEADS), scale=0.5, mask="causal"),
        m.fast.scaled_dot_product_attention(a(HEADS), a(HEADS), a(HEADS), scale=0.5, mask=a(np.eye(5) > 0)),
    ],
    "fast.cross_entropy": lambda m, a: m.fast.cross_entropy(a(M), a(np.array([0, 1, 2, 3]))),
    "fft": lambda m, a: [
        m.fft.fft(a(X)),
        m.fft.ifft(a(X), n=6, axis=1),
        m.fft.rfft(a(X), norm="ortho"),
        m.fft.irfft(m.fft.rfft(a(X))),
        m.fft.fft2(a(X)),
        m.fft.ifft2(a(X), s=(2, 2)),
        m.fft.rfft2(a(X)),
        m.fft.irfft2(m.fft.rfft2(a(X))),
        m.fft.fftn(a(X)),
        m.fft.ifftn(a(X), axes=(0, 2)),
        m.fft.rfftn(a(X)),
        m.fft.irfftn(m.fft.rfftn(a(X))),
        m.fft.fftshift(a(X)),
        m.fft.ifftshift(a(X), axes=1),
        m.fft.fftfreq(6, 0.5),
        m.fft.rfftfreq(6),
    ],
    "linalg": lambda m, a: [
        m.linalg.cholesky(a(SPD), stream=m.cpu),
        m.linalg.cholesky_inv(m.linalg.cholesky(a(SPD), stream=m.cpu), stream=m.cpu),
        m.linalg.inv(a(SPD), stream=m.cpu),
        m.linalg.tri_inv(m.tril(a(SPD)), stream=m.cpu),
        m.linalg.pinv(a(M[:, :3]), stream=m.cpu),
        m.linalg.solve(a(SPD), a(M), stream=m.cpu),
        m.linalg.solve_triangular(m.triu(a(SPD)), a(M), upper=True, stream=m.cpu),
        *m.linalg.lu(a(SPD), stream=m.cpu),
        *m.linalg.lu_factor(a(SPD), stream=m.cpu),
        m.linalg.eigvalsh(a(SPD), stream=m.cpu),
        m.linalg.eigh(a(SPD), stream=m.cpu)[0],
        m.linalg.svd(a(M), compute_uv=False, stream=m.cpu),
        m.linalg.svd(a(M), stream=m.cpu)[1],
        m.abs(m.linalg.qr(a(M), stream=m.cpu)[1]),
        m.linalg.det(a(SPD), stream=m.cpu),
        *m.linalg.slogdet(a(SPD), stream=m.cpu),
        m.sort(m.abs(m.linalg.eigvals(a(SPD), stream=m.cpu))),
        m.sort(m.abs(m.linalg.eig(a(SPD), stream=m.cpu)[0])),
        m.linalg.cross(a(X[..., :3]), a(Y[..., :3])),
    ],
    "linalg.norm": lambda m, a: [
        m.linalg.norm(a(M)),
        m.linalg.norm(a(M), axis=0),
        m.linalg.norm(a(M), ord=1, axis=1, keepdims=True),
        m.linalg.norm(a(M), ord="fro"),
        m.linalg.norm(a(M[0]), ord=float("inf")),
        m.linalg.norm(a(X), "fro", axis=(0, 1)),
    ],
    "random": lambda m, a: [
        m.random.bernoulli(0.3, (5,), m.random.key(1)),
        m.random.categorical(a(X), key=m.random.key(2)),
        m.random.categorical(a(X), shape=(5, 2, 3), key=m.random.key(2)),
        m.random.categorical(a(X), num_samples=3, key=m.random.key(2)),
        m.random.gumbel((3,), key=m.random.key(3)),
        m.random.laplace((3,), loc=1.0, scale=2.0, key=m.random.key(4)),
        m.random.normal((3, 2), key=m.random.key(5)),
        m.random.normal((3, 4), loc=a(M[0]), scale=2.0, key=m.random.key(5)),
        m.random.permutation(6, key=m.random.key(6)),
        m.random.permutation(a(X), 1, key=m.random.key(6)),
        m.random.randint(0, 9, (4,), key=m.random.key(7)),
        m.random.split(m.random.key(8), 3),
        m.random.truncated_normal(-1, 1, (4,), key=m.random.key(9)),
        m.random.uniform(shape=(3,), key=m.random.key(10)),
        m.random.uniform(-1.0, a(M[0]), (2, 4), key=m.random.key(10)),
        m.random.multivariate_normal(a(M[0]), a(SPD), key=m.random.key(11), stream=m.cpu),
    ],
}
RNG_KERNEL3 = RNG.standard_normal((3, 3, 3, 3, 2)).astype(np.float32)


def compare(ours: Any, theirs: Any, tolerance: float = 2e-6) -> None:
    """The same nesting, shapes, dtypes and values."""
    if isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for o, t in zip(ours, theirs, strict=True):
            compare(o, t, tolerance)
        return
    assert isinstance(ours, mx.Array)
    assert ours.shape == theirs.shape
    assert ours.dtype.name == str(theirs.dtype).rpartition(".")[2]
    np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=tolerance, atol=tolerance)


def check(build: Build) -> None:
    """Build with both packages and compare."""
    try:
        ours = build(mx, mx.array)
    except load.SymbolError as lacking:
        if load.library().generation.startswith("0.7"):
            raise
        pytest.skip(str(lacking))
    compare(ours, build(reference, reference.array))


@pytest.mark.parametrize("name", [n for names in UNARY for n in names.split() if hasattr(reference, n)])
def test_unary(name: str) -> None:
    x = next(x for names, x in UNARY.items() if name in names.split())
    check(lambda m, a: getattr(m, name)(a(x)))


@pytest.mark.parametrize("name", [n for names in BINARY for n in names.split()])
def test_binary_broadcasts_and_takes_numbers(name: str) -> None:
    x, y = next(v for names, v in BINARY.items() if name in names.split())
    number = int(y.flat[0]) if y.dtype.kind == "i" else float(y.flat[0])
    check(lambda m, a: [getattr(m, name)(*args) for args in ((a(x), a(y)), (a(x), a(y[0, :1])), (a(x), number))])
    check(lambda m, a: getattr(m, name)(number, a(x if x is not POSITIVE else y)))


@pytest.mark.parametrize("name", REDUCTIONS.split())
def test_reductions(name: str) -> None:
    def build(m: Any, a: Any) -> Any:
        function = getattr(m, name)
        options = {} if name == "softmax" else {"keepdims": True}
        axes: list[Any] = [None, 0, -1] if name in ("argmax", "argmin") else [None, 0, -1, (0, 2), [1]]
        return [f for axis in axes for f in (function(a(X), axis), function(a(X), axis=axis, **options))]

    check(build)


@pytest.mark.parametrize("name", CASES)
def test_the_rest(name: str) -> None:
    check(CASES[name])


INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
DTYPES = ["bool_", *INTEGERS, "float16", "bfloat16", "float32", "complex64"]


def named(dtype: Any) -> str:
    """A dtype's name, of either package."""
    return str(dtype).rpartition(".")[2]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_promote_as_in_mlx_core(dtype: str) -> None:
    def build(m: Any) -> list[str]:
        x = m.array([1, 0, 1], getattr(m, dtype))
        others = [m.array([1, 1, 0], getattr(m, d)) for d in DTYPES]
        numbers = [1, 1.5, True, *([] if dtype.startswith("u") else [-2])]
        results = [x, *(x + o for o in others), *(x * n for n in numbers), *(n + x for n in numbers)]
        return [named(r.dtype) for r in results]

    assert build(mx) == build(reference)
    ours = [named(mx.result_type(getattr(mx, dtype), getattr(mx, d))) for d in DTYPES]
    theirs = [named(reference.result_type(getattr(reference, dtype), getattr(reference, d))) for d in DTYPES]
    assert ours == theirs


def test_numbers_are_weak() -> None:
    half = mx.array([1, 2], mx.float16)
    assert (half * 2.0).dtype is mx.float16
    assert (2 ** mx.array([1, 2])).dtype is mx.int32
    assert (mx.array([1, 2]) * 2.5).dtype is mx.float32
    assert (mx.array([True]) + 1).dtype is mx.int32
    assert (mx.array([1], mx.bfloat16) / 3).dtype is mx.bfloat16
    assert np.array(mx.array([0.0]) * -0.0).tobytes() != np.array(mx.array([0.0]) * 0.0).tobytes()
    assert np.isinf(np.array(mx.array([1.0], mx.float16) * 1e9)).all()
    with pytest.raises(ValueError, match="300 does not fit into uint8"):
        mx.array([1], mx.uint8) + 300


def test_two_numbers_follow_themselves() -> None:
    for m in (mx, reference):
        calls = (m.maximum(2**31, 7), m.add(1, 2**40), m.add(1.5, 1), m.add(True, 1), m.where(m.array(True), 2**40, 1))
        assert [named(a.dtype) for a in calls] == ["int64", "int64", "float32", "int32", "int64"]
        assert m.arange(0, 2**40, 2**39).tolist() == [0, 2**39]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "complex64"])
def test_numpy_operands_are_weak(dtype: str) -> None:
    hosts = [np.int64(2), np.uint8(2), np.bool_(True), np.array(2), np.arange(3), np.array([True])]
    if dtype != "int8":
        hosts += [np.float32(2), np.float64(0.5), np.float16(2), np.array([1.5, 2.5, 3.5])]

    def build(m: Any) -> list[Any]:
        x = m.array([1, 2, 3], getattr(m, dtype))
        return [(named(y.dtype), y.tolist()) for y in (x * host for host in hosts)]

    assert build(mx) == build(reference)
    # mlx.core would take the fraction away
    assert (mx.array([2], mx.int8) * np.float32(1.5)).tolist() == [3.0]
    with pytest.raises(TypeError, match="MLX has no dtype for"):
        mx.array([2.0]) * np.array(["a"])


def test_operators_match_functions() -> None:
    a, b = mx.array(J32), mx.array(J32[::-1].copy())
    pairs = [
        (a + b, mx.add(a, b)),
        (3 - a, mx.subtract(3, a)),
        (a // b, mx.floor_divide(a, b)),
        (a % b, mx.remainder(a, b)),
        (a**2, mx.power(a, 2)),
        (a & b, mx.bitwise_and(a, b)),
        (a | 1, mx.bitwise_or(a, 1)),
        (a ^ b, mx.bitwise_xor(a, b)),
        (a << 1, mx.left_shift(a, 1)),
        (a >> 1, mx.right_shift(a, 1)),
        (-a, mx.negative(a)),
        (~a, mx.bitwise_invert(a)),
        (~(a > 3), mx.logical_not(a > 3)),
        (abs(-a), a),
        (b + J32, mx.add(a, b)),
    ]
    for left, right in pairs:
        assert left.dtype is right.dtype
        assert bool(mx.array_equal(left, right))
    with pytest.raises(TypeError):
        a + "text"
    assert (a == "text") is False


def test_in_place_operators_keep_the_object() -> None:
    a = mx.array([1.0, 2.0])
    other = a
    a += 1
    a *= mx.array([2.0, 3.0])
    assert other is a
    assert a.tolist() == [4.0, 9.0]


def test_gather_and_scatter() -> None:
    a = mx.array(X)
    picked = mx.gather(a, [mx.array([1, 0]), mx.array([2, 2])], (0, 1), (1, 1, 4))
    np.testing.assert_array_equal(np.array(picked).reshape(2, 4), X[[1, 0], [2, 2]])
    updates = mx.ones((2, 1, 3, 4))
    for name, expected in (
        ("scatter", np.stack([X[0], np.ones_like(X[0])])),
        ("scatter_add", np.stack([X[0], X[1] + 2])),
        ("scatter_max", np.stack([X[0], np.maximum(X[1], 1)])),
        ("scatter_min", np.stack([X[0], np.minimum(X[1], 1)])),
        ("scatter_prod", X),
    ):
        result = getattr(mx, name)(a, [mx.array([1, 1])], updates, (0,))
        np.testing.assert_allclose(np.array(result), expected, rtol=1e-6)
    added = mx.scatter_add_axis(a, mx.zeros((2, 3, 1), mx.int32), mx.ones((2, 3, 1)), -1)
    np.testing.assert_allclose(np.array(added)[..., 0], X[..., 0] + 1)
    masked = mx.masked_scatter(mx.array(M[0]), mx.array([True, False, True, False]), mx.array([7.0, 8.0]))
    np.testing.assert_array_equal(np.array(masked), [7, M[0, 1], 8, M[0, 3]])


def test_strided_slices() -> None:
    a, update = mx.array(X), mx.ones((1, 2, 4))
    where = ((1, 2, 3), (2, -4, -5), (1, -2, -1))
    np.testing.assert_array_equal(np.array(mx.strided_slice(a, *where)), X[1:2, 2::-2, ::-1])
    for name, function in (("", lambda x: x * 0 + 1), ("_add", lambda x: x + 1), ("_prod", lambda x: x)):
        expected = X.copy()
        expected[1:2, 0:3:2] = function(expected[1:2, 0:3:2])
        result = getattr(mx, f"strided_slice_update{name}")(a, update, (1, 0, 0), (2, 3, 4), (1, 2, 1))
        np.testing.assert_allclose(np.array(result), expected, rtol=1e-6)
    top = mx.strided_slice_update_max(a, update, (1, 0, 0), (2, 3, 4), (1, 2, 1))
    low = mx.strided_slice_update_min(a, update, (1, 0, 0), (2, 3, 4), (1, 2, 1))
    np.testing.assert_array_equal(np.array(top)[1, ::2], np.maximum(X[1, ::2], 1))
    np.testing.assert_array_equal(np.array(low)[1, ::2], np.minimum(X[1, ::2], 1))
    assert int(mx.number_of_elements(a, (0, 2))) == 8


def test_addmm_of_nothing() -> None:
    """mlx.core on CUDA ends the process here."""
    a, c = mx.array(M), mx.array(M[0])
    assert mx.addmm(c, a[:0], mx.array(SPD)).tolist() == []
    np.testing.assert_array_equal(
        np.array(mx.addmm(c, a[:, :0], mx.zeros((0, 4)), 3, 2)), 2 * np.tile(M[0], (len(M), 1))
    )


def test_quantized_families() -> None:
    w, scales = mx.quantize(mx.array(WEIGHTS), mode="mxfp4")
    back = mx.dequantize(w, scales, mode="mxfp4", dtype=mx.float32)
    assert np.abs(np.array(back) - WEIGHTS).max() < 0.6
    q, s, b = mx.quantize(mx.array(np.stack([WEIGHTS, -WEIGHTS])), 64, 4)
    rows = mx.array(WEIGHTS[:1])[None]
    both = mx.gather_qmm(rows, q, s, b, rhs_indices=mx.array([1, 0], mx.uint32), group_size=64, bits=4)
    assert both.shape == (2, 1, 8)
    np.testing.assert_allclose(np.array(both[0]), -np.array(both[1]), atol=0.5)
    blocks = mx.block_masked_mm(mx.ones((32, 32)), mx.ones((32, 32)), 32, mx.array([[True]]))
    assert float(blocks[0, 0]) == 32.0


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,)])
def test_zero_size_and_rank_zero(shape: tuple[int, ...]) -> None:
    host = np.ones(shape, np.float32)
    a = mx.array(host)
    assert a.shape == shape
    assert a.size == host.size
    assert np.array(a + a).shape == shape
    assert np.array(mx.exp(a)).shape == shape
    assert float(mx.sum(a)) == host.sum()
    assert mx.concatenate([mx.reshape(a, (-1,)) if host.size else mx.zeros((0,)), mx.ones((2,))]).size == host.size + 2


def test_special_values() -> None:
    host = np.float32([np.nan, np.inf, -np.inf, -0.0])
    a = mx.array(host)
    np.testing.assert_array_equal(np.array(mx.isnan(a)), [True, False, False, False])
    np.testing.assert_array_equal(np.array(a), host)
    assert np.signbit(np.array(a))[3]
    np.testing.assert_array_equal(
        np.array(mx.maximum(a, 0.0)), np.maximum(np.float32([np.nan, np.inf, -np.inf, -0.0]), 0)
    )


def test_bfloat16_goes_both_ways() -> None:
    host = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    a = mx.array(host)
    assert a.dtype is mx.bfloat16
    assert np.array(a).dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(np.array(a).astype(np.float32), host.astype(np.float32))
    assert a.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert mx.array(2.5, mx.bfloat16).item() == 2.5
