"""numpy's indexing on arrays: slices, new axes, integer arrays, boolean masks; updates rebind the array's handle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, NamedTuple

import numpy as np

from mlxc_py import ops
from mlxc_py.arrays import Array, as_array, call
from mlxc_py.convert import weak
from mlxc_py.dtype import bool_, int32, int64
from mlxc_py.errors import MLXIndexError, MLXValueError
from mlxc_py.guards import check_indices
from mlxc_py.interop import host_view


class _Plan(NamedTuple):
    """What a key asks for, per axis of the array: the basic slice, then index arrays, then the result's shape."""

    start: tuple[int, ...]
    stop: tuple[int, ...]
    step: tuple[int, ...]
    lengths: tuple[int, ...]
    basic_shape: tuple[int, ...]
    """Shape after slicing, dropping int axes and adding new ones, as long as no index arrays are involved."""
    arrays: tuple[tuple[int, Array], ...]
    """(axis of the basic shape, indices)."""
    place: int
    """Where the broadcast dimensions of the index arrays go in the result."""


def _expanded(key: Any, ndim: int) -> list[Any]:
    """The key as a list with masks turned into integer arrays and the ellipsis into slices."""
    items: list[Any] = []
    for item in key if isinstance(key, tuple) else (key,):
        items += _without_masks(item)
    used = sum(item is not None and item is not Ellipsis for item in items)
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise MLXIndexError("an index can have only one ellipsis")
    if used > ndim:
        raise MLXIndexError(f"too many indices: {used} for an array with {ndim} dimensions")
    where = dots[0] if dots else len(items)
    return [*items[:where], *[slice(None)] * (ndim - used), *items[where + len(dots) :]]


def _without_masks(item: Any) -> list[Any]:
    if isinstance(item, bool | np.bool_):
        raise MLXIndexError("a single boolean is not an index; use a mask of the array's shape")
    if isinstance(item, list):
        item = np.asarray(item) if item else np.zeros(0, np.int32)
    if isinstance(item, Array) and item.dtype is bool_:
        item = host_view(item)
    if isinstance(item, np.ndarray) and item.dtype == bool:
        return [_Mask(indices, size) for indices, size in zip(item.nonzero(), item.shape, strict=True)]
    return [item]


class _Mask(NamedTuple):
    """One axis of a boolean mask: the positions, and the size that the axis must have."""

    indices: np.ndarray
    size: int


def _plan(key: Any, shape: tuple[int, ...]) -> _Plan:
    ranges: list[tuple[int, int, int, int]] = []  # start, stop, step, length
    basic: list[int] = []
    dropped: list[tuple[int, int, int]] = []  # int axes: position among the items, place in the basic shape, index
    arrays: list[tuple[int, int, Array]] = []  # position among the items, place in the basic shape, indices
    axis = 0
    for position, item in enumerate(_expanded(key, len(shape))):
        if item is None:
            basic.append(1)
            continue
        size = shape[axis]
        if isinstance(item, slice):
            ranges.append(_bounds(item, size))
            basic.append(ranges[-1][3])
        elif _is_index(item):
            at = _checked(index(item), size, axis)
            ranges.append((at, at + 1, 1, 1))
            dropped.append((position, len(basic), at))
        else:
            ranges.append((0, size, 1, size))
            arrays.append((position, len(basic), _index_array(item, size, axis)))
            basic.append(size)
        axis += 1
    start, stop, step, lengths = zip(*ranges, strict=True) if ranges else ((), (), (), ())
    if not arrays:
        return _Plan(start, stop, step, lengths, tuple(basic), (), 0)
    # numpy: with arrays, ints count as arrays; their dimensions go first unless all stand side by side.
    positions = sorted([p for p, _, _ in arrays] + [p for p, _, _ in dropped])
    together = positions == list(range(positions[0], positions[-1] + 1))
    first_place = min([place for _, place, _ in arrays] + [place for _, place, _ in dropped])
    return _Plan(
        start,
        stop,
        step,
        lengths,
        tuple(basic),
        tuple((place, indices) for _, place, indices in arrays),
        first_place if together else 0,
    )


