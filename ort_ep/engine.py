"""How a plan is executed. One interface, so that engines that trace and replay can stand beside the eager one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import mlxc_py as mx
from ort_ep import dtypes
from ort_ep.plan import Plan, Port, Slot
from ort_ep.streams import PooledStream

PLAN_CLOSED: Final = "this plan is closed: its session has been released"


class Engine(Protocol):
    """Runs one plan, from any thread, on the stream it is given."""

    def run(self, inputs: Sequence[Slot], stream: PooledStream) -> list[Slot]:
        """Evaluated outputs in order: row-contiguous Arrays of the exact dtype, or numpy arrays."""

    def close(self) -> None:
        """Drop what the engine keeps; no run is active and none follows."""


class EagerEngine:
    """Calls the handlers anew in every run: one evaluation at the end, and one before each host step."""

    def __init__(self, plan: Plan) -> None:
        self._plan: Plan | None = plan

    def run(self, inputs: Sequence[Slot], stream: PooledStream) -> list[Slot]:
        if self._plan is None:
            raise RuntimeError(PLAN_CLOSED)
        frame = self._plan.frame(inputs)
        for segment in self._plan.segments:
            if segment.sync:
                stream.evaluate(frame.values[i] for i in segment.sync if isinstance(frame.values[i], mx.Array))
                frame.sync(segment.sync)
            frame.execute(segment)
        outputs = [exact(frame.values[port.slot], port) for port in self._plan.outputs]
        stream.evaluate(value for value in outputs if isinstance(value, mx.Array))
        return outputs

    def close(self) -> None:
        self._plan = None


def exact(value: Slot, port: Port) -> Slot:
    """The value as ONNX declares it; numpy results already have their dtype."""
    if not isinstance(value, mx.Array):
        return value
    dtype = dtypes.to_mlx(port.elem_type)
    return mx.contiguous(value if value.dtype == dtype else value.astype(dtype))
