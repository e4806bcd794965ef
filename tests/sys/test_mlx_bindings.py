"""mlxc_py._sys.mlx: complete, lazily bound, with the argument kinds that each platform's ABI needs."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from mlxc_py._sys import abi, load, mlx


def test_counts() -> None:
    assert (mlx.FUNCTION_COUNT, mlx.API) == (674, "0.7.0")
    assert len(mlx.FUNCTIONS) == mlx.FUNCTION_COUNT
    assert len(mlx.OLDER_FORMS) == 24


def test_every_declared_name_is_there(models: Any) -> None:
    api = models.mlx_07
    assert set(mlx.FUNCTIONS) == set(api.by_name)
    for f in api.functions:
        signature = mlx.FUNCTIONS[f.name]
        assert signature.result == f.result
        assert [t for t, _ in signature.params] == [p.type for p in f.params] + ["..."] * f.variadic
        assert callable(getattr(mlx, f.name))
    for s in api.structs.values():
        assert [name for name, _ in getattr(mlx, s.name)._fields_] == [m.name for m in s.members]
    for e in api.enums.values():
        assert {m.name: m.value for m in getattr(mlx, e.name)} == e.values
        assert all(getattr(mlx, name) == value for name, value in e.values.items())
    callbacks = [f"{f.name}_{p.name}" for f in api.functions for p in f.params if "(*)" in p.type]
    assert len(callbacks) == 22
    for name in [*callbacks, "mlx_error_handler_func"]:
        assert issubclass(getattr(mlx, name), ctypes._CFuncPtr)  # type: ignore[attr-defined]


def kinds(name: str) -> list[Any]:
    return abi.argument_types([t for t, _ in mlx.FUNCTIONS[name].params], vars(mlx))


def test_small_integers_are_exact_where_they_land_on_the_stack() -> None:
    """Apple's arm64 packs stack arguments by size; the first eight integers are in registers."""
    found = kinds("mlx_conv_transpose3d")
    assert [t for t, _ in mlx.FUNCTIONS["mlx_conv_transpose3d"].params].count("int") == 13
    assert found[:8] == [ctypes.c_void_p] * 8
    assert found[8:16] == [ctypes.c_int] * 8
    assert found[16] is ctypes.c_void_p


def test_floats_are_exact_and_take_no_integer_register() -> None:
    names = [n for _, n in mlx.FUNCTIONS["mlx_fast_scaled_dot_product_attention"].params]
    found = dict(zip(names, kinds("mlx_fast_scaled_dot_product_attention"), strict=True))
    assert found["scale"] is ctypes.c_float
    assert found["force_fused"] is ctypes.c_void_p  # ninth parameter, but eighth integer
    assert found["mask_mode"] is ctypes.c_char_p
    assert kinds("mlx_arange")[1:4] == [ctypes.c_double] * 3


def test_text_must_be_bytes() -> None:
    with pytest.raises(TypeError):
        kinds("mlx_fast_metal_kernel_new")[0].from_param("a str would be read as a wide string")


def test_results() -> None:
    def result(name: str) -> Any:
        return abi.result_type(mlx.FUNCTIONS[name].result, vars(mlx))

    assert result("mlx_array_new") is ctypes.c_size_t
    assert result("mlx_array_shape") is ctypes.c_size_t
    assert result("mlx_array_dtype") is ctypes.c_uint
    assert result("mlx_string_data") is ctypes.c_char_p
    assert result("mlx_add") is ctypes.c_int
    assert result("mlx_map_string_to_array_iterator_new") is mlx.mlx_map_string_to_array_iterator


def test_optionals() -> None:
    assert abi.optional_int(None) == abi.optional_float(None) == 0
    assert abi.optional_int(4) == 4 | 1 << 32
    assert abi.optional_int(-1) == 0x1_FFFF_FFFF
    assert abi.optional_float(1.0) == 0x3F80_0000 | 1 << 32
    packed = ctypes.c_uint64(abi.optional_float(2.5))
    seen = mlx.mlx_optional_float.from_buffer(packed)
    assert (seen.value, seen.has_value) == (2.5, True)


# ---------------------------------------------------------------- with the real library
@pytest.fixture(scope="module")
def library() -> load.Library:
    try:
        return load.library()
    except load.LibraryError as e:
        pytest.skip(str(e))


@pytest.mark.usefixtures("library")
def test_the_first_call_leaves_the_raw_function_in_the_module() -> None:
    before = mlx.mlx_dtype_size
    assert mlx.mlx_dtype_size(mlx.MLX_FLOAT32) == 4
    after = mlx.mlx_dtype_size
    assert isinstance(after, ctypes._CFuncPtr)  # type: ignore[attr-defined]
    assert after is mlx.mlx_dtype_size
    assert before(mlx.MLX_FLOAT64) == 8  # a stub imported earlier still works


def test_everything_callable_resolves(library: load.Library) -> None:
    """A library of the target generation has every function, the half accessors perhaps apart."""
    if library.generation != "0.7.0":
        pytest.skip(f"the library is mlx-c {library.generation}")
    missing = {n for n, s in mlx.FUNCTIONS.items() if abi.unavailable(s, library)}
    half = {f"mlx_array_{kind}_{dtype}" for kind in ("item", "data") for dtype in ("float16", "bfloat16")}
    assert missing - half == {"_mlx_error"}


@pytest.mark.usefixtures("library")
def test_the_variadic_function_is_refused_in_words() -> None:
    with pytest.raises(load.SymbolError, match="variadic"):
        mlx._mlx_error(b"f", 1, b"text")


@pytest.mark.usefixtures("library")
def test_a_failing_call_leaves_its_message() -> None:
    stream = mlx.mlx_default_cpu_stream_new()
    a = mlx.mlx_array_new_float32(1.0)
    slot = (ctypes.c_size_t * 1)()
    load.take_error()
    assert mlx.mlx_reshape(ctypes.addressof(slot), a, (ctypes.c_int * 1)(7), 1, stream) != 0
    assert "reshape" in (load.last_error() or "")
    assert "reshape" in (load.take_error() or "")
    assert load.last_error() is None
    assert slot[0] == 0
    mlx.mlx_array_free(a)
    mlx.mlx_stream_free(stream)


@pytest.mark.usefixtures("library")
def test_a_callback_receives_ints() -> None:
    seen: list[tuple[int, int]] = []

    def body(result: int, inputs: int) -> int:
        seen.append((result, inputs))
        out = (ctypes.c_size_t * 1)()
        status = mlx.mlx_vector_array_get(ctypes.addressof(out), inputs, 0)
        status |= mlx.mlx_vector_array_set_value(result, out[0])
        mlx.mlx_array_free(out[0])
        return int(status)

    callback = mlx.mlx_closure_new_func_fun(body)
    closure = mlx.mlx_closure_new_func(callback)
    a = mlx.mlx_array_new_float32(2.5)
    inputs, outputs = mlx.mlx_vector_array_new_value(a), (ctypes.c_size_t * 1)(mlx.mlx_vector_array_new())
    assert mlx.mlx_closure_apply(ctypes.addressof(outputs), closure, inputs) == 0
    assert mlx.mlx_vector_array_size(outputs[0]) == 1
    assert len(seen) == 1 and all(isinstance(v, int) and v for v in seen[0])
    for free, handle in (
        (mlx.mlx_vector_array_free, inputs),
        (mlx.mlx_vector_array_free, outputs[0]),
        (mlx.mlx_closure_free, closure),
        (mlx.mlx_array_free, a),
    ):
        assert free(handle) == 0
