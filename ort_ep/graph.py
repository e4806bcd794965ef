"""Snapshot of a graph: nodes, values, initializers, nested bodies. Later stages touch only this, never ORT's objects.

Addresses in it are ORT's memory and hold only during the callback that delivered the graph: see `Initializer.view`.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ort_ep import dtypes
from ort_ep.addresses import readable

Dim = int | str | None


class Flags:
    """What a value is to its graph (contract of the plugin's graph document). Plain numbers: an IntFlag's are slow."""

    REQUIRED_INPUT: Final = 1
    OPTIONAL_INPUT: Final = 2
    OUTPUT: Final = 4
    CONSTANT: Final = 8
    OUTER: Final = 16


@dataclass(slots=True, eq=False)
class Initializer:
    """A tensor stored with the model, either in ORT's memory (`address`) or owned here (`array`)."""

    elem_type: int
    shape: tuple[int, ...]
    nbytes: int
    address: int = 0
    array: np.ndarray[Any, Any] | None = None
    external: tuple[str, int, int] | None = None

    def view(self) -> np.ndarray[Any, Any]:
        """The content as a read-only array; over ORT's memory it is valid only during the current callback."""
        if self.array is not None:
            return self.array
        address, _ = self.place()
        if not self.nbytes:
            return np.zeros(self.shape, dtypes.numpy_dtype(self.elem_type))
        return decode(self.elem_type, self.shape, view_bytes(address, self.nbytes))

    def place(self) -> tuple[int, object]:
        """The address of the bytes, and what keeps them there; ORT's memory stays during the current callback."""
        if self.array is not None:
            content = np.ascontiguousarray(self.array)
            return content.__array_interface__["data"][0], content
        if self.address < 0:
            raise RuntimeError("an initializer's content can be read only while its graph is claimed or compiled")
        return self.address, self

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(slots=True, eq=False)
class Value:
    """An edge of the graph. `elem_type` and `shape` are None where unknown; a dim is an int, a symbol or None."""

    index: int
    name: str
    kind: str = "unknown"
    elem_type: int | None = None
    shape: tuple[Dim, ...] | None = None
    flags: int = 0
    initializer: Initializer | None = None

    @property
    def constant(self) -> Initializer | None:
        """The initializer, where no caller can replace it."""
        return self.initializer if self.flags & Flags.CONSTANT else None

    @property
    def is_container(self) -> bool:
        """Whether it is a sequence or an optional: a Python list or None while a plan runs."""
        return self.kind in ("sequence", "optional")

    @property
    def dtype(self) -> str:
        """The dtype's name, or a word for why there is none."""
        if self.kind != "tensor":
            return self.kind
        return "unknown" if self.elem_type is None else dtypes.name_of(self.elem_type)

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    def __str__(self) -> str:
        dims = "?" if self.shape is None else ",".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.name}: {self.dtype}[{dims}]"


@dataclass(slots=True, eq=False)
class Node:
    """One operator call. Absent optional inputs and outputs are None; attributes are Python and numpy values."""

    position: int
    name: str
    op_type: str
    domain: str
    since_version: int
    opset: int
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    attributes: dict[str, Any]
    unreadable: frozenset[str] = frozenset()
    captured: Mapping[str, Value] = field(default_factory=dict)
    bodies: dict[str, Graph] = field(default_factory=dict)
    id: int = -1

    @property
    def implicit(self) -> tuple[Value, ...]:
        """The values that the bodies capture; `captured` has them by the names that the bodies use."""
        return tuple(self.captured.values())

    @property
    def is_fused(self) -> bool:
        """Whether a provider has made it out of others: ORT names the op type after the provider, whoever it is."""
        return "ExecutionProvider_" in self.op_type

    @property
    def reads(self) -> Iterator[Value]:
        """Every value that the node depends on."""
        return (value for value in (*self.inputs, *self.captured.values()) if value is not None)

    def input(self, index: int) -> Value | None:
        """Input `index`, None where it is absent or not listed."""
        return self.inputs[index] if index < len(self.inputs) else None

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """The value of a constant input (valid during the current callback), None where it is not constant."""
        value = self.input(index)
        return value.constant.view() if value is not None and value.constant is not None else None

    @property
    def n_outputs(self) -> int:
        """How many outputs the handler must return: up to the last one that is used."""
        count = len(self.outputs)
        while count and self.outputs[count - 1] is None:
            count -= 1
        return count

    @property
    def title(self) -> str:
        """Op type and name, for messages."""
        prefix = f"{self.domain}::" if self.domain else ""
        return f"{prefix}{self.op_type} {self.name!r}" if self.name else f"{prefix}{self.op_type}"


