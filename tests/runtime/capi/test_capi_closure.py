"""Closures, function transforms and compilation."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from capi_harness import CApi, Failed

from mlxc_py._sys import load, mlx

X = np.array([0.5, 1.0, 2.0], "f4")
Y = np.array([3.0, -1.0, 0.25], "f4")


def pointer(capi: CApi, callback: Any) -> Any:
    return ctypes.cast(capi.keep(callback), ctypes.c_void_p)


def store(capi: CApi, result: int, handles: list[int]) -> int:
    return capi.c.mlx_vector_array_set_data(result, (ctypes.c_size_t * len(handles))(*handles), len(handles))


def apply(capi: CApi, closure: int, *inputs: np.ndarray) -> list[np.ndarray]:
    return capi.arrays(capi.filled("mlx_closure_apply", closure, capi.vector(list(inputs))))


def product(capi: CApi) -> int:
    """f(x, y) = x * y"""
    return capi.closure(lambda v: [capi.node("multiply", v[0], v[1])])


def sine(capi: CApi) -> int:
    def call(result: int, x: int) -> int:
        return capi.c.mlx_sin(result, x, capi.stream)

    return capi.need(capi.c.mlx_closure_new_unary(pointer(capi, mlx.mlx_closure_new_unary_fun(call))))


def test_closures(capi: CApi) -> None:
    c = capi.c
    assert c.mlx_closure_new() == 0
    f = product(capi)
    np.testing.assert_array_equal(apply(capi, f, X, Y)[0], X * Y)
    copy = capi.filled("mlx_closure_set", f)
    capi.check(c.mlx_closure_free(f))
    np.testing.assert_array_equal(apply(capi, copy, X, Y)[0], X * Y)
    np.testing.assert_allclose(apply(capi, sine(capi), X)[0], np.sin(X), rtol=1e-6)
    with pytest.raises(Failed, match="one array"):
        apply(capi, sine(capi), X, Y)
    assert c.mlx_closure_new_func(None) == 0
    assert load.take_error() == "NULL function"
    with pytest.raises(Failed, match="mlx_closure"):
        apply(capi, 0, X)


@pytest.mark.parametrize("outcome", ["code", "empty"])
def test_a_failing_callback(capi: CApi, outcome: str) -> None:
    callback = pointer(capi, mlx.mlx_closure_new_func_fun(lambda _result, _inputs: 5 if outcome == "code" else 0))
    f = capi.need(capi.c.mlx_closure_new_func(callback))
    with pytest.raises(Failed, match="non-zero" if outcome == "code" else "left its mlx_vector_array result empty"):
        apply(capi, f, X)


# kind -> (how the callback's result handles are filled, what apply is called with)
PAYLOAD_KINDS = ["", "_kwargs", "_value_and_grad", "_custom", "_custom_jvp", "_custom_vmap"]


def forms(capi: CApi) -> dict[str, tuple[Callable[..., int], Callable[[int], Any]]]:
    """Per kind: a callback (without payload) that computes x + y from its arguments, and an application of it."""

    def add(a: int, b: int) -> int:
        return capi.node("add", a, b)

    def first(vector: int) -> int:
        return capi.handles(vector)[0]

    def plain(res: int, v: int) -> int:
        return store(capi, res, [add(*capi.handles(v))])

    def kwargs(res: int, v: int, m: int) -> int:
        y = capi.filled("mlx_map_string_to_array_get", m, b"y")
        return store(capi, res, [add(first(v), y)])

    def value_and_grad(res: int, grad: int, v: int) -> int:
        x, y = capi.handles(v)
        return store(capi, res, [add(x, y)]) or store(capi, grad, [x])

    def custom(res: int, a: int, b: int, c: int) -> int:
        return store(capi, res, [add(add(first(a), first(b)), first(c))])

    def jvp(res: int, a: int, b: int, numbers: int, n: int) -> int:
        assert list((ctypes.c_int * n).from_address(numbers)) == [0, 4]
        return store(capi, res, [add(first(a), first(b))])

    def vmap(res: int, axes: int, v: int, numbers: int, n: int) -> int:
        assert list((ctypes.c_int * n).from_address(numbers)) == [1, -1]
        capi.check(capi.c.mlx_vector_int_set_value(axes, 2))
        return store(capi, res, [add(*capi.handles(v))])

    two = capi.vector([X, Y])
    one, other = capi.vector([X]), capi.vector([Y])
    m = capi.need(capi.c.mlx_map_string_to_array_new())
    capi.check(capi.c.mlx_map_string_to_array_insert(m, b"y", capi.array(Y)))

    def apply_value_and_grad(f: int) -> list[np.ndarray]:
        values, gradients = capi.op("closure_value_and_grad_apply", f, two)
        np.testing.assert_array_equal(gradients[0], X)
        return values

    def apply_vmap(f: int) -> list[np.ndarray]:
        res, axes = (ctypes.c_size_t * 1)(), (ctypes.c_size_t * 1)()
        capi.check(capi.c.mlx_closure_custom_vmap_apply(res, axes, f, two, *capi.pointer((1, -1))))
        assert capi.filled("mlx_vector_int_get", axes[0], 0, kind=ctypes.c_int) == 2
        return capi.arrays(res[0])

    zero = capi.vector([np.zeros(3, "f4")])
    return {
        "": (plain, lambda f: capi.op("closure_apply", f, two)),
        "_kwargs": (kwargs, lambda f: capi.op("closure_kwargs_apply", f, one, m)),
        "_value_and_grad": (value_and_grad, apply_value_and_grad),
        "_custom": (custom, lambda f: capi.op("closure_custom_apply", f, one, other, zero)),
        "_custom_jvp": (jvp, lambda f: capi.op("closure_custom_jvp_apply", f, one, other, (0, 4))),
        "_custom_vmap": (vmap, apply_vmap),
    }


@pytest.mark.parametrize("kind", PAYLOAD_KINDS)
def test_every_kind_of_closure(capi: CApi, kind: str) -> None:
    prefix = f"mlx_closure{kind}"
    callback, run = forms(capi)[kind]
    function = getattr(capi.c, f"{prefix}_new_func")
    f = capi.need(function(pointer(capi, getattr(mlx, f"{prefix}_new_func_fun")(callback))))
    np.testing.assert_array_equal(run(f)[0], X + Y)
    slot = (ctypes.c_size_t * 1)()
    capi.check(getattr(capi.c, f"{prefix}_set")(slot, f))
    capi.check(getattr(capi.c, f"{prefix}_free")(f))
    np.testing.assert_array_equal(run(slot[0])[0], X + Y)
    assert getattr(capi.c, f"{prefix}_new")() == 0
    assert getattr(capi.c, f"{prefix}_set")(slot, 0) == 1


@pytest.mark.parametrize("kind", PAYLOAD_KINDS)
def test_a_payload_lives_as_long_as_the_closure(capi: CApi, kind: str) -> None:
    prefix = f"mlx_closure{kind}"
    callback, run = forms(capi)[kind]
    freed: list[int] = []
    payloads: list[int] = []

    def with_payload(*args: int) -> int:
        payloads.append(args[-1])
        return callback(*args[:-1])

    fun = pointer(capi, getattr(mlx, f"{prefix}_new_func_payload_fun")(with_payload))
    dtor = pointer(capi, getattr(mlx, f"{prefix}_new_func_payload_dtor")(freed.append))
    f = capi.need(getattr(capi.c, f"{prefix}_new_func_payload")(fun, 1234, dtor))
    slot = (ctypes.c_size_t * 1)()
    capi.check(getattr(capi.c, f"{prefix}_set")(slot, f))
    capi.check(getattr(capi.c, f"{prefix}_free")(f))
    np.testing.assert_array_equal(run(slot[0])[0], X + Y)
    assert payloads == [1234] and freed == []
    capi.check(getattr(capi.c, f"{prefix}_free")(slot[0]))
    assert freed == [1234]


# ---- transforms
def test_gradients(capi: CApi) -> None:
    total = capi.closure(lambda v: [capi.node("sum", capi.node("multiply", v[0], v[1]), False)])
    f = capi.filled("mlx_value_and_grad", total, *capi.pointer((0, 1)))
    values, gradients = capi.op("closure_value_and_grad_apply", f, [X, Y])
    assert values[0] == np.float32((X * Y).sum())
    np.testing.assert_array_equal(gradients, [Y, X])
    values, tangents = capi.op("jvp", product(capi), [X, Y], [X, X])
    np.testing.assert_allclose(tangents[0], X * X + X * Y, rtol=1e-6)
    values, cotangents = capi.op("vjp", sine(capi), [X], [Y])
    np.testing.assert_allclose(values[0], np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(cotangents[0], np.cos(X) * Y, rtol=1e-6)


def test_checkpoint(capi: CApi) -> None:
    f = capi.filled("mlx_checkpoint", sine(capi))
    np.testing.assert_allclose(apply(capi, f, X)[0], np.sin(X), rtol=1e-6)
    _, cotangents = capi.op("vjp", f, [X], [Y])
    np.testing.assert_allclose(cotangents[0], np.cos(X) * Y, rtol=1e-6)


def triple(capi: CApi) -> int:
    """A custom vjp: three times the cotangent."""

    def call(res: int, _primals: int, cotangents: int, _outputs: int) -> int:
        three = capi.need(capi.c.mlx_array_new_float(3.0))
        return store(capi, res, [capi.node("multiply", capi.handles(cotangents)[0], three)])

    fun = pointer(capi, mlx.mlx_closure_custom_new_func_fun(call))
    return capi.need(capi.c.mlx_closure_custom_new_func(fun))


def test_custom_vjp(capi: CApi) -> None:
    f = capi.filled("mlx_custom_vjp", sine(capi), triple(capi))
    _, cotangents = capi.op("vjp", f, [X], [Y])
    np.testing.assert_array_equal(cotangents[0], 3 * Y)


def test_custom_function(capi: CApi) -> None:
    def jvp(res: int, primals: int, _tangents: int, numbers: int, n: int) -> int:
        assert list((ctypes.c_int * n).from_address(numbers)) == [0]
        return store(capi, res, capi.handles(primals))

    def vmap(res: int, axes: int, inputs: int, numbers: int, n: int) -> int:
        assert list((ctypes.c_int * n).from_address(numbers)) == [0]
        capi.check(capi.c.mlx_vector_int_set_value(axes, 0))
        return store(capi, res, [capi.node("negative", capi.handles(inputs)[0])])

    c = capi.c
    by_jvp = capi.need(c.mlx_closure_custom_jvp_new_func(pointer(capi, mlx.mlx_closure_custom_jvp_new_func_fun(jvp))))
    by_vmap = capi.need(
        c.mlx_closure_custom_vmap_new_func(pointer(capi, mlx.mlx_closure_custom_vmap_new_func_fun(vmap)))
    )
    f = capi.filled("mlx_custom_function", sine(capi), triple(capi), by_jvp, by_vmap)
    np.testing.assert_allclose(apply(capi, f, X)[0], np.sin(X), rtol=1e-6)
    np.testing.assert_array_equal(capi.op("vjp", f, [X], [Y])[1][0], 3 * Y)
    np.testing.assert_array_equal(capi.op("jvp", f, [X], [Y])[1][0], X)
    np.testing.assert_array_equal(vectorised(capi, f, np.stack([X, Y])), -np.stack([X, Y]))
    alone = capi.filled("mlx_custom_function", sine(capi), 0, 0, 0)
    np.testing.assert_allclose(capi.op("vjp", alone, [X], [Y])[1][0], np.cos(X) * Y, rtol=1e-6)


def vectorised(capi: CApi, f: int, batch: np.ndarray) -> np.ndarray:
    """f over the first axis, by mlx_detail_vmap_trace and _replace."""
    inputs = capi.vector([batch])
    traced_in, traced_out = (ctypes.c_size_t * 1)(), (ctypes.c_size_t * 1)()
    capi.check(capi.c.mlx_detail_vmap_trace(traced_in, traced_out, f, inputs, *capi.pointer((0,))))
    return capi.op("detail_vmap_replace", inputs, traced_in[0], traced_out[0], (0,), (0,))[0]


def test_vmap(capi: CApi) -> None:
    total = capi.closure(lambda v: [capi.node("sum", v[0], False)])
    np.testing.assert_allclose(vectorised(capi, total, np.stack([X, Y])), [X.sum(), Y.sum()], rtol=1e-6)


@pytest.mark.usefixtures("ours")
def test_a_tracer_cannot_be_evaluated(capi: CApi) -> None:
    seen: list[tuple[int, int]] = []

    def call(v: list[int]) -> list[int]:
        seen.append((capi.c.mlx_array_eval(v[0]), capi.c.mlx_array_data_float32(v[0])))
        return v

    compiled = capi.filled("mlx_compile", capi.closure(call), False)
    np.testing.assert_array_equal(apply(capi, compiled, X)[0], X)
    assert seen[0] == (1, 0)


# ---- compilation
class Counted:
    """A closure computing x * y + x that counts its calls."""

    def __init__(self, capi: CApi) -> None:
        self.calls = 0

        def call(v: list[int]) -> list[int]:
            self.calls += 1
            return [capi.node("add", capi.node("multiply", v[0], v[1]), v[0])]

        self.closure = capi.closure(call)


@pytest.fixture
def no_fuse(capi: CApi) -> Any:
    """Compile without run-time C++: no compiler is started in the test."""
    capi.check(capi.c.mlx_set_compile_mode(mlx.MLX_COMPILE_MODE_NO_FUSE))
    yield
    capi.check(capi.c.mlx_set_compile_mode(mlx.MLX_COMPILE_MODE_ENABLED))


def test_compile(capi: CApi, no_fuse: None) -> None:
    f = Counted(capi)
    compiled = capi.filled("mlx_compile", f.closure, False)
    for _ in range(3):
        np.testing.assert_array_equal(apply(capi, compiled, X, Y)[0], X * Y + X)
    traced = f.calls
    assert traced <= 2  # the first one may trace twice, for the default stream it creates
    apply(capi, compiled, X[:2], Y[:2])
    assert f.calls == traced + 1


def test_disabling_compilation(capi: CApi, no_fuse: None) -> None:
    capi.check(capi.c.mlx_disable_compile())
    f = Counted(capi)
    compiled = capi.filled("mlx_compile", f.closure, False)
    for _ in range(3):
        apply(capi, compiled, X, Y)
    assert f.calls == 3
    capi.check(capi.c.mlx_enable_compile())
    capi.check(capi.c.mlx_set_compile_mode(mlx.MLX_COMPILE_MODE_NO_FUSE))
    f = Counted(capi)
    compiled = capi.filled("mlx_compile", f.closure, False)
    for _ in range(3):
        apply(capi, compiled, X, Y)
    assert f.calls < 3
    assert capi.c.mlx_set_compile_mode(17) == 1


def test_compile_by_number(capi: CApi, no_fuse: None) -> None:
    """`detail_compile` caches under the given number until it is erased."""
    c = capi.c
    assert c.mlx_compile_cache_new() == 0
    f = Counted(capi)
    number = 0x7A5E0001
    compiled = capi.filled("mlx_detail_compile", f.closure, number, False, *capi.pointer((3,), "const uint64_t*"))
    apply(capi, compiled, X, Y)
    traced = f.calls
    apply(capi, compiled, X, Y)
    assert f.calls == traced
    cache = capi.filled("mlx_detail_compile_cache")
    capi.check(c.mlx_detail_compile_erase(cache, number))
    apply(capi, compiled, X, Y)
    assert f.calls == traced + 1
    capi.check(c.mlx_detail_compile_clear_cache(cache))
    apply(capi, compiled, X, Y)
    assert f.calls == traced + 2
    assert c.mlx_detail_compile_erase(0, number) == 1
    capi.check(c.mlx_compile_cache_free(cache))
