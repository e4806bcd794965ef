"""Runs whose shapes grow: derived from a few recordings, and right where that can't be."""

from __future__ import annotations

import importlib.util
import random
import sys
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import mlxc_py as mx
import ort_ep
from mlxc_py import tape
from ort_ep import streams
from ort_ep.even import Watched, fixed
from ort_ep.lines import Growing, Keys, point_of

pytestmark = pytest.mark.skipif(not tape.supported(), reason="this libmlxc records no tapes")
Host = np.ndarray[Any, Any]


def load(name: str) -> ModuleType:
    file = Path(__file__).resolve().parents[2] / "benchmarks" / f"{name}.py"
    specification = importlib.util.spec_from_file_location(name, file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


decoders = load("decoders")
TINY = decoders.Sizes(layers=2, heads=4, kv_heads=2, depth=16, wide=48, words=32)


class Pair:
    """One model on MLX and on the CPU provider."""

    def __init__(self, model: bytes, **options: Any) -> None:
        self.mlx = ort_ep.InferenceSession(model, on_compute_error="raise", **options)
        self.cpu = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        assert not ort_ep.claim_report(self.mlx).declined

    def run(self, feeds: dict[str, Host]) -> list[Host]:
        found, expected = self.mlx.run(None, feeds), self.cpu.run(None, feeds)
        for a, b in zip(found, expected, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
        return list(found)

    @property
    def derived(self) -> int:
        return ort_ep.claim_report(self.mlx).compile.derivations


def feeds_of(session: Any, batch: int, step: int, past: int) -> dict[str, Host]:
    draw = np.random.default_rng(past)
    feeds = {"ids": draw.integers(0, TINY.words, (batch, step)), "mask": np.ones((batch, past + step), np.int64)}
    for given in session.get_inputs():
        if given.name.startswith(("key", "value")):
            feeds[given.name] = draw.normal(size=(batch, given.shape[1], past, TINY.depth)).astype(np.float32)
    return {given.name: feeds[given.name] for given in session.get_inputs()}


@pytest.fixture(params=decoders.MODELS)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(decoders.decoder(request.param, TINY))


# ------------------------------------------------------------ decoders
def test_a_decoder_whose_caches_grow(pair: Pair) -> None:
    feeds = feeds_of(pair.mlx, 1, 5, 0)  # the prompt: nothing is there yet
    for _ in range(90):
        scores, *caches = pair.run(feeds)
        grown = dict(zip(list(feeds)[-len(caches) :], caches, strict=True))
        feeds = feeds_of(pair.mlx, 1, 1, caches[0].shape[2]) | grown
        feeds["ids"] = scores[:, -1:].argmax(-1)
    assert pair.derived > 70
    assert ort_ep.claim_report(pair.mlx).compile.traces < 12


def test_lengths_in_any_order(pair: Pair) -> None:
    for past in np.random.default_rng(0).permutation(np.arange(1, 120)):
        pair.run(feeds_of(pair.mlx, 1, 1, int(past)))
    assert pair.derived > 60


def test_batches_and_steps_of_other_sizes_in_between(pair: Pair) -> None:
    for past in range(30, 60):
        pair.run(feeds_of(pair.mlx, 1, 1, past))
        pair.run(feeds_of(pair.mlx, 2, 1, past))
        if past % 5 == 0:
            pair.run(feeds_of(pair.mlx, 1, 4, past))
    assert pair.derived > 40


def test_several_threads_of_one_session(pair: Pair) -> None:
    failures = []

    def write(first: int) -> None:
        try:
            for past in range(first, first + 40):
                pair.run(feeds_of(pair.mlx, 1, 1, past))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(first,)) for first in (10, 20, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("window", [20, 40])
def test_a_window_that_the_cache_outgrows(window: int) -> None:
    model = onnx.load_model_from_string(decoders.decoder("grouped", TINY))
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.attribute.append(onnx.helper.make_attribute("local_window_size", window))
    pair = Pair(model.SerializeToString())
    for past in range(10, 75):
        pair.run(feeds_of(pair.mlx, 1, 1, past))
    assert pair.derived > 20


def test_memory_stays(pair: Pair) -> None:
    feeds = [feeds_of(pair.mlx, 1, 1, past) for past in range(2, 1002)]
    for feed in feeds[:400]:
        pair.mlx.run(None, feed)
    tracemalloc.start()
    before = mx.get_active_memory()
    for feed in feeds[400:]:
        pair.mlx.run(None, feed)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pair.derived > 900
    assert mx.get_active_memory() - before < 1 << 20
    assert kept < 1 << 20


# ------------------------------------------------------------ what a model asks of lengths
ASKS = {
    "one length": "a = Equal (n, m) b = Cast <to = 1> (a)",
    "an odd length": "a = Mod (n, two) b = Cast <to = 1> (a)",
    "between": "c = Greater (n, low) d = Less (n, high) a = And (c, d) b = Cast <to = 1> (a)",
    "a table": "a = Gather (table, n) b = Cast <to = 1> (a)",
    "a part of a table": "e = Add (n, one) a = Slice (table, n, e) b = Cast <to = 1> (a)",
    "a product": "c = Sub (n, low) d = Sub (n, high) e = Mul (c, d) a = Less (e, zero) b = Cast <to = 1> (a)",
    "zero": "c = Sub (n, m) a = Cast <to = 9> (c) b = Cast <to = 1> (a)",
    "rounded": "c = Div (n, seven) d = Mul (c, seven) b = Cast <to = 1> (d)",
    "from a length on": "a = Less (n, m) b = Cast <to = 1> (a)",
    "at most": "a = Min (n, m) b = Cast <to = 1> (a)",
    "the length": "b = Cast <to = 1> (n)",
    "a shape": "a = Equal (n, m) c = Where (a, two, one) d = ConstantOfShape <value = float[1] {1.5}> (c)"
    " b = ReduceSum (d)",
}
TABLE = ", ".join("7" if i == 41 else "5" for i in range(300))


VECTORS = ("a part of a table", "a shape")


@pytest.mark.parametrize(("rank", "question"), [(r, q) for r in (0, 1) for q in ASKS if r or q not in VECTORS])
def test_what_a_model_asks_of_a_length(rank: int, question: str) -> None:
    numbers = {"m": 41, "two": 2, "one": 1, "zero": 0, "low": 40, "high": 43, "seven": 7}
    constants = ", ".join(f"int64{'[1]' * rank} {name} = {{{number}}}" for name, number in numbers.items())
    length = "n = Identity (s)" if rank else "n = Squeeze (s)"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 3] x) => (float[M, 3] y) <{constants}, int64[300] table = {{{TABLE}}}>
        {{ s = Shape <start = 0, end = 1> (x) {length} {ASKS[question]} y = Add (x, b) }}"""
    )
    pair = Pair(model.SerializeToString())
    for length in range(2, 140):
        pair.run({"x": np.full((length, 3), length, np.float32)})
    if question in ("the length", "from a length on", "at most"):
        assert pair.derived > 40


def test_a_constant_that_is_a_ramp_from_its_second_length_on() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 3] x) => (float[N, 3] y) <int64[1] sixteen = {16}, int64[1] one = {1}>
        { n = Shape <start = 0, end = 1> (x) v = Concat <axis = 0> (n, n, sixteen) t, i = TopK (v, one)
          f = Cast <to = 1> (t) y = Mul (x, f) }"""
    )
    pair = Pair(model.SerializeToString())
    for length in (7, 9, 11, 13, 15, 17):
        pair.run({"x": np.ones((length, 3), np.float32)})


