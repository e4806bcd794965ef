"""Mixtures of experts: each token goes through the few experts that its router prefers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypedDict, Unpack

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.graph import Node
from ort_ep.ops import activation as functions
from ort_ep.ops import precision
from ort_ep.ops.nbits import UINT8, Blocks, Grouped, dequantized, grouped, one_group_on_cuda
from ort_ep.ops.precision import sigmoid, softmax, widen
from ort_ep.registry import MICROSOFT, SINGLES, op

# [T, k or 1, 1, K] and the experts [T, k] of each token -> [T, k, 1, N]
Layer = Callable[[Array, Array], Array]

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: mx.maximum(x, 0),
    "relu2": lambda x: mx.square(mx.maximum(x, 0)),
    "gelu": functions.gelu,
    "silu": lambda x: x * sigmoid(x),
    "identity": lambda x: x,
}
GATED = ("swiglu", "geglu")


@dataclass(frozen=True)
class Activation:
    """What lies between the layers of an expert; the gated ones join two halves, laid out as `fusion` says."""

    kind: str
    alpha: float
    beta: float
    limit: float | None
    fusion: int

    def __call__(self, hidden: Array, other: Array | None) -> Array:
        if self.kind not in GATED:
            y = ACTIVATIONS[self.kind](hidden)
            return y if other is None else y * other
        if other is not None:
            gate, linear = hidden, other
        elif self.fusion == 1:
            gate, linear = hidden[..., ::2], hidden[..., 1::2]
        else:
            gate, linear = mx.split(hidden, 2, -1)
        if self.kind == "geglu":
            return functions.gelu(gate, approximate="tanh") * linear
        if self.limit is not None:
            gate, linear = mx.minimum(gate, self.limit), mx.clip(linear, -self.limit, self.limit)
        return gate * sigmoid(self.alpha * gate) * (linear + self.beta)


def plain(weights: Array, bias: Array | None) -> Layer:
    """Experts' weights [E, N, K], of 32 bits at least, and biases [E, N]."""
    return with_bias(lambda x, chosen: mx.gather_mm(x, weights.swapaxes(1, 2), rhs_indices=chosen), bias)


def with_bias(layer: Layer, bias: Array | None) -> Layer:
    if bias is None:
        return layer
    return lambda x, chosen: layer(x, chosen) + mx.take(widen(bias), chosen, 0)[:, :, None]


class Experts(NamedTuple):
    """The prepared weights of a layer, as MLX's product with chosen ones takes them."""

    layout: Grouped
    bits: int


def experts(weights: Array, scales: Array, zero_points: Array | None, bits: int, block: int) -> Experts | Array:
    """From packed weights [E, N, bytes]; scales for each row [E, N], or for each of its blocks [E, N, K / block].

    Floats [E, N, K] where MLX's product does not take them as they are packed.
    """
    blocks = Blocks.of(widen(scales), zero_points, bits)
    if scales.ndim == 2:
        blocks = Blocks(*(values[..., None] for values in blocks))
    length = weights.shape[-1] * 8 // bits
    count = blocks.gains.shape[-1]
    block = block if block and count > 1 else length
    layout = grouped(weights, blocks, bits, block) if length == block * count else None
    if layout is None:
        return dequantized(weights, blocks, bits, block)
    if one_group_on_cuda(length, layout):
        return mx.dequantize(layout.words, layout.gains, layout.offsets, layout.group, bits)
    return Experts(layout, bits)


def quantized(weights: Experts | Array, bias: Array | None) -> Layer:
    """Prepared weights and biases [E, N]."""
    if not isinstance(weights, Experts):
        return plain(weights, bias)
    (words, gains, offsets, group), bits = weights
    return with_bias(
        lambda x, chosen: mx.gather_qmm(
            x, words, gains, offsets, rhs_indices=chosen, transpose=True, group_size=group, bits=bits
        ),
        bias,
    )


