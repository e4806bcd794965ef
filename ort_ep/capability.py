"""Which nodes of a graph MLX can take, and the reason for every one it can't."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ort_ep import dtypes
from ort_ep.graph import Flags, Graph, Node, Value
from ort_ep.registry import REGISTRY, Handler, Registry

# Bodies may call functions in turn; ONNX forbids recursion, a broken model may still hold it.
MAX_DEPTH = 16
# The inputs of a fused node include what the bodies in it capture from this minor version of ONNX Runtime on.
HANDS_OVER_CAPTURES = 27


@dataclass(slots=True, eq=False)
class Translation:
    """One handler call: what a claimed node becomes (several where the node is a function).

    `bodies` are the calls of the node's bodies, by attribute.
    """

    node: Node
    handler: Handler
    bodies: Mapping[str, tuple[Translation, ...]] = field(default_factory=dict)

    def is_ours(self, *names: str) -> bool:
        """Whether the handler is our own for one of these operators of ONNX; a user's override stays what it is."""
        return self.handler.domain == "" and self.handler.name in names and not self.handler.override


@dataclass(slots=True, eq=False)
class Verdict:
    """The decision on one node: the calls that translate it, or the reason it stays on the CPU provider."""

    node: Node
    calls: tuple[Translation, ...] = ()
    reason: str = ""

    @property
    def claimed(self) -> bool:
        return not self.reason


@dataclass(slots=True)
class Analyzer:
    """Decides nodes of one graph. `device` is "cpu" or "gpu": MLX's GPU back ends have no float64."""

    graph: Graph
    registry: Registry = REGISTRY
    device: str = "cpu"
    _found: dict[tuple[str, str, int], Handler | None] = field(default_factory=dict)
    _fitting: set[Hashable] = field(default_factory=set)
    _has_containers: bool = False

    def __post_init__(self) -> None:
        self.registry.load()
        self._has_containers = any(value.is_container for value in self.graph.values)

    def verdicts(self) -> list[Verdict]:
        """One verdict per node, in order."""
        return [self.verdict(node) for node in self.graph.nodes]

    def verdict(self, node: Node) -> Verdict:
        try:
            answer = self._translate(node, 0)
            if not isinstance(answer, str):
                boundary = _boundary_reason(node) if self._has_containers else None
                answer = boundary or _content_reason(node) or answer
        except Exception as error:  # a predicate's bug, or a function that onnx can't build, costs one node
            answer = f"deciding on it failed: {type(error).__name__}: {error}"
        return Verdict(node, reason=answer) if isinstance(answer, str) else Verdict(node, tuple(answer))

    def _translate(self, node: Node, depth: int) -> list[Translation] | str:
        handler = self._handler(node)
        if handler is not None:
            return self._reason(node, handler) or self._with_bodies(node, handler, depth)
        missing = self._missing(node)
        if node.bodies or depth >= MAX_DEPTH:
            return missing
        from ort_ep import functions  # pulls in onnx, which a graph of known operators does not need

        body = functions.expand(node, self.graph.functions)
        if body is None:
            return missing
        return self._translate_all(body, "function body", depth + 1)

    def _handler(self, node: Node) -> Handler | None:
        operator = (node.domain, node.op_type, node.since_version)
        if operator not in self._found:
            self._found[operator] = self.registry.lookup(*operator)
        return self._found[operator]

    def _with_bodies(self, node: Node, handler: Handler, depth: int) -> list[Translation] | str:
        if not node.bodies:
            return [Translation(node, handler)]
        if not depth and 0 < self.graph.ort_version < HANDS_OVER_CAPTURES and _captures_more_than_inputs(node):
            return f"before 1.{HANDS_OVER_CAPTURES} ONNX Runtime does not hand over what bodies capture"
        bodies = {}
        for name, body in node.bodies.items():
            calls = self._translate_all(body.nodes, name, depth + 1)
            if isinstance(calls, str):
                return calls
            bodies[name] = tuple(calls)
        return [Translation(node, handler, bodies)]

    def _translate_all(self, nodes: Sequence[Node], place: str, depth: int) -> list[Translation] | str:
        calls: list[Translation] = []
        refused = ""
        for node in nodes:
            answer = self._translate(node, depth)
            if not isinstance(answer, str):
                calls += answer
            elif not refused or not node.is_fused:  # what is fused by now was not the reason
                refused = f"{place}: {node.op_type}: {answer}"
                if not node.is_fused:
                    break
        return refused or calls

    def _missing(self, node: Node) -> str:
        versions = self.registry.versions(node.domain, node.op_type)
        if versions:
            return f"no handler for version {node.since_version} (oldest: {versions[0]})"
        return "no handler and no function body that can be translated"

    def _reason(self, node: Node, handler: Handler) -> str | None:
        return self._form_reason(node, handler) or (handler.claim(node) if handler.claim else None)

    def _form_reason(self, node: Node, handler: Handler) -> str | None:
        """What attributes, arity and types rule out; nodes that are alike in these share an answer without a reason."""
        types = tuple([value and (value.kind, value.elem_type) for value in (*node.inputs, None, *node.outputs)])
        names = (*node.attributes, None, *node.bodies)
        form = (handler, node.op_type, node.since_version, node.domain, types, names, node.unreadable)
        if form in self._fitting:
            return None
        reason = _attribute_reason(node, handler) or _arity_reason(node, handler) or self._type_reason(node, handler)
        if reason is None and (handler.any_attribute or node.attributes.keys() <= handler.attributes):
            self._fitting.add(form)  # with other attributes it takes their values to tell
        return reason

    def _type_reason(self, node: Node, handler: Handler) -> str | None:
        for index, value in enumerate(node.inputs):
            if value is not None:
                what = f"input {handler.parameter(index)}"
                reason = self._value_reason(value, handler.takes(index), what, handler)
                if reason:
                    return reason
        for index, value in enumerate(node.outputs):
            if value is not None:
                reason = self._value_reason(value, handler.returns, f"output {index}", handler)
                if reason:
                    return reason
        return None

    def _value_reason(self, value: Value, allowed: frozenset[str] | None, what: str, handler: Handler) -> str | None:
        if handler.containers and value.is_container:
            return None
        if value.kind != "tensor":
            return f"{what} is of {value.kind} type"
        if value.elem_type is None:
            return f"{what} has no known element type"
        name = dtypes.name_of(value.elem_type)
        row = dtypes.ELEM_TYPES.get(value.elem_type)
        if allowed is not None and name not in allowed:
            return f"{what} is {name}; the handler takes {', '.join(sorted(allowed))}"
        if allowed is None and (row is None or row.mlx is None):
            return f"{what} is {name}, which MLX does not have"
        if name == "float64" and self.device == "gpu":
            return f"{what} is float64, which MLX has on the CPU device only"
        return None


