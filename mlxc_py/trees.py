"""Nested lists, tuples and dicts of arrays, taken apart and put together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlxc_py.arrays import Array


def flatten(tree: Any, arrays: list[Array]) -> Any:
    """Append the arrays of a tree to `arrays`; the tree with each of them replaced by a Leaf, hashable."""
    if isinstance(tree, Array):
        arrays.append(tree)
        return LEAF
    if isinstance(tree, dict):
        return (dict, tuple((key, flatten(value, arrays)) for key, value in tree.items()))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return (type(tree), tuple(flatten(value, arrays) for value in tree))
    if isinstance(tree, list | tuple):
        return (list if isinstance(tree, list) else tuple, tuple(flatten(value, arrays) for value in tree))
    return _Constant(tree)


def unflatten(structure: Any, arrays: Iterator[Array]) -> Any:
    """Reverse of `flatten`, taking arrays in order."""
    if structure is LEAF:
        return next(arrays)
    if isinstance(structure, _Constant):
        return structure.value
    kind, items = structure
    if kind is dict:
        return {key: unflatten(value, arrays) for key, value in items}
    values = [unflatten(value, arrays) for value in items]
    if kind is list:
        return values
    return tuple(values) if kind is tuple else kind(*values)


class _Leaf:
    __slots__ = ()

    def __repr__(self) -> str:
        return "LEAF"


LEAF = _Leaf()


class _Constant:
    """A leaf that is no array: part of a trace's key by type and value."""

    __slots__ = ("key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        try:
            hash(value)
        except TypeError:
            raise ValueError(
                f"a traced function takes arrays and hashable values, not {type(value).__name__}"
            ) from None
        # 1, 1.0 and True, and 0.0 and -0.0, are equal but trace differently; so does every NaN like any other.
        self.key = (type(value), repr(value) if isinstance(value, float | complex) else value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)
