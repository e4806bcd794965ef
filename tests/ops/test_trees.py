"""Tree ensembles against ONNX Runtime's CPU provider and a walk in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

Check = Callable[..., None]
Draw = Callable[..., Any]
Host = np.ndarray[Any, Any]
ML = "ai.onnx.ml"
FEATURES = 4
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


class Grown:
    """Random trees in the attributes of versions 1 to 4; `leaves` are (tree, node)."""

    def __init__(self, seed: int, trees: int, depth: int, modes: list[str], missing: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: dict[str, list[Any]] = {
            f"nodes_{name}": []
            for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
        }
        if missing:
            self.nodes["nodes_missing_value_tracks_true"] = []
        self.leaves: list[tuple[int, int]] = []
        self.modes = modes
        for tree in range(trees):
            self.count = 0
            self.grow(tree, depth)

    def grow(self, tree: int, depth: int) -> int:
        node, self.count = self.count, self.count + 1
        leaf = depth == 0 or (node > 0 and self.random.random() < 0.2)
        row = len(self.nodes["nodes_treeids"])
        values: dict[str, Any] = {
            "treeids": tree,
            "nodeids": node,
            "featureids": 0 if leaf else int(self.random.integers(FEATURES)),
        }
        values |= {"values": 0.0 if leaf else float(self.random.integers(-3, 4)) / 2, "truenodeids": 0}
        values |= {"modes": "LEAF" if leaf else str(self.random.choice(self.modes)), "falsenodeids": 0}
        values |= {"missing_value_tracks_true": int(self.random.integers(2))}
        for name, column in self.nodes.items():
            column.append(values[name.removeprefix("nodes_")])
        if leaf:
            self.leaves.append((tree, node))
        else:
            self.nodes["nodes_truenodeids"][row] = self.grow(tree, depth - 1)
            self.nodes["nodes_falsenodeids"][row] = self.grow(tree, depth - 1)
        return node

    def scores(self, prefix: str, ids: str, targets: list[int], positive: bool = False) -> dict[str, Any]:
        rows = [(target, tree, node) for tree, node in self.leaves for target in targets]
        weights = self.random.standard_normal(len(rows))
        weights = np.abs(weights) / 10 if positive else weights
        return {
            ids: [row[0] for row in rows],
            f"{prefix}_treeids": [row[1] for row in rows],
            f"{prefix}_nodeids": [row[2] for row in rows],
            f"{prefix}_weights": weights.tolist(),
        }


def table(draw: Draw, dtype: Any, missing: bool = False) -> Host:
    x: Host = (np.round(2 * draw(np.float64, 20, FEATURES)) / 2).astype(dtype)
    if missing:
        x[::3, 1] = np.nan
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
def test_regressor(check: Check, draw: Draw, dtype: Any, aggregate: str, targets: int) -> None:
    trees = Grown(3, 5, 4, ["BRANCH_LEQ"])
    how = {**trees.nodes, **trees.scores("target", "target_ids", list(range(targets))), "n_targets": targets}
    how |= {"aggregate_function": aggregate, "base_values": [0.5] * targets}
    check("TreeEnsembleRegressor", table(draw, dtype), domain=ML, rtol=1e-4, **how)


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_integer_features(check: Check, dtype: Any) -> None:
    how: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [1, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
    }
    how |= {"target_ids": [0, 0], "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_weights": [3.0, -4.0]}
    x = np.array([[5, 0], [5, 1], [0, -7]], dtype)
    expected = np.array([[3], [-4], [3]], np.float32)
    check("TreeEnsembleRegressor", x, expect=expected, domain=ML, n_targets=1, **how)


@pytest.mark.parametrize("modes", [[mode] for mode in MODES] + [MODES])
@pytest.mark.parametrize("missing", [True, False])
def test_modes_and_missing_values(check: Check, draw: Draw, modes: list[str], missing: bool) -> None:
    trees = Grown(5, 3, 5, modes, missing)
    how = {**trees.nodes, **trees.scores("target", "target_ids", [0]), "n_targets": 1}
    check("TreeEnsembleRegressor", table(draw, np.float32, missing), domain=ML, rtol=1e-4, **how)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_regressor_transforms(check: Check, draw: Draw, transform: str) -> None:
    trees = Grown(7, 3, 3, ["BRANCH_LT"])
    how = {**trees.nodes, **trees.scores("target", "target_ids", [0, 1, 2]), "n_targets": 3}
    check("TreeEnsembleRegressor", table(draw, np.float32), domain=ML, rtol=1e-3, post_transform=transform, **how)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("base", [[], [0.1, 0.2, -0.3]])
def test_three_classes(check: Check, draw: Draw, dtype: Any, transform: str, base: list[float]) -> None:
    trees = Grown(9, 4, 4, ["BRANCH_LEQ"])
    how = {**trees.nodes, **trees.scores("class", "class_ids", [0, 1, 2]), "classlabels_int64s": [4, 7, 9]}
    how |= {"post_transform": transform} | ({"base_values": base} if base else {})
    check("TreeEnsembleClassifier", table(draw, dtype), domain=ML, outputs=2, rtol=1e-3, **how)


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("base", [[], [0.1]])
def test_two_classes_with_one_score(
    check: Check, draw: Draw, positive: bool, transform: str, base: list[float]
) -> None:
    trees = Grown(11, 4, 4, ["BRANCH_LEQ"])
    how = {**trees.nodes, **trees.scores("class", "class_ids", [0], positive), "classlabels_int64s": [4, 7]}
    how |= {"post_transform": transform} | ({"base_values": base} if base else {})
    check("TreeEnsembleClassifier", table(draw, np.float32), domain=ML, outputs=2, rtol=1e-3, **how)


def test_two_classes_with_two_scores(check: Check, draw: Draw) -> None:
    trees = Grown(13, 4, 4, ["BRANCH_LEQ"])
    # ORT 1.32 answers 0 and 1 here, whatever the labels are
    how = {**trees.nodes, **trees.scores("class", "class_ids", [0, 1]), "classlabels_int64s": [0, 1]}
    check("TreeEnsembleClassifier", table(draw, np.float32), domain=ML, outputs=2, rtol=1e-3, **how)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
def test_version_5(check: Check, draw: Draw, dtype: Any, aggregate: int) -> None:
    # x[0] <= 0.5 ? (x[1] in {1, 2} ? leaf 0 : leaf 1) : leaf 2, and a tree of one test
    x = np.array([[0, 1], [0, 3], [1, 0], [0, 2], [np.nan, 1]], dtype)
    weights = np.array([5, 10, 20, 1, -1], dtype)
    how = {
        "tree_roots": [0, 2],
        "n_targets": 2,
        "aggregate_function": aggregate,
        "nodes_featureids": [0, 1, 1],
        "nodes_splits": numpy_helper.from_array(np.array([0.5, 0, 1.5], dtype)),
        "nodes_modes": numpy_helper.from_array(np.array([0, 6, 3], np.uint8)),
        "nodes_truenodeids": [1, 0, 3],
        "nodes_falsenodeids": [2, 1, 4],
        "nodes_trueleafs": [0, 1, 1],
        "nodes_falseleafs": [1, 1, 1],
        "nodes_missing_value_tracks_true": [1, 0, 0],
        "membership_values": numpy_helper.from_array(np.array([1, 2, np.nan], dtype)),
        "leaf_targetids": [0, 0, 1, 1, 1],
        "leaf_weights": numpy_helper.from_array(weights),
    }
    first = [(0, 5.0), (0, 10.0), (1, 20.0), (0, 5.0), (0, 5.0)]
    second = [-1.0, 1.0, -1.0, 1.0, -1.0]
    expected = np.zeros((5, 2))
    for row, ((target, score), other) in enumerate(zip(first, second, strict=True)):
        for column in (0, 1):
            parts = ([score] if target == column else []) + ([other] if column == 1 else [])
            combine: Any = [lambda values: sum(values) / 2, sum, min, max][aggregate]
            expected[row, column] = combine(parts) if parts else 0
    check("TreeEnsemble", x, expect=expected.astype(dtype), domain=ML, opset=21, **how)


def test_trees_that_loop_are_an_error(draw: Draw, plan_of: Any) -> None:
    nodes: dict[str, Any] = {
        "nodes_treeids": [0, 0],
        "nodes_nodeids": [0, 1],
        "nodes_featureids": [0, 0],
        "nodes_values": [0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ"],
        "nodes_truenodeids": [1, 1],
        "nodes_falsenodeids": [1, 1],
    }
    scores: dict[str, Any] = {"target_ids": [0], "target_treeids": [0], "target_nodeids": [1], "target_weights": [1.0]}
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, n_targets=1, **nodes, **scores)
    x, y = (helper.make_tensor_value_info(name, 1, None) for name in "xy")
    graph = helper.make_graph([node], "loop", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(ML, 3)])
    with pytest.raises(RuntimeError, match="lead back"):
        plan_of(model, {"x": draw(np.float32, 2, 3)})
