"""Reductions and windows of views: MLX 0.32 reduces overlapping views wrongly, so every way to make a view is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

STEPS = st.lists(
    st.sampled_from(["transpose", "stride", "reverse", "expand", "pad", "squeeze"]), min_size=1, max_size=4
)
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": np.sum,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
}


@settings(max_examples=120, deadline=None)
@given(steps=STEPS, data=st.data(), op=st.sampled_from([*REDUCTIONS, "ArgMax", "CumSum", "Softmax"]))
def test_reduction_of_a_view(
    plan_of: Callable[..., Any], same: Callable[..., None], steps: list[str], data: st.DataObject, op: str
) -> None:
    x = np.random.default_rng(3).standard_normal((3, 4, 1, 5)).astype(np.float32)
    value: Any = x
    nodes: list[Any] = []
    constants: list[Any] = []

    def node(kind: str, *operands: Any, **attributes: Any) -> None:
        names = []
        for operand in operands:
            names.append(f"c{len(constants)}")
            constants.append(helper.make_tensor(names[-1], TensorProto.INT64, [len(operand)], list(operand)))
        nodes.append(helper.make_node(kind, [f"t{len(nodes)}", *names], [f"t{len(nodes) + 1}"], **attributes))

    for step in steps:
        axis = data.draw(st.integers(0, value.ndim - 1))
        here = (slice(None),) * axis
        if step == "transpose":
            order = data.draw(st.permutations(range(value.ndim)))
            node("Transpose", perm=list(order))
            value = value.transpose(order)
        elif step == "stride":
            node("Slice", [1], [2**31], [axis], [2])
            value = value[(*here, slice(1, None, 2))]
        elif step == "reverse":
            node("Slice", [-1], [-(2**31)], [axis], [-1])
            value = value[(*here, slice(None, None, -1))]
        elif step == "expand":
            shape = [2 if length == 1 else length for length in value.shape]
            node("Expand", shape)
            value = np.broadcast_to(value, shape)
        elif step == "pad":
            widths = [(int(i == axis), 0) for i in range(value.ndim)]
            node("Pad", [w[0] for w in widths] + [w[1] for w in widths])
            value = np.pad(value, widths)
        elif step == "squeeze" and 1 in value.shape and value.ndim > 2:
            node("Squeeze", [value.shape.index(1)])
            value = value.squeeze(value.shape.index(1))
    if not value.size:
        return
    axis = data.draw(st.integers(0, value.ndim - 1))
    if op in REDUCTIONS:
        node(op, [axis])
        expected = REDUCTIONS[op](value, axis, keepdims=True)
    elif op == "ArgMax":
        node(op, axis=axis)
        expected = value.argmax(axis, keepdims=True)
    elif op == "CumSum":
        node(op, [axis])
        expected = value.cumsum(axis)
    else:
        node(op, axis=axis)
        grown = np.exp(value)
        expected = grown / grown.sum(axis, keepdims=True)
    result = TensorProto.INT64 if op == "ArgMax" else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "views",
        [helper.make_tensor_value_info("t0", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(f"t{len(nodes)}", result, None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (actual,) = plan_of(model, {"t0": x})
    same(actual, expected, rtol=1e-4)
