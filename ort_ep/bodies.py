"""Runs the bodies of control flow that can't be built into a trace: loops, and branches that stop to read data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

import numpy as np

import mlxc_py as mx
from ort_ep.plan import Body, BodyRunner, Plan, Slot, arrays
from ort_ep.streams import PooledStream

if TYPE_CHECKING:
    from ort_ep.engine import Engine


CALLS_PER_EVALUATION: Final = 16


class Bodies:
    """One engine per body, made when the body is first run; used from any thread."""

    def __init__(self, make: Callable[[Plan], Engine]) -> None:
        self._make = make
        self._engines: dict[Body, Engine] = {}
        self._lock = threading.Lock()

    def runner(self, stream: PooledStream) -> BodyRunner:
        """How the handlers of one run on `stream` call bodies."""
        calls = count(1)

        def run(body: Body, inputs: Sequence[Slot]) -> list[Slot]:
            given = list(inputs)
            _to_host(given, body.plan.host_inputs, stream)
            outputs = self._engine(body).run(given, stream, lazily=True)
            # an evaluation costs more than a small body, and what is never evaluated grows with every call
            if next(calls) % CALLS_PER_EVALUATION == 0 or any(
                isinstance(outputs[i], mx.Array) for i in body.host_results
            ):
                stream.evaluate(arrays(outputs))
            _to_host(outputs, body.host_results, stream)
            return outputs

        return run

    def _engine(self, body: Body) -> Engine:
        with self._lock:
            if body not in self._engines:
                self._engines[body] = self._make(body.plan)
            return self._engines[body]

    def close(self) -> None:
        with self._lock:
            while self._engines:
                self._engines.popitem()[1].close()


def _to_host(values: list[Slot], positions: Sequence[int] | frozenset[int], stream: PooledStream) -> None:
    waiting = [position for position in positions if isinstance(values[position], mx.Array)]
    stream.evaluate(values[position] for position in waiting)
    for position in waiting:
        values[position] = np.array(values[position])