def _bounds(item: slice, size: int) -> tuple[int, int, int, int]:
    """Start, stop and step as MLX takes them, and the number of elements."""
    first, last, by = item.indices(size)
    count = len(range(first, last, by))
    if not count:
        return 0, 0, 1, 0
    # A stop before the first element has no spelling but one below -size.
    return first, last if last >= 0 else -size - 1, by, count


def _is_index(item: Any) -> bool:
    if isinstance(item, int | np.integer):
        return True
    return isinstance(item, np.ndarray) and item.ndim == 0 and item.dtype.kind in "iu"


def _checked(at: int, size: int, axis: int) -> int:
    if not -size <= at < size:
        raise MLXIndexError(f"index {at} is out of bounds for axis {axis} with size {size}")
    return at + size if at < 0 else at


def _index_array(item: Any, size: int, axis: int) -> Array:
    if isinstance(item, _Mask):
        if item.size != size:
            raise MLXIndexError(f"a mask of size {item.size} does not fit axis {axis} of size {size}")
        return as_array(item.indices)
    if isinstance(item, Array):
        if item.dtype.numpy.kind not in "iu":
            raise MLXIndexError(f"arrays used as indices must hold integers or booleans, not {item.dtype.name}")
        return item
    host = item if isinstance(item, np.ndarray) else None
    if host is None or host.dtype.kind not in "iu":
        kind = type(item).__name__ if host is None else f"an array of {host.dtype}"
        raise MLXIndexError(f"an index is an int, a slice, None, an ellipsis, or integer or boolean arrays, not {kind}")
    check_indices(host, size, f"axis {axis}")
    return as_array(host)


def get(a: Array, key: Any) -> Array:
    """a[key]."""
    items = key if key.__class__ is tuple else (key,)
    if (sliced := _sliced(a, items)) is not None:
        return sliced
    plan = _plan(key, a.shape)
    return _gathered(_basic(a, plan), plan)


def _sliced(a: Array, items: tuple[Any, ...]) -> Array | None:
    """The result for a key of slices alone, by far the commonest; None for any other key."""
    start, step = [0] * a.ndim, [1] * a.ndim
    stop = list(a.shape)
    if len(items) > len(stop):
        return None
    for axis, item in enumerate(items):
        if item.__class__ is not slice:
            return None
        size = stop[axis]
        start[axis], stop[axis], step[axis], _ = _bounds(item, size)
    return call.mlx_slice(a, start, stop, step)


def _basic(a: Array, plan: _Plan) -> Array:
    if plan.lengths != a.shape or any(s < 0 for s in plan.step):
        a = call.mlx_slice(a, plan.start, plan.stop, plan.step)
    if plan.basic_shape != plan.lengths:
        a = call.mlx_reshape(a, plan.basic_shape)
    return a


def _gathered(a: Array, plan: _Plan) -> Array:
    if not plan.arrays:
        return a
    axes = [axis for axis, _ in plan.arrays]
    indices = [indices for _, indices in plan.arrays]
    if len(axes) == 1:
        taken = call.mlx_take_axis(a, indices[0], axes[0])
        return _moved(taken, axes[0], indices[0].ndim, plan.place)
    sizes = [1 if i in axes else n for i, n in enumerate(a.shape)]
    spread = _broadcast_ndim(indices)
    gathered = call.mlx_gather(a, indices, axes, sizes)
    squeezed = call.mlx_squeeze_axes(gathered, [spread + axis for axis in axes])
    return _moved(squeezed, 0, spread, plan.place)


def _broadcast_ndim(indices: Sequence[Array]) -> int:
    return max(i.ndim for i in indices)


