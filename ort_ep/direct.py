"""Runs from host memory to host memory in one call of a tape: no array is made in Python but the results."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from ctypes import string_at
from dataclasses import dataclass
from math import prod
from typing import Final

import mlxc_py as mx
from mlxc_py.tape import Tape
from ort_ep import dtypes
from ort_ep.plan import Plan, Port
from ort_ep.streams import spent
from ort_ep.traces import MAX_KEY_BYTES, Key

Input = tuple[int, int, tuple[int, ...]] | None
"""Address, element type, shape; None where it is absent."""
Output = tuple[tuple[int, ...], int | Callable[[int], None], int, object]
"""Shape, where the bytes are (an address, or a function that copies them to one), their number, and what keeps them."""


# In the place of an element type: nothing depends on the input; it has to be absent.
_UNREAD: Final = -1
_ABSENT: Final = 0


class Delivered(list[Output]):
    """The outputs of a run. `replay`: what the plugin needs to run the like of it without Python; None: ask again."""

    __slots__ = ("replay",)

    def __init__(self, outputs: Iterable[Output]) -> None:
        super().__init__(outputs)
        self.replay: PluginReplay | None = None


PluginReplay = tuple[bytes, Tape]
"""64-bit words that native/plugin/replay.c reads, and the tape that they have the address of."""


@dataclass(slots=True)
class DirectTape:
    """A tape with the shapes and sizes of its outputs."""

    tape: Tape
    outputs: tuple[tuple[tuple[int, ...], int], ...]
    _runs: int = 0
    _replay: PluginReplay | None = None

    def __call__(self, addresses: Sequence[int]) -> Delivered:
        arrays, results, nanoseconds = self.tape.run(addresses)
        spent.evaluating += nanoseconds
        self._runs += 1
        return Delivered(
            (shape, address, nbytes, array)
            for (shape, nbytes), address, array in zip(self.outputs, results, arrays, strict=True)
        )

    def replay(self, reader: DirectInputs, inputs: Sequence[Input]) -> PluginReplay | None:
        """For inputs like these, which the tape was found for; None before its second run: most shapes never return."""
        if self._replay is None and self._runs > 1:
            words = [*self.tape.native_run(), len(inputs), len(self.outputs), *reader.words(inputs)]
            for shape, nbytes in self.outputs:
                words += (nbytes, len(shape), *shape)
            self._replay = array("q", words).tobytes(), self.tape
        return self._replay


@dataclass(slots=True)
class Read:
    """A value that a trace depends on, and in which forms it uses it; in none where only its shape counts."""

    slot: int
    device: bool = False
    host: bool = False


@dataclass(frozen=True, slots=True)
class _Argument:
    """An input of the plan that a trace depends on. `form`: how its type is told in a key."""

    position: int
    elem_type: int
    form: mx.Dtype | str
    itemsize: int
    read: Read


class DirectInputs:
    """Reads the key of a trace, and the addresses for its tape, off a run's inputs."""

    __slots__ = ("_arguments",)

    def __init__(self, plan: Plan, reads: Sequence[Read]) -> None:
        """`reads`: what the plan's inputs are used for, in their order."""
        ports = {port.slot: (position, port.elem_type) for position, port in enumerate(plan.inputs)}
        self._arguments = []
        for read in reads:
            position, elem_type = ports[read.slot]
            dtype = dtypes.to_mlx(elem_type)
            form = dtypes.numpy_dtype(elem_type).char if read.host else dtype
            self._arguments.append(_Argument(position, elem_type, form, dtype.size, read))

    def read(self, inputs: Sequence[Input], place: int) -> tuple[Key, list[int]] | None:
        """The key at a place (Recorder.place), and the addresses; None where an input has another type than declared,
        or values are too long for a key."""
        forms: list[Hashable] = [place]
        values: list[bytes] = []
        addresses, room = [], MAX_KEY_BYTES
        for argument in self._arguments:
            given = inputs[argument.position]
            if given is None:
                forms.append(None)
                continue
            address, elem_type, shape = given
            if elem_type != argument.elem_type:
                return None
            forms.append((argument.form, shape))
            if argument.read.host:
                nbytes = argument.itemsize * prod(shape)
                room -= nbytes
                if room < 0:
                    return None
                values.append(string_at(address, nbytes))
            if argument.read.device:
                addresses.append(address)
        return (tuple(forms), tuple(values)), addresses

    def words(self, inputs: Sequence[Input]) -> list[int]:
        """What has to be the same of each input, and which ones the tape gets, as replay.c reads it."""
        arguments = {argument.position: argument for argument in self._arguments}
        words: list[int] = []
        for position, given in enumerate(inputs):
            argument = arguments.get(position)
            if argument is None:
                words.append(_UNREAD)
            elif given is None:
                words.append(_ABSENT)
            else:
                address, elem_type, shape = given
                value = string_at(address, argument.itemsize * prod(shape)) if argument.read.host else b""
                words += (elem_type, argument.read.device, len(shape), *shape, len(value))
                words += array("q", value + bytes(-len(value) % 8))
        return words


def passes(port: Port) -> bool:
    """Whether the tensor's bytes are an MLX array's, and not bit patterns that share bytes or need a type MLX lacks."""
    row = dtypes.ELEM_TYPES.get(port.elem_type)
    return row is not None and row.mlx is not None