@pytest.mark.parametrize(("op", "factor"), [("Mul", 7 / 3), ("Div", 0.3), ("Div", 7 / 13)])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_product_that_is_rounded(op: str, factor: float, shuffled: bool) -> None:
    """Of float lengths, whole for some of them only."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[N, M] x) => (float[K] y)
        <float[1] factor = {{{np.float32(factor)}}}>
        {{ n = Shape <start = 0, end = 1> (x) f = Cast <to = 1> (n) p = {op} (f, factor) k = Cast <to = 7> (p)
          z = ConstantOfShape (k) s = ReduceSum <keepdims = 0> (x) y = Add (z, s) }}"""
    )
    pair = Pair(model.SerializeToString())
    lengths = list(range(2, 140))
    if shuffled:
        random.Random(1).shuffle(lengths)
    for length in lengths:
        pair.run({"x": np.zeros(((7 if factor < 1 else 3) * length, length), np.float32)})


@pytest.mark.parametrize("window", ["e_5, e", "e, r", "e_5, r"])
@pytest.mark.parametrize("lengths", [range(110, 1, -1), range(2, 110), [100, 101, 102, 103, 30, 40, 64, 5, 4, 3]])
def test_a_window_of_what_is_on_the_device(window: str, lengths: Sequence[int]) -> None:
    """Bounds below 0 count from the end."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[64, 3] x, int64[1] e) => (float[M, 3] y)
        <int64[1] five = {{5}}, int64[1] fifty = {{50}}, int64[1] zero = {{0}}>
        {{ e_5 = Sub (e, five) r = Sub (fifty, e) c = Slice (x, {window}, zero) y = Neg (c) }}"""
    )
    pair = Pair(model.SerializeToString())
    x = np.arange(192, dtype=np.float32).reshape(64, 3)
    for length in lengths:
        pair.run({"x": x, "e": np.array([length])})


