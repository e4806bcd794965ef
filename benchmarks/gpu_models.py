"""The models of gpu.py: as ONNX, and the same graph hand-written for mlx.core and for torch, on the same weights."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
Host = np.ndarray[Any, Any]


@dataclass(slots=True)
class Benchmarked:
    """A model with one input `x` of a free first dimension and one output; `mlx` and `torch` make its twins."""

    name: str
    onnx: onnx.ModelProto
    shape: tuple[int, ...]
    dtype: str
    mlx: Callable[[Any], Callable[[Any], Any]]
    torch: Callable[[Any], Callable[[Any], Any]] | None = None
    weights: dict[str, Host] = field(default_factory=dict)

    def example(self, batch: int) -> Host:
        return np.random.default_rng(batch).standard_normal((batch, *self.shape)).astype(self.dtype)


# ---------------------------------------------------------------- ResNet-50
def resnet50() -> Benchmarked:
    """The onnx package's ResNet-50 with seeded weights, float32."""
    sys.path.insert(0, str(ROOT / "tests" / "models"))
    fill = importlib.import_module("fill_light").fill
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_resnet50.onnx"
    model = fill(onnx.load(light))
    graph = model.graph
    name = graph.node[0].input[0]
    for value in (*graph.input, *graph.output):
        if value.name in (name, graph.output[0].name):
            value.type.tensor_type.shape.dim[0].dim_param = "N"
    (reshape,) = (node for node in graph.node if node.op_type == "Reshape")
    shape = next(tensor for tensor in graph.initializer if tensor.name == reshape.input[1])
    shape.CopyFrom(numpy_helper.from_array(np.array([-1, 2048]), shape.name))
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return Benchmarked(
        "ResNet-50 float32", model, (3, 224, 224), "float32", lambda mx: resnet50_in_mlx(mx, graph, weights)
    )


def resnet50_in_mlx(mx: Any, graph: onnx.GraphProto, weights: dict[str, Host]) -> Callable[[Any], Any]:
    """Channels last throughout, normalisation folded into the convolutions, as one would write it by hand."""
    normalised = {node.input[0]: node for node in graph.node if node.op_type == "BatchNormalization"}
    kernels, shifts = {}, {}
    for node in graph.node:
        if node.op_type == "Conv":
            norm = normalised[node.output[0]]
            scale, shift, mean, variance = (weights[name] for name in norm.input[1:])
            factor = scale / np.sqrt(variance + attributes(norm)["epsilon"])
            kernel = weights[node.input[1]] * factor[:, None, None, None]
            kernels[node.output[0]] = mx.array(np.ascontiguousarray(kernel.transpose(0, 2, 3, 1)))
            shifts[node.output[0]] = mx.array(shift - mean * factor)
    gemm = next(node for node in graph.node if node.op_type == "Gemm")
    last, bias = (mx.array(weights[name]) for name in gemm.input[1:])
    pool = importlib.import_module("mlx.nn").MaxPool2d(3, 2, 1)

    def run(x: Any) -> Any:
        values = {graph.node[0].input[0]: x.transpose(0, 2, 3, 1)}
        for node in graph.node:
            given = values.get(node.input[0])
            match node.op_type:
                case "Conv":
                    chosen, out = attributes(node), node.output[0]
                    stride, pads = chosen.get("strides", [1, 1]), chosen.get("pads", [0])
                    result = mx.conv2d(given, kernels[out], stride[0], pads[0]) + shifts[out]
                case "Relu":
                    result = mx.maximum(given, 0)
                case "Sum":
                    result = given + values[node.input[1]]
                case "MaxPool":
                    result = pool(given)
                case "AveragePool":
                    result = mx.mean(given, (1, 2))
                case "Gemm":
                    result = given @ last.T + bias
                case "Softmax":
                    result = mx.softmax(given, -1)
                case _:  # folded, or a view of the same values
                    result = given
            values[node.output[0]] = result
        return values[graph.output[0].name]

    return run


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


