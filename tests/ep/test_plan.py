from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mlxc_py as mx
from ort_ep.plan import OperatorError, Plan
from ort_ep.registry import ANY, Registry

Parse = Callable[[str], ModelProto]
Planned = Callable[[Any, Registry], Plan]
Arrays = Mapping[str, np.ndarray[Any, Any]]
Run = Callable[[Plan, Arrays], list[np.ndarray[Any, Any]]]
HEAD = '<ir_version: 8, opset_import: ["": 17, "my": 1]>'


def check(source: ModelProto, built: Plan, run: Run, feeds: Arrays) -> None:
    expected = ReferenceEvaluator(source).run(None, dict(feeds))
    for ours, theirs in zip(run(built, feeds), expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def steps(built: Plan) -> list[list[str]]:
    return [[step.title.split()[0] for step in segment.steps] for segment in built.segments]


DYNAMIC = f"""{HEAD} g (float[N, 3, 4] x) => (float[a, b] y) {{
    zero = Constant <value_int = 0> ()
    rest = Constant <value_ints = [-1]> ()
    one = Constant <value_ints = [1]> ()
    s = Shape(x)
    n = Gather(s, zero)
    n1 = Reshape(n, one)
    shape = Concat <axis = 0> (n1, rest)
    t = Add(x, x)
    y = Reshape(t, shape)
}}"""


@pytest.mark.parametrize("shape", [(2, 3, 4), (5, 3, 4), (1, 3, 4)])
def test_shape_arithmetic_stays_on_the_host(
    toy: Registry, model: Parse, planned: Planned, run: Run, shape: tuple[int, ...]
) -> None:
    seen: list[type] = []
    handler = toy.lookup("", "Concat", 13)
    assert handler is not None

    def fold(*x: Any, axis: int) -> np.ndarray[Any, Any]:
        seen.extend(map(type, x))
        return np.concatenate(x, axis)

    toy.op(
        "Concat",
        since=4,
        dtypes=ANY,
        override=True,
        fold=fold,
    )(handler.function)
    source = model(DYNAMIC)
    built = planned(source, toy)
    assert built.host_steps == 0
    assert not built.host_inputs
    check(source, built, run, {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)})
    assert seen == [np.ndarray, np.ndarray]


def test_a_run_input_may_be_a_shape(toy: Registry, model: Parse, planned: Planned, run: Run) -> None:
    source = model(
        f"""{HEAD} g (float[N] x, int64[K] s) => (float[a, b] y, int64[K] d) {{
        i = Constant <value_ints = [1, 0]> ()
        turned = Gather(s, i)
        y = Reshape(x, turned)
        d = Add(s, s) }}"""
    )
    built = planned(source, toy)
    assert built.host_inputs == {1}
    assert built.host_steps == 0
    for dims in ([2, 3], [6, 1]):
        check(source, built, run, {"x": np.arange(6, dtype=np.float32), "s": np.array(dims)})


def test_shapes_computed_from_data_split_the_plan(toy: Registry, model: Parse, planned: Planned, run: Run) -> None:
    source = model(
        f"""{HEAD} g (float[N] x, int64[2] a) => (float[p, q] y) {{
        s = Sub(a, a) t = Add(s, a) z = Add(x, x) y = Reshape(z, t) }}"""
    )
    built = planned(source, toy)
    assert built.host_steps == 1
    assert steps(built) == [["Sub", "Add", "Add"], ["Reshape"]]
    check(source, built, run, {"x": np.arange(6, dtype=np.float32), "a": np.array([3, 2])})


def test_host_step_operators_get_numpy(toy: Registry, model: Parse, planned: Planned, run: Run) -> None:
    source = model(
        f"""{HEAD} g (float[N] x) => (int64[a, b] i, float[c, d] f) {{
        r = Relu(x) i = NonZero(r) f = Cast <to = 1> (i) }}"""
    )
    built = planned(source, toy)
    assert steps(built) == [["Relu"], ["NonZero", "Cast"]]
    check(source, built, run, {"x": np.array([1, -1, 0, 2], np.float32)})


def test_constants_are_computed_once_while_compiling(toy: Registry, model: Parse, planned: Planned, run: Run) -> None:
    calls = []

    @toy.op("Count", domain="my")
    def count(x: mx.Array) -> mx.Array:
        calls.append(x.shape)
        return mx.multiply(x, 2)

    source = model(
        f"""{HEAD} g (float[N] x) => (float[N] y) <float[1] u, float[1] v> {{
        w = Constant <value = float[1] {{3}}> () v = my.Count(w) u = my.Count(v) y = Add(x, u) }}"""
    )
    built = planned(source, toy)
    assert steps(built) == [["Add"]]
    for _ in range(3):
        (y,) = run(built, {"x": np.ones(2, np.float32)})
        np.testing.assert_array_equal(y, [13, 13])
    assert len(calls) == 2


