"""The vectorised CPU primitives against numpy in float64, on every instruction set that this processor has."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import cpu_primitives as cpu
from mlxc_py import extras
from mlxc_py.extras import own
from mlxc_py.tape import Tape, placeholder

BEST = cpu.isa()
HALF = (mx.float16, mx.bfloat16)


@pytest.fixture(params=["avx512vnni", "avx512", "avx2", "baseline"], autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    if BEST is None:
        pytest.skip("an official libmlxc has no CPU primitives")
    try:
        cpu.use_isa(request.param)
    except mx.MLXError:
        pytest.skip(f"this processor has no {request.param}")
    with mx.stream(mx.cpu):
        yield request.param
    cpu.use_isa(BEST)


def each(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return np.vectorize(function, otypes=[np.float64])


def expit(x: np.ndarray) -> np.ndarray:
    shrunk = np.exp(-np.abs(x))
    return np.where(x < 0, shrunk, 1) / (1 + shrunk)


def arguments(count: int = 40_000) -> np.ndarray:
    """Any bits at all, the neighbourhood of 0 at several scales, and where functions turn."""
    random = np.random.default_rng(7)
    anything = random.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    near = [random.normal(0, scale, count // 4) for scale in (1e-3, 0.1, 1, 5, 30)]
    special = [0.0, -0.0, 1, -1, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.2e-38, 3.4e38, -3.4e38]
    turns = [88.72, 88.73, -87.33, -87.34, -103.9, -104.1, 0.625, 0.92773, 8192, 8193, 1e6, math.pi, 9.02]
    with np.errstate(all="ignore"):  # signalling NaNs among them
        return np.concatenate([anything, *near, special, turns]).astype(np.float32)


def errors(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """In units of the last place of float32, of the smallest subnormal below its normal range."""
    with np.errstate(all="ignore"):
        target = truth.astype(np.float32)
        error = np.abs(found.astype(np.float64) - truth) / np.spacing(np.abs(target)).astype(np.float64)
    same = (found == target) | (np.isnan(found) & np.isnan(truth))
    error[same] = 0
    error[~same & ~(np.isfinite(found) & np.isfinite(target))] = np.inf
    return error


ULPS: list[tuple[Any, Callable[[np.ndarray], np.ndarray], float]] = [
    (cpu.exp, np.exp, 2),
    (cpu.log, np.log, 2),
    (cpu.tanh, np.tanh, 2),
    (cpu.erf, each(math.erf), 2),
    (cpu.sigmoid, expit, 3),
    (cpu.softplus, lambda x: np.logaddexp(0, x), 3),
]


@pytest.mark.parametrize(("function", "truth", "most"), ULPS, ids=[f.__name__ for f, _, _ in ULPS])
def test_accuracy(function: Any, truth: Callable[[np.ndarray], np.ndarray], most: float) -> None:
    x = arguments()
    with np.errstate(all="ignore"):
        error = errors(np.array(function(mx.array(x))), truth(x.astype(np.float64)))
    assert error.max() <= most, x[error.argmax()]


@pytest.mark.parametrize(("function", "truth"), [(cpu.sin, np.sin), (cpu.cos, np.cos)], ids=["sin", "cos"])
def test_trigonometric(function: Any, truth: Callable[[np.ndarray], np.ndarray]) -> None:
    x = np.concatenate([arguments(), np.linspace(-9000, 9000, 50_001, dtype=np.float32)])
    with np.errstate(all="ignore"):
        wanted = truth(x.astype(np.float64))
    found = np.array(function(mx.array(x)))
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    assert np.nanmax(np.abs(found - wanted)) <= 2**-23


@pytest.mark.parametrize(
    ("function", "truth"),
    [
        (cpu.silu, lambda x: x * expit(x)),
        (lambda x: cpu.silu(x, 1.702), lambda x: x * expit(1.702 * x)),
        (cpu.gelu, lambda x: x * each(lambda v: 0.5 * math.erfc(-v * math.sqrt(0.5)))(x)),
        (lambda x: cpu.hard_sigmoid(x, 0.2, 0.5), lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
        (cpu.hard_swish, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
        (lambda x: cpu.leaky_relu(x, 0.01), lambda x: np.where(x < 0, 0.01 * x, x)),
        (lambda x: cpu.clip(x, -1.5, math.inf), lambda x: np.clip(x, -1.5, None)),
    ],
    ids=["silu", "quick_gelu", "gelu", "hard_sigmoid", "hard_swish", "leaky_relu", "clip"],
)
def test_activations(function: Any, truth: Callable[[np.ndarray], np.ndarray]) -> None:
    x = arguments()
    x = x[np.abs(x) < 1e30]
    found = np.array(function(mx.array(x)))
    error = np.abs(found - truth(x.astype(np.float64))) / np.maximum(np.abs(x), 1)
    assert error.max() <= 2**-22, x[error.argmax()]
    assert np.isnan(np.array(function(mx.array([math.nan])))).all()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("function", [cpu.exp, cpu.tanh, cpu.sigmoid, cpu.gelu, cpu.softmax])
def test_half_types_are_computed_in_float32(function: Any, dtype: mx.Dtype) -> None:
    x = mx.array(np.random.default_rng(1).normal(0, 3, (7, 37)).astype(np.float32)).astype(dtype)
    found, wide = function(x), function(x.astype(mx.float32)).astype(dtype)
    assert found.dtype is dtype
    assert np.array_equal(np.array(found), np.array(wide))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (17,), (4, 0, 3), (3, 5), (2, 3, 4, 5), (300_001,)])
def test_shapes(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    found = np.array(cpu.exp(mx.array(x)))
    assert found.shape == shape
    np.testing.assert_allclose(found, np.exp(x), rtol=1e-6)


def views(x: mx.Array) -> dict[str, mx.Array]:
    """[6, 8, 10] seen in ways that are not row-contiguous."""
    return {
        "transposed": x.transpose(2, 0, 1),
        "strided": x[::2, :, 1::3],
        "reversed": x[:, ::-1, ::-1],
        "broadcast": mx.broadcast_to(x[:, :1, :1], x.shape),
        "row": mx.broadcast_to(x[0, 0], (3, 10)),
        "part": x[1:, 2:, :7],
    }


@pytest.mark.parametrize("view", ["transposed", "strided", "reversed", "broadcast", "row", "part"])
def test_views(view: str) -> None:
    x = views(mx.array(np.random.default_rng(3).normal(size=(6, 8, 10)).astype(np.float32)))[view]
    host = np.array(x).astype(np.float64)
    np.testing.assert_allclose(np.array(cpu.exp(x)), np.exp(host), rtol=1e-6)
    shrunk = np.exp(host - host.max(-1, keepdims=True))
    np.testing.assert_allclose(np.array(cpu.softmax(x)), shrunk / shrunk.sum(-1, keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(np.array(cpu.convert(x, mx.float16)), host.astype(np.float16))
    np.testing.assert_array_equal(np.array(cpu.add(x, x[..., :1])), np.array(x) + np.array(x)[..., :1])


def test_memory_is_reused_within_a_graph() -> None:
    x = np.random.default_rng(4).normal(size=100_000).astype(np.float32)
    a = mx.array(x)
    result = cpu.tanh(cpu.log(cpu.exp(cpu.add(cpu.multiply(a, a), a))))
    np.testing.assert_allclose(np.array(result), np.tanh(x.astype(np.float64) ** 2 + x), atol=1e-6)
    np.testing.assert_array_equal(np.array(a), x)


@pytest.mark.parametrize("shape", [(1,), (5, 1), (4, 3), (2, 3, 16), (3, 1000), (2, 0), (0, 4), (200_003,)])
@pytest.mark.parametrize("axis", [-1, 0])
def test_softmax(shape: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(5).normal(0, 3, shape).astype(np.float32)
    found = np.array(cpu.softmax(mx.array(x), axis))
    assert found.shape == shape
    if x.size:
        shrunk = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
        np.testing.assert_allclose(found, shrunk / shrunk.sum(axis, keepdims=True), rtol=5e-6)


def test_softmax_of_infinities() -> None:
    low, high, nan = -math.inf, math.inf, math.nan
    found = np.array(cpu.softmax(mx.array([[0, low, 0], [low, low, low], [high, 0, 0], [nan, 0, 0]])))
    np.testing.assert_array_equal(found[0], [0.5, 0, 0.5])
    assert np.isnan(found[1:]).all()


PAIRS = [
    ((3, 4, 5), (3, 4, 5)),
    ((3, 4, 5), (5,)),
    ((2, 8, 6, 6), (8, 1, 1)),
    ((1, 8, 1, 1), (2, 8, 5, 5)),
    ((), (4,)),
    ((4, 1), (1, 5)),
    ((0, 3), (3,)),
    ((70,), ()),
    ((2, 3000), (2, 1)),
    ((5, 1, 7), (1, 6, 1)),
]


@pytest.mark.parametrize("dtype", [mx.float32, *HALF], ids=str)
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "minimum"])
def test_arithmetic(name: str, dtype: mx.Dtype) -> None:
    random = np.random.default_rng(6)
    for shapes in PAIRS:
        a, b = (mx.array(random.normal(size=s).astype(np.float32)).astype(dtype) for s in shapes)
        for left, right in ((a, b), (laid_otherwise(a), b), (a, laid_otherwise(b)), (b, laid_otherwise(a))):
            found, wanted = getattr(cpu, name)(left, right), getattr(mx, name)(left, right)
            assert found.dtype is dtype
            np.testing.assert_array_equal(np.array(found), np.array(wanted), str(shapes))


def laid_otherwise(x: mx.Array) -> mx.Array:
    """The same elements, the axes reversed in memory."""
    return mx.contiguous(x.transpose()).transpose()


def test_a_nan_in_either_operand_stays() -> None:
    a, b = mx.array([math.nan, 1.0, math.nan]), mx.array([1.0, math.nan, math.nan])
    assert np.isnan(np.array(cpu.maximum(a, b))).all() and np.isnan(np.array(cpu.minimum(a, b))).all()


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_signs_of_zero(name: str) -> None:
    zeros = np.float32([0.0, -0.0, 1, -1] * 9)
    for scalar in zeros[:4]:
        for operands in ((zeros, scalar), (scalar, zeros)):
            found = np.array(getattr(cpu, name)(*map(mx.array, operands)))
            with np.errstate(all="ignore"):
                truth = getattr(np, name)(*operands)
            np.testing.assert_array_equal(found, truth)
            assert (np.isnan(truth) | (np.signbit(found) == np.signbit(truth))).all()


def test_results_keep_the_layout_of_images() -> None:
    image = mx.array(np.random.default_rng(0).normal(size=(1, 6, 5, 8)).astype(np.float32)).transpose(0, 3, 1, 2)
    sums = [cpu.add(image, image), cpu.multiply(image, mx.ones((1, 8, 1, 1))), cpu.exp(image)]
    assert {s.strides for s in sums} == {(240, 1, 40, 8)}


def test_conversions() -> None:
    x = np.concatenate([arguments(), np.linspace(-70_000, 70_000, 9_999, dtype=np.float32)])
    edges = [65504, 65519.996, 65520, 2**-24, 2**-25, 2**-25 * 1.0001, 2**-14, 6.1e-5]
    x = np.concatenate([x, np.array(edges, np.float32)])
    for dtype, target in ((mx.float16, np.float16), (mx.bfloat16, ml_dtypes.bfloat16)):
        with np.errstate(all="ignore"):
            wanted = x.astype(target).astype(np.float32)
        found = np.array(cpu.convert(mx.array(x), dtype)).astype(np.float32)
        np.testing.assert_array_equal(found, wanted)
        every = np.arange(65536, dtype=np.uint16).view(target)
        np.testing.assert_array_equal(
            np.array(cpu.convert(mx.array(every), mx.float32)), every.astype(np.float32), target.__name__
        )


@pytest.mark.parametrize("dtype", [mx.int8, mx.uint8], ids=str)
@pytest.mark.parametrize("ours", [True, False])
def test_quantisation(dtype: mx.Dtype, ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not ours:
        monkeypatch.setattr(extras, "available", lambda: False)
    random = np.random.default_rng(8)
    x = np.concatenate([random.normal(0, 3, 1007), np.arange(-300, 300) * 0.025, [1e30, -1e30, 0]]).astype(np.float32)
    scale, zero, limits = np.float32(0.05), 3, np.iinfo(dtype.numpy)
    wanted = np.clip(np.rint(x / scale) + zero, limits.min, limits.max).astype(dtype.numpy)
    found = cpu.quantize(mx.array(x), mx.array(scale), mx.array([zero], dtype))
    np.testing.assert_array_equal(np.array(found), wanted)
    back = cpu.dequantize(found, mx.array([scale]), mx.array(zero, dtype))
    np.testing.assert_array_equal(np.array(back), (wanted.astype(np.int32) - zero).astype(np.float32) * scale)


# ---------------------------------------------------------------- windows
def seen(x: np.ndarray, kernel: Any, stride: Any, dilation: Any, before: Any, output: Any, fill: float) -> np.ndarray:
    """[N, H, W, C] -> [N, output..., kernel..., C]."""
    found = np.full((x.shape[0], *output, *kernel, x.shape[3]), fill, np.float64)
    for at in np.ndindex(*output, *kernel):
        row, column = (at[i] * stride[i] - before[i] + at[2 + i] * dilation[i] for i in (0, 1))
        if 0 <= row < x.shape[1] and 0 <= column < x.shape[2]:
            found[(slice(None), *at)] = x[:, row, column]
    return found


CONVOLUTIONS: list[tuple[tuple[int, ...], int, tuple[int, int], dict[str, Any]]] = [
    ((1, 7, 5, 5), 3, (3, 3), {"padding": ((1, 1), (1, 1))}),
    ((2, 9, 8, 33), 50, (3, 2), {"stride": (2, 1), "padding": ((1, 0), (0, 1))}),
    ((1, 5, 5, 40), 64, (1, 1), {"groups": 4}),
    ((1, 11, 10, 12), 12, (3, 3), {"groups": 12, "dilation": (2, 1)}),
    ((1, 5, 6, 6), 12, (3, 3), {"groups": 6}),
    ((1, 6, 6, 19), 19, (5, 5), {"groups": 19, "stride": (2, 2), "padding": ((2, 2), (2, 2))}),
    ((3, 12, 12, 3), 100, (7, 7), {"stride": (2, 2), "padding": ((3, 3), (3, 3))}),
    ((1, 6, 6, 4), 17, (2, 2), {"padding": ((-1, 0), (2, -2)), "dilation": (1, 3)}),
    ((1, 1, 1, 70), 1, (1, 1), {}),
    ((1, 40, 3, 12), 12, (21, 1), {"padding": ((10, 0), (10, 0))}),
    ((1, 4, 70, 2), 20, (1, 5), {"stride": (1, 3), "padding": ((0, 11), (0, 13)), "dilation": (1, 2)}),
    ((1, 3, 3, 5), 2, (2, 2), {"stride": (7, 7), "padding": ((9, 8), (8, 9))}),
    ((2, 9, 13, 35), 35, (3, 3), {"groups": 35, "padding": ((1, 1), (1, 1))}),
    ((1, 11, 21, 18), 18, (5, 5), {"groups": 18, "stride": (2, 1), "padding": ((2, 2), (4, 3))}),
    ((1, 10, 5, 17), 17, (9, 3), {"groups": 17, "padding": ((4, 1), (4, 1))}),
    ((3, 4, 1, 5), 5, (1, 3), {"groups": 5, "padding": ((0, 1), (0, 1))}),
    ((2, 6, 30, 2), 33, (4, 5), {"stride": (1, 3), "padding": ((0, 2), (3, 6))}),
    ((1, 6, 7, 9), 4, (2, 4), {"padding": ((1, 1), (0, 3)), "dilation": (2, 1)}),
]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("shape", "made", "kernel", "options"), CONVOLUTIONS)
def test_convolution(
    shape: tuple[int, ...], made: int, kernel: tuple[int, int], options: dict[str, Any], biased: bool
) -> None:
    random = np.random.default_rng(9)
    groups = options.get("groups", 1)
    x = random.normal(size=shape).astype(np.float32)
    w = random.normal(size=(made, *kernel, shape[3] // groups)).astype(np.float32)
    b = random.normal(size=made).astype(np.float32)
    given = {"stride": (1, 1), "dilation": (1, 1), "padding": ((0, 0), (0, 0)), **options}
    (before, after), stride, dilation = given["padding"], given["stride"], given["dilation"]
    spans = [dilation[i] * (kernel[i] - 1) + 1 for i in (0, 1)]
    output = [(shape[1 + i] + before[i] + after[i] - spans[i]) // stride[i] + 1 for i in (0, 1)]
    windows = seen(x, kernel, stride, dilation, before, output, 0).reshape(shape[0], *output, *kernel, groups, -1)
    wanted = np.einsum("nyxhwgc,gohwc->nyxgo", windows, w.reshape(groups, made // groups, *kernel, -1))
    wanted = wanted.reshape(shape[0], *output, made) + (b if biased else 0)
    for image in (mx.array(x), laid_otherwise(mx.array(x))):
        found = cpu.convolution(image, mx.array(w), mx.array(b) if biased else None, **given)
        np.testing.assert_allclose(np.array(found), wanted, rtol=1e-4, atol=1e-4)


def test_windows_of_views() -> None:
    image = mx.array(np.random.default_rng(9).normal(size=(4, 12, 14, 30)).astype(np.float32))
    for view in (image[..., 8:20], image[:, 1::2, ::3, :3], image[::2, ::-1, :, 5:], image[..., ::2], image[:1, :1]):
        whole, channels = mx.contiguous(view), view.shape[3]
        given: dict[str, Any] = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}
        for groups, made in ((1, 20), (channels, channels)):
            w = mx.array(np.random.default_rng(1).normal(size=(made, 3, 3, channels // groups)).astype(np.float32))
            found, wanted = (np.array(cpu.convolution(x, w, groups=groups, **given)) for x in (view, whole))
            np.testing.assert_array_equal(found, wanted)
        found, wanted = (np.array(cpu.pool(x, (1, 2), view.shape[1:3], maximum=True)) for x in (view, whole))
        np.testing.assert_array_equal(found, wanted)


def test_convolution_of_signals() -> None:
    random = np.random.default_rng(10)
    x, w = random.normal(size=(2, 30, 6)).astype(np.float32), random.normal(size=(20, 5, 6)).astype(np.float32)
    given: dict[str, Any] = {"stride": (2,), "padding": ((2,), (1,)), "dilation": (1,)}
    found = cpu.convolution(mx.array(x), mx.array(w), **given)
    wanted = mx.conv_general(mx.array(x), mx.array(w), stride=(2,), padding=((2,), (1,)))
    np.testing.assert_allclose(np.array(found), np.array(wanted), rtol=1e-4, atol=1e-4)


def test_composed_convolution_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(11)
    x, w = random.normal(size=(1, 9, 9, 8)).astype(np.float32), random.normal(size=(16, 3, 3, 2)).astype(np.float32)
    given: dict[str, Any] = {"stride": (2, 1), "padding": ((1, 0), (1, 2)), "dilation": (1, 2), "groups": 4}
    bias = mx.array(random.normal(size=16).astype(np.float32))
    found = np.array(cpu.convolution(mx.array(x), mx.array(w), bias, **given))
    monkeypatch.setattr(extras, "available", lambda: False)
    composed = np.array(cpu.convolution(mx.array(x), mx.array(w), bias, **given))
    np.testing.assert_allclose(found, composed, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 7, 9, 3), (2, 12, 11, 35), (1, 20, 20, 16)])
@pytest.mark.parametrize("kernel", [(2, 2), (3, 3), (1, 4)])
@pytest.mark.parametrize("maximum", [True, False])
def test_pool(shape: tuple[int, ...], kernel: tuple[int, int], maximum: bool) -> None:
    x = np.random.default_rng(12).normal(size=shape).astype(np.float32)
    stride, before, dilation = (2, 1), (1, 0), (1, 2)
    # one more than fits: windows may reach past the image
    output = [(shape[1 + i] + before[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 2 for i in (0, 1)]
    windows = seen(x, kernel, stride, dilation, before, output, -math.inf if maximum else 0)
    wanted = windows.max((3, 4)) if maximum else windows.sum((3, 4)) * 0.25
    given: dict[str, Any] = {"stride": stride, "before": before, "dilation": dilation, "maximum": maximum}
    found = cpu.pool(mx.array(x), kernel, output, scale=0.25, **given)
    np.testing.assert_allclose(np.array(found), wanted, rtol=1e-5, atol=1e-6)


def test_pool_keeps_nan() -> None:
    x = np.zeros((1, 4, 4, 5), np.float32)
    x[0, 1, 1, 2] = math.nan
    found = np.array(cpu.pool(mx.array(x), (3, 3), (2, 2), maximum=True))
    assert np.isnan(found[..., 2]).all() and np.isnan(found).sum() == 4


@pytest.mark.parametrize("shapes", [((5, 7), (7, 3)), ((2, 3, 70), (70, 33)), ((9,), (9, 4)), ((1, 1), (1, 1))])
def test_matmul(shapes: tuple[tuple[int, ...], tuple[int, int]]) -> None:
    a, b = (np.random.default_rng(13).normal(size=s).astype(np.float32) for s in shapes)
    bias = np.arange(shapes[1][1], dtype=np.float32)
    found = np.array(cpu.matmul(mx.array(a), mx.array(b), mx.array(bias)))
    np.testing.assert_allclose(found, a @ b + bias, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- where they are not ours
@pytest.mark.parametrize("dtype", [mx.float64, mx.int32, mx.bool_, mx.complex64], ids=str)
def test_other_types_are_mlx_operations(dtype: mx.Dtype) -> None:
    x = mx.array(np.arange(5)).astype(dtype)
    assert not cpu.serves(x)
    np.testing.assert_array_equal(np.array(cpu.exp(x)), np.array(mx.exp(x)))
    np.testing.assert_array_equal(np.array(cpu.add(x, x)), np.array(mx.add(x, x)))


def test_composed_forms_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    x = mx.array(np.random.default_rng(14).normal(0, 3, (4, 50)).astype(np.float32))
    functions: list[Callable[[mx.Array], mx.Array]] = [
        *(getattr(cpu, name) for name in ("exp", "sin", "cos", "tanh", "erf", "sigmoid", "silu", "gelu", "softplus")),
        lambda a: cpu.log(mx.abs(a)),
        lambda a: cpu.silu(a, 1.7),
        lambda a: cpu.hard_sigmoid(a, 0.2, 0.5),
        lambda a: cpu.hard_swish(a),
        lambda a: cpu.leaky_relu(a, 0.1),
        lambda a: cpu.clip(a, -1, 1),
        lambda a: cpu.softmax(a, 0),
        lambda a: cpu.divide(a, mx.array([7.0])),
        lambda a: cpu.convert(a, mx.bfloat16),
        lambda a: cpu.matmul(a, mx.ones((50, 3)), mx.ones((3,))),
    ]
    ours = [np.array(f(x)) for f in functions]
    monkeypatch.setattr(extras, "available", lambda: False)
    assert cpu.isa() is None
    for function, found in zip(functions, ours, strict=True):
        composed = np.array(function(x))
        assert found.dtype == composed.dtype
        np.testing.assert_allclose(found.astype(np.float32), composed.astype(np.float32), rtol=2e-6, atol=1e-6)


def test_no_pool_without_our_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "available", lambda: False)
    with pytest.raises(mx.UnsupportedError, match="libmlxc"):
        cpu.pool(mx.zeros((1, 4, 4, 1)), (2, 2), (2, 2), maximum=True)


# ---------------------------------------------------------------- mistakes
@pytest.mark.parametrize(
    ("name", "parameters", "arguments"),
    [
        ("mlxc_py_cpu_unary", {"a": "mlx_array", "kind": "int", "p": "float", "q": "float"}, ("x", 99, 0.0, 0.0)),
        ("mlxc_py_cpu_unary", {"a": "mlx_array", "kind": "int", "p": "float", "q": "float"}, ("whole", 0, 0.0, 0.0)),
        ("mlxc_py_cpu_softmax", {"a": "mlx_array"}, ("scalar",)),
        ("mlxc_py_cpu_binary", {"a": "mlx_array", "b": "mlx_array", "kind": "int"}, ("x", "x", -1)),
        ("mlxc_py_cpu_binary", {"a": "mlx_array", "b": "mlx_array", "kind": "int"}, ("x", "whole", 0)),
        ("mlxc_py_cpu_binary", {"a": "mlx_array", "b": "mlx_array", "kind": "int"}, ("x", "image", 0)),
        ("mlxc_py_cpu_quantize", cpu._SCALED, ("x", "x", "whole")),
        ("mlxc_py_cpu_dequantize", cpu._SCALED, ("x", "scalar", "scalar")),
    ],
)
def test_bad_arguments_are_errors(name: str, parameters: dict[str, str], arguments: tuple[Any, ...]) -> None:
    arrays = {
        "x": mx.ones((3, 2)),
        "whole": mx.ones((3, 2), mx.int32),
        "scalar": mx.array(1.0),
        "image": mx.ones((1, 4, 4, 3)),
    }
    with pytest.raises(mx.MLXError):
        own(name, **parameters)(*(arrays.get(a, a) if isinstance(a, str) else a for a in arguments))


WINDOW = (4, 4, 16, 1, 1, 1, 1, 1, 1, 0, 0, 1)


@pytest.mark.parametrize(
    ("window", "weights", "bias"),
    [
        (WINDOW[:-1], (1, 1, 3, 16), None),
        ((4, 4, 16, 0, *WINDOW[4:]), (1, 1, 3, 16), None),
        ((4, 4, 16, 1, 1, 0, *WINDOW[6:]), (1, 1, 3, 16), None),
        ((-1, *WINDOW[1:]), (1, 1, 3, 16), None),
        ((2**30, 2**30, *WINDOW[2:]), (1, 1, 3, 16), None),
        ((*WINDOW[:-1], 2), (2, 1, 1, 16), None),
        (WINDOW, (1, 2, 3, 16), None),
        (WINDOW, (3, 16), None),
        (WINDOW, (1, 1, 3, 16), (15,)),
    ],
)
def test_bad_windows_are_errors(
    window: tuple[int, ...], weights: tuple[int, ...], bias: tuple[int, ...] | None
) -> None:
    arrays = {"x": "mlx_array", "weights": "mlx_array", "bias": "mlx_array"}
    compute = own("mlxc_py_cpu_convolution", **arrays, **cpu._WINDOW)
    good = compute(mx.ones((1, 4, 4, 3)), mx.ones((1, 1, 3, 16)), mx.ones((16,)), WINDOW)
    assert np.array(good).tolist() == np.full((1, 4, 4, 16), 4.0).tolist()
    with pytest.raises(mx.MLXError):
        compute(mx.ones((1, 4, 4, 3)), mx.ones(weights), None if bias is None else mx.ones(bias), window)


def test_kernels_that_do_not_fit() -> None:
    given: dict[str, Any] = {"stride": (1, 1), "dilation": (1, 1), "padding": ((0, 0), (0, 0))}
    with pytest.raises(ValueError, match="do not fit"):
        cpu.convolution(mx.ones((1, 2, 2, 4)), mx.ones((16, 3, 3, 2)), **given, groups=2)
    with pytest.raises(mx.MLXError, match="instruction set"):
        cpu.use_isa("altivec")


# ---------------------------------------------------------------- graphs and threads
def model(x: mx.Array, w: mx.Array) -> mx.Array:
    given: dict[str, Any] = {"stride": (1, 1), "dilation": (1, 1), "padding": ((1, 1), (1, 1))}
    y = cpu.convolution(x, w, **given)
    twice = cpu.add(cpu.exp(cpu.sigmoid(y)), cpu.exp(cpu.tanh(y)))
    scaled = cpu.multiply(cpu.hard_sigmoid(twice, 0.2, 0.5), cpu.hard_sigmoid(twice, 0.1, 0.5))
    return cpu.softmax(cpu.pool(scaled, (2, 2), (4, 4), maximum=True, stride=(2, 2)))


def test_replayed_graphs_agree() -> None:
    random = np.random.default_rng(16)
    w = mx.array(random.normal(size=(32, 3, 3, 4)).astype(np.float32))
    x = placeholder((1, 8, 8, 4), mx.float32)
    tape = Tape([x], [model(x, w)])
    compiled = mx.compile(model)
    for _ in range(3):
        image = mx.array(random.normal(size=(1, 8, 8, 4)).astype(np.float32))
        eager = np.array(model(image, w))
        np.testing.assert_array_equal(np.array(tape([image])[0]), eager)
        np.testing.assert_array_equal(np.array(compiled(image, w)), eager)


def test_threads() -> None:
    random = np.random.default_rng(17)
    w = mx.array(random.normal(size=(24, 3, 3, 4)).astype(np.float32))
    images = [random.normal(size=(1, 8, 8, 4)).astype(np.float32) for _ in range(4)]
    wanted = [np.array(model(mx.array(x), w)) for x in images]
    wrong: list[int] = []

    def run(index: int) -> None:
        with mx.stream(mx.new_stream(mx.cpu)):
            found = [np.array(model(mx.array(images[index]), w)) for _ in range(25)]
            wrong.extend(index for y in found if not np.array_equal(y, wanted[index]))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
