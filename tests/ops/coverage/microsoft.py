"""Operators of com.microsoft that fuse, move or quantise."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
from harness import Given, Maker, Unfit, case
from quantised import qlinear_conv
from tensors import ints

DOMAIN = "com.microsoft"


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def gelu(x: Any) -> Any:
    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def fast_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def wide(*values: Any) -> Any:
    return [value.astype(np.float64) for value in values]


def levels(x: Any, zero: Any) -> Any:
    """Quantised values as the operator leaves them."""
    limits = np.iinfo(zero.dtype)
    return np.round(x).clip(limits.min, limits.max).astype(zero.dtype)


def f32(value: float) -> Any:
    return np.array(value, np.float32)


# --- fused ----------------------------------------------------------------------------------------------------------


def bias_add(g: Given) -> Any:
    x, bias, skip = g(0, 2, 3, 8), g(1, 8), g(2, 2, 3, 8)
    a, b, c = wide(x, bias, skip)
    return case(x, bias, skip, expect=(a + b + c).astype(x.dtype), batch=[0, 2])


def bias_gelu(g: Given) -> Any:
    x, bias = g(0, 3, 8), g(1, 8)
    a, b = wide(x, bias)
    return case(x, bias, expect=gelu(a + b).astype(x.dtype), batch=[0])


def bias_split_gelu(g: Given) -> Any:
    x, bias = g(0, 2, 3, 8), g(1, 8)
    a, b = wide(x, bias)
    left, right = np.split(a + b, 2, -1)
    return case(x, bias, expect=(left * gelu(right)).astype(x.dtype), batch=[0])


def bias_softmax(g: Given) -> Any:
    x, bias = g(0, 2, 3, 4), g(1, 1, 3, 4)
    e = np.exp(x.astype(np.float64) + bias.astype(np.float64))
    return case(x, bias, axis=2, is_inner_broadcast=0, expect=(e / e.sum(-1, keepdims=True)).astype(x.dtype), batch=[0])


def branchwise_norm(g: Given) -> Any:
    return case(g(0, 3, 8), g(1, 8), num_branches=2, batch=[0])


def gemm_fast_gelu(g: Given) -> Any:
    x, w, bias = g(0, 2, 3, 8, high=1), g(1, 8, 5, high=1), g(2, 5)
    a, b, c = wide(x, w, bias)
    return case(x, w, bias, expect=fast_gelu(a @ b + c).astype(x.dtype), batch=[0])


def complex_product(sign: int) -> Maker:
    def make(g: Given) -> Any:
        a, b = g(0, 3, 4, 2), g(1, 1, 4, 2)
        x, y = (value[..., 0] + 1j * value[..., 1] for value in wide(a, b))
        product = x * (y if sign > 0 else y.conj())
        return case(a, b, expect=np.stack([product.real, product.imag], -1).astype(a.dtype))

    return make


def fused_gemm(g: Given) -> Any:
    a, b, c = g(0, 3, 4), g(1, 4, 5), g(2, 5)
    return case(
        a, b, c, activation="Relu", expect=np.maximum(np.add(a.astype(float) @ b, c), 0).astype(a.dtype), batch=[0]
    )


def fused_matmul(**attributes: Any) -> Maker:
    def make(g: Given) -> Any:
        a, b = g(0, 2, 3, 4), g(1, 2, 5, 4)
        y = 0.5 * (a.astype(np.float64) @ b.swapaxes(1, 2).astype(np.float64))
        y = np.maximum(y, 0) if "activation" in attributes else y
        return case(a, b, transB=1, alpha=0.5, expect=y.astype(a.dtype), batch=[0, 1], **attributes)

    return make


def convolved(last: bool, activation: bool) -> Maker:
    def make(g: Given) -> Any:
        x, w, bias = g(0, 1, 2, 5, 5, high=2), g(1, 3, 2, 2, 2, high=2), g(2, 3)
        a, b, c = wide(x, w, bias)
        y = np.zeros((1, 3, 4, 4)) + c[:, None, None]
        for row, column in np.ndindex(2, 2):
            y += np.einsum("nchw,oc->nohw", a[:, :, row : row + 4, column : column + 4], b[:, :, row, column])
        given: list[Any] = [x, w, bias]
        how: Any = {}
        if activation:
            z = g(3, 1, 3, 4, 4)
            y = np.maximum(y + z.astype(np.float64), 0)
            how = {"activation": "Relu"}
            given.append(z.transpose(0, 2, 3, 1) if last else z)
        if last:
            given[0], y = x.transpose(0, 2, 3, 1), y.transpose(0, 2, 3, 1)
        return case(*given, expect=y.astype(x.dtype), **how)

    return make


def transposed(g: Given) -> Any:
    return case(
        g(0, 1, 4, 3, 4, high=2), g(1, 4, 2, 3, 3, high=2), ints(1, 0, 1, 2), g(3, 2), strides=[2, 2], batch=[0]
    )


def gated_add(g: Given) -> Any:
    x, y, gate = g(0, 2, 3, 4), g(1, 2, 3, 4), g(2, 2, 3, 1)
    a, b, c = wide(x, y, gate)
    return case(x, y, gate, expect=(a + b * c).astype(x.dtype), batch=[0, 1, 2])


def gated_norm(g: Given) -> Any:
    x, scale, gate = g(0, 2, 3, 8), g(1, 8), g(2, 2, 3, 8)
    a, s, t = wide(x, scale, gate)
    y = a / np.sqrt((a**2).mean(-1, keepdims=True) + 1e-5) * s * t * sigmoid(t)
    return case(x, scale, gate, activation="silu", expect=y.astype(x.dtype), batch=[0, 2])


def group_norm(g: Given) -> Any:
    skipped = g.triple.name == "SkipGroupNorm"
    x, gamma, beta = g(0, 2, 3, 4, 6), g(1, 6), g(2, 6)
    more = [g(3, 2, 3, 4, 6), g(4, 6)] if skipped else []
    total = np.sum(wide(x, *np.broadcast_arrays(x, *more)[1:]), 0).astype(x.dtype)
    parts = total.astype(np.float64).reshape(2, 12, 2, 3)
    y = (parts - parts.mean((1, 3), keepdims=True)) / np.sqrt(parts.var((1, 3), keepdims=True) + 1e-5)
    y = (y.reshape(x.shape) * gamma.astype(np.float64) + beta.astype(np.float64)).astype(x.dtype)
    how: Any = {"activation": 0, "channels_last": 1, "groups": 2}
    return case(
        x,
        gamma,
        beta,
        *more,
        outputs=1 + skipped,
        expect=[y, total] if skipped else y,
        batch=[0, 3] if skipped else [0],
        **how,
    )


def skip_norm(g: Given) -> Any:
    centred = g.triple.name == "SkipLayerNormalization"
    x, skip, gamma = g(0, 2, 3, 8), g(1, 2, 3, 8), g(2, 8)
    shifts = [g(3, 8), g(4, 8)] if centred else [g(3, 8)]
    total = x.astype(np.float64) + skip.astype(np.float64) + shifts[-1].astype(np.float64)
    y = total - total.mean(-1, keepdims=True) if centred else total
    y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-5) * gamma.astype(np.float64)
    y = y + shifts[0].astype(np.float64) if centred else y
    return case(x, skip, gamma, *shifts, epsilon=1e-5, expect=y.astype(x.dtype), batch=[0, 1])


def swiglu(g: Given) -> Any:
    x, up = g(0, 3, 8), g(1, 3, 8)
    a, b = wide(x, up)
    return case(x, up, expect=(a * sigmoid(a) * b).astype(x.dtype), batch=[0, 1])


def gate_of_attention(g: Given) -> Any:
    return case(g(0, 2, 3, 4), g(1, 4, high=1), g(2, 4, high=1), g(3, 2, 3, 4), outputs=2, batch=[0, 3])


# --- moving and comparing ---------------------------------------------------------------------------------------------


def expand_dims(g: Given) -> Any:
    x = g(0, 2, 3)
    return case(x, np.array(1, np.int32), constants=[1], expect=x[:, None])


def gather_nd(g: Given) -> Any:
    x = g(0, 3, 4, 5)
    return case(x, g.at(1, [[0, 1], [2, 3]]), expect=x[[0, 2], [1, 3]])


def trilu(g: Given) -> Any:
    x = g(0, 3, 4)
    return case(x, np.array(1), upper=1, constants=[1], expect=np.triu(x, 1))


def unfold(g: Given) -> Any:
    x = g(0, 5, 7)
    expect = np.stack([x[:, start : start + 3] for start in (0, 2, 4)], 1)
    return case(x, dim=1, size=3, step=2, expect=expect)


def unique(g: Given) -> Any:
    x = g(0, 8, high=2)
    _, first, place = np.unique(x, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.argsort(order)[place]
    return case(x, outputs=3, expect=[x[np.sort(first)], rank, np.bincount(rank)])


def embedding(g: Given) -> Any:
    weight, at = g(0, 6, 4), np.array([[0, 5], [2, 2]])
    return case(weight, at, expect=weight[at])


def grid_sample(g: Given) -> Any:
    if g.narrow(0) != g.narrow("T2"):
        raise Unfit("the result has the dtype of x")
    return case(g(0, 1, 2, 4, 5), g(1, 1, 3, 3, 2, high=0.9), mode="bilinear", padding_mode="border", batch=[0, 1])


def pad(g: Given) -> Any:
    x = g(0, 2, 3)
    return case(x, ints(1, 0, 0, 2), g.at(2, [1]), constants=[1], expect=np.pad(x, ((1, 0), (0, 2)), constant_values=1))


def range_(g: Given) -> Any:
    return case(g.at(0, 1), g.at(1, 10), g.at(2, 3), constants=[0, 1, 2], expect=g.at(0, [1, 4, 7]))


def inverse(g: Given) -> Any:
    x = g.at(0, g(0, 2, 3, 3, high=1) + 3 * np.eye(3))
    return case(x, expect=np.linalg.inv(x.astype(np.float64)).astype(x.dtype), batch=[0])


def spectrum(g: Given) -> Any:
    x = g(0, 3, 8)
    y = np.fft.rfft(x.astype(np.float64))
    return case(x, signal_ndim=1, expect=np.stack([y.real, y.imag], -1).astype(x.dtype), tolerance=2e-2, batch=[0])


def signal(g: Given) -> Any:
    x = g(0, 3, 5, 2)
    x[:, [0, -1], 1] = 0
    a = x.astype(np.float64)
    return case(x, signal_ndim=1, expect=np.fft.irfft(a[..., 0] + 1j * a[..., 1]).astype(x.dtype), batch=[0])


def distances(g: Given) -> Any:
    a, b = g(0, 4, 5), g(1, 3, 5)
    x, y = wide(a, b)
    return case(a, b, metric="euclidean", expect=np.linalg.norm(x[:, None] - y, axis=-1).astype(a.dtype), batch=[0])


def crop(g: Given) -> Any:
    rois = g.at(1, [[0, 0, 1, 1], [0.125, 0.25, 0.75, 0.875]])
    return case(g(0, 2, 3, 6, 7), rois, np.array([0, 1], np.int32), np.array([3, 4], np.int32), constants=[3])


def repeats(g: Given) -> Any:
    return case(np.array([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4]]), g(1, 2, 6), ngram_size=2, batch=[0, 1])


def all_finite(g: Given) -> Any:
    x = g(0, 3)
    x[1] = np.inf
    return case(g(0, 2), x, expect=np.array(False))


# --- quantised --------------------------------------------------------------------------------------------------------


def quantize(g: Given) -> Any:
    return case(g(0, 3, 4, high=50), g.at(1, 2), g.at(2, 1), batch=[0])


def dequantize(g: Given) -> Any:
    x, scale, zero = g(0, 3, 4, high=100), g.at(1, 0.5), g.at(2, 0 if g.narrow(0) == "int32" else 1)
    return case(x, scale, zero, expect=((x.astype(float) - zero.astype(float)) / 2).astype(scale.dtype), batch=[0])


def qbinary(function: Any) -> Maker:
    def make(g: Given) -> Any:
        a, b = g(0, 2, 3, 4, high=100), g(3, 3, 1, high=100)
        zeros = [g.at(place, zero) for place, zero in ((2, 3), (5, 5), (7, 10))]
        y = function((a.astype(float) - 3) / 4, (b.astype(float) - 5) / 2) / 16 + 10
        given = [a, f32(0.25), zeros[0], b, f32(0.5), zeros[1], f32(16), zeros[2]]
        return case(*given, expect=levels(y, zeros[2]), levels=1)

    return make


def qunary(function: Any, *shape: int, out: float = 0.5, **attributes: Any) -> Maker:
    """One quantised input: its scale is a quarter and its zero 3, and the result's zero is 10."""

    def make(g: Given) -> Any:
        x, zeros = g(0, *shape, high=100), [g.at(place, zero) for place, zero in ((2, 3), (4, 10))]
        y = function((x.astype(float) - 3) / 4) / out + 10
        return case(
            x, f32(0.25), zeros[0], f32(out), zeros[1], expect=levels(y, zeros[1]), levels=1, batch=[0], **attributes
        )

    return make