@dataclass(slots=True, eq=False)
class Graph:
    """Nodes in topological order and the values between them. `functions` are the model's own (serialised protos).

    `ort_version` is the minor version of the API that ORT offers the graph through, 0 for a graph from elsewhere.
    """

    name: str
    opsets: dict[str, int]
    inputs: list[Value]
    outputs: list[Value]
    values: list[Value]
    nodes: list[Node]
    model_path: str = ""
    ir_version: int = 0
    ort_version: int = 0
    parent_node: str | None = None
    functions: dict[tuple[str, str], Any] = field(default_factory=dict)

    def forget_memory(self) -> None:
        """The callback that delivered the graph ends: ORT's memory may go, and reading it becomes an error."""
        for value in self.values:
            if value.initializer is not None and value.initializer.array is None:
                value.initializer.address = -1
        for node in self.nodes:
            for body in node.bodies.values():
                body.forget_memory()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the constants of this graph and of the bodies in it, those of outer graphs not counted again."""
        own = (value.constant for value in self.values if not value.flags & Flags.OUTER)
        bodies = (body for node in self.nodes for body in node.bodies.values())
        return sum(item.nbytes for item in own if item is not None) + sum(body.weight_bytes for body in bodies)

    def outer(self) -> Iterator[Value]:
        """Values that come from an enclosing graph."""
        return (value for value in self.values if value.flags & Flags.OUTER)


def view_bytes(address: int, nbytes: int) -> np.ndarray[Any, Any]:
    """Memory that somebody else owns as a uint8 array."""
    return np.frombuffer(readable(address, nbytes), np.uint8)


def decode(elem_type: int, shape: Sequence[int], raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """ONNX tensor bytes (uint8) as a read-only array; sub-byte types are unpacked, the others stay a view."""
    row = dtypes.ELEM_TYPES[elem_type]
    numpy_dtype = dtypes.numpy_dtype(elem_type)
    if row.bits >= 8:
        array = raw.view(numpy_dtype).reshape(tuple(shape))
    else:
        count = math.prod(shape)
        bits = np.unpackbits(raw, count=count * row.bits, bitorder="little").reshape(count, row.bits)
        codes = bits @ (1 << np.arange(row.bits, dtype=np.uint8))  # the first element sits in the low bits
        array = dtypes.of_codes(row, codes).reshape(tuple(shape))
    array.setflags(write=False)
    return array


def parse(document: bytes) -> Graph:
    """The plugin's graph document as a Graph."""
    return read(json.loads(document))


def read(data: Mapping[str, Any]) -> Graph:
    """A graph document that is parsed as JSON."""
    return _graph(data, {})


def parent(data: Mapping[str, Any]) -> Graph | None:
    """The node whose body a document is about, alone in a graph; None where ORT offers no body.

    ORT does not say there which of the node's inputs are constant.
    """
    return _graph({**data, "inputs": (), "outputs": (), **data["parent"]}, {}) if "parent" in data else None


def header(data: Mapping[str, Any]) -> Graph:
    """A document's graph without nodes: what it is called by."""
    outputs = [Value(index, data["values"][index][0]) for index in data["outputs"]]
    return Graph(data["name"], {}, [], outputs, [], [], parent_node=data.get("parent_node"))