class Packing(TypedDict, total=False):
    """The attributes of QMoE that say how the weights of all layers are packed."""

    block_size: int
    expert_weight_bits: int


def packed_experts(
    weights: Array, scales: Array | None, zero_points: Array | None, bits: int | None, packing: Packing
) -> Experts | Array:
    """The prepared weights of a layer, which may have a width of its own."""
    if scales is None:
        raise ValueError("QMoE needs the scales of its layers")
    bits = bits or packing.get("expert_weight_bits", 4)
    return experts(weights, scales, zero_points, bits, packing.get("block_size", 0))


def first_experts(
    weights: Array,
    scales: Array | None,
    zero_points: Array | None = None,
    *,
    fc1_expert_weight_bits: int | None = None,
    **packing: Unpack[Packing],
) -> Experts | Array:
    return packed_experts(weights, scales, zero_points, fc1_expert_weight_bits, packing)


def second_experts(
    weights: Array,
    scales: Array | None,
    zero_points: Array | None = None,
    *,
    fc2_expert_weight_bits: int | None = None,
    **packing: Unpack[Packing],
) -> Experts | Array:
    return packed_experts(weights, scales, zero_points, fc2_expert_weight_bits, packing)


def third_experts(
    weights: Array,
    scales: Array | None,
    zero_points: Array | None = None,
    *,
    fc3_expert_weight_bits: int | None = None,
    **packing: Unpack[Packing],
) -> Experts | Array:
    return packed_experts(weights, scales, zero_points, fc3_expert_weight_bits, packing)


def mixture(
    x: Array,
    logits: Array,
    k: int,
    normalized: int,
    layers: tuple[Layer, Layer, Layer | None],
    activation: Activation,
    mixing: Array | None = None,
) -> Array:
    """The sum of each token's k best experts, weighed by the softmax of the logits, or by `mixing` as it is."""
    tokens = widen(x).reshape([math.prod(x.shape[:-1]), 1, 1, x.shape[-1]])
    chances = softmax(widen(logits), -1)
    chosen = mx.argsort(widen(logits), -1)[:, ::-1][:, :k]
    weights = mx.take_along_axis(chances if mixing is None else widen(mixing), chosen, -1)
    if normalized:
        weights = weights / mx.sum(weights, -1, keepdims=True)
    first, second, gate = layers
    hidden = activation(first(tokens, chosen), None if gate is None else gate(tokens, chosen))
    outputs = second(hidden, chosen)[:, :, 0]
    return mx.sum(outputs * weights[..., None], 1).reshape(x.shape).astype(x.dtype)


def supported(node: Node) -> str | None:
    """Integer weights, not prepacked; no sparse mixer, no limit after the activation."""
    attributes = node.attributes
    if attributes.get("use_sparse_mixer", 0):
        return "the sparse mixer is not supported"
    if attributes.get("swiglu_limit_after_activation", 0):
        return "limits after the activation are not supported"
    if attributes.get("quant_type", "int") != "int":
        return f"quant_type {attributes['quant_type']!r} is not supported"
    if attributes.get("weights_prepacked", 0) == 1:
        return "the weights are prepacked for another device"
    kind = attributes.get("activation_type", "relu")
    return None if kind in GATED or kind in ACTIVATIONS else f"activation_type {kind!r} is not supported"


@op(
    "MoE",
    domain=MICROSOFT,
    dtypes=SINGLES,
    claim=supported,
    prepare={f"fc{number}_experts_weights": widen for number in (1, 2, 3)},
)
def mixture_of_experts(
    x: Array,
    router_probs: Array,
    fc1_experts_weights: Array,
    fc1_experts_bias: Array | None,
    fc2_experts_weights: Array,
    fc2_experts_bias: Array | None = None,
    fc3_experts_weights: Array | None = None,
    fc3_experts_bias: Array | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
) -> Array:
    layers = (
        plain(fc1_experts_weights, fc1_experts_bias),
        plain(fc2_experts_weights, fc2_experts_bias),
        None if fc3_experts_weights is None else plain(fc3_experts_weights, fc3_experts_bias),
    )
    activation = Activation(activation_type, activation_alpha, activation_beta, swiglu_limit, swiglu_fusion)
    return mixture(x, router_probs, k, normalize_routing_weights, layers, activation)


