"""Models through ONNX Runtime and the plugin, against ORT's CPU provider."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import mlxc_py as mx
from ort_ep.registry import ANY, REGISTRY

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import ort_ep  # noqa: E402  after the check for onnxruntime

Arrays = Mapping[str, np.ndarray[Any, Any]]
HEAD = '<ir_version: 8, opset_import: ["": 17, "local": 1]>'


def raw_options() -> Any:
    """ORT as it is, without rewriting the graph: what the model says is what the provider is offered."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def sessions(source: ModelProto | str, *, raw: bool = True, **options: Any) -> tuple[Any, Any]:
    model = onnx.parser.parse_model(source) if isinstance(source, str) else source
    data = model.SerializeToString()
    mine = ort_ep.InferenceSession(data, raw_options() if raw else None, **options)
    return mine, ort.InferenceSession(data, raw_options(), providers=["CPUExecutionProvider"])


def same(mine: Any, cpu: Any, feeds: Arrays) -> None:
    for ours, theirs in zip(mine.run(None, dict(feeds)), cpu.run(None, dict(feeds)), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert ort_ep.claim_report(mine).failures == []


def all_on_mlx(mine: Any, clusters: int = 1) -> None:
    report = ort_ep.claim_report(mine)
    assert report.declined == []
    assert len(report.clusters) == clusters


@pytest.mark.parametrize("raw", [True, False])
def test_dynamic_shapes_and_shape_arithmetic(raw: bool) -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (float[N, 3, 4] x) => (float[a, b] y, int64[c] s) {{
        zero = Constant <value_int = 0> () rest = Constant <value_ints = [-1]> () axes = Constant <value_ints = [0]> ()
        s = Shape(x) n = Gather <axis = 0> (s, zero) n1 = Unsqueeze(n, axes)
        shape = Concat <axis = 0> (n1, rest) t = Add(x, x) y = Reshape(t, shape) }}""",
        raw=raw,
    )
    all_on_mlx(mine)
    assert ort_ep.claim_report(mine).host_steps == 0
    for count in (2, 5, 1):
        same(mine, cpu, {"x": np.random.default_rng(count).standard_normal((count, 3, 4)).astype(np.float32)})


SHAPE_ARITHMETIC = {
    "half the height, rounded": """f = Cast <to = 1> (s) two = Constant <value_float = 2.0> () h = Div(f, two)
        up = Ceil(h) down = Floor(h) r = Round(h) m = Mul(up, down) q = Sqrt(m) g = Max(q, r)
        n = Cast <to = 7> (g) k = ReduceProd <keepdims = 0> (n) z = ConstantOfShape(n) y = Reshape(z, minus)""",
    "what is missing to a multiple": """eight = Constant <value_ints = [8]> () m = Mod(s, eight) d = Sub(eight, m)
        c = Clip(d, one0, "") n = ReduceMax <keepdims = 1> (c) y = ConstantOfShape(n)""",
    "one length replaced": """at = Unsqueeze(zero, zero) u = Constant <value_ints = [7]> ()
        n = ScatterND(s, at, u) p = Pow(n, one) y = ConstantOfShape(p)""",
    "positions that are not zero": """o = ConstantOfShape <value = int64[1] {1}> (s) w = NonZero(o)
        n = ReduceMin <axes = [1]> (w) p = Reshape(n, minus) q = Add(p, one) z = ConstantOfShape(q)
        y = Reshape(z, minus)""",
}


@pytest.mark.parametrize("title", SHAPE_ARITHMETIC)
def test_arithmetic_on_shapes_never_splits_a_plan(title: str) -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (float[N, 3] x) => (float[a] y) {{ s = Shape(x) minus = Constant <value_ints = [-1]> ()
        zero = Constant <value_ints = [0]> () one = Constant <value_ints = [1]> () one0 = Constant <value_int = 1> ()
        {SHAPE_ARITHMETIC[title]} }}"""
    )
    all_on_mlx(mine)
    assert ort_ep.claim_report(mine).host_steps == 0
    for count in (2, 5):
        same(mine, cpu, {"x": np.ones((count, 3), np.float32)})


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (2, 1, 3, 1, 2)])
def test_rank_0_zero_size_and_high_rank(shape: tuple[int, ...]) -> None:
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"d{i}" for i in range(len(shape))]) for name in "xy"
    )
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Add", ["e", "x"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    mine, cpu = sessions(model)
    all_on_mlx(mine)
    same(mine, cpu, {"x": np.ones(shape, np.float32)})


