"""How the command line and the corpus tests measure the difference between two results."""

from __future__ import annotations

import numpy as np
import pytest

from ort_ep.cli.compare import difference


def test_relative_to_the_largest_reference_value():
    one = difference(np.float32([1, 2, 3.5]), np.float32([1, 2, 4]))
    assert (one.absolute, one.relative, one.mismatch) == (0.5, 0.125, "")
    assert one.within(0.2) and not one.within(0.1)


def test_an_all_zero_reference_has_a_floor():
    assert difference(np.float32([1e-6]), np.float32([0])).relative == pytest.approx(1)


def test_nan_and_infinity_must_be_at_the_same_positions():
    reference = np.float32([np.nan, np.inf, -np.inf, 1])
    assert difference(reference.copy(), reference).within(0)
    for moved in ([0, np.inf, -np.inf, 1], [np.nan, -np.inf, -np.inf, 1], [np.nan, np.inf, -np.inf, np.nan]):
        assert "positions" in difference(np.float32(moved), reference).mismatch


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (np.zeros(3, np.float64), "dtype float64 instead of float32"),
        (np.zeros((3, 1), np.float32), r"shape \[3, 1\] instead of \[3\]"),
    ],
)
def test_dtype_and_shape_must_agree(got, says):
    one = difference(got, np.zeros(3, np.float32))
    assert not one.within(1e9)
    assert one.mismatch == says.replace("\\", "")


def test_bools_and_strings_must_be_equal():
    assert difference(np.array([True, False]), np.array([True, True])).mismatch == "1 of 2 values differ"
    assert difference(np.array(["a", "b"], object), np.array(["a", "b"], object)).within(0)


def test_large_integers_keep_their_sign_of_difference():
    assert difference(np.uint8([255]), np.uint8([0])).absolute == 255


def test_sequences_and_maps_are_compared_item_by_item():
    reference = [{0: np.float32(1), 1: np.float32(2)}]
    assert difference([{0: np.float32(1), 1: np.float32(2.5)}], reference).absolute == 0.5
    assert difference([{0: np.float32(1)}], reference).mismatch == "the map has other keys"
    assert difference([], reference).mismatch == "the sequence has another length"


def test_empty_outputs_agree():
    assert difference(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)).within(0)
