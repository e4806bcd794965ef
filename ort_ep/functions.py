"""Operators without a handler whose meaning is an ONNX function: the body, as nodes of the calling graph.

The body comes from the operator's schema (also where it depends on attributes and types) or from the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, NodeProto

from ort_ep.graph import Node, Value
from ort_ep.proto import Reader, describe, inferred, opset_imports, type_proto

ModelFunctions = Mapping[tuple[str, str], Any]


def expand(node: Node, functions: ModelFunctions) -> list[Node] | None:
    """The nodes of the function that defines `node`, reading and writing its own values; None where it has no body."""
    function = functions.get((node.domain, node.op_type))
    defaults: dict[str, AttributeProto] = {}
    if function is None:
        schema = _schema(node)
        if schema is None:
            return None
        function = _schema_function(schema, node)
        if function is None:
            return None
        defaults = {name: item.default_value for name, item in schema.attributes.items() if item.default_value.type}
    if set(function.input) & set(function.output):
        return None  # an output that is an input has no node to write it
    defaults.update({item.name: item for item in function.attribute_proto})
    given = {name: _attribute_proto(name, value) for name, value in node.attributes.items() if not _empty(value)}
    protos = [_bound(proto, {**defaults, **given}) for proto in function.node]
    return _nodes(node, function, protos, functions)


def node_proto(node: Node) -> NodeProto:
    """The NodeProto of a node without bodies."""
    proto = NodeProto(op_type=node.op_type, domain=node.domain, name=node.name)
    proto.input.extend(value.name if value else "" for value in node.inputs)
    proto.output.extend(value.name if value else "" for value in node.outputs)
    proto.attribute.extend(_attribute_proto(k, v) for k, v in node.attributes.items() if not _empty(v))
    return proto


def _schema(node: Node) -> Any | None:
    try:
        return onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
    except onnx.defs.SchemaError:
        return None


def _schema_function(schema: Any, node: Node) -> FunctionProto | None:
    if schema.has_function:
        version = _newest(schema.function_opset_versions, node.opset)
        data = schema.get_function_with_opset_version(version)
    elif schema.has_context_dependent_function:
        version = _newest(schema.context_dependent_function_opset_versions, node.opset)
        types = [type_proto(value).SerializeToString() if value else b"" for value in node.inputs]
        arguments = node_proto(node).SerializeToString()
        data = schema.get_context_dependent_function_with_opset_version(version, arguments, types)
    else:
        return None
    # onnx answers None or no bytes where the body can't be built for these types
    return FunctionProto.FromString(data) if data else None


def _newest(versions: list[int], opset: int) -> int:
    return max((version for version in versions if version <= opset), default=min(versions))


def _empty(value: Any) -> bool:
    return isinstance(value, tuple) and not value  # the element kind of an empty list is not known any more


def _attribute_proto(name: str, value: Any) -> AttributeProto:
    if isinstance(value, np.ndarray):
        value = onnx.numpy_helper.from_array(value)
    return onnx.helper.make_attribute(name, value)


def _bound(proto: NodeProto, arguments: Mapping[str, AttributeProto]) -> NodeProto:
    """A body node with references to the function's attributes replaced by their values (absent ones dropped)."""
    bound = NodeProto()
    bound.CopyFrom(proto)
    del bound.attribute[:]
    for attribute in proto.attribute:
        if attribute.ref_attr_name:
            argument = arguments.get(attribute.ref_attr_name)
            if argument is not None:
                entry = bound.attribute.add()
                entry.CopyFrom(argument)
                entry.name = attribute.name
        elif attribute.type == AttributeProto.GRAPH:
            entry = bound.attribute.add()
            entry.CopyFrom(attribute)
            nodes = [_bound(inner, arguments) for inner in attribute.g.node]
            del entry.g.node[:]
            entry.g.node.extend(nodes)
        else:
            bound.attribute.add().CopyFrom(attribute)
    return bound


def _nodes(node: Node, function: FunctionProto, protos: list[NodeProto], functions: ModelFunctions) -> list[Node]:
    opsets = opset_imports(function.opset_import)
    reader = Reader(opsets, functions, {})
    for index, formal in enumerate(function.input):
        reader.scope[formal] = node.input(index)
    # an output that the call leaves out stays a value of the body: nothing outside reads it
    results = {formal: value for formal, value in zip(function.output, node.outputs, strict=False) if value}
    reader.scope.update(results)
    reader.results.update(results)
    reader.read(protos)
    _infer(node, function, protos, reader)
    return [replace(inner, name=f"{node.name}/{inner.name or inner.op_type}") for inner in reader.nodes]


def _infer(node: Node, function: FunctionProto, protos: list[NodeProto], reader: Reader) -> None:
    """Fill in the types of the body's values, so that claims inside it can be decided."""
    inputs = [
        onnx.ValueInfoProto(name=formal, type=type_proto(value))
        for formal, value in zip(function.input, node.inputs, strict=False)
        if value is not None
    ]
    absent = {formal for i, formal in enumerate(function.input) if node.input(i) is None}
    for proto in protos:
        for position, name in enumerate(proto.input):
            if name in absent:
                proto.input[position] = ""
    graph = onnx.GraphProto(name=function.name, node=protos, input=inputs)
    model = onnx.ModelProto(ir_version=10, graph=graph, opset_import=function.opset_import)
    model.functions.extend(reader.functions.values())
    for info in inferred(model).graph.value_info:
        value = reader.scope.get(info.name)
        if isinstance(value, Value) and value.kind == "unknown":
            describe(value, info.type)