def _graph(data: Mapping[str, Any], outer_opsets: Mapping[str, int]) -> Graph:
    values = [_value(index, row) for index, row in enumerate(data["values"])]
    opsets = {("" if domain == "ai.onnx" else domain): version for domain, version in data["opsets"].items()}
    opsets = opsets or dict(outer_opsets)
    nodes = [_node(position, row, values, opsets) for position, row in enumerate(data["nodes"])]
    return Graph(
        name=data["name"],
        opsets=opsets,
        inputs=[values[index] for index in data["inputs"]],
        outputs=[values[index] for index in data["outputs"]],
        values=values,
        nodes=nodes,
        model_path=data.get("model_path") or "",
        ir_version=data.get("ir_version") or 0,
        ort_version=data.get("ort") or 0,
        parent_node=data.get("parent_node"),
    )


# ORT's ONNXType, by its numbers
_KINDS: Mapping[Any, str] = {2: "sequence", 3: "map", 4: "opaque", 5: "sparse_tensor", 6: "optional"}


def _value(index: int, row: Sequence[Any]) -> Value:
    name, described, flags = row[:3]
    tensor = row[3] if len(row) > 3 else None
    kind, elem_type, shape = "unknown", None, None
    if isinstance(described, dict):
        kind = _KINDS.get(described["kind"], str(described["kind"]))
    elif described is not None:
        kind, elem_type = "tensor", described[0] or None
        shape = None if described[1] is None else tuple(described[1])
    initializer = None
    if tensor:
        address, nbytes, stored, dims = tensor
        external = tuple(row[4]) if len(row) > 4 and row[4] else None
        initializer = Initializer(stored, tuple(dims), nbytes, address, None, external)
    return Value(index, name, kind, elem_type, shape, flags, initializer)


def _node(position: int, row: Sequence[Any], values: Sequence[Value], opsets: Mapping[str, int]) -> Node:
    identity, name, op_type, domain, since_version, inputs, outputs, attributes, implicit, bodies = row
    domain = "" if domain == "ai.onnx" else domain
    node = Node(
        position,
        name,
        op_type,
        domain,
        since_version,
        opsets.get(domain, since_version),
        _trimmed(values, inputs),
        _trimmed(values, outputs),
        {},
        id=identity,
    )
    if attributes:
        node.attributes, node.unreadable = _attributes(attributes, {body[0] for body in bodies})
    if implicit:
        node.captured = {values[index].name: values[index] for index in implicit}
    if bodies:
        node.bodies = {attribute: _graph(body, opsets) for attribute, body in bodies}
    return node


def _attributes(rows: Sequence[Sequence[Any]], bodies: set[str]) -> tuple[dict[str, Any], frozenset[str]]:
    """The values of a node's attributes but its bodies, and the names of those that can't be read."""
    decoded: dict[str, Any] = {}
    unreadable = set()
    for attribute, kind, content in rows:
        if attribute in bodies:
            continue
        try:
            decoded[attribute] = _ATTRIBUTE_KINDS[kind](content)
        except (KeyError, TypeError):
            unreadable.add(attribute)
    return decoded, frozenset(unreadable)


def _trimmed(values: Sequence[Value], indices: Sequence[int]) -> tuple[Value | None, ...]:
    if -1 not in indices:
        return tuple([values[index] for index in indices])
    found: list[Value | None] = [values[index] if index >= 0 else None for index in indices]
    while found and found[-1] is None:
        found.pop()
    return tuple(found)


def _tensor_attribute(content: Sequence[Any]) -> np.ndarray[Any, Any]:
    elem_type, dims, address, nbytes = content
    if not nbytes:
        return np.zeros(tuple(dims), dtypes.numpy_dtype(elem_type))
    return decode(elem_type, dims, np.frombuffer(ctypes.string_at(address, nbytes), np.uint8).copy())


_ATTRIBUTE_KINDS: Mapping[str, Any] = {
    "i": int,
    "f": float,  # non-finite values come as the strings "nan", "inf", "-inf"
    "s": str,
    "b": bytes.fromhex,
    "I": tuple,
    "F": lambda items: tuple(map(float, items)),
    "S": tuple,
    "t": _tensor_attribute,
}