def test_a_number_that_leaves_its_type() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 3] x, uint8[1] d, float[1] o) => (float[M, 3] y, float[K] z)
        { y = Neg (x) c = Cast <to = 7> (d) z = Expand (o, c) }"""
    )
    pair = Pair(model.SerializeToString())
    for length in (*range(100, 160), 300):
        pair.run(
            {
                "x": np.ones((length, 3), np.float32),
                "d": np.array([length % 256], np.uint8),
                "o": np.ones(1, np.float32),
            }
        )
    assert pair.derived > 40


def test_a_line_serves_and_is_checked_on_every_stream() -> None:
    pair, pool = Pair(decoders.decoder("plain", TINY)), streams.pool("cpu")
    for past in range(2, 300):
        others = [pool.take() for _ in range(past % streams.MAX_CPU_STREAMS)]  # other runs at the same time
        try:
            pair.mlx.run(None, feeds_of(pair.mlx, 1, 1, past))
        finally:
            for other in others:
                pool.give(other)
    assert ort_ep.claim_report(pair.mlx).compile.traces < 12


def test_with_mlxs_compile_shapes_that_return_are_compiled() -> None:
    pair = Pair(decoders.decoder("plain", TINY), engine="compile")
    report = ort_ep.claim_report(pair.mlx).compile
    for past in range(2, 40):
        pair.run(feeds_of(pair.mlx, 1, 1, past))
    derived, traces = pair.derived, report.traces
    assert derived > 15
    pair.run(feeds_of(pair.mlx, 1, 1, 39))
    for _ in range(3):
        pair.run(feeds_of(pair.mlx, 1, 1, 39))
    assert (pair.derived, report.traces) == (derived, traces + 1)


def test_a_users_operator_is_never_derived() -> None:
    @ort_ep.op("Doubled", domain="local.lines")
    def doubled(x: mx.Array) -> mx.Array:
        return x * 3 if x.shape[0] == 41 else x * 2

    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "local.lines": 1]>
        g (float[N] x) => (float[N] y) { y = local.lines.Doubled (x) }
        <domain: "local.lines", opset_import: ["": 17]> Doubled (a) => (b) { b = Add (a, a) }"""
    )
    session = ort_ep.InferenceSession(model.SerializeToString())
    for length in range(10, 60):
        x = np.ones(length, np.float32)
        assert session.run(None, {"x": x})[0][0] == (3 if length == 41 else 2)
    assert ort_ep.claim_report(session).compile.derivations == 0


