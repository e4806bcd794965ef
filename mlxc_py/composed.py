"""Functions of mlx.core that are several mlx-c calls, or whose arguments need more than passing on."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from mlxc_py import ops
from mlxc_py._sys import mlx as c
from mlxc_py.adapted import adapted
from mlxc_py.arguments import Ints, dtype_code, is_int, several_ints, shape_of, text
from mlxc_py.arrays import Array, ArrayLike, as_array, call, take_list
from mlxc_py.convert import scalar_dtype, weak
from mlxc_py.dtype import Dtype, float32, int32, int64
from mlxc_py.state import StreamLike, local, on
from mlxc_py.vector import VectorArray

Number = int | float


def arange(*args: Any, dtype: Dtype | None = None, stream: StreamLike = None, **named: Any) -> Array:
    """arange([start,] stop[, step][, dtype]): evenly spaced values; int32 for ints, float32 otherwise."""
    start, stop, step, dtype = _arange_arguments(args, named, dtype)
    if dtype is None:
        kinds = [scalar_dtype(int(v)) if is_int(v) else float32 for v in (start, stop, step)]
        dtype = next((kind for kind in (float32, int64) if kind in kinds), int32)
    return call.mlx_arange(start, stop, step, dtype_code(dtype), on(stream))


def _arange_arguments(
    args: tuple[Any, ...], named: dict[str, Any], dtype: Dtype | None
) -> tuple[Number, Number, Number, Dtype | None]:
    values = list(args)
    if values and isinstance(values[-1], Dtype):
        dtype = values.pop()
    names = ("start", "stop", "step") if len(values) > 1 or "start" in named else ("stop", "step")
    given = dict(zip(names, values, strict=False))
    if len(values) > len(names) or set(given) & set(named) or set(named) - {"start", "stop", "step"}:
        raise TypeError("arange takes ([start,] stop[, step][, dtype])")
    given.update(named)
    if given.get("stop") is None:
        if given.get("start") is None:
            raise TypeError("arange needs stop")
        given["stop"], given["start"] = given["start"], 0  # arange(n, None) counts to n
    start, step = given.get("start"), given.get("step")
    return 0 if start is None else start, given["stop"], 1 if step is None else step, dtype


def linspace(
    start: Number,
    stop: Number,
    num: int | None = 50,
    endpoint: bool = True,
    dtype: Dtype | None = float32,
    *,
    stream: StreamLike = None,
) -> Array:
    """num evenly spaced values from start to stop."""
    count, code = 50 if num is None else index(num), dtype_code(dtype or float32)
    if endpoint:
        return call.mlx_linspace(start, stop, count, code, on(stream))
    return adapted.mlx_linspace_endpoint(start, stop, count, False, code, on(stream))


def full(shape: Ints, vals: ArrayLike, dtype: Dtype | None = None, *, stream: StreamLike = None) -> Array:
    """An array of a shape with every element vals (broadcast)."""
    values = as_array(vals)
    return call.mlx_full(shape_of(shape), values, dtype_code(dtype or values.dtype), on(stream))


def full_like(a: ArrayLike, vals: ArrayLike, dtype: Dtype | None = None, *, stream: StreamLike = None) -> Array:
    """vals in a's shape, and its dtype unless one is given."""
    a = as_array(a)
    return call.mlx_full_like(a, as_array(vals), dtype_code(dtype or a.dtype), on(stream))


def asarray(a: Any, dtype: Dtype | None = None, *, copy: bool | None = None) -> Array:
    """`a` as an array: itself where it is one of that dtype and no copy is asked for."""
    if isinstance(a, Array) and not copy and dtype in (None, a.dtype):
        return a
    if copy is False:
        raise ValueError("asarray: this needs a copy")
    return Array(a, dtype)


def pad(
    a: ArrayLike,
    pad_width: Any,
    mode: str = "constant",
    constant_values: ArrayLike = 0,
    *,
    stream: StreamLike = None,
) -> Array:
    """Padded: pad_width is an int, (before, after), or one such pair per axis; modes as in MLX."""
    a = as_array(a)
    value = weak(constant_values, a)
    if is_int(pad_width):
        return call.mlx_pad_symmetric(a, index(pad_width), value, text(mode), on(stream))
    pairs = _pad_pairs(pad_width, a.ndim)
    low, high = zip(*pairs, strict=True) if pairs else ((), ())
    return call.mlx_pad(a, tuple(range(a.ndim)), low, high, value, text(mode), on(stream))


