"""The recurrent layers that run as one primitive on the CPU, on every instruction set, against numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import cpu_primitives

Host = np.ndarray[Any, Any]

pytestmark = [
    pytest.mark.skipif(cpu_primitives.isa() is None, reason="libmlxc has no primitives of its own"),
    pytest.mark.usefixtures("on_cpu"),
]


@pytest.fixture(params=["avx512vnni", "avx512", "avx2", "baseline"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    best = cpu_primitives.isa()
    assert best is not None
    try:
        cpu_primitives.use_isa(request.param)
    except mx.MLXError:
        pytest.skip(f"the processor has no {request.param}")
    yield request.param
    cpu_primitives.use_isa(best)


def sigmoid(x: Host) -> Host:
    return 1 / (1 + np.exp(-x))


def rounded_states(h: Host) -> Host:
    low, high = np.float32(min(h.min(), 0)), np.float32(max(h.max(), 0))
    scale = (high - low) / np.float32(255) if high != low else np.float32(1)
    zero = np.round(np.clip(-low / scale, 0, 255))
    levels: Host = np.clip(np.round(h.astype(np.float32) / scale), -zero, 255 - zero)
    return levels.astype(np.float64) * scale


def model(steps: Host, weights: Host, initial: Host, bias: Host | None, rounded: bool) -> Host:
    """The states of every step, in double precision."""
    hidden = weights.shape[1]
    h, c = initial[:, :hidden].astype(np.float64), initial[:, hidden:].astype(np.float64)
    states = []
    for x in steps.astype(np.float64):
        product = (rounded_states(h) if rounded else h) @ weights.T.astype(np.float64)
        if bias is None:
            i, o, f, g = np.split(x + product, 4, 1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        else:
            (xz, xr, xn), (z, r, n) = np.split(x, 3, 1), np.split(product, 3, 1)
            update, candidate = sigmoid(xz + z), np.tanh(xn + sigmoid(xr + r) * (n + bias))
            h = candidate + update * (h - candidate)
        states.append(np.concatenate([h, c], 1))
    return np.array(states).reshape(len(steps), *initial.shape)


def tensors(gates: int, steps: int, batch: int, hidden: int) -> tuple[Host, Host, Host]:
    random = np.random.default_rng(hidden * 100 + batch)
    shapes = (steps, batch, gates * hidden), (gates * hidden, hidden), (batch, hidden * (2 if gates == 4 else 1))
    one, two, three = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    return one, (two / np.sqrt(hidden)).astype(np.float32), three


@pytest.mark.parametrize("gates", [4, 3])
@pytest.mark.parametrize("batch", [1, 4, 7])
@pytest.mark.parametrize("hidden", [1, 3, 16, 37, 64])
def test_cells(isa: str, gates: int, batch: int, hidden: int) -> None:
    steps, weights, initial = tensors(gates, 6, batch, hidden)
    bias = None if gates == 4 else weights[:hidden, 0].copy()
    given = mx.array(steps), cpu_primitives.pack_rows(mx.array(weights)), mx.array(initial)
    y = cpu_primitives.recurrent(*given, None if bias is None else mx.array(bias))
    expected = model(steps, weights, initial, bias, rounded=False)
    np.testing.assert_allclose(np.array(y), expected, rtol=1e-5, atol=1e-6)


def quantized(dtype: Any, rows: int, columns: int, each: bool) -> tuple[Host, Host, Host]:
    """Weights as 8-bit integers, with scales and zero points for all or for each row."""
    random = np.random.default_rng(rows)
    limits = np.iinfo(dtype)
    count = rows if each else 1
    levels = random.integers(limits.min, limits.max + 1, (rows, columns)).astype(dtype)
    middle = random.integers(-5, 6, count) + (limits.min + limits.max) // 2
    return levels, random.uniform(0.001, 0.003, count).astype(np.float32), middle.astype(dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(("batch", "hidden", "each"), [(1, 20, False), (5, 7, True), (67, 3, False)])
def test_quantized_lstm(isa: str, dtype: Any, batch: int, hidden: int, each: bool) -> None:
    steps, _, initial = tensors(4, 3, batch, hidden)
    levels, scale, zero = quantized(dtype, 4 * hidden, hidden, each)
    weights = (levels.astype(np.float64) - zero[:, None]) * scale[:, None]
    packed = cpu_primitives.pack_byte_matrix(mx.array(levels).T, mx.array(zero))
    y = np.array(cpu_primitives.quantized_lstm(mx.array(steps), packed, mx.array(initial), mx.array(scale)))
    expected = model(steps, weights, initial, None, rounded=True)
    np.testing.assert_allclose(y[0], expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=2e-2)  # a state on the edge between two levels


def test_states_that_are_all_zero_are_quantized_to_zero() -> None:
    steps, _, _ = tensors(4, 1, 2, 8)
    levels, scale, zero = quantized(np.int8, 32, 8, each=False)
    initial = mx.zeros([2, 16])
    packed = cpu_primitives.pack_byte_matrix(mx.array(levels).T, mx.array(zero))
    y = cpu_primitives.quantized_lstm(mx.array(steps), packed, initial, mx.array(scale))
    plain = cpu_primitives.recurrent(mx.array(steps), cpu_primitives.pack_rows(mx.zeros([32, 8])), initial)
    np.testing.assert_array_equal(np.array(y), np.array(plain))


def test_views_and_no_steps() -> None:
    steps, weights, initial = tensors(4, 6, 2, 8)
    turned = mx.array(np.ascontiguousarray(steps.transpose(1, 2, 0))).transpose([2, 0, 1])
    packed = cpu_primitives.pack_rows(mx.array(weights.T.copy()).T)
    y = cpu_primitives.recurrent(turned, packed, mx.array(initial))
    np.testing.assert_allclose(np.array(y), model(steps, weights, initial, None, rounded=False), rtol=1e-5, atol=1e-6)
    none = cpu_primitives.recurrent(mx.array(steps[:0]), packed, mx.array(initial))
    assert none.shape == (0, 2, 16)


def test_shapes_that_do_not_fit_are_errors() -> None:
    steps, rows, initial = (mx.array(x) for x in tensors(4, 6, 2, 8))
    weights = cpu_primitives.pack_rows(rows)
    for given in ((steps[..., :8], weights, initial), (steps, weights, initial[:1]), (steps, weights, initial[:, :8])):
        with pytest.raises(mx.MLXError):
            cpu_primitives.recurrent(*given)
    with pytest.raises(mx.MLXError):
        cpu_primitives.recurrent(steps, weights, initial, rows[0, :3])
    levels, narrow = (cpu_primitives.pack_byte_matrix(x.T) for x in (rows.astype(mx.int8), rows[:, :4].astype(mx.int8)))
    for wrong in ((steps[..., :8], levels, initial), (steps, levels, initial[:1]), (steps, narrow, initial)):
        with pytest.raises(mx.MLXError):
            cpu_primitives.quantized_lstm(*wrong, mx.ones([1]))
    with pytest.raises(mx.UnsupportedError):
        cpu_primitives.recurrent(steps.astype(mx.float16), weights, initial)
