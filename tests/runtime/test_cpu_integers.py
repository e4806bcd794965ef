"""Products of 8-bit integers as one primitive on the CPU, on every instruction set, against numpy's int64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import cpu_primitives as cpu
from mlxc_py.tape import Tape, placeholder

Host = np.ndarray[Any, Any]

pytestmark = [
    pytest.mark.skipif(cpu.isa() is None, reason="libmlxc has no primitives of its own"),
    pytest.mark.usefixtures("on_cpu"),
]


@pytest.fixture(params=["avx512vnni", "avx512", "avx2", "baseline"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    best = cpu.isa()
    assert best is not None
    try:
        cpu.use_isa(request.param)
    except mx.MLXError:
        pytest.skip(f"the processor has no {request.param}")
    yield request.param
    cpu.use_isa(best)


def integers(dtype: Any, *shape: int) -> Host:
    """Extremes among them."""
    limits = np.iinfo(dtype)
    made = np.random.default_rng(shape).integers(limits.min, limits.max + 1, shape).astype(dtype)
    made.ravel()[::7] = limits.max
    return made


def model(
    x: Host,
    w: Host,
    x_zero: int,
    w_zero: Host,
    stride: Sequence[int],
    padding: Sequence[Sequence[int]],
    dilation: Sequence[int],
    groups: int,
) -> Host:
    data, kernel = x.astype(np.int64) - x_zero, w.astype(np.int64) - w_zero.reshape(-1, 1, 1, 1)
    data = np.pad(data, [(0, 0), *zip(*padding, strict=True), (0, 0)])
    made, each = len(w) // groups, w.shape[3]
    height, width = ((data.shape[1 + i] - (w.shape[1 + i] - 1) * dilation[i] - 1) // stride[i] + 1 for i in (0, 1))
    y = np.zeros((len(x), height, width, len(w)), np.int64)
    for row, column in np.ndindex(w.shape[1:3]):
        top, left = row * dilation[0], column * dilation[1]
        seen = data[:, top :: stride[0], left :: stride[1]][:, :height, :width]
        for g in range(groups):
            some = slice(g * made, (g + 1) * made)
            y[..., some] += seen[..., g * each : (g + 1) * each] @ kernel[some, row, column].T
    return y


GEOMETRIES: list[tuple[int, int, int, int, dict[str, Any]]] = [  # channels, outputs, groups, kernel
    (3, 5, 1, 3, {}),
    (4, 16, 1, 1, {"stride": (2, 1)}),
    (8, 40, 2, 3, {"dilation": (2, 1)}),
    (64, 64, 1, 3, {"padding": ((1, 0), (2, 1))}),
    (7, 49, 1, 2, {"stride": (1, 3), "padding": ((0, 1), (1, 0)), "dilation": (1, 2)}),
    (6, 6, 6, 3, {}),
    (130, 70, 1, 1, {}),
]


@pytest.mark.parametrize(("channels", "outputs", "groups", "kernel", "changed"), GEOMETRIES)
@pytest.mark.parametrize("x_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("w_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("zeros", [None, 1, "each"])
def test_convolution(
    isa: str,
    channels: int,
    outputs: int,
    groups: int,
    kernel: int,
    changed: Any,
    x_dtype: Any,
    w_dtype: Any,
    zeros: Any,
) -> None:
    x, w = integers(x_dtype, 2, 9, 11, channels), integers(w_dtype, outputs, kernel, kernel, channels // groups)
    x_zero = integers(x_dtype, 3)[1:2]
    w_zero = None if zeros is None else integers(w_dtype, outputs if zeros == "each" else 1)
    geometry: dict[str, Any] = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), **changed}
    turned = mx.array(np.ascontiguousarray(x.transpose(0, 3, 1, 2))).transpose([0, 2, 3, 1])
    truth = model(x, w, int(x_zero[0]), np.zeros(1, int) if w_zero is None else w_zero, groups=groups, **geometry)
    for data in (mx.array(x), turned):
        packed = cpu.pack_bytes(mx.array(w), None if w_zero is None else mx.array(w_zero), groups)
        y = cpu.integer_convolution(data, packed, mx.array(x_zero), groups=groups, **geometry)
        assert y.dtype == mx.int32
        np.testing.assert_array_equal(np.array(y), truth)


def test_one_axis_and_no_zero_point(isa: str) -> None:
    x, w = integers(np.int8, 2, 30, 5), integers(np.int8, 9, 4, 5)
    geometry: dict[str, Any] = {"stride": (2,), "padding": ((3,), (0,)), "dilation": (1,)}
    y = cpu.integer_convolution(mx.array(x), cpu.pack_bytes(mx.array(w)), **geometry)
    truth = model(x[:, None], w[:, None], 0, np.zeros(1, int), (1, 2), ((0, 3), (0, 0)), (1, 1), 1)
    np.testing.assert_array_equal(np.array(y), truth[:, 0])


@pytest.mark.parametrize("rows", [(), (1,), (3, 50), (2, 1, 9)])
def test_product(isa: str, rows: tuple[int, ...]) -> None:
    a, b, b_zero = integers(np.uint8, *rows, 37), integers(np.int8, 37, 21), integers(np.int8, 21)
    packed = cpu.pack_byte_matrix(mx.array(b), mx.array(b_zero))
    y = cpu.integer_matmul(mx.array(a), packed, mx.array(np.array([130], np.uint8)))
    np.testing.assert_array_equal(np.array(y), (a.astype(np.int64) - 130) @ (b.astype(np.int64) - b_zero))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("zeros", [None, 1, 21])
def test_product_whose_rows_have_zero_points(dtype: Any, zeros: int | None) -> None:
    a, b, a_zero = integers(np.uint8, 2, 5, 37), integers(dtype, 37, 21), integers(np.uint8, 5, 1)
    b_zero = None if zeros is None else integers(dtype, zeros)
    packed = cpu.pack_byte_matrix(mx.array(b), None if b_zero is None else mx.array(b_zero))
    truth = (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - (0 if b_zero is None else b_zero))
    np.testing.assert_array_equal(np.array(cpu.integer_matmul(mx.array(a), packed, mx.array(a_zero))), truth)


def test_no_rows() -> None:
    packed = cpu.pack_byte_matrix(mx.array(integers(np.int8, 37, 21)))
    assert cpu.integer_matmul(mx.zeros([3, 0, 37], mx.uint8), packed).shape == (3, 0, 21)


def test_long_sums_are_exact(isa: str) -> None:
    a, b = mx.full([1, 40_000], 255, mx.uint8), mx.full([40_000, 1], -128, mx.int8)
    assert cpu.integer_matmul(a, cpu.pack_byte_matrix(b)).item() == -255 * 128 * 40_000


@pytest.mark.parametrize("x", [[-1.5, 0.25, 3], [1, 2, 4], [-1, -3], [0, 0], [1e30, -1e-30]])
def test_dynamic_quantize(isa: str, x: list[float]) -> None:
    host = np.array([x], np.float32)
    low, high = min(host.min(), np.float32(0)), max(host.max(), np.float32(0))
    step = (high - low) / np.float32(255) if high != low else np.float32(1)
    zero = np.round(np.clip(-low / step, 0, 255))
    levels, scale, zero_point = cpu.dynamic_quantize(mx.array(host))
    assert (levels.dtype, scale.dtype, zero_point.dtype) == (mx.uint8, mx.float32, mx.uint8)
    assert scale.item() == step
    assert zero_point.item() == zero
    np.testing.assert_array_equal(np.array(levels), np.clip(np.round(host / step) + zero, 0, 255))


def test_dynamic_quantize_of_views() -> None:
    x = np.random.default_rng(0).standard_normal((4, 6, 5)).astype(np.float32)
    whole = [np.array(a) for a in cpu.dynamic_quantize(mx.array(x[:, ::2].copy()))]
    for view in (mx.array(x)[:, ::2], mx.array(np.ascontiguousarray(x[:, ::2].T)).transpose([2, 1, 0])):
        for found, truth in zip(cpu.dynamic_quantize(view), whole, strict=True):
            np.testing.assert_array_equal(np.array(found), truth)


def test_an_image_stays_as_it_lies_in_a_tape() -> None:
    x, w = (
        mx.array(np.random.default_rng(0).standard_normal((1, 6, 6, 3)).astype(np.float32)),
        integers(np.int8, 4, 1, 1, 3),
    )
    geometry: dict[str, Any] = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}

    def compute(image: mx.Array) -> mx.Array:
        levels, scale, zero = cpu.dynamic_quantize(image.transpose([0, 3, 1, 2]))
        packed = cpu.pack_bytes(mx.array(w))
        y = cpu.integer_convolution(levels.transpose([0, 2, 3, 1]), packed, zero, **geometry)
        return y.astype(mx.float32) * scale

    opened = placeholder(x.shape, x.dtype)
    tape = Tape([opened], [compute(opened)])
    assert tape.count("Transpose") == 0
    np.testing.assert_array_equal(np.array(tape([x])[0]), np.array(compute(x)))


def test_what_does_not_fit_is_an_error() -> None:
    x, w = mx.zeros([1, 4, 4, 3], mx.uint8), cpu.pack_bytes(mx.zeros([2, 3, 3, 3], mx.int8))
    geometry: dict[str, Any] = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}
    with pytest.raises(mx.MLXError):  # a zero point of another type
        cpu.integer_convolution(x, w, mx.zeros([1], mx.int8), **geometry)
    with pytest.raises(ValueError, match="do not fit"):
        cpu.integer_convolution(x, cpu.pack_bytes(mx.zeros([2, 5, 5, 3], mx.int8)), **geometry)
    with pytest.raises(ValueError, match="packed for 3 groups"):
        cpu.integer_convolution(x, cpu.pack_bytes(mx.zeros([3, 3, 3, 1], mx.int8), groups=3), **geometry)
    with pytest.raises(mx.UnsupportedError):
        cpu.pack_bytes(mx.zeros([2, 3, 3, 3]))
    with pytest.raises(mx.UnsupportedError):
        cpu.integer_convolution(x.astype(mx.int32), w, **geometry)
