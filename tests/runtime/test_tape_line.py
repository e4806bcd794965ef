"""Tapes derived for sizes along a line, against tapes recorded there."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import tape
from mlxc_py.tape_line import Recording, TapeLine

pytestmark = pytest.mark.skipif(not tape.supported(), reason="this libmlxc records no tapes")
Recorder = Callable[[int], Recording]


def opened(*shape: int) -> mx.Array:
    return tape.placeholder(shape, mx.float32)


def attention(n: int) -> Recording:
    """A cache of n rows, and one more; a mask of positions; slices from the end, a shape that is broadcast."""
    cache, row = opened(1, n, 16), opened(1, 1, 16)
    longer = mx.concatenate([cache, row], 1)
    scores = mx.matmul(row, longer.swapaxes(1, 2))
    scores = mx.where(mx.arange(n + 1) < n, scores, -1.0)
    mixed = mx.matmul(mx.softmax(scores / 4, -1), longer)
    wide = mx.broadcast_to(mixed, (3, 1, 16)) + longer[:, -1:]
    return [cache, row], [mixed, longer[:, 1:], wide.reshape(3, 16), longer[:, n // 1 - 2 :: 1]]


def values(shapes: list[tuple[int, ...]]) -> list[mx.Array]:
    random = np.random.default_rng(0)
    return [mx.array(random.normal(size=shape).astype(np.float32)) for shape in shapes]


def line_of(record: Recorder, start: int, ahead: int) -> TapeLine:
    line = TapeLine(record(start), record(start + 1))
    line.check(ahead, record(start + ahead))
    return line


def test_every_size_in_between() -> None:
    line = line_of(attention, 3, 40)
    for steps in range(41):
        recorded = attention(3 + steps)
        given = values([a.shape for a in recorded[0]])
        expected, found = tape.Tape(*recorded)(given), line.at(steps)(given)
        assert [a.shape for a in found] == [a.shape for a in expected]
        assert all(np.array_equal(np.array(a), np.array(b)) for a, b in zip(found, expected, strict=True))


def test_tapes_outlive_their_line() -> None:
    line = line_of(attention, 3, 40)
    derived = line.at(9)
    line.close()
    gc.collect()
    given = values([(1, 12, 16), (1, 1, 16)])
    expected = tape.Tape(*attention(12))(given)
    assert np.array_equal(np.array(derived(given)[0]), np.array(expected[0]))
    with pytest.raises(ValueError, match="closed"):
        line.at(9)


def unary(build: Callable[[mx.Array, int], mx.Array]) -> Recorder:
    def record(n: int) -> Recording:
        x = opened(n, 6)
        return [x], [build(x, n)]

    return record


POSITIONS = np.arange(200)[:, None] * 3 - np.arange(6)
UNEVEN = {
    "another operation from a length on": lambda x, n: mx.exp(x) if n < 20 else mx.sin(x),
    "every second length": lambda x, n: x[: n // 2],
    "a table of lengths": lambda x, n: x + mx.array(np.sin(np.arange(n)).astype(np.float32))[:, None],
    "a square": lambda x, n: mx.broadcast_to(x, (n, n, 6)).reshape(n * n, 6),
    "a fraction": lambda x, n: x * (1 / n),
    "operations for each row": lambda x, n: mx.stack([x[i] for i in range(n)]),
    "a size that begins at 1": lambda x, n: x[9:],
}
EVEN = {
    "a scalar": lambda x, n: x * n + 2.0,
    "positions": lambda x, n: x + mx.array(POSITIONS[:n] + n),
    "a constant": lambda x, n: x + mx.array(np.full((n, 1), 3, np.float32)),
    "what is computed from sizes alone": lambda x, n: x + mx.sin(mx.arange(n).astype(mx.float32))[:, None],
    "padding": lambda x, n: mx.pad(x, [(0, n), (1, 2)]),
    "parts": lambda x, n: mx.concatenate(mx.split(x, [2, n - 1], 0)[::-1], 0),
    "rows": lambda x, n: mx.take(x, mx.array([0, -1]) % n, 0),
    "columns": lambda x, n: mx.take(x, mx.array([0, 5, 3]), 1),
    "an update": lambda x, n: mx.slice_update(x, mx.zeros((1, 6)), mx.array([n - 1]), [0]),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_what_is_no_line(name: str) -> None:
    with pytest.raises(mx.MLXError):
        line_of(unary(UNEVEN[name]), 10, 30)


@pytest.mark.parametrize("name", EVEN)
def test_what_is_one(name: str) -> None:
    record = unary(EVEN[name])
    line = line_of(record, 10, 30)
    for steps in (-7, 0, 1, 5, 29, 30):
        given = values([(10 + steps, 6)])
        expected = tape.Tape(*record(10 + steps))(given)[0]
        assert np.array_equal(np.array(line.at(steps)(given)[0]), np.array(expected)), steps


def test_outputs_in_another_order_are_no_line() -> None:
    def record(n: int) -> Recording:
        x = opened(n, 6)
        outputs = [mx.exp(x), mx.sin(x)]
        return [x], outputs if n < 20 else [outputs[0], outputs[0]]

    with pytest.raises(mx.MLXError, match="does not grow evenly"):
        line_of(record, 10, 30)


def test_weights_are_computed_once() -> None:
    weight = mx.array(np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32))

    def record(n: int) -> Recording:
        x = opened(n, 512)
        return [x], [mx.matmul(x, mx.exp(weight) * 2.0)]

    line = line_of(record, 20, 30)
    before = mx.get_active_memory()
    kept = [line.at(steps) for steps in range(30)]
    assert mx.get_active_memory() - before < weight.nbytes
    assert len(kept[0]) == 1
