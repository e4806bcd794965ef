"""Weights and other constants of a plan: the one place where model bytes become values of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import mlxc_py as mx
from ort_ep import dtypes
from ort_ep.graph import Initializer
from ort_ep.shared_initializers import (
    MIN_SHARED_BYTES,
    FileSource,
    InitData,
    MemorySource,
    SharedInitializer,
    Source,
    get,
    get_derived,
    own_all,
    sharing_enabled,
    views_enabled,
)


def shared(initializers: Mapping[int, Initializer], model_path: str) -> dict[int, SharedInitializer]:
    """The interned leaves of those initializers that are large enough, by the same keys; loaded in parallel."""
    if not sharing_enabled():
        return {}
    large = {
        key: found
        for key, found in initializers.items()
        if found.nbytes >= MIN_SHARED_BYTES and dtypes.ELEM_TYPES[found.elem_type].mlx
    }
    requests = ((_source(item, model_path), item.elem_type, item.shape) for item in large.values())
    leaves = {}
    for (key, item), owner in zip(large.items(), own_all(requests), strict=True):
        leaf = get(InitData.of(owner), item.shape)
        if leaf is not None:
            leaves[key] = leaf
    return leaves


def derived(array: mx.Array, elem_type: int) -> SharedInitializer | None:
    """The interned twin of an array computed from weights while compiling; None where it is too small or not shared."""
    if array.nbytes < MIN_SHARED_BYTES or not (sharing_enabled() and views_enabled()):
        return None
    host = np.asarray(mx.contiguous(array))
    return get_derived(host.reshape(-1).view(np.uint8), host.shape, elem_type)


def _source(initializer: Initializer, model_path: str) -> Source:
    if initializer.external is not None and model_path:
        name, offset, nbytes = initializer.external
        path = Path(model_path).parent / name
        # ORT has mapped the file; it may be gone by now, and then the mapping is what there is
        if path.is_file():
            return FileSource(path, offset, nbytes)
    if initializer.array is not None:
        return MemorySource(np.ascontiguousarray(initializer.array).reshape(-1).view(np.uint8))
    return MemorySource.at(initializer.address, initializer.nbytes)


def constant(initializer: Initializer) -> mx.Array:
    """A constant as an MLX leaf that owns its bytes (not evaluated yet); its dtype must be one that MLX has."""
    return mx.array(initializer.view(), dtypes.to_mlx(initializer.elem_type))


def host_constant(initializer: Initializer) -> np.ndarray[Any, Any]:
    """A constant as a read-only numpy array that owns its bytes."""
    array = initializer.view().copy()
    array.flags.writeable = False
    return array
