"""How a plan is executed. One interface, so that engines that trace and replay can stand beside the eager one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import mlxc_py as mx
from ort_ep import dtypes
from ort_ep.bodies import Bodies
from ort_ep.direct import Input, Output
from ort_ep.plan import Plan, Port, Slot, arrays
from ort_ep.streams import PooledStream

PLAN_CLOSED: Final = "this plan is closed: its session has been released"


class Engine(Protocol):
    """Runs one plan, from any thread, on the stream it is given."""

    def run(self, inputs: Sequence[Slot], stream: PooledStream, *, lazily: bool = False) -> list[Slot]:
        """Outputs in order, evaluated unless `lazily`: row-contiguous Arrays of the exact dtype, or numpy arrays."""

    def direct(self, inputs: Sequence[Input], stream: PooledStream) -> list[Output] | None:
        """A run from host memory to host memory, where one call can do it; None: make Arrays and call `run`."""

    def close(self) -> None:
        """Drop what the engine keeps; no run is active and none follows."""


class EagerEngine:
    """Calls the handlers anew in every run: one evaluation at the end, and one before each host step."""

    def __init__(self, plan: Plan) -> None:
        self._plan: Plan | None = plan
        self._bodies = Bodies(EagerEngine)

    def run(self, inputs: Sequence[Slot], stream: PooledStream, *, lazily: bool = False) -> list[Slot]:
        if self._plan is None:
            raise RuntimeError(PLAN_CLOSED)
        frame = self._plan.frame(inputs)
        for segment in self._plan.segments:
            if segment.sync:
                stream.evaluate(frame.values[i] for i in segment.sync if isinstance(frame.values[i], mx.Array))
                frame.sync(segment.sync)
            frame.execute(segment, self._bodies.runner(stream))
        outputs = [exact(frame.values[port.slot], port) for port in self._plan.outputs]
        if not lazily:
            stream.evaluate(arrays(outputs))
        return outputs

    def direct(self, inputs: Sequence[Input], stream: PooledStream) -> list[Output] | None:
        return None

    def close(self) -> None:
        self._plan = None
        self._bodies.close()


def exact(value: Slot, port: Port) -> Slot:
    """The value as ONNX declares it; numpy results already have their dtype."""
    if not isinstance(value, mx.Array) or not port.elem_type:  # what an optional holds has no declared type
        return value
    dtype = dtypes.device_dtype(port.elem_type)
    return mx.contiguous(value if value.dtype == dtype else value.astype(dtype))