def _captures_more_than_inputs(node: Node) -> bool:
    given = {value.name for value in node.inputs if value is not None}
    captured = {value.name for body in node.bodies.values() for value in body.outer() if not value.constant}
    return not captured <= given


def _boundary_reason(node: Node) -> str | None:
    """Sequences and optionals live inside a subgraph; what passes its boundary is tensors."""
    outside = Flags.REQUIRED_INPUT | Flags.OPTIONAL_INPUT | Flags.OUTPUT | Flags.OUTER
    for value in (*node.reads, *node.outputs):
        if value is not None and value.is_container and value.flags & outside:
            return f"the {value.kind} {value.name!r} comes from or goes to outside the graph"
    return None


def _content_reason(node: Node) -> str | None:
    """ORT leaves constants out of what it hands over at run time, so we need to have them: its own error is clearer."""
    for value in (*node.inputs, *node.captured.values()) if node.captured else node.inputs:
        if value is not None and value.flags & Flags.CONSTANT and value.initializer is None:
            return f"the constant {value.name!r} can't be read"
    return None


def _attribute_reason(node: Node, handler: Handler) -> str | None:
    # the declared type of a sequence or optional says nothing that its values don't
    unreadable = node.unreadable - {"type"} if handler.containers else node.unreadable
    if unreadable:
        return f"attribute {min(unreadable)} can't be read"
    if not handler.any_attribute and not node.attributes.keys() <= handler.attributes:
        for name in node.attributes.keys() - handler.attributes:
            if name in handler.parameters:
                return f"attribute {name}: the handler takes it as an input; it must be keyword-only, behind a *"
            if not _is_default(node, name):
                return f"attribute {name}={node.attributes[name]!r} is not supported"
    if missing := handler.required_attributes - node.attributes.keys() - node.bodies.keys():
        return f"attribute {min(missing)} is missing"
    return None


def _is_default(node: Node, name: str) -> bool:
    """ORT writes every schema default into a node; one that the handler does not know changes nothing."""
    import onnx

    try:
        declared = onnx.defs.get_schema(node.op_type, node.since_version, node.domain).attributes.get(name)
    except onnx.defs.SchemaError:
        return False
    if declared is None or not declared.default_value.type:
        return False
    default = onnx.helper.get_attribute_value(declared.default_value)
    given = node.attributes[name]
    if isinstance(default, float):  # both are float32, one of them printed in decimal
        return isinstance(given, float) and np.float32(given) == np.float32(default)
    if isinstance(default, bytes):
        default = default.decode()
    return bool(given == (tuple(default) if isinstance(default, list) else default))


def _arity_reason(node: Node, handler: Handler) -> str | None:
    if handler.variadic is None and len(node.inputs) > len(handler.parameters):
        return f"{len(node.inputs)} inputs; the handler takes {len(handler.parameters)}"
    for index in range(handler.required):
        if node.input(index) is None and not (index < len(node.inputs) and index in handler.nullable):
            return f"input {handler.parameters[index]} is absent"
    return None
