"""Products that a tape makes its own against numpy: layouts, batches, what is done to the result in the same pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import cpu_primitives as cpu
from mlxc_py.tape import Tape, placeholder

Build = Callable[..., mx.Array]


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    if cpu.isa() is None or not str(cpu.isa()).startswith("avx512"):
        pytest.skip("without AVX-512 products are for BLAS")
    with mx.stream(mx.cpu):
        yield


def recorded(build: Build, *inputs: np.ndarray, own: int = 1) -> np.ndarray:
    arrays = [mx.array(x) for x in inputs]
    holes = [placeholder(x.shape, x.dtype) for x in arrays]
    tape = Tape(holes, [build(*holes)])
    assert tape.count("CpuMatmul") == own
    (result,) = tape(arrays)
    return np.array(result)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


SIZES = [(16, 4, 8), (17, 5, 9), (64, 64, 16), (65, 33, 47), (130, 7, 100), (400, 64, 33)]


@pytest.mark.parametrize(("rows", "terms", "columns"), SIZES)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_matrices(rows: int, terms: int, columns: int, turned: tuple[bool, bool]) -> None:
    a, b = normal(rows, terms), normal(terms, columns)
    given = [np.ascontiguousarray(x.T) if turn else x for x, turn in zip((a, b), turned, strict=True)]

    def build(*holes: mx.Array) -> mx.Array:
        return mx.matmul(*(x.transpose() if turn else x for x, turn in zip(holes, turned, strict=True)))

    np.testing.assert_allclose(recorded(build, *given), a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 2, 20, 6), (3, 2, 6, 11)), ((3, 1, 20, 6), (2, 6, 11)), ((20, 6), (4, 6, 11)), ((0, 20, 6), (0, 6, 11))],
)
def test_batches(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = normal(*left), normal(*right)
    np.testing.assert_allclose(recorded(mx.matmul, a, b), a @ b, rtol=1e-4, atol=1e-4)


def test_heads_and_slices() -> None:
    q, k = normal(2, 20, 3, 8), normal(2, 30, 3, 8)
    wanted = q.transpose(0, 2, 1, 3) @ k.transpose(0, 2, 3, 1)
    found = recorded(lambda x, y: mx.matmul(x.transpose(0, 2, 1, 3), y.transpose(0, 2, 3, 1)), q, k)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    a, b = normal(40, 30), normal(30, 50)
    found = recorded(lambda x, y: mx.matmul(x[::2, 1::3], y[5:15, ::-1]), a, b)
    np.testing.assert_allclose(found, a[::2, 1::3] @ b[5:15, ::-1], rtol=1e-4, atol=1e-4)


def test_what_follows_is_done_in_the_same_pass() -> None:
    a, b, bias, rest = normal(2, 20, 6), normal(2, 6, 24), normal(24), normal(2, 20, 24)

    def build(x: mx.Array, y: mx.Array, c: mx.Array, d: mx.Array) -> mx.Array:
        return cpu.tanh(cpu.add(cpu.multiply(mx.matmul(x, y), mx.array([0.5])), cpu.add(c, d)))

    np.testing.assert_allclose(recorded(build, a, b, bias, rest), np.tanh(a @ b * 0.5 + bias + rest), atol=1e-5)


def test_infinities_and_nan() -> None:
    a, b = normal(16, 5), normal(5, 9)
    a[3, 2], a[7, 0], b[1, 4] = np.inf, np.nan, -np.inf
    with np.errstate(all="ignore"):
        wanted = a @ b
    found = recorded(mx.matmul, a, b)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))


@pytest.mark.parametrize("shapes", [((15, 8), (8, 8)), ((16, 3), (3, 8)), ((16, 8), (8, 7)), ((1, 1, 64), (1, 64, 64))])
def test_few_rows_are_for_blas(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (normal(*shape) for shape in shapes)
    np.testing.assert_allclose(recorded(mx.matmul, a, b, own=0), a @ b, rtol=1e-4, atol=1e-4)


def test_few_rows_of_a_large_matrix_are_for_blas() -> None:
    """Packing it would take longer than the product."""
    a, b = normal(16, 1025), normal(1025, 1024)
    np.testing.assert_allclose(recorded(mx.matmul, a, b, own=0), a @ b, rtol=1e-3, atol=1e-3)
