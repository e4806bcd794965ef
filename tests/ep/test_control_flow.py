"""Control flow, sequences and optionals through ONNX Runtime and the plugin: claimed whole, and equal to ORT's CPU."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

import mlxc_py as mx

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import ort_ep  # noqa: E402  after the check for onnxruntime

Arrays = Mapping[str, Any]
HEAD = '<ir_version: 8, opset_import: ["": 17]>'
ENGINES = ["auto", "eager"]
ORT = tuple(map(int, ort.__version__.split(".")[:2]))


def raw_options() -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def sessions(source: ModelProto | str, **options: Any) -> tuple[Any, Any]:
    model = onnx.parser.parse_model(source) if isinstance(source, str) else source
    data = model.SerializeToString()
    mine = ort_ep.InferenceSession(data, raw_options(), **options)
    return mine, ort.InferenceSession(data, raw_options(), providers=["CPUExecutionProvider"])


def same(mine: Any, cpu: Any, feeds: Arrays, tolerance: float = 1e-5) -> None:
    for ours, theirs in zip(mine.run(None, dict(feeds)), cpu.run(None, dict(feeds)), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance / 10)
    assert ort_ep.claim_report(mine).failures == []


def whole(mine: Any, host_steps: int | None = None) -> None:
    """Every node, those in bodies included, is in one subgraph on MLX."""
    report = ort_ep.claim_report(mine)
    if ORT < (1, 27) and any("does not hand over" in node.reason for node in report.declined):
        return
    assert report.declined == []
    assert len(report.clusters) == 1
    if host_steps is not None:
        assert report.host_steps == host_steps


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------- If
@pytest.mark.parametrize("engine", ENGINES)
def test_if_on_an_input(engine: str) -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (bool c, float[N] x) => (float[M] y, float[N] z) <float[3] w = {{1, 2, 3}}> {{
        z = Exp(x)
        y = If (c) <then_branch = t () => (float[a] yt) {{ yt = Mul(z, w) }},
                    else_branch = e () => (float[b] ye) {{ ye = Concat <axis = 0> (z, x) }}> }}""",
        engine=engine,
    )
    whole(mine, host_steps=0)
    for condition in (True, False, True):
        same(mine, cpu, {"c": np.array(condition), "x": floats(3)})


@pytest.mark.parametrize("engine", ENGINES)
def test_if_on_data_costs_one_host_step(engine: str) -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (float[N] x) => (float[N] y) {{
        zero = Constant <value_float = 0.0> () axes = Constant <value_ints = [0]> ()
        total = ReduceSum <keepdims = 0> (x, axes) c = Greater(total, zero)
        y = If (c) <then_branch = t () => (float[a] yt) {{ yt = Exp(x) }},
                    else_branch = e () => (float[b] ye) {{ ye = Neg(x) }}> }}""",
        engine=engine,
    )
    whole(mine, host_steps=1)
    for sign in (1, -1, 1):
        same(mine, cpu, {"x": np.full(4, sign, np.float32)})


def test_if_on_a_shape_stays_in_the_trace() -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (float[N, M] x) => (float[a, b] y, int64[k] s) {{
        three = Constant <value_int = 3> () zero = Constant <value_int = 0> ()
        s = Shape(x) n = Gather <axis = 0> (s, zero) c = Equal(n, three)
        y = If (c) <then_branch = t () => (float[p, q] yt) {{ yt = Transpose(x) }},
                    else_branch = e () => (float[p, q] ye) {{ ye = Reshape(x, s) }}> }}"""
    )
    whole(mine, host_steps=0)
    for rows in (3, 2, 3, 0):
        same(mine, cpu, {"x": floats(rows, 2)})


