"""One Compute call of a fused node: host memory in, host memory out, and what a failure becomes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

import mlxc_py as mx
from mlxc_py import device_memory
from mlxc_py.guards import forked_after_use
from ort_ep import dtypes, kernel_cache
from ort_ep.direct import Input, Output
from ort_ep.engine import Engine
from ort_ep.graph import decode, view_bytes
from ort_ep.plan import Plan, Port, Slot
from ort_ep.report import RunReport
from ort_ep.streams import PooledStream, StreamPool, spent

FAIL: Final = 1
# ONNX Runtime's Python answers this status by rebuilding the session on the CPU provider and running it again.
EP_FAIL: Final = 11


class ComputeError(RuntimeError):
    """A run failed; `ort_status_code` tells the plugin which OrtStatus to answer with."""

    def __init__(self, message: str, ort_status_code: int) -> None:
        super().__init__(message)
        self.ort_status_code = ort_status_code


class Compute:
    """The callable behind one fused node; any number of threads may call it at once."""

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        streams: StreamPool,
        *,
        fall_back: bool,
        failed: Callable[[str, bool], None],
        warn: Callable[[str], None] | None = None,
        report: RunReport | None = None,
    ) -> None:
        """`fall_back`: answer failures with EP_FAIL. `failed` gets each message, and whether it is the first; `warn`
        what the first run is doing, where that takes long."""
        self._plan = plan
        self._engine = engine
        self._streams = streams
        self._fall_back = fall_back
        self._failed = failed
        self._warn = warn
        self._report = report or RunReport()
        self._reported = False
        self._lock = threading.Lock()

    def __call__(self, inputs: Sequence[Input]) -> list[Output]:
        if forked_after_use():
            # MLX's threads do not survive a fork and its first evaluation would hang for ever
            raise ComputeError("MLX cannot run in a forked child process; start it with 'spawn'", FAIL)
        try:
            return self._run(inputs)
        except ComputeError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _run(self, inputs: Sequence[Input]) -> list[Output]:
        if len(inputs) != len(self._plan.inputs):
            raise ValueError(f"{len(inputs)} inputs were given, {self._plan.name} has {len(self._plan.inputs)}")
        began, evaluating = time.perf_counter_ns(), spent.evaluating
        stream = self._streams.take()
        try:
            if self._warn is None:
                delivered = self._deliver(inputs, stream)
            else:
                with kernel_cache.announced(self._warn):
                    delivered = self._deliver(inputs, stream)
                self._warn = None
        finally:
            self._streams.give(stream)
        self._report.ran(time.perf_counter_ns() - began, spent.evaluating - evaluating)
        return delivered

    def _deliver(self, inputs: Sequence[Input], stream: PooledStream) -> list[Output]:
        return self._engine.direct(inputs, stream) or self._through_arrays(inputs, stream)

    def _through_arrays(self, inputs: Sequence[Input], stream: PooledStream) -> list[Output]:
        ports = zip(self._plan.inputs, inputs, strict=True)
        on_device = stream.on_gpu and device_memory.supported()
        # the memory is ONNX Runtime's and stays as long as `inputs` does: until this returns
        wrap = device_memory.copy_to_device if on_device else partial(mx.Array.from_address, owner=inputs)
        with mx.stream(stream.stream):
            slots = [_wrapped(port, item, i in self._plan.host_inputs, wrap) for i, (port, item) in enumerate(ports)]
            results = self._engine.run(slots, stream)
        return [_delivered(port, value) for port, value in zip(self._plan.outputs, results, strict=True)]

    def _failure(self, error: Exception) -> ComputeError:
        message = f"{self._plan.name}: {error}" if str(error) else f"{self._plan.name}: {type(error).__name__}"
        with self._lock:
            first, self._reported = not self._reported, True
        self._failed(message, first)
        return ComputeError(message, EP_FAIL if self._fall_back else FAIL)

    @property
    def counters(self) -> int:
        """The address of the plugin's counters of runs."""
        return self._report.address

    def close(self) -> None:
        self._engine.close()


def _wrapped(
    port: Port, item: Input, on_host: bool, wrap: Callable[[int, tuple[int, ...], mx.Dtype], mx.Array]
) -> Slot:
    if item is None:
        return None
    address, elem_type, shape = item
    row = dtypes.ELEM_TYPES.get(elem_type)
    if elem_type != port.elem_type or row is None:
        raise TypeError(f"input {port.name} is {dtypes.name_of(elem_type)}, not {dtypes.name_of(port.elem_type)}")
    if not on_host and row.mlx:
        return wrap(address, shape, dtypes.to_mlx(elem_type))
    return host_view(address, elem_type, shape)


def host_view(address: int, elem_type: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Host memory as a read-only array, valid as long as the memory is."""
    nbytes = dtypes.ELEM_TYPES[elem_type].nbytes(math.prod(shape))
    if not nbytes:
        return np.zeros(shape, dtypes.numpy_dtype(elem_type))
    return decode(elem_type, shape, view_bytes(address, nbytes))


def _delivered(port: Port, value: Slot) -> Output:
    shares_bytes = dtypes.ELEM_TYPES[port.elem_type].bits < 8
    if isinstance(value, np.ndarray) or shares_bytes:
        content = dtypes.packed(port.elem_type, np.asarray(value))
        return tuple(value.shape), content.__array_interface__["data"][0], content.nbytes, content
    if device_memory.supported():
        return value.shape, partial(device_memory.copy_to, value), value.nbytes, value
    return value.shape, value.address, value.nbytes, value