# ---------------------------------------------------------------- an encoder like BERT-base's
def encoder(layers: int = 12, hidden: int = 768, heads: int = 12, tokens: int = 128) -> Benchmarked:
    """Post-norm transformer layers on embedded tokens, float16: plain ONNX operators, as an exporter writes them."""
    rng, depth, inner = np.random.default_rng(0), hidden // heads, 4 * hidden
    weights: dict[str, Host] = {}
    nodes: list[onnx.NodeProto] = []

    def weight(name: str, *shape: int, base: float = 0.0, spread: float = 0.02) -> str:
        weights[name] = (base + spread * rng.standard_normal(shape)).astype(np.float16)
        return name

    def node(op: str, *inputs: str, **chosen: Any) -> str:
        output = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [output], **chosen))
        return output

    def linear(x: str, name: str, rows: int, columns: int) -> str:
        product = node("MatMul", x, weight(f"{name}_w", rows, columns))
        return node("Add", product, weight(f"{name}_b", columns))

    def norm(x: str, name: str) -> str:
        scale, shift = weight(f"{name}_g", hidden, base=1.0), weight(f"{name}_s", hidden)
        return node("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-5)

    x = "x"
    for i in range(layers):
        split = [node("Reshape", linear(x, f"{part}{i}", hidden, hidden), "by_head") for part in "qkv"]
        q, v = (node("Transpose", part, perm=[0, 2, 1, 3]) for part in (split[0], split[2]))
        scores = node("Mul", node("MatMul", q, node("Transpose", split[1], perm=[0, 2, 3, 1])), "scale")
        mixed = node("MatMul", node("Softmax", scores, axis=-1), v)
        merged = node("Reshape", node("Transpose", mixed, perm=[0, 2, 1, 3]), "merged")
        x = norm(node("Add", x, linear(merged, f"o{i}", hidden, hidden)), f"n{i}")
        wide = node("Gelu", linear(x, f"u{i}", hidden, inner))
        x = norm(node("Add", x, linear(wide, f"d{i}", inner, hidden)), f"m{i}")
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    stored += [
        numpy_helper.from_array(np.array([0, 0, heads, depth]), "by_head"),
        numpy_helper.from_array(np.array([0, 0, hidden]), "merged"),
        numpy_helper.from_array(np.array(depth**-0.5, np.float16), "scale"),
    ]
    given, result = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["N", tokens, hidden]) for name in ("x", x)
    )
    graph = helper.make_graph(nodes, "encoder", [given], [result], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

    def in_mlx(mx: Any) -> Callable[[Any], Any]:
        w = {name: mx.array(value) for name, value in weights.items()}
        gelu = importlib.import_module("mlx.nn").gelu

        def project(x: Any, name: str) -> Any:
            return mx.addmm(w[f"{name}_b"], x, w[f"{name}_w"])

        def run(x: Any) -> Any:
            batch = x.shape[0]
            for i in range(layers):
                q, k, v = (
                    project(x, f"{part}{i}").reshape(batch, tokens, heads, depth).transpose(0, 2, 1, 3)
                    for part in "qkv"
                )
                mixed = mx.fast.scaled_dot_product_attention(q, k, v, scale=depth**-0.5)
                merged = mixed.transpose(0, 2, 1, 3).reshape(batch, tokens, hidden)
                x = mx.fast.layer_norm(x + project(merged, f"o{i}"), w[f"n{i}_g"], w[f"n{i}_s"], 1e-5)
                x = mx.fast.layer_norm(
                    x + project(gelu(project(x, f"u{i}")), f"d{i}"), w[f"m{i}_g"], w[f"m{i}_s"], 1e-5
                )
            return x

        return run

    def in_torch(torch: Any) -> Callable[[Any], Any]:
        w = {name: torch.from_numpy(value).cuda() for name, value in weights.items()}
        F = torch.nn.functional

        def project(x: Any, name: str) -> Any:
            return torch.matmul(x, w[f"{name}_w"]) + w[f"{name}_b"]

        def run(x: Any) -> Any:
            for i in range(layers):
                q, k, v = (project(x, f"{part}{i}").view(-1, tokens, heads, depth).transpose(1, 2) for part in "qkv")
                merged = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, tokens, hidden)
                x = F.layer_norm(x + project(merged, f"o{i}"), (hidden,), w[f"n{i}_g"], w[f"n{i}_s"], 1e-5)
                wide = project(F.gelu(project(x, f"u{i}")), f"d{i}")
                x = F.layer_norm(x + wide, (hidden,), w[f"m{i}_g"], w[f"m{i}_s"], 1e-5)
            return x

        return run

    name = f"encoder float16, {layers} x {hidden}, {tokens} tokens"
    return Benchmarked(name, model, (tokens, hidden), "float16", in_mlx, in_torch, weights)


# ---------------------------------------------------------------- a multi-layer perceptron
def mlp(width: int = 2048, layers: int = 4) -> Benchmarked:
    """Gemm and Relu in turns, float32, on 64 rows an example."""
    rng = np.random.default_rng(1)
    weights: dict[str, Host] = {}
    nodes: list[onnx.NodeProto] = []
    x = "x"
    for i in range(layers):
        weights[f"w{i}"] = (rng.standard_normal((width, width)) * math.sqrt(2 / width)).astype(np.float32)
        weights[f"b{i}"] = (0.02 * rng.standard_normal(width)).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"p{i}"]))
        nodes.append(helper.make_node("Add", [f"p{i}", f"b{i}"], [f"s{i}"]))
        nodes.append(helper.make_node("Relu", [f"s{i}"], [f"r{i}"]))
        x = f"r{i}"
    given, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 64, width]) for name in ("x", x))
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "mlp", [given], [result], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

    def in_mlx(mx: Any) -> Callable[[Any], Any]:
        w = {name: mx.array(value) for name, value in weights.items()}

        def run(x: Any) -> Any:
            for i in range(layers):
                x = mx.maximum(mx.addmm(w[f"b{i}"], x, w[f"w{i}"]), 0)
            return x

        return run

    def in_torch(torch: Any) -> Callable[[Any], Any]:
        w = {name: torch.from_numpy(value).cuda() for name, value in weights.items()}

        def run(x: Any) -> Any:
            for i in range(layers):
                x = torch.relu(torch.matmul(x, w[f"w{i}"]) + w[f"b{i}"])
            return x

        return run

    return Benchmarked(f"MLP float32, {layers} x {width}", model, (64, width), "float32", in_mlx, in_torch, weights)
