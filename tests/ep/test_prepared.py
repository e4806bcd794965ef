"""Weights prepared while a session is made: once, shared, and in the place of what they were made from."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlxc_py as mx
import ort_ep
from ort_ep import constants, streams
from ort_ep import shared_initializers as si
from ort_ep.plan import Plan
from ort_ep.registry import Registry

Planned = Callable[[Any, Registry], Plan]
Run = Callable[[Plan, Any], list[np.ndarray[Any, Any]]]
SIDE = 64
KIB = 1024
ROUNDING = 0 if mx.default_device().type == mx.cpu else 16 * KIB  # of a GPU's allocator, in all


class Halves(NamedTuple):
    """A weight in two parts, and how often it was divided."""

    first: mx.Array
    second: mx.Array
    times: int


@pytest.fixture(autouse=True)
def default_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(si.NO_SHARED_INITIALIZERS, raising=False)
    monkeypatch.delenv(si.NO_SHARED_QUANT_VIEWS, raising=False)


def one_node(op_type: str, inputs: Sequence[str], weights: dict[str, np.ndarray[Any, Any]], **attributes: Any) -> Any:
    """`op_type` of x [N, 64] and further inputs, those in `weights` as initializers."""
    node = helper.make_node(op_type, list(inputs), ["y"], **attributes)
    free = [name for name in inputs if name not in weights]
    shapes: dict[str, list[str | int | None]] = {name: ["N", SIDE] if name == "x" else [SIDE, SIDE] for name in free}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph([node], "g", ends, [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def square(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((SIDE, SIDE)).astype(np.float32)


def counting(registry: Registry, calls: list[int]) -> Registry:
    """A MatMul whose weights come as two halves of columns."""

    def halves(b: mx.Array, *, times: int = 1) -> Halves:
        calls.append(times)
        first, second = mx.split(b, 2, 1)
        return Halves(first, second, times)

    @registry.op("MatMul", since=13, prepare={"b": halves})
    def matmul(a: mx.Array, b: Halves) -> mx.Array:
        return mx.concatenate([a @ b.first, a @ b.second], 1)

    return registry


# ---- what a handler gets


def test_constant_is_prepared_once_and_replaced(toy: Registry, planned: Planned, run: Run) -> None:
    calls: list[int] = []
    w, x = square(), np.ones((2, SIDE), np.float32)
    built = planned(one_node("MatMul", "xw", {"w": w}), counting(toy, calls))
    assert calls == [1]
    for _ in range(2):
        np.testing.assert_allclose(run(built, {"x": x})[0], x @ w, rtol=1e-5, atol=1e-4)
    assert calls == [1]
    held = [value for value in built.values if value is not None]
    assert [type(value) for value in held] == [Halves]
    assert [part.shape for part in held[0][:2]] == [(SIDE, SIDE // 2)] * 2


def test_what_is_no_constant_is_prepared_at_each_call(toy: Registry, planned: Planned, run: Run) -> None:
    calls: list[int] = []
    w, x = square(), np.ones((2, SIDE), np.float32)
    built = planned(one_node("MatMul", "xw", {}), counting(toy, calls))
    assert calls == []
    for _ in range(2):
        np.testing.assert_allclose(run(built, {"x": x, "w": w})[0], x @ w, rtol=1e-5, atol=1e-4)
    assert calls == [1, 1]


def text_model(body: str) -> Any:
    """A graph of x [64, 64] with one weight w."""
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[64, 64] x) => (float[64, 64] y)'
    source = onnx.parser.parse_model(f"{head} {{ {body} }}")
    source.graph.initializer.append(numpy_helper.from_array(square(), "w"))
    return source


def test_computed_constant_is_prepared_and_let_go_of(toy: Registry, planned: Planned, run: Run) -> None:
    calls: list[int] = []
    built = planned(text_model("t = Exp(w) y = MatMul(x, t)"), counting(toy, calls))
    assert calls == [1]
    assert [type(value) for value in built.values if value is not None] == [Halves]
    x = np.ones((SIDE, SIDE), np.float32)
    np.testing.assert_allclose(run(built, {"x": x})[0], x @ np.exp(square()), rtol=1e-5)


def test_weight_that_is_also_used_as_it_is_stays(toy: Registry, planned: Planned) -> None:
    built = planned(text_model("t = MatMul(x, w) y = Add(t, w)"), counting(toy, []))
    assert sorted(type(value).__name__ for value in built.values if value is not None) == ["Array", "Halves"]


def test_preparation_reads_other_constants_and_attributes(toy: Registry, planned: Planned, run: Run) -> None:
    def scaled(b: mx.Array, c: mx.Array | None = None, *, alpha: float = 1.0) -> mx.Array:
        return b * alpha if c is None else b * alpha + c

    toy.op("Gemm", since=13, prepare={"b": scaled})(lambda a, b, c=None, *, alpha=1.0: a @ b)
    w, c, x = square(), square(1), np.ones((2, SIDE), np.float32)
    for inputs, weights, extra in (("xwc", {"w": w, "c": c}, {}), ("xwc", {"w": w}, {"c": c}), ("xw", {"w": w}, {})):
        built = planned(one_node("Gemm", inputs, weights, alpha=2.0), toy)
        expected = x @ (2 * w + (c if "c" in inputs else 0))
        np.testing.assert_allclose(run(built, {"x": x, **extra})[0], expected, rtol=1e-4, atol=1e-3)


def test_several_inputs_are_replaced_together(toy: Registry, planned: Planned, run: Run) -> None:
    given: list[Any] = []

    def shifted(weights: mx.Array, offset: mx.Array | None = None, *, alpha: float = 1.0) -> mx.Array:
        return weights * alpha if offset is None else (weights + offset) * alpha

    @toy.op("Gemm", since=13, prepare={("b", "c"): shifted})
    def gemm(a: mx.Array, b: mx.Array, c: None = None, *, alpha: float = 1.0) -> mx.Array:
        given.append(c)
        return a @ b

    w, c, x = square(), square(1), np.ones((2, SIDE), np.float32)
    for inputs, weights, extra in (("xwc", {"w": w, "c": c}, {}), ("xwc", {"w": w}, {"c": c}), ("xw", {"w": w}, {})):
        built = planned(one_node("Gemm", inputs, weights, alpha=2.0), toy)
        expected = x @ (2 * (w + (c if "c" in inputs else 0)))
        np.testing.assert_allclose(run(built, {"x": x, **extra})[0], expected, rtol=1e-4, atol=1e-3)
        assert len([value for value in built.values if value is not None]) == 1
    assert given == [None] * 3


def test_same_weight_in_two_calls_is_prepared_once(toy: Registry, planned: Planned) -> None:
    calls: list[int] = []
    planned(text_model("t = MatMul(x, w) y = MatMul(t, w)"), counting(toy, calls))
    assert calls == [1]


def test_failing_preparation_leaves_nothing_and_is_told(toy: Registry, planned: Planned) -> None:
    def failing(b: mx.Array) -> mx.Array:
        raise ValueError("no such layout")

    toy.op("MatMul", since=13, prepare={"b": failing})(lambda a, b: a @ b)
    gc.collect()
    before = mx.get_active_memory()
    with pytest.raises(ValueError, match="no such layout"):
        planned(one_node("MatMul", "xw", {"w": square()}), toy)
    gc.collect()
    assert mx.get_active_memory() == before


@pytest.mark.parametrize(
    ("prepare", "settings", "text"),
    [
        ({"c": lambda c: c}, {}, r"prepare='c': <lambda> takes \['c'\], the handler's inputs are \['a', 'b'\]"),
        ({"b": lambda b, z: b}, {}, r"takes \['b', 'z'\]"),
        ({"b": lambda *b: b}, {}, "prepare='b'"),
        ({"b": lambda b: b}, {"fold": True}, "what folds or is in `host` is numpy"),
        ({"b": lambda b: b}, {"host": ("b",)}, "what folds or is in `host` is numpy"),
        ({"b": lambda b, a: b, "a": lambda a: a}, {}, "itself prepared"),
        ({("b", "a"): lambda b, a: b, "a": lambda a: a}, {}, "itself prepared"),
        ({("b", "c"): lambda b, c: b}, {}, r"takes \['b', 'c'\]"),
        ({("b", "a"): lambda b: b}, {}, r"prepare=\('b', 'a'\)"),
        ({(): lambda b: b}, {}, r"prepare=\(\)"),
    ],
)
def test_what_does_not_fit_is_refused(prepare: Any, settings: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        Registry().op("MatMul", prepare=prepare, **settings)(lambda a, b: a)


# ---- shared between plans


def prepared_values(built: Plan) -> Halves:
    (found,) = (value for value in built.values if isinstance(value, Halves))
    return found


def test_prepared_content_is_shared_and_freed_with_the_last_plan(toy: Registry, planned: Planned) -> None:
    gc.collect()
    before = mx.get_active_memory()
    registry = counting(toy, [])
    plans = [planned(one_node("MatMul", "xw", {"w": square()}), registry) for _ in range(3)]
    first, *others = map(prepared_values, plans)
    assert all(other.first.address == first.first.address for other in others)
    assert 0 <= mx.get_active_memory() - before - square().nbytes <= ROUNDING
    different = prepared_values(planned(one_node("MatMul", "xw", {"w": square(1)}), registry))
    assert different.first.address != first.first.address
    refs = [weakref.ref(share.owner) for plan in plans for kept in plan.weights for share in kept.shared]  # type: ignore[union-attr]
    del plans, first, others, different
    gc.collect()
    assert mx.get_active_memory() == before
    assert len(refs) == 6
    assert not any(ref() for ref in refs)


@pytest.mark.parametrize("switch", [si.NO_SHARED_INITIALIZERS, si.NO_SHARED_QUANT_VIEWS])
def test_switches_give_each_plan_its_own(
    toy: Registry, planned: Planned, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    monkeypatch.setenv(switch, "1")
    registry = counting(toy, [])
    plans = [planned(one_node("MatMul", "xw", {"w": square()}), registry) for _ in range(2)]
    one, other = map(prepared_values, plans)
    assert one.first.address != other.first.address


def test_view_of_the_weight_is_a_view_and_the_weight_itself_stays_itself(toy: Registry, planned: Planned) -> None:
    toy.op("MatMul", since=13, prepare={"b": lambda b: mx.view(b, mx.uint32)})(lambda a, b: a @ mx.view(b, mx.float32))
    toy.op("Gemm", since=13, prepare={"b": lambda b: b})(lambda a, b: a @ b)
    gc.collect()
    before = mx.get_active_memory()
    plans = [planned(one_node(name, "xw", {"w": square()}), toy) for name in ("MatMul", "MatMul", "Gemm")]
    assert 0 <= mx.get_active_memory() - before - square().nbytes <= ROUNDING
    words, same, plain = (next(value for value in built.values if value is not None) for built in plans)
    owner = si.own(square(), TensorProto.FLOAT, [SIDE, SIDE])
    assert words.address == same.address == plain.address == owner.address
    view = si.get_view(si.InitData.of(owner), [SIDE, SIDE], mx.uint32)
    assert view is plans[0].weights[0].shared[0]  # type: ignore[union-attr]


def external(folder: Path, op_type: str = "MatMul") -> str:
    path = folder / "model.onnx"
    model = one_node(op_type, "xw", {"w": square()})
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return str(path)


def test_same_file_is_not_read_again_and_a_rewritten_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = constants.Initializer(
        TensorProto.FLOAT, (SIDE, SIDE), square().nbytes, external=("w.bin", 0, square().nbytes)
    )
    (tmp_path / "w.bin").write_bytes(square().tobytes())
    recipe = constants.Recipe(lambda b: b + 1, (item,), "plus one")
    (first,) = constants.prepared([recipe], str(tmp_path / "m.onnx"))
    with monkeypatch.context() as patch:
        patch.setattr(si.FileSource, "read_into", pytest.fail)
        (again,) = constants.prepared([recipe], str(tmp_path / "m.onnx"))
    assert again is first
    (tmp_path / "w.bin").write_bytes(square(1).tobytes())
    (fresh,) = constants.prepared([recipe], str(tmp_path / "m.onnx"))
    np.testing.assert_array_equal(np.array(fresh.result), square(1) + 1)


def test_batches_bound_what_is_in_memory_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "BATCH_BYTES", 40 * KIB)
    contents = [square(seed) for seed in range(5)]
    items = [constants.Initializer(TensorProto.FLOAT, w.shape, w.nbytes, array=w) for w in contents]
    loaded: list[int] = []
    carried_out = constants._carried_out

    def counted(recipes: Any, path: str) -> Any:
        loaded.append(len(recipes))
        return carried_out(recipes, path)

    monkeypatch.setattr(constants, "_carried_out", counted)
    made = constants.prepared([constants.Recipe(lambda b: b * 2, (item,), "twice") for item in items], "")
    assert loaded == [2, 2, 1]
    for one, w in zip(made, contents, strict=True):
        np.testing.assert_array_equal(np.array(one.result), w * 2)


# ---- sessions


def layers(weights: dict[str, np.ndarray[Any, Any]], text: str) -> bytes:
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def convolutions() -> tuple[bytes, dict[str, Any], int]:
    rng = np.random.default_rng(0)
    shapes = {"a": (32, 16, 3, 3), "b": (32, 1, 3, 3), "c": (32, 16, 2, 2), "d": (16, 24)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    model = layers(
        weights,
        """g (float[N,16,8,8] x) => (float[N,16,16,24] y) {
        p = Conv<pads = [1, 1, 1, 1]>(x, a)
        q = Conv<pads = [1, 1, 1, 1], group = 32>(p, b)
        r = ConvTranspose<strides = [2, 2]>(q, c)
        y = MatMul(r, d)
    }""",
    )
    feed = rng.standard_normal((2, 16, 8, 8)).astype(np.float32)
    return model, {"x": feed}, sum(w.nbytes for w in weights.values())


def packed_products() -> tuple[bytes, dict[str, Any], int]:
    rng = np.random.default_rng(1)
    b = rng.integers(0, 256, (256, 8, 16), np.uint8)
    scales = rng.uniform(0.01, 0.02, (256 * 8)).astype(np.float32)
    model = layers(
        {"b": b, "s": scales},
        """g (float[N,256] x) => (float[N,256] y) {
        y = com.microsoft.MatMulNBits<K = 256, N = 256, bits = 4, block_size = 32>(x, b, s)
    }""",
    )
    # the offsets, a value for each block of the weights, are computed from the scales
    return model, {"x": rng.standard_normal((2, 256)).astype(np.float32)}, b.nbytes + 2 * scales.nbytes


@pytest.fixture(params=[convolutions, packed_products])
def case(request: pytest.FixtureRequest) -> tuple[bytes, dict[str, Any], int]:
    found: tuple[bytes, dict[str, Any], int] = request.param()
    return found


@pytest.fixture
def sessions() -> Iterator[list[onnxruntime.InferenceSession]]:
    made: list[onnxruntime.InferenceSession] = []
    yield made
    made.clear()
    gc.collect()


@pytest.mark.parametrize("engine", ["auto", "eager"])
def test_weights_are_in_memory_once_after_runs_in_many_shapes(
    case: tuple[bytes, dict[str, Any], int], sessions: list[onnxruntime.InferenceSession], engine: str
) -> None:
    model, feeds, nbytes = case
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    sessions += [ort_ep.InferenceSession(model, strict=True, engine=engine) for _ in range(3)]
    cpu = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for rows in (2, 1):
        given = {"x": feeds["x"][:rows]}
        expected = cpu.run(None, given)[0]
        for session in sessions:
            np.testing.assert_allclose(session.run(None, given)[0], expected, rtol=1e-3, atol=1e-3)
    gc.collect()
    assert mx.get_active_memory() - before <= 1.1 * nbytes + ROUNDING


def test_packed_quantised_weights_are_uint32_views_of_the_owner(sessions: list[onnxruntime.InferenceSession]) -> None:
    model, *_ = packed_products()
    sessions.append(ort_ep.InferenceSession(model, strict=True))
    b = numpy_helper.to_array(onnx.load_from_string(model).graph.initializer[0])
    owner = si.own(b, TensorProto.UINT8, b.shape)
    views = si._arrays().live((id(owner), "uint32", (256, 32)))
    assert [view.array.address for view in views] == [owner.address]


def test_sessions_of_one_external_file_read_it_once(
    tmp_path: Path, sessions: list[onnxruntime.InferenceSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = external(tmp_path)
    sessions.append(ort_ep.InferenceSession(path, strict=True))
    monkeypatch.setattr(si.FileSource, "read_into", pytest.fail)
    sessions.append(ort_ep.InferenceSession(path, strict=True))
    x = np.ones((2, SIDE), np.float32)
    np.testing.assert_allclose(sessions[1].run(None, {"x": x})[0], x @ square(), rtol=1e-4, atol=1e-4)


def test_threads_that_make_sessions_at_once_share_and_agree() -> None:
    model, feeds, nbytes = convolutions()
    expected = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    barrier = threading.Barrier(8)

    def make(_: int) -> onnxruntime.InferenceSession:
        barrier.wait()
        session = ort_ep.InferenceSession(model, strict=True)
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-3, atol=1e-3)
        return session

    with ThreadPoolExecutor(8) as pool:
        sessions = list(pool.map(make, range(8)))
    gc.collect()
    mx.clear_cache()
    assert len(sessions) == 8
    # the two weights under 4096 bytes are each session's own
    assert mx.get_active_memory() - before <= nbytes + 8 * 4096 + ROUNDING


def test_evaluations_while_building_hold_the_lock_of_the_leased_stream(toy: Registry, planned: Planned) -> None:
    before = streams.spent.evaluating
    with streams.pool("cpu").lease():
        planned(one_node("MatMul", "xw", {"w": square(5)}), counting(toy, []))
    assert streams.spent.evaluating > before
    counted = streams.spent.evaluating
    streams.evaluate([mx.ones([2]) * 3])  # without a lease there is no such stream
    assert streams.spent.evaluating == counted
