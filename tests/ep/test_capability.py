from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from onnx import ModelProto, TensorProto, helper

from ort_ep import proto
from ort_ep.capability import Analyzer
from ort_ep.graph import Node
from ort_ep.registry import ANY, FLOATS, INDEX, Registry

Parse = Callable[[str], ModelProto]
HEAD = '<ir_version: 8, opset_import: ["": 17, "my": 1]>'


def reasons(model: ModelProto, registry: Registry, **settings: Any) -> list[str]:
    return [verdict.reason for verdict in Analyzer(proto.from_model(model), registry, **settings).verdicts()]


def one_node(
    op: str, inputs: Mapping[str, int | None], domain: str = "", outputs: int = 1, **attributes: Any
) -> ModelProto:
    infos = [helper.make_tensor_value_info(name, kind, ["N"]) for name, kind in inputs.items() if kind]
    names = [f"out{i}" for i in range(outputs)]
    node = helper.make_node(op, [n if k else "" for n, k in inputs.items()], names, domain=domain, **attributes)
    first = next(kind for kind in inputs.values() if kind)
    results = [helper.make_tensor_value_info(name, first, None) for name in names]
    graph = helper.make_graph([node], "g", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my", 1)])


def test_known_operators_are_claimed(toy: Registry) -> None:
    assert reasons(one_node("Add", {"a": TensorProto.FLOAT, "b": TensorProto.FLOAT}), toy) == [""]


def test_no_handler_and_too_old_a_version(toy: Registry) -> None:
    toy.op("Swish", domain="my", since=2)(lambda x: x)
    assert "no handler and no function body" in reasons(one_node("Other", {"x": TensorProto.FLOAT}, "my"), toy)[0]
    assert reasons(one_node("Swish", {"x": TensorProto.FLOAT}, "my"), toy) == ["no handler for version 1 (oldest: 2)"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (TensorProto.DOUBLE, "input x is float64; the handler takes bfloat16, float16, float32"),
        (TensorProto.STRING, "input x is string; the handler takes"),
        (TensorProto.FLOAT8E5M2, "input x is float8_e5m2; the handler takes"),
    ],
)
def test_element_types(toy: Registry, kind: int, reason: str) -> None:
    assert reasons(one_node("Exp", {"x": kind}), toy)[0].startswith(reason)


def test_what_mlx_lacks_is_declined_where_the_handler_has_no_rule() -> None:
    registry = Registry()
    registry.op("Copy", domain="my", dtypes={})(lambda x: x)
    text = reasons(one_node("Copy", {"x": TensorProto.INT4}, "my"), registry)
    assert text == ["input x is int4, which MLX does not have"]


def test_float64_is_for_the_cpu_device() -> None:
    registry = Registry()
    registry.op("Copy", domain="my", dtypes=FLOATS)(lambda x: x)
    model = one_node("Copy", {"x": TensorProto.DOUBLE}, "my")
    assert reasons(model, registry, device="cpu") == [""]
    assert reasons(model, registry, device="gpu") == ["input x is float64, which MLX has on the CPU device only"]


def test_unknown_types_and_sequences(toy: Registry, model: Parse) -> None:
    untyped = model(f"{HEAD} g (float[N] x) => (float[N] y) {{ z = my.What(x) y = Relu(z) }}")
    assert reasons(untyped, toy)[1] == "input x is of unknown type"
    toy.op("SequenceConstruct", since=11)(lambda *x: x)
    sequence = model(f"{HEAD} g (float[N] x) => (int64 n) {{ y = SequenceConstruct(x, x) n = SequenceLength(y) }}")
    toy.op("SequenceLength", since=11, dtypes=ANY, containers=True)(lambda items: len(items))
    assert reasons(sequence, toy) == ["output 0 is of sequence type", ""]
    crossing = model(f"{HEAD} g (seq(float[N]) y) => (int64 n) {{ n = SequenceLength(y) }}")
    assert reasons(crossing, toy) == ["the sequence 'y' comes from or goes to outside the graph"]


def test_parameters_results_and_host_inputs_have_their_own_rules() -> None:
    registry = Registry()
    registry.op("Gather", since=1, dtypes={"data": {"float32"}, "indices": INDEX})(
        lambda data, indices, *, axis=0: data
    )
    registry.op("Cast", since=6, dtypes={"x": ANY, "return": {"float16"}})(lambda x, *, to, saturate=1: x)
    registry.op("Take", domain="my", host=("shape",))(lambda x, shape: x)
    gather = {"d": TensorProto.FLOAT, "i": TensorProto.INT32}
    assert reasons(one_node("Gather", gather), registry) == [""]
    assert reasons(one_node("Gather", gather | {"d": TensorProto.INT8}), registry)[0].startswith("input data is int8")
    assert reasons(one_node("Take", {"x": TensorProto.FLOAT, "s": TensorProto.INT64}, "my"), registry) == [""]
    cast = one_node("Cast", {"x": TensorProto.INT32}, to=TensorProto.DOUBLE)
    cast.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    assert reasons(cast, registry)[0].startswith("output 0 is float64; the handler takes float16")