def test_a_loop_whose_state_grows() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (int64 trips, float[1, 4] x) => (float[R, 4] y)
        <bool go = {1}>
        { y = Loop (trips, go, x) <body = b (int64 i, bool c, float[K, 4] s) => (bool d, float[L, 4] t)
          { d = Identity (c) e = Softmax <axis = 0> (s)
            u = ReduceMax <axes = [0]> (e) t = Concat <axis = 0> (s, u) }> }"""
    )
    pair = Pair(model.SerializeToString())
    pair.run({"trips": np.array(80), "x": np.ones((1, 4), np.float32)})
    assert pair.derived > 40


# ------------------------------------------------------------ parts
def key(*shapes: tuple[int, ...], values: Sequence[int] = ()) -> Any:
    parts = [(mx.float32, shape) for shape in shapes]
    return (0, *parts, ("l", (len(values),))), (np.array(values, np.int64).tobytes(),)


def test_keys_along_a_line() -> None:
    direction = (0, 1, 0, 2, 0, 0, 1)
    keys = Keys(key((1, 5, 8), (10, 3), values=[6]), direction)
    assert keys.at(4) == key((1, 9, 8), (18, 3), values=[10])
    assert keys.steps_to(key((1, 9, 8), (18, 3), values=[10])) == 4
    assert keys.steps_to(key((1, 2, 8), (4, 3), values=[3])) == -3
    assert keys.steps_to(key((1, 9, 8), (17, 3), values=[10])) is None
    assert keys.steps_to(key((1, 9, 8), (18, 3), values=[11])) is None
    assert keys.steps_to(key((1, 9), (18, 3), values=[10])) is None
    assert keys.steps_to(key((1, 9, 8), values=[10])) is None
    assert point_of(keys.at(0)) == (point_of(keys.at(7))[0], (1, 5, 8, 10, 3, 1, 6))


def test_a_line_of_numbers_alone() -> None:
    keys = Keys(key((4,), values=[6, 1]), (0, 0, 3, 0))
    assert keys.steps_to(key((4,), values=[12, 1])) == 2
    assert keys.steps_to(key((4,), values=[13, 1])) is None
    assert keys.steps_to(key((4,), values=[12])) is None


def test_growing_numbers() -> None:
    growing = Growing.between((1, 5, 9), (1, 6, 7))
    assert growing.at(4) == (1, 9, 1)


@pytest.mark.parametrize(
    ("operator", "arguments", "others", "same"),
    [
        ("Equal", ([9], [41]), ([12], [41]), True),
        ("Equal", ([9], [41]), ([41], [41]), False),
        ("Equal", ([9], [41]), ([50], [41]), False),
        ("Add", ([9], [41]), ([50], [41]), True),
        ("Mod", ([9], [2]), ([11], [2]), False),
        ("Gather", ([9, 4], [1]), ([8, 4], [1]), True),
        ("Gather", ([9, 4], [1]), ([9, 4], [0]), False),
        ("Cast", ([-3],), ([3],), False),
        ("Equal", (9, 41), (12, 41), True),
        ("Equal", (9, 41), (50, 41), False),
        ("Cast", (-3,), (3,), False),
    ],
)
def test_what_may_differ_on_the_host(operator: str, arguments: Any, others: Any, same: bool) -> None:
    notes = [Watched(), Watched()]
    for watched, given in zip(notes, (arguments, others), strict=True):
        watched.note(fixed("", operator), [np.array(value) for value in given], [np.array([7])])
    assert (notes[0].same == notes[1].same) is same
