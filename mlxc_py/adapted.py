"""Calls whose C signature changed from mlx-c 0.6 to 0.7, or that 0.6 lacks, in 0.7's form on either.

`adapted.mlx_cumsum_axis` is `call.mlx_cumsum_axis` itself where the library has it, else a function below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_size_t
from math import prod
from typing import Any

from mlxc_py._sys import abi, load
from mlxc_py._sys import mlx as c
from mlxc_py.arguments import Ints, several_ints
from mlxc_py.arrays import Array, call
from mlxc_py.errors import UnsupportedError
from mlxc_py.guards import check_axis
from mlxc_py.vector import VectorArray


class _Adapted:
    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _OLDER:
            raise AttributeError(name)
        found: Callable[..., Any] = _OLDER[name]
        if abi.unavailable(c.FUNCTIONS[name], load.library()) is None:
            found = getattr(c, name) if name in _THROUGH_CTYPES else getattr(call, name)
        setattr(self, name, found)
        return found


adapted = _Adapted()


def _unsupported(what: str) -> UnsupportedError:
    library = load.library()
    return UnsupportedError(f"{what} needs mlx-c 0.7; {library.path} is mlx-c {library.generation}")


# ---- running sums: 0.6 always takes an axis, and no dtype
def _running(name: str, has_dtype: bool) -> tuple[Callable[..., Array], Callable[..., Array]]:
    def along_axis(a: Array, axis: int, reverse: bool, inclusive: bool, *rest: Any) -> Array:
        dtype, stream = rest if has_dtype else (None, *rest)
        if dtype is not None:
            a = call.mlx_astype(a, dtype, stream)
        older: Callable[..., Array] = getattr(call, f"mlx_{name}__06")
        return older(a, axis, reverse, inclusive, stream)

    def flat(a: Array, reverse: bool, inclusive: bool, *rest: Any) -> Array:
        return along_axis(call.mlx_reshape(a, (-1,), rest[-1]), 0, reverse, inclusive, *rest)

    return flat, along_axis


# ---- one form with axes where 0.7 has several
def _median(a: Array, keepdims: bool, stream: int | None) -> Array:
    return call.mlx_median__06(a, tuple(range(a.ndim)), keepdims, stream)


def _median_axes(a: Array, axes: Sequence[int], keepdims: bool, stream: int | None) -> Array:
    return call.mlx_median__06(a, axes, keepdims, stream)


def _trace_axes(a: Array, offset: int, axis1: int, axis2: int, dtype: int, stream: int | None) -> Array:
    return call.mlx_trace__06(a, offset, axis1, axis2, dtype, stream)


# ---- parameters that 0.6 lacks
def _attention(q: Array, k: Array, v: Array, scale: float, mode: str, *rest: Any) -> Array:
    mask, sinks, force_fused, stream = rest
    if force_fused:
        raise _unsupported("scaled_dot_product_attention(force_fused=True)")
    return call.mlx_fast_scaled_dot_product_attention__06(q, k, v, scale, mode, mask, sinks, stream)


def _transform(name: str) -> Callable[..., Array]:
    def transform(a: Array, sizes: Any, axes: Any, norm: int, stream: int | None) -> Array:
        older: Callable[..., Array] = getattr(call, f"mlx_fft_{name}__060")
        result = older(a, sizes, axes, stream)
        if not norm:
            return result
        factor = prod(several_ints(sizes)) ** (-0.5 if norm == c.MLX_FFT_NORM_ORTHO else -1.0)
        scale = call.mlx_array_new_float(1 / factor if name.startswith("i") else factor)
        return call.mlx_multiply(result, scale, stream)

    return transform


# ---- functions that 0.6 lacks
def _flip_axes(a: Array, axes: Ints, stream: int | None) -> Array:
    chosen = {check_axis(axis, a.ndim, "flip") for axis in several_ints(axes)}
    shape = a.shape
    start = [n - 1 if i in chosen else 0 for i, n in enumerate(shape)]
    stop = [-n - 1 if i in chosen else n for i, n in enumerate(shape)]
    return call.mlx_slice(a, start, stop, [-1 if i in chosen else 1 for i in range(a.ndim)], stream)


def _flip(a: Array, stream: int | None) -> Array:
    return _flip_axes(a, range(a.ndim), stream)


def _ones_like(a: Array, dtype: int, stream: int | None) -> Array:
    return call.mlx_ones(a.shape, dtype, stream)


def _zeros_like(a: Array, dtype: int, stream: int | None) -> Array:
    return call.mlx_zeros(a.shape, dtype, stream)


def _unstack_axis(out: int, handle: int, axis: int, stream: int) -> int:
    result = c_size_t.from_address(out)
    axis = check_axis(axis, c.mlx_array_ndim(handle), "unstack")
    sections = c.mlx_array_dim(handle, axis)
    if sections == 0:
        result.value = c.mlx_vector_array_new()
        return 0
    if failed := c.mlx_split(out, handle, sections, axis, stream):
        return int(failed)
    # `out` is this thread's slot, which the calls below use too.
    split, result.value = result.value, 0
    with VectorArray.adopt(split) as parts:
        stacked = VectorArray([call.mlx_squeeze_axis(part, axis, stream) for part in parts])
    result.value, stacked.handle = stacked.handle, 0
    return 0


def _linspace(start: float, stop: float, num: int, endpoint: bool, dtype: int, stream: int | None) -> Array:
    step = (stop - start) / max(num - 1 if endpoint else num, 1)
    return call.mlx_linspace(start, stop if endpoint else stop - step, num, dtype, stream)


_OLDER: dict[str, Callable[..., Any]] = {
    "mlx_fast_scaled_dot_product_attention": _attention,
    "mlx_flip": _flip,
    "mlx_flip_axes": _flip_axes,
    "mlx_linspace_endpoint": _linspace,
    "mlx_median": _median,
    "mlx_median_axes": _median_axes,
    "mlx_ones_like_dtype": _ones_like,
    "mlx_trace_axes": _trace_axes,
    "mlx_unstack_axis": _unstack_axis,
    "mlx_zeros_like_dtype": _zeros_like,
}
for _name in ("cummax", "cummin", "cumprod", "cumsum", "logcumsumexp"):
    _OLDER[f"mlx_{_name}"], _OLDER[f"mlx_{_name}_axis"] = _running(_name, _name in ("cumprod", "cumsum"))
for _name in ("fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftn"):
    _OLDER[f"mlx_fft_{_name}"] = _transform(_name)
_THROUGH_CTYPES = ("mlx_unstack_axis",)
