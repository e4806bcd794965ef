"""The Python half of one session's execution provider: what the plugin library asks of it, in ORT's order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mlxc_py as mx
from mlxc_py import tf32
from mlxc_py.guards import forked_after_use
from ort_ep import (
    compiled,
    folding,
    fusion,
    kernel_cache,
    memory,
    partition,
    planner,
    quantized,
    shared_initializers,
    streams,
)
from ort_ep import graph as graphs
from ort_ep import options as option_table
from ort_ep.capability import Analyzer, Translation, Verdict
from ort_ep.direct import Input, Output
from ort_ep.engine import Engine
from ort_ep.graph import Graph, Node
from ort_ep.logger import Logger, Severity
from ort_ep.offer import Offer
from ort_ep.options import OptionError, Options
from ort_ep.plan import Plan, Port, Slot
from ort_ep.registry import REGISTRY, Registry
from ort_ep.report import ClaimReport, ClusterReport
from ort_ep.runtime import Compute
from ort_ep.shared_initializers import NO_SHARED_INITIALIZERS, NO_SHARED_QUANT_VIEWS, switched_off
from ort_ep.streams import PooledStream

KNOWN_DOMAINS = ("ai.onnx", "com.microsoft", "com.ms.", "org.pytorch.")


class StrictError(RuntimeError):
    """`strict` was asked for and nodes would stay on the CPU provider."""

    ort_status_code = 1


class Provider:
    """Claims, compiles and runs for one session.

    ORT swallows an error of CreateEp into a silent CPU session, so one found here waits: the first graph gets one node
    claimed, and compiling it raises.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        logger: int = 0,
        *,
        registry: Registry = REGISTRY,
    ) -> None:
        self.report = ClaimReport()
        self._logger = Logger(logger)
        self._registry = registry
        self._computes: list[Compute] = []
        self._offer: Offer | None = None
        self._whole: set[bytes] = set()  # nodes that are claimed with their bodies, which ORT offers one by one
        self._weight_bytes = 0
        self._error: Exception | None = None
        self._options = Options()
        self._device = "cpu"
        self._parent = ""
        try:
            self._options = option_table.parse(options)
            self._device = _device(self._options.device, option_table.source("device", options))
            if self._device == "gpu":
                kernel_cache.keep()
                self._settle_tf32()
        except OptionError as error:
            self._error = _without_frames(error)

    def _settle_tf32(self) -> None:
        wanted = self._options.tf32
        if wanted != "auto" and tf32.choose(wanted == "on") != (wanted == "on"):
            self._warn(
                f"tf32={wanted} comes too late: MLX decided otherwise at its first product in this process; set"
                f" {tf32.VARIABLE}={int(wanted == 'on')} before the process starts"
            )

    # ------------------------------------------------------------ claim
    def get_capability(self, document: bytes) -> list[list[int]]:
        """Positions of the nodes to fuse, by cluster. Idempotent: ORT asks again after each of its own rewrites."""
        try:
            with memory.collections_paused():
                return self._claim(document)
        except Exception as error:
            # ORT would swallow this into a silent CPU session
            if self._options.strict or self._options.on_compute_error == "raise":
                self._error = _without_frames(error)
                return [[0]]
            message = f"claiming failed, nodes stay on the CPU provider: {type(error).__name__}: {error}"
            self._failed(message, first=message not in self.report.failures)
            return []

    def _claim(self, document: bytes) -> list[list[int]]:
        around = _parent_text(document)
        if around in self._whole:
            return []
        data = json.loads(document)
        # ORT compiles what a graph gave before it offers the next graph
        self._parent, self._offer = data.get("parent_node") or "", None
        if self._error is not None:
            return [[0]] if data["nodes"] else []
        parent = graphs.parent(data)
        if parent is not None and _takes_bodies(parent.nodes[0], self._analyzer(parent)):
            self.report.offered(graphs.header(data), [])
            self._whole.add(around)
            return []
        return self._claim_nodes(graphs.read(data))

    def _claim_nodes(self, graph: Graph) -> list[list[int]]:
        verdicts = self._analyzer(graph).verdicts()
        clusters, given_up = partition.settled(graph, [verdict.claimed for verdict in verdicts])
        for position, reason in given_up.items():
            verdicts[position] = Verdict(graph.nodes[position], reason=reason)
        if self._options.partition == "cost":
            clusters, verdicts = _without_unpaid(clusters, verdicts)
        declined = [(v.node, v.reason) for v in verdicts if v.reason and not v.node.is_fused]
        self.report.offered(graph, declined)
        final = [(node, reason) for node, reason in declined if not _is_model_function(node)]
        if final and self._options.strict and not graph.parent_node:
            self._error = StrictError(_strict_text(final))
            return [[0]]
        self._log_declined(declined)
        self._offer = Offer(graph, verdicts) if clusters else None
        return clusters

    def _analyzer(self, graph: Graph) -> Analyzer:
        return Analyzer(graph, self._registry, self._device)

    def _log_declined(self, declined: Sequence[tuple[Node, str]]) -> None:
        severity = Severity.WARNING if self._options.verbose else Severity.VERBOSE
        for node, reason in declined:
            self._logger.write(severity, f"{node.title} stays on CPU: {reason}")

    # ------------------------------------------------------------ compile
    def compile(self, documents: Sequence[bytes], names: Sequence[str]) -> list[Compute]:
        """One callable per fused graph, in order."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        offer, self._offer = self._offer, None
        self._whole.clear()
        with memory.collections_paused():
            return [self._compile(json.loads(text), name, offer) for text, name in zip(documents, names, strict=True)]

    def _compile(self, document: Mapping[str, Any], name: str, offer: Offer | None) -> Compute:
        known = offer.part(document) if offer else None
        graph, calls = known or (graphs.read(document), None)
        graph.name = name
        try:
            self._weight_bytes += graph.weight_bytes
            built = self._plan(graph, self._translated(graph) if calls is None else calls)
            engine: Engine = compiled.engine(built, self._options, self._device, self.report.compile, self._warn)
            graph.forget_memory()
        except Exception as error:
            if self._options.on_compute_error == "raise":
                raise
            self._failed(f"{name} can't be compiled, its runs go to the CPU provider: {error}", True)
            built, engine = _unusable(graph), _Unusable(error)
        self.report.compiled(
            ClusterReport(name, len(graph.nodes), len(built.inputs), len(built.outputs), built.host_steps),
            graph.nodes,
            self._parent,
        )
        compute = Compute(
            built,
            engine,
            streams.pool(self._device),
            fall_back=self._options.on_compute_error == "cpu",
            failed=self._failed,
            warn=self._warn if self._device == "gpu" else None,
            report=self.report.runs,
        )
        self._computes.append(compute)
        return compute

    def _translated(self, graph: Graph) -> list[Translation]:
        verdicts = self._analyzer(graph).verdicts()
        refused = next((verdict for verdict in verdicts if verdict.reason), None)
        if refused is not None:
            raise RuntimeError(f"{refused.node.title} was claimed and can't be translated: {refused.reason}")
        return [call for verdict in verdicts for call in verdict.calls]

    def _plan(self, graph: Graph, calls: Sequence[Translation]) -> Plan:
        with streams.pool(self._device).lease(), switched_off(*self._sharing_switched_off()):
            calls = folding.folded(graph, calls)
            if self._device == "gpu" and self._options.fuse != "off":
                calls = fusion.fused(graph, calls)
            if self._device == "cpu" and quantized.pays():
                calls = quantized.multiplied(graph, calls)
            return planner.build(graph, calls)

    def _sharing_switched_off(self) -> Iterator[str]:
        if self._options.no_shared_initializers:
            yield NO_SHARED_INITIALIZERS
        if self._options.no_shared_quant_views:
            yield NO_SHARED_QUANT_VIEWS

    # ------------------------------------------------------------ run and end
    def _failed(self, message: str, first: bool) -> None:
        self.report.failed(message)
        if first:
            self._logger.write(Severity.ERROR, message)

    def _warn(self, message: str) -> None:
        self._logger.write(Severity.WARNING, message)

    def session_ready(self) -> None:
        """ORT (1.27 and newer) has dropped its own copies of the weights."""
        self._give_back_memory()

    def close(self) -> None:
        """ORT has let go of the session: free what its plans hold."""
        while self._computes:
            self._computes.pop().close()
        shared_initializers.purge()
        self._give_back_memory()

    def _give_back_memory(self) -> None:
        if forked_after_use():
            return  # MLX would wait for threads that the child has not got
        mx.clear_cache()  # MLX keeps freed weights for its next arrays
        if self._weight_bytes >= memory.WORTH_GIVING_BACK:
            memory.give_back()


def _without_frames(error: Exception) -> Exception:
    """The error for keeping: its tracebacks would hold the frames that make the session, and so the session itself."""
    chain: BaseException | None = error
    while chain is not None:
        chain.__traceback__ = None
        chain = chain.__cause__ or chain.__context__
    return error


class _Unusable:
    """The engine of a subgraph that could not be compiled: every run fails with the reason."""

    def __init__(self, error: Exception) -> None:
        self._error = _without_frames(error)

    def run(self, inputs: Sequence[Slot], stream: PooledStream, *, lazily: bool = False) -> list[Slot]:
        raise RuntimeError(f"this subgraph could not be compiled: {self._error}") from self._error

    def direct(self, inputs: Sequence[Input], stream: PooledStream) -> list[Output] | None:
        return None

    def close(self) -> None:
        pass


def _unusable(graph: Graph) -> Plan:
    inputs = [value for value in graph.inputs if not value.constant]
    ports = tuple(Port(i, value.name, value.elem_type or 0) for i, value in enumerate(inputs))
    return Plan(graph.name, ports, (), (), [None] * len(ports), {}, frozenset(), len(graph.nodes))


def _device(option: str, source: str) -> str:
    gpu = mx.default_device().type == mx.gpu if option == "auto" else mx.is_available(mx.gpu)
    if option == "gpu" and not gpu:
        raise OptionError(f"{source} is 'gpu', but this MLX has no GPU back end that works here")
    return "gpu" if gpu and option != "cpu" else "cpu"


def _without_unpaid(clusters: list[list[int]], verdicts: list[Verdict]) -> tuple[list[list[int]], list[Verdict]]:
    kept = []
    for cluster in clusters:
        reason = partition.cost_reason(verdicts[position].node for position in cluster)
        if reason is None:
            kept.append(cluster)
        else:
            for position in cluster:
                verdicts[position] = Verdict(verdicts[position].node, reason=reason)
    return kept, verdicts


def _takes_bodies(parent: Node, analyzer: Analyzer) -> bool:
    """Whether nothing of its bodies may be claimed by itself: fused nodes would take the whole parent away from us.

    ORT replaces a SequenceMap that nobody claims by its function and offers that; it can't do so around fused nodes.
    """
    return parent.op_type == "SequenceMap" or analyzer.verdict(parent).claimed


def _parent_text(document: bytes) -> bytes:
    """The part of a body's document that describes its parent, without the addresses of what ORT copies anew."""
    text = document.partition(b',"parent":')[2]
    return _ATTRIBUTE_ADDRESS.sub(b"", _INITIALIZER_ADDRESS.sub(b"", text))


_INITIALIZER_ADDRESS = re.compile(rb"\[\d{9,}(?=,\d+,\d+,\[)")
_ATTRIBUTE_ADDRESS = re.compile(rb"\],\d{9,}(?=,\d+\]\])")


def _is_model_function(node: Node) -> bool:
    """Whether ORT will inline the node and ask again; no other node has a domain that nobody defines."""
    return not node.domain.startswith(KNOWN_DOMAINS) and node.domain != ""


def _strict_text(declined: Sequence[tuple[Node, str]]) -> str:
    shown = "; ".join(f"{node.title}: {reason}" for node, reason in declined[:5])
    more = f"; and {len(declined) - 5} more" if len(declined) > 5 else ""
    return f"strict: {len(declined)} nodes would run on the CPU provider: {shown}{more}"
