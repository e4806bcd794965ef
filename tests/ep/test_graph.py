from __future__ import annotations

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_ep import graph, proto
from ort_ep.graph import Flags


def parsed(values: list[Any], nodes: list[Any], **changes: Any) -> graph.Graph:
    data: dict[str, Any] = {
        "name": "g",
        "model_path": "/m.onnx",
        "ir_version": 10,
        "opsets": {"": 17, "ai.onnx.ml": 3},
        "parent_node": None,
        "inputs": [0],
        "outputs": [1],
        "initializers": [],
        "values": values,
        "nodes": nodes,
    }
    return graph.parse(json.dumps(data | changes).encode())


def test_nodes_values_and_absent_ends() -> None:
    values = [["x", [1, [2, "N", None]], 1], ["y", [1, None], 4], ["s", {"kind": "sequence"}, 0], ["u", None, 16]]
    node = [7, "clip", "Clip", "ai.onnx", 13, [0, -1, 3, -1], [1, -1], [], [], []]
    read = parsed(values, [node])
    (clip,) = read.nodes
    assert (clip.id, clip.position, clip.op_type, clip.domain, clip.since_version, clip.opset) == (
        7,
        0,
        "Clip",
        "",
        13,
        17,
    )
    assert [value and value.name for value in clip.inputs] == ["x", None, "u"]
    assert len(clip.outputs) == clip.n_outputs == 1
    x, y, s, u = read.values
    assert (x.shape, x.rank, x.dtype, str(x)) == ((2, "N", None), 3, "float32", "x: float32[2,N,?]")
    assert (y.shape, y.rank, str(y)) == (None, None, "y: float32[?]")
    assert (s.kind, s.dtype, s.elem_type) == ("sequence", "sequence", None)
    assert (u.dtype, u.flags) == ("unknown", Flags.OUTER)
    assert list(read.outer()) == [u]


def test_attributes_of_every_kind() -> None:
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3)
    attributes = [
        ["i", "i", 3],
        ["f", "f", 0.1],
        ["nan", "f", "nan"],
        ["inf", "F", ["-inf", 1]],
        ["s", "s", "größe"],
        ["b", "b", "ff00"],
        ["I", "I", [1, 2]],
        ["S", "S", ["a", "b"]],
        ["t", "t", [1, [2, 3], tensor.ctypes.data, tensor.nbytes]],
        ["strange", "?", None],
    ]
    read = parsed([["x", [1, []], 1], ["y", [1, []], 4]], [[0, "", "Op", "d", 1, [0], [1], attributes, [], []]])
    found = read.nodes[0].attributes
    assert (found["i"], found["f"], found["s"], found["b"]) == (3, 0.1, "größe", b"\xff\x00")
    assert (found["I"], found["inf"], found["S"]) == ((1, 2), (-math.inf, 1.0), ("a", "b"))
    assert math.isnan(found["nan"])
    tensor += 1  # the attribute is a copy
    np.testing.assert_array_equal(found["t"], np.arange(6, dtype=np.float32).reshape(2, 3))
    assert read.nodes[0].unreadable == {"strange"}


def test_initializers_are_views_and_only_constants_are_constant() -> None:
    weights = np.array([1.5, -2], ml_dtypes.bfloat16)
    row = [weights.ctypes.data, weights.nbytes, TensorProto.BFLOAT16, [2]]
    values = [["default", [16, [2]], 2, row], ["w", [16, [2]], 8, row], ["e", [1, [0]], 8, [0, 0, 1, [0]], ["f", 8, 0]]]
    read = parsed(values, [[0, "n", "Op", "", 1, [0, 1, 2], [], [], [], []]])
    default, w, empty = read.values
    assert default.constant is None
    assert w.constant is not None
    view = w.constant.view()
    assert view.dtype == ml_dtypes.bfloat16
    assert not view.flags.writeable
    weights[0] = 7
    assert float(view[0]) == 7
    assert empty.constant is not None
    assert empty.constant.external == ("f", 8, 0)
    assert empty.constant.view().shape == (0,)
    node = read.nodes[0]
    assert node.constant(0) is None
    assert node.constant(9) is None
    np.testing.assert_array_equal(node.constant(1), weights)


