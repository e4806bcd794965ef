"""Claimed nodes grouped into clusters: convex, as few as the graph allows, with an acyclic quotient, in linear time.

A topological order is cut into alternating phases: first every node of the CPU side that is ready, then every claimed
node that is ready, until neither is. A cluster is one claimed phase. It is convex because it is an interval of a
topological order with nothing else in it, and no two can be merged: a node waits for a later phase only where an
unclaimed node between depends on the earlier one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from ort_ep.graph import Graph, Node, Value

# One run of a cluster costs a thread round trip and two boundary copies; below this the CPU provider is done earlier.
BREAK_EVEN_US = 100.0
FLOPS_PER_US = 50_000.0
ELEMENTS_PER_US = 1_000.0


def predecessors(nodes: Sequence[Node]) -> list[list[int]]:
    """For each node the positions it depends on, also through what its bodies capture; duplicates kept."""
    producer = {id(value): i for i, node in enumerate(nodes) for value in node.outputs if value is not None}
    return [[producer[id(v)] for v in node.reads if id(v) in producer] for node in nodes]


def clusters(graph: Graph, claimed: Sequence[bool]) -> list[list[int]]:
    """Positions of the claimed nodes, grouped; each group in topological order, groups in execution order."""
    if claimed and all(claimed):
        return [list(range(len(claimed)))]
    return phases(predecessors(graph.nodes), claimed)


def settled(graph: Graph, claimed: Sequence[bool]) -> tuple[list[list[int]], dict[int, str]]:
    """Clusters between which only tensors pass, and the reason for every node that had to be given up for that."""
    tied = _tied(graph.nodes) if any(value.is_container for value in graph.values) else []
    kept = list(claimed)
    reasons: dict[int, str] = {}
    while True:
        groups = clusters(graph, kept)
        home = {position: number for number, group in enumerate(groups) for position in group}
        split = [positions for positions in tied if len({home.get(position) for position in positions}) > 1]
        given_up = {position for positions in split for position in positions if kept[position]}
        if not given_up:
            return groups, reasons
        for position in given_up:
            kept[position] = False
            reasons[position] = "a sequence or optional would pass between it and a node outside its subgraph"


def _tied(nodes: Sequence[Node]) -> list[list[int]]:
    """Positions of the nodes that sequences and optionals connect, however indirectly: all in one cluster, or none."""
    root = list(range(len(nodes)))

    def find(position: int) -> int:
        while root[position] != position:
            root[position] = root[root[position]]
            position = root[position]
        return position

    first: dict[int, int] = {}
    touched = set()
    for position, node in enumerate(nodes):
        for value in (*node.reads, *node.outputs):
            if value is not None and value.is_container:
                touched.add(position)
                root[find(position)] = find(first.setdefault(id(value), position))
    tied: dict[int, list[int]] = {}
    for position in sorted(touched):
        tied.setdefault(find(position), []).append(position)
    return list(tied.values())


def phases(before: Sequence[Sequence[int]], claimed: Sequence[bool]) -> list[list[int]]:
    """The partition itself, on bare dependency lists."""
    waiting = [len(positions) for positions in before]
    after: list[list[int]] = [[] for _ in before]
    for position, needed in enumerate(before):
        for other in needed:
            after[other].append(position)
    ready: dict[bool, deque[int]] = {False: deque(), True: deque()}
    for position, count in enumerate(waiting):
        if not count:
            ready[bool(claimed[position])].append(position)
    groups: list[list[int]] = []

    def drain(side: bool) -> list[int]:
        done = []
        queue = ready[side]
        while queue:
            position = queue.popleft()
            done.append(position)
            for other in after[position]:
                waiting[other] -= 1
                if not waiting[other]:
                    ready[bool(claimed[other])].append(other)
        return done

    while ready[False] or ready[True]:
        drain(False)
        group = drain(True)
        if group:
            groups.append(sorted(group))  # the graph's own order is topological and frees values sooner
    return groups


def cost_reason(nodes: Iterable[Node]) -> str | None:
    """Why a cluster does not pay, None where it does or where its shapes leave that open."""
    total = 0.0
    for node in nodes:
        cost = microseconds(node)
        if cost is None:
            return None
        total += cost
        if total >= BREAK_EVEN_US:
            return None
    return f"cost: about {total:.0f} us of work is less than the {BREAK_EVEN_US:.0f} us a run on MLX costs"


def microseconds(node: Node) -> float | None:
    """A node's rough time on one CPU core, None where a shape is not known or bodies run who knows how often."""
    if node.bodies:
        return None
    sizes = [_size(value) for value in (*node.inputs, *node.outputs) if value is not None]
    if None in sizes:
        return None
    produced = sum(_size(value) or 0 for value in node.outputs if value is not None)
    time = sum(size or 0 for size in sizes) / ELEMENTS_PER_US
    weight = node.input(1)
    if node.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose") and weight is not None and weight.shape:
        inner = node.inputs[0].shape[-1] if node.inputs[0] is not None and node.inputs[0].shape else 1
        per_output = math.prod(weight.shape[1:]) if "Conv" in node.op_type else inner  # type: ignore[arg-type]
        time += 2.0 * produced * int(per_output or 1) / FLOPS_PER_US
    return time


def _size(value: Value) -> int | None:
    if value.shape is None or not all(isinstance(dim, int) for dim in value.shape):
        return None
    return math.prod(value.shape)  # type: ignore[arg-type]
