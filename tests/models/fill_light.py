"""Give the onnx package's light_* models seeded random weights.

As shipped their weights are constant, so their outputs are too, and hide errors. Topology and sizes are the real ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

Uses = dict[str, list[tuple[onnx.NodeProto, int]]]


def fill(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each constant weight replaced by a random initializer, always the same ones; changes `model`."""
    graph, rng = model.graph, np.random.default_rng(0)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    uses: Uses = defaultdict(list)
    for node in graph.node:
        for position, name in enumerate(node.input):
            uses[name].append((node, position))

    made, kept = [], []
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in stored:
            shape = tuple(int(d) for d in stored[node.input[0]])
            made.append(_initializer(node.output[0], shape, uses, rng))
        else:
            kept.append(node)
    for tensor in list(graph.initializer):
        if _is_weight(stored[tensor.name], tensor.name, uses):
            graph.initializer.remove(tensor)
            made.append(_initializer(tensor.name, stored[tensor.name].shape, uses, rng))

    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.extend(made)
    _drop_unused(graph)
    return model


def _is_weight(value: np.ndarray, name: str, uses: Uses) -> bool:
    """Stored weights that are constant all the same, and batch-norm statistics, which would not fit random weights."""
    normalises = any(node.op_type == "BatchNormalization" for node, _ in _consumers(name, uses))
    return value.dtype == np.float32 and value.size > 1 and (np.ptp(value) == 0 or normalises)


def _initializer(name: str, shape: tuple[int, ...], uses: Uses, rng: np.random.Generator) -> onnx.TensorProto:
    return numpy_helper.from_array(_draw(name, shape, uses, rng).astype(np.float32), name)


def _consumers(name: str, uses: Uses) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Who reads a value, looking through Unsqueeze (scale and shift in densenet and inception)."""
    for node, position in uses.get(name, ()):
        if node.op_type == "Unsqueeze":
            yield from _consumers(node.output[0], uses)
        else:
            yield node, position


def _draw(name: str, shape: tuple[int, ...], uses: Uses, rng: np.random.Generator) -> np.ndarray:
    """Values that keep activations in a healthy range, by what the weight is used for."""
    node, position = next(_consumers(name, uses), (None, 0))
    op = node.op_type if node is not None else ""
    if op == "Conv" and position == 1:
        return rng.standard_normal(shape) * np.sqrt(2.0 / max(1, np.prod(shape[1:])))
    if op == "Gemm" and position == 1:
        return rng.standard_normal(shape) * np.sqrt(1.0 / max(shape)) * 0.5
    if op == "BatchNormalization" and node is not None:
        residual = any(user.op_type == "Sum" for user, _ in uses.get(node.output[0], ()))
        if position == 1:
            # a residual sum of full-scale branches would grow with every block
            return (0.2 if residual else 1) + 0.1 * rng.standard_normal(shape)
        return rng.uniform(0.8, 1.2, shape) if position == 4 else 0.05 * rng.standard_normal(shape)
    if op == "Mul":
        return 1 + 0.1 * rng.standard_normal(shape)
    return 0.02 * rng.standard_normal(shape)


def _drop_unused(graph: onnx.GraphProto) -> None:
    used = {name for node in graph.node for name in node.input}
    unused = [tensor for tensor in graph.initializer if tensor.name not in used]
    names = {tensor.name for tensor in unused}
    for tensor in unused:
        graph.initializer.remove(tensor)
    for value in [value for value in graph.input if value.name in names]:
        graph.input.remove(value)
