"""Graphs from ONNX protos: whole models (tests, offline tools) and the bodies of functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper

from ort_ep import dtypes
from ort_ep.graph import Dim, Flags, Graph, Initializer, Node, Value

Scope = dict[str, Value | None]
Opsets = Mapping[str, int]

_KINDS = {"tensor_type": "tensor", "sequence_type": "sequence", "optional_type": "optional", "map_type": "map"}
_KINDS["sparse_tensor_type"] = "sparse_tensor"


def from_model(model: ModelProto, *, infer: bool = True) -> Graph:
    """A model's main graph; `infer` runs ONNX shape inference first, as ORT would have."""
    if infer:
        model = inferred(model)
    opsets = opset_imports(model.opset_import)
    functions = {(normal_domain(function.domain), function.name): function for function in model.functions}
    graph = from_graph(model.graph, opsets, {}, functions)
    graph.ir_version = model.ir_version
    return graph


def inferred(model: ModelProto) -> ModelProto:
    """The model with the types ONNX can infer; as it is where inference fails (what stays untyped is not claimed)."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return model


def opset_imports(imports: Iterable[Any]) -> dict[str, int]:
    return {normal_domain(entry.domain): entry.version for entry in imports}


def normal_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def from_graph(
    proto: GraphProto,
    opsets: Opsets,
    outer: Mapping[str, Value | None],
    functions: Mapping[tuple[str, str], FunctionProto],
) -> Graph:
    """A GraphProto whose free names are looked up in `outer`."""
    reader = Reader(opsets, functions, outer)
    inputs = [reader.typed(info.name, info.type, Flags.REQUIRED_INPUT) for info in proto.input]
    for tensor in proto.initializer:
        value = reader.define(tensor.name)
        reader.fill(value, numpy_helper.to_array(tensor), tensor.data_type)
        if value.flags & Flags.REQUIRED_INPUT:  # an input with a default: any caller may replace it
            value.flags = Flags.OPTIONAL_INPUT
        else:
            value.flags |= Flags.CONSTANT
    for info in proto.value_info:
        reader.typed(info.name, info.type, 0)
    for info in proto.output:
        reader.typed(info.name, info.type, Flags.OUTPUT)
    reader.read(proto.node)
    return Graph(
        name=proto.name,
        opsets=dict(opsets),
        inputs=inputs,
        outputs=[reader.use(info.name) for info in proto.output],
        values=reader.values,
        nodes=reader.nodes,
        functions=dict(functions),
    )


class Reader:
    """Turns NodeProtos into Nodes; names resolve to the values of this scope first, then to `outer`.

    `results` are names that stand for another graph's values: the outputs of a function's call.
    """

    def __init__(
        self,
        opsets: Opsets,
        functions: Mapping[tuple[str, str], FunctionProto],
        outer: Mapping[str, Value | None],
    ) -> None:
        self.opsets = opsets
        self.functions = functions
        self.outer = outer
        self.scope: Scope = {}
        self.results: set[str] = set()
        self.values: list[Value] = []
        self.nodes: list[Node] = []

    def define(self, name: str) -> Value:
        value = self.scope.get(name)
        if value is None:
            value = Value(len(self.values), name)
            self.values.append(value)
            self.scope[name] = value
        return value

    def typed(self, name: str, proto: TypeProto, flags: int) -> Value:
        value = self.define(name)
        value.flags |= flags
        describe(value, proto)
        return value

    def fill(self, value: Value, array: np.ndarray[Any, Any], elem_type: int) -> None:
        """Give a value constant content."""
        array.flags.writeable = False
        value.kind, value.elem_type, value.shape = "tensor", elem_type, tuple(array.shape)
        value.initializer = Initializer(elem_type, tuple(array.shape), array.nbytes, array=array)

    def use(self, name: str) -> Value:
        value = self.scope.get(name)
        if value is not None:
            return value
        source = self.outer.get(name)
        value = self.define(name)
        if source is not None:
            value.kind, value.elem_type, value.shape = source.kind, source.elem_type, source.shape
            value.flags = Flags.OUTER | (source.flags & Flags.CONSTANT)
            value.initializer = source.initializer
        return value

    def read(self, protos: Iterable[NodeProto]) -> None:
        for proto in protos:
            if proto.op_type == "Constant" and not normal_domain(proto.domain):
                self._constant(proto)
            else:
                self.nodes.append(self._node(proto))

    def _constant(self, proto: NodeProto) -> None:
        name = proto.output[0]
        if name in self.results:  # the value is the caller's: it is written, not redefined
            self.read([onnx.helper.make_node("Identity", [f"{name} (constant)"], [name])])
            name = f"{name} (constant)"
        value = self.define(name)
        self.fill(value, *_constant_node(proto))
        value.flags |= Flags.CONSTANT

    def _node(self, proto: NodeProto) -> Node:
        domain = normal_domain(proto.domain)
        inputs = [self._input(name) for name in proto.input]
        attributes: dict[str, Any] = {}
        unreadable = set()
        bodies: dict[str, Graph] = {}
        for attribute in proto.attribute:
            if attribute.type == AttributeProto.GRAPH:
                visible = {**self.outer, **self.scope}
                bodies[attribute.name] = from_graph(attribute.g, self.opsets, visible, self.functions)
            else:
                try:
                    attributes[attribute.name] = attribute_value(attribute)
                except TypeError:
                    unreadable.add(attribute.name)
        captured = {value.name: None for body in bodies.values() for value in body.outer() if not value.constant}
        opset = self.opsets.get(domain, 1)
        return Node(
            position=len(self.nodes),
            name=proto.name,
            op_type=proto.op_type,
            domain=domain,
            since_version=since_version(proto.op_type, opset, domain),
            opset=opset,
            inputs=_trimmed(inputs),
            outputs=_trimmed([self.define(name) if name else None for name in proto.output]),
            attributes=attributes,
            unreadable=frozenset(unreadable),
            captured={name: self.use(name) for name in captured},
            bodies=bodies,
        )

    def _input(self, name: str) -> Value | None:
        known = self.scope if name in self.scope else self.outer
        if not name or known.get(name, name) is None:  # an optional input that the function's call leaves out
            return None
        return self.use(name)


def describe(value: Value, proto: TypeProto) -> None:
    """Copy a TypeProto into a value; what the proto leaves open stays as it is."""
    which = proto.WhichOneof("value")
    if which is None:
        return
    value.kind = _KINDS.get(which, which)
    if which == "tensor_type":
        value.elem_type = proto.tensor_type.elem_type or value.elem_type
        if proto.tensor_type.HasField("shape"):
            value.shape = tuple(_dim(dim) for dim in proto.tensor_type.shape.dim)


def type_proto(value: Value) -> TypeProto:
    """The TypeProto of a tensor value (empty where the element type is unknown)."""
    proto = TypeProto()
    if value.kind == "tensor" and value.elem_type is not None:
        proto.tensor_type.elem_type = value.elem_type
        if value.shape is not None:
            proto.tensor_type.shape.SetInParent()
            for dim in value.shape:
                entry = proto.tensor_type.shape.dim.add()
                if isinstance(dim, str):
                    entry.dim_param = dim
                elif dim is not None:
                    entry.dim_value = dim
    return proto


def since_version(op_type: str, opset: int, domain: str) -> int:
    """The version of an operator that an opset import selects; the opset itself for operators without a schema."""
    try:
        return int(onnx.defs.get_schema(op_type, opset, domain).since_version)
    except onnx.defs.SchemaError:
        return opset


def attribute_value(proto: AttributeProto) -> Any:
    """An attribute as Python or numpy; TypeError for kinds that handlers can't take."""
    content = onnx.helper.get_attribute_value(proto)
    if proto.type == AttributeProto.STRING:
        return _text(content)
    if proto.type == AttributeProto.STRINGS:
        return tuple(_text(item) for item in content)
    if proto.type in (AttributeProto.INTS, AttributeProto.FLOATS):
        return tuple(content)
    if proto.type == AttributeProto.TENSOR:
        return numpy_helper.to_array(content)
    if proto.type in (AttributeProto.INT, AttributeProto.FLOAT):
        return content
    raise TypeError(f"attribute {proto.name}: a {AttributeProto.AttributeType.Name(proto.type)} can't be read")


def _text(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _dim(dim: Any) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return dim.dim_param or None


def _trimmed(values: list[Value | None]) -> tuple[Value | None, ...]:
    while values and values[-1] is None:
        values.pop()
    return tuple(values)


def _constant_node(proto: NodeProto) -> tuple[np.ndarray[Any, Any], int]:
    attribute = proto.attribute[0]
    content = onnx.helper.get_attribute_value(attribute)
    if attribute.name == "value":
        return numpy_helper.to_array(content), content.data_type
    if attribute.name == "sparse_value":
        return _dense(content), content.values.data_type
    kind = attribute.name.removeprefix("value_").removesuffix("s")
    elem_type = {"int": TensorProto.INT64, "float": TensorProto.FLOAT, "string": TensorProto.STRING}[kind]
    dtype = np.dtype(object) if elem_type == TensorProto.STRING else dtypes.numpy_dtype(elem_type)
    return np.array(content, dtype), elem_type


def _dense(sparse: Any) -> np.ndarray[Any, Any]:
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    dense[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, dense.shape)] = values
    return dense
