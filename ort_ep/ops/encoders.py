"""Categories of ai.onnx.ml as numbers: mapped to others, or to one column each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.dtypes import BY_NUMPY, to_mlx
from ort_ep.graph import Node
from ort_ep.ops.ml import ML, TABULAR
from ort_ep.ops.precision import is_float
from ort_ep.ops.reduction import arg_max
from ort_ep.registry import op

Host = np.ndarray[Any, Any]
MAPPED = frozenset({"int16", "int32", "int64", "float32", "float64"})


def without_strings(node: Node) -> str | None:
    """No strings in the attributes."""
    names = [name for name in node.attributes if "strings" in name and node.attributes[name]]
    return f"{min(names)} stay on the CPU provider" if names else None


def matches(x: Array, keys: Array) -> Array:
    """[..., keys]: which key each element equals; NaN is a key like any other."""
    equal = x[..., None] == keys
    return mx.logical_or(equal, mx.logical_and(mx.isnan(x)[..., None], mx.isnan(keys))) if is_float(x) else equal


@op("LabelEncoder", domain=ML, since=2, dtypes={"x": MAPPED, "return": MAPPED}, claim=without_strings)
def label_encoder(
    x: Array,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Host | None = None,
    keys_floats: Sequence[float] = (),
    keys_int64s: Sequence[int] = (),
    keys_strings: Sequence[str] = (),
    keys_tensor: Host | None = None,
    values_floats: Sequence[float] = (),
    values_int64s: Sequence[int] = (),
    values_strings: Sequence[str] = (),
    values_tensor: Host | None = None,
) -> Array:
    keys = mx.array(np.array(keys_floats or keys_int64s) if keys_tensor is None else keys_tensor, x.dtype)
    if values_tensor is not None:
        values, dtype = values_tensor, to_mlx(BY_NUMPY[values_tensor.dtype].code)
        # version 4 has no other default for tensors than the type's usual one
        default = default_tensor if default_tensor is not None else -1 if values.dtype.kind == "i" else -0.0
    elif values_floats:
        values, dtype, default = np.array(values_floats), mx.float32, default_float
    else:
        values, dtype, default = np.array(values_int64s), mx.int64, default_int64
    found = matches(x, keys)
    mapped = mx.take(mx.array(values, dtype), arg_max(found, axis=-1, keepdims=0))
    return mx.where(mx.any(found, -1), mapped, mx.array(np.asarray(default).reshape([]), dtype))


@op("OneHotEncoder", domain=ML, dtypes=TABULAR, claim=without_strings)
def one_hot_encoder(
    x: Array, *, cats_int64s: Sequence[int] = (), cats_strings: Sequence[str] = (), zeros: int = 1
) -> Array:
    categories = mx.array(np.array(cats_int64s, np.int64))
    return (x.astype(mx.int64)[..., None] == categories).astype(mx.float32)
