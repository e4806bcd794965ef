"""Tree ensembles of ai.onnx.ml: every row walks down all trees at once, as many steps as the deepest has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.graph import Node
from ort_ep.ops.ml import ML, POST_TRANSFORMS, TABULAR
from ort_ep.ops.reduction import arg_max
from ort_ep.registry import op

Host = np.ndarray[Any, Any]
Values = Sequence[float] | Host

MODES: dict[str, Callable[[Array, Array], Array]] = {
    "BRANCH_LEQ": mx.less_equal,
    "BRANCH_LT": mx.less,
    "BRANCH_GTE": mx.greater_equal,
    "BRANCH_GT": mx.greater,
    "BRANCH_EQ": mx.equal,
    "BRANCH_NEQ": mx.not_equal,
}
MODE_NAMES = [*MODES, "BRANCH_MEMBER", "LEAF"]
MEMBER, LEAF = MODE_NAMES.index("BRANCH_MEMBER"), MODE_NAMES.index("LEAF")
AGGREGATES = ["AVERAGE", "SUM", "MIN", "MAX"]
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees side by side; a leaf's branches lead to itself. `scores` [nodes, targets], NaN where none.

    `sets` holds, for each node that tests membership, the values of its set, padded with NaN.
    """

    feature: Host
    split: Host
    mode: Host
    yes: Host
    no: Host
    missing: Host
    roots: Host
    scores: Host
    sets: Host

    def depth(self) -> int:
        """How many steps lead from the roots to the last leaf."""
        level, steps = self.roots, 0
        while (level := level[self.mode[level] != LEAF]).size:
            steps += 1
            following = np.concatenate([self.yes[level], self.no[level]])
            if not ((following >= 0) & (following < len(self.mode))).all():
                raise ValueError("a tree's branch leads to a node that does not exist")
            if steps > len(self.mode):
                raise ValueError("a tree's branches lead back to one of its own nodes")
            level = np.unique(following)
        return steps

    def leaves(self, x: Array) -> Array:
        """[N, features] -> the leaf [N, trees] that each row reaches."""
        if (self.feature < 0).any() or (self.feature >= x.shape[1]).any():
            raise ValueError(f"a tree tests feature {int(self.feature.max())} of {x.shape[1]}")
        feature, yes, no = (mx.array(table.astype(np.int32)) for table in (self.feature, self.yes, self.no))
        split, mode = mx.array(self.split, x.dtype), mx.array(self.mode.astype(np.int32))
        state = mx.broadcast_to(mx.array(self.roots.astype(np.int32)), [x.shape[0], len(self.roots)])
        for _ in range(self.depth()):
            value = mx.take_along_axis(x, mx.take(feature, state), 1)
            chosen = self.holds(value, mx.take(split, state), mx.take(mode, state), state)
            if self.missing.any():
                tracked = mx.take(mx.array(self.missing.astype(bool)), state)
                chosen = mx.logical_or(chosen, mx.logical_and(mx.isnan(value), tracked))
            state = mx.where(chosen, mx.take(yes, state), mx.take(no, state))
        return state

    def holds(self, value: Array, split: Array, mode: Array, state: Array) -> Array:
        """Whether each row passes the test of the node it is at."""
        answers = []
        for code in np.unique(self.mode[self.mode != LEAF]).tolist():
            if code == MEMBER:
                members = mx.take(mx.array(self.sets, value.dtype), state, 0)
                answers.append((code, mx.any(members == value[..., None], -1)))
            else:
                answers.append((code, MODES[MODE_NAMES[code]](value, split)))
        holds = answers[0][1]
        for code, answer in answers[1:]:
            holds = mx.where(mode == code, answer, holds)
        return holds

    def targets(self, x: Array, aggregate: str = "SUM") -> Array:
        """[N, targets]: the scores of the leaves that a row reaches, aggregated over the trees."""
        reached = mx.take(mx.array(self.scores, x.dtype), self.leaves(x), 0)
        scored = mx.logical_not(mx.isnan(reached))
        if aggregate in ("MIN", "MAX"):
            reduce, fill = (mx.min, np.inf) if aggregate == "MIN" else (mx.max, -np.inf)
            extreme = reduce(mx.where(scored, reached, mx.array(fill, x.dtype)), 1)
            return mx.where(mx.any(scored, 1), extreme, mx.zeros_like(extreme))
        total = mx.sum(mx.where(scored, reached, mx.zeros_like(reached)), 1)
        return total / len(self.roots) if aggregate == "AVERAGE" else total