@pytest.mark.parametrize("condition", [True, False])
def test_if_on_a_constant_and_branches_that_only_pass_values_on(condition: bool) -> None:
    branches = [
        helper.make_graph(
            [helper.make_node("Identity", [source], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name, source in (("yt", "x"), ("ye", "w"))
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
    constants = [
        onnx.numpy_helper.from_array(np.array(condition), "c"),
        onnx.numpy_helper.from_array(floats(2, 2), "w"),
    ]
    graph = helper.make_graph([node], "g", [x], [y], constants)
    mine, cpu = sessions(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    whole(mine, host_steps=0)
    same(mine, cpu, {"x": floats(3)})


# ---------------------------------------------------------------- Loop
SUM_LOOP = f"""{HEAD} g (int64 n, float limit, float[N] x) => (float[N] y, float[k, N] steps) {{
    true = Constant <value = bool {{1}}> ()
    y, steps = Loop(n, true, x) <body = b (int64 i, bool c, float[N] s) => (bool go, float[N] t, float[N] out) {{
        f = Cast <to = 1> (i) t = Add(s, f) out = Mul(t, x)
        top = ReduceMax <keepdims = 0> (t) go = Less(top, limit) }}> }}"""


@pytest.mark.parametrize("engine", ENGINES)
def test_loop_stops_by_count_or_by_condition(engine: str) -> None:
    mine, cpu = sessions(SUM_LOOP, engine=engine)
    whole(mine)
    for count, limit in ((5, 100.0), (50, 10.0), (1, 100.0), (3, -100.0)):
        same(mine, cpu, {"n": np.array(count), "limit": np.array(limit, np.float32), "x": floats(3)})


def test_loop_without_an_iteration() -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (int64 n, bool go, float[2] x) => (float[2] y, float[k, 2] steps) {{
        y, steps = Loop(n, go, x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t, float[2] out) {{
            d = Identity(c) t = Add(s, x) out = Exp(t) }}> }}"""
    )
    whole(mine)
    for count, go in ((0, True), (3, False), (-1, True), (2, True)):
        same(mine, cpu, {"n": np.array(count), "go": np.array(go), "x": floats(2)})


def test_loop_of_constant_count_and_growing_state() -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (float[N] x) => (float[M] y) {{
        n = Constant <value_int = 4> ()
        y = Loop(n, , x) <body = b (int64 i, bool c, float[p] s) => (bool d, float[q] t) {{
            d = Identity(c) t = Concat <axis = 0> (s, x) }}> }}"""
    )
    whole(mine, host_steps=0)
    for length in (3, 0, 1):
        same(mine, cpu, {"x": floats(length)})


@pytest.mark.parametrize(("count", "steps"), [(5, 0), (200, 1)])
def test_few_iterations_of_a_constant_count_are_unrolled(count: int, steps: int) -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (float[2] x) => (float[2] y, float[k, 2] rows, int64[k] at) {{
        n = Constant <value_int = {count}> () true = Constant <value = bool {{1}}> ()
        y, rows, at = Loop(n, true, x) <
            body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t, float[2] row, int64 place) {{
                d = Identity(c) f = Cast <to = 1> (i) u = Mul(s, x) t = Sub(f, u) row = Exp(u)
                place = Add(i, i) }}> }}"""
    )
    whole(mine, host_steps=steps)
    for _ in range(2):
        same(mine, cpu, {"x": np.array([0.5, -0.25], np.float32)})


def test_a_constant_count_with_an_exit_on_data_is_not_unrolled() -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (float[2] x, float top) => (float[2] y) {{
        n = Constant <value_int = 8> ()
        y = Loop(n, , x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t) {{
            t = Add(s, s) m = ReduceMax <keepdims = 0> (t) d = Less(m, top) }}> }}"""
    )
    whole(mine, host_steps=1)
    for top in (3, 100, 1e9):
        same(mine, cpu, {"x": np.array([1, -1], np.float32), "top": np.array(top, np.float32)})


def test_loop_that_reads_shapes_and_slices_by_its_counter() -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (float[N, 2] x) => (float[k, 2] rows, float[a, b] y) {{
        zero = Constant <value_int = 0> () one = Constant <value_ints = [1]> () rest = Constant <value_ints = [-1]> ()
        axes = Constant <value_ints = [0]> ()
        s = Shape(x) n = Gather <axis = 0> (s, zero)
        y, rows = Loop(n, , x) <body = b (int64 i, bool c, float[p, r] v) => (bool d, float[u, w] t, float[2] row) {{
            d = Identity(c) at = Unsqueeze(i, axes) row = Gather <axis = 0> (x, i)
            first = Slice(v, at, rest, axes) next = Add(at, one)
            shape = Concat <axis = 0> (one, rest) flat = Reshape(v, shape) t = Reshape(flat, s) }}> }}"""
    )
    whole(mine)
    for rows in (1, 4):
        same(mine, cpu, {"x": floats(rows, 2)})


@pytest.mark.parametrize("engine", ENGINES)
def test_nested_loops_and_branches_with_values_of_every_scope(engine: str) -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (int64 n, float[2] x) => (float[2] y, float[k, 2] trail) <float[2] w = {{0.5, -0.5}}> {{
        z = Exp(x) two = Constant <value_int = 2> ()
        y, trail = Loop(n, , x) <body = outer (int64 i, bool c, float[2] s) => (bool d, float[2] t, float[2] seen) {{
            d = Identity(c) odd = Mod(i, two) is_odd = Cast <to = 9> (odd)
            u = If (is_odd) <
                then_branch = yes () => (float[2] a) {{
                    m = Add(i, two)
                    a = Loop(m, , s) <body = inner (int64 j, bool e, float[2] q) => (bool g2, float[2] r) {{
                        g2 = Identity(e) v = Mul(q, w) r = Add(v, z) }}> }},
                else_branch = no () => (float[2] b) {{ b = Sub(s, w) }}>
            seen = Add(u, z) t = Identity(u) }}> }}""",
        engine=engine,
    )
    whole(mine)
    for count in (0, 1, 4):
        same(mine, cpu, {"n": np.array(count), "x": floats(2)})


def test_loop_with_a_host_step_in_its_body() -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (int64 n, float[N] x) => (int64[k] counts) {{
        zero = Constant <value_int = 0> () one = Constant <value_int = 1> ()
        last, counts = Loop(n, , x) <body = b (int64 i, bool c, float[N] s) => (bool d, float[N] t, int64 found) {{
            d = Identity(c) f = Cast <to = 1> (i) t = Sub(s, f) r = Relu(t) at = NonZero(r)
            shape = Shape(at) found = Gather <axis = 0> (shape, one) }}> }}"""
    )
    whole(mine)
    same(mine, cpu, {"n": np.array(4), "x": np.array([0.5, 1.5, 3.5, 9.0], np.float32)})


def test_a_body_that_can_not_be_claimed_whole_is_still_accelerated(without: Callable[[str], None]) -> None:
    without("Neg")
    mine, cpu = sessions(
        f"""{HEAD} g (int64 n, float[2] x) => (float[2] y) {{
        y = Loop(n, , x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t) {{
            d = Identity(c) u = Exp(s) v = Neg(u) t = Mul(v, x) }}> }}"""
    )
    report = ort_ep.claim_report(mine)
    assert sorted(node.op_type for node in report.declined) == ["Loop", "Neg"]
    assert "body: Neg: " in next(node.reason for node in report.declined if node.op_type == "Loop")
    assert {node.op_type for node in report.nodes if node.on_mlx and node.parent == "Loop"} >= {"Exp", "Mul"}
    same(mine, cpu, {"n": np.array(3), "x": floats(2)})


def test_two_runs_on_several_threads_at_once() -> None:
    mine, cpu = sessions(SUM_LOOP)
    feeds = [{"n": np.array(count), "limit": np.array(50, np.float32), "x": floats(count)} for count in (2, 3, 5, 8)]
    expected = [cpu.run(None, feed) for feed in feeds]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(5):
            for ours, theirs in zip(mine.run(None, feeds[index]), expected[index], strict=True):
                if not np.allclose(ours, theirs, rtol=1e-5):
                    wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert ort_ep.claim_report(mine).failures == []


# ---------------------------------------------------------------- Scan
def scan_model(opset: int, shapes: tuple[list[Any], list[Any]], **attributes: Any) -> ModelProto:
    def info(name: str, shape: list[Any] | None) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Mul", ["t", "x"], ["out"])],
        "body",
        [info("s", [2]), info("x", [2])],
        [info("t", [2]), info("out", [2])],
    )
    first = ["", "state", "xs"] if opset == 8 else ["state", "xs"]
    node = helper.make_node("Scan", first, ["final", "ys"], body=body, num_scan_inputs=1, **attributes)
    graph = helper.make_graph(
        [node], "g", [info("state", shapes[0]), info("xs", shapes[1])], [info("final", None), info("ys", None)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("opset", [9, 11, 16, 21])
@pytest.mark.parametrize("length", [4, 1])
@pytest.mark.parametrize("known", [True, False])
def test_scan(opset: int, length: int, known: bool) -> None:
    mine, cpu = sessions(scan_model(opset, ([2], [length if known else "N", 2])))
    whole(mine, host_steps=0 if known else 1)
    same(mine, cpu, {"state": floats(2), "xs": floats(length, 2)})


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ({"scan_input_directions": [1]}, (3, 2)),
        ({"scan_output_directions": [1]}, (3, 2)),
        ({"scan_input_axes": [1]}, (2, 3)),
        ({"scan_input_axes": [-1], "scan_output_axes": [-1], "scan_input_directions": [1]}, (2, 3)),
    ],
)
def test_scan_axes_and_directions(attributes: dict[str, Any], shape: tuple[int, int]) -> None:
    mine, cpu = sessions(scan_model(11, ([2], list(shape)), **attributes))
    whole(mine)
    same(mine, cpu, {"state": floats(2), "xs": floats(*shape)})


def test_scan_of_opset_8_has_a_batch() -> None:
    for attributes in ({}, {"directions": [1]}):
        mine, cpu = sessions(scan_model(8, ([3, 2], [3, 4, 2]), **attributes))
        whole(mine)
        same(mine, cpu, {"state": floats(3, 2), "xs": floats(3, 4, 2)})


# ---------------------------------------------------------------- sequences and optionals
def test_sequences_live_inside_one_subgraph() -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (float[N, 3] x, int64 at) => (float[a, b] y, float[c] row, int64 n) {{
        parts = SplitToSequence <axis = 0, keepdims = 1> (x)
        one = SequenceAt(parts, at) more = SequenceInsert(parts, one, at) fewer = SequenceErase(more)
        n = SequenceLength(fewer) y = ConcatFromSequence <axis = 0> (fewer)
        flat = Constant <value_ints = [-1]> () row = Reshape(one, flat) }}"""
    )
    whole(mine)
    for rows, at in ((4, 1), (2, -2), (1, 0)):
        same(mine, cpu, {"x": floats(rows, 3), "at": np.array(at)})


