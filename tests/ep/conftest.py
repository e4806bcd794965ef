"""Small graphs, a registry of toy handlers, and the plugin's side of the contract played by numpy."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import mlxc_py as mx
from ort_ep import capability, dtypes, engine, plan, planner, proto, runtime, streams
from ort_ep.graph import Flags, Graph, Value
from ort_ep.registry import ANY, NUMERIC, REGISTRY, Registry

Arrays = Mapping[str, np.ndarray[Any, Any]]


def parse_text(text: str) -> ModelProto:
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    return model


def toy_registry() -> Registry:
    registry = Registry()
    op = registry.op

    op("Add", since=7, dtypes=NUMERIC, fold=np.add)(lambda a, b: mx.add(a, b))
    op("Mul", since=7, dtypes=NUMERIC, fold=np.multiply)(lambda a, b: mx.multiply(a, b))
    op("Sub", since=7, dtypes=NUMERIC)(lambda a, b: mx.subtract(a, b))
    op("Exp", since=6)(lambda x: mx.exp(x))
    op("Less", since=9, dtypes=NUMERIC)(lambda a, b: mx.less(a, b))
    op("Where", since=9, dtypes=ANY)(lambda c, a, b: mx.where(c, a, b))
    op("Relu", since=6, dtypes=NUMERIC)(lambda x: mx.maximum(x, 0))
    op("Identity", since=1, dtypes=ANY)(lambda x: x)

    @op("Cast", since=6, dtypes=ANY, fold=lambda x, *, to, saturate=1: x.astype(dtypes.numpy_dtype(to)))
    def cast(x: mx.Array, *, to: int, saturate: int = 1) -> mx.Array:
        return x.astype(dtypes.to_mlx(to))

    @op("CastLike", since=15, dtypes=ANY)
    def cast_like(x: mx.Array, like: mx.Array, *, saturate: int = 1) -> mx.Array:
        return x.astype(like.dtype)

    @op("Shape", since=1, dtypes=ANY, host_result=True)
    def shape(x: mx.Array, *, start: int = 0, end: int | None = None) -> np.ndarray[Any, Any]:
        return np.array(x.shape[start:end], np.int64)

    @op("Reshape", since=5, host=("shape",), dtypes=ANY, fold=lambda x, shape, *, allowzero=0: x.reshape(shape))
    def reshape(x: mx.Array, shape: np.ndarray[Any, Any], *, allowzero: int = 0) -> mx.Array:
        return mx.reshape(x, [int(dim) for dim in shape])

    @op("Gather", since=1, dtypes={"x": ANY}, fold=lambda x, i, *, axis=0: np.take(x, i, axis))
    def gather(x: mx.Array, indices: mx.Array, *, axis: int = 0) -> mx.Array:
        return mx.take(x, indices, axis=axis)

    @op("Concat", since=4, dtypes=ANY, fold=lambda *x, axis: np.concatenate(x, axis))
    def concat(*x: mx.Array, axis: int) -> mx.Array:
        return mx.concatenate(list(x), axis)

    @op("Clip", since=11, dtypes=NUMERIC)
    def clip(x: mx.Array, low: mx.Array | None = None, high: mx.Array | None = None) -> mx.Array:
        x = x if low is None else mx.maximum(x, low)
        return x if high is None else mx.minimum(x, high)

    @op("Split", since=13, dtypes=ANY)
    def split(x: mx.Array, *, axis: int = 0, n_outputs: int) -> tuple[mx.Array, ...]:
        return tuple(mx.split(x, n_outputs, axis))

    @op("NonZero", since=1, dtypes=ANY, host_step=True)
    def nonzero(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.array(np.nonzero(x), np.int64)

    return registry


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Take a built-in operator away, so that its nodes stay on CPU."""
    REGISTRY.load()
    return lambda name: monkeypatch.delitem(REGISTRY._ops, ("", name))


@pytest.fixture
def toy() -> Registry:
    """A registry with a handful of handlers, independent of ort_ep.ops."""
    return toy_registry()


@pytest.fixture
def model() -> Callable[[str], ModelProto]:
    """Parse ONNX text into a checked model."""
    return parse_text


def build_plan(source: ModelProto | Graph, registry: Registry) -> plan.Plan:
    graph = source if isinstance(source, Graph) else proto.from_model(source)
    verdicts = capability.Analyzer(graph, registry).verdicts()
    refused = [f"{verdict.node.title}: {verdict.reason}" for verdict in verdicts if verdict.reason]
    assert not refused
    return planner.build(graph, [call for verdict in verdicts for call in verdict.calls])


@pytest.fixture
def planned() -> Callable[[ModelProto | Graph, Registry], plan.Plan]:
    """Translate a whole model; every node must be claimed."""
    return build_plan