def test_number_of_inputs_and_absent_ones(toy: Registry) -> None:
    f = TensorProto.FLOAT
    toy.op("Two", domain="my")(lambda a, b: a)
    assert reasons(one_node("Two", {"a": f, "b": f, "c": f}, "my"), toy) == ["3 inputs; the handler takes 2"]
    assert reasons(one_node("Two", {"a": None, "b": f}, "my"), toy) == ["input a is absent"]
    assert reasons(one_node("Clip", {"a": f, "b": None, "c": f}), toy) == [""]


def test_attributes_the_handler_does_not_know(toy: Registry) -> None:
    toy.op("Softmax", since=13)(lambda x: x)
    toy.op("LRN", since=1)(lambda x, *, size, alpha=1e-4, beta=0.75: x)
    x: dict[str, int | None] = {"x": TensorProto.FLOAT}
    assert reasons(one_node("Softmax", x, axis=-1), toy) == [""]  # the default, which ORT writes into every node
    assert reasons(one_node("Softmax", x, axis=0), toy) == ["attribute axis=0 is not supported"]
    assert reasons(one_node("LRN", x, size=3, bias=1.0), toy) == [""]
    assert reasons(one_node("LRN", x, size=3, bias=2.0), toy) == ["attribute bias=2.0 is not supported"]
    toy.op("Scale", domain="my")(lambda x, factor=1.0: x)
    told = "attribute factor: the handler takes it as an input; it must be keyword-only, behind a *"
    assert reasons(one_node("Scale", x, "my", factor=2.0), toy) == [told]
    assert reasons(one_node("LRN", x), toy) == ["attribute size is missing"]
    toy.op("Free", domain="my")(lambda x, **attributes: x)
    assert reasons(one_node("Free", x, "my", anything=3), toy) == [""]


def test_float_defaults_compare_as_float32(toy: Registry) -> None:
    toy.op("LayerNormalization", since=17)(lambda x, scale, *, axis=-1: x)
    graph = proto.from_model(one_node("LayerNormalization", {"x": TensorProto.FLOAT, "s": TensorProto.FLOAT}))
    graph.nodes[0].attributes.update(epsilon=9.99999975e-06, stash_type=1)  # as %.9g prints 1e-5f
    assert [verdict.reason for verdict in Analyzer(graph, toy).verdicts()] == [""]


def test_claim_predicates_decline_and_may_be_wrong() -> None:
    registry = Registry()

    def never(node: Node) -> str | None:
        return f"no {node.op_type} today"

    def broken(node: Node) -> str | None:
        raise KeyError("oops")

    registry.op("A", domain="my", claim=never)(lambda x: x)
    registry.op("B", domain="my", claim=broken)(lambda x: x)
    assert reasons(one_node("A", {"x": TensorProto.FLOAT}, "my"), registry) == ["no A today"]
    assert reasons(one_node("B", {"x": TensorProto.FLOAT}, "my"), registry) == [
        "deciding on it failed: KeyError: 'oops'"
    ]


def test_control_flow_is_claimed_where_every_node_of_its_bodies_is(toy: Registry, model: Parse) -> None:
    source = model(
        f"""{HEAD} g (bool c, float[2] x) => (float[2] y) {{
        y = If (c) <then_branch = t () => (float[2] a) {{ a = Relu(x) }},
                    else_branch = e () => (float[2] b) {{ b = Exp(x) }}> }}"""
    )
    assert reasons(source, toy) == ["no handler and no function body that can be translated"]
    toy.op("If", since=1, host=("cond",))(lambda cond, *, then_branch, else_branch: then_branch())
    assert reasons(source, toy) == [""]
    graph = proto.from_model(source)
    for version, claimed in ((26, False), (27, True), (0, True)):  # ORT 1.26 does not give such a node the value of x
        graph.ort_version = version
        assert Analyzer(graph, toy).verdicts()[0].claimed is claimed
    source.graph.node[0].attribute[1].g.node[0].op_type = "Asinh"
    assert reasons(source, toy)[0].startswith("else_branch: Asinh: ")