def test_absent_optionals_unused_outputs_and_duplicated_inputs() -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (float[4] x, float top) => (float[a] a, float[4] c, float[4] d) {{
        a, b = Split(x) c = Clip(x, "", top) d = Mul(x, x) }}"""
    )
    all_on_mlx(mine)
    same(mine, cpu, {"x": np.array([-1, 5, 6, 2], np.float32), "top": np.array(3, np.float32)})


def weights_everywhere() -> ModelProto:
    """`d` is an input with a default, `w` an output too, `x` passes through, `y` comes out twice over."""
    f = TensorProto.FLOAT
    x, d, w, y, z = (helper.make_tensor_value_info(name, f, [3]) for name in "xdwyz")
    stored = [
        numpy_helper.from_array(np.array(v, np.float32), name) for name, v in (("d", [1, 2, 3]), ("w", [4, 5, 6]))
    ]
    nodes = [
        helper.make_node("Add", ["x", "d"], ["t"]),
        helper.make_node("Mul", ["t", "w"], ["y"]),
        helper.make_node("Identity", ["y"], ["z"]),
    ]
    graph = helper.make_graph(nodes, "g", [x, d], [y, w, z], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("raw", [True, False])
def test_initializers_that_are_inputs_and_outputs(raw: bool) -> None:
    mine, cpu = sessions(weights_everywhere(), raw=raw)
    all_on_mlx(mine)
    x = np.array([1, 1, 1], np.float32)
    same(mine, cpu, {"x": x})
    same(mine, cpu, {"x": x, "d": np.array([7, 8, 9], np.float32)})
    same(mine, cpu, {"x": x})


def test_data_dependent_shapes_are_host_steps() -> None:
    mine, cpu = sessions(
        f"""{HEAD} g (float[N] x, int64[2] a) => (float[p, q] y) {{
        s = Sub(a, a) t = Add(s, a) z = Mul(x, x) y = Reshape(z, t) }}"""
    )
    all_on_mlx(mine)
    for dims in ([3, 2], [1, 6], [-1, 3]):
        same(mine, cpu, {"x": np.arange(6, dtype=np.float32), "a": np.array(dims)})


def test_shapes_may_cross_from_one_subgraph_to_another(without: Callable[[str], None]) -> None:
    without("Neg")
    mine, cpu = sessions(
        f"""{HEAD} g (float[N, 4] x) => (float[a, b] y) {{
        s = Shape(x) n = Neg(s) two = Constant <value_ints = [-2, -2]> () m = Mul(n, two)
        half = Constant <value_ints = [4, 4]> () d = Div(m, half) n2 = Neg(x)
        t = Concat <axis = 0> (n2, n2) y = Tile(t, d) }}"""
    )
    report = ort_ep.claim_report(mine)
    assert [node.op_type for node in report.declined] == ["Neg", "Neg"]
    assert len(report.clusters) == 2
    for count in (2, 4, 6):
        same(mine, cpu, {"x": np.ones((count, 4), np.float32)})


def test_model_functions_are_claimed_whole_or_inlined() -> None:
    text = f"""{HEAD} g (float[N] x) => (float[N] y) {{ t = local.Twice <k = 3.0> (x) y = Exp(t) }}
    <domain: "local", opset_import: ["": 17]>
    Twice <k> (a) => (b) {{ f = Constant <value_float: float = @k> () b = Mul (a, f) }}"""
    mine, cpu = sessions(text)
    all_on_mlx(mine)
    same(mine, cpu, {"x": np.ones(3, np.float32)})


def test_nodes_in_the_bodies_of_unclaimed_control_flow_run_on_mlx(without: Callable[[str], None]) -> None:
    without("If")
    mine, cpu = sessions(
        f"""{HEAD} g (bool c, float[2] x) => (float[2] y) {{
        z = Exp(x)
        y = If (c) <then_branch = t () => (float[2] a) {{ a = Add(z, x) }},
                    else_branch = e () => (float[2] b) {{ s = Mul(z, x) b = Sub(s, z) }}> }}"""
    )
    report = ort_ep.claim_report(mine)
    assert [(node.op_type, node.parent) for node in report.declined] == [("If", "")]
    assert sorted(node.op_type for node in report.nodes if node.parent == "If") == ["Add", "Mul", "Sub"]
    for condition in (True, False):
        same(mine, cpu, {"c": np.array(condition), "x": np.array([1, 2], np.float32)})


def test_bodies_take_shapes_from_outside(without: Callable[[str], None]) -> None:
    without("If")
    mine, cpu = sessions(
        f"""{HEAD} g (bool c, float[6] x, int64[2] d) => (float[p, q] y) {{
        w = Constant <value_ints = [3, 2]> ()
        y = If (c) <then_branch = t () => (float[i, j] a) {{ a = Reshape(x, w) }},
                    else_branch = e () => (float[k, l] b) {{ b = Reshape(x, d) }}> }}"""
    )
    assert [node.op_type for node in ort_ep.claim_report(mine).declined] == ["If"]
    for condition in (True, False):
        same(mine, cpu, {"c": np.array(condition), "x": np.arange(6, dtype=np.float32), "d": np.array([2, 3])})


def test_a_users_operator_runs_where_onnx_knows_only_its_fallback() -> None:
    seen: list[str] = []

    @ort_ep.op("TimesTen", domain="local", dtypes=ANY)
    def times_ten(x: mx.Array, *, k: float = 10.0) -> mx.Array:
        seen.append(type(x).__name__)
        return mx.multiply(x, k)

    mine, _ = sessions(
        f"""{HEAD} g (float[N] x) => (float[N] y) {{ t = local.TimesTen(x) y = Neg(t) }}
        <domain: "local", opset_import: ["": 17]>
        TimesTen (a) => (b) {{ f = Constant <value_float = 0.0> () b = Mul (a, f) }}"""
    )
    all_on_mlx(mine)
    np.testing.assert_array_equal(mine.run(None, {"x": np.ones(2, np.float32)})[0], [-10, -10])
    assert seen == ["Array"]


@pytest.mark.parametrize("engine", ["tape", "compile", "eager"])
def test_what_a_users_operator_does_to_its_input_stays_inside(engine: str) -> None:
    name = f"Bump{engine.title()}"

    @ort_ep.op(name, domain="local")
    def bump(x: mx.Array) -> mx.Array:
        x += 1
        x[0] = 7
        return x

    mine, _ = sessions(
        f"""{HEAD} g (float[N] x) => (float[N] y, float[N] z) {{ a = Neg(x) y = local.{name}(a) z = Neg(a) }}
        <domain: "local", opset_import: ["": 17]>
        {name} (a) => (b) {{ b = Abs (a) }}""",
        engine=engine,
    )
    all_on_mlx(mine)
    for scale in (1, 2):
        y, z = mine.run(None, {"x": np.array([scale, 2 * scale], np.float32)})
        assert (y.tolist(), z.tolist()) == ([7, 1 - 2 * scale], [scale, 2 * scale])


def broken_model(name: str) -> str:
    return f"""{HEAD} g (float[N] x) => (float[N] y) {{ t = local.{name}(x) y = Neg(t) }}
    <domain: "local", opset_import: ["": 17]>
    {name} (a) => (b) {{ b = Add (a, a) }}"""


def break_once(name: str) -> None:
    def explode(x: mx.Array) -> mx.Array:
        raise ValueError("no such luck")

    if REGISTRY.lookup("local", name, 1) is None:
        ort_ep.op(name, domain="local")(explode)


def test_weights_in_a_file_that_is_too_short_are_named(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 32])],
        [numpy_helper.from_array(np.ones((32, 32), np.float32), "weights")],
    )
    path = tmp_path / "m.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").write_bytes(bytes(8))
    with pytest.raises(Exception, match=r"weights.* out of bounds"):
        ort_ep.InferenceSession(path)


def test_failing_run_is_answered_by_the_cpu_provider(capfd: pytest.CaptureFixture[str]) -> None:
    break_once("Unlucky")
    mine, cpu = sessions(broken_model("Unlucky"))
    x = np.ones(2, np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(mine.run(None, {"x": x})[0], cpu.run(None, {"x": x})[0])
    assert mine.get_providers() == ["CPUExecutionProvider"]
    (failure,) = ort_ep.claim_report(mine).failures
    assert "local::Unlucky failed on (float32[2]): ValueError: no such luck" in failure
    assert "no such luck" in capfd.readouterr().err


def test_failing_run_is_an_error_where_that_is_asked_for() -> None:
    break_once("Unlucky")
    mine, _ = sessions(broken_model("Unlucky"), on_compute_error="raise")
    for _ in range(2):
        with pytest.raises(Exception, match=r"local::Unlucky failed on .*no such luck"):
            mine.run(None, {"x": np.ones(2, np.float32)})
    assert "MLXExecutionProvider" in mine.get_providers()


def by_name(source: str, **options: object) -> Any:
    ort_ep.register()
    texts = {name: str(value) for name, value in options.items()}
    model = onnx.parser.parse_model(source).SerializeToString()
    return ort.InferenceSession(model, providers=[("MLXExecutionProvider", texts)])


needs_names = pytest.mark.skipif(
    tuple(map(int, ort.__version__.split(".")[:2])) < (1, 25),
    reason="providers= knows plugins from onnxruntime 1.25 on",
)


@needs_names
def test_options_given_by_name_are_checked_loudly() -> None:
    text = f"{HEAD} g (float[N] x) => (float[N] y) {{ y = Neg(x) }}"
    with pytest.raises(Exception, match="unknown provider option 'partitoin'; did you mean 'partition'"):
        by_name(text, partitoin="all")
    assert by_name(text, partition="all").run(None, {"x": np.ones(1, np.float32)})[0] == [-1]


@needs_names
def test_strict_given_by_name(without: Callable[[str], None]) -> None:
    without("Neg")
    text = f"{HEAD} g (float[N] x) => (float[N] y) {{ t = Exp(x) y = Neg(t) }}"
    with pytest.raises(Exception, match="strict: 1 nodes would run on the CPU provider: Neg"):
        by_name(text, strict=True)


def random_graph(seed: int, count: int) -> ModelProto:
    random = np.random.default_rng(seed)
    names = ["x"]
    nodes = []
    for i in range(count):
        a, b = (names[-1 - int(random.integers(min(len(names), 6)))] for _ in range(2))
        op = str(random.choice(["Add", "Max", "Neg", "Tanh"]))
        nodes.append(helper.make_node(op, [a, b] if op in ("Add", "Max") else [a], [f"v{i}"], name=f"n{i}"))
        names.append(f"v{i}")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", *names[-3:])]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("seed", range(8))
def test_ort_accepts_every_partition_of_a_mixed_graph(
    seed: int, without: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    without("Neg")
    mine, cpu = sessions(random_graph(seed, 60))
    report = ort_ep.claim_report(mine)
    assert {node.op_type for node in report.declined} == {"Neg"}
    assert report.mlx_nodes + report.cpu_nodes == 60
    same(mine, cpu, {"x": np.linspace(-0.1, 0.1, 4, dtype=np.float32)})
    assert "unsupported" not in capfd.readouterr().err  # ORT drops a partition that is not convex with this word


def test_parallel_execution_runs_subgraphs_on_threads_that_are_not_pythons(without: Callable[[str], None]) -> None:
    without("Neg")
    options = raw_options()
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 3
    branches = " ".join(f"a{i} = Exp(x) b{i} = Neg(a{i}) c{i} = Tanh(b{i})" for i in range(4))
    text = f"{HEAD} g (float[N] x) => (float[N] y) {{ {branches} y = Sum(c0, c1, c2, c3) }}"
    model = onnx.parser.parse_model(text).SerializeToString()
    mine = ort_ep.InferenceSession(model, options)
    cpu = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert len(ort_ep.claim_report(mine).clusters) >= 2
    for count in (1, 7, 1000):
        same(mine, cpu, {"x": np.linspace(-1, 1, count, dtype=np.float32)})


def test_runs_and_sessions_leave_no_memory_behind() -> None:
    w = numpy_helper.from_array(np.ones((256, 256), np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 256]) for name in "xy")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()

    def use(runs: int) -> None:
        session = ort_ep.InferenceSession(data)
        for i in range(runs):
            session.run(None, {"x": np.ones((1 + i % 5, 256), np.float32)})

    use(5)
    gc.collect()
    before = mx.get_active_memory()
    for _ in range(20):
        use(10)
    gc.collect()
    assert mx.get_active_memory() == before


def test_threads_share_sessions_and_sessions_share_streams() -> None:
    text = f"""{HEAD} g (float[N, M] x) => (float[a, b] y) {{
        t = Transpose(x) p = MatMul(x, t) e = Exp(p) y = Softmax(e) }}"""
    pairs = [sessions(text) for _ in range(2)]
    wrong: list[object] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for i in range(20):
            mine, cpu = pairs[(seed + i) % 2]
            x = random.uniform(-1, 1, (3 + i % 4, 5)).astype(np.float32)
            ours, theirs = mine.run(None, {"x": x})[0], cpu.run(None, {"x": x})[0]
            if not np.allclose(ours, theirs, rtol=1e-4, atol=1e-6):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_ten_thousand_nodes_are_one_subgraph() -> None:
    nodes = [helper.make_node("Neg" if i % 2 else "Abs", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(10_000)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("v0", "v10000"))
    graph = helper.make_graph(nodes, "g", [x], [y])
    mine, cpu = sessions(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    all_on_mlx(mine)
    same(mine, cpu, {"v0": np.array([1, -2], np.float32)})


def test_inputs_in_mapped_files(tmp_path: Path) -> None:
    """Nothing may be mapped before the first page of a file, where MLX looks for a buffer's size."""
    mine, cpu = sessions(f"{HEAD} g (float[N] x) => (float[N] y) {{ y = Identity(x) }}")
    files = []
    for number in range(20):
        np.full(1 << 19, number, np.float32).tofile(tmp_path / str(number))
        files.append(np.memmap(tmp_path / str(number), np.float32, "r"))
        same(mine, cpu, {"x": files[-1]})