def _pad_pairs(pad_width: Any, ndim: int) -> list[tuple[int, int]]:
    widths = list(pad_width)
    if all(is_int(w) for w in widths):
        if len(widths) not in (1, 2):
            raise ValueError(f"pad: one or two widths for all axes, or a pair per axis, not {pad_width}")
        return [(index(widths[0]), index(widths[-1]))] * ndim
    if len(widths) == 1:
        widths *= ndim
    pairs = [(index(w[0]), index(w[-1])) for w in map(several_ints, widths)]
    if len(pairs) != ndim:
        raise ValueError(f"pad: {len(pairs)} pairs for {ndim} axes")
    return pairs


def _atleast(name: str, arys: tuple[ArrayLike, ...], stream: StreamLike) -> Array | list[Array]:
    raised = [getattr(call, name)(as_array(a), on(stream)) for a in arys]
    return raised[0] if len(raised) == 1 else raised


def atleast_1d(*arys: ArrayLike, stream: StreamLike = None) -> Array | list[Array]:
    """With at least one dimension."""
    return _atleast("mlx_atleast_1d", arys, stream)


def atleast_2d(*arys: ArrayLike, stream: StreamLike = None) -> Array | list[Array]:
    """With at least two dimensions."""
    return _atleast("mlx_atleast_2d", arys, stream)


def atleast_3d(*arys: ArrayLike, stream: StreamLike = None) -> Array | list[Array]:
    """With at least three dimensions."""
    return _atleast("mlx_atleast_3d", arys, stream)


def depends(inputs: Array | Sequence[Array], dependencies: Array | Sequence[Array]) -> Array | list[Array]:
    """The inputs, to be computed only after the dependencies."""
    wanted = VectorArray([inputs] if isinstance(inputs, Array) else inputs)
    first = VectorArray([dependencies] if isinstance(dependencies, Array) else dependencies)
    here = local.here
    results = take_list(here, c.mlx_depends(here.out, wanted.handle, first.handle))
    return results[0] if isinstance(inputs, Array) else results


def matrix_transpose(a: ArrayLike, *, stream: StreamLike = None) -> Array:
    """The last two axes swapped."""
    return ops.swapaxes(a, -1, -2, stream=stream)


def addmm(
    c: ArrayLike, a: ArrayLike, b: ArrayLike, alpha: float = 1.0, beta: float = 1.0, *, stream: StreamLike = None
) -> Array:
    """alpha * (a @ b) + beta * c."""
    added, a, b = as_array(c), as_array(a), as_array(b)
    if a.size and b.size:
        return call.mlx_addmm(added, a, b, alpha, beta, on(stream))
    # MLX's CUDA kernel divides by the number of rows
    return ops.add(ops.matmul(a, b, stream=stream), ops.multiply(added, beta, stream=stream), stream=stream)


def minmax(
    a: ArrayLike, axis: Ints | None = None, keepdims: bool = False, *, stream: StreamLike = None
) -> tuple[Array, Array]:
    """(smallest, largest) element over axes."""
    a = as_array(a)
    return ops.min(a, axis, keepdims, stream=stream), ops.max(a, axis, keepdims, stream=stream)


def convolve(a: ArrayLike, v: ArrayLike, mode: str = "full", *, stream: StreamLike = None) -> Array:
    """Discrete convolution of two vectors; mode full, same or valid."""
    a, v = as_array(a), as_array(v)
    if a.ndim != 1 or v.ndim != 1 or not (a.size and v.size):
        raise ValueError(f"convolve: two non-empty vectors are needed, not {a.shape} and {v.shape}")
    if a.size < v.size:
        a, v = v, a
    n = v.size
    widths = {"full": (n - 1, n - 1), "same": (n // 2, n - n // 2 - 1), "valid": (0, 0)}
    if mode not in widths:
        raise ValueError(f"convolve: mode must be {', '.join(widths)}, not {mode!r}")
    low, high = widths[mode]
    signal = ops.reshape(a, (1, -1, 1), stream=stream)
    kernel = ops.reshape(v, (1, -1, 1), stream=stream)
    result = ops.conv_general(signal, kernel, 1, ((low,), (high,)), flip=True, stream=stream)
    return ops.reshape(result, (-1,), stream=stream)


def key(seed: int) -> Array:
    """The key of random numbers for a seed."""
    return call.mlx_random_key(index(seed))


def seed(seed: int) -> None:
    """Set the state that random functions without key use."""
    if c.mlx_random_seed(index(seed) & 0xFFFFFFFFFFFFFFFF):
        raise local.here.failure("seed")
