"""Weights and other constants of a plan: the one place where model bytes become values of ours."""

from __future__ import annotations

from typing import Any

import numpy as np

import mlxc_py as mx
from ort_ep import dtypes
from ort_ep.graph import Initializer


def constant(initializer: Initializer) -> mx.Array:
    """A constant as an MLX leaf that owns its bytes (not evaluated yet); its dtype must be one that MLX has."""
    return mx.array(initializer.view(), dtypes.to_mlx(initializer.elem_type))


def host_constant(initializer: Initializer) -> np.ndarray[Any, Any]:
    """A constant as a read-only numpy array that owns its bytes."""
    array = initializer.view().copy()
    array.flags.writeable = False
    return array
