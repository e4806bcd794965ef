"""Runs that are one launch: what is kept and when, with a stand-in for the graph itself (tests/runtime has that)."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

import mlxc_py as mx
from ort_ep import captured
from ort_ep.streams import PooledStream, spent

NANOSECONDS = 7000


class Graph:
    """Keeps nothing: evaluates the graph anew over what the addresses hold."""

    made: ClassVar[list[int]] = []
    broken = False
    nbytes = 1000

    def __init__(self, inputs: Sequence[mx.Array], outputs: Sequence[mx.Array], most_bytes: int) -> None:
        if most_bytes < self.nbytes:
            raise mx.MLXError("more memory than is left")
        Graph.made.append(most_bytes)
        self._inputs, self._outputs = inputs, outputs

    def run(self, addresses: Sequence[int]) -> tuple[list[mx.Array], int]:
        if Graph.broken:
            raise mx.MLXError("memory of the graph was moved to the host")
        mx.eval(*self._outputs)
        return list(self._outputs), NANOSECONDS


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_to_device(address: int, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.Array:
        return mx.Array.from_address(address, shape, dtype)

    monkeypatch.setattr(captured, "CudaGraph", Graph)
    monkeypatch.setattr(captured.device_memory, "copy_to_device", copy_to_device)
    monkeypatch.setattr(Graph, "made", [])
    monkeypatch.setattr(Graph, "broken", False)


@pytest.fixture
def stream() -> PooledStream:
    return PooledStream(mx.new_thread_unsafe_stream(mx.cpu))


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def direct(stream: PooledStream, said: list[str], replay: Any = None) -> captured.DirectGraph:
    build = replay or (lambda inputs: [inputs[0] + 1, mx.sum(inputs[0])])
    return captured.DirectGraph(build, [mx.array(X)], [((2, 3), 24), ((), 4)], stream, said.append)


def test_a_graph_is_kept_once_and_outputs_are_copied_from_it(stream: PooledStream, monkeypatch: Any) -> None:
    copied: list[tuple[mx.Array, int]] = []
    monkeypatch.setattr(captured.device_memory, "copy_to", lambda array, address: copied.append((array, address)))
    said: list[str] = []
    run, before = direct(stream, said), spent.evaluating
    for _ in range(3):
        found = run([X.ctypes.data])
        assert found is not None
        assert [(shape, nbytes) for shape, _, nbytes, _ in found] == [((2, 3), 24), ((), 4)]
    assert len(Graph.made) == 1 and not said and spent.evaluating == before + 3 * NANOSECONDS
    _, copy, _, owner = found[0]
    assert callable(copy)
    copy(4096)
    (array, address) = copied.pop()
    assert address == 4096 and array is owner
    np.testing.assert_array_equal(np.array(array), X + 1)


def test_what_cannot_be_kept_is_said_once_and_runs_another_way(stream: PooledStream) -> None:
    def replay(inputs: Sequence[mx.Array]) -> list[mx.Array]:
        raise mx.MLXError("no room")

    said: list[str] = []
    run = direct(stream, said, replay)
    assert run([X.ctypes.data]) is None and run([X.ctypes.data]) is None
    assert said == ["without a CUDA graph of its own: no room"]
    assert not stream.lock.locked()


def test_a_graph_that_fails_is_let_go_of(stream: PooledStream) -> None:
    said: list[str] = []
    run = direct(stream, said)
    assert run([X.ctypes.data]) is not None
    Graph.broken = True
    assert run([X.ctypes.data]) is None
    Graph.broken = False
    assert run([X.ctypes.data]) is None and len(Graph.made) == 1
    assert said == ["as it was kept as a CUDA graph: memory of the graph was moved to the host"]


def test_all_graphs_share_one_budget(stream: PooledStream, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    monkeypatch.setattr(mx, "get_memory_limit", lambda: 8 * 2500)
    said: list[str] = []
    first, second, third = (direct(stream, said) for _ in range(3))
    assert first([X.ctypes.data]) and second([X.ctypes.data])
    assert Graph.made == [2500, 1500]
    assert third([X.ctypes.data]) is None
    assert said == ["without a CUDA graph of its own: more memory than is left"]
    del first
    gc.collect()
    assert direct(stream, said)([X.ctypes.data])
    assert Graph.made == [2500, 1500, 1500]