def test_impure_operators_run_every_time(toy: Registry, model: Parse, planned: Planned, run: Run) -> None:
    ticks = iter(range(10))
    toy.op("Tick", domain="my", pure=False)(lambda x: mx.add(x, next(ticks)))
    source = model(f"{HEAD} g () => (float[1] y) {{ w = Constant <value = float[1] {{0}}> () y = my.Tick(w) }}")
    built = planned(source, toy)
    assert [run(built, {})[0].tolist() for _ in range(3)] == [[0], [1], [2]]


def test_constant_that_is_needed_on_the_host(toy: Registry, model: Parse, planned: Planned, run: Run) -> None:
    # Sub has no numpy twin here: MLX computes the shape once, at compile time
    source = model(
        f"""{HEAD} g (float[6] x) => (float[a, b] y, int64[2] s) {{
        a = Constant <value_ints = [5, 4]> () b = Constant <value_ints = [2, 2]> ()
        s = Sub(a, b) y = Reshape(x, s) }}"""
    )
    built = planned(source, toy)
    assert built.host_steps == 0
    assert steps(built) == [["Reshape"]]
    check(source, built, run, {"x": np.arange(6, dtype=np.float32)})


def test_outputs_that_are_inputs_constants_and_duplicates(toy: Registry, planned: Planned, run: Run) -> None:
    w = numpy_helper.from_array(np.array([[1, 2]], np.float32), "w")
    k = numpy_helper.from_array(np.array([7, 8]), "k")
    rows: list[tuple[str, int, list[str | int | None]]] = [("x", 1, ["N"]), ("y", 1, ["N"]), ("w", 1, [1, 2])]
    rows += [("k", 7, [2]), ("s", 7, [1])]
    infos = {name: helper.make_tensor_value_info(name, kind, dims) for name, kind, dims in rows}
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Shape", ["x"], ["s"])]
    outputs = [infos[name] for name in ("y", "x", "w", "k", "s", "y")]
    graph = helper.make_graph(nodes, "g", [infos["x"]], outputs, [w, k])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    check(source, planned(source, toy), run, {"x": np.array([-1, 5, 6], np.float32)})


def test_duplicated_inputs_unused_outputs_and_absent_optionals(
    toy: Registry, planned: Planned, run: Run, model: Parse
) -> None:
    source = onnx.parser.parse_model(
        f"""{HEAD} g (float[4] x, float top, float unused) => (float[2] a, float[4] c, float[4] d) {{
        a, b = Split(x) c = Clip(x, "", top) d = Mul(x, x) }}"""
    )
    feeds = {
        "x": np.array([-1, 5, 6, 2], np.float32),
        "top": np.array(3, np.float32),
        "unused": np.array(0, np.float32),
    }
    check(source, planned(source, toy), run, feeds)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_rank_0_and_zero_size(toy: Registry, planned: Planned, run: Run, shape: tuple[int, ...]) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    s = helper.make_tensor_value_info("s", TensorProto.INT64, [len(shape)])
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Shape", ["x"], ["s"])]
    source = helper.make_model(helper.make_graph(nodes, "g", [x], [y, s]), opset_imports=[helper.make_opsetid("", 17)])
    check(source, planned(source, toy), run, {"x": np.full(shape, -2, np.float32)})


def test_results_have_the_declared_dtype_and_are_contiguous(
    toy: Registry, model: Parse, planned: Planned, run: Run
) -> None:
    toy.op("Turned", domain="my")(lambda x: mx.transpose(x).astype(mx.float16))
    source = onnx.parser.parse_model(f"{HEAD} g (float[2, 3] x) => (float[3, 2] y) {{ y = my.Turned(x) }}")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (y,) = run(planned(source, toy), {"x": x})
    np.testing.assert_array_equal(y, x.T)


def test_numpy_twins_may_promote_as_they_like(toy: Registry, model: Parse, planned: Planned, run: Run) -> None:
    toy.op("Half", domain="my", dtypes=ANY, fold=lambda x: x / 2)(lambda x: x)
    source = onnx.parser.parse_model(
        f"""{HEAD} g (float[N] x) => (float[a, b] y) {{
        s = Shape(x) one = Constant <value_ints = [-1]> () h = my.Half(s) t = Concat <axis = 0> (h, one)
        y = Reshape(x, t) }}"""
    )
    named = {info.name: info for info in source.graph.value_info}
    assert "h" not in named
    source.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.INT64, [1]))
    (y,) = run(planned(source, toy), {"x": np.arange(6, dtype=np.float32)})
    assert y.shape == (3, 2)


