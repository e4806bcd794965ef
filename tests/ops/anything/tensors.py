"""Operators that move, cut, join and index tensors, over every rank, empty axes, absent inputs and runtime values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from drawn import FLOATS, INTS, SEEDS, shapes, values
from hypothesis import assume, given
from hypothesis import strategies as st

Check = Callable[..., None]
KINDS = st.sampled_from(("bool", *FLOATS, *INTS))


def ints(*rows: int) -> Any:
    return np.array(rows, np.int64)


def axis_in(data: st.DataObject, rank: int) -> int:
    return data.draw(st.integers(-rank, rank - 1))


def fixed(data: st.DataObject, *positions: int) -> tuple[int, ...]:
    """Which of the inputs are initializers: all or none."""
    return positions if data.draw(st.booleans()) else ()


@given(seed=SEEDS, shape=shapes(least=1), dtype=KINDS, count=st.integers(1, 4), data=st.data())
def test_concat(check: Check, seed: int, shape: tuple[int, ...], dtype: str, count: int, data: st.DataObject) -> None:
    axis = axis_in(data, len(shape))
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    parts = []
    for index, length in enumerate(lengths):
        extent = list(shape)
        extent[axis] = length
        parts.append(values(seed + index, dtype, extent))
    check("Concat", *parts, expect=np.concatenate(parts, axis), axis=axis)


@given(seed=SEEDS, shape=shapes(least=1), dtype=KINDS, data=st.data())
def test_split(check: Check, seed: int, shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    axis = axis_in(data, len(shape))
    sizes, left = [], shape[axis]
    while left:
        sizes.append(data.draw(st.integers(0, left)))
        left -= sizes[-1]
    sizes = sizes or [0]
    x = values(seed, dtype, shape)
    expect = np.split(x, np.cumsum(sizes)[:-1], axis)
    check("Split", x, ints(*sizes), expect=list(expect), axis=axis, constants=fixed(data, 1))


@given(seed=SEEDS, shape=shapes(), dtype=KINDS, data=st.data())
def test_squeeze_and_unsqueeze(
    check: Check, seed: int, shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    x = values(seed, dtype, shape)
    check("Squeeze", x, expect=np.squeeze(x))
    rank = len(shape) + 2
    axes = data.draw(st.lists(st.integers(0, rank - 1), unique=True, min_size=2, max_size=2))
    signed = [axis - rank if data.draw(st.booleans()) else axis for axis in axes]
    grown = np.expand_dims(x, tuple(axes))
    constants = fixed(data, 1)
    check("Unsqueeze", x, ints(*signed), expect=grown, constants=constants)
    check("Squeeze", grown, ints(*signed), expect=x, constants=constants)


@given(seed=SEEDS, shape=shapes(), dtype=KINDS, data=st.data())
def test_flatten_and_reshape(check: Check, seed: int, shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    x = values(seed, dtype, shape)
    axis = data.draw(st.integers(-len(shape), len(shape)))
    cut = axis % len(shape) if axis < 0 else axis
    flat = x.reshape(int(np.prod(shape[:cut], dtype=int)), int(np.prod(shape[cut:], dtype=int)))
    check("Flatten", x, expect=flat, axis=axis)
    order = data.draw(st.permutations(shape))
    check("Reshape", x, ints(*order), expect=x.reshape(order), allowzero=1, constants=fixed(data, 1))


@given(seed=SEEDS, shape=shapes(most=4), dtype=KINDS, data=st.data())
def test_tile(check: Check, seed: int, shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    x, repeats = values(seed, dtype, shape), data.draw(st.tuples(*[st.integers(0, 3)] * len(shape)))
    check("Tile", x, ints(*repeats), expect=np.tile(x, repeats), constants=fixed(data, 1))


@given(seed=SEEDS, shape=shapes(least=1, most=4, smallest=1), dtype=KINDS, data=st.data())
def test_pad(check: Check, seed: int, shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    mode: Any = data.draw(st.sampled_from(["constant", "edge", "reflect", "wrap"]))
    most = [length - 1 if mode == "reflect" else length if mode == "wrap" else 3 for length in shape]
    before = [data.draw(st.integers(0, size)) for size in most]
    after = [data.draw(st.integers(0, size)) for size in most]
    x = values(seed, dtype, shape)
    value = values(seed + 1, dtype, ()) if mode == "constant" and data.draw(st.booleans()) else None
    how: Any = {"constant_values": 0 if value is None else value} if mode == "constant" else {}
    expect = np.pad(x, list(zip(before, after, strict=True)), mode=mode, **how)
    check("Pad", x, ints(*before, *after), value, expect=expect, mode=mode, constants=fixed(data, 1))


@given(seed=SEEDS, shape=shapes(least=1, most=4), axes=st.booleans(), data=st.data())
def test_negative_pads(check: Check, seed: int, shape: tuple[int, ...], axes: bool, data: st.DataObject) -> None:
    cut = [data.draw(st.integers(0, length)) for length in shape]
    x = values(seed, "float32", shape)
    window = tuple(slice(start, None) for start in cut)
    places = data.draw(st.permutations(range(len(shape)))) if axes else list(range(len(shape)))
    pads = ints(*(-cut[axis] for axis in places), *[0] * len(shape))
    check("Pad", x, pads, None, ints(*places) if axes else None, expect=x[window], constants=(1, 3) if axes else (1,))


@given(seed=SEEDS, shape=shapes(least=1, most=5, smallest=1), dtype=KINDS, data=st.data())
def test_gather_and_scatter_elements(
    check: Check, seed: int, shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    axis = axis_in(data, len(shape))
    extent = [data.draw(st.integers(0, length)) for length in shape]
    x, length = values(seed, dtype, shape), shape[axis]
    random = np.random.default_rng(seed)
    at = random.integers(-length, length, extent)
    cut = tuple(slice(0, size) for size in extent)
    grid = list(np.indices(extent))
    grid[axis] = at % length
    check("GatherElements", x, at, expect=np.asarray(x[tuple(grid)]), axis=axis)
    if extent[axis] > length:
        return
    # each position once, so that the order does not matter
    order = np.argsort(random.random(shape), axis)[cut]
    grid[axis] = order
    updates, expect = values(seed + 1, dtype, extent), x.copy()
    expect[tuple(grid)] = updates
    check("ScatterElements", x, order, updates, expect=expect, axis=axis)


@given(seed=SEEDS, shape=shapes(least=1, most=4, smallest=1), reduction=st.sampled_from(["add", "mul", "max", "min"]))
def test_scatter_that_reduces(check: Check, seed: int, shape: tuple[int, ...], reduction: str) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 6))
    depth = int(random.integers(1, len(shape) + 1))
    at = np.stack([random.integers(-length, length, count) for length in shape[:depth]], -1)
    x, updates = values(seed, "float32", shape), values(seed + 1, "float32", (count, *shape[depth:]))
    expect = x.copy()
    function: Any = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction]
    for row, update in zip(at, updates, strict=True):
        expect[tuple(row)] = function(expect[tuple(row)], update)
    check("ScatterND", x, at.astype(np.int64), updates, expect=expect, reduction=reduction)


@given(seed=SEEDS, shape=shapes(least=1, most=4, smallest=1), dtype=KINDS, data=st.data())
def test_gather_nd(check: Check, seed: int, shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    batch = data.draw(st.integers(0, len(shape) - 1))
    depth = data.draw(st.integers(1, len(shape) - batch))
    between = tuple(data.draw(st.lists(st.integers(0, 3), max_size=2)))
    random = np.random.default_rng(seed)
    leading = shape[:batch] + between
    at = np.stack([random.integers(-size, size, leading) for size in shape[batch : batch + depth]], -1)
    x = values(seed, dtype, shape)
    expect = np.zeros(leading + shape[batch + depth :], x.dtype)
    for place in np.ndindex(*leading):
        expect[place] = x[place[:batch] + tuple(at[place])]
    check("GatherND", x, at.astype(np.int64), expect=expect, batch_dims=batch)


@given(seed=SEEDS, shape=shapes(least=2, most=5), dtype=KINDS, k=st.integers(-4, 4), upper=st.integers(0, 1))
def test_trilu(check: Check, seed: int, shape: tuple[int, ...], dtype: str, k: int, upper: int) -> None:
    x = values(seed, dtype, shape)
    expect = np.triu(x, k) if upper else np.tril(x, k)
    check("Trilu", x, np.array(k), expect=expect, upper=upper, constants=(1,))


@given(seed=SEEDS, shape=shapes(most=4), depth=st.integers(1, 5), kind=KINDS, data=st.data())
def test_one_hot(check: Check, seed: int, shape: tuple[int, ...], depth: int, kind: str, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    at = np.random.default_rng(seed).integers(-depth - 2, depth + 2, shape)
    choice = values(seed, kind, (2,))
    hot = np.expand_dims(np.where(at < 0, at + depth, at), axis)
    along = np.arange(depth).reshape([-1 if index == axis % hot.ndim else 1 for index in range(hot.ndim)])
    expect = np.where(hot == along, choice[1], choice[0])
    check("OneHot", np.asarray(at), np.array(depth), choice, expect=expect, axis=axis, constants=fixed(data, 1))


@given(seed=SEEDS, shape=shapes(least=1), dtype=KINDS, data=st.data())
def test_compress_and_non_zero(
    check: Check, seed: int, shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    x = values(seed, dtype, shape)
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    length = x.size if axis is None else shape[axis]
    kept = values(seed + 1, "bool", (data.draw(st.integers(0, length)),))
    expect = np.compress(kept, x, axis)
    check("Compress", x, kept, expect=expect, **({} if axis is None else {"axis": axis}))
    check("NonZero", x, expect=np.array(np.nonzero(x), np.int64).reshape(len(shape), -1))


@given(seed=SEEDS, shape=shapes(least=1, most=4), dtype=KINDS, ordered=st.integers(0, 1), data=st.data())
def test_unique(check: Check, seed: int, shape: tuple[int, ...], dtype: str, ordered: int, data: st.DataObject) -> None:
    assume(dtype != "float16")
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    x = values(seed, dtype, shape)
    assume(x.size)
    how: dict[str, Any] = {} if axis is None else {"axis": axis}
    y, first, place, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True, **how)
    place = place.reshape(-1)
    if not ordered:
        order = np.argsort(first)
        y = np.take(y, order, 0 if axis is None else axis)
        first, counts, place = first[order], counts[order], np.argsort(order)[place]
    expect = [y, first, place, counts]
    check("Unique", x, expect=[np.asarray(item) for item in expect], outputs=4, sorted=ordered, **how)


@given(
    seed=SEEDS,
    low=st.integers(-5, 5),
    high=st.integers(-5, 5),
    step=st.integers(-3, 3),
    dtype=st.sampled_from(INTS[:4]),
)
def test_range(check: Check, seed: int, low: int, high: int, step: int, dtype: str) -> None:
    assume(step and dtype != "int8")
    ends = (np.array(value, dtype) for value in (low, high, step))
    check("Range", *ends, expect=np.arange(low, high, step).astype(dtype), constants=(0, 1, 2))


@given(
    seed=SEEDS,
    block=st.integers(1, 3),
    extent=st.tuples(*[st.integers(0, 2)] * 4),
    mode=st.sampled_from(["DCR", "CRD"]),
)
def test_depth_and_space(check: Check, seed: int, block: int, extent: tuple[int, ...], mode: str) -> None:
    batch, channels, height, width = extent
    deep = values(seed, "float32", (batch, channels * block * block, height, width))
    if mode == "DCR":
        parts = deep.reshape(batch, block, block, channels, height, width).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = deep.reshape(batch, channels, block, block, height, width).transpose(0, 1, 4, 2, 5, 3)
    wide = parts.reshape(batch, channels, height * block, width * block)
    check("DepthToSpace", deep, expect=wide, blocksize=block, mode=mode)
    if mode == "DCR":
        check("SpaceToDepth", wide, expect=deep, blocksize=block)
