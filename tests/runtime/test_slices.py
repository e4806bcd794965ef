"""Keys of slices give what numpy gives, alone and with an ellipsis, which takes the general path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxc_py as mx

bound = st.none() | st.integers(-6, 6)
slices = st.builds(slice, bound, bound, st.sampled_from([None, 1, 2, 3, -1, -2]))


@st.composite
def shape_and_key(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """A shape and a key of at most as many slices, with or without an ellipsis."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    key = draw(st.lists(slices, max_size=len(shape)))
    return shape, (*key, ...) if draw(st.booleans()) else tuple(key)


@settings(max_examples=300, deadline=None)
@given(shape_and_key())
def test_slices_are_numpy_s(drawn: tuple[tuple[int, ...], tuple[Any, ...]]) -> None:
    shape, key = drawn
    host = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(np.array(mx.array(host)[key]), host[key], strict=True)


def test_a_slice_of_everything_is_an_array_of_its_own() -> None:
    a = mx.array([1, 2, 3])
    b = a[:]
    b[0] = 9
    assert (a.tolist(), b.tolist()) == ([1, 2, 3], [9, 2, 3])


def test_wrong_slices_are_errors() -> None:
    a = mx.array(np.zeros((2, 2)))
    with pytest.raises(IndexError, match="too many indices: 3"):
        a[:, :, :]
    with pytest.raises(ValueError, match="step cannot be zero"):
        a[::0]
    with pytest.raises(TypeError):
        a["x":"y"]
