"""Fused, normalising and quantised operators of com.microsoft against ORT's CPU kernels or documented formulas."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from ort_ep.registry import REGISTRY

Check = Callable[..., None]
Draw = Callable[..., Any]
Host = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"
SINGLES = [np.float16, ml_dtypes.bfloat16, np.float32]


def sigmoid(x: Host) -> Host:
    return 1 / (1 + np.exp(-x))


def gelu(x: Host) -> Host:
    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def fast_gelu(x: Host) -> Host:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def soft(x: Host, axis: int = -1) -> Host:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def wide(*values: Host) -> list[Host]:
    return [value.astype(np.float64) for value in values]


@pytest.fixture
def both(plan_of: Callable[..., Any], cpu_session: Callable[..., Any]) -> Callable[..., tuple[Host, Host]]:
    """The first output of one node, from the plan and from the CPU provider."""

    def run(op: str, given: list[Any], attributes: dict[str, Any], domain: str = MICROSOFT) -> tuple[Host, Host]:
        names = ["" if value is None else f"x{index}" for index, value in enumerate(given)]
        feeds = {name: value for name, value in zip(names, given, strict=True) if name}
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in feeds.items()
        ]
        y = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(given[0].dtype), None)
        graph = helper.make_graph([helper.make_node(op, names, ["y"], domain=domain, **attributes)], op, inputs, [y])
        imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return plan_of(model, feeds)[0], np.asarray(cpu_session(model).run(None, feeds)[0])

    return run


def test_handlers_know_every_default_that_ort_writes_into_nodes() -> None:
    REGISTRY.load()
    unknown = []
    for schema in get_all_operator_schema():
        handler = REGISTRY.lookup(schema.domain, schema.name, schema.since_version)
        if schema.domain == MICROSOFT and handler is not None and not handler.any_attribute:
            written = {name for name, attribute in schema.attributes.items() if attribute._default_value}
            unknown += [f"{schema.name}: {name}" for name in written - handler.attributes]
    assert not unknown


# --- embeddings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("positions", [None, 1, 2])
def test_embed_layer_norm(check: Check, draw: Draw, segments: bool, mask: bool, positions: int | None) -> None:
    ids = draw(np.int32, 2, 3, low=0, high=9)
    given = [ids, draw(np.int32, 2, 3, low=0, high=2) if segments else None, draw(np.float32, 9, 8)]
    given += [draw(np.float32, 5, 8), draw(np.float32, 2, 8) if segments else None]
    given += [draw(np.float32, 8), draw(np.float32, 8), np.array([[1, 1, 0], [1, 1, 1]], np.int32) if mask else None]
    given += [draw(np.int32, positions, 3, low=0, high=5)] if positions else []
    check("EmbedLayerNormalization", *given, outputs=3, domain=MICROSOFT, rtol=1e-4)
    given[1] = None  # with a table it means that all are of segment 0
    check("EmbedLayerNormalization", *given, outputs=3, domain=MICROSOFT, rtol=1e-4)


def test_quantized_embed_layer_norm(check: Check, draw: Draw) -> None:
    tables = [draw(np.uint8, *shape, high=255) for shape in ((9, 8), (5, 8), (2, 8), (8,), (8,))]
    scales = [np.array(0.01 * (index + 1), np.float32) for index in range(5)]
    zeros = [np.array(100 + index, np.uint8) for index in range(5)]
    ids, segments = draw(np.int32, 2, 3, low=0, high=9), draw(np.int32, 2, 3, low=0, high=2)
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
    given = [ids, segments, *tables, mask, *scales, *zeros]
    check("QEmbedLayerNormalization", *given, outputs=2, domain=MICROSOFT, rtol=1e-4, atol=1e-4)


# --- normalisation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SINGLES)
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm(check: Check, draw: Draw, dtype: Any, last: int, activation: int) -> None:
    x, skip = draw(dtype, 2, 3, 4, 6), draw(dtype, 2, 6)
    gamma, beta, bias = draw(np.float32, 6), draw(np.float32, 6), draw(dtype, 6)

    def expected(values: Host) -> Host:
        groups = values.reshape(2, 12, 2, 3)
        mean, var = groups.mean((1, 3), keepdims=True), groups.var((1, 3), keepdims=True)
        y = ((groups - mean) / np.sqrt(var + 1e-5)).reshape(values.shape) * gamma + beta
        return y * sigmoid(y) if activation else y

    def laid(values: Host) -> Host:
        return (values if last else values.transpose(0, 3, 1, 2)).astype(dtype)

    how = {"activation": activation, "channels_last": last, "groups": 2, "domain": MICROSOFT}
    check("GroupNorm", laid(x), gamma, beta, expect=laid(expected(x.astype(np.float64))), **how)
    total = (x.astype(np.float32) + skip[:, None, None].astype(np.float32) + bias.astype(np.float32)).astype(dtype)
    both = [laid(expected(total.astype(np.float64))), laid(total)]
    for added in (skip, laid(skip[:, None, None])):
        check("SkipGroupNorm", laid(x), gamma, beta, added, bias, expect=both, **how)


@pytest.mark.parametrize("dtype", SINGLES)
@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
def test_gated_rms_norm(check: Check, draw: Draw, dtype: Any, activation: str) -> None:
    x, scale, gate = draw(dtype, 2, 3, 8), draw(dtype, 4), draw(dtype, 2, 3, 8)
    a, s, g = wide(x, scale, gate)
    groups = a.reshape(2, 3, 2, 4)
    normal = (groups / np.sqrt((groups**2).mean(-1, keepdims=True) + 1e-5) * s).reshape(x.shape)
    expected = (normal * sigmoid(g) * (1 if activation == "sigmoid" else g)).astype(dtype)
    check("GatedRMSNorm", x, scale, gate, expect=expected, domain=MICROSOFT, activation=activation)


@pytest.mark.parametrize("scale", [None, (8,), (2, 4), (4,)])
def test_branchwise_rms_norm(check: Check, draw: Draw, scale: tuple[int, ...] | None) -> None:
    gains = None if scale is None else draw(np.float32, *scale)
    check("BranchwiseRMSNorm", draw(np.float32, 3, 8), gains, domain=MICROSOFT, num_branches=2)
    check("BranchwiseRMSNorm", draw(np.float32, 3, 2, 4), gains, domain=MICROSOFT)


# --- biases and activations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SINGLES)
def test_biases(check: Check, draw: Draw, dtype: Any) -> None:
    x, bias, skip = draw(dtype, 2, 3, 8), draw(dtype, 8), draw(dtype, 2, 3, 8)
    a, b, s = wide(x, bias, skip)
    check("BiasAdd", x, bias, skip, expect=(a + b + s).astype(dtype), domain=MICROSOFT)
    left, right = np.split(a + b, 2, -1)
    check("BiasSplitGelu", x, bias, expect=(left * gelu(right)).astype(dtype), domain=MICROSOFT)
    w = draw(dtype, 8, 5)
    product = a @ w.astype(np.float64)
    check("GemmFastGelu", x, w, expect=fast_gelu(product).astype(dtype), domain=MICROSOFT)
    check("GemmFastGelu", x, w, bias[:5], expect=fast_gelu(product + b[:5]).astype(dtype), domain=MICROSOFT)


def test_bias_softmax(check: Check, draw: Draw) -> None:
    x, inner, outer = draw(np.float32, 2, 3, 4, 5), draw(np.float32, 2, 1, 1, 5), draw(np.float32, 4, 5)
    expected = soft(x + inner)
    check("BiasSoftmax", x, inner, expect=expected, domain=MICROSOFT, axis=3, is_inner_broadcast=1)
    flat = draw(np.float32, 2, 5)
    expected = soft(x + flat[:, None, None])
    check("BiasSoftmax", x, flat, expect=expected, domain=MICROSOFT, axis=3, is_inner_broadcast=1)
    expected = soft((x + outer).reshape(2, 3, 20)).reshape(x.shape)
    check("BiasSoftmax", x, outer, expect=expected, domain=MICROSOFT, axis=2, is_inner_broadcast=0)


@pytest.mark.parametrize("dtype", SINGLES)
def test_gates(check: Check, draw: Draw, dtype: Any) -> None:
    x, up = draw(dtype, 3, 8), draw(dtype, 3, 8)
    a, b = wide(x, up)
    how = {"activation_alpha": 1.7, "activation_beta": 1.0, "limit": 1.0, "domain": MICROSOFT}
    g, linear = np.minimum(a, 1), np.clip(b, -1, 1)
    expected = (g * sigmoid(1.7 * g) * (linear + 1)).astype(dtype)
    check("SwiGLU", x, up, expect=expected, **how)
    check("SwiGLU", np.concatenate([x, up], 1), expect=expected, **how)
    check("SwiGLU", x, up, expect=(a * sigmoid(a) * b).astype(dtype), domain=MICROSOFT)
    if dtype is not ml_dtypes.bfloat16:
        check("ScaledSiLU", x, domain=MICROSOFT, alpha=0.5)
        check("ScaledSiLU", x, np.array(0.25, np.float32), domain=MICROSOFT)


@pytest.mark.parametrize("activation", ["Relu", "Tanh", "Sigmoid"])
def test_fused_matmul_activation(check: Check, draw: Draw, activation: str) -> None:
    a, b = draw(np.float32, 2, 3, 4), draw(np.float32, 2, 5, 4)
    product = 0.5 * (a.astype(np.float64) @ b.swapaxes(1, 2))
    functions: dict[str, Callable[[Host], Host]] = {
        "Relu": lambda x: np.maximum(x, 0),
        "Tanh": np.tanh,
        "Sigmoid": sigmoid,
    }
    expected = functions[activation](product).astype(np.float32)
    how = {"activation": activation, "alpha": 0.5, "transB": 1, "domain": MICROSOFT}
    check("FusedMatMulActivation", a, b, expect=expected, **how)


def test_complex_products(check: Check, draw: Draw) -> None:
    a, b = draw(np.float32, 3, 4, 2), draw(np.float32, 1, 4, 2)
    x, y = a[..., 0] + 1j * a[..., 1], b[..., 0] + 1j * b[..., 1]
    for op, product in (("ComplexMul", x * y), ("ComplexMulConj", x * y.conj())):
        check(op, a, b, expect=np.stack([product.real, product.imag], -1).astype(np.float32), domain=MICROSOFT)


# --- layouts --------------------------------------------------------------------------------------------------------


def test_nhwc_conv(check: Check, draw: Draw, both: Callable[..., Any]) -> None:
    x, w, b = draw(np.float32, 2, 6, 7, 4), draw(np.float32, 6, 2, 3, 3), draw(np.float32, 6)
    how: dict[str, Any] = {"group": 2, "pads": [1, 0, 1, 2], "strides": [2, 1]}
    plain = both("Conv", [x.transpose(0, 3, 1, 2), w, b], how, domain="")[1].transpose(0, 2, 3, 1)
    check("NhwcConv", x, w, b, expect=plain, domain=MICROSOFT, rtol=1e-4, **how)
    z = draw(np.float32, *plain.shape)
    expected = np.maximum(plain + z, 0)
    check("NhwcFusedConv", x, w, b, z, expect=expected, domain=MICROSOFT, rtol=1e-4, activation="Relu", **how)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_nhwc_max_pool(check: Check, draw: Draw, dtype: Any) -> None:
    x = draw(dtype, 2, 6, 7, 4, high=120)
    how = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    check("NhwcMaxPool", x, domain=MICROSOFT, **how)


def test_conv_transpose_with_dynamic_pads(check: Check, draw: Draw) -> None:
    x, w, b = draw(np.float32, 1, 4, 5, 6), draw(np.float32, 4, 3, 3, 3), draw(np.float32, 3)
    how = {"strides": [2, 2], "kernel_shape": [3, 3], "domain": MICROSOFT, "rtol": 1e-4}
    check("ConvTransposeWithDynamicPads", x, w, np.array([1, 0, 1, 2]), b, **how)
    check("ConvTransposeWithDynamicPads", x, w, np.array([0, 0, 0, 0]), **how)


# --- quantised ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_quantize_linear(check: Check, draw: Draw, dtype: Any) -> None:
    x, scale = (100 * draw(np.float32, 3, 4)).astype(np.float32), np.abs(draw(np.float32, 4)) + np.float32(0.5)
    zero = draw(dtype, 4)
    check("QuantizeLinear", x, scale, zero, domain=MICROSOFT, axis=1)
    check("QuantizeLinear", x, np.asarray(scale[0]), np.asarray(zero[0]), domain=MICROSOFT)
    check("DequantizeLinear", draw(dtype, 3, 4, high=100), scale, zero, domain=MICROSOFT, axis=1)
    check("DequantizeLinear", draw(dtype, 3, 4, high=100), np.asarray(scale[0]), np.asarray(zero[0]), domain=MICROSOFT)


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("past", [0, 4])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("columns", [True, False])
def test_quantized_attention(check: Check, draw: Draw, mask: bool, past: int, causal: int, columns: bool) -> None:
    x, w, b = draw(np.uint8, 2, 3, 10, high=255), draw(np.int8, 10, 48, high=127), draw(np.float32, 48)
    scale = 0.005 * np.abs(draw(np.float32, 48)) + np.float32(0.001) if columns else np.array(0.004, np.float32)
    given = [x, w, b, np.array(0.02, np.float32), scale.astype(np.float32)]
    given += [np.array([2, 3 + past], np.int32) if mask else None, np.array(120, np.uint8)]
    given += [np.zeros(48, np.int8) if columns else np.array(3, np.int8)]
    given += [draw(np.float32, 2, 2, 4, past, 4) if past else None]
    how = {"num_heads": 4, "unidirectional": causal, "domain": MICROSOFT, "constants": [1, 4, 7]}
    check("QAttention", *given, outputs=2, rtol=1e-3, atol=1e-4, **how)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(("opset", "axis"), [(13, -1), (13, 1), (11, 1), (11, 2)])
def test_qlinear_softmax(draw: Draw, both: Any, dtype: Any, opset: int, axis: int) -> None:
    x = draw(dtype, 2, 3, 4, high=100)
    given = [x, np.array(0.05, np.float32), np.array(10, dtype), np.array(1 / 256, np.float32)]
    given += [np.array(0 if dtype is np.uint8 else -128, dtype)]
    mine, theirs = both("QLinearSoftmax", given, {"axis": axis, "opset": opset})
    assert mine.dtype == theirs.dtype
    np.testing.assert_allclose(mine.astype(int), theirs.astype(int), atol=1)  # ORT rounds its table once more


def test_qlinear_reduce_mean(check: Check, draw: Draw) -> None:
    x = draw(np.uint8, 2, 3, 4, high=255)
    given = [x, np.array(0.5, np.float32), np.array(7, np.uint8), np.array(0.4, np.float32), np.array(3, np.uint8)]
    mean = (0.5 * (x.astype(np.float64) - 7)).mean(1)
    expected = (np.round(mean / np.float32(0.4)) + 3).clip(0, 255).astype(np.uint8)
    check("QLinearReduceMean", *given, expect=expected, domain=MICROSOFT, axes=[1], keepdims=0)


def test_integer_products(check: Check, draw: Draw) -> None:
    a, b = draw(np.int16, 3, 4, high=32767), draw(np.int16, 4, 5, high=32767)
    check("MatMulInteger16", a, b, domain=MICROSOFT)
    x, y = draw(np.uint8, 3, 4, high=255), draw(np.uint8, 4, high=255)
    zero = np.array(100, np.uint8)
    expected = (x.astype(np.int32) - 100) * y
    check("MulInteger", x, zero, y, expect=expected, domain=MICROSOFT)
    check("MulInteger", x, None, y, zero, expect=x * (y.astype(np.int32) - 100), domain=MICROSOFT)
