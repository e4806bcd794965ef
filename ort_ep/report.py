"""What a session's provider claimed, what it left to the CPU provider and why, and which runs failed."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from ctypes import addressof, c_int64
from dataclasses import dataclass, field

from ort_ep.graph import Graph, Node

MAX_FAILURES = 100


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node of the graph that ONNX Runtime offered. `reason` is empty for a node on MLX."""

    name: str
    op_type: str
    domain: str
    reason: str = ""
    parent: str = ""

    @property
    def on_mlx(self) -> bool:
        return not self.reason

    @property
    def operator(self) -> str:
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type

    def describe(self) -> str:
        """Operator and name, for messages."""
        place = f" in a body of {self.parent}" if self.parent else ""
        return f"{self.operator} {self.name!r}{place}" if self.name else f"{self.operator}{place}"


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """One fused subgraph. `host_steps`: how often a run of it stops to read data."""

    name: str
    nodes: int
    inputs: int
    outputs: int
    host_steps: int


@dataclass(slots=True)
class CompileReport:
    """How often plans were traced, traces given up for newer ones, traces derived from others, and why
    something runs uncompiled, or why series of shapes ended from which traces are derived (the latest reasons)."""

    traces: int = 0
    derivations: int = 0
    evictions: int = 0
    uncompiled: list[str] = field(default_factory=list)
    line_ends: deque[str] = field(default_factory=lambda: deque(maxlen=16))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def traced(self) -> None:
        with self._lock:
            self.traces += 1

    def derived(self) -> None:
        with self._lock:
            self.derivations += 1

    def evicted(self, traces: int) -> None:
        with self._lock:
            self.evictions += traces

    def line_ended(self, reason: str) -> None:
        with self._lock:
            self.line_ends.append(reason)

    def fell_back(self, message: str) -> bool:
        """Record why something runs uncompiled; whether the reason is new."""
        with self._lock:
            new = message not in self.uncompiled and len(self.uncompiled) < MAX_FAILURES
            if new:
                self.uncompiled.append(message)
            return new

    def __str__(self) -> str:
        return f"{self.traces} traces, {self.evictions} evicted, {self.derivations} derived"


class RunReport:
    """How often fused nodes ran, the nanoseconds inside them, and the part of those spent evaluating.

    Evaluating is scheduling on the device and waiting for it; the rest is inputs, replay and what Python does.
    """

    __slots__ = ("_lock", "_natively", "_ran")

    def __init__(self) -> None:
        self._ran = [0, 0, 0]
        self._natively = (c_int64 * 3)()  # the plugin adds what it ran without Python
        self._lock = threading.Lock()

    def ran(self, total_ns: int, evaluating_ns: int) -> None:
        with self._lock:
            for i, more in enumerate((1, total_ns, evaluating_ns)):
                self._ran[i] += more

    @property
    def address(self) -> int:
        """Where the plugin counts, as long as this object lives."""
        return addressof(self._natively)

    @property
    def count(self) -> int:
        return self._ran[0] + self._natively[0]

    @property
    def total_ns(self) -> int:
        return self._ran[1] + self._natively[1]

    @property
    def evaluating_ns(self) -> int:
        return self._ran[2] + self._natively[2]


def _placed(nodes: Iterable[Node], parent: str) -> list[tuple[str, str, str, str, str]]:
    """The fields of a NodeReport for the nodes and those in their bodies, all on MLX."""
    rows = []
    for node in nodes:
        rows.append((node.name, node.op_type, node.domain, "", parent))
        for body in node.bodies.values():
            rows += _placed(body.nodes, node.op_type)
    return rows


@dataclass(slots=True)
class ClaimReport:
    """Filled while the session is made and when runs fail; safe to read from any thread.

    Nodes are kept as JSON, one text for many: as objects they would be most of what a session keeps in Python.
    """

    clusters: list[ClusterReport] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    compile: CompileReport = field(default_factory=CompileReport)
    runs: RunReport = field(default_factory=RunReport)
    _mlx: list[str] = field(default_factory=list)
    _cpu: dict[tuple[str, ...], str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def nodes(self) -> list[NodeReport]:
        """Every node, those on MLX first."""
        with self._lock:
            texts = [*self._mlx, *self._cpu.values()]
        return [NodeReport(*row) for text in texts for row in json.loads(text)]

    @property
    def mlx_nodes(self) -> int:
        return sum(node.on_mlx for node in self.nodes)

    @property
    def cpu_nodes(self) -> int:
        return len(self.declined)

    @property
    def share(self) -> float:
        """Nodes on MLX as a part of all nodes; 1.0 for a session without nodes."""
        nodes = self.nodes
        return sum(node.on_mlx for node in nodes) / len(nodes) if nodes else 1.0

    @property
    def host_steps(self) -> int:
        """How often a run of the model stops to read data; 0 where no shape depends on data."""
        return sum(cluster.host_steps for cluster in self.clusters)

    @property
    def declined(self) -> list[NodeReport]:
        """The nodes that stay on the CPU provider."""
        return [node for node in self.nodes if not node.on_mlx]

    def reasons(self) -> Counter[tuple[str, str]]:
        """(operator, reason) of the nodes on CPU, counted."""
        return Counter((node.operator, node.reason) for node in self.declined)

    def offered(self, graph: Graph, declined: Iterable[tuple[Node, str]]) -> None:
        """Record the declined nodes of a graph; ORT offers one several times and the last answer counts."""
        # bodies of one name exist beside each other, so their outputs tell them apart
        key = (graph.parent_node or "", graph.name, *(value.name for value in graph.outputs))
        text = json.dumps([(n.name, n.op_type, n.domain, reason, graph.parent_node or "") for n, reason in declined])
        with self._lock:
            self._cpu[key] = text

    def compiled(self, cluster: ClusterReport, nodes: Sequence[Node], parent: str) -> None:
        """Record a fused subgraph."""
        text = json.dumps(_placed(nodes, parent))
        with self._lock:
            self.clusters.append(cluster)
            self._mlx.append(text)

    def failed(self, message: str) -> None:
        """Record a failure; the same one again, or more than MAX_FAILURES, add nothing."""
        with self._lock:
            if message not in self.failures and len(self.failures) < MAX_FAILURES:
                self.failures.append(message)

    def __str__(self) -> str:
        placed = f"{self.mlx_nodes} of {len(self.nodes)} nodes on MLX in {len(self.clusters)} subgraphs"
        lines = [f"{placed} with {self.host_steps} host steps, {self.cpu_nodes} on CPU"]
        lines += [f"  {count} x {op}: {reason}" for (op, reason), count in self.reasons().most_common()]
        lines += [f"  failed: {message}" for message in self.failures]
        lines += [f"  uncompiled: {message}" for message in self.compile.uncompiled]
        return "\n".join(lines)
