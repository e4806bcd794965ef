"""Where the outputs of a replay go, and that as parts which stay and sizes which grow with the shapes of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from ort_ep.lines import Point, UnevenError, are_sizes
from ort_ep.plan import Slot


@dataclass(slots=True)
class Results:
    """Where the outputs of a replay go: slots first, then positions among the plan's outputs.

    A slot whose value came out on the host has it in `values`. `forms`: shape and bytes of each of the plan's outputs.
    """

    arrays: list[int] = field(default_factory=list)
    finals: list[int] = field(default_factory=list)
    values: dict[int, Slot] = field(default_factory=dict)
    forms: list[tuple[tuple[int, ...], int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Known:
    """A value on the host; without `content` it is made of numbers that may grow. No dtype: None."""

    slot: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """Results without sizes. `forms`: dimensions, and bytes of an element."""

    arrays: tuple[int, ...]
    finals: tuple[int, ...]
    values: tuple[_Known, ...]
    forms: tuple[tuple[int, int], ...]

    def filled(self, numbers: Sequence[int]) -> Results:
        """The results with these sizes."""
        given = iter(numbers)
        values: dict[int, Slot] = {}
        for known in self.values:
            if not known.dtype:
                values[known.slot] = None
            elif known.content is None:
                sizes = list(islice(given, math.prod(known.shape)))
                values[known.slot] = np.array(sizes, known.dtype).reshape(known.shape)
            else:
                values[known.slot] = np.frombuffer(known.content, known.dtype).reshape(known.shape)
        forms = []
        for ndim, itemsize in self.forms:
            shape = tuple(islice(given, ndim))
            forms.append((shape, math.prod(shape) * itemsize))
        return Results(list(self.arrays), list(self.finals), values, forms)


def outlined(results: Results) -> tuple[Outline, Point]:
    """The outline, and the sizes that fill it; UnevenError for what is no tensor of numpy's own types."""
    numbers: list[int] = []
    values = []
    for slot, value in results.values.items():
        if value is None:
            values.append(_Known(slot))
        elif not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
            raise UnevenError("a sequence or a rare type on the host")
        elif are_sizes(value.dtype.char, value.size):
            values.append(_Known(slot, value.dtype.char, value.shape))
            numbers += value.reshape(-1).tolist()
        else:
            values.append(_Known(slot, value.dtype.char, value.shape, value.tobytes()))
    forms = []
    for shape, nbytes in results.forms:
        numbers += shape
        forms.append((len(shape), nbytes // max(math.prod(shape), 1)))
    return Outline(tuple(results.arrays), tuple(results.finals), tuple(values), tuple(forms)), tuple(numbers)
