"""Fused functions and custom kernels."""

from __future__ import annotations

import ctypes

import mlx.core as mx
import numpy as np
import pytest
from capi_compare import Case, case, compare
from capi_harness import CApi, Failed

RNG = np.random.default_rng(5)


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype("f4")


X, WEIGHT, BIAS = f(2, 3, 8), f(8), f(8)
Q, K, V = f(1, 4, 5, 8), f(1, 2, 6, 8), f(1, 2, 6, 8)
MASK = RNG.random((1, 1, 5, 6)) > 0.3


def attention(
    q: mx.array, k: mx.array, v: mx.array, scale: float, mode: str, mask: mx.array | None, *_: object
) -> mx.array:
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mode or mask)


FAST = [
    case("fast_layer_norm", X, WEIGHT, BIAS, 1e-5),
    case("fast_layer_norm", X, None, None, 1e-5),
    case("fast_rms_norm", X, WEIGHT, 1e-5),
    case("fast_rms_norm", X, None, 1e-3),
    case("fast_rope", X, 6, True, 10000.0, 0.5, 3, None,
         ref=lambda x, d, t, base, scale, offset, freqs: mx.fast.rope(
             x, d, traditional=t, base=base, scale=scale, offset=offset, freqs=freqs)),
    case("fast_rope", X, 8, False, None, 1.0, 0, f(4) + 2,
         ref=lambda x, d, t, base, scale, offset, freqs: mx.fast.rope(
             x, d, traditional=t, base=base, scale=scale, offset=offset, freqs=freqs)),
    case("fast_rope", X, 8, False, None, 1.0, 0, None,
         ref=lambda x, d, t, base, scale, offset, freqs: mx.fast.rope(
             x, d, traditional=t, base=base, scale=scale, offset=offset, freqs=freqs)),
    case("fast_rope_dynamic", X, 8, False, 100.0, 1.0, np.array([2, 5], "i4"), None,
         ref=lambda x, d, t, base, scale, offset, freqs: mx.fast.rope(
             x, d, traditional=t, base=base, scale=scale, offset=offset, freqs=freqs)),
    case("fast_scaled_dot_product_attention", Q, K, V, 0.5, "", None, None, False, ref=attention),
    case("fast_scaled_dot_product_attention", Q, K, V, 0.5, "causal", None, None, False, ref=attention),
    case("fast_scaled_dot_product_attention", Q, K, V, 0.5, "", MASK, None, False, ref=attention),
    case("fast_scaled_dot_product_attention", Q, K, V, 0.5, "nonsense", None, None, False, ref=attention),
    case("fast_cross_entropy", f(4, 7), np.array([0, 6, 3, 3], "i4")),
]  # fmt: skip


@pytest.mark.parametrize("c", FAST)
def test_fast(capi: CApi, c: Case) -> None:
    compare(capi, c)


def test_attention_says_when_no_fused_kernel_exists(capi: CApi) -> None:
    with pytest.raises(Failed, match="force_fused"):
        capi.op("fast_scaled_dot_product_attention", Q, K, V, 0.5, "", None, None, True)


@pytest.mark.parametrize("kind", ["metal", "cuda"])
def test_custom_kernels(capi: CApi, kind: str) -> None:
    """Configuration works everywhere; without the back end, applying is an error and not a crash."""
    c, prefix = capi.c, f"mlx_fast_{kind}_kernel"

    def call(name: str, *args: object) -> int:
        return getattr(c, f"{prefix}_{name}")(*args)

    config = capi.need(call("config_new"))
    shape, ndim = capi.pointer((4,))
    capi.check(call("config_add_output_arg", config, shape, ndim, 10))
    capi.check(call("config_set_grid", config, 4, 1, 1))
    capi.check(call("config_set_thread_group", config, 4, 1, 1))
    capi.check(call("config_set_init_value", config, 0.0))
    capi.check(call("config_set_verbose", config, False))
    capi.check(call("config_add_template_arg_dtype", config, b"T", 10))
    capi.check(call("config_add_template_arg_int", config, b"N", 3))
    capi.check(call("config_add_template_arg_bool", config, b"F", True))
    assert call("config_add_output_arg", config, shape, ndim, 99) == 1
    assert call("config_add_template_arg_dtype", config, b"T", 99) == 1
    assert call("config_add_template_arg_int", config, None, 1) == 1
    assert call("config_set_grid", 0, 1, 1, 1) == 1

    names = [c.mlx_vector_string_new_value(n) for n in (b"inp", b"out")]
    source = b"uint i = thread_position_in_grid.x; out[i] = inp[i];" if kind == "metal" else b"out[0] = inp[0];"
    available = capi.filled(f"mlx_{kind}_is_available", kind=ctypes.c_bool)
    kernel = call("new", b"capi_copy", *names, source, None, True, 0)
    inputs = capi.vector([np.arange(4, dtype="f4")])
    if available:
        gpu = capi.need(c.mlx_default_gpu_stream_new())
        got = capi.op(f"fast_{kind}_kernel_apply", kernel, inputs, config, gpu)
        np.testing.assert_array_equal(got[0][:1], [0.0])
    else:
        with pytest.raises(Failed):
            capi.op(f"fast_{kind}_kernel_apply", kernel, inputs, config, capi.stream)
    call("free", kernel)
    call("config_free", config)
    call("config_free", 0)