@pytest.mark.parametrize("elem_type", ["UINT4", "INT4", "FLOAT4E2M1", "UINT2", "INT2", "FLOAT6E2M3"])
def test_packed_tensors_are_unpacked_as_onnx_does(elem_type: str) -> None:
    if not hasattr(TensorProto, elem_type):
        pytest.skip(f"this onnx has no {elem_type}")
    code = getattr(TensorProto, elem_type)
    dtype = helper.tensor_dtype_to_np_dtype(code)
    raw = np.array([0xB4, 0x1F, 0x02], np.uint8)
    count = {"2": 9, "4": 5, "6": 4}[next(letter for letter in elem_type if letter.isdigit())]
    tensor = TensorProto(data_type=code, dims=[count], raw_data=raw.tobytes())
    expected = numpy_helper.to_array(tensor)
    found = graph.decode(code, [count], raw)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


def test_nested_bodies_keep_their_own_values() -> None:
    body = {
        "name": "then",
        "opsets": {},
        "inputs": [],
        "outputs": [1],
        "initializers": [],
        "values": [["x", [1, []], 16], ["t", [1, []], 4]],
        "nodes": [[0, "", "Relu", "", 14, [0], [1], [], [], []]],
        "parent_node": "If",
    }
    values = [["c", [9, []], 1], ["y", [1, []], 4], ["x", [1, []], 1]]
    read = parsed(
        values, [[0, "if", "If", "", 16, [0], [1], [["then_branch", "?", None]], [2], [["then_branch", body]]]]
    )
    (node,) = read.nodes
    assert [value.name for value in node.implicit] == ["x"]
    assert node.bodies["then_branch"].nodes[0].op_type == "Relu"
    assert node.bodies["then_branch"].opsets == read.opsets
    assert not node.unreadable


def test_models_become_graphs_with_constants_folded_in() -> None:
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("", TensorProto.FLOAT, [1], [5.0]), helper.make_tensor("", TensorProto.INT64, [1], [2]), [4]
    )
    nodes = [
        helper.make_node("Constant", [], ["i"], value_ints=[1, 2]),
        helper.make_node("Constant", [], ["f"], value_float=0.5),
        helper.make_node("Constant", [], ["sp"], sparse_value=sparse),
        helper.make_node("Add", ["x", "f"], ["y"], name="add"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "xy")
    default = numpy_helper.from_array(np.ones(3, np.float32), "d")
    d = helper.make_tensor_value_info("d", TensorProto.FLOAT, [3])
    w = numpy_helper.from_array(np.zeros(3, np.float32), "w")
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x, d], [y], [default, w]), opset_imports=[helper.make_opsetid("", 17)]
    )
    read = proto.from_model(model)
    named = {value.name: value for value in read.values}
    assert [node.op_type for node in read.nodes] == ["Add"]
    assert read.nodes[0].since_version == 14
    assert named["d"].flags & Flags.OPTIONAL_INPUT
    assert named["d"].constant is None
    assert named["w"].constant is not None
    for name, expected in {"i": [1, 2], "f": 0.5, "sp": [0, 0, 5, 0]}.items():
        constant = named[name].constant
        assert constant is not None
        np.testing.assert_array_equal(constant.view(), expected)


def test_bodies_in_models_see_the_values_around_them() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (bool c, float[2] x) => (float[2] y) {
        w = Constant<value = float[2] {1, 2}>()
        z = Relu(x)
        y = If (c) <then_branch = t () => (float[2] a) { a = Add(z, w) },
                    else_branch = e () => (float[2] b) { b = Identity(z) }>
    }"""
    read = proto.from_model(onnx.parser.parse_model(text))
    branch = read.nodes[1]
    assert [value.name for value in branch.implicit] == ["z"]
    then = branch.bodies["then_branch"]
    assert {value.name for value in then.outer()} == {"z", "w"}
    assert next(value for value in then.outer() if value.name == "w").constant is not None


def test_weights_in_bodies_are_counted_and_captured_ones_once() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (bool c, float[2] x) => (float[2] y) {
        w = Constant<value = float[2] {1, 2}>()
        z = Add(x, w)
        y = If (c) <then_branch = t () => (float[2] a) { a = Add(z, w) },
                    else_branch = e () => (float[2] b) { v = Constant<value = float[2] {3, 4}>() b = Mul(z, v) }>
    }"""
    assert proto.from_model(onnx.parser.parse_model(text)).weight_bytes == 16