def test_a_loop_builds_a_sequence() -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (int64 n, float[2] x) => (float[k, 2] y) {{
        start = SequenceEmpty <dtype = 1> () first = SequenceInsert(start, x)
        all = Loop(n, , first) <body = b (int64 i, bool c, seq(float[2]) s) => (bool d, seq(float[2]) t) {{
            d = Identity(c) f = Cast <to = 1> (i) v = Add(x, f) t = SequenceInsert(s, v) }}>
        y = ConcatFromSequence <axis = 0, new_axis = 1> (all) }}"""
    )
    whole(mine)
    for count in (0, 3):
        same(mine, cpu, {"n": np.array(count), "x": floats(2)})


def test_sequence_map_with_a_value_from_outside() -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (float[N, 2] x, float[2] w) => (float[k, 2] y) {{
        parts = SplitToSequence <keepdims = 0> (x)
        mapped = SequenceMap (parts, w) <body = b (float[2] a, float[2] f) => (float[2] o) {{ o = Mul(a, f) }}>
        y = ConcatFromSequence <axis = 0, new_axis = 1> (mapped) }}"""
    )
    same(mine, cpu, {"x": floats(3, 2), "w": floats(2)})
    assert ort_ep.claim_report(mine).declined == []


def test_sequences_that_cross_stay_on_the_cpu() -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (float[N, 3] x, seq(float[c]) given) => (float[a, b] y, seq(float[d, e]) parts) {{
        z = Exp(x) parts = SplitToSequence(z) inner = SplitToSequence(z) y0 = ConcatFromSequence <axis = 0> (inner)
        first = Constant <value_int = 0> () g = SequenceAt(given, first) y = Add(y0, g) }}"""
    )
    report = ort_ep.claim_report(mine)
    assert sorted(node.op_type for node in report.declined) == ["SequenceAt", "SplitToSequence"]
    feeds = {"x": floats(2, 3), "given": [floats(3), floats(3)]}
    ours, theirs = mine.run(None, feeds), cpu.run(None, feeds)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
    assert len(ours[1]) == len(theirs[1]) == 2


def test_optionals() -> None:
    mine, cpu = sessions(
        """<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y, bool has) {
        o = Optional(x) y = OptionalGetElement(o) has = OptionalHasElement(o) }"""
    )
    whole(mine)
    same(mine, cpu, {"x": floats(2)})


# ---------------------------------------------------------------- around the edges
def branches_over_one_weight(size: int) -> ModelProto:
    """Both branches multiply by `w`, and so does the main graph."""

    def branch(name: str, op: str) -> Any:
        nodes = [helper.make_node("MatMul", ["x", "w"], [f"{name}_m"]), helper.make_node(op, [f"{name}_m"], [name])]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])

    nodes = [
        helper.make_node("If", ["c"], ["z"], then_branch=branch("a", "Exp"), else_branch=branch("b", "Neg")),
        helper.make_node("MatMul", ["z", "w"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", size]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    weight = onnx.numpy_helper.from_array(floats(size, size), "w")
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_weight_of_several_bodies_exists_once() -> None:
    size = 512
    gc.collect()
    before = mx.get_active_memory()
    mine, cpu = sessions(branches_over_one_weight(size))
    whole(mine)
    # before 1.27 the bodies are subgraphs of their own, where nobody knows a constant to prepare: they hold the weight
    forms = 1 if ORT >= (1, 27) else 2
    assert mx.get_active_memory() - before < (forms + 0.5) * 4 * size * size
    for condition in (True, False):
        same(mine, cpu, {"c": np.array(condition), "x": floats(2, size) * np.float32(1e-3)}, 1e-3)


@pytest.mark.parametrize("partition", ["all", "cost"])
def test_with_onnx_runtimes_own_optimisations(partition: str) -> None:
    model = onnx.parser.parse_model(SUM_LOOP)
    data = model.SerializeToString()
    mine = ort_ep.InferenceSession(data, partition=partition)
    cpu = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert ORT < (1, 27) or "Loop" in {node.op_type for node in ort_ep.claim_report(mine).nodes if node.on_mlx}
    for count in (0, 3):
        same(mine, cpu, {"n": np.array(count), "limit": np.array(10, np.float32), "x": floats(4)})


def test_control_flow_inside_a_models_function() -> None:
    mine, cpu = sessions(
        """<ir_version: 8, opset_import: ["": 17, "local": 1]>
        g (bool c, float[2] x, int64 n) => (float[2] y) {
            t = local.Choose(c, x) y = local.Repeat(n, t) }
        <domain: "local", opset_import: ["": 17]>
        Choose (flag, v) => (r) {
            w = Exp(v)
            r = If (flag) <then_branch = t () => (float[2] a) { a = Add(w, v) },
                           else_branch = e () => (float[2] b) { b = Neg(w) }> }
        <domain: "local", opset_import: ["": 17]>
        Repeat (count, v) => (r) {
            r = Loop(count, , v) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t) {
                d = Identity(c) t = Add(s, v) }> }"""
    )
    assert ORT < (1, 27) or ort_ep.claim_report(mine).declined == []
    for condition in (True, False):
        same(mine, cpu, {"c": np.array(condition), "x": floats(2), "n": np.array(3)})


def test_an_error_in_a_body_names_its_node(capfd: pytest.CaptureFixture[str]) -> None:
    mine, _ = sessions(
        f"""{HEAD} g (bool c, float[N] x, int64[2] s) => (float[a, b] y) {{
        y = If (c) <then_branch = t () => (float[p, q] a) {{ a = Reshape(x, s) }},
                    else_branch = e () => (float[p, q] b) {{ b = Reshape(x, s) }}> }}""",
        on_compute_error="raise",
    )
    feeds = {"c": np.array(True), "x": floats(6), "s": np.array([4, 4])}
    with pytest.raises(Exception, match="Reshape failed on"):
        mine.run(None, feeds)
    assert "If failed" not in ort_ep.claim_report(mine).failures[0]
    good = mine.run(None, feeds | {"s": np.array([3, 2])})[0]
    np.testing.assert_array_equal(good, floats(6).reshape(3, 2))
    assert "Reshape" in capfd.readouterr().err
