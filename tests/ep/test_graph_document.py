"""The document the plugin library writes of a graph, compared with the model it was made from."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ort_ep
import ort_ep.provider

FLOAT, INT64 = int(TensorProto.FLOAT), int(TensorProto.INT64)
REQUIRED, OPTIONAL, OUTPUT, CONSTANT, OUTER = 1, 2, 4, 8, 16

Documents = list[tuple[dict[str, Any], dict[str, np.ndarray]]]
Offer = Callable[..., Documents]

DTYPES: dict[int, np.dtype[Any]] = {FLOAT: np.dtype(np.float32), INT64: np.dtype(np.int64)}


def tensors(document: dict[str, Any]) -> dict[str, np.ndarray]:
    """The numeric initializers of a document; the addresses hold only during the callback."""
    found = {}
    for name, _, _, init, *_ in document["values"]:
        if init is not None and init[2] in DTYPES:
            found[name] = read(init[0], init[1], init[2], init[3])
    return found


def read(address: int, nbytes: int, elem_type: int, dims: list[int]) -> np.ndarray:
    return np.frombuffer(ctypes.string_at(address, nbytes), DTYPES[elem_type]).reshape(dims)


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """Loads a model and returns what GetCapability was given, call by call; nothing is claimed."""
    documents: Documents = []

    class Watcher:
        def __init__(self, options: dict[str, str], logger: int) -> None:
            self.report = object()

        def get_capability(self, text: bytes) -> list[list[int]]:
            document = json.loads(text)
            for node in document["nodes"]:
                for attribute in node[7]:
                    if attribute[1] == "t" and attribute[2][0] in DTYPES:
                        elem_type, dims, address, nbytes = attribute[2]
                        attribute.append(read(address, nbytes, elem_type, dims))
            documents.append((document, tensors(document)))
            return []

        def compile(self, *_: Any) -> list[Any]:
            raise AssertionError("nothing was claimed")

        def session_ready(self) -> None:
            pass

        def close(self) -> None:
            pass

    def load(model: onnx.ModelProto | Path, *, optimize: bool = False) -> Documents:
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4
        if not optimize:
            settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        settings.add_provider_for_devices(ort_ep.devices()[:1], {})
        source = str(model) if isinstance(model, Path) else model.SerializeToString()
        onnxruntime.InferenceSession(source, settings)
        return documents

    monkeypatch.setattr(ort_ep.provider, "Provider", Watcher)
    ort_ep.register()
    yield load


def build(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: list[onnx.TensorProto] | None = None,
    opsets: dict[str, int] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "the graph", inputs, outputs, initializers or [])
    ids = [helper.make_opsetid(domain, version) for domain, version in (opsets or {"": 17}).items()]
    return helper.make_model(graph, opset_imports=ids, ir_version=10)


def value(name: str, *dims: Any, elem_type: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, list(dims))


def by_name(document: dict[str, Any]) -> dict[str, list[Any]]:
    return {row[0]: row for row in document["values"]}


def names(document: dict[str, Any], numbers: list[int]) -> list[str | None]:
    return [None if i < 0 else document["values"][i][0] for i in numbers]


def attributes(node: list[Any]) -> dict[str, list[Any]]:
    return {attribute[0]: attribute[1:] for attribute in node[7]}


def test_graph(offer: Offer) -> None:
    weight = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    default = numpy_helper.from_array(np.array([7], np.int64), "k")
    model = build(
        [
            helper.make_node("Add", ["x", "w"], ["sum"], name="first"),
            helper.make_node("Clip", ["sum", "", "top"], ["y"], name='sec"ond\\ é\n'),
            helper.make_node("TopK", ["y", "k"], ["top_y", "positions"], name="third"),
            helper.make_node("Unique", ["y"], ["u", "", "back"], name="fourth"),
        ],
        [value("x", "N", 4), value("top"), value("k", 1, elem_type=INT64)],
        [value("y", "N", 4), value("positions", None, None, elem_type=INT64), value("back", None, elem_type=INT64)],
        [weight, default],
    )
    (document, arrays), *_ = offer(model)
    assert document["name"] == "the graph" and document["ir_version"] == 10 and document["opsets"][""] == 17
    assert document["model_path"] == "" and document["parent_node"] is None
    assert names(document, document["inputs"])[:2] == ["x", "top"]
    assert names(document, document["outputs"]) == ["y", "positions", "back"]
    assert set(names(document, document["initializers"])) == {"w", "k"}
    values = by_name(document)
    assert len(values) == len(document["values"])
    assert values["x"][1:4] == [[FLOAT, ["N", 4]], REQUIRED, None]
    assert values["top"][1] == [FLOAT, []]
    assert values["k"][2] == OPTIONAL and values["w"][2] == CONSTANT and values["y"][2] == OUTPUT
    np.testing.assert_array_equal(arrays["w"], np.arange(4))
    np.testing.assert_array_equal(arrays["k"], [7])
    nodes = {node[2]: node for node in document["nodes"]}
    assert names(document, nodes["Clip"][5]) == ["sum", None, "top"]
    assert names(document, nodes["Unique"][6]) == ["u", None, "back"]
    assert nodes["Clip"][1] == 'sec"ond\\ é\n' and nodes["Clip"][3:5] == ["", 13]
    # ORT fills in the schema's defaults
    assert attributes(nodes["TopK"]) == {"axis": ["i", -1], "largest": ["i", 1], "sorted": ["i", 1]}


def test_attribute_kinds(offer: Offer) -> None:
    # CategoryMapper-like ops of ai.onnx.ml take every list kind
    labels = ["", "é", "b\n", "x" * 3000]
    floats = [1.5, -0.1, math.inf, -math.inf, math.nan, 3.4028235e38, 1e-45]
    model = build(
        [
            helper.make_node(
                "LabelEncoder",
                ["s"],
                ["f"],
                domain="ai.onnx.ml",
                keys_strings=labels,
                values_floats=floats[: len(labels)],
                default_float=0.1,
            ),
            helper.make_node("Scaler", ["x"], ["z"], domain="ai.onnx.ml", offset=floats, scale=[1.0] * len(floats)),
            helper.make_node(
                "LabelEncoder",
                ["s"],
                ["i"],
                domain="ai.onnx.ml",
                keys_strings=labels,
                values_int64s=[0, -(2**63), 2**63 - 1, 5],
            ),
            helper.make_node(
                "ConstantOfShape", ["shape"], ["c"], value=numpy_helper.from_array(np.array([2.5], np.float32))
            ),
            helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        ],
        [value("s", 1, elem_type=TensorProto.STRING), value("x", 1, 7), value("shape", 1, elem_type=INT64)],
        [value("f", 1), value("z", 1, 7), value("i", 1, elem_type=INT64), value("c", None), value("t", 7, 1)],
        opsets={"": 17, "ai.onnx.ml": 3},
    )
    (document, _), *_ = offer(model)
    found = {(node[2], document["values"][node[6][0]][0]): attributes(node) for node in document["nodes"]}
    encoder = found["LabelEncoder", "f"]
    assert encoder["keys_strings"] == ["S", labels]
    assert encoder["default_float"][0] == "f" and np.float32(encoder["default_float"][1]) == np.float32(0.1)
    kind, offsets = found["Scaler", "z"]["offset"]
    assert kind == "F" and offsets[2:5] == ["inf", "-inf", "nan"]
    np.testing.assert_array_equal(np.array([float(f) for f in offsets], np.float32), np.array(floats, np.float32))
    assert found["LabelEncoder", "i"]["values_int64s"] == ["I", [0, -(2**63), 2**63 - 1, 5]]
    assert found["Transpose", "t"] == {"perm": ["I", [1, 0]]}
    kind, (elem_type, dims, _, nbytes), content = found["ConstantOfShape", "c"]["value"]
    assert (kind, elem_type, dims, nbytes) == ("t", FLOAT, [1], 4)
    np.testing.assert_array_equal(content, [2.5])


def test_string_that_is_no_utf8(offer: Offer) -> None:
    node = helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=2, mode="DCR")
    strings = helper.make_node(
        "LabelEncoder", ["s"], ["l"], domain="ai.onnx.ml", keys_strings=["a"], values_strings=["b"], default_string="?"
    )
    next(a for a in strings.attribute if a.name == "default_string").s = b"\xff\xc3"
    model = build(
        [node, strings],
        [value("x", 1, 4, 1, 1), value("s", 1, elem_type=TensorProto.STRING)],
        [value("y", 1, 1, 2, 2), value("l", 1, elem_type=TensorProto.STRING)],
        opsets={"": 17, "ai.onnx.ml": 3},
    )
    (document, _), *_ = offer(model)
    found = {node[2]: attributes(node) for node in document["nodes"]}
    assert found["LabelEncoder"]["default_string"] == ["b", "ffc3"]
    assert found["DepthToSpace"]["mode"] == ["s", "DCR"]


def test_string_initializer_has_no_bytes(offer: Offer) -> None:
    words = numpy_helper.from_array(np.array(["one", "two"], object), "words")
    model = build(
        [helper.make_node("Identity", ["words"], ["y"])], [], [value("y", 2, elem_type=TensorProto.STRING)], [words]
    )
    (document, _), *_ = offer(model)
    assert by_name(document)["words"][3] == [0, 0, int(TensorProto.STRING), [2]]


def test_types(offer: Offer) -> None:
    sequence = helper.make_tensor_sequence_value_info("list", FLOAT, ["N"])
    model = build(
        [helper.make_node("SequenceConstruct", ["x", "x"], ["list"]), helper.make_node("Shape", ["any"], ["s"])],
        [value("x", "N"), helper.make_tensor_value_info("any", FLOAT, None)],
        [sequence, value("s", None, elem_type=INT64)],
    )
    (document, _), *_ = offer(model)
    values = by_name(document)
    assert values["any"][1] == [FLOAT, None]
    assert values["list"][1] == {"kind": 2}
    assert values["s"][1][1] in ([None], ["N"]) or isinstance(values["s"][1][1][0], str)


def test_bodies(offer: Offer) -> None:
    inner = numpy_helper.from_array(np.array([3.0], np.float32), "inner")
    then = helper.make_graph(
        [helper.make_node("Add", ["x", "inner"], ["a"])], "then side", [], [value("a", "N")], [inner]
    )
    other = helper.make_graph([helper.make_node("Mul", ["x", "outer"], ["b"])], "else side", [], [value("b", "N")])
    model = build(
        [helper.make_node("If", ["c"], ["y"], name="choose", then_branch=then, else_branch=other)],
        [value("c", elem_type=TensorProto.BOOL), value("x", "N")],
        [value("y", "N")],
        [numpy_helper.from_array(np.array([2.0], np.float32), "outer")],
    )
    documents = offer(model)
    # bodies come first, each as a graph of its own that knows its parent
    assert [document["parent_node"] for document, _ in documents[:3]] == ["If", "If", None]
    document, _ = documents[2]
    (node,) = document["nodes"]
    assert sorted(names(document, node[8])) == ["outer", "x"]  # type: ignore[type-var]
    bodies = dict(node[9])
    assert set(bodies) == {"then_branch", "else_branch"}
    assert {name: kind for name, kind, *_ in node[7]} == {"then_branch": "?", "else_branch": "?"}
    body = bodies["else_branch"]
    assert body["parent_node"] == "If" and [n[2] for n in body["nodes"]] == ["Mul"]
    assert by_name(body)["x"][2] & OUTER and by_name(body)["outer"][2] & (OUTER | CONSTANT) == OUTER | CONSTANT
    np.testing.assert_array_equal(tensors_of(documents, "then side")["inner"], [3.0])
    np.testing.assert_array_equal(tensors_of(documents, "else side")["outer"], [2.0])


def tensors_of(documents: Documents, name: str) -> dict[str, np.ndarray]:
    return next(arrays for document, arrays in documents if document["name"] == name)


def test_external_data(offer: Offer, tmp_path: Path) -> None:
    weight = np.arange(4096, dtype=np.float32)
    model = build(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x", 4096)],
        [value("y", 4096)],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=16)
    (document, arrays), *_ = offer(path)
    assert document["model_path"] == str(path)
    file, offset, nbytes = by_name(document)["w"][4]
    assert (Path(file).name, offset, nbytes) == ("weights.bin", 0, weight.nbytes)
    np.testing.assert_array_equal(arrays["w"], weight)


def test_many_nodes(offer: Offer) -> None:
    count = 3000
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=f"node {i}") for i in range(count)]
    (document, _), *_ = offer(build(nodes, [value("v0", "N")], [value(f"v{count}", "N")]))
    assert [node[1] for node in document["nodes"]] == [f"node {i}" for i in range(count)]
    assert len(document["values"]) == count + 1
    assert all(
        names(document, node[5]) == [f"v{i}"] and names(document, node[6]) == [f"v{i + 1}"]
        for i, node in enumerate(document["nodes"])
    )