def _moved(a: Array, source: int, count: int, target: int) -> Array:
    """The `count` axes from `source` on, moved so that they start at `target`."""
    if source == target or not count:
        return a
    rest = [i for i in range(a.ndim) if not source <= i < source + count]
    order = [*rest[:target], *range(source, source + count), *rest[target:]]
    return call.mlx_transpose_axes(a, order)


# ---- updates
def updated(a: Array, key: Any, value: Any) -> Array:
    """A new array like a, with a[key] replaced by value (broadcast)."""
    value = _converted(value, a)
    if isinstance(key, Array) and key.dtype is bool_ and key.shape == a.shape and value.ndim == 0:
        return call.mlx_where(key, value, a)
    plan = _plan(key, a.shape)
    if plan.arrays:
        return _scattered(a, key, value, "mlx_scatter")
    value = _broadcast(value, plan.basic_shape)
    if plan.basic_shape != plan.lengths:
        value = call.mlx_reshape(value, plan.lengths)
    if plan.lengths == a.shape and all(s > 0 for s in plan.step):
        return value
    if 0 in plan.lengths:
        return call.mlx_copy(a)
    return call.mlx_slice_update(a, value, plan.start, plan.stop, plan.step)


def _converted(value: Any, a: Array) -> Array:
    value = weak(value, a)
    return value if value.dtype is a.dtype else call.mlx_astype(value, a.dtype.code)


def _broadcast(value: Array, shape: tuple[int, ...]) -> Array:
    if value.shape == shape:
        return value
    extra = value.ndim - len(shape)
    if extra > 0 and value.shape[:extra] == (1,) * extra:
        value = call.mlx_reshape(value, value.shape[extra:])
    elif extra > 0:
        raise MLXValueError(f"a value of shape {value.shape} does not fit into a selection of shape {shape}")
    return call.mlx_broadcast_to(value, shape)


def _positions(a: Array, key: Any) -> Array:
    """The flat positions that a key selects: it is applied to the array of all positions."""
    dtype = int32 if a.size < 2**31 else int64
    return get(call.mlx_reshape(call.mlx_arange(0, a.size, 1, dtype.code), a.shape), key)


def _scattered(a: Array, key: Any, value: Array, scatter: str) -> Array:
    positions = _positions(a, key)
    value = _broadcast(value, positions.shape)
    if not positions.size:
        return call.mlx_copy(a)
    update: Callable[..., Array] = getattr(call, scatter)
    flat = update(
        call.mlx_reshape(a, (-1,)),
        [call.mlx_reshape(positions, (-1,))],
        call.mlx_reshape(value, (-1, 1)),
        (0,),
    )
    return call.mlx_reshape(flat, a.shape)


class At:
    """x.at[key]: updates in which a position selected twice is updated twice."""

    __slots__ = ("_array", "_key")

    def __init__(self, array: Array) -> None:
        self._array = array
        self._key: Any = Ellipsis

    def __getitem__(self, key: Any) -> At:
        at = At(self._array)
        at._key = key
        return at

    def _apply(self, value: Any, scatter: str) -> Array:
        return _scattered(self._array, self._key, _converted(value, self._array), scatter)

    def add(self, value: Any) -> Array:
        """Add value to the selection."""
        return self._apply(value, "mlx_scatter_add")

    def subtract(self, value: Any) -> Array:
        """Subtract value from the selection."""
        return self._apply(ops.negative(_converted(value, self._array)), "mlx_scatter_add")

    def multiply(self, value: Any) -> Array:
        """Multiply the selection by value."""
        return self._apply(value, "mlx_scatter_prod")

    def divide(self, value: Any) -> Array:
        """Divide the selection by value."""
        return self._apply(ops.reciprocal(_converted(value, self._array)), "mlx_scatter_prod")

    def maximum(self, value: Any) -> Array:
        """The larger of the selection and value."""
        return self._apply(value, "mlx_scatter_max")

    def minimum(self, value: Any) -> Array:
        """The smaller of the selection and value."""
        return self._apply(value, "mlx_scatter_min")
