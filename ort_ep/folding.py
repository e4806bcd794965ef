"""Batch normalizations behind convolutions, as part of the weights of these.

ONNX Runtime does the same while it loads a model, but holds every weight twice meanwhile, and three of the largest
four times. `ort_ep.InferenceSession` tells it not to; here it is done to one weight after the other as it is prepared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.capability import Translation
from ort_ep.graph import Flags, Graph, Value
from ort_ep.ops.conv import Kernel, conv, kernel
from ort_ep.ops.precision import accumulated, widen
from ort_ep.registry import Registry

_DOMAIN: Final = "mlx"
_HANDLERS: Final = Registry()


class Folded(NamedTuple):
    kernel: Kernel
    bias: Array


def folded_kernel(
    w: Array,
    scale: Array,
    shift: Array,
    mean: Array,
    var: Array,
    b: Array | None = None,
    *,
    group: int = 1,
    epsilon: float = 1e-5,
) -> Folded:
    """Weights and bias of a convolution with the normalization that follows it."""
    gain = widen(scale) * mx.rsqrt(widen(var) + epsilon)
    bias = widen(shift) - widen(mean) * gain
    wide = accumulated(w)
    scaled = (wide * gain.reshape([-1] + [1] * (w.ndim - 1))).astype(wide.dtype)
    return Folded(kernel(scaled, group=group), bias if b is None else bias + widen(b) * gain)


@_HANDLERS.op("NormalizedConv", domain=_DOMAIN, prepare={("w", "scale", "shift", "mean", "var", "b"): folded_kernel})
def normalized_conv(
    x: Array,
    w: Folded,
    scale: None = None,
    shift: None = None,
    mean: None = None,
    var: None = None,
    b: None = None,
    *,
    epsilon: float = 1e-5,
    **convolution: Any,
) -> Array:
    return conv(x, w.kernel, w.bias, **convolution)


def folded(graph: Graph, calls: Sequence[Translation]) -> list[Translation]:
    """The calls with each Conv and the BatchNormalization that alone reads it as one, in bodies too."""
    entered = [replace(call, bodies=_bodies(call)) if call.bodies else call for call in calls]
    users: dict[int, list[Translation]] = {}
    for call in entered:
        for value in call.node.reads:
            users.setdefault(id(value), []).append(call)
    kept = {id(value) for value in graph.outputs}
    made: dict[int, Translation | None] = {}
    for call in entered:
        output = call.node.outputs[0] if call.node.outputs else None
        readers = users.get(id(output), [])
        if len(readers) == 1 and id(output) not in kept and _fold(call, readers[0]):
            made[id(call)], made[id(readers[0])] = None, _joined(call, readers[0])
    return [new for call in entered if (new := made.get(id(call), call)) is not None]


def _bodies(call: Translation) -> Mapping[str, tuple[Translation, ...]]:
    return {name: tuple(folded(call.node.bodies[name], inside)) for name, inside in call.bodies.items()}


def _fold(convolution: Translation, normalization: Translation) -> bool:
    """Whether two calls are a convolution and its normalization, of weights that are known."""
    node = normalization.node
    return (
        convolution.is_ours("Conv")
        and normalization.is_ours("BatchNormalization")
        and normalization.handler.since >= 7
        and node.n_outputs == 1
        and not node.attributes.get("training_mode", 0)
        and node.attributes.get("spatial", 1) == 1
        and node.inputs[0] is convolution.node.outputs[0]
        and all(map(_is_ours, (*convolution.node.inputs[1:], *node.inputs[1:])))
    )


def _is_ours(value: Value | None) -> bool:
    return value is None or (value.constant is not None and not value.flags & Flags.OUTER)


def _joined(convolution: Translation, normalization: Translation) -> Translation:
    first, last = convolution.node, normalization.node
    handler = _HANDLERS.only(_DOMAIN, "NormalizedConv")
    epsilon = last.attributes.get("epsilon", 1e-5)
    inputs = (*first.inputs[:2], *last.inputs[1:], *first.inputs[2:])
    attributes = {**first.attributes, "epsilon": epsilon}
    return Translation(
        replace(last, name=first.name, op_type=handler.name, domain=_DOMAIN, inputs=inputs, attributes=attributes),
        handler,
    )
