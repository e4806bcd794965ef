"""What operators make of numbers on the host that grow evenly: the ground on which traces are derived (lines.py).

A line of shapes is known at a few recordings, and what lies between them is taken to be even, too. That holds for what
handlers do with the sizes of arrays: tests/ops/test_lines.py shows it for every operator. Numbers on the host can be
asked for anything, though: whether a length is 512, whether it is odd, what a table has for it. So only those in EVEN
may be given numbers that grow; of these it tells what must be the same in all recordings, for what they make to be even
where it is so in the recordings. Of others that is all they are given on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np

# Vectors up to this size are shapes, not positions: each number grows by itself.
FEW: Final = 8

Fixed = Callable[[Sequence[Any]], Sequence[Any]]
"""What must not change, by the arguments of a call; only numpy arrays count."""


def _nothing(_arguments: Sequence[Any]) -> Sequence[Any]:
    return ()


def _everything(arguments: Sequence[Any]) -> Sequence[Any]:
    return arguments


def _from(first: int) -> Fixed:
    return lambda arguments: arguments[first:]


def _first(count: int) -> Fixed:
    return lambda arguments: arguments[:count]


def _but(*growing: int) -> Fixed:
    return lambda arguments: [value for place, value in enumerate(arguments) if place not in growing]


def _sides(arguments: Sequence[Any]) -> Sequence[Any]:
    """On which side of each other two values are: those that are never equal at either end are not so in between."""
    a, b = arguments
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.dtype.kind == "b":
        return arguments
    return [(a > b).astype(np.int8) - (a < b)]


def _sign(arguments: Sequence[Any]) -> Sequence[Any]:
    """For what asks whether a number is 0."""
    return [np.sign(value) for value in arguments if isinstance(value, np.ndarray) and value.dtype.kind in "iuf"]


def _exact(fixed: Fixed) -> Fixed:
    """For what rounds floats: those that are whole at both ends need not be so in between."""

    def of(arguments: Sequence[Any]) -> Sequence[Any]:
        floats = any(isinstance(value, np.ndarray) and value.dtype.kind == "f" for value in arguments)
        return arguments if floats else fixed(arguments)

    return of


def _slice(arguments: Sequence[Any]) -> Sequence[Any]:
    """Bounds may grow in data on the device, on one side of 0; on the host nobody looks at what lies between them."""
    if isinstance(arguments[0], np.ndarray):
        return arguments[1:]
    return [*(value < 0 for value in arguments[1:3] if isinstance(value, np.ndarray)), *arguments[3:]]


# Sums; bounds and quotients, which do not leave a line and come back to it; choices between them; what moves numbers.
EVEN: Final[Mapping[tuple[str, str], Fixed]] = {
    **{
        ("", name): _nothing
        for name in (
            *("Add", "Sub", "Sum", "Neg", "Max", "Min", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
            *("Shape", "Size", "Identity", "Transpose", "Flatten", "Concat", "ConstantOfShape", "Expand", "Reshape"),
        )
    },
    **{("", name): _from(1) for name in ("Gather", "Squeeze", "Unsqueeze", "ReduceMax", "ReduceMin", "ReduceSum")},
    **{("", name): _but(1, 2) for name in ("Where", "Pad")},
    ("", "Mul"): _exact(_nothing),
    ("", "Div"): _exact(_from(1)),
    ("", "Tile"): _but(0, 1),
    ("", "Split"): _but(0, 1),
    ("", "Slice"): _slice,
    ("", "Range"): _from(2),
    ("", "Equal"): _sides,
    ("", "Cast"): _sign,
    # what their bodies do is watched by itself
    ("", "If"): _first(1),
    ("", "Loop"): _first(2),
    ("com.microsoft", "GroupQueryAttention"): _nothing,
}


def fixed(domain: str, name: str) -> Fixed:
    """What must be the same of the arguments of an operator of ours."""
    return EVEN.get((domain, name), _everything)


class Watched:
    """What calls are given and make on the host: `same` is so in all recordings of a line, `numbers` may grow."""

    def __init__(self) -> None:
        self.same: list[Hashable] = []
        self.numbers: list[int] = []

    def note(self, fixed: Fixed, arguments: Sequence[Any], results: Sequence[Any]) -> None:
        for value in fixed(arguments):
            if isinstance(value, np.ndarray | np.generic):  # what is computed of rank 0 is a scalar to numpy
                self._note(np.asarray(value), may_grow=False)
        for value in results:
            if isinstance(value, np.ndarray | np.generic):
                self._note(np.asarray(value), may_grow=True)

    def _note(self, value: np.ndarray[Any, Any], *, may_grow: bool) -> None:
        kind = value.dtype.char
        whole = may_grow and _is_whole(value)
        if whole and value.ndim < 2 and value.size <= FEW:
            self.same.append((kind, value.shape))
            self.numbers += map(int, value.reshape(-1).tolist())
        elif whole and (form := _ramp(value)):
            self.same.append((kind, value.ndim))
            self.numbers += (*value.shape, *form)
        elif value.size and (value == value.flat[0]).all():
            self.same.append((kind, value.ndim, value.flat[0].tobytes()))
            self.numbers += value.shape
        else:
            self.same.append((kind, value.shape, value.tobytes()))


def _is_whole(value: np.ndarray[Any, Any]) -> bool:
    """Whether all elements are whole numbers, and any between such are exact."""
    if value.dtype.kind != "f":
        return value.dtype.kind in "iu"
    return bool(np.all(np.abs(value) < 2.0 ** np.finfo(value.dtype).nmant) and np.all(value == np.floor(value)))


def _ramp(value: np.ndarray[Any, Any]) -> list[int] | None:
    """The first element and the difference along each axis, where that is all there is to an array."""
    if not value.size:
        return None
    first = int(value.flat[0])
    steps = [
        int(value[(0,) * axis + (1,) + (0,) * (value.ndim - axis - 1)]) - first if length > 1 else 0
        for axis, length in enumerate(value.shape)
    ]
    made = sum((step * along for step, along in zip(steps, np.indices(value.shape, sparse=True), strict=True)), first)
    return [first, *steps] if np.array_equal(value, np.broadcast_to(made, value.shape)) else None
