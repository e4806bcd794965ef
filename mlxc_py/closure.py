"""Python functions as MLX sees them: closures, with exceptions carried across C.

A callback must not let an exception escape into C. It is kept in the thread's state, the callback reports failure, MLX
fails the outer call, and whoever made that call raises the original exception (`Here.failure`).
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
from collections.abc import Callable, Iterable, Sequence
from ctypes import CFUNCTYPE, POINTER, c_int, c_size_t, c_void_p
from typing import Any

from mlxc_py._sys import mlx as c
from mlxc_py.arrays import Array, as_array, take_list, unpack
from mlxc_py.owner import Owner
from mlxc_py.state import local
from mlxc_py.vector import ArrayMap, IntVector, VectorArray

Function = Callable[[list[Array]], Iterable[Array]]
_Handle = POINTER(c_void_p)

_functions: dict[int, Any] = {}
"""Payload of a closure -> what it calls; MLX drops the payload when the last graph that needs it is gone."""
_payloads = itertools.count(1)


def _borrowed(handle: int | None) -> list[Array]:
    """The arrays of a vector that MLX owns."""
    return unpack(local.here, handle) if handle else []


def _returned(result: Any, out: Any) -> None:
    """Hand arrays to MLX."""
    arrays = VectorArray([result] if isinstance(result, Array) else [as_array(r) for r in result])
    if c.mlx_vector_array_set(ctypes.addressof(out.contents), arrays.handle):
        raise local.here.failure("closure")


def _guarded(body: Callable[..., None]) -> Callable[..., int]:
    def callback(*args: Any) -> int:
        try:
            body(*args)
        except BaseException as problem:
            local.here.raised = problem
            return 1
        return 0

    return callback


@CFUNCTYPE(c_int, _Handle, c_void_p, c_void_p)
@_guarded
def _call(out: Any, inputs: int | None, payload: int) -> None:
    _returned(_functions[payload](_borrowed(inputs)), out)


@CFUNCTYPE(c_int, _Handle, c_void_p, c_void_p, c_void_p)
@_guarded
def _call_kwargs(out: Any, inputs: int | None, named: int | None, payload: int) -> None:
    borrowed = ArrayMap.__new__(ArrayMap)
    borrowed.handle = named or 0
    try:
        options = dict(borrowed.items())
    finally:
        borrowed.handle = 0
    _returned(_functions[payload](_borrowed(inputs), options), out)


@CFUNCTYPE(c_int, _Handle, c_void_p, c_void_p, c_void_p, c_void_p)
@_guarded
def _call_vjp(out: Any, primals: int | None, cotangents: int | None, outputs: int | None, payload: int) -> None:
    _returned(_functions[payload](_borrowed(primals), _borrowed(cotangents), _borrowed(outputs)), out)


@CFUNCTYPE(c_int, _Handle, c_void_p, c_void_p, POINTER(c_int), c_size_t, c_void_p)
@_guarded
def _call_jvp(out: Any, primals: int | None, tangents: int | None, argnums: Any, n: int, payload: int) -> None:
    _returned(_functions[payload](_borrowed(primals), _borrowed(tangents), list(argnums[:n])), out)


@CFUNCTYPE(c_int, _Handle, _Handle, c_void_p, POINTER(c_int), c_size_t, c_void_p)
@_guarded
def _call_vmap(out: Any, out_axes: Any, inputs: int | None, axes: Any, n: int, payload: int) -> None:
    results, result_axes = _functions[payload](_borrowed(inputs), list(axes[:n]))
    _returned(results, out)
    given = IntVector([result_axes] * len(results) if isinstance(result_axes, int) else result_axes)
    if c.mlx_vector_int_set(ctypes.addressof(out_axes.contents), given.handle):
        raise local.here.failure("custom_function")


@CFUNCTYPE(None, c_void_p)
def _forget(payload: int, _functions: dict[int, Any] = _functions) -> None:
    _functions.pop(payload, None)


for _callback in (_call, _call_kwargs, _call_vjp, _call_jvp, _call_vmap, _forget):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))  # MLX may hold their addresses until the process ends


class Closure(Owner):
    """A Python function on a list of arrays as an mlx_closure; returns a list of arrays."""

    __slots__ = ()
    free = "mlx_closure_free"
    _create = "mlx_closure_new_func_payload"
    _callback: Any = _call

    def __init__(self, function: Callable[..., Any]) -> None:
        self.handle = 0
        payload = next(_payloads)
        _functions[payload] = function
        try:
            super().__init__(getattr(c, self._create)(self._callback, payload, _forget))
        except BaseException:
            _functions.pop(payload, None)
            raise

    def __call__(self, *arrays: Array) -> list[Array]:
        return self.apply(arrays)

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        """Call it through MLX."""
        inputs = VectorArray(arrays)
        here = local.here
        here.raised = None
        return take_list(here, c.mlx_closure_apply(here.out, self.live, inputs.handle))


class KeywordClosure(Closure):
    """A function on a list of arrays and a dict of arrays."""

    __slots__ = ()
    free = "mlx_closure_kwargs_free"
    _create = "mlx_closure_kwargs_new_func_payload"
    _callback = _call_kwargs


class VjpClosure(Closure):
    """A function (primals, cotangents, outputs) -> cotangents of the primals."""

    __slots__ = ()
    free = "mlx_closure_custom_free"
    _create = "mlx_closure_custom_new_func_payload"
    _callback = _call_vjp


class JvpClosure(Closure):
    """A function (primals, tangents, argnums) -> tangents of the outputs."""

    __slots__ = ()
    free = "mlx_closure_custom_jvp_free"
    _create = "mlx_closure_custom_jvp_new_func_payload"
    _callback = _call_jvp


class VmapClosure(Closure):
    """A function (inputs, axes) -> (outputs, their axes)."""

    __slots__ = ()
    free = "mlx_closure_custom_vmap_free"
    _create = "mlx_closure_custom_vmap_new_func_payload"
    _callback = _call_vmap


def derived(kind: type[Owner], failed: int, call: str) -> Owner:
    """The closure that a transformation wrote to this thread's slot."""
    here = local.here
    if failed:
        raise here.failure(call)
    return kind.adopt(here.take_raw())


@atexit.register
def _release_traces() -> None:
    # MLX frees this thread's compile cache after Python has ended, when `_forget` must not be called any more.
    from mlxc_py.compilation import clear_compile_cache

    if _functions:
        clear_compile_cache()
