"""Operators of ai.onnx that quantise, or compute with quantised integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import Given, Maker, Unfit, case

DOMAIN = ""


def quantize(g: Given) -> Any:
    to = g.narrow(2)
    narrow = to.startswith("float4") or to.endswith(("int2", "int4"))
    x = g(0, 3, 4, high=3 if narrow else 50)
    scale = g.at(1, 2)
    if g.version >= 19 and g.version < 23 and g.narrow(0) != g.narrow(1):
        raise Unfit("scales have the dtype of x")
    # oracles divide in a wider type than the scale's
    return case(x, scale, g.at(2, 0 if "float" in to else 1), levels=int(g.narrow(0) != g.narrow(1)), batch=[0])


def dequantize(g: Given) -> Any:
    x, scale = g(0, 3, 4, low=0, high=100), g.at(1, 0.5)
    zero = g.at(2, 0 if "float" in g.narrow(0) or g.narrow(0) == "int32" else 1)
    how: Any = {"output_dtype": g.code("T3")} if g.version >= 23 else {}
    expect = ((x.astype(np.float32) - zero.astype(np.float32)) * np.float32(0.5)).astype(
        g.dtype("T3") if g.version >= 23 else g.dtype(1) if g.version >= 19 else np.float32
    )
    return case(x, scale, zero, expect=expect, batch=[0], **how)


def dynamic(g: Given) -> Any:
    return case(g(0, 3, 4), outputs=3)


def conv_integer(g: Given) -> Any:
    return case(g(0, 1, 2, 5, 5, high=100), g(1, 3, 2, 2, 2, high=100), g.at(2, 3), g.at(3, 5), batch=[0])


def matmul_integer(g: Given) -> Any:
    a, b, zeros = g(0, 3, 4, high=100), g(1, 4, 5, high=100), (g.at(2, 3), g.at(3, 5))
    expect = (a.astype(np.int32) - zeros[0].astype(np.int32)) @ (b.astype(np.int32) - zeros[1].astype(np.int32))
    return case(a, b, *zeros, expect=expect, batch=[0])


def qlinear_matmul(g: Given) -> Any:
    a, b = g(0, 3, 4, high=100), g(3, 4, 5, high=100)
    scales = [g.at(index, value) for index, value in ((1, 0.5), (4, 0.25), (6, 32))]
    zeros = [g.at(index, value) for index, value in ((2, 3), (5, 5), (7, 10))]
    y = (a.astype(float) - 3) @ (b.astype(float) - 5) / 256 + 10
    limits = np.iinfo(zeros[2].dtype)
    expect = np.round(y).clip(limits.min, limits.max).astype(zeros[2].dtype)
    return case(a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2], expect=expect, levels=1, batch=[0])


def qlinear_conv(g: Given) -> Any:
    x, w, bias = g(0, 1, 2, 5, 5, high=100), g(3, 3, 2, 2, 2, high=100), g(8, 3, high=500)
    scales = [np.array(value, np.float32) for value in (0.5, 0.25, 32)]
    zeros = [g.at(index, value) for index, value in ((2, 3), (5, 0), (7, 10))]
    wide, kernel = x.astype(float) - 3, w.astype(float)
    y = np.zeros((1, 3, 4, 4)) + bias.reshape(3, 1, 1)
    for row, column in np.ndindex(2, 2):
        y += np.einsum("nchw,oc->nohw", wide[:, :, row : row + 4, column : column + 4], kernel[:, :, row, column])
    limits = np.iinfo(zeros[2].dtype)
    expect = np.round(y / 256 + 10).clip(limits.min, limits.max).astype(zeros[2].dtype)
    given = [x, scales[0], zeros[0], w, scales[1], zeros[1], scales[2], zeros[2], bias]
    return case(*given, expect=expect, levels=1, batch=[0])


CASES: dict[str, Maker] = {
    "ConvInteger": conv_integer,
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": dynamic,
    "MatMulInteger": matmul_integer,
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": qlinear_matmul,
    "QuantizeLinear": quantize,
}
