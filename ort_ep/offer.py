"""The graph that ONNX Runtime offered last, with the decisions on it: what is compiled are parts of it.

Each document of a part repeats nodes and values that are known; new in it are the order of its inputs and outputs, and
where constants lie in memory now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ort_ep.capability import Translation, Verdict
from ort_ep.graph import Flags, Graph, Node, Value

_LASTING = Flags.CONSTANT | Flags.OUTER  # the other flags tell what a value is to the graph that it is looked at from


class Offer:
    """A graph, its memory forgotten, and how each of its nodes translates."""

    def __init__(self, graph: Graph, verdicts: Iterable[Verdict]) -> None:
        graph.forget_memory()
        self._graph = graph
        self._calls = {id(verdict.node): verdict.calls for verdict in verdicts}
        self._values = {value.name: value for value in graph.values}
        self._nodes = {_first(node.outputs): node for node in graph.nodes}

    def part(self, data: Mapping[str, Any]) -> tuple[Graph, list[Translation]] | None:
        """The graph of a document that a callback delivered, and its calls; None where other nodes are in it."""
        values = _known(map(self._values.get, (row[0] for row in data["values"])), data["values"])
        if values is None:
            return None
        nodes: list[Node] = []
        calls: list[Translation] = []
        for row in data["nodes"]:
            node = self._nodes.get(_first([values[i] for i in row[6] if i >= 0]))
            if node is None or node.op_type != row[2] or not self._calls[id(node)] or not _bodies_known(node, row):
                return None
            nodes.append(node)
            calls += self._calls[id(node)]
        graph = replace(
            self._graph,
            inputs=[values[i] for i in data["inputs"]],
            outputs=[values[i] for i in data["outputs"]],
            values=values,
            nodes=nodes,
        )
        return graph, calls


def _first(outputs: Iterable[Value | None]) -> str | None:
    for value in outputs:
        if value is not None:
            return value.name
    return None


def _known(values: Iterable[Value | None], rows: Sequence[Sequence[Any]]) -> list[Value] | None:
    """The values, their constants where the rows say that they lie now; None where one is not what a row describes."""
    found = []
    for value, row in zip(values, rows, strict=False):
        if value is None or value.name != row[0] or (value.flags ^ row[2]) & _LASTING:
            return None
        initializer = row[3] if len(row) > 3 else None
        if (value.initializer is None) != (initializer is None):
            return None
        if value.initializer is not None and initializer is not None:
            value.initializer.address = initializer[0]
        found.append(value)
    return found


def _bodies_known(node: Node, row: Sequence[Any]) -> bool:
    """The same for the bodies of a node, whose documents are the same each time."""
    for name, data in row[9]:
        body = node.bodies.get(name)
        if body is None or len(body.values) != len(data["values"]) or len(body.nodes) != len(data["nodes"]):
            return False
        if _known(body.values, data["values"]) is None:
            return False
        if not all(_bodies_known(*pair) for pair in zip(body.nodes, data["nodes"], strict=True)):
            return False
    return len(node.bodies) == len(row[9])
