"""The traces of one stage of a plan: which are kept, and whether a new one is likely to pay."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from enum import Enum
from typing import Any, Final, Generic, TypeVar

# Traces that differ only in values read on the host: one for each way that a branch, a trip count or a shape may go.
MOST_VALUES: Final = 16
# Host values beyond this are data, not shapes: a trace that depends on them would serve one run only.
MAX_KEY_BYTES: Final = 16384
# Traces made ahead of replays.
CREDIT: Final = 4

T = TypeVar("T")
Key = tuple[tuple[Any, ...], tuple[bytes, ...]]
"""The stream, then dtype and shape of each value, or None where it is absent; contents of what handlers read on the
host, whose dtypes are numpy's characters."""


class Instead(Enum):
    """In place of a trace: the key can't be traced and runs eagerly."""

    EAGER = 0


class Traces(Generic[T]):
    """The latest `limit` shape keys, each with the latest MOST_VALUES traces by host values. Any thread may use it.

    A trace costs about one eager run more, and each replay saves one. So a key is traced at its first run as long as
    traces have paid, CREDIT of them ahead, and at its second run otherwise: where no shape comes back, and what lies
    between shapes can't be derived (lines.py), runs are eager after the first few.
    """

    def __init__(self, limit: int, *, patient: bool = False) -> None:
        """patient: no trace at a first run."""
        self._limit = limit
        self._most_credit = self._credit = 0 if patient else CREDIT
        self._kept: OrderedDict[Hashable, OrderedDict[Hashable, T | Instead]] = OrderedDict()
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: Key) -> T | Instead | None:
        """What there is for a key; a trace is found to be replayed."""
        shapes, values = key
        with self._lock:
            by_values = self._kept.get(shapes)
            found = None if by_values is None else by_values.get(values)
            if by_values is None or found is None:
                return None
            self._kept.move_to_end(shapes)
            by_values.move_to_end(values)
            if self._credit < self._most_credit and not isinstance(found, Instead):
                self._credit += 1
            return found

    def worthwhile(self, key: Key) -> bool:
        """Whether to trace a key that has no trace now, and not when it comes again."""
        with self._lock:
            if key in self._seen:
                del self._seen[key]
                return True
            if self._credit:
                self._credit -= 1
                return True
            self._seen[key] = None
            if len(self._seen) > self._limit:
                self._seen.popitem(last=False)
            return False

    def keep(self, key: Key, entry: T | Instead) -> int:
        """Note what there is for a key from now on; how many traces went for it."""
        shapes, values = key
        dropped: list[T | Instead] = []  # a run on another thread may be replaying them: they are never closed
        with self._lock:
            by_values = self._kept.setdefault(shapes, OrderedDict())
            self._kept.move_to_end(shapes)
            by_values[values] = entry
            if len(by_values) > MOST_VALUES:
                dropped.append(by_values.popitem(last=False)[1])
            if len(self._kept) > self._limit:
                dropped += self._kept.popitem(last=False)[1].values()
        return sum(not isinstance(old, Instead) for old in dropped)
