"""Products between QuantizeLinear and DequantizeLinear, by products of bytes.

A model with such pairs ("QDQ") says what floats to compute from 8-bit levels. Where the processor multiplies bytes
faster than floats, a MatMul or Conv of dequantised levels and weights is the exact product of both, scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import mlxc_py as mx
from mlxc_py import Array, cpu_primitives
from ort_ep.capability import Translation
from ort_ep.graph import Flags, Graph, Value
from ort_ep.ops.norm import per_channel
from ort_ep.ops.quant import QLINEAR_KERNEL, IntegerKernel, conv_integer
from ort_ep.registry import BYTES, MICROSOFT, REGISTRY, Registry

_HANDLERS: Final = Registry()
_DOMAIN: Final = "mlx"


@_HANDLERS.op("ConvOfBytes", domain=_DOMAIN, prepare=QLINEAR_KERNEL)
def conv_of_bytes(
    x: Array,
    w: IntegerKernel,
    x_scale: Array,
    w_scale: Array,
    x_zero_point: Array | None = None,
    w_zero_point: None = None,
    b: Array | None = None,
    **convolution: Any,
) -> Array:
    total = conv_integer(x, w, x_zero_point, **convolution).astype(mx.float32)
    scale = x_scale * w_scale
    y = total * (scale if scale.size == 1 else per_channel(scale, total))
    return y if b is None else y + per_channel(b, y)


class _Levels(NamedTuple):
    """What a DequantizeLinear takes."""

    levels: Value
    scale: Value
    zero: Value | None
    axis: int


def pays() -> bool:
    """Whether this processor has instructions for products of bytes."""
    return cpu_primitives.isa() == "avx512vnni"


def multiplied(graph: Graph, calls: Sequence[Translation]) -> list[Translation]:
    """The calls with each such MatMul and Conv as one of bytes; what was dequantised for nobody else goes."""
    makers = {id(value): call for call in calls for value in call.node.outputs if value is not None}
    changed = [_of_bytes(call, makers) or call for call in calls]
    read = {id(value) for value in graph.outputs} | {id(value) for call in changed for value in call.node.reads}
    return [call for call in changed if not call.is_ours("DequantizeLinear") or id(call.node.outputs[0]) in read]


def _of_bytes(call: Translation, makers: Mapping[int, Translation]) -> Translation | None:
    if not call.is_ours("MatMul", "Conv"):
        return None
    x, w = (_levels(value, makers) for value in call.node.inputs[:2])
    if x is None or w is None or x.scale.shape not in ((), (1,)) or w.levels.constant is None or not w.levels.shape:
        return None
    if w.levels.flags & Flags.OUTER:  # another graph's, so packed in each run
        return None
    shape, convolves = w.levels.shape, call.is_ours("Conv")
    depthwise = convolves and shape[1] == 1 and call.node.attributes.get("group", 1) > 1
    if depthwise or (not convolves and len(shape) != 2):
        return None
    outputs = 0 if convolves else 1
    known = {(), (1,), shape[outputs : outputs + 1] if w.axis in (outputs, outputs - len(shape)) else ()}
    if any(values.shape not in known for values in (w.scale, w.zero) if values is not None):
        return None
    inputs = (x.levels, w.levels, x.scale, w.scale, x.zero, w.zero, *call.node.inputs[2:])
    handler = _CONVOLUTION if convolves else REGISTRY.only(MICROSOFT, "MatMulIntegerToFloat")
    node = replace(call.node, op_type=handler.name, domain=handler.domain, inputs=inputs)
    return Translation(node, handler)


def _levels(value: Value | None, makers: Mapping[int, Translation]) -> _Levels | None:
    """What a value is dequantised from, if it is from bytes, to float32."""
    maker = makers.get(id(value))
    if maker is None or not maker.is_ours("DequantizeLinear") or maker.node.attributes.get("block_size", 0):
        return None
    levels, scale, zero = maker.node.input(0), maker.node.input(1), maker.node.input(2)
    if levels is None or scale is None or levels.dtype not in BYTES or value is None or value.dtype != "float32":
        return None
    axis = maker.node.attributes.get("axis", 1)
    return _Levels(levels, scale, zero, axis) if scale.dtype == "float32" else None


_CONVOLUTION: Final = _HANDLERS.only(_DOMAIN, "ConvOfBytes")
