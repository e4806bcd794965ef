"""Runs from host memory to host memory in one call of a tape: no array is made in Python but the results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import mlxc_py as mx
from mlxc_py.interop import can_borrow
from mlxc_py.tape import Tape
from ort_ep import dtypes
from ort_ep.plan import Plan, Port
from ort_ep.streams import spent

Input = tuple[int, int, tuple[int, ...]] | None
"""Address, element type, shape; None where it is absent."""
Output = tuple[tuple[int, ...], int | Callable[[int], None], int, object]
"""Shape, where the bytes are (an address, or a function that copies them to one), their number, and what keeps them."""


@dataclass(frozen=True, slots=True)
class DirectTape:
    """A tape with the shapes and sizes of its outputs."""

    tape: Tape
    outputs: tuple[tuple[tuple[int, ...], int], ...]

    def __call__(self, addresses: Sequence[int]) -> list[Output]:
        arrays, results, nanoseconds = self.tape.run(addresses)
        spent.evaluating += nanoseconds
        return [
            (shape, address, nbytes, array)
            for (shape, nbytes), address, array in zip(self.outputs, results, arrays, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Argument:
    """An input of the plan that a trace depends on; `read`: its data, too, not its shape alone."""

    position: int
    elem_type: int
    dtype: mx.Dtype
    read: bool


class DirectInputs:
    """Reads the key of a trace, and the addresses for its tape, off a run's inputs."""

    __slots__ = ("_arguments",)

    def __init__(self, plan: Plan, reads: Sequence[tuple[int, bool]]) -> None:
        """`reads`: the slots that a trace depends on and whether it reads their data, in the order of its key."""
        ports = {port.slot: (position, port) for position, port in enumerate(plan.inputs)}
        self._arguments = [
            _Argument(position, port.elem_type, dtypes.to_mlx(port.elem_type), read)
            for (position, port), read in ((ports[slot], read) for slot, read in reads)
        ]

    def read(self, inputs: Sequence[Input], stream: int) -> tuple[Hashable, list[int]] | None:
        """The key on a stream of that index, and the addresses; None where an input has another type than declared, or
        lies where it has to be copied."""
        key: list[Hashable] = [stream]
        addresses = []
        for argument in self._arguments:
            given = inputs[argument.position]
            if given is None:
                key.append(None)
                continue
            address, elem_type, shape = given
            if elem_type != argument.elem_type:
                return None
            key.append((argument.dtype, shape))
            if argument.read:
                if address and not can_borrow(address):
                    return None
                addresses.append(address)
        return tuple(key), addresses


def passes(port: Port) -> bool:
    """Whether the tensor's bytes are an MLX array's, and not bit patterns that share bytes or need a type MLX lacks."""
    row = dtypes.ELEM_TYPES.get(port.elem_type)
    return row is not None and row.mlx is not None
