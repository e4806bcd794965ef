"""Traces for shapes that grow: derived from a few recordings, where every size grows evenly.

A decoder whose cache grows by a row in each run never comes back to a shape. Its keys lie on a line: each size, and
each number read on the host, grows by the same amount from one to the next. A line is recorded at two neighbouring
keys, and then ahead, at about twice the size; where all three are the same operations and everything in them that
differs grows evenly, what lies between them is derived natively (native/mlxc/tape_line.hpp), as it comes. Ahead of what
was checked nothing is derived: the line is checked further along first, and ends where it does not hold, say at the
length from which a window limits attention. So a translation may do one thing below a length and another above it; what
it may not do is treat single lengths in between apart. Sizes of 0 and 1, and those equal to another size, could be
such: they are never derived.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

import numpy as np

import mlxc_py as mx
from mlxc_py.tape import Tape
from mlxc_py.tape_line import TapeLine
from ort_ep.streams import Lock
from ort_ep.traces import Key

# Lines kept for one stage, lines that were given up, and traces that were derived.
MOST_LINES: Final = 8
MOST_REFUSED: Final = 64
MOST_DERIVED: Final = 16
# A line is recorded, which costs three traces, where so many of the latest keys lie on one with a new key.
ENOUGH: Final = 2
MOST_RECENT: Final = 8
# How far ahead a line is checked at least.
AHEAD: Final = 64
# Where the end of a line is known this closely, it is not looked for any longer.
CLOSE: Final = 4
# Numbers on the host beyond this many are data.
MOST_NUMBERS: Final = 64
# The kinds of integers that the host reads sizes in.
INTEGERS: Final = "bBhHiIlLqQ"

Point = tuple[int, ...]
T = TypeVar("T")
Trace = TypeVar("Trace")


@dataclass(frozen=True, slots=True)
class Recorded(Generic[T]):
    """A graph on placeholders: its inputs and outputs, and what else there is to know, in parts that must not change
    and numbers that may grow. `watched` and `further` are such, too, but nothing that a run needs."""

    inputs: Sequence[mx.Array]
    outputs: Sequence[mx.Array]
    fixed: T
    numbers: Point
    watched: Sequence[Hashable]
    further: Point


Record = Callable[[Key], Recorded[T]]
"""Records a stage for a key. What fails in building it fails here."""


class UnevenError(Exception):
    """Something does not grow evenly."""


@dataclass(frozen=True, slots=True)
class Growing:
    """Numbers that grow evenly with each step."""

    start: Point
    slope: Point

    @staticmethod
    def between(start: Point, following: Point) -> Growing:
        if len(start) != len(following):
            raise UnevenError("another number of sizes")
        return Growing(start, tuple(b - a for a, b in zip(start, following, strict=True)))

    def at(self, steps: int) -> Point:
        return tuple([a + steps * b for a, b in zip(self.start, self.slope, strict=True)])

    def steps_to(self, point: Sequence[int]) -> int:
        """At how many steps the first number that grows is this one, rounded down."""
        axis = next(axis for axis, slope in enumerate(self.slope) if slope)
        return (point[axis] - self.start[axis]) // self.slope[axis]


def are_sizes(kind: str, count: int) -> bool:
    """Whether so many numbers of numpy's `kind` on the host may be sizes; others are data, which stays the same."""
    return kind in INTEGERS and count <= MOST_NUMBERS


# ------------------------------------------------------------ keys as points
def point_of(key: Key) -> tuple[Hashable, Point]:
    """What keys of one line have in common, and the sizes and numbers in which they may differ."""
    parts, values = key
    common: list[Hashable] = [parts[0]]
    point: list[int] = []
    host = iter(values)
    for part in parts[1:]:
        if part is None:
            common.append(None)
            continue
        kind, shape = part
        common.append((kind, len(shape)))
        point += shape
        if isinstance(kind, str):  # of numpy: its value is part of the key
            content = next(host)
            count = math.prod(shape)
            if are_sizes(kind, count):
                point += np.frombuffer(content, kind).tolist()
                common.append(count)
            else:
                common.append(content)
    return tuple(common), tuple(point)


