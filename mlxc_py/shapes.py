"""Arithmetic on shapes and dtypes that needs no array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlxc_py.arrays import Array, call
from mlxc_py.device import cpu
from mlxc_py.dtype import Dtype
from mlxc_py.errors import MLXValueError
from mlxc_py.state import on


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The common shape that all shapes broadcast to."""
    try:
        return tuple(np.broadcast_shapes(*map(tuple, shapes)))
    except ValueError as problem:
        raise MLXValueError(f"broadcast_shapes: {problem}") from None


def result_type(*arrays_and_dtypes: Array | Dtype) -> Dtype:
    """The dtype that MLX promotes the given ones to."""
    dtypes = [d if isinstance(d, Dtype) else d.dtype for d in arrays_and_dtypes]
    if not dtypes:
        raise ValueError("result_type needs at least one array or dtype")
    result = dtypes[0]
    for other in dtypes[1:]:
        result = _promote(result, other)
    return result


_PROMOTED: dict[tuple[Dtype, Dtype], Dtype] = {}


def _promote(a: Dtype, b: Dtype) -> Dtype:
    # mlx-c has no promote_types: the dtype of a comparison-free binary op on empty arrays tells.
    if (a, b) not in _PROMOTED:
        empty: Any = (0,)
        where = on(cpu)  # GPUs have no float64
        x, y = call.mlx_zeros(empty, a.code, where), call.mlx_zeros(empty, b.code, where)
        _PROMOTED[a, b] = call.mlx_maximum(x, y, where).dtype
    return _PROMOTED[a, b]


def can_cast(from_: Array | Dtype, to: Dtype) -> bool:
    """Whether promoting the two gives `to`."""
    return result_type(from_, to) is to