def as_arrays(ports: Sequence[plan.Port], outputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    arrays = []
    for port, (shape, source, nbytes, _owner) in zip(ports, outputs, strict=True):
        array = np.empty(shape, dtypes.numpy_dtype(port.elem_type))
        assert nbytes == array.nbytes
        if callable(source):
            source(array.ctypes.data)
        else:
            ctypes.memmove(array.ctypes.data, source, nbytes)
        arrays.append(array)
    return arrays


def make_compute(built: plan.Plan, **changes: Any) -> runtime.Compute:
    settings: dict[str, Any] = {"fall_back": True, "failed": lambda message, first: None}
    return runtime.Compute(built, engine.EagerEngine(built), streams.pool("cpu"), **(settings | changes))


@pytest.fixture
def compute() -> Callable[..., runtime.Compute]:
    """The callable of one fused node for a plan."""
    return make_compute


@pytest.fixture
def run() -> Callable[[plan.Plan, Arrays], list[np.ndarray[Any, Any]]]:
    """Run a plan through Compute as the plugin would, addresses in and addresses out."""

    def execute(built: plan.Plan, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
        held = [np.asarray(feeds[port.name], order="C") for port in built.inputs]
        rows = [
            (array.ctypes.data, port.elem_type, array.shape) for array, port in zip(held, built.inputs, strict=True)
        ]
        return as_arrays(built.outputs, make_compute(built)(rows))

    return execute


@dataclass
class Document:
    """A graph in the plugin's JSON, with the arrays that its addresses point into."""

    text: bytes
    arrays: list[np.ndarray[Any, Any]] = field(default_factory=list)


def to_document(
    source: ModelProto | Graph, positions: Sequence[int] | None = None, parent: str | None = None
) -> Document:
    """The whole model, or the fused graph of some of its nodes, as the plugin would write it."""
    graph = source if isinstance(source, Graph) else proto.from_model(source)
    nodes = [graph.nodes[i] for i in (range(len(graph.nodes)) if positions is None else positions)]
    held: list[np.ndarray[Any, Any]] = []
    values: list[Value] = list(graph.values)
    index = {id(value): i for i, value in enumerate(values)}

    def tensor(array: np.ndarray[Any, Any]) -> tuple[int, int]:
        array = np.ascontiguousarray(array)
        held.append(array)
        return array.ctypes.data, array.nbytes

    def row(value: Value) -> list[Any]:
        kind = [value.elem_type, value.shape] if value.kind == "tensor" else None
        if value.initializer is None:
            return [value.name, kind, int(value.flags)]
        initializer = value.initializer
        address, nbytes = tensor(initializer.view())
        return [value.name, kind, int(value.flags), [address, nbytes, initializer.elem_type, initializer.shape]]

    def attribute(name: str, value: Any) -> list[Any]:
        if isinstance(value, np.ndarray):
            return [name, "t", [dtypes.BY_NUMPY[value.dtype].code, value.shape, *tensor(value)]]
        if isinstance(value, tuple):
            letter = {int: "I", float: "F", str: "S"}[type(value[0])] if value else "I"
            return [name, letter, list(value)]
        return [name, {int: "i", float: "f", str: "s"}[type(value)], value]

    produced = {id(value) for node in nodes for value in node.outputs if value}
    used = {id(value) for node in nodes for value in (*node.inputs, *node.implicit) if value}
    if positions is None:
        inputs, outputs = graph.inputs, graph.outputs
    else:
        inputs = [v for v in values if id(v) in used - produced and not v.constant]
        outside = {id(v) for i, n in enumerate(graph.nodes) if i not in positions for v in n.inputs if v}
        outputs = [v for v in values if id(v) in produced and (id(v) in outside or v.flags & Flags.OUTPUT)]
    data = {
        "name": graph.name,
        "model_path": "",
        "ir_version": 10,
        "opsets": graph.opsets,
        "parent_node": parent,
        "inputs": [index[id(value)] for value in inputs],
        "outputs": [index[id(value)] for value in outputs],
        "initializers": [i for i, value in enumerate(values) if value.initializer],
        "values": [row(value) for value in values],
        "nodes": [
            [
                position,
                node.name,
                node.op_type,
                node.domain,
                node.since_version,
                [-1 if value is None else index[id(value)] for value in node.inputs],
                [-1 if value is None else index[id(value)] for value in node.outputs],
                [attribute(name, value) for name, value in node.attributes.items()],
                [],
                [],
            ]
            for position, node in enumerate(nodes)
        ],
    }
    return Document(json.dumps(data).encode(), held)


@pytest.fixture
def document() -> Callable[..., Document]:
    """Write a graph as the plugin does."""
    return to_document
