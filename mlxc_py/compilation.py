"""mx.compile: a Python function traced once per shapes and dtypes, then replayed by MLX."""

from __future__ import annotations

import enum
import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from mlxc_py._sys import load
from mlxc_py._sys import mlx as c
from mlxc_py.arrays import Array
from mlxc_py.closure import Closure, derived
from mlxc_py.device import DeviceType, default_device
from mlxc_py.owner import Owner
from mlxc_py.state import local
from mlxc_py.streams import current_stream
from mlxc_py.trees import flatten, unflatten


class CompileMode(enum.IntEnum):
    """What compile does: nothing, trace, trace and simplify, or also fuse kernels."""

    disabled = 0
    no_simplify = 1
    no_fuse = 2
    enabled = 3


_mode: CompileMode | None = None


def set_compile_mode(mode: CompileMode) -> None:
    """Set what compile does, for the process; functions compiled earlier keep what they were traced with."""
    global _mode
    _mode = CompileMode(mode)
    if c.mlx_set_compile_mode(_mode.value):
        raise local.here.failure("set_compile_mode")


def disable_compile() -> None:
    """Make compiled functions run as plain Python ones."""
    set_compile_mode(CompileMode.disabled)


def enable_compile() -> None:
    """Compile and fuse, also on the CPU."""
    set_compile_mode(CompileMode.enabled)


def _choose_mode() -> None:
    # Fusing on the CPU runs g++ at the first evaluation, half a second a kernel, and fails without one [M 36-40].
    global _mode
    if _mode is None:
        if default_device().type is DeviceType.cpu and "MLX_DISABLE_COMPILE" not in os.environ:
            set_compile_mode(CompileMode.no_fuse)
        else:
            _mode = CompileMode.enabled


# ---- MLX's caches of traces: one per thread, keyed by a number that is never used twice here [M 33, 34]
class _Cache(Owner):
    """A weak hold of one thread's cache: erasing in it works from any thread, and after that thread's end."""

    __slots__ = ()
    free = "mlx_compile_cache_free"


class _Mine(threading.local):
    cache: _Cache | None = None


_ids = itertools.count(1 << 32)
_mine = _Mine()
# By native thread: a thread that Python did not start is new to `_mine` at each callback, and an identifier is used
# again only when its thread, and that thread's cache, are gone.
_caches: dict[int, tuple[_Cache, weakref.ref[threading.Thread] | None]] = {}


def _remember_cache() -> _Cache:
    """This thread's cache, noted so that a release on another thread can erase there."""
    if _mine.cache is None:
        here = local.here
        if c.mlx_detail_compile_cache(here.out):
            raise here.failure("compile")
        _mine.cache = _Cache.adopt(here.take_raw())
        _forget_ended_threads()
        me = threading.get_native_id()
        # current_thread() would note a thread of another library's for ever
        thread = next((thread for thread in threading.enumerate() if thread.native_id == me), None)
        _caches[me] = _mine.cache, None if thread is None else weakref.ref(thread)
    return _mine.cache


def _forget_ended_threads() -> None:
    """Of the threads Python started; how many others ever live at once bounds their entries on Linux."""
    for native_id, (_, thread) in tuple(_caches.items()):
        found = None if thread is None else thread()
        if thread is not None and (found is None or not found.is_alive()):
            _caches.pop(native_id, None)


def _reaches_caches() -> bool:
    return load.library().has("mlx_detail_compile_cache")


def _erase(fun_id: int) -> None:
    """Drop a function's traces in every thread's cache; with mlx-c 0.6 in this thread's only."""
    if not _reaches_caches():
        c.mlx_detail_compile_erase__06(fun_id)
        return
    for cache, _ in tuple(_caches.values()):
        c.mlx_detail_compile_erase(cache.live, fun_id)


def clear_compile_cache() -> None:
    """Forget every trace of this thread."""
    here = local.here
    if _reaches_caches():
        failed = c.mlx_detail_compile_clear_cache(_remember_cache().live)
    else:
        failed = c.mlx_detail_compile_clear_cache__06()
    if failed:
        raise here.failure("clear_compile_cache")


# ---- one traced function
class _Traced:
    """A function for one structure of arguments and one stream."""

    __slots__ = ("__weakref__", "closure", "compiled", "fun_id", "result")

    def __init__(self, function: Callable[..., Any], structure: Any, shapeless: bool) -> None:
        self.result: Any = None
        self.fun_id = next(_ids)
        own = weakref.ref(self)  # MLX's cache holds the closure: it must not hold this object in turn

        def run(arrays: list[Array]) -> list[Array]:
            args, named = unflatten(structure, iter(arrays))
            results: list[Array] = []
            outcome = flatten(function(*args, **named), results)
            traced = own()
            if traced is not None:
                traced.result = outcome
            return results

        self.closure = Closure(run)
        here = local.here
        failed = c.mlx_detail_compile(here.out, self.closure.handle, self.fun_id, shapeless, None, 0)
        self.compiled = derived(Closure, failed, "compile")
        weakref.finalize(self, _erase, self.fun_id).atexit = False

    def __call__(self, arrays: list[Array]) -> Any:
        assert isinstance(self.compiled, Closure)
        outputs = self.compiled.apply(arrays)
        return unflatten(self.result, iter(outputs))


def compile(
    fun: Callable[..., Any], inputs: Any = None, outputs: Any = None, shapeless: bool = False
) -> Callable[..., Any]:
    """fun, traced at its first call per structure, shapes and dtypes of arguments; nested results are kept.

    `inputs` and `outputs` are lists or dicts of arrays that fun reads or changes beside its arguments.
    """
    traces: dict[Any, _Traced] = {}
    stateful = inputs is not None or outputs is not None
    function = _with_state(fun, inputs, outputs) if stateful else fun

    @functools.wraps(fun)
    def compiled(*args: Any, **named: Any) -> Any:
        _choose_mode()
        arrays: list[Array] = []
        structure = flatten(((args, inputs) if stateful else args, named), arrays)
        # The nesting of the result may depend on shapes, so they belong to the key unless the trace ignores them.
        shapes = None if shapeless else tuple((a.shape, a.dtype) for a in arrays)
        key = (structure, shapes, current_stream())
        traced = traces.get(key)
        if traced is None:
            traced = traces.setdefault(key, _Traced(function, structure, shapeless))
        if _reaches_caches():
            _remember_cache()
        result = traced(arrays)
        if outputs is None:
            return result
        result, state = result
        _assign(outputs, state)
        return result

    return compiled


def _with_state(fun: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
    """fun with its captured inputs as an argument and its captured outputs as a result."""

    def run(args: tuple[Any, ...], state: Any, **named: Any) -> Any:
        before = _snapshot(inputs)
        _assign(inputs, state)
        try:
            result = fun(*args, **named)
            return result if outputs is None else (result, _snapshot(outputs))
        finally:
            _assign(inputs, before)

    return run


def _snapshot(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _snapshot(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_snapshot(value) for value in tree]
    return tree


def _assign(tree: Any, values: Any) -> None:
    """Put values into a tree of lists and dicts, in place."""
    if isinstance(tree, dict):
        for key in list(tree):
            if key not in values:
                del tree[key]
        for key, value in values.items():
            if isinstance(tree.get(key), dict | list):
                _assign(tree[key], value)
            else:
                tree[key] = value
    elif isinstance(tree, list):
        for i, value in enumerate(values):
            if i < len(tree) and isinstance(tree[i], dict | list):
                _assign(tree[i], value)
            elif i < len(tree):
                tree[i] = value
            else:
                tree.append(value)
        del tree[len(values) :]