class Nodes(TypedDict, total=False):
    """The attributes of versions 1 to 4 that list the nodes of all trees, besides their values."""

    nodes_falsenodeids: Sequence[int]
    nodes_featureids: Sequence[int]
    nodes_hitrates: Sequence[float]
    nodes_hitrates_as_tensor: Host
    nodes_missing_value_tracks_true: Sequence[int]
    nodes_modes: Sequence[str]
    nodes_nodeids: Sequence[int]
    nodes_treeids: Sequence[int]
    nodes_truenodeids: Sequence[int]


def numbered(ids: Sequence[int], trees: Sequence[int]) -> dict[tuple[int, int], int]:
    return {key: index for index, key in enumerate(zip(trees, ids, strict=True))}


def either(plain: Sequence[float], tensor: Host | None) -> Host:
    return np.asarray(plain, np.float32) if tensor is None else tensor


def forest_of(nodes: Nodes, splits: Host, targets: int, scored: tuple[Any, Any, Any, Host]) -> Forest:
    """Of the attributes that versions 1 to 4 have: nodes named by tree and id, scores by target, tree and node."""
    index = numbered(nodes["nodes_nodeids"], nodes["nodes_treeids"])
    trees, count = nodes["nodes_treeids"], len(index)
    mode = np.array([MODE_NAMES.index(name) for name in nodes["nodes_modes"]])
    places = np.arange(count)

    def branches(ids: Sequence[int]) -> Host:
        named = zip(trees, ids, strict=True)
        return np.array([index.get(key, 0) if mode[i] != LEAF else i for i, key in enumerate(named)])

    scores = np.full([count, targets], np.nan)
    for target, tree, node, weight in zip(*scored, strict=True):
        place = (index[tree, node], target)
        scores[place] = weight if np.isnan(scores[place]) else scores[place] + weight
    # the first node of a tree that no branch leads to
    yes, no = branches(nodes["nodes_truenodeids"]), branches(nodes["nodes_falsenodeids"])
    inner = mode != LEAF
    below = np.union1d(yes[inner], no[inner])
    missing = np.array(nodes.get("nodes_missing_value_tracks_true") or [0] * count)
    return Forest(
        feature=np.where(inner, nodes["nodes_featureids"], 0),
        split=splits,
        mode=mode,
        yes=yes,
        no=no,
        missing=missing,
        roots=np.setdiff1d(places, below),
        scores=scores,
        sets=np.zeros([count, 0]),
    )


def rows_of(x: Array) -> Array:
    """[N, features] in the float type that splits are compared in."""
    rows = x if x.dtype == mx.float64 else x.astype(mx.float32)
    return rows.reshape([-1, x.shape[-1]])


def plain_modes(node: Node) -> str | None:
    """Only the node modes of the specification."""
    unknown = set(node.attributes.get("nodes_modes", ())) - {*MODES, "LEAF"}
    return f"node mode {min(unknown)} is not supported" if unknown else None


@op("TreeEnsembleRegressor", domain=ML, dtypes=TABULAR, claim=plain_modes)
def tree_ensemble_regressor(
    x: Array,
    *,
    aggregate_function: str = "SUM",
    base_values: Sequence[float] = (),
    base_values_as_tensor: Host | None = None,
    n_targets: int,
    post_transform: str = "NONE",
    nodes_values: Sequence[float] = (),
    nodes_values_as_tensor: Host | None = None,
    target_ids: Sequence[int],
    target_nodeids: Sequence[int],
    target_treeids: Sequence[int],
    target_weights: Sequence[float] = (),
    target_weights_as_tensor: Host | None = None,
    **nodes: Unpack[Nodes],
) -> Array:
    weights = either(target_weights, target_weights_as_tensor)
    scored = (target_ids, target_treeids, target_nodeids, weights)
    forest = forest_of(nodes, either(nodes_values, nodes_values_as_tensor), n_targets, scored)
    y = forest.targets(rows_of(x), aggregate_function)
    base = either(base_values, base_values_as_tensor)
    y = y + mx.array(base, y.dtype) if base.size else y
    return POST_TRANSFORMS[post_transform](y).astype(mx.float32)


def integer_classes(node: Node) -> str | None:
    """Two or more integer labels."""
    if len(node.attributes.get("classlabels_int64s", ())) < 2:
        return "only ensembles with two or more integer labels are translated"
    return plain_modes(node)


