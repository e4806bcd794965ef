"""Products with packed weights on the CPU against numpy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import cpu_packed
from mlxc_py import cpu_primitives as cpu

Host = np.ndarray


@pytest.fixture(autouse=True, params=["best", "avx512", "avx2", "baseline"])
def isa(request: pytest.FixtureRequest) -> Iterator[None]:
    with mx.stream(mx.cpu):
        best = cpu.isa()
        if best is None:
            pytest.skip("an official libmlxc has no CPU primitives")
        if request.param != "best":
            try:
                cpu.use_isa(request.param)
            except mx.MLXError:
                pytest.skip("this processor lacks it")
        yield
        cpu.use_isa(best)


def packed(rows: int, length: int, group: int, bits: int) -> tuple[list[Host], Host]:
    """Words, gains and offsets, and the weights that they stand for."""
    random = np.random.default_rng(rows)
    levels = random.integers(0, 2**bits, (rows, length)).astype(np.uint64)
    shifts = np.arange(0, 32, bits, dtype=np.uint64)
    words = (levels.reshape(rows, -1, 32 // bits) << shifts).sum(-1).astype(np.uint32)
    gains, offsets = (random.standard_normal((rows, length // group)).astype(np.float32) for _ in range(2))
    wide = levels.reshape(rows, -1, group) * gains[..., None].astype(np.float64) + offsets[..., None]
    return [words, gains, offsets], wide.reshape(rows, length)


def product(x: mx.Array, weights: list[mx.Array], bits: int) -> mx.Array:
    words, gains, offsets = weights
    return cpu_packed.product(x, words, gains, offsets, bits)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("rows", "length", "group"), [(1, 16, 16), (50, 96, 32), (33, 2304, 128), (16, 2050 * 16, 16)])
@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 70)])
def test_product(bits: int, rows: int, length: int, group: int, batch: tuple[int, ...]) -> None:
    given, weights = packed(rows, length, group, bits)
    x = np.random.default_rng(1).standard_normal((*batch, length)).astype(np.float32)
    y = product(mx.array(x), list(map(mx.array, given)), bits)
    scale = np.abs(x).astype(np.float64) @ np.abs(weights.T)
    assert (np.abs(np.array(y) - x.astype(np.float64) @ weights.T) <= 1e-5 * scale).all()


def test_views_and_nothing() -> None:
    given, weights = packed(20, 64, 32, 4)
    x = np.random.default_rng(1).standard_normal((64, 3)).astype(np.float32)
    turned = [mx.array(np.ascontiguousarray(part.T)).T for part in given]
    np.testing.assert_allclose(product(mx.array(x).T, turned, 4), x.T @ weights.T, rtol=1e-4, atol=1e-3)
    assert product(mx.zeros((0, 64)), list(map(mx.array, given)), 4).shape == (0, 20)
    none = [mx.array(part[:0]) for part in given]
    assert product(mx.zeros((2, 64)), none, 4).shape == (2, 0)


def test_what_does_not_fit_is_an_error() -> None:
    x, (words, gains, offsets) = mx.zeros((2, 64)), map(mx.array, packed(8, 64, 32, 4)[0])
    with pytest.raises(mx.MLXError, match="bits"):
        cpu_packed.product(x, words, gains, offsets, 3)
    with pytest.raises(mx.MLXError, match="float32"):
        cpu_packed.product(x.astype(mx.float16), words, gains, offsets, 4)
    for wrong in (words.astype(mx.int32), words[:, 1:], words[0]):
        with pytest.raises(mx.MLXError, match="not packed"):
            cpu_packed.product(x, wrong, gains, offsets, 4)
    for wrong in (gains[:, :1], gains[1:], mx.zeros((8, 3)), mx.zeros((8, 0))):
        with pytest.raises(mx.MLXError, match="a gain and an offset"):
            cpu_packed.product(x, words, wrong, offsets, 4)
    for dtype, bits in ((mx.float16, 4), (mx.float32, 3)):
        assert not cpu_packed.serves(x.astype(dtype), bits)
