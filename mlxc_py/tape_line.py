"""Tapes for the sizes along a line: of a graph whose shapes grow by the same amount with each step."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any, NamedTuple

from mlxc_py._sys.load import library
from mlxc_py.arrays import Array
from mlxc_py.guards import check_fork
from mlxc_py.owner import Owner
from mlxc_py.state import local
from mlxc_py.tape import Tape, handles

Recording = tuple[Sequence[Array], Sequence[Array]]
"""Inputs (placeholders), and outputs computed from them."""


class TapeLine(Owner):
    """What two recordings, a step apart, say of all sizes on the line through them. Steps are counted from the first.

    MLXError where something does not grow evenly: another operation, a size that is no multiple of the step, a constant
    that is not made of positions. As for a tape, hold the stream's lock while recording. Tapes made from it outlive it.
    """

    __slots__ = ("_counts",)
    free = "mlxc_py_tape_line_free"

    def __init__(self, first: Recording, second: Recording) -> None:
        check_fork()
        self._counts = len(first[0]), len(first[1])
        if self._counts != (len(second[0]), len(second[1])):
            raise ValueError("two recordings of one graph have as many inputs and outputs")
        made = c_size_t()
        given = handles(first[0]), handles(second[0]), self._counts[0]
        wanted = handles(first[1]), handles(second[1]), self._counts[1]
        if _calls().new(addressof(made), *given, *wanted):
            raise local.here.failure("TapeLine")
        super().__init__(made.value)

    def check(self, steps: int, recording: Recording) -> None:
        """MLXError where a recording at another step is not what the line says; it says what differs."""
        inputs, outputs = recording
        given, wanted = handles(inputs), handles(outputs)
        if _calls().check(self.live, steps, given, len(inputs), wanted, len(outputs)):
            raise local.here.failure("TapeLine.check")

    def at(self, steps: int) -> Tape:
        """The tape at a step between those that were checked."""
        made = c_size_t()
        if _calls().at(addressof(made), self.live, steps):
            raise local.here.failure("TapeLine.at")
        return Tape.taking(made.value, *self._counts)


class _Calls(NamedTuple):
    new: Any
    check: Any
    at: Any


@cache
def _calls() -> _Calls:
    function, pointer, size = library().typed, c_void_p, c_size_t
    return _Calls(
        function("mlxc_py_tape_line_new", c_int, pointer, pointer, pointer, size, pointer, pointer, size),
        function("mlxc_py_tape_line_check", c_int, pointer, c_int64, pointer, size, pointer, size),
        function("mlxc_py_tape_line_at", c_int, pointer, pointer, c_int64),
    )
