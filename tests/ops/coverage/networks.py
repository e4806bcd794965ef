"""Operators that layers are made of: products, convolution, pooling, normalisation, recurrence, attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import Given, Maker, Unfit, case
from tensors import ints

DOMAIN = ""


def gemm(g: Given) -> Any:
    a, b, c = g(0, 3, 4), g(1, 4, 5), g(2, 5)
    if g.version < 7:
        return case(a, b, c, broadcast=1, expect=(a.astype(np.float64) @ b + c).astype(a.dtype))
    return case(a, b, c)


def conv(g: Given) -> Any:
    return case(
        g(0, 1, 4, 6, 5, high=2),
        g(1, 6, 2, 3, 3, high=2),
        g(2, 6),
        group=2,
        pads=[1, 1, 1, 1],
        strides=[2, 1],
        batch=[0],
    )


def conv_transpose(g: Given) -> Any:
    return case(
        g(0, 1, 4, 3, 4, high=2), g(1, 4, 2, 3, 3, high=2), g(2, 2), strides=[2, 2], pads=[1, 0, 1, 0], batch=[0]
    )


def deform_conv(g: Given) -> Any:
    x, w, offset = g(0, 1, 2, 5, 5), g(1, 3, 2, 2, 2), g(2, 1, 8, 4, 4, high=1)
    return case(x, w, offset, g(3, 3), g(4, 1, 4, 4, 4, low=0, high=1), kernel_shape=[2, 2], batch=[0, 2, 4])


def pool(**attributes: Any) -> Maker:
    how: Any = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    return lambda g: case(g(0, 1, 2, 6, 5), oracle=max(g.version, 7), batch=[0], **how, **attributes)


def max_pool(g: Given) -> Any:
    how: Any = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    x = g.at(0, g.random.permutation(60).reshape(1, 2, 6, 5))
    return case(x, outputs=1 if g.version < 8 else 2, batch=[0], **how)


def max_unpool(g: Given) -> Any:
    x, at = g(0, 1, 1, 2, 2, low=1), ints(5, 7, 13, 15).reshape(1, 1, 2, 2)
    expect = np.zeros((1, 1, 4, 4), x.dtype)
    expect.ravel()[[5, 7, 13, 15]] = x.ravel()
    return case(x, at, kernel_shape=[2, 2], strides=[2, 2], expect=expect, batch=[0, 1])


def batch_norm(g: Given) -> Any:
    statistics = [g(index, 3, low=0.5, high=2) for index in (1, 2, 3, 4)]
    x = g(0, 2, 3, 4, 5)
    wide = [value.astype(np.float64).reshape(3, 1, 1) for value in statistics]
    expect = (x.astype(np.float64) - wide[2]) / np.sqrt(wide[3] + 1e-5) * wide[0] + wide[1]
    how: Any = {1: {"is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1]}, 6: {"is_test": 1}}.get(g.version, {})
    return case(x, *statistics, expect=expect.astype(x.dtype), tolerance=1e-6, batch=[0], **how)


def group_norm(g: Given) -> Any:
    size = 2 if g.version < 21 else 4
    return case(
        g(0, 2, 4, 3, 2), g(1, size), g(2, size), num_groups=2, tolerance=1e-5, batch=[0]
    )  # stash_type is float32


def instance_norm(g: Given) -> Any:
    return case(g(0, 2, 3, 4, 5), g(1, 3), g(2, 3), batch=[0])


def layer_norm(g: Given) -> Any:
    x, scale, bias = g(0, 2, 3, 8), g(1, 8), g(2, 8)
    wide = x.astype(np.float64)
    mean, deviation = wide.mean(-1, keepdims=True), np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    y = (wide - mean) / deviation * scale.astype(np.float64) + bias.astype(np.float64)
    expect = [y.astype(x.dtype), mean.astype(g.dtype("U")), (1 / deviation).astype(g.dtype("U"))]
    if g.version < 17 and g.narrow("U") != "float32":
        raise Unfit("ONNX Runtime infers float32")
    expect[0] = expect[0].astype(g.dtype("V") if g.version < 17 else x.dtype)
    how: Any = {"stash_type": g.code("U")} if g.version >= 17 else {}
    return case(x, scale, bias, outputs=3, expect=expect, tolerance=1e-6, batch=[0], **how)


def rms_norm(g: Given) -> Any:
    x, scale = g(0, 2, 3, 8), g(1, 8)
    wide = x.astype(np.float64)
    y = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * scale.astype(np.float64)
    return case(x, scale, expect=y.astype(g.dtype(1)), tolerance=1e-6, batch=[0])


def simplified_layer_norm(g: Given) -> Any:
    x, scale = g(0, 2, 3, 8), g(1, 8)
    wide = x.astype(np.float64)
    inverse = 1 / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    expect = [(wide * inverse * scale.astype(np.float64)).astype(g.dtype(1)), inverse.astype(g.dtype("U"))]
    return case(x, scale, outputs=2, expect=expect, tolerance=1e-6, stash_type=g.code("U"), batch=[0])


def lrn(g: Given) -> Any:
    x = g(0, 1, 4, 3, 2)
    wide = x.astype(np.float64)
    total = sum(np.pad(wide**2, ((0, 0), (1, 1), (0, 0), (0, 0)))[:, at : at + 4] for at in range(3))
    return case(x, size=3, tolerance=1e-6, expect=(wide / (1 + 1e-4 / 3 * total) ** 0.75).astype(x.dtype), batch=[0])


def lp_norm(g: Given) -> Any:
    x = g(0, 3, 4)
    wide = x.astype(np.float64)
    return case(x, axis=1, p=2, expect=(wide / np.sqrt((wide**2).sum(1, keepdims=True))).astype(x.dtype), batch=[0])


def dropout(g: Given) -> Any:
    x = g(0, 3, 4)
    if g.version < 12:
        how: Any = {"is_test": 1} if g.version < 7 else {}
        return case(x, ratio=0.5, expect=x, **how)
    return case(x, g.at(1, 0.5), np.array(False), constants=[1, 2], outputs=2, expect=[x, np.ones((3, 4), bool)])


def recurrent(gates: int, *, states: int = 1) -> Maker:
    def make(g: Given) -> Any:
        weights = g(1, 1, gates * 2, 3, high=1), g(2, 1, gates * 2, 2, high=1), g(3, 1, gates * 4, high=1)
        # onnx.reference, which alone has float64, does not know lengths
        lengths = g.at(4, [4, 4] if g.narrow(0) == "float64" else [4, 2])
        given = [g(0, 4, 2, 3, high=1), *weights, lengths, *[g(5, 1, 2, 2, high=1) for _ in range(states)]]
        return case(*given, hidden_size=2, outputs=states + 1)

    return make


def max_roi_pool(g: Given) -> Any:
    rois = g.at(1, [[0, 0, 0, 3, 3], [0, 1, 1, 4, 5]])
    return case(g(0, 1, 2, 6, 6), rois, pooled_shape=[2, 2], oracle=1)


def roi_align(g: Given) -> Any:
    rois = g.at(1, [[0, 0, 3, 3], [1, 1, 4, 5]])
    return case(g(0, 1, 2, 6, 6), rois, ints(0, 0), output_height=2, output_width=2, sampling_ratio=2, batch=[1, 2])


def grid_sample(g: Given) -> Any:
    x, grid = g(0, 1, 2, 4, 5), g(1, 1, 3, 3, 2, high=0.7)
    at = ((grid.astype(np.float64) + 1) * [5, 4] - 1) / 2
    low = np.floor(at).astype(int)
    expect = np.zeros((1, 2, 3, 3))
    for row, column in np.ndindex(2, 2):
        share = 1 - np.abs(at - low - [column, row])
        expect += x[:, :, low[0, ..., 1] + row, low[0, ..., 0] + column] * share.prod(-1)
    return case(x, grid, expect=expect.astype(x.dtype), batch=[0, 1])


def affine_grid(g: Given) -> Any:
    theta = g(0, 2, 2, 3, high=1)
    rows, columns = ((2 * np.arange(size) + 1) / size - 1 for size in (4, 5))
    points = np.stack([*np.meshgrid(columns, rows), np.ones((4, 5))], -1)
    expect = np.einsum("nij,hwj->nhwi", theta.astype(np.float64), points)
    return case(theta, ints(2, 3, 4, 5), constants=[1], expect=expect.astype(theta.dtype))


def det(g: Given) -> Any:
    x = g(0, 2, 3, 3)
    return case(x, expect=np.linalg.det(x.astype(np.float64)).astype(x.dtype), batch=[0])


def dft(g: Given) -> Any:
    x = g(0, 2, 8, 1)
    if g.version < 20:
        return case(x, g.at(1, 8), axis=1, constants=[1])
    return case(x, g.at(1, 8), np.array(1), constants=[1, 2], batch=[0])


def stft(g: Given) -> Any:
    return case(g(0, 1, 16, 1), g.at(1, 4), g(2, 8), g.at(3, 8), constants=[1, 3], batch=[0])


def nll(g: Given) -> Any:
    return case(g(0, 3, 5), g.at(1, [0, 4, 2]), g(2, 5, low=1))


def cross_entropy(g: Given) -> Any:
    return case(g(0, 3, 5), g.at(1, [0, 4, 2]), g(2, 5, low=1), outputs=2)


def attention(g: Given) -> Any:
    mask = g(3, 4, 7)
    if mask.dtype == bool:
        mask[:, 0] = True
    heads = [g(index, 1, 2, rows, 8, high=1) for index, rows in ((0, 4), (1, 4), (2, 4), (4, 3), (5, 3))]
    q, k, v, past_k, past_v = (value.astype(np.float64) for value in heads)
    k, v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    bias = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask.astype(np.float64)
    scores = q @ k.swapaxes(2, 3) / np.sqrt(8) + bias
    chances = np.exp(scores - scores.max(-1, keepdims=True))
    y = chances / chances.sum(-1, keepdims=True) @ v
    expect = [y.astype(heads[0].dtype), k.astype(heads[1].dtype), v.astype(heads[2].dtype)]
    return case(*heads[:3], mask, *heads[3:], outputs=3, expect=expect, tolerance=1e-6, batch=[0, 1, 2, 4, 5])


def rotary(g: Given) -> Any:
    x, cos, sin, at = g(0, 1, 2, 3, 8), g(1, 6, 4, high=1), g(2, 6, 4, high=1), ints(0, 2, 5)
    left, right = np.split(x.astype(np.float64), 2, -1)
    c, s = cos[at].astype(np.float64), sin[at].astype(np.float64)
    y = np.concatenate([left * c - right * s, left * s + right * c], -1)
    return case(x, cos, sin, at[None], expect=y.astype(x.dtype), batch=[0, 3])


def causal_conv(g: Given) -> Any:
    x, w, bias, past = g(0, 2, 3, 5), g(1, 3, 1, 4), g(2, 3), g(3, 2, 3, 3)
    wide = np.concatenate([past, x], 2).astype(np.float64)
    y = sum(wide[:, :, at : at + 5] * w[None, :, :, at].astype(np.float64) for at in range(4))
    y = y + bias.astype(np.float64)[:, None]
    return case(x, w, bias, past, outputs=2, expect=[y.astype(x.dtype), wide[:, :, 5:].astype(x.dtype)], batch=[0, 3])


def linear_attention(g: Given) -> Any:
    q, k, v = (g(index, 1, 3, 8, high=1) for index in (0, 1, 2))
    state = g(3, 1, 2, 4, 4, high=1)
    return case(q, k, v, state, outputs=2, q_num_heads=2, kv_num_heads=2, update_rule="linear", batch=[0, 1, 2, 3])


CASES: dict[str, Maker] = {
    "AffineGrid": affine_grid,
    "Attention": attention,
    "AveragePool": pool(),
    "BatchNormalization": batch_norm,
    "CausalConvWithState": causal_conv,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "DFT": dft,
    "DeformConv": deform_conv,
    "Det": det,
    "Dropout": dropout,
    "GRU": recurrent(3),
    "Gemm": gemm,
    **dict.fromkeys(
        ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), lambda g: case(g(0, 1, 2, 4, 3), oracle=2, batch=[0])
    ),
    "GridSample": grid_sample,
    "GroupNormalization": group_norm,
    "InstanceNormalization": instance_norm,
    "LRN": lrn,
    "LSTM": recurrent(4, states=2),
    "LayerNormalization": layer_norm,
    "LinearAttention": linear_attention,
    "LpNormalization": lp_norm,
    "LpPool": pool(p=2),
    "MatMul": lambda g: case(g(0, 2, 3, 4), g(1, 4, 5)),
    "MaxPool": max_pool,
    "MaxRoiPool": max_roi_pool,
    "MaxUnpool": max_unpool,
    "NegativeLogLikelihoodLoss": nll,
    "RMSNormalization": rms_norm,
    "RNN": recurrent(1),
    "RoiAlign": roi_align,
    "RotaryEmbedding": rotary,
    "STFT": stft,
    "SimplifiedLayerNormalization": simplified_layer_norm,
    "SoftmaxCrossEntropyLoss": cross_entropy,
}
