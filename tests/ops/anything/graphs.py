"""Random graphs of many operators through ONNX Runtime, on MLX and on the CPU provider: plans, traces and folding."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from drawn import SEEDS, values
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import ort_ep

# nothing that jumps, since the two providers' last bits differ
UNARY = ("Relu", "Neg", "Abs", "Tanh", "Sigmoid", "Identity", "Sqrt", "Softmax", "Erf")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
SHAPED = ("Transpose", "Flatten", "ReduceSum", "ReduceMax", "Concat", "Slice", "MatMul", "Where", "CumSum")
STEPS = (*UNARY, *BINARY, *SHAPED, "Unsqueeze", "ShapeOf", "Split", "Pad", "Gather", "Constant")


class Graph:
    """A graph that grows by operators over values whose example is known."""

    def __init__(self, data: st.DataObject, seed: int) -> None:
        self.data, self.seed = data, seed
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.known: dict[str, Any] = {}

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        names = [f"t{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=names[0], **attributes))
        return names

    def pick(self) -> str:
        return self.data.draw(st.sampled_from(sorted(self.known)))

    def grow(self, op: str) -> None:
        """One more operator over a value that is there, and what numpy says of it."""
        name = self.pick()
        x = self.known[name]
        rank = x.ndim
        axis = self.data.draw(st.integers(0, rank - 1)) if rank else 0
        if op in UNARY:
            if op == "Softmax" and (not rank or not x.size):
                return
            (out,) = self.add(op, *([self.add("Abs", name)[0]] if op == "Sqrt" else [name]))
            functions: dict[str, Any] = {
                "Relu": lambda v: np.maximum(v, 0),
                "Neg": np.negative,
                "Abs": np.abs,
                "Identity": lambda v: v,
            }
            self.known[out] = functions.get(op, np.zeros_like)(x)  # of the others only the shape matters here
        elif op in BINARY or op == "Where":
            other = self.pick()
            try:
                common = np.broadcast_shapes(x.shape, self.known[other].shape)
            except ValueError:
                return
            if op == "Where":
                (test,) = self.add("Greater", name, other)
                (out,) = self.add("Where", test, other, name)
            else:
                (out,) = self.add(op, name, other)
            self.known[out] = np.zeros(common, np.float32)
        elif op == "Transpose" and rank:
            perm = self.data.draw(st.permutations(range(rank)))
            self.known[self.add(op, name, perm=perm)[0]] = x.transpose(perm)
        elif op == "Flatten":
            cut = int(np.prod(x.shape[:axis], dtype=int)), int(np.prod(x.shape[axis:], dtype=int))
            self.known[self.add(op, name, axis=axis)[0]] = x.reshape(cut)
        elif op in ("ReduceSum", "ReduceMax") and rank and x.size:
            keep = self.data.draw(st.integers(0, 1))
            (out,) = self.add(op, name, self.constant([axis]), keepdims=keep)
            self.known[out] = x.sum(axis, keepdims=bool(keep))
        elif op == "Concat" and rank:
            self.known[self.add(op, name, name, axis=axis)[0]] = np.concatenate([x, x], axis)
        elif op == "Slice" and rank:
            ends = [[self.data.draw(st.integers(-3, 3))] for _ in range(2)]
            step = self.data.draw(st.sampled_from([-2, -1, 1, 2]))
            window = [slice(None)] * rank
            window[axis] = slice(ends[0][0], ends[1][0], step)
            bounds = [self.constant(np.array(row)) for row in (*ends, [axis], [step])]
            self.known[self.add(op, name, *bounds)[0]] = x[tuple(window)]
        elif op == "MatMul" and rank >= 2:
            right = values(self.seed + len(self.nodes), "float32", (x.shape[-1], 3))
            self.known[self.add(op, name, self.constant(right))[0]] = x @ right
        elif op == "Unsqueeze" and rank < 5:
            self.known[self.add(op, name, self.constant([axis]))[0]] = np.expand_dims(x, axis)
        elif op == "ShapeOf":  # shape arithmetic that ends in a Reshape to the same shape
            one = self.constant(np.array(1))
            (less,) = self.add("Sub", *self.add("Shape", name), one)
            (back,) = self.add("Add", less, one)
            self.known[self.add("Reshape", name, back, allowzero=1)[0]] = x
        elif op == "Split" and rank and x.shape[axis] >= 2:
            sizes = [1, x.shape[axis] - 1]
            parts = self.add(op, name, self.constant(sizes), axis=axis, outputs=2)
            self.known |= dict(zip(parts, np.split(x, [1], axis), strict=True))
        elif op == "Pad" and rank:
            pads = [0] * (2 * rank)
            pads[axis], pads[rank + axis] = 1, 2
            widths = [(1, 2) if index == axis else (0, 0) for index in range(rank)]
            self.known[self.add(op, name, self.constant(pads))[0]] = np.pad(x, widths)
        elif op == "Gather" and rank and x.shape[axis]:
            at = [x.shape[axis] - 1, 0]
            self.known[self.add(op, name, self.constant(at), axis=axis)[0]] = np.take(x, at, axis)
        elif op == "Constant":
            self.known[self.constant(values(self.seed + len(self.constants), "float32", x.shape))] = x
        elif op == "CumSum" and rank:
            self.known[self.add(op, name, self.constant(np.array(axis)))[0]] = x


@given(
    seed=SEEDS,
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    steps=st.lists(st.sampled_from(STEPS), min_size=2, max_size=14),
    optimised=st.booleans(),
    fixed=st.booleans(),
    data=st.data(),
)
def test_random_graph(
    seed: int, shape: list[int], steps: list[str], optimised: bool, fixed: bool, data: st.DataObject
) -> None:
    graph = Graph(data, seed)
    feeds = {f"x{index}": values(seed + index, "float32", shape) for index in range(2)}
    graph.known |= feeds
    for step in steps:
        graph.grow(step)
    if not graph.nodes:
        return
    read = {name for node in graph.nodes for name in node.input}
    made = [name for node in graph.nodes for name in node.output]
    ends = [name for name in made if name not in read] or made[-1:]
    dims = shape if fixed else [f"d{axis}" for axis in range(len(shape))]
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "random",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in feeds],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ends],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    ).SerializeToString()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort_ep.InferenceSession(model, options, on_compute_error="raise")
    assert ort_ep.claim_report(session).declined == []
    expected = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    for _ in range(2):  # traced, then replayed
        for ours, theirs in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
