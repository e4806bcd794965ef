"""Operators of ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import Given, Maker, case
from onnx import numpy_helper

DOMAIN = "ai.onnx.ml"
LINEAR: dict[str, Any] = {"coefficients": [0.5, -0.25, 0.125, 1.0, -0.5, 0.75], "intercepts": [0.1, -0.2]}
SUPPORTS: dict[str, Any] = {"kernel_type": "RBF", "kernel_params": [0.3, 0.0, 0.0]}
VECTORS = [0.5, -1.0, 1.5, 2.0, 0.25, -0.75, 1.0, -2.0, 0.5]
TREE: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [1, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}


def table(**attributes: Any) -> Maker:
    return lambda g: case(g(0, 4, 3), batch=[0], **attributes)


def classifier(**attributes: Any) -> Maker:
    return lambda g: case(g(0, 4, 3), outputs=2, batch=[0], **attributes)


def linear(g: Given) -> Any:
    x = g(0, 4, 3)
    y = x.astype(np.float64) @ np.reshape(LINEAR["coefficients"], (2, 3)).T + LINEAR["intercepts"]
    return case(x, targets=2, expect=y.astype(np.float32), tolerance=1e-4, batch=[0], **LINEAR)


def support_regressor(g: Given) -> Any:
    x, weights = g(0, 4, 3), [0.5, -1.0, 0.75]
    apart = x.astype(np.float64)[:, None] - np.reshape(VECTORS, (3, 3))
    y = (np.exp(-0.3 * (apart**2).sum(-1)) * weights).sum(-1, keepdims=True) + 0.1
    how = {"n_supports": 3, "coefficients": weights, "support_vectors": VECTORS, "rho": [0.1], **SUPPORTS}
    return case(x, expect=y.astype(np.float32), batch=[0], **how)


def imputer(g: Given) -> Any:
    x = g(0, 4, 3)
    x[1, 1] = 2
    floats = "float" in g.narrow(0)
    how: Any = {"imputed_value_floats": [7.0], "replaced_value_float": 2.0}
    how = how if floats else {"imputed_value_int64s": [7], "replaced_value_int64": 2}
    return case(x, expect=np.where(x == 2, 7, x).astype(x.dtype), batch=[0], **how)


def features(g: Given) -> Any:
    return case(g(0, 3, 2), g(0, 3, 4), inputdimensions=[2, 4], batch=[0, 1])


def extractor(g: Given) -> Any:
    x = g(0, 3, 4)
    return case(x, np.array([[3, 0]]), expect=x[:, [3, 0]], batch=[0])


def one_hot(g: Given) -> Any:
    return case(
        g.at(0, [3, 7, 4]),
        cats_int64s=[3, 5, 7],
        expect=np.array([[1, 0, 0], [0, 0, 1], [0, 0, 0]], np.float32),
        batch=[0],
    )


def labels(g: Given) -> Any:
    keys, values = g.narrow("T1"), g.narrow("T2")
    x = g.at(0, [[3, 1], [5, 9]])
    expect = np.array([[30, 10], [20, 7]]).astype(g.dtype("T2"))
    if g.version >= 4:
        given = {
            "keys_tensor": g.at(0, [1, 5, 3]),
            "values_tensor": g.at("T2", [10, 20, 30]),
            "default_tensor": g.at("T2", [7]),
        }
        return case(x, expect=expect, **{name: numpy_helper.from_array(value) for name, value in given.items()})
    lists = {"int64": "int64s", "float32": "floats"}
    how: Any = {f"keys_{lists[keys]}": [1, 5, 3], f"values_{lists[values]}": [10, 20, 30]}
    how = {name: list(map(float, row)) if name.endswith("floats") else row for name, row in how.items()}
    how |= {"default_int64": 7, "default_float": 7.0}
    return case(x, expect=expect, batch=[0], **how)


def ensemble(g: Given) -> Any:
    x = g.at(0, [[0, 1], [0, 3], [1, 0]])
    splits, weights = g.at(0, [0.5, 1.5]), g.at(0, [5, 10, 20])
    how: Any = {
        "tree_roots": [0],
        "n_targets": 1,
        "nodes_featureids": [0, 1],
        "nodes_splits": numpy_helper.from_array(splits),
        "nodes_modes": numpy_helper.from_array(np.array([0, 0], np.uint8)),
        "nodes_truenodeids": [1, 0],
        "nodes_falsenodeids": [2, 1],
        "nodes_trueleafs": [0, 1],
        "nodes_falseleafs": [1, 1],
        "leaf_targetids": [0, 0, 0],
        "leaf_weights": numpy_helper.from_array(weights),
    }
    return case(x, expect=g.at(0, [[5], [10], [20]]), batch=[0], **how)


def regressor(g: Given) -> Any:
    x = g.at(0, [[0, 0], [0, 1], [3, -2]])
    scores: Any = {
        "target_ids": [0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_weights": [3.0, -4.0],
    }
    return case(x, n_targets=1, expect=np.array([[3], [-4], [3]], np.float32), batch=[0], **TREE, **scores)


def tree_classifier(g: Given) -> Any:
    x = g.at(0, [[0, 0], [0, 1], [3, -2]])
    scores: Any = {"class_ids": [0, 1, 2, 0], "class_treeids": [0] * 4, "class_nodeids": [1, 1, 2, 2]}
    scores |= {"class_weights": [3.0, 1.0, 4.0, 2.0], "classlabels_int64s": [4, 7, 9]}
    expect = [np.array([4, 9, 4]), np.array([[3, 1, 0], [2, 0, 4], [3, 1, 0]], np.float32)]
    return case(x, outputs=2, expect=expect, batch=[0], **TREE, **scores)


CASES: dict[str, Maker] = {
    "ArrayFeatureExtractor": extractor,
    "Binarizer": table(threshold=1.0),
    "FeatureVectorizer": features,
    "Imputer": imputer,
    "LabelEncoder": labels,
    "LinearClassifier": classifier(classlabels_ints=[7, 5], multi_class=1, **LINEAR),
    "LinearRegressor": linear,
    "Normalizer": table(norm="L2"),
    "OneHotEncoder": one_hot,
    "SVMClassifier": classifier(
        classlabels_ints=[2, 5, 7],
        vectors_per_class=[1, 1, 1],
        coefficients=[0.5, -1.0, 0.25, 1.0, -0.5, 0.75],
        support_vectors=VECTORS,
        rho=[0.1, -0.1, 0.2],
        **SUPPORTS,
    ),
    "SVMRegressor": support_regressor,
    "Scaler": table(offset=[1.0, 2.0, 3.0], scale=[0.5, 1.0, 2.0]),
    "TreeEnsemble": ensemble,
    "TreeEnsembleClassifier": tree_classifier,
    "TreeEnsembleRegressor": regressor,
}
