"""README.md and docs/ do what they show: their Python is run as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import ort_ep

REPOSITORY = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: str) -> list[str]:
    return BLOCK.findall((REPOSITORY / document).read_text(encoding="utf-8"))


def execute(source: str, folder: Path) -> str:
    """Run a script from `folder` and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(ort_ep.__file__).resolve().parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with the model.onnx that the README speaks of."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "model.onnx"
    )
    return tmp_path


@pytest.mark.parametrize("number", range(len(blocks("README.md"))))
def test_readme_block(folder, number):
    execute(blocks("README.md")[number], folder)


def test_readme_shows_the_two_lines():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert "\npip install '.[cpu,demo]' && python -m ort_ep demo\n" in text
    assert "\npip install '.[cpu,test]' && python -m pytest\n" in text


def test_custom_op_document_is_one_script(folder):
    printed = execute("\n".join(blocks("docs/custom_op.md")), folder)
    assert printed, "the document ends by printing what it computed"


def test_shared_weights_document_is_one_script(folder):
    printed = execute("\n".join(blocks("docs/shared_weights.md")), folder)
    assert printed == "(64, 128) mlxc_py.uint32 HostBuffer(float32[128, 64], 32768 bytes)\n"


@pytest.mark.parametrize(
    "document",
    ["README.md", "docs/custom_op.md", "docs/shared_weights.md", "docs/PERFORMANCE.md", "benchmarks/README.md"],
)
def test_links_inside_the_repository_lead_somewhere(document):
    path = REPOSITORY / document
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_every_environment_variable_is_in_the_readme():
    name = re.compile(r"\b(?:MLXC_PY|ONNXRUNTIME_EP_MLX)_[A-Z_]*[A-Z]\b")
    sources = [p for folder in ("mlxc_py", "ort_ep", "native") for p in (REPOSITORY / folder).rglob("*.*")]
    used = {
        v for p in sources if p.suffix in (".py", ".c", ".cpp") for v in name.findall(p.read_text(encoding="utf-8"))
    }
    missing = used - set(name.findall((REPOSITORY / "README.md").read_text(encoding="utf-8")))
    assert "MLXC_PY_LIBRARY" in used
    assert not missing
