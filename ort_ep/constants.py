"""Weights and other constants of a plan: the one place where model bytes become values of ours."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

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
    get_view,
    own_all,
    sharing_enabled,
    views_enabled,
)
from ort_ep.streams import evaluate

T = TypeVar("T")

BATCH_BYTES: Final = 4 << 20
"""Weights that are prepared at a time: each is in memory twice until its prepared form replaces it."""


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


# ---- prepared constants


class Prepared:
    """What a handler gets in the place of constants: an Array or a NamedTuple with Arrays, evaluated.

    `shared` keeps the storage under them known to other sessions.
    """

    __slots__ = ("__weakref__", "result", "shared")

    def __init__(self, result: Any, shared: tuple[SharedInitializer, ...]) -> None:
        self.result = result
        self.shared = shared


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """A function of constants; equal keys and equal constants give equal results."""

    make: Callable[..., Any]
    inputs: tuple[Initializer | None, ...]
    key: Hashable

    @property
    def nbytes(self) -> int:
        return sum(item.nbytes for item in self.inputs if item is not None)


_made: weakref.WeakValueDictionary[Hashable, Prepared] = weakref.WeakValueDictionary()
"""By recipe and windows of files: a session whose weights were prepared from the same file reads none of it."""


def prepared(recipes: Sequence[Recipe], model_path: str) -> list[Prepared]:
    """Carry the recipes out; results in their order. The weights they read are not kept, unless a result is a view.

    Large ones come first: what is in memory twice at the end, when all the others are there, is small then.
    """
    results: dict[int, Prepared] = {}
    for batch in _batches(sorted(recipes, key=attrgetter("nbytes"), reverse=True)):
        keys = [_file_key(recipe, model_path) for recipe in batch]
        found = [None if key is None else _made.get(key) for key in keys]
        missing = [recipe for recipe, known in zip(batch, found, strict=True) if known is None]
        fresh = iter(_carried_out(missing, model_path))
        for recipe, key, known in zip(batch, keys, found, strict=True):
            done = results[id(recipe)] = known or next(fresh)
            if key is not None:
                _made[key] = done
        mx.clear_cache()  # where MLX has put the memory of the weights that this batch has replaced
    return [results[id(recipe)] for recipe in recipes]


def _batches(recipes: Iterable[Recipe]) -> Iterator[list[Recipe]]:
    batch: list[Recipe] = []
    nbytes = 0
    for recipe in recipes:
        if batch and nbytes + recipe.nbytes > BATCH_BYTES:
            yield batch
            batch, nbytes = [], 0
        batch.append(recipe)
        nbytes += recipe.nbytes
    if batch:
        yield batch


def _file_key(recipe: Recipe, model_path: str) -> Hashable | None:
    """What tells equal constants without reading large ones; None where nothing does."""
    if not (sharing_enabled() and views_enabled()):
        return None
    parts: list[Hashable] = []
    for item in recipe.inputs:
        if item is None:
            parts.append(None)
            continue
        identity = _source(item, model_path).identity if item.external else None
        if identity is None and item.nbytes >= MIN_SHARED_BYTES:
            return None
        parts.append((item.elem_type, item.shape, identity or item.view().tobytes()))
    return (recipe.key, mx.current_stream().device.type, *parts)


def _carried_out(recipes: Sequence[Recipe], model_path: str) -> list[Prepared]:
    """What lies in memory is read there; a result that turns out to be a view of it is made again from our own copy."""
    lent = [item for item in _wanted(recipes) if item.external is None]
    known = {id(item): _borrowed(item) for item in lent}
    results, leaves = _made_from(recipes, known, model_path)
    memory = _Places((array.address, array.nbytes, array) for array in known.values() if array.size)
    views = [
        position
        for position, result in enumerate(results)
        if any(array.size and memory.find(array.address) is not None for array in _arrays(result))
    ]
    if views:
        again, more = _made_from([recipes[position] for position in views], {}, model_path)
        leaves = [*leaves, *more]
        for position, result in zip(views, again, strict=True):
            results[position] = result
    return _shared_results(results, leaves)


def _wanted(recipes: Iterable[Recipe]) -> Iterable[Initializer]:
    return {id(item): item for recipe in recipes for item in recipe.inputs if item is not None}.values()


def _made_from(
    recipes: Sequence[Recipe], known: Mapping[int, mx.Array], model_path: str
) -> tuple[list[Any], Iterable[SharedInitializer]]:
    """Evaluated results, and the leaves of what they were made of beside the arrays `known`, which go by id."""
    others = {id(item): item for item in _wanted(recipes) if id(item) not in known}
    leaves = shared(others, model_path)
    own = {key: leaves[key].array if key in leaves else constant(item) for key, item in others.items()}
    arrays = {**own, **known}
    results = [
        recipe.make(*(None if item is None else arrays[id(item)] for item in recipe.inputs)) for recipe in recipes
    ]
    return _evaluated(results), leaves.values()


def kept(results: Sequence[Any]) -> list[Prepared]:
    """Results of recipes evaluated and shared by content."""
    return _shared_results(_evaluated(results), [])


def _evaluated(results: Iterable[Any]) -> list[Any]:
    made = list(results)
    evaluate(array for result in made for array in _arrays(result))
    loose = {id(array) for result in made for array in _arrays(result) if not mx.interop.row_contiguous(array)}
    if loose:
        made = [_mapped(lambda a: mx.contiguous(a) if id(a) in loose else a, result) for result in made]
        evaluate(array for result in made for array in _arrays(result))
    return made


def _shared_results(results: Iterable[Any], leaves: Iterable[SharedInitializer]) -> list[Prepared]:
    """Evaluated results shared by content; a view of one of the leaves keeps that."""
    memory = _Places((leaf.owner.address, leaf.owner.nbytes, leaf) for leaf in leaves)
    made = []
    for result in results:
        shares: list[SharedInitializer] = []

        def keep(array: mx.Array, shares: list[SharedInitializer] = shares) -> mx.Array:
            array, share = _share(array, memory)
            shares += [share] if share is not None else []
            return array

        made.append(Prepared(_mapped(keep, result), tuple(shares)))
    return made


class _Places(Generic[T]):
    """Ranges of addresses that do not overlap, with what lies there."""

    def __init__(self, ranges: Iterable[tuple[int, int, T]]) -> None:
        self._ranges = {start: (start + nbytes, what) for start, nbytes, what in ranges}
        self._starts = sorted(self._ranges)

    def find(self, address: int) -> T | None:
        before = bisect_right(self._starts, address)
        end, what = self._ranges[self._starts[before - 1]] if before else (0, None)
        return what if address < end else None


def _share(array: mx.Array, leaves: _Places[SharedInitializer]) -> tuple[mx.Array, SharedInitializer | None]:
    """The array or its interned twin, and what keeps its memory known: a leaf, if it lies in that one's."""
    nbytes = array.nbytes
    leaf = leaves.find(array.address) if nbytes else None
    if leaf is None:
        share = _interned(array)
        return share.array if share else array, share
    if nbytes < leaf.owner.nbytes or (array.dtype, array.shape) == (leaf.array.dtype, leaf.array.shape):
        return array, leaf
    share = get_view(InitData.of(leaf.owner), array.shape, array.dtype)
    return share.array if share else array, share