@op("TreeEnsembleClassifier", domain=ML, dtypes={"x": TABULAR}, claim=integer_classes)
def tree_ensemble_classifier(
    x: Array,
    *,
    base_values: Sequence[float] = (),
    base_values_as_tensor: Host | None = None,
    class_ids: Sequence[int],
    class_nodeids: Sequence[int],
    class_treeids: Sequence[int],
    class_weights: Sequence[float] = (),
    class_weights_as_tensor: Host | None = None,
    classlabels_int64s: Sequence[int],
    classlabels_strings: Sequence[str] = (),
    post_transform: str = "NONE",
    nodes_values: Sequence[float] = (),
    nodes_values_as_tensor: Host | None = None,
    **nodes: Unpack[Nodes],
) -> tuple[Array, Array]:
    weights = either(class_weights, class_weights_as_tensor)
    classes = len(classlabels_int64s)
    scored = (class_ids, class_treeids, class_nodeids, weights)
    forest = forest_of(nodes, either(nodes_values, nodes_values_as_tensor), classes, scored)
    scores = forest.targets(rows_of(x))
    base = either(base_values, base_values_as_tensor)
    labels = mx.array(list(classlabels_int64s), mx.int64)
    if classes == 2 and len(set(class_ids)) == 1:
        # one score for two classes: its distance from a half or from zero decides, whether it can be negative or not
        score = scores[:, class_ids[0]]
        score = score + float(base[-1]) if base.size else score
        certain = bool((weights >= 0).all())
        label = mx.where(score > (0.5 if certain else 0), labels[1], labels[0])
        logistic = post_transform == "LOGISTIC"
        pair = mx.stack([1 - score if certain and not logistic else -score, score], 1)
        return label, (POST_TRANSFORMS["LOGISTIC"](pair) if logistic else pair).astype(mx.float32)
    scores = scores + mx.array(base, scores.dtype) if base.size == classes else scores
    # of two classes the second wins where it has any weight
    best = (scores[:, 1] > 0).astype(mx.int32) if classes == 2 else arg_max(scores, axis=-1, keepdims=0)
    return mx.take(labels, best), POST_TRANSFORMS[post_transform](scores).astype(mx.float32)


@op("TreeEnsemble", domain=ML, since=5, dtypes=frozenset({"float16", "float32", "float64"}))
def tree_ensemble(
    x: Array,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Sequence[int],
    leaf_weights: Host,
    membership_values: Host | None = None,
    n_targets: int,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_hitrates: Host | None = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_modes: Host,
    nodes_splits: Host,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    post_transform: int = 0,
    tree_roots: Sequence[int],
) -> Array:
    inner, leaves = len(nodes_featureids), len(leaf_targetids)
    own = np.arange(inner, inner + leaves)

    def branches(ids: Sequence[int], are_leaves: Sequence[int]) -> Host:
        return np.concatenate([np.where(np.array(are_leaves, bool), np.array(ids) + inner, ids), own])

    scores = np.full([inner + leaves, n_targets], np.nan)
    scores[own, leaf_targetids] = leaf_weights
    nothing = np.zeros(leaves)
    forest = Forest(
        feature=np.concatenate([nodes_featureids, nothing]),
        split=np.concatenate([nodes_splits, nothing]),
        mode=np.concatenate([nodes_modes, np.full(leaves, LEAF)]).astype(np.int64),
        yes=branches(nodes_truenodeids, nodes_trueleafs),
        no=branches(nodes_falsenodeids, nodes_falseleafs),
        missing=np.concatenate([np.array(nodes_missing_value_tracks_true or [0] * inner), nothing]),
        roots=np.array(tree_roots),
        scores=scores,
        sets=member_sets(nodes_modes, membership_values, inner + leaves),
    )
    y = forest.targets(rows_of(x), AGGREGATES[aggregate_function])
    return POST_TRANSFORMS[TRANSFORMS[post_transform]](y).astype(x.dtype)


def member_sets(modes: Host, values: Host | None, count: int) -> Host:
    """[count, longest]: the sets, which NaN ends in `values`, in the order of the nodes that test membership."""
    if values is None:
        return np.zeros([count, 0])
    ends = np.flatnonzero(np.isnan(values))
    starts = np.concatenate([[0], ends[:-1] + 1])
    sets = np.full([count, int((ends - starts).max(initial=0))], np.nan)
    for node, start, end in zip(np.flatnonzero(modes == MEMBER), starts, ends, strict=False):
        sets[node, : end - start] = values[start:end]
    return sets
