"""Runs that are one launch on CUDA, where MLX would lay every operation out anew on the host."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import mlxc_py as mx
from mlxc_py import device_memory
from mlxc_py.cuda_graph import CudaGraph
from ort_ep.direct import Output
from ort_ep.streams import PooledStream, spent

# All graphs of the process hold at most this part of the memory that MLX may use.
SHARE_OF_MEMORY: Final = 1 / 8

_graphs: weakref.WeakSet[CudaGraph] = weakref.WeakSet()
_graphs_lock: Final = threading.Lock()


class DirectGraph:
    """A replay that is kept as one launch at its second run, when all that it compiles has been compiled.

    Where that fails, or the graph can't be run any more, it says so once and runs stay as they are.
    """

    __slots__ = ("_failed", "_forms", "_graph", "_inputs", "_lock", "_replay", "_stream")

    def __init__(
        self,
        replay: Callable[[Sequence[mx.Array]], list[mx.Array]],
        inputs: Sequence[mx.Array],
        forms: Sequence[tuple[tuple[int, ...], int]],
        stream: PooledStream,
        failed: Callable[[str], None],
    ) -> None:
        """`inputs`: arrays of the shapes and dtypes that it replays; `forms`: shape and bytes of each output."""
        self._replay: Callable[[Sequence[mx.Array]], list[mx.Array]] | None = replay
        self._inputs = [(array.shape, array.dtype) for array in inputs]
        self._forms = forms
        self._stream = stream
        self._failed = failed
        self._graph: CudaGraph | None = None
        self._lock = threading.Lock()

    def __call__(self, addresses: Sequence[int]) -> list[Output] | None:
        """A run on inputs at these host addresses; None: run it another way."""
        graph = self._graph or self._kept(addresses)
        if graph is None:
            return None
        try:
            arrays, nanoseconds = graph.run(addresses)
        except mx.MLXError as error:
            self._graph = None
            self._failed(f"as it was kept as a CUDA graph: {error}")
            return None
        spent.evaluating += nanoseconds
        return [
            (shape, partial(device_memory.copy_to, array), nbytes, array)
            for (shape, nbytes), array in zip(self._forms, arrays, strict=True)
        ]

    def _kept(self, addresses: Sequence[int]) -> CudaGraph | None:
        with self._lock:
            replay, self._replay = self._replay, None
            if replay is None:
                return self._graph
            try:
                with mx.stream(self._stream.stream), self._stream.lock, _graphs_lock:
                    inputs = [
                        device_memory.copy_to_device(address, shape, dtype)
                        for address, (shape, dtype) in zip(addresses, self._inputs, strict=True)
                    ]
                    left = int(mx.get_memory_limit() * SHARE_OF_MEMORY) - sum(graph.nbytes for graph in _graphs)
                    self._graph = CudaGraph(inputs, replay(inputs), max(left, 0))
                    _graphs.add(self._graph)
            except mx.MLXError as error:
                self._failed(f"without a CUDA graph of its own: {error}")
            return self._graph
