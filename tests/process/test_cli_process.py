"""`python -m ort_ep` as a newcomer meets it: real processes, real exit codes, and one sentence for each mishap."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

REPOSITORY = Path(__file__).resolve().parents[2]
Run = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def command(tmp_path) -> Run:
    """Run the command line from an empty folder; `hidden` modules can't be imported, `first` leads the import path."""

    def run(*arguments, hidden=(), first=None, **environment):
        script = (
            "import sys; sys.modules.update({name: None for name in sys.argv[1].split()}); "
            "from ort_ep.cli import main; sys.exit(main(sys.argv[2:]))"
        )
        # the clone may not be installed: its packages are found through the path, after `first`
        path = os.pathsep.join(str(p) for p in (first, _package_parent(), os.environ.get("PYTHONPATH")) if p)
        return subprocess.run(
            [sys.executable, "-c", script, " ".join(hidden), *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def _package_parent() -> Path:
    import ort_ep

    return Path(ort_ep.__file__).resolve().parents[1]


@pytest.fixture
def model(tmp_path) -> Path:
    """y = relu(x) for float32 x of [N, 3]; its name holds a space and an umlaut."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path / "mein Mödell.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def failed(done: subprocess.CompletedProcess, *words: str, code: int = 1) -> None:
    """It ended with `code`, an error that holds the words, nothing half printed and no traceback."""
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_run_shows_placement_difference_and_latencies(command, model):
    done = command("run", model.name, "--dim", "N=4", "--runs", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for text in (
        "mein Mödell.onnx",
        "input x: float32 [4, 3]",
        "1 of 1 nodes ran on MLX (100%) in 1 subgraph with 0 host steps, 0 on CPU",
        "float32 [4, 3]",
        "MLX",
        "CPU",
    ):
        assert text in done.stdout


def test_run_feeds_files_and_saves_outputs(command, model, tmp_path):
    np.save(tmp_path / "x.npy", np.float32([[-1, 0, 2]]))
    done = command("run", model, "--input", "x=x.npy", "--output", "out put", "--runs", "1")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "out put" / "0_y.npy").tolist() == [[0, 0, 2]]


def test_the_same_seed_gives_the_same_outputs(command, model, tmp_path):
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert command("run", model, "--seed", seed, "--output", folder, "--runs", "1").returncode == 0
    a, b, c = (np.load(tmp_path / folder / "0_y.npy") for folder in "abc")
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def test_a_model_that_onnxruntime_refuses(command, tmp_path):
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("NoSuchOperator", [], ["y"])], "g", [], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    failed(command("run", "m.onnx"), "NoSuchOperator")


def test_strict_fails_when_a_node_stays_on_cpu(command, tmp_path):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    nodes = [
        helper.make_node("Cast", ["x"], ["text"], to=TensorProto.STRING),
        helper.make_node("Cast", ["text"], ["y"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    done = command("run", "m.onnx", "--runs", "1")
    assert done.returncode == 0, done.stderr
    assert "0 of 2 nodes ran on MLX" in done.stdout and "string" in done.stdout
    failed(command("run", "m.onnx", "--strict"), "Cast", "string")
    failed(command("run", "m.onnx", "--option", "strict=1"), "Cast", "string")
    assert command("run", "m.onnx", "--option", "strict=0").returncode == 0


def test_debug_shows_the_traceback(command):
    done = command("run", "no.onnx", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "does not exist" in done.stderr


@pytest.mark.parametrize("arguments", [["demo"], ["run", "{model}"]])
def test_without_onnxruntime(command, model, arguments):
    done = command(*(str(model) if a == "{model}" else a for a in arguments), hidden=["onnxruntime"])
    failed(done, "onnxruntime is not installed", "mlxc-py[ort]")


def test_demo_without_magika(command):
    failed(command("demo", hidden=["magika"]), "needs Google's magika", "mlxc-py[demo]")


def test_demo_identifies_files(command, tmp_path):
    pytest.importorskip("magika")
    (tmp_path / "größe [1].py").write_text("import sys\n\n\ndef main() -> None:\n    print(sys.argv)\n" * 5)
    (tmp_path / "leer").write_text("")
    done = command("demo", "größe [1].py", "leer", "--runs", "2")
    assert done.returncode == 0, done.stderr
    lines = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert "python: Python source" in lines["größe [1].py"] and " ms" in lines["größe [1].py"]
    assert "empty: Empty file" in lines["leer"] and "no model run needed" in lines["leer"]


def fake(tmp_path: Path, name: str, files: dict[str, str]) -> Path:
    """A folder with a stand-in package, to lead the import path."""
    for file, content in files.items():
        path = tmp_path / "first" / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "first"


def test_no_libmlxc(command, model):
    failed(command("run", model, MLXC_PY_LIBRARY="/nowhere/libmlxc.so"), "/nowhere/libmlxc.so", "MLXC_PY_LIBRARY")


def test_mlx_without_a_back_end(command, model, tmp_path):
    first = fake(tmp_path, "mlx", {"__init__.py": ""})
    failed(command("run", model, first=first), "mlx is installed without a back end", "mlxc-py[cpu]")


def test_another_mlx_than_the_build_used(command, model, tmp_path):
    version = "".join(f"#define MLX_VERSION_{part} {n}\n" for part, n in (("MAJOR", 9), ("MINOR", 8), ("PATCH", 7)))
    files = {"__init__.py": "", "lib/libmlx.so": "", "lib/libmlx.dylib": "", "include/mlx/version.h": version}
    failed(command("run", model, first=fake(tmp_path, "mlx", files)), "MLX 9.8.7 is installed")


def test_an_onnxruntime_that_is_too_old(command, model, tmp_path):
    first = fake(tmp_path, "onnxruntime", {"__init__.py": "__version__ = '1.23.2'\n"})
    failed(command("run", model, first=first), "1.24", "1.23.2")
    report = json.loads(command("doctor", "--json", first=first).stdout)
    assert "1.23.2" in report["ONNX Runtime"]["problem"] and not report["ready"]


def test_doctor_finds_the_installation_ready(command):
    done = command("doctor")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Ready: models run on MLX." in done.stdout
    for text in ("libmlxc", "BLAS", "MLXExecutionProvider", "onnxruntime", "ONNXRUNTIME_EP_MLX_"):
        assert text in done.stdout


def test_doctor_as_json(command):
    report = json.loads(command("doctor", "--json").stdout)
    assert report["ready"] is True
    assert report["libmlxc"]["path"] and report["Options"]


def test_doctor_reports_every_problem_and_fails(command):
    done = command("doctor", hidden=["onnxruntime"], MLXC_PY_LIBRARY="/nowhere/libmlxc.so")
    failed(done, "error: libmlxc: ", "error: ONNX Runtime: onnxruntime is not installed")
    assert "executable" in done.stdout


def test_doctor_shows_an_option_set_by_the_environment(command):
    report = json.loads(command("doctor", "--json", ONNXRUNTIME_EP_MLX_PARTITION="cost").stdout)
    assert report["Options"]["partition"]["from environment"] == "cost"


def test_doctor_shows_an_unknown_variable(command):
    done = command("doctor", ONNXRUNTIME_EP_MLX_PARTITIONS="cost")
    failed(done, "error: Options: unknown environment variable ONNXRUNTIME_EP_MLX_PARTITIONS; did you mean")


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_ctrl_c_ends_quietly_with_130(model, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "ort_ep", "run", str(model), "--runs", "100000000"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_package_parent())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # the inputs are listed once both sessions stand, just before the endless runs
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, errors) == (130, "")


def test_a_closed_pipe_is_no_traceback(model):
    done = subprocess.run(
        f"'{sys.executable}' -m ort_ep doctor | head -1",
        shell=True,
        env={**os.environ, "PYTHONPATH": str(_package_parent())},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == "Python"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("closed", "open_one"), [(">&-", "stderr"), ("2>&-", "stdout")])
def test_a_closed_stream(tmp_path, closed, open_one):
    shell = f'exec "$0" -m ort_ep run no.onnx {closed}'
    path = os.pathsep.join([str(_package_parent()), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert ("no.onnx does not exist" in done.stderr) == (open_one == "stderr")
    assert "Traceback" not in done.stderr + done.stdout
