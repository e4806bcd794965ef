"""How far two results are apart, as the model corpus counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FLOOR = 1e-6  # the least scale a difference is divided by


@dataclass(frozen=True)
class Difference:
    """Largest absolute and relative difference over finite positions; `mismatch`: what is no matter of degree."""

    absolute: float = 0.0
    relative: float = 0.0
    mismatch: str = ""

    def worse(self, other: Difference) -> Difference:
        """The larger of both in each respect."""
        return Difference(
            max(self.absolute, other.absolute), max(self.relative, other.relative), self.mismatch or other.mismatch
        )

    def exceeding(self, limit: float) -> str:
        """What is wrong, for a message."""
        return self.mismatch or f"by {self.relative:.3g} of the largest value, more than {limit:g}"

    def within(self, limit: float) -> bool:
        return not self.mismatch and self.relative <= limit


def difference(got: Any, expected: Any) -> Difference:
    """Compare one output (array, or a list or dict of outputs) with its reference.

    Relative is max|got - expected| / max(max|expected|, 1e-6), over positions where the reference is finite.
    """
    if isinstance(expected, dict):
        if not isinstance(got, dict) or list(got) != list(expected):
            return Difference(mismatch="the map has other keys")
        return _worst([difference(got[key], expected[key]) for key in expected])
    if isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            return Difference(mismatch="the sequence has another length")
        return _worst([difference(a, b) for a, b in zip(got, expected, strict=True)])
    return _arrays(np.asarray(got), np.asarray(expected))


def _worst(differences: list[Difference]) -> Difference:
    total = Difference()
    for one in differences:
        total = total.worse(one)
    return total


def _arrays(got: np.ndarray, expected: np.ndarray) -> Difference:
    if got.dtype != expected.dtype:
        return Difference(mismatch=f"dtype {got.dtype.name} instead of {expected.dtype.name}")
    if got.shape != expected.shape:
        return Difference(mismatch=f"shape {list(got.shape)} instead of {list(expected.shape)}")
    if expected.dtype.kind in "bOUS":
        wrong = int(np.count_nonzero(got != expected))
        return Difference(mismatch=f"{wrong} of {expected.size} values differ" if wrong else "")
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), expected.astype(wide)
    finite = np.isfinite(b)
    # positions of NaN and of each infinity must agree exactly
    if not np.array_equal(np.isfinite(a), finite) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return Difference(mismatch="NaN or infinity at other positions")
    if not finite.any():
        return Difference()
    absolute = float(np.abs(a[finite] - b[finite]).max())
    return Difference(absolute, absolute / max(float(np.abs(b[finite]).max()), FLOOR))
