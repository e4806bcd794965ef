"""What `python -m ort_ep run` feeds a model: files are checked, the rest is random, seeded and in range."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_ep.cli.console import CommandError
from ort_ep.cli.inputs import Dims, make_feeds, split_files
from ort_ep.cli.model import index_limit, input_specs, load_model


def model_of(nodes, inputs, initializers=(), outputs=("y",)) -> onnx.ModelProto:
    made = [helper.make_tensor_value_info(name, kind, dims) for name, kind, dims in inputs]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", made, results, initializer=list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def identity(kind=TensorProto.FLOAT, dims=(2, 3), name="x") -> onnx.ModelProto:
    return model_of([helper.make_node("Identity", [name], ["y"])], [(name, kind, dims)])


def feeds_of(model, files=(), dims=None, seed=0):
    specs = input_specs(model)
    return make_feeds(model, specs, split_files(list(files), specs), Dims(dict(dims or {})), seed)


def test_the_same_seed_gives_the_same_inputs():
    model = identity()
    np.testing.assert_array_equal(feeds_of(model, seed=7)["x"], feeds_of(model, seed=7)["x"])
    assert not np.array_equal(feeds_of(model, seed=7)["x"], feeds_of(model, seed=8)["x"])


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.FLOAT, np.float32),
        (TensorProto.DOUBLE, np.float64),
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.INT64, np.int64),
        (TensorProto.UINT8, np.uint8),
        (TensorProto.INT8, np.int8),
        (TensorProto.BOOL, np.bool_),
        (TensorProto.STRING, np.object_),
        (TensorProto.COMPLEX64, np.complex64),
        (TensorProto.INT4, ml_dtypes.int4),
    ],
)
@pytest.mark.parametrize("shape", [(), (0, 3), (4, 5)])
def test_random_inputs_have_the_models_dtype_and_shape(kind, dtype, shape):
    made = feeds_of(identity(kind, shape))["x"]
    assert (made.dtype, made.shape) == (np.dtype(dtype), shape)


def test_indices_stay_inside_the_table_they_index():
    table = numpy_helper.from_array(np.zeros((3, 4), np.float32), "table")
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "wide"], ["y"], axis=1),
    ]
    model = model_of(nodes, [("ids", TensorProto.INT32, [50])], [table])
    assert index_limit(model.graph, "ids") == 4
    ids = feeds_of(model)["ids"]
    assert ids.min() >= 0 and ids.max() == 3


def test_depth_of_a_one_hot_limits_its_indices():
    depth = helper.make_node("Constant", [], ["depth"], value=numpy_helper.from_array(np.array(6)))
    values = numpy_helper.from_array(np.array([0, 1], np.float32), "values")
    one_hot = helper.make_node("OneHot", ["ids", "depth", "values"], ["y"])
    model = model_of([depth, one_hot], [("ids", TensorProto.INT64, [100])], [values])
    assert index_limit(model.graph, "ids") == 6


def test_masks_are_ones_and_positions_count_up():
    nodes = [helper.make_node("Add", ["attention_mask", "position_ids"], ["y"])]
    inputs = [("attention_mask", TensorProto.INT64, [1, 4]), ("position_ids", TensorProto.INT64, [1, 4])]
    feeds = feeds_of(model_of(nodes, inputs))
    assert feeds["attention_mask"].tolist() == [[1, 1, 1, 1]]
    assert feeds["position_ids"].tolist() == [[0, 1, 2, 3]]


def test_inputs_with_a_default_are_not_fed():
    default = numpy_helper.from_array(np.zeros(2, np.float32), "b")
    inputs = [("x", TensorProto.FLOAT, [2]), ("b", TensorProto.FLOAT, [2])]
    model = model_of([helper.make_node("Add", ["x", "b"], ["y"])], inputs, [default])
    assert [spec.name for spec in input_specs(model)] == ["x"]


def test_dims_come_from_the_option_then_from_files_then_from_a_default(tmp_path):
    nodes = [helper.make_node("Sum", ["a", "b"], ["y"])]
    inputs = [("a", TensorProto.FLOAT, ["N", "T"]), ("b", TensorProto.FLOAT, ["N", "T"])]
    model = model_of(nodes, inputs)
    assert feeds_of(model)["a"].shape == (1, 16)
    assert feeds_of(model, dims={"N": 4})["b"].shape == (4, 16)
    np.save(tmp_path / "a.npy", np.zeros((2, 9), np.float32))
    assert feeds_of(model, [f"a={tmp_path / 'a.npy'}"])["b"].shape == (2, 9)


def test_unnamed_dims_are_set_by_input_and_axis():
    model = identity(dims=(None, 3, None, None))
    assert feeds_of(model)["x"].shape == (1, 3, 224, 224)
    assert feeds_of(model, dims={"x:0": 2, "x:3": 5})["x"].shape == (2, 3, 224, 5)


def test_an_unknown_dim_names_the_near_and_the_known_ones():
    with pytest.raises(CommandError, match=r"no free dimension 'Bacth' \(did you mean 'Batch'\?\)") as failure:
        Dims({"Bacth": 2}).check_names(input_specs(identity(dims=("Batch", None))))
    assert failure.value.advice == "Its free dimensions: Batch, x:0, x:1."


def test_names_may_hold_equals_signs_and_slashes(tmp_path):
    model = model_of(
        [helper.make_node("Add", ["a", "a=b/c"], ["y"])],
        [("a", TensorProto.FLOAT, [1]), ("a=b/c", TensorProto.FLOAT, [1])],
    )
    specs = input_specs(model)
    assert split_files(["a=b/c=two.npy", "a=one.npy"], specs) == {"a=b/c": Path("two.npy"), "a": Path("one.npy")}


def test_one_input_needs_no_name():
    assert split_files(["file.npy"], input_specs(identity())) == {"x": Path("file.npy")}


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((2, 3)), "takes float32, but .* holds float64"),
        (np.zeros((3, 2), np.float32), r"takes float32 \[2, 3\], but .* holds shape \[3, 2\]"),
        (np.zeros(6, np.float32), r"holds shape \[6\]"),
    ],
)
def test_a_file_of_another_dtype_or_shape_is_refused(tmp_path, array, says):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(CommandError, match=says):
        feeds_of(identity(), [f"x={tmp_path / 'x.npy'}"])


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.write_bytes(b""), "is not a .npy file"),
        (lambda path: path.write_bytes(b"nonsense"), "is not a .npy file"),
        (lambda path: np.save(path, np.array([{}])), "is not a .npy file"),
        (lambda path: np.savez(path.open("wb"), x=np.zeros(1)), "is an .npz archive"),
    ],
)
def test_an_unreadable_input_file_is_explained(tmp_path, write, says):
    path = tmp_path / "x.npy"
    write(path)
    with pytest.raises(CommandError, match=says):
        feeds_of(identity(), [f"x={path}"])


def test_bfloat16_files_are_read_by_their_bytes(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16))
    read = feeds_of(identity(TensorProto.BFLOAT16), [f"x={tmp_path / 'x.npy'}"])["x"]
    assert read.dtype == ml_dtypes.bfloat16
    assert read.astype(np.float32).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_fortran_order_files_are_fed_in_c_order(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))
    read = feeds_of(identity(), [f"x={tmp_path / 'x.npy'}"])["x"]
    assert read.flags.c_contiguous
    assert read.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["z=1.npy"], "no input 'z'"),
        (["xx=1.npy"], r"no input 'xx' \(did you mean 'x'\?\)"),
        (["x=1.npy", "x=2.npy"], "given twice"),
    ],
)
def test_wrong_input_names_are_explained(given, says):
    with pytest.raises(CommandError, match=says):
        split_files(given, input_specs(identity()))


def test_an_input_of_unknown_rank_asks_for_a_file():
    with pytest.raises(CommandError, match="has no known rank") as failure:
        feeds_of(identity(dims=None))
    assert "--input x=FILE.npy" in failure.value.advice


def test_sequence_inputs_are_refused():
    model = identity()
    model.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(model.graph.input[0].type))
    with pytest.raises(CommandError, match="is of type sequence"):
        input_specs(model)


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"<html></html>", b"\xff" * 64]
)
def test_files_that_are_no_model_are_explained(tmp_path, content):
    path = tmp_path / "modèle no 1.onnx"
    path.write_bytes(content)
    with pytest.raises(CommandError, match=r"modèle no 1\.onnx is not an ONNX model"):
        load_model(path)


def test_a_missing_model_and_a_directory_are_explained(tmp_path):
    with pytest.raises(CommandError, match="does not exist"):
        load_model(tmp_path / "no.onnx")
    with pytest.raises(CommandError, match="is a directory"):
        load_model(tmp_path)


def test_a_name_that_is_not_utf8_is_explained(tmp_path):
    path = tmp_path / "bad\udcff.onnx"
    onnx.save(identity(), tmp_path / "good.onnx")
    try:
        (tmp_path / "good.onnx").rename(path)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with pytest.raises(CommandError, match="is not valid UTF-8"):
        load_model(path)
