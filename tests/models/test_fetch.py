"""The corpus list is sound, and fetching checks what it gets."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import feeds
import fetch
import fill_light
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

CORPUS = fetch.corpus()
SMALL = CORPUS["onnx/filled_squeezenet"]


@pytest.fixture
def empty_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MLXC_PY_MODEL_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("model", CORPUS.values(), ids=CORPUS)
def test_entries_are_pinned_and_feed_every_dtype_they_name(model):
    assert len(model.sha256) == 64 and model.version and model.license
    for recipe in model.feeds.values():
        # one small stand-in per generator: the real shapes are for the slow tests
        made = feeds.make([{**entry, "shape": [min(d, 64) for d in entry["shape"]]} for entry in recipe])
        assert [array.dtype.name for array in made.values()] == [entry["dtype"] for entry in recipe]


def test_feeds_depend_on_the_seed_alone():
    recipe = [{"name": "x", "dtype": "float32", "shape": [2, 3], "gen": "normal"}]
    np.testing.assert_array_equal(feeds.make(recipe, 3)["x"], feeds.make(recipe, 3)["x"])
    assert not np.array_equal(feeds.make(recipe, 3)["x"], feeds.make(recipe, 4)["x"])


def test_a_model_comes_out_of_the_installed_package_and_stays_in_the_cache(empty_cache):
    path = fetch.fetch(SMALL)
    assert path.parent == empty_cache
    before = path.stat().st_mtime_ns
    assert fetch.fetch(SMALL) == path
    assert path.stat().st_mtime_ns == before


def test_a_damaged_cache_file_is_replaced(empty_cache):
    path = fetch.fetch(SMALL)
    path.write_bytes(b"damaged")
    assert fetch.fetch(SMALL).stat().st_size == SMALL.size


def test_filling_twice_gives_the_same_weights_and_no_constant_ones():
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["w"]),
        helper.make_node("Conv", ["x", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 4, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        initializer=[numpy_helper.from_array(np.array([3, 2, 1, 1]), "shape")],
    )
    first, second = (fill_light.fill(helper.make_model(graph)) for _ in range(2))
    assert first == second
    assert [node.op_type for node in first.graph.node] == ["Conv"]
    weight = numpy_helper.to_array(first.graph.initializer[0])
    assert weight.shape == (3, 2, 1, 1) and np.ptp(weight) > 0


def test_a_package_that_cannot_be_downloaded_is_unavailable(empty_cache, monkeypatch):
    def offline(command, **kwargs):
        return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution found\n")

    monkeypatch.setattr(fetch.subprocess, "run", offline)
    with pytest.raises(
        fetch.Unavailable, match=r"rapidocr-onnxruntime 1\.4\.4 could not be downloaded from pypi: ERROR: No"
    ):
        fetch.fetch(CORPUS["rapidocr/det"])


def test_another_content_than_expected_is_an_error(empty_cache, monkeypatch):
    monkeypatch.setattr(fetch, "_installed", lambda model: b"something else")
    with pytest.raises(ValueError, match="holds another model"):
        fetch.fetch(replace(SMALL, key="other"))
    assert list(empty_cache.iterdir()) == []


def test_the_list_is_printed(empty_cache):
    done = subprocess.run(
        [sys.executable, fetch.HERE / "fetch.py", "--list"], capture_output=True, text=True, timeout=60, check=True
    )
    assert len(done.stdout.splitlines()) == len(CORPUS)
