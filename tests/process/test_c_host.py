"""The plugin in a C program that has no Python of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import onnx
import onnxruntime
import pytest

import ort_ep

HERE = Path(__file__).resolve().parent
HEADERS = HERE.parents[1] / "native" / "plugin"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None or not (HEADERS / "ort_abi.h").is_file():
        pytest.skip("needs a C compiler and the source tree")
    program = tmp_path_factory.mktemp("host") / "c_host"
    source = str(HERE / "c_host.c")
    subprocess.run([compiler, "-Wall", "-I", str(HEADERS), source, "-o", str(program), "-ldl", "-pthread"], check=True)
    return str(program)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """x + 1 on float32 [N, 4]."""
    graph = onnx.parser.parse_graph("g (float[N, 4] x) => (float[N, 4] y) <float one = {1}> { y = Add(x, one) }")
    path = tmp_path_factory.mktemp("host") / "plus_one.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10), path)
    return str(path)


def start(host: str, model: str, library: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    capi = Path(onnxruntime.__file__).parent / "capi"
    runtime = next((str(path) for path in sorted(capi.glob("libonnxruntime.*"))), None)
    if runtime is None:
        pytest.skip(f"no libonnxruntime in {capi}")
    return subprocess.run(
        [host, runtime, library or ort_ep.get_library_path(), model],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": os.environ["PATH"], **environment},
    )


@pytest.mark.parametrize("name", ["plain", "päckages of 日本"])
def test_runs_a_model(host: str, model: str, tmp_path: Path, name: str) -> None:
    """Also where the host has chosen no locale and the environment's path is not ASCII."""
    libpython = Path(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "")
    if not libpython.is_file() or libpython.suffix == ".a":
        pytest.skip("this Python has no shared libpython")
    root, library = Path(ort_ep.__file__).resolve().parents[1], Path(ort_ep.get_library_path()).resolve()
    here = tmp_path / name
    here.symlink_to(root)
    packages = [str(here), *(p for p in sys.path if p.endswith("site-packages"))]
    ended = start(
        host,
        model,
        str(here / library.relative_to(root)),
        ONNXRUNTIME_EP_MLX_LIBPYTHON=str(libpython),
        PYTHONPATH=os.pathsep.join(packages),
        PYTHONHOME=sys.base_prefix,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_says_what_is_missing(host: str, model: str) -> None:
    ended = start(host, model, ONNXRUNTIME_EP_MLX_LIBPYTHON="/nowhere/libpython3.so")
    assert ended.returncode == 1
    assert "MLXExecutionProvider: this program has no Python and no libpython could be loaded" in ended.stderr
    assert "/nowhere/libpython3.so" in ended.stderr and "set ONNXRUNTIME_EP_MLX_LIBPYTHON" in ended.stderr