@pytest.mark.parametrize("stored", [TensorProto.INT4, TensorProto.FLOAT8E4M3FN])
def test_computed_constants_of_types_that_mlx_lacks(stored: int) -> None:
    size = 128  # large enough to be shared between sessions
    values = np.random.default_rng(0).standard_normal((size, size), np.float32)
    nodes = [
        helper.make_node("QuantizeLinear", ["w", "step"], ["q"], output_dtype=stored),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["y"]),
    ]
    scale = helper.make_tensor_value_info("scale", TensorProto.FLOAT, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [size, size])
    constants = [numpy_helper.from_array(values, "w"), numpy_helper.from_array(np.float32(0.5), "step")]
    graph = helper.make_graph(nodes, "g", [scale], [y], constants)
    opset = [helper.make_opsetid("", 21)]
    mine, cpu = sessions(helper.make_model(graph, opset_imports=opset, ir_version=10))
    all_on_mlx(mine)
    same(mine, cpu, {"scale": np.array(0.5, np.float32)})


@pytest.mark.parametrize("engine", ["auto", "compile", "eager"])
@pytest.mark.parametrize(
    "shaped",
    ["a = Reshape (c, p) b = Reshape (c, q)", "a = Flatten <axis = 0> (c) b = Flatten <axis = 2> (c)"],
    ids=["Reshape", "Flatten"],
)
def test_one_value_in_two_shapes(engine: str, shaped: str) -> None:
    """MLX's compile merges what is equivalent."""
    mine, cpu = sessions(
        f"""{HEAD} g (float[N, 6] x) => (float[J, K] y, float[L, M] z)
        <int64[2] p = {{-1, 4}}, int64[2] q = {{3, -1}}>
        {{ c = Concat <axis = 0> (x, x) {shaped} y = Softmax <axis = 0> (a) z = Softmax <axis = 0> (b) }}""",
        engine=engine,
    )
    for rows in (4, 2, 4):
        same(mine, cpu, {"x": np.arange(rows * 6, dtype=np.float32).reshape(rows, 6) / 7})
    all_on_mlx(mine)
