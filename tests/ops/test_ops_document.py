"""docs/OPS.md: current, complete, and right about the operators that have no handler."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import ort_ep
from ort_ep.registry import REGISTRY

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gen_ops.py"
X = np.ones((2, 3), np.float32)
LABELS = np.zeros(2, np.int64)
# inputs, which of them are initializers, opset, shape of the result, attributes
Case = tuple[tuple[np.ndarray, ...], tuple[int, ...], int, tuple[int, ...], dict[str, Any]]
FUNCTION_NODES: dict[str, Case] = {
    "BlackmanWindow": ((np.array(8),), (0,), 17, (8,), {}),
    "CenterCropPad": ((X, np.array([4, 2])), (1,), 18, (4, 2), {}),
    "HammingWindow": ((np.array(8),), (0,), 17, (8,), {}),
    "HannWindow": ((np.array(8),), (0,), 17, (8,), {}),
    "NegativeLogLikelihoodLoss": ((X, LABELS), (), 13, (), {}),
    "SoftmaxCrossEntropyLoss": ((X, LABELS), (), 13, (), {}),
}


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_ops", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(heading: str) -> set[str]:
    """The operators that the document gives a handler for in a domain."""
    section = (ROOT / "docs" / "OPS.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    first_table = section.split("| Operator |")[1]
    return {line.split("`")[1] for line in first_table.splitlines() if line.startswith("| `")}


def test_the_document_is_current() -> None:
    # in a process of its own, since other tests register operators in this one
    path = [str(Path(ort_ep.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_check_refuses_a_stale_document(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = generator.main
    monkeypatch.setattr(generator, "DOCUMENT", tmp_path / "OPS.md")
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0
    (tmp_path / "OPS.md").write_text("old\n")
    assert main(["--check"]) == 1
    assert "run: PYTHONPATH=. python scripts/gen_ops.py" in capsys.readouterr().err
    assert (tmp_path / "OPS.md").read_text() == "old\n"


@pytest.mark.parametrize(("domain", "least"), [("ai.onnx", 192), ("ai.onnx.ml", 15), ("com.microsoft", 105)])
def test_no_domain_loses_operators(domain: str, least: int) -> None:
    assert len(listed(domain)) >= least


def test_every_claim_says_what_it_asks_for() -> None:
    REGISTRY.load()
    ours = [handler for handler in REGISTRY.handlers() if handler.function.__module__.startswith("ort_ep.ops.")]
    assert [str(handler) for handler in ours if handler.claim and not handler.claim.__doc__] == []


@pytest.mark.parametrize("domain", ["ai.onnx", "ai.onnx.ml"])
def test_every_operator_of_the_schemas_is_accounted_for(generator: ModuleType, domain: str) -> None:
    functions = set(generator.FUNCTIONS.get(domain, ()))
    declined = set(generator.DECLINED[domain])
    handled = listed(domain)
    assert not handled & (functions | declined)
    newest = {
        schema.name: schema
        for schema in sorted(onnx.defs.get_all_schemas_with_history(), key=lambda schema: schema.since_version)
        if (schema.domain or "ai.onnx") == domain and schema.since_version <= generator.OPSETS[domain]
    }
    assert newest.keys() - handled == (functions | declined) & newest.keys()
    for name in functions & newest.keys():
        assert newest[name].has_function or newest[name].has_context_dependent_function, name


@pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) != (1, 32), reason="the document is about onnxruntime 1.32"
)
def test_every_operator_of_onnxruntime_is_accounted_for(generator: ModuleType) -> None:
    declined, handled = set(generator.DECLINED["com.microsoft"]), listed("com.microsoft")
    assert not handled & declined
    assert {
        schema.name for schema in get_all_operator_schema() if schema.domain == "com.microsoft"
    } == handled | declined


def test_every_function_has_a_node_to_try(generator: ModuleType) -> None:
    assert sorted(FUNCTION_NODES) == sorted(name for names in generator.FUNCTIONS.values() for name in names)


@pytest.mark.parametrize("name", FUNCTION_NODES)
def test_function_bodies_run_on_mlx(name: str, model_of: Callable[..., Any], plan_of: Callable[..., Any]) -> None:
    inputs, constants, opset, shape, attributes = FUNCTION_NODES[name]
    feeds = {f"x{index}": value for index, value in enumerate(inputs) if index not in constants}
    (result,) = plan_of(model_of(name, inputs, opset, "", constants, 1, **attributes), feeds)
    assert result.shape == shape
    assert np.isfinite(result).all()
