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
from mlxc_py import cpu_primitives
from ort_ep import constants, streams
from ort_ep import shared_initializers as si
from ort_ep.plan import Plan
from ort_ep.registry import Registry

Planned = Callable[[Any, Registry], Plan]
Run = Callable[[Plan, Any], list[np.ndarray[Any, Any]]]
Tensors = dict[str, Any]  # numpy arrays and scalars
SIDE = 64
KIB = 1024
# Without our own primitives 8-bit weights are floats, those of longer convolutions two each, so that sums are exact.
OURS = cpu_primitives.integers(mx.zeros([1], mx.uint8))
FACTOR, KERNEL = (1, 1) if OURS else (4, 8)
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


def layers(weights: Tensors, text: str) -> bytes:
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


class Case(NamedTuple):
    """A model, its input, the bytes that its weights take in the form they are computed with, and how exact it is."""

    model: bytes
    feed: np.ndarray[Any, Any]
    nbytes: int
    tolerance: float = 1e-3


def convolutions() -> Case:
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
    return Case(model, feed, sum(w.nbytes for w in weights.values()))


def packed_products() -> Case:
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
    return Case(model, rng.standard_normal((9, 256)).astype(np.float32), b.nbytes + 2 * scales.nbytes)


def bytes_of(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integer_products() -> Case:
    scale, zero = np.float32(0.01), np.uint8(120)
    rest: Tensors = {"s": scale, "zero": np.int8(0), "az": zero, "c": np.zeros(256, np.int32), "bias": normal(256)}
    weights: Tensors = {name: bytes_of(256, 256, seed=seed) for seed, name in enumerate(("k", "l", "m", "n", "o"))}
    weights["attended"] = bytes_of(256, 768)
    model = layers(
        weights | rest | {"z": bytes_of(256), "wide": normal(768)},
        """g (float[N,256] x) => (float[N,256] y) {
        q = QuantizeLinear(x, s, az)
        p0 = MatMulInteger(q, k, az, z)
        y0 = Cast<to = 1>(p0)
        p1 = QLinearMatMul(q, s, az, l, s, zero, s, az)
        y1 = DequantizeLinear(p1, s, az)
        y2 = com.microsoft.MatMulIntegerToFloat(q, m, s, s, az, zero, bias)
        y3 = com.microsoft.DynamicQuantizeMatMul(x, n, s, zero, bias)
        y4 = com.microsoft.QGemm<transB = 1>(q, s, az, o, s, zero, c)
        axes = Constant<value = int64[1] {0}>()
        rows = Unsqueeze(q, axes)
        p5 = com.microsoft.QAttention<num_heads = 8>(rows, attended, wide, s, s, , az, zero)
        y5 = Squeeze(p5, axes)
        y = Sum(y0, y1, y2, y3, y4, y5)
    }""",
    )
    return Case(model, normal(2, 256), FACTOR * sum(w.nbytes for w in weights.values()))


def integer_convolutions() -> Case:
    weights = {"a": bytes_of(128, 64, 3, 3), "b": bytes_of(128, 32, 3, 3), "c": bytes_of(128, 64, 3)}
    rest: Tensors = {"s": np.float32(0.02), "t": np.full(128, 0.01, np.float32), "z": np.uint8(7), "w": np.int8(0)}
    model = layers(
        weights | rest,
        """g (uint8[N,64,8,8] x) => (float[N,128,8,8] y) {
        p0 = ConvInteger<pads = [1, 1, 1, 1]>(x, a, z, w)
        p1 = QLinearConv<pads = [1, 1, 1, 1], group = 2>(x, s, z, b, t, w, s, z)
        shape = Constant<value = int64[3] {0, 64, 64}>()
        line = Reshape(x, shape)
        p2 = ConvInteger<pads = [1, 1]>(line, c, z)
        image = Constant<value = int64[4] {0, 128, 8, 8}>()
        p3 = Reshape(p2, image)
        f0 = Cast<to = 1>(p0)
        f1 = Cast<to = 1>(p1)
        f3 = Cast<to = 1>(p3)
        y = Sum(f0, f1, f3)
    }""",
    )
    feed = np.random.default_rng(0).integers(0, 256, (2, 64, 8, 8)).astype(np.uint8)
    return Case(model, feed, KERNEL * sum(w.nbytes for w in weights.values()))


def depthwise_bytes() -> Case:
    """One channel in each group: as floats, whose sums are exact."""
    w = bytes_of(512, 1, 5, 5)
    model = layers(
        {"w": w, "z": np.uint8(7), "wz": np.int8(-5)},
        "g (uint8[N,512,8,8] x) => (int32[N,512,4,4] y) { y = ConvInteger<group = 512>(x, w, z, wz) }",
    )
    feed = np.random.default_rng(0).integers(0, 256, (2, 512, 8, 8)).astype(np.uint8)
    return Case(model, feed, 4 * w.nbytes)


def recurrent(dtype: type = np.float32) -> Case:
    kinds = {"LSTM": 4, "GRU": 3, "RNN": 1}
    weights = {}
    for kind, gates in kinds.items():
        weights[f"w{kind}"] = normal(2, gates * 128, 64, seed=gates) / 8
        weights[f"r{kind}"] = normal(2, gates * 128, 128, seed=gates) / 8
    half = dtype == np.float16
    model = layers(
        {name: w.astype(dtype) for name, w in weights.items()},
        f"""g ({"float16" if half else "float"}[T,1,64] x) => (float[T,2,1,128] y) {{
        y0 = LSTM<hidden_size = 128, direction = "bidirectional">(x, wLSTM, rLSTM)
        y1 = GRU<hidden_size = 128, direction = "bidirectional", linear_before_reset = 1>(x, wGRU, rGRU)
        y2 = RNN<hidden_size = 128, direction = "bidirectional">(x, wRNN, rRNN)
        total = Sum(y0, y1, y2)
        y = Cast<to = 1>(total)
    }}""",
    )
    # what is in 16 bits is computed in 32; one sequence, as every trace keeps what its first states alone decide
    return Case(model, normal(2, 1, 64).astype(dtype), sum(w.nbytes for w in weights.values()), 5e-3 if half else 1e-3)


def recurrent_in_half_precision() -> Case:
    return recurrent(np.float16)


def quantized_recurrent() -> Case:
    weights = {"w": bytes_of(2, 64, 1024), "r": bytes_of(2, 256, 1024)}
    linear: Tensors = {"s": np.full(2, 0.002, np.float32), "z": np.array([3, -5], np.int8)}
    model = layers(
        weights | linear,
        """g (float[T,3,64] x) => (float[T,2,3,256] y) {
        y = com.microsoft.DynamicQuantizeLSTM<hidden_size = 256, direction = "bidirectional">(
            x, w, r, , , , , , s, z, s, z)
    }""",
    )
    sums = 3 * 4 * 2 * 2 * 1024  # for each column its sum, zero point and scale
    return Case(model, normal(2, 3, 64), FACTOR * sum(w.nbytes for w in weights.values()) + sums, 2e-2)


def experts() -> Case:
    weights = {"a": normal(4, 128, 64) / 8, "b": normal(4, 64, 128) / 8}
    model = layers(
        {name: w.astype(np.float16) for name, w in weights.items()} | {"route": normal(64, 4)},
        """g (float16[N,64] x) => (float16[N,64] y) {
        wide = Cast<to = 1>(x)
        logits = MatMul(wide, route)
        router = Cast<to = 10>(logits)
        y = com.microsoft.MoE<k = 2, activation_type = "silu">(x, router, a, , b)
    }""",
    )
    return Case(model, normal(2, 64).astype(np.float16), sum(w.nbytes for w in weights.values()), 1e-2)


def packed_experts() -> Case:
    rng = np.random.default_rng(0)
    levels = {"a": rng.integers(0, 256, (4, 256, 32), np.uint8), "b": rng.integers(0, 256, (4, 64, 64), np.uint8)}
    scales = {f"{name}s": np.full((*w.shape[:2], w.shape[2] // 16), 0.01, np.float32) for name, w in levels.items()}
    model = layers(
        levels | scales | {"route": normal(64, 4)},
        """g (float[N,64] x) => (float[N,64] y) {
        router = MatMul(x, route)
        y = com.microsoft.QMoE<k = 2, activation_type = "swiglu", swiglu_fusion = 1, expert_weight_bits = 4,
            block_size = 32, normalize_routing_weights = 1, weights_prepacked = 0>(x, router, a, as, , b, bs)
    }""",
    )
    held = sum(w.nbytes for w in levels.values()) + 2 * sum(s.nbytes for s in scales.values())
    return Case(model, normal(2, 64), held, 2e-2)


def lookup_products() -> Case:
    """Weights of 4 bits that name floats in a table: MLX has no product with them, so they are these floats."""
    b = np.random.default_rng(0).integers(0, 256, 128 * 128 // 2, np.uint8)
    model = layers(
        {"b": b, "a": np.full(128 * 128 // 64, 0.1, np.float32)},
        """g (float[N,128] x) => (float[N,128] y) {
        y = com.microsoft.MatMulBnb4<K = 128, N = 128, block_size = 64, quant_type = 1>(x, b, a)
    }""",
    )
    return Case(model, normal(2, 128), 8 * b.nbytes)


CASES = [convolutions, packed_products, integer_products, integer_convolutions, depthwise_bytes, recurrent]
CASES += [recurrent_in_half_precision, quantized_recurrent, experts, packed_experts, lookup_products]

# From which ONNX Runtime on the CPU provider can be compared with.
SINCE = {
    experts: ((1, 32), "ONNX Runtime's CPU provider up to 1.31 makes zeros of MoE in float16"),
    packed_experts: ((1, 29), "QMoE of ONNX Runtime 1.24 has no weights_prepacked"),
}


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def case(request: pytest.FixtureRequest) -> Case:
    since, reason = SINCE.get(request.param, ((0, 0), ""))
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < since:
        pytest.skip(reason)
    found: Case = request.param()
    return found


@pytest.fixture
def sessions() -> Iterator[list[onnxruntime.InferenceSession]]:
    made: list[onnxruntime.InferenceSession] = []
    yield made
    made.clear()
    gc.collect()


@pytest.mark.parametrize("engine", ["auto", "eager"])
def test_weights_are_in_memory_once_after_runs_in_many_shapes(
    case: Case, sessions: list[onnxruntime.InferenceSession], engine: str
) -> None:
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    sessions += [ort_ep.InferenceSession(case.model, strict=True, engine=engine) for _ in range(3)]
    cpu = onnxruntime.InferenceSession(case.model, providers=["CPUExecutionProvider"])
    for rows in (len(case.feed), 1):
        given = {"x": case.feed[:rows]}
        expected = cpu.run(None, given)[0]
        for session in sessions:
            np.testing.assert_allclose(session.run(None, given)[0], expected, case.tolerance, case.tolerance)
    gc.collect()
    assert mx.get_active_memory() - before <= 1.1 * case.nbytes + ROUNDING


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
    model, feed, nbytes, _ = convolutions()
    feeds = {"x": feed}
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


def test_evaluations_while_building_hold_the_lock_of_the_leased_stream(
    toy: Registry, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams.tape, "on_calling_thread", lambda: False)
    before = streams.spent.evaluating
    with streams.pool("cpu").lease():
        planned(one_node("MatMul", "xw", {"w": square(5)}), counting(toy, []))
    assert streams.spent.evaluating > before
    counted = streams.spent.evaluating
    streams.evaluate([mx.ones([2]) * 3])  # without a lease there is no such stream
    assert streams.spent.evaluating == counted