def pooled(x: Any) -> Any:
    return (x[:, :, :-1, :-1] + x[:, :, 1:, :-1] + x[:, :, :-1, 1:] + x[:, :, 1:, 1:]) / 4


def soft(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def qconcat(g: Given) -> Any:
    if g.narrow(2) != g.narrow(1):
        raise Unfit("what is joined has the dtype of the result; float32 are the scales among it")
    x, y = g(2, 2, 3, high=100), g(2, 2, 2, high=100)
    zeros = [g.at(2, 3), g.at(2, 5), g.at(1, 10)]
    joined = np.concatenate([(x.astype(float) - 3) / 4, (y.astype(float) - 5) / 2], 1)
    given = [f32(0.5), zeros[2], x, f32(0.25), zeros[0], y, f32(0.5), zeros[1]]
    return case(*given, axis=1, expect=levels(joined / 0.5 + 10, zeros[2]), levels=1)


def qwhere(g: Given) -> Any:
    c, x, y = g(0, 2, 3), g(1, 2, 3, high=100), g(4, 2, 3, high=100)
    zeros = [g.at(place, zero) for place, zero in ((3, 3), (6, 5), (8, 10))]
    z = np.where(c, (x.astype(float) - 3) / 4, (y.astype(float) - 5) / 2) / 0.5 + 10
    given = [c, x, f32(0.25), zeros[0], y, f32(0.5), zeros[1], f32(0.5), zeros[2]]
    return case(*given, expect=levels(z, zeros[2]), levels=1)


def qgemm(g: Given) -> Any:
    a, b, c = g(0, 4, 8, high=100), g(3, 8, 5, high=100), g(6, 5, high=500)
    zeros = [g.at(2, 3), g.at(5, 5)]
    y = ((a.astype(float) - 3) @ (b.astype(float) - 5) + c) / 8
    given = [a, f32(0.25), zeros[0], b, f32(0.5), zeros[1], c]
    out = g.narrow("TY")
    zero = g.at(8, 10)
    if out == "float32":
        return case(*given, expect=y.astype(np.float32))
    if zero.dtype != g.dtype("TY"):
        raise Unfit("the result has the dtype of its zero point")
    return case(*given, f32(16), zero, expect=levels(y / 16 + 10, zero), levels=1, batch=[0])


def matmul_to_float(g: Given) -> Any:
    a, b = g(0, 3, 8, high=100), g(1, 8, 5, high=100)
    zeros = g.at(4, 3), g.at(5, 5)
    y = (a.astype(float) - 3) @ (b.astype(float) - 5) * 0.0078125
    bias = g(6, 5)
    given = [a, b, g.at(2, 0.125), g.at(3, 0.0625), *zeros, bias]
    return case(*given, expect=(y + bias.astype(float)).astype(bias.dtype), batch=[0])


def dynamic_matmul(g: Given) -> Any:
    return case(g(0, 3, 8), g(1, 8, 5, high=100), f32(0.0625), g.at(3, 5), g(4, 5), constants=[1, 2, 3], batch=[0])


def dynamic_lstm(g: Given) -> Any:
    w, r = g(1, 1, 4, 8, high=100), g(2, 1, 2, 8, high=100)
    ends = [np.array([0.01], np.float32), g.at(9, [3]), np.array([0.01], np.float32), g.at(11, [3])]
    given = [g(0, 3, 2, 4, high=1), w, r, g(3, 1, 16, high=1), np.array([3, 2], np.int32), None, None, None, *ends]
    return case(*given, hidden_size=2, outputs=3, constants=[1, 2, 3, 8, 9, 10, 11], tolerance=1e-2)


def matmul_integer16(g: Given) -> Any:
    a, b = g(0, 3, 4, high=1000), g(1, 4, 5, high=1000)
    if g.narrow("T3") == "uint32":
        raise Unfit("ONNX Runtime infers int32")
    return case(a, b, expect=(a.astype(np.int64) @ b.astype(np.int64)).astype(g.dtype("T3")), batch=[0])


def mul_integer(g: Given) -> Any:
    a, b, zeros = g(0, 3, 4, high=100), g(2, 4, high=100), [g.at(1, 3), g.at(3, 5)]
    expect = (a.astype(np.int32) - 3) * (b.astype(np.int32) - 5)
    return case(a, zeros[0], b, zeros[1], expect=expect, batch=[0])


def max_pool(g: Given) -> Any:
    x = g(0, 1, 3, 4, 2, high=100)
    parts = [x[:, row : row + 2, column : column + 3] for row, column in np.ndindex(2, 2)]
    return case(x, kernel_shape=[2, 2], expect=np.maximum.reduce(parts), batch=[0])


CASES: dict[str, Maker] = {
    "BiasAdd": bias_add,
    "BiasGelu": bias_gelu,
    "BiasSoftmax": bias_softmax,
    "BiasSplitGelu": bias_split_gelu,
    "BranchwiseRMSNorm": branchwise_norm,
    "CDist": distances,
    "ComplexMul": complex_product(1),
    "ComplexMulConj": complex_product(-1),
    "ConvTransposeWithDynamicPads": transposed,
    "CropAndResize": crop,
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLSTM": dynamic_lstm,
    "DynamicQuantizeMatMul": dynamic_matmul,
    "ExpandDims": expand_dims,
    "FastGelu": lambda g: case(g(0, 3, 8), g(1, 8)),
    "FusedConv": convolved(last=False, activation=True),
    "FusedGemm": fused_gemm,
    "FusedMatMul": fused_matmul(),
    "FusedMatMulActivation": fused_matmul(activation="Relu"),
    "GatedAdd": gated_add,
    "GatedRMSNorm": gated_norm,
    "GatherND": gather_nd,
    "Gelu": lambda g: case(g(0, 3, 8)),
    "GemmFastGelu": gemm_fast_gelu,
    "GridSample": grid_sample,
    **dict.fromkeys(("GroupNorm", "SkipGroupNorm"), group_norm),
    "Inverse": inverse,
    "Irfft": signal,
    "IsAllFinite": all_finite,
    "LinearAttentionGate": gate_of_attention,
    "MatMulInteger16": matmul_integer16,
    "MatMulIntegerToFloat": matmul_to_float,
    "MulInteger": mul_integer,
    "NGramRepeatBlock": repeats,
    "NhwcConv": convolved(last=True, activation=False),
    "NhwcFusedConv": convolved(last=True, activation=True),
    "NhwcMaxPool": max_pool,
    "Pad": pad,
    "QGemm": qgemm,
    "QLinearAdd": qbinary(np.add),
    "QLinearConv": qlinear_conv,
    "QLinearAveragePool": qunary(pooled, 1, 2, 4, 5, kernel_shape=[2, 2]),
    "QLinearConcat": qconcat,
    "QLinearGlobalAveragePool": qunary(lambda x: x.mean((2, 3), keepdims=True), 1, 2, 4, 5),
    "QLinearLeakyRelu": qunary(lambda x: np.where(x < 0, 0.25 * x, x), 3, 4, alpha=0.25),
    "QLinearMul": qbinary(np.multiply),
    "QLinearReduceMean": qunary(lambda x: x.mean(1), 2, 3, 4, axes=[1], keepdims=0),
    "QLinearSigmoid": qunary(sigmoid, 3, 4, out=1 / 128),
    "QLinearSoftmax": qunary(soft, 3, 4, out=1 / 256, axis=-1, opset=13),
    "QLinearWhere": qwhere,
    "QuantizeLinear": quantize,
    "QuickGelu": lambda g: case(g(0, 3, 8), alpha=1.5),
    "Range": range_,
    "Rfft": spectrum,
    "ScaledSiLU": lambda g: case(g(0, 3, 8), g.at(1, 0.5)),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), skip_norm),
    "SwiGLU": swiglu,
    "TorchEmbedding": embedding,
    "TransposeMatMul": fused_matmul(),
    "Trilu": trilu,
    "UnfoldTensor": unfold,
    "Unique": unique,
}