def test_values_are_freed_after_their_last_use(toy: Registry, model: Parse, planned: Planned, run: Run) -> None:
    alive: list[int] = []
    held: list[weakref.ref[Any]] = []

    def grow(x: Any) -> Any:
        alive.append(sum(reference() is not None for reference in held))
        result = np.zeros(4, np.float32)
        held.append(weakref.ref(result))
        return result

    toy.op("Grow", domain="my", host_result=True)(grow)
    body = " ".join(f"v{i + 1} = my.Grow(v{i})" for i in range(8))
    source = onnx.parser.parse_model(f"{HEAD} g (float[4] v0) => (float[4] v8) {{ {body} }}")
    for name in (f"v{i}" for i in range(1, 8)):
        source.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]))
    run(planned(source, toy), {"v0": np.zeros(4, np.float32)})
    assert alive == [0] + [1] * 7


def test_failing_handlers_name_node_operator_inputs_and_keep_the_cause(
    toy: Registry, model: Parse, planned: Planned
) -> None:
    def explode(x: mx.Array) -> mx.Array:
        raise ZeroDivisionError("boom")

    toy.op("Explode", domain="my", pure=False)(explode)
    source = onnx.parser.parse_model(f"{HEAD} g (float[N, 3] x) => (float[N] y) {{ y = my.Explode(x) }}")
    source.graph.node[0].name = "bomb"
    built = planned(source, toy)
    frame = built.frame([mx.zeros((2, 3))])
    with pytest.raises(
        OperatorError, match=r"my::Explode 'bomb' failed on \(float32\[2,3\]\): ZeroDivisionError: boom"
    ) as caught:
        frame.execute(built.segments[0])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("count", [1, 3])
def test_too_few_and_too_many_results_are_an_error(toy: Registry, planned: Planned, count: int) -> None:
    toy.op("Pair", domain="my")(lambda x: (x,) * count)
    source = onnx.parser.parse_model(f"{HEAD} g (float[N] x) => (float[N] y, float[N] z) {{ y, z = my.Pair(x) }}")
    source.graph.value_info.extend(source.graph.output)
    built = planned(source, toy)
    with pytest.raises(OperatorError, match=f"returned {count} results and the node has 2 outputs"):
        built.frame([mx.zeros((2,))]).execute(built.segments[0])


@pytest.mark.parametrize("result", [None, 3.5, [1, 2]])
def test_results_that_are_no_tensors_are_an_error(toy: Registry, planned: Planned, result: Any) -> None:
    toy.op("Odd", domain="my", pure=False)(lambda x: (result,))
    source = onnx.parser.parse_model(f"{HEAD} g (float[N] x) => (float[N] y) {{ y = my.Odd(x) }}")
    built = planned(source, toy)
    with pytest.raises(OperatorError, match=r"the handler returned (NoneType|float|list) for an output that is used"):
        built.frame([mx.zeros((2,))]).execute(built.segments[0])


def test_injected_parameters_and_attributes_reach_the_handler(
    toy: Registry, model: Parse, planned: Planned, run: Run
) -> None:
    seen: dict[str, Any] = {}

    @toy.op("Spy", domain="my")
    def spy(x: mx.Array, *, n_outputs: int, opset: int, node: Any, axes: tuple[int, ...] = (), mode: str = "a") -> Any:
        seen.update(n_outputs=n_outputs, opset=opset, op=node.op_type, axes=axes, mode=mode)
        return x, x

    source = onnx.parser.parse_model(
        f'{HEAD} g (float[N] x) => (float[N] y) {{ "", y = my.Spy <axes = [1, 2], mode = "b"> (x) }}'
    )
    run(planned(source, toy), {"x": np.zeros(1, np.float32)})
    assert seen == {"n_outputs": 2, "opset": 1, "op": "Spy", "axes": (1, 2), "mode": "b"}


def test_types_mlx_lacks_reach_handlers_that_ask_for_them_as_numpy(toy: Registry, planned: Planned, run: Run) -> None:
    kinds: list[str] = []

    @toy.op("Unpack", domain="my", dtypes={"x": {"int4"}})
    def unpack(x: Any) -> mx.Array:
        kinds.append(x.dtype.name)
        return mx.array(x.astype(np.float32))

    packed = helper.make_tensor("w", TensorProto.INT4, [3], [1, -2, 7])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    graph = helper.make_graph([helper.make_node("Unpack", ["w"], ["y"], domain="my")], "g", [], [y], [packed])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("my", 1)])
    (found,) = run(planned(source, toy), {})
    np.testing.assert_array_equal(found, [1, -2, 7])
    assert kinds == ["int4"]
