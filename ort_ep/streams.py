"""The process-wide pool of MLX streams that plans run on.

MLX ties a stream's command encoder to one thread unless the stream is made "thread unsafe"; such a stream may be used
from any thread as long as scheduling on it is serialised. So the lock belongs to the stream, never to a plan, and is
held only while work is scheduled. A stream per thread, plan or session would leave one OS thread each behind.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import mlxc_py as mx
from mlxc_py import tape

MAX_CPU_STREAMS: Final = 4
Lock = AbstractContextManager[Any]


class _Spent(threading.local):
    """In an array: a number made while a session lives would hold on to an arena of Python's after it."""

    def __init__(self) -> None:
        self._nanoseconds = array("q", [0])

    @property
    def evaluating(self) -> int:
        return self._nanoseconds[0]

    @evaluating.setter
    def evaluating(self, nanoseconds: int) -> None:
        self._nanoseconds[0] = nanoseconds


spent: Final = _Spent()
"""Nanoseconds that this thread has spent evaluating, ever."""


@dataclass(slots=True, eq=False)
class PooledStream:
    """One stream and the lock to schedule under. `users` counts the runs on it now."""

    stream: mx.Stream
    lock: Lock = field(default_factory=threading.Lock)
    users: int = 0

    @property
    def on_gpu(self) -> bool:
        return bool(self.stream.device.type == mx.gpu)

    def evaluate(self, arrays: Iterable[mx.Array]) -> None:
        """Schedule under the lock, wait outside it."""
        pending = list(arrays)
        if pending:
            began = time.perf_counter_ns()
            try:
                with self.lock:
                    mx.async_eval(*pending)
                mx.eval(*pending)
            except mx.MLXError:
                raise
            except BaseException:  # Ctrl-C: what is under way reads memory that the caller of the run may free
                with suppress(mx.MLXError):
                    mx.eval(*pending)
                raise
            spent.evaluating += time.perf_counter_ns() - began


def _scheduling(device: Any) -> Lock:
    """A stream's lock; on the CPU the libmlxc of this package has its own."""
    return nullcontext() if device == mx.cpu and tape.supported() else threading.Lock()


class StreamPool:
    """Streams of one device, made on demand up to `limit`; beyond it runs share the least used one."""

    def __init__(self, device: Any, limit: int) -> None:
        self._device = device
        self._limit = limit
        self._streams: list[PooledStream] = []
        self._lock = threading.Lock()

    @contextmanager
    def lease(self) -> Iterator[PooledStream]:
        """A stream for one run; operators built inside on this thread go to it."""
        pooled, before = self.take(), getattr(_here, "leased", None)
        _here.leased = pooled
        try:
            with mx.stream(pooled.stream):
                yield pooled
        finally:
            _here.leased = before
            self.give(pooled)

    def take(self) -> PooledStream:
        """A stream for one run, which ends with `give`."""
        with self._lock:
            for pooled in self._streams:
                if not pooled.users:
                    break
            else:
                if len(self._streams) < self._limit:
                    pooled = PooledStream(mx.new_thread_unsafe_stream(self._device), _scheduling(self._device))
                    self._streams.append(pooled)
                else:
                    pooled = min(self._streams, key=lambda busy: busy.users)
            pooled.users += 1
            return pooled

    def give(self, pooled: PooledStream) -> None:
        """The end of a run on a stream."""
        with self._lock:
            pooled.users -= 1


_here = threading.local()  # `leased`: the stream of this thread's innermost lease


def evaluate(arrays: Iterable[mx.Array]) -> None:
    """Evaluate what is computed once, as the stream that this thread has leased does; without one, as mx.eval.

    On the CPU this thread computes: ONNX Runtime's threads, which look for work while a session is made, would let
    another one wait for milliseconds.
    """
    pooled: PooledStream | None = getattr(_here, "leased", None)
    if pooled is None:
        mx.eval(*arrays)
    elif pooled.on_gpu or not tape.on_calling_thread():
        pooled.evaluate(arrays)
    else:
        tape.evaluate([*arrays])


_beside_gpu: mx.Stream | None = None
_pools: dict[str, StreamPool] = {}
_pools_lock = threading.Lock()


def pool(device: str) -> StreamPool:
    """The process's pool for "cpu" or "gpu"."""
    with _pools_lock:
        found = _pools.get(device)
        if found is None:
            # one stream keeps one core busy; a GPU gains nothing from several
            limit = min(os.cpu_count() or 1, MAX_CPU_STREAMS) if device == "cpu" else 1
            found = _pools[device] = StreamPool(mx.cpu if device == "cpu" else mx.gpu, limit)
        return found


def cpu_stream() -> mx.Stream:
    """Where to build what GPUs lack: on the CPU the current stream, beside a GPU one CPU stream for all its plans.

    The lock of the GPU's only stream keeps two threads from scheduling on that one at once.
    """
    global _beside_gpu
    current = mx.current_stream()
    if current.device.type == mx.cpu:
        return current
    with _pools_lock:
        if _beside_gpu is None:
            _beside_gpu = mx.new_thread_unsafe_stream(mx.cpu)
        return _beside_gpu
