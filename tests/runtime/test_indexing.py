"""Indexing and item assignment against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxc_py as mx

HOST = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
MASK = HOST % 3 == 0
KEYS: list[Any] = [
    0,
    -1,
    slice(None),
    slice(None, None, -1),
    slice(1, None, 2),
    slice(5, 1),
    slice(-1, -3, -1),
    Ellipsis,
    None,
    (0, 1, 2),
    (slice(None), 2),
    (Ellipsis, -1),
    (0, Ellipsis, slice(None, None, 2)),
    (None, 1, slice(None), None),
    (slice(None, None, -1), slice(None, None, -2), slice(3, None, -1)),
    np.int64(2),
    [0, 2],
    [[0, 1], [2, 0]],
    [],
    np.array([2, 0, -1]),
    np.array(1),
    (slice(None), [0, 3]),
    (slice(None), [0, 3], 1),
    (0, slice(None), [1, 2]),
    ([0, 1], slice(None), [1, 2]),
    ([0, 1], [1, 2]),
    ([[0], [2]], [0, 1, 3]),
    (slice(1, 3), [0, 1], [1, 2]),
    (None, [0, 1], Ellipsis, [4, 0]),
    ([0, 1], None, [1, 2]),
    (Ellipsis, [0, 1], None),
    MASK,
    MASK[0],
    MASK[:, 0, 0],
    (slice(None), MASK[0, :, 0]),
    (MASK[:, 0, 0], 1),
    (0, MASK[0]),
    (slice(0, 0), [0]),
]
IDS = [str(k).replace("\n", "")[:40] for k in KEYS]


def expected_or_none(key: Any) -> np.ndarray | None:
    """What numpy gives, None where it refuses the key."""
    try:
        return HOST[key]
    except IndexError:
        return None


@pytest.mark.parametrize("key", KEYS, ids=IDS)
def test_get(key: Any) -> None:
    expected = expected_or_none(key)
    if expected is None:
        with pytest.raises(IndexError):
            mx.array(HOST)[key]
        return
    got = mx.array(HOST)[key]
    assert got.shape == expected.shape
    np.testing.assert_array_equal(np.array(got), expected)


@pytest.mark.parametrize("key", KEYS, ids=IDS)
@pytest.mark.parametrize("kind", ["number", "array", "row"])
def test_set(key: Any, kind: str) -> None:
    selected = expected_or_none(key)
    if selected is None:
        with pytest.raises(IndexError):
            mx.array(HOST)[key] = 1
        return
    if kind != "number" and mx.cuda.is_available() and np.unique(selected).size < selected.size:
        pytest.skip("a GPU scatters in no order: of several values for one place any may stay")
    values = np.arange(-selected.size, 0, dtype=np.int32).reshape(selected.shape)
    value: Any = {"number": -7, "array": values, "row": values[..., :1] if selected.ndim else -1}[kind]
    host, array = HOST.copy(), mx.array(HOST)
    host[key] = value
    array[key] = value if kind == "number" else mx.array(value)
    np.testing.assert_array_equal(np.array(array), host)


def test_mlx_arrays_index_too() -> None:
    a = mx.array(HOST)
    np.testing.assert_array_equal(np.array(a[mx.array([2, 0])]), HOST[[2, 0]])
    np.testing.assert_array_equal(np.array(a[mx.array([-1]), :, mx.array([1, 2])]), HOST[[-1], :, [1, 2]])
    np.testing.assert_array_equal(np.array(a[a % 3 == 0]), HOST[MASK])
    a[a > 30] = 0
    np.testing.assert_array_equal(np.array(a), np.where(HOST > 30, 0, HOST))


sizes = st.integers(-7, 7)
slices = st.builds(slice, st.none() | sizes, st.none() | sizes, st.none() | sizes.filter(bool))
indices = st.lists(st.integers(-3, 2), min_size=0, max_size=4)
entries = st.one_of(st.integers(-3, 2), slices, st.none(), indices)


@settings(max_examples=150, deadline=None)
@given(st.lists(entries, max_size=4).map(tuple))
def test_any_key(key: tuple[Any, ...]) -> None:
    expected = expected_or_none(key)
    array = mx.array(HOST)
    if expected is None:
        with pytest.raises((IndexError, ValueError, RuntimeError)):
            mx.eval(array[key])
        return
    got = array[key]
    assert got.shape == expected.shape
    np.testing.assert_array_equal(np.array(got), expected)
    host = HOST.copy()
    host[key] = -1
    array[key] = -1
    np.testing.assert_array_equal(np.array(array), host)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (3, "index 3 is out of bounds for axis 0 with size 3"),
        ((0, -5), "index -5 is out of bounds for axis 1"),
        ([0, 7], "index 7 is out of bounds"),
        ((0, 0, 0, 0), "too many indices"),
        ((Ellipsis, Ellipsis), "only one ellipsis"),
        (MASK[:2], "does not fit axis 0"),
        (np.array([0.5]), "array of float64"),
        (True, "single boolean"),
    ],
)
def test_bad_keys_say_what_is_wrong(key: Any, says: str) -> None:
    with pytest.raises(IndexError, match=says):
        mx.array(HOST)[key]


def test_a_bad_kind_of_key_is_named() -> None:
    for key in ("text", 0.5, object()):
        with pytest.raises(IndexError, match="an index is an int, a slice"):
            mx.array(HOST)[key]


def test_values_that_do_not_fit() -> None:
    a = mx.array(HOST)
    with pytest.raises(ValueError, match=r"shape"):
        a[0] = mx.ones((2, 4, 5))
        mx.eval(a)
    with pytest.raises((ValueError, RuntimeError)):
        a[0] = mx.ones((3,))
        mx.eval(a)


def test_assignment_touches_no_other_array() -> None:
    a = mx.array(HOST)
    b = a[:]
    other = mx.zeros((3, 4, 5), mx.int32)
    a[...] = other
    a[0] = 5
    assert int(mx.sum(other)) == 0
    np.testing.assert_array_equal(np.array(b), HOST)
    assert a.dtype is mx.int32


def test_at_accumulates() -> None:
    a = mx.array([1.0, 2.0, 3.0])
    twice = mx.array([0, 0, 2])
    assert a.at[twice].add(1).tolist() == [3.0, 2.0, 4.0]
    assert a.at[twice].subtract(1).tolist() == [-1.0, 2.0, 2.0]
    assert a.at[twice].multiply(2).tolist() == [4.0, 2.0, 6.0]
    assert a.at[twice].divide(2).tolist() == [0.25, 2.0, 1.5]
    assert a.at[twice].maximum(2.5).tolist() == [2.5, 2.0, 3.0]
    assert a.at[1:].minimum(2.5).tolist() == [1.0, 2.0, 2.5]
    assert a.tolist() == [1.0, 2.0, 3.0]


def test_iteration_and_containment() -> None:
    a = mx.array(HOST)
    assert [int(mx.sum(row)) for row in a] == [int(row.sum()) for row in HOST]
    assert len(a) == 3
    assert 59 in a
    assert 60 not in a
    first, *_ = mx.array([4, 5, 6])
    assert first.item() == 4
    for bad in (len, iter):
        with pytest.raises(TypeError):
            bad(mx.array(1.0))