def derived(array: mx.Array) -> SharedInitializer | None:
    """The interned twin of an array computed from weights while compiling; None where it is too small or not shared.

    It goes by the array's own dtype: bit patterns of a type that MLX lacks take other bytes than that type's in ONNX.
    """
    if array.nbytes < MIN_SHARED_BYTES or not (sharing_enabled() and views_enabled()):
        return None
    array = mx.contiguous(array)
    evaluate([array])
    return _interned(array)


def _interned(array: mx.Array) -> SharedInitializer | None:
    if array.nbytes < MIN_SHARED_BYTES:
        return None
    return get_derived(array, array.shape, dtypes.BY_NUMPY[array.dtype.numpy].code)


def _arrays(result: Any) -> Iterator[mx.Array]:
    if isinstance(result, mx.Array):
        yield result
    elif isinstance(result, tuple):
        for part in result:
            yield from _arrays(part)


def _mapped(function: Callable[[mx.Array], mx.Array], result: Any) -> Any:
    """A result with each of its Arrays replaced."""
    if isinstance(result, mx.Array):
        return function(result)
    if isinstance(result, tuple):
        parts = (_mapped(function, part) for part in result)
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    return result


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


def _borrowed(initializer: Initializer) -> mx.Array:
    """A constant as an array over the memory that it lies in, where MLX can take that, else a copy."""
    address, owner = initializer.place()
    return mx.Array.from_address(address, initializer.shape, dtypes.to_mlx(initializer.elem_type), owner=owner)


def constant(initializer: Initializer) -> mx.Array:
    """A constant as an MLX leaf that owns its bytes; its dtype must be one that MLX has."""
    address, _ = initializer.place()
    return mx.Array.from_address(address, initializer.shape, dtypes.to_mlx(initializer.elem_type), owner=None)


def host_constant(initializer: Initializer) -> np.ndarray[Any, Any]:
    """A constant as a read-only numpy array that owns its bytes."""
    array = initializer.view().copy()
    array.setflags(write=False)
    return array