class Keys:
    """The keys along a line, and which step a key is."""

    def __init__(self, key: Key, direction: Point) -> None:
        """The first key; the direction as `point_of` counts."""
        parts, values = key
        self._fixed = list(parts)
        self._values = values
        shapes: dict[tuple[Hashable, Growing], list[int]] = {}
        self._numbers: list[tuple[int, str, Growing]] = []
        at, host = 0, 0
        for position, part in enumerate(parts[1:], 1):
            if part is None:
                continue
            kind, shape = part
            slope = direction[at : at + len(shape)]
            at += len(shape)
            if any(slope):
                shapes.setdefault((kind, Growing(shape, slope)), []).append(position)
            if isinstance(kind, str):
                count = math.prod(shape)
                if are_sizes(kind, count):
                    if any(direction[at : at + count]):
                        start = tuple(np.frombuffer(values[host], kind).tolist())
                        self._numbers.append((host, kind, Growing(start, direction[at : at + count])))
                    at += count
                host += 1
        self._places = [(kind, growing, places) for (kind, growing), places in shapes.items()]

    def at(self, steps: int) -> Key:
        parts = self._fixed.copy()
        for kind, growing, places in self._places:
            part = (kind, growing.at(steps))
            for place in places:
                parts[place] = part
        if not self._numbers:
            return tuple(parts), self._values
        values = list(self._values)
        for place, kind, numbers in self._numbers:
            values[place] = np.array(numbers.at(steps), kind).tobytes()
        return tuple(parts), tuple(values)

    def steps_to(self, key: Key) -> int | None:
        """How many steps a key is from the first one; None where it is not on the line."""
        parts, values = key
        if len(parts) != len(self._fixed):
            return None
        if self._places:
            kind, growing, places = self._places[0]
            part = parts[places[0]]
            if part is None or part[0] != kind or len(part[1]) != len(growing.start):
                return None
            steps = growing.steps_to(part[1])
        else:
            place, kind, numbers = self._numbers[0]
            if len(values) <= place or len(values[place]) != len(self._values[place]):
                return None
            steps = numbers.steps_to(np.frombuffer(values[place], kind).tolist())
        try:
            return steps if self.at(steps) == key else None
        except OverflowError:  # beyond the type of a number on the host
            return None


# ------------------------------------------------------------ lines
@dataclass(frozen=True, slots=True)
class Derived(Generic[T]):
    """What a recording of a key would have given."""

    tape: Tape
    fixed: T
    numbers: Point


@dataclass(slots=True)
class Line(Generic[T]):
    """What is known of the keys along a line: it holds from `low` to `high`, at `floor` and `ceiling` it does not.

    Steps below `least` and above `most` have a size below 2.
    """

    keys: Keys
    tapes: TapeLine
    first: Recorded[T]
    numbers: Growing
    further: Growing
    least: int
    most: float
    low: int = 0
    high: int = 1
    floor: int | None = None
    ceiling: int | None = None

    def derived(self, steps: int) -> Derived[T]:
        return Derived(self.tapes.at(steps), self.first.fixed, self.numbers.at(steps))

    def reaches(self, steps: int) -> bool:
        """Whether a step may be on the line, as far as is known."""
        above = steps <= self.most and (self.ceiling is None or steps < self.ceiling)
        return above and steps >= self.least and (self.floor is None or steps > self.floor)

    def target(self, steps: int) -> int | None:
        """Where to check next so that a step is known; None where it is known, or not worth it."""
        if self.low <= steps <= self.high:
            return None
        if steps > self.high:
            if self.ceiling is None:
                return int(min(steps + max(AHEAD, steps - self.least), self.most))
            return (steps + self.ceiling) // 2 if self.ceiling - self.high > CLOSE else None
        if self.floor is None:
            return self.least
        return (steps + self.floor + 1) // 2 if self.low - self.floor > CLOSE else None

    def check(self, steps: int, recorded: Recorded[T]) -> None:
        """UnevenError or MLXError where a recording is not what the line says."""
        self.tapes.check(steps, (recorded.inputs, recorded.outputs))
        _require_same(self.first, recorded)
        if recorded.numbers != self.numbers.at(steps) or recorded.further != self.further.at(steps):
            raise UnevenError("what is known on the host")


@dataclass(slots=True)
class _Refused:
    """A line that did not hold from the start: how many keys on it pass until it is tried again."""

    wait: int
    left: int


