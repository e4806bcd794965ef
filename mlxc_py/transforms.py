"""Function transformations: gradients, vectorisation, recomputation, custom derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from mlxc_py._sys import mlx as c
from mlxc_py.arguments import ints
from mlxc_py.arrays import Array, as_array
from mlxc_py.closure import Closure, JvpClosure, VjpClosure, VmapClosure, derived
from mlxc_py.errors import MLXValueError
from mlxc_py.owner import Owner
from mlxc_py.state import local
from mlxc_py.trees import flatten, unflatten
from mlxc_py.vector import VectorArray

Function = Callable[..., Any]


class _ValueAndGrad(Owner):
    __slots__ = ()
    free = "mlx_closure_value_and_grad_free"


class _Call:
    """One call of a function on trees, as a function on a list of arrays; `result` is its result's structure."""

    def __init__(self, fun: Function, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.fun = fun
        self.arrays: list[Array] = []
        self.structure = flatten((args, named), self.arrays)
        self.result: Any = None

    def __call__(self, arrays: list[Array]) -> list[Array]:
        args, named = unflatten(self.structure, iter(arrays))
        outputs: list[Array] = []
        self.result = flatten(self.fun(*args, **named), outputs)
        return outputs

    def restored(self, arrays: Sequence[Array]) -> Any:
        """Arrays in the nesting of the function's result."""
        return unflatten(self.result, iter(arrays))


def _run(transform: Function, call: str, run: Function, arrays: Sequence[Array]) -> list[Array]:
    """Apply `transform(out, closure)` to a function and call the outcome."""
    here = local.here
    with Closure(run) as closure:
        outcome = derived(Closure, transform(here.out, closure.handle), call)
    assert isinstance(outcome, Closure)
    with outcome:
        return outcome.apply(arrays)


# ---- gradients
def value_and_grad(
    fun: Function, argnums: int | Sequence[int] | None = None, argnames: str | Sequence[str] = ()
) -> Function:
    """A function giving (fun's value, gradients of its first output by arguments, the first by default)."""
    numbers, names = _wanted(argnums, argnames)

    @functools.wraps(fun)
    def run(*args: Any, **named: Any) -> tuple[Any, Any]:
        for number in numbers:
            if not -len(args) <= number < len(args):
                raise ValueError(f"value_and_grad: argument {number} of {len(args)}")
        for name in names:
            if name not in named:
                raise ValueError(f"value_and_grad: no keyword argument {name!r}")
        chosen: list[tuple[Any, int]] = []
        positions: list[int] = []
        every: list[Array] = []
        spans = _spans(args, named, every)
        keys: list[int | str] = [*(n % len(args) for n in numbers), *names]
        for key in keys:
            structure, start, stop = spans[key]
            chosen.append((structure, stop - start))
            positions += range(start, stop)
        if not positions:
            raise ValueError("value_and_grad: the chosen arguments hold no arrays")
        call = _Call(_checked_loss(fun), args, named)
        values, gradients = _value_and_grad(call, every, positions)
        return call.restored(values), _arranged(chosen, iter(gradients), len(numbers), names)

    return run


def grad(fun: Function, argnums: int | Sequence[int] | None = None, argnames: str | Sequence[str] = ()) -> Function:
    """A function giving the gradients of fun's scalar result with respect to arguments, the first by default."""
    both = value_and_grad(fun, argnums, argnames)

    @functools.wraps(fun)
    def run(*args: Any, **named: Any) -> Any:
        value, gradients = both(*args, **named)
        if not isinstance(value, Array):
            raise MLXValueError(f"grad: the function must return one scalar array, not {type(value).__name__}")
        return gradients

    return run


def _wanted(
    argnums: int | Sequence[int] | None, argnames: str | Sequence[str]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    if argnums is None:
        return (() if names else (0,)), names
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"value_and_grad: an argument is listed twice in {numbers}")
    return numbers, names


def _spans(args: tuple[Any, ...], named: dict[str, Any], every: list[Array]) -> dict[int | str, tuple[Any, int, int]]:
    """Structure and range of array positions of each argument, in the order that `flatten((args, named))` has."""
    spans: dict[int | str, tuple[Any, int, int]] = {}
    values: list[tuple[int | str, Any]] = [*enumerate(args), *named.items()]
    for key, value in values:
        start = len(every)
        spans[key] = (flatten(value, every), start, len(every))
    return spans


def _checked_loss(fun: Function) -> Function:
    def run(*args: Any, **named: Any) -> Any:
        value = fun(*args, **named)
        loss = value[0] if isinstance(value, list | tuple) and value else value
        if not isinstance(loss, Array) or loss.ndim:
            shape = f"an array of shape {loss.shape}" if isinstance(loss, Array) else type(loss).__name__
            raise MLXValueError(f"grad: the function's (first) result must be a scalar array, not {shape}")
        return value

    return run


def _value_and_grad(call: _Call, arrays: list[Array], positions: list[int]) -> tuple[list[Array], list[Array]]:
    here = local.here
    inputs = VectorArray(arrays)
    with Closure(call) as closure:
        failed = c.mlx_value_and_grad(here.out, closure.handle, ints(positions), len(positions))
        outcome = derived(_ValueAndGrad, failed, "value_and_grad")
    here.raised = None
    with outcome:
        failed = c.mlx_closure_value_and_grad_apply(here.out, here.out2, outcome.handle, inputs.handle)
        return _two_lists(failed, "value_and_grad")


def _two_lists(failed: int, call: str) -> tuple[list[Array], list[Array]]:
    here = local.here
    if failed:
        raise here.failure(call)
    first, second = here.slot[0], here.slot[1]
    here.slot[0] = here.slot[1] = 0
    with VectorArray.adopt(first) as a, VectorArray.adopt(second) as b:
        return list(a), list(b)


def _arranged(
    chosen: list[tuple[Any, int]], gradients: Iterator[Array], positional: int, names: tuple[str, ...]
) -> Any:
    trees = [unflatten(structure, islice(gradients, count)) for structure, count in chosen]
    first: Any = None
    if positional:
        first = trees[0] if positional == 1 else tuple(trees[:positional])
    return (first, dict(zip(names, trees[positional:], strict=True))) if names else first


def _on_lists(fun: Function) -> Callable[[list[Array]], list[Array]]:
    def run(arrays: list[Array]) -> list[Array]:
        result = fun(*arrays)
        return [result] if isinstance(result, Array) else list(result)

    return run


def vjp(fun: Function, primals: Sequence[Array], cotangents: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """(outputs of fun(*primals), products of cotangents with its Jacobian)."""
    return _product(c.mlx_vjp, "vjp", fun, primals, cotangents)


def jvp(fun: Function, primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """(outputs of fun(*primals), products of its Jacobian with tangents)."""
    return _product(c.mlx_jvp, "jvp", fun, primals, tangents)


def _product(
    function: Function, call: str, fun: Function, primals: Sequence[Array], others: Sequence[Array]
) -> tuple[list[Array], list[Array]]:
    here = local.here
    here.raised = None
    with Closure(_on_lists(fun)) as closure, VectorArray(primals) as given, VectorArray(others) as along:
        failed = function(here.out, here.out2, closure.handle, given.handle, along.handle)
        return _two_lists(failed, call)


# ---- vectorisation
def vmap(fun: Function, in_axes: Any = 0, out_axes: Any = 0) -> Function:
    """fun, applied along an axis of its arguments; None as an axis: the argument is the same for all."""

    @functools.wraps(fun)
    def run(*args: Any) -> Any:
        call = _Call(fun, args, {})
        axes = _axes(in_axes, args, "in_axes")
        inputs = VectorArray(call.arrays)
        here = local.here
        here.raised = None
        packed = ints(axes)
        with Closure(call) as closure:
            failed = c.mlx_detail_vmap_trace(here.out, here.out2, closure.handle, inputs.handle, packed, len(axes))
            traced_inputs, traced_outputs = map(VectorArray, _two_lists(failed, "vmap"))
        result = call.restored(list(traced_outputs))
        result_axes = _axes(out_axes, result, "out_axes")
        with traced_inputs, traced_outputs:
            failed = c.mlx_detail_vmap_replace(
                here.out,
                inputs.handle,
                traced_inputs.handle,
                traced_outputs.handle,
                packed,
                len(axes),
                ints(result_axes),
                len(result_axes),
            )
        if failed:
            raise here.failure("vmap")
        with VectorArray.adopt(here.take_raw()) as outputs:
            return call.restored(list(outputs))

    return run


def _axes(axes: Any, tree: Any, name: str) -> list[int]:
    """One axis per array of a tree from one int, None, or a tree of them; -1 stands for none in MLX."""
    if isinstance(tree, Array):
        if axes is not None and not isinstance(axes, int):
            raise ValueError(f"vmap: {name} must give an int or None for each array, not {axes!r}")
        if axes is None:
            return [-1]
        if not -tree.ndim <= axes < tree.ndim + (name == "out_axes"):
            raise ValueError(f"vmap: axis {axes} of an array with {tree.ndim} dimensions")
        return [axes + tree.ndim + (name == "out_axes") if axes < 0 else axes]
    if isinstance(tree, dict):
        return [
            x for key, value in tree.items() for x in _axes(axes[key] if isinstance(axes, dict) else axes, value, name)
        ]
    if isinstance(tree, list | tuple):
        if isinstance(axes, list | tuple):
            if len(axes) != len(tree):
                raise ValueError(f"vmap: {name} has {len(axes)} entries for {len(tree)} values")
            return [x for each, value in zip(axes, tree, strict=True) for x in _axes(each, value, name)]
        return [x for value in tree for x in _axes(axes, value, name)]
    return []


# ---- recomputation, custom derivatives
def checkpoint(fun: Function) -> Function:
    """fun, whose intermediate results are computed again for the gradient instead of being kept."""

    @functools.wraps(fun)
    def run(*args: Any, **named: Any) -> Any:
        call = _Call(fun, args, named)
        return call.restored(_run(c.mlx_checkpoint, "checkpoint", call, call.arrays))

    return run


class custom_function:
    """A function with derivatives or vectorisation of its own, set by @f.vjp, @f.jvp and @f.vmap."""

    def __init__(self, f: Function) -> None:
        functools.update_wrapper(self, f)
        self._fun = f
        self._vjp: Function | None = None
        self._jvp: Function | None = None
        self._vmap: Function | None = None

    def vjp(self, f: Function) -> custom_function:
        """f(primals, cotangents, outputs) gives the cotangents of the primals."""
        self._vjp = f
        return self

    def jvp(self, f: Function) -> custom_function:
        """f(primals, tangents) gives the tangents of the outputs."""
        self._jvp = f
        return self

    def vmap(self, f: Function) -> custom_function:
        """f(inputs, axes) gives (outputs, their axes)."""
        self._vmap = f
        return self

    def __call__(self, *args: Any, **named: Any) -> Any:
        if self._vjp is None and self._jvp is None and self._vmap is None:
            return self._fun(*args, **named)
        call = _Call(self._fun, args, named)
        parts = [
            VjpClosure(self._vjp_of(call)) if self._vjp else None,
            JvpClosure(self._jvp_of(call)) if self._jvp else None,
            VmapClosure(self._vmap_of(call)) if self._vmap else None,
        ]
        handles = [part.handle if part else 0 for part in parts]

        def transform(out: int, closure: int) -> int:
            return int(c.mlx_custom_function(out, closure, *handles))

        results = _run(transform, "custom_function", call, call.arrays)
        for part in parts:
            if part:
                part.close()
        return call.restored(results)

    def _vjp_of(self, call: _Call) -> Function:
        def run(primals: list[Array], cotangents: list[Array], outputs: list[Array]) -> list[Array]:
            assert self._vjp is not None
            found = self._vjp(_given(call, primals), call.restored(cotangents), call.restored(outputs))
            return _flat(found, primals)

        return run

    def _jvp_of(self, call: _Call) -> Function:
        def run(primals: list[Array], tangents: list[Array], argnums: list[int]) -> list[Array]:
            assert self._jvp is not None
            along: list[Array | None] = [None] * len(primals)
            for i, tangent in zip(argnums, tangents, strict=True):
                along[i] = tangent
            filled = [as_array(0.0) if tangent is None else tangent for tangent in along]
            return _flat(self._jvp(_given(call, primals), _given(call, filled)), [])

        return run

    def _vmap_of(self, call: _Call) -> Function:
        def run(inputs: list[Array], axes: list[int]) -> tuple[list[Array], Any]:
            assert self._vmap is not None
            each = iter(None if axis < 0 else axis for axis in axes)
            outputs, result_axes = self._vmap(_given(call, inputs), _given(call, each))
            flat = _flat(outputs, [])
            if result_axes is None or isinstance(result_axes, int):
                result_axes = [result_axes] * len(flat)
            return flat, [-1 if axis is None else axis for axis in result_axes]

        return run


def _given(call: _Call, values: Any) -> Any:
    """Values in the nesting of the call's positional arguments; alone where there is one argument."""
    args, _ = unflatten(call.structure, iter(values))
    return args[0] if len(args) == 1 else args


def _flat(tree: Any, like: list[Array]) -> list[Array]:
    arrays: list[Array] = []
    flatten(tree, arrays)
    if like and len(arrays) != len(like):
        raise ValueError(f"a custom vjp must give one cotangent for each of {len(like)} arrays, got {len(arrays)}")
    return arrays
