"""Mistakes on the command line: one sentence, exit code 1, or 2 for wrong usage. In this process: nothing is loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

import ort_ep
from ort_ep.cli import app


@pytest.fixture
def model(tmp_path, monkeypatch) -> Path:
    """y = relu(x) for float32 x of [N, 3], in the current folder, beside files that don't fit it."""
    monkeypatch.chdir(tmp_path)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "model.onnx")
    Path("text.onnx").write_text("not a model")
    np.save("f64.npy", np.zeros((1, 3)))
    np.save("flat.npy", np.zeros(3, np.float32))
    return Path("model.onnx")


def invoke(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no.onnx"], "model no.onnx does not exist"),
        (["."], "model . is a directory"),
        (["text.onnx"], "text.onnx is not an ONNX model"),
        (["model.onnx", "--input", "z=x.npy"], "the model has no input 'z'"),
        (["model.onnx", "--input", "x=no.npy"], "no.npy does not exist"),
        (["model.onnx", "--input", "x=f64.npy"], "input 'x' takes float32, but f64.npy holds float64"),
        (["model.onnx", "--input", "x=flat.npy"], "input 'x' takes float32 [N, 3], but flat.npy holds shape [3]"),
        (["model.onnx", "--dim", "M=2"], "the model has no free dimension 'M'"),
        (["model.onnx", "--option", "partitoin=all"], "did you mean 'partition'?"),
        (["model.onnx", "--option", "partition=some"], "'some'"),
        (["model.onnx", "--output", "text.onnx"], "can't make the output folder text.onnx"),
    ],
)
def test_run_explains_what_is_wrong(model, arguments, says):
    done = invoke("run", *arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert says in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--dim", "N"], "'N' is not KEY=VALUE"),
        (["--dim", "N=x"], "'x' is not a size"),
        (["--dim", "N=1", "--dim", "N=2"], "'N' is given twice"),
        (["--option", "=1"], "'=1' is not KEY=VALUE"),
        (["--runs", "0"], "--runs"),
        (["--runz"], "--runz"),
        (["another.onnx"], "another.onnx"),
    ],
)
def test_usage_errors_exit_with_2(model, arguments, says):
    done = invoke("run", str(model), *arguments)
    assert done.exit_code == 2
    assert says in done.stderr


def test_demo_refuses_missing_files_and_folders_before_loading(model):
    pytest.importorskip("magika")
    for path, says in (
        ("no such [file]", "can't read no such [file]: No such file or directory"),
        (".", ". is a directory"),
    ):
        done = invoke("demo", path)
        assert (done.exit_code, done.stdout) == (1, "")
        assert says in done.stderr


@pytest.mark.parametrize("command", ["demo", "run", "doctor"])
def test_every_command_explains_itself(command):
    done = invoke(command, "--help")
    assert done.exit_code == 0
    assert "--debug" in done.stdout


def test_the_version_is_told():
    assert invoke("--version").stdout == f"mlxc-py {ort_ep.__version__}\n"