class Lines(Generic[T, Trace]):
    """The lines of one stage of a plan, found in the keys that have no trace. Any thread may use it.

    `make` in what follows makes the trace of what was derived; the latest ones are kept, for keys that do come again.
    """

    def __init__(self, ended: Callable[[str], object]) -> None:
        """`ended` is told why a line does not hold."""
        self._ended = ended
        self._lines: list[Line[T]] = []  # the latest first
        self._latest: OrderedDict[Key, Trace] = OrderedDict()
        self._recent: OrderedDict[Hashable, deque[Point]] = OrderedDict()
        self._refused: OrderedDict[Hashable, _Refused] = OrderedDict()
        self._lock = threading.Lock()
        self._recording = threading.Lock()

    def find(self, key: Key, make: Callable[[Derived[T]], Trace]) -> Trace | None:
        """The trace that is derived for a key; None where its line does not go so far, or there is none."""
        with self._lock:
            kept = self._latest.get(key)
            if kept is not None:
                self._latest.move_to_end(key)
                return kept
        for line in self._lines:
            steps = line.keys.steps_to(key)
            if steps is not None and line.low <= steps <= line.high:
                try:
                    trace = make(line.derived(steps))
                except mx.MLXError:  # what is checked at both ends need not hold in between: it is traced instead
                    continue
                with self._lock:
                    self._latest[key] = trace
                    if len(self._latest) > MOST_DERIVED:
                        self._latest.popitem(last=False)
                return trace
        return None

    def missed(self, key: Key, record: Record[T], lock: Lock) -> bool:
        """Take note of a key that has no trace; whether it can be found now, because it was recorded that it is on a
        line. `lock` is held while evaluating."""
        for line in self._lines:
            steps = line.keys.steps_to(key)
            if steps is not None and line.reaches(steps):
                return self._extended(line, steps, record)
        common, point = point_of(key)
        with self._lock:
            direction = self._direction(common, point)
            if not direction or any(slope and size < 2 for slope, size in zip(direction, point, strict=True)):
                return False
            identity = common, direction, _foot(point, direction)
            refused = self._refused.get(identity)
            if refused and refused.left:
                refused.left -= 1
                return False
        if not self._recording.acquire(blocking=False):
            return False
        try:
            line = _recorded(key, point, direction, record, lock)
        except Exception as error:  # UnevenError, MLXError, or a handler's, for a shape that no run had
            self._ended(str(error) or type(error).__name__)
            wait = 4 * refused.wait if refused else 1
            with self._lock:
                self._refused[identity] = _Refused(wait, wait)
                if len(self._refused) > MOST_REFUSED:
                    self._refused.popitem(last=False)
            return False
        finally:
            self._recording.release()
        with self._lock:
            self._lines = [line, *self._lines][:MOST_LINES]
        self._extended(line, line.high + 1, record)
        return True

    def _extended(self, line: Line[T], steps: int, record: Record[T]) -> bool:
        """Check a line further along, towards a step; whether it is known to hold there."""
        target = line.target(steps)
        if target is not None and self._recording.acquire(blocking=False):
            try:
                line.check(target, record(line.keys.at(target)))
            except Exception as error:  # as above
                self._ended(str(error) or type(error).__name__)
                if target > steps or target > line.high:
                    line.ceiling = target
                else:
                    line.floor = target
            else:
                line.low, line.high = min(line.low, target), max(line.high, target)
            finally:
                self._recording.release()
        return line.low <= steps <= line.high

    def _direction(self, common: Hashable, point: Point) -> Point | None:
        """Where a line leads that goes through the point and others of late."""
        recent = self._recent.setdefault(common, deque(maxlen=MOST_RECENT))
        self._recent.move_to_end(common)
        if len(self._recent) > MOST_LINES:
            self._recent.popitem(last=False)
        if point in recent:
            return None
        directions = Counter(_direction(other, point) for other in recent)
        recent.append(point)
        direction, times = directions.most_common(1)[0] if directions else ((), 0)
        return direction if times >= ENOUGH else None


def _direction(a: Point, b: Point) -> Point:
    """The least step on the line through two points, upwards in its first size."""
    difference = [y - x for x, y in zip(a, b, strict=True)]
    step = math.gcd(*difference)
    if next(filter(None, difference)) < 0:
        step = -step
    return tuple(each // step for each in difference)


def _require_same(first: Recorded[T], other: Recorded[T]) -> None:
    if first.fixed != other.fixed or first.watched != other.watched:
        raise UnevenError("what is known on the host")


def _foot(point: Point, direction: Point) -> Point:
    """The point of a line that all its points lead to: where the first size that grows is least."""
    axis = next(i for i, slope in enumerate(direction) if slope)
    steps = point[axis] // direction[axis]
    return tuple(p - steps * d for p, d in zip(point, direction, strict=True))


def _recorded(key: Key, point: Point, direction: Point, record: Record[T], lock: Lock) -> Line[T]:
    """A line from two recordings; UnevenError or MLXError where they do not make one."""
    keys = Keys(key, direction)
    first, second = record(keys.at(0)), record(keys.at(1))
    _require_same(first, second)
    with lock:  # what does not depend on the inputs is evaluated now
        tapes = TapeLine((first.inputs, first.outputs), (second.inputs, second.outputs))
    sizes = list(zip(point, direction, strict=True))
    return Line(
        keys,
        tapes,
        replace(first, inputs=(), outputs=()),
        Growing.between(first.numbers, second.numbers),
        Growing.between(first.further, second.further),
        least=max(-((size - 2) // slope) for size, slope in sizes if slope > 0),
        most=min(((size - 2) // -slope for size, slope in sizes if slope < 0), default=math.inf),
    )