def supported_with_scales(node: Node) -> str | None:
    """As MoE, and scales for every layer."""
    for layer, weights in enumerate((2, 5, 8), 1):
        if node.input(weights) is not None and node.input(weights + 1) is None:
            return f"the scales of layer {layer} are absent"
    return supported(node)


@op(
    "QMoE",
    domain=MICROSOFT,
    dtypes={"x": SINGLES, "router_probs": SINGLES, "fc1_weights": UINT8},
    claim=supported_with_scales,
    prepare={
        ("fc1_weights", "fc1_scales", "fc1_zero_points"): first_experts,
        ("fc2_weights", "fc2_scales", "fc2_zero_points"): second_experts,
        ("fc3_weights", "fc3_scales", "fc3_zero_points"): third_experts,
    },
)
def quantized_mixture_of_experts(
    x: Array,
    router_probs: Array,
    fc1_weights: Experts | Array,
    fc1_scales: None,
    fc1_bias: Array | None,
    fc2_weights: Experts | Array,
    fc2_scales: None,
    fc2_bias: Array | None = None,
    fc3_weights: Experts | Array | None = None,
    fc3_scales: None = None,
    fc3_bias: Array | None = None,
    fc1_zero_points: None = None,
    fc2_zero_points: None = None,
    fc3_zero_points: None = None,
    router_weights: Array | None = None,
    *,
    accuracy_level: int = 0,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    fc1_expert_weight_bits: int | None = None,
    fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None,
    k: int = 1,
    normalize_routing_weights: int = 0,
    quant_type: str = "int",
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
    weights_prepacked: int = -1,
    **packing: Unpack[Packing],
) -> Array:
    layers = (
        quantized(fc1_weights, fc1_bias),
        quantized(fc2_weights, fc2_bias),
        None if fc3_weights is None else quantized(fc3_weights, fc3_bias),
    )
    activation = Activation(activation_type, activation_alpha, activation_beta, swiglu_limit, swiglu_fusion)
    return mixture(x, router_probs, k, normalize_routing_weights, layers, activation, router_weights)


@op("MoEGroupRouter", domain=MICROSOFT, dtypes={"logits": SINGLES, "expert_bias": frozenset({"float32"})})
def moe_group_router(
    logits: Array,
    expert_bias: Array,
    projection_weight: Array | None = None,
    *,
    group_topk: int = 2,
    n_group: int = 1,
    router_sentinel: float = -10000.0,
    top_k: int,
    topk_group: int = 1,
    n_outputs: int,
) -> tuple[Array | None, ...]:
    wide = widen(logits).reshape([-1, logits.shape[-1]])
    wide = wide if projection_weight is None else mx.matmul(wide, widen(projection_weight).T)
    scores = precision.sigmoid(wide)
    choice = scores + expert_bias
    if n_outputs > 1:
        return (None, choice, scores)[:n_outputs]
    groups = choice.reshape([choice.shape[0], n_group, -1])
    best = among_the_largest(groups, min(group_topk, groups.shape[-1]))
    together = mx.sum(mx.where(best, groups, mx.zeros_like(groups)), -1)
    active = among_the_largest(together, topk_group)[..., None]
    eligible = mx.where(active, groups, mx.array(-math.inf, groups.dtype)).reshape(choice.shape)
    chosen = among_the_largest(eligible, top_k)
    routed = mx.where(chosen, precision.log(mx.maximum(scores, 1e-20)), mx.array(router_sentinel, scores.dtype))
    return (routed.astype(logits.dtype),)


def among_the_largest(x: Array, count: int) -> Array:
    """Whether each element is one of so many largest on the last axis; of equal ones the first."""
    return mx.argsort(mx.argsort(-x, -1), -1) < count
