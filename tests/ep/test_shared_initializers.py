"""The contract of shared initializers, clause by clause."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

import mlxc_py as mx
import ort_ep
from ort_ep import shared_initializers as si

ORT = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
FLOAT, UINT8, INT32, INT64, FLOAT16, BFLOAT16, UINT4, INT4 = 1, 2, 6, 7, 10, 16, 21, 22


@pytest.fixture(autouse=True)
def default_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(si.NO_SHARED_INITIALIZERS, raising=False)
    monkeypatch.delenv(si.NO_SHARED_QUANT_VIEWS, raising=False)


def weights(seed: int = 0, count: int = 2048) -> bytes:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32).tobytes()


# ---- own


def test_equal_bytes_dtype_and_shape_are_one_object() -> None:
    first = si.own(weights(), FLOAT, [2048])
    assert si.own(bytearray(weights()), FLOAT, (2048,)) is first
    dims: Any = np.array([2048])
    assert si.own(np.frombuffer(weights(), np.float32), FLOAT, dims) is first


def test_other_dtype_shape_or_content_is_another_object() -> None:
    first = si.own(weights(), FLOAT, [2048])
    assert si.own(weights(), INT32, [2048]) is not first
    assert si.own(weights(), FLOAT, [32, 64]) is not first
    assert si.own(weights(1), FLOAT, [2048]) is not first


def test_content_that_only_differs_between_samples_is_told_apart() -> None:
    data = bytearray(1 << 20)
    first = si.own(data, UINT8, [1 << 20])
    data[500_001] = 1
    second = si.own(data, UINT8, [1 << 20])
    assert first is not second
    assert bytes(second.view) == data
    assert si.own(data, UINT8, [1 << 20]) is second


def test_owner_is_a_copy_that_outlives_its_source() -> None:
    data = bytearray(weights())
    owned = si.own(data, FLOAT, [2048])
    data[:] = bytes(len(data))
    assert bytes(owned.view) == weights()
    assert owned.nbytes == 8192
    assert owned.dtype == FLOAT
    assert owned.shape == (2048,)


def test_last_owner_gone_frees_the_storage() -> None:
    gc.collect()
    before = mx.get_active_memory()
    owned = si.own(weights(count=1 << 18), FLOAT, [1 << 18])
    ref = weakref.ref(owned)
    assert mx.get_active_memory() - before >= 1 << 20
    del owned
    assert ref() is None
    assert mx.get_active_memory() == before
    again = si.own(weights(count=1 << 18), FLOAT, [1 << 18])
    assert bytes(again.view) == weights(count=1 << 18)


def test_under_4096_bytes_is_a_private_copy() -> None:
    small = bytes(4092)
    assert si.own(small, FLOAT, [1023]) is not si.own(small, FLOAT, [1023])
    exact = si.own(bytes(4096), FLOAT, [1024])
    assert si.own(bytes(4096), FLOAT, [1024]) is exact


@pytest.mark.parametrize(("value", "shared"), [("0", True), ("1", False), ("", False), ("no", False)])
def test_the_switch_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch, value: str, shared: bool) -> None:
    first = si.own(weights(), FLOAT, [2048])
    monkeypatch.setenv(si.NO_SHARED_INITIALIZERS, value)
    assert (si.own(weights(), FLOAT, [2048]) is first) is shared
    assert (si.get(si.InitData.of(first), [2048]) is not None) is shared


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (b"", FLOAT, [0, 3]),
        (b"\1\2\3\4", FLOAT, []),
        (bytes(5), INT4, [3, 3]),
        (np.arange(5, dtype=ml_dtypes.bfloat16).view(np.uint16).tobytes(), BFLOAT16, [5]),
    ],
)
def test_unusual_initializers(data: bytes, dtype: int, shape: list[int]) -> None:
    owned = si.own(data, dtype, shape)
    assert bytes(owned.view) == data
    assert owned.shape == tuple(shape)


@pytest.mark.parametrize(("dtype", "shape"), [(FLOAT, [2049]), (FLOAT, [-1]), (INT64, [2048]), (8, [2048])])
def test_bytes_that_do_not_fit_are_an_error(dtype: int, shape: list[int]) -> None:
    with pytest.raises(ValueError, match=r"shape|fixed element size"):
        si.own(weights(), dtype, shape)


def test_only_contiguous_bytes_are_taken() -> None:
    with pytest.raises(TypeError, match="contiguous bytes-like"):
        si.own(np.zeros((64, 64), np.float32)[:, ::2], FLOAT, [64, 32])
    with pytest.raises(TypeError, match="contiguous bytes-like"):
        si.own(12, FLOAT, [1])


# ---- read-only


def test_no_view_can_be_written_through() -> None:
    owned = si.own(weights(), FLOAT, [2048])
    view = owned.view
    with pytest.raises(TypeError):
        view[0] = 1
    array = np.frombuffer(view, np.uint8)
    exposures: tuple[Any, ...] = (array, view.obj)
    for exposed in exposures:
        with pytest.raises(ValueError, match=r"read-only|WRITEABLE"):
            exposed[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            exposed.setflags(write=True)
    assert bytes(owned.view) == weights()


def test_a_view_keeps_the_buffer() -> None:
    owned = si.own(weights(), FLOAT, [2048])
    ref = weakref.ref(owned)
    view = owned.view
    del owned
    gc.collect()
    assert ref() is not None
    assert bytes(view) == weights()
    del view
    assert ref() is None


def test_leaf_in_numpy_is_read_only() -> None:
    leaf = si.get(si.InitData.of(si.own(weights(), FLOAT, [2048])), [2048])
    assert leaf is not None
    assert not np.asarray(leaf.array).flags.writeable


# ---- leaves


def test_leaf_is_shared_per_shape_and_has_the_storage() -> None:
    owned = si.own(weights(), FLOAT, [2048])
    init = si.InitData.of(owned)
    leaf = si.get(init, [2048])
    assert leaf is not None
    assert si.get(init, (2048,)) is leaf
    assert si.get(init, [32, 64]) is not leaf
    assert leaf.owner is owned
    assert leaf.array.address == owned.address
    np.testing.assert_array_equal(np.array(leaf.array), np.frombuffer(weights(), np.float32))


def test_leaf_keeps_the_identity_of_its_storage() -> None:
    leaf = si.get(si.InitData.of(si.own(weights(), FLOAT, [2048])), [2048])
    assert leaf is not None
    assert si.own(weights(), FLOAT, [2048]) is leaf.owner
    ref = weakref.ref(leaf.owner)
    del leaf
    assert ref() is None


def test_leaf_of_nothing_owned_or_small_is_none() -> None:
    small = si.own(bytes(16), FLOAT, [4])
    assert si.get(si.InitData.of(small), [4]) is None
    assert si.get(si.InitData(1234, (2048,), FLOAT, 2048), [2048]) is None


def test_index_is_per_thread_and_the_owner_is_one() -> None:
    init = si.InitData.of(si.own(weights(), FLOAT, [2048]))
    mine = si.get(init, [2048])
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(si.get, init, [2048]).result()
        assert mine is not None
        assert theirs is not None
        assert theirs.owner is mine.owner
        assert theirs.array.address == mine.array.address


def test_evaluated_leaf_is_usable_from_any_thread() -> None:
    leaf = si.get(si.InitData.of(si.own(weights(), FLOAT, [2048])), [2048])
    assert leaf is not None
    with ThreadPoolExecutor(1) as pool:
        doubled = pool.submit(lambda: np.array(leaf.array + leaf.array)).result()
    np.testing.assert_array_equal(doubled, 2 * np.frombuffer(weights(), np.float32))


def test_failed_evaluation_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    init = si.InitData.of(si.own(weights(), FLOAT, [2048]))
    seen: list[Any] = []

    def failing(array: mx.Array) -> None:
        seen.append(weakref.ref(array))
        raise mx.MLXError("eval: no")

    with monkeypatch.context() as patch:
        patch.setattr(mx, "eval", failing)
        with pytest.raises(mx.MLXError, match="no"):
            si.get_view(init, [2048], mx.uint32)
    gc.collect()
    assert seen[0]() is None
    assert si.get_view(init, [2048], mx.uint32) is not None


# ---- typed views


def test_view_is_shared_for_equal_dtype_and_shape_only() -> None:
    init = si.InitData.of(si.own(bytes(range(256)) * 32, UINT8, [64, 128]))
    words = si.get_view(init, [64, 32], mx.uint32)
    assert words is not None
    assert si.get_view(init, (64, 32), mx.uint32) is words
    assert si.get_view(init, [32, 64], mx.uint32) is not words
    assert si.get_view(init, [64, 64], mx.uint16) is not words
    assert words.array.dtype == mx.uint32
    assert words.array.address == init.data
    np.testing.assert_array_equal(np.array(words.array).view(np.uint8).ravel(), np.arange(8192) % 256)


def test_view_outlives_its_record() -> None:
    init = si.InitData.of(si.own(weights(), UINT8, [8192]))
    words = si.get_view(init, [2048], mx.float32)
    del init
    gc.collect()
    assert words is not None
    np.testing.assert_array_equal(np.array(words.array), np.frombuffer(weights(), np.float32))


@pytest.mark.parametrize("shape", [[2047], [-2048], [2048, 2]])
def test_view_that_does_not_fit_is_an_error(shape: list[int]) -> None:
    init = si.InitData.of(si.own(weights(), UINT8, [8192]))
    with pytest.raises(ValueError, match=r"uint32.*does not fit.*8192 bytes"):
        si.get_view(init, shape, mx.uint32)


@pytest.mark.parametrize(("value", "given"), [("0", True), ("1", False), ("", False)])
def test_view_switch(monkeypatch: pytest.MonkeyPatch, value: str, given: bool) -> None:
    init = si.InitData.of(si.own(weights(), UINT8, [8192]))
    monkeypatch.setenv(si.NO_SHARED_QUANT_VIEWS, value)
    assert (si.get_view(init, [2048], mx.uint32) is not None) is given
    assert si.get(init, [8192]) is not None  # leaves have a switch of their own


# ---- derived arrays


def test_derived_content_is_shared() -> None:
    first = si.get_derived(weights(), [2048], FLOAT)
    assert first is not None
    assert si.get_derived(bytearray(weights()), [2048], FLOAT) is first
    assert si.get_derived(weights(1), [2048], FLOAT) is not first
    np.testing.assert_array_equal(np.array(first.array), np.frombuffer(weights(), np.float32))


@pytest.mark.parametrize("switch", [None, si.NO_SHARED_INITIALIZERS, si.NO_SHARED_QUANT_VIEWS])
@pytest.mark.parametrize("shape", [[2048], [-1], [1 << 40, 1 << 40]])
def test_derived_validates_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, switch: str | None, shape: list[int]
) -> None:
    if switch:
        monkeypatch.setenv(switch, "1")
    with pytest.raises(ValueError, match=rf"8 bytes.*float32.*{shape[0]}.*supply"):
        si.get_derived(bytes(8), shape, FLOAT)


@pytest.mark.parametrize("switch", [si.NO_SHARED_INITIALIZERS, si.NO_SHARED_QUANT_VIEWS])
def test_derived_is_off_with_either_switch(monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    assert si.get_derived(bytes(4092), [1023], FLOAT) is None
    monkeypatch.setenv(switch, "")
    assert si.get_derived(weights(), [2048], FLOAT) is None


def test_derived_array_gives_its_memory() -> None:
    made = mx.array(np.frombuffer(weights(), np.float32)) * 2
    made.eval()
    first = si.get_derived(made, [32, 64], FLOAT)
    assert first is not None
    assert first.array.address == made.address
    assert si.get_derived(np.frombuffer(weights(), np.float32) * 2, [32, 64], FLOAT) is first
    again = mx.array(np.frombuffer(weights(), np.float32)) * 2
    again.eval()
    assert si.get_derived(again, [32, 64], FLOAT) is first


def test_derived_array_must_fit() -> None:
    made = mx.zeros([2048])
    made.eval()
    with pytest.raises(ValueError, match=r"8192 bytes.*float32.*\[2049\].*supply"):
        si.get_derived(made, [2049], FLOAT)


# ---- files


@pytest.fixture
def weight_file(tmp_path: Path) -> Path:
    path = tmp_path / "wörter mit leer.bin"
    path.write_bytes(bytes(64) + weights() + weights(1))
    return path


def test_external_data_is_read_in_place(weight_file: Path) -> None:
    owned = si.own_file(weight_file, 64, FLOAT, [2048])
    assert bytes(owned.view) == weights()
    assert si.own(weights(), FLOAT, [2048]) is owned
    assert si.own_file(weight_file, 64 + 8192, FLOAT, [2048]) is not owned


def test_same_window_is_not_read_again(weight_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owned = si.own_file(weight_file, 64, FLOAT, [2048])
    monkeypatch.setattr(si.FileSource, "read_into", pytest.fail)
    assert si.own_file(weight_file, 64, FLOAT, [2048]) is owned


def test_rewritten_file_is_read_anew(weight_file: Path) -> None:
    owned = si.own_file(weight_file, 64, FLOAT, [2048])
    weight_file.write_bytes(bytes(64) + weights(2) + weights(1))
    fresh = si.own_file(weight_file, 64, FLOAT, [2048])
    assert fresh is not owned
    assert bytes(fresh.view) == weights(2)


def test_file_errors_name_the_file(weight_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"wörter.*outside the file"):
        si.own_file(weight_file, 64, FLOAT, [1 << 20])
    with pytest.raises(FileNotFoundError, match="absent"):
        si.own_file(tmp_path / "absent.bin", 0, FLOAT, [2048])


def test_file_that_shrinks_while_read_is_an_error(weight_file: Path) -> None:
    source = si.FileSource(weight_file, 64, 8192)
    weight_file.write_bytes(bytes(4096))
    with pytest.raises(OSError, match="early"):
        si.own_source(source, FLOAT, [2048])


def test_many_at_once_keep_their_order(weight_file: Path) -> None:
    contents = [weights(seed, 1 << 19) for seed in range(6)]
    owners = si.own_all((si.MemorySource(data), FLOAT, [1 << 19]) for data in contents)
    assert [bytes(owner.view) == data for owner, data in zip(owners, contents, strict=True)] == [True] * 6


# ---- threads, failures, growth


def in_threads(count: int, task: Callable[[int], Any]) -> list[Any]:
    barrier = threading.Barrier(count)

    def run(index: int) -> Any:
        barrier.wait()
        return task(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_racing_threads_get_one_owner() -> None:
    data = weights(count=1 << 16)
    owners = in_threads(8, lambda _: si.own(data, FLOAT, [1 << 16]))
    assert len({id(owner) for owner in owners}) == 1


def test_64_threads_race_on_200_buffers() -> None:
    contents = [weights(seed, 1024) for seed in range(200)]

    def claim_all(index: int) -> list[si.HostBuffer]:
        order = np.random.default_rng(index).permutation(200)
        found = {int(i): si.own(contents[i], FLOAT, [1024]) for i in order}
        leaves = [si.get(si.InitData.of(found[i]), [32, 32]) for i in range(0, 200, 10)]
        assert None not in leaves
        return [found[i] for i in range(200)]

    results = in_threads(64, claim_all)
    for number in range(200):
        assert len({id(owners[number]) for owners in results}) == 1
        assert bytes(results[0][number].view) == contents[number]


def test_entries_may_be_dropped_on_another_thread() -> None:
    leaves = [si.get(si.InitData.of(si.own(weights(seed), FLOAT, [2048])), [2048]) for seed in range(20)]
    refs = [weakref.ref(leaf.owner) for leaf in leaves if leaf is not None]
    assert len(refs) == 20
    thread = threading.Thread(target=leaves.clear)
    thread.start()
    thread.join()
    assert all(ref() is None for ref in refs)


class Broken(si.MemorySource):
    """Fails at the nth read, the first of which is the sample."""

    def __init__(self, data: bytes, fail_at: int) -> None:
        super().__init__(data)
        self.left = fail_at

    def read_into(self, target: np.ndarray[Any, Any], at: int) -> None:
        self.left -= 1
        if not self.left:
            raise OSError("disk gone")
        super().read_into(target, at)

    def equals(self, held: np.ndarray[Any, Any]) -> bool:
        self.read_into(np.empty(1, np.uint8), 0)
        return super().equals(held)

    def sample(self) -> bytes:
        self.read_into(np.empty(1, np.uint8), 0)
        return super().sample()


def test_failure_at_any_read_leaves_the_index_usable() -> None:
    kept = si.own(weights(), FLOAT, [2048])  # a rival, so that the source is compared too
    for fail_at in (1, 2):
        with pytest.raises(OSError, match="disk gone"):
            si.own_source(Broken(weights(), fail_at), FLOAT, [2048])
    assert si.own(weights(), FLOAT, [2048]) is kept
    for fail_at in (1, 2):
        with pytest.raises(OSError, match="disk gone"):
            si.own_source(Broken(weights(9), fail_at), FLOAT, [2048])
    assert bytes(si.own(weights(9), FLOAT, [2048]).view) == weights(9)


def test_failed_allocation_leaves_the_index_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any) -> None:
        raise mx.MLXMemoryError("uninitialized: [malloc] no")

    with monkeypatch.context() as patch:
        patch.setattr(mx, "uninitialized", no_memory)
        with pytest.raises(MemoryError):
            si.own(weights(3), FLOAT, [2048])
    assert bytes(si.own(weights(3), FLOAT, [2048]).view) == weights(3)


def test_indexes_do_not_grow_over_load_cycles() -> None:
    base = np.zeros(1024, np.float32)
    for cycle in range(10_000):
        base[0] = cycle
        owner = si.own(base, FLOAT, [1024])
        assert si.get(si.InitData.of(owner), [1024]) is not None
    assert len(si._buffers) < 200
    assert len(si._arrays()) < 200


# ---- sessions


def weight_model() -> bytes:
    """Two weights, one of them only used through a constant expression, whose result is prepared for a product."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((64, 64)).astype(np.float32) for name in ("w", "v")}
    graph = onnx.parser.parse_graph("""g (float[64,64] x) => (float[64,64] z) {
        y = Mul(x, w)
        t = Sin(v)
        z = MatMul(y, t)
    }""")
    graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in weights.items())
    opsets = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def sessions_memory(count: int, **options: Any) -> tuple[int, list[onnxruntime.InferenceSession]]:
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    sessions = []
    for _ in range(count):
        settings = onnxruntime.SessionOptions()
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # keeps Sin for us
        sessions.append(ort_ep.InferenceSession(weight_model(), settings, **options))
    return mx.get_active_memory() - before, sessions


def test_sessions_of_a_model_hold_its_weights_once() -> None:
    one, first = sessions_memory(1)
    del first
    ten, sessions = sessions_memory(10)
    assert 2 * 16384 <= one < 2.2 * 16384
    rounding = 16384 if mx.default_device().type == mx.gpu else 0  # a piece of CUDA's allocator
    assert ten < 1.1 * one + rounding
    feeds = {"x": np.ones((64, 64), np.float32)}
    cpu = onnxruntime.InferenceSession(weight_model(), providers=["CPUExecutionProvider"])
    for session in sessions:
        np.testing.assert_allclose(session.run(None, feeds)[0], cpu.run(None, feeds)[0], rtol=1e-4, atol=1e-3)


def test_the_options_give_each_session_its_own() -> None:
    ten, _ = sessions_memory(10, no_shared_initializers=True)
    assert ten >= 20 * 16384
    ten, _ = sessions_memory(10, no_shared_quant_views=True)
    rounding = int(mx.default_device().type == mx.gpu)  # CUDA's allocator rounds small constants up
    assert 11 * 16384 <= ten < 12 * 16384 + rounding


def live_buffers() -> list[si.HostBuffer]:
    with si._lock:
        return [buffer for key in si._buffers._entries for buffer in si._buffers.live(key)]


def test_defaults_of_graph_inputs_never_enter() -> None:
    model = onnx.load_from_string(weight_model())
    for name in ("w", "v"):
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, FLOAT, [64, 64]))
    session = ort_ep.InferenceSession(model.SerializeToString())
    assert live_buffers() == []
    x = np.ones((64, 64), np.float32)
    replaced = session.run(None, {"x": x, "w": 2 * x, "v": np.zeros_like(x)})[0]
    np.testing.assert_array_equal(replaced, np.zeros_like(x))


@pytest.mark.parametrize("op_type", ["Mul", "MatMul"])
def test_replaceable_values_of_outer_graphs_never_enter(without: Callable[[str], None], op_type: str) -> None:
    without("If")  # its bodies are offered by themselves, capturing what a run may replace
    graph = onnx.parser.parse_graph(f"""g (float[64,64] x, bool c) => (float[64,64] z) {{
        z = If (c) <then_branch = t () => (float[64,64] a) {{ p = {op_type}(x, w) a = Exp(p) }},
                    else_branch = e () => (float[64,64] b) {{ q = {op_type}(x, w) b = Tanh(q) }}>
    }}""")
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    graph.input.append(onnx.helper.make_tensor_value_info("w", FLOAT, w.shape))
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    session = ort_ep.InferenceSession(model)
    assert any(node.on_mlx for node in ort_ep.claim_report(session).nodes)
    assert live_buffers() == []
    feeds = {"x": np.full((64, 64), 0.01, np.float32), "c": np.array(True)}
    cpu = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for given in (feeds, feeds | {"w": w[::-1].copy()}):
        np.testing.assert_allclose(session.run(None, given)[0], cpu.run(None, given)[0], rtol=1e-4)


@pytest.mark.skipif(ORT < (1, 27), reason="before 1.27 ONNX Runtime does not hand over what bodies capture")
def test_constants_of_a_claimed_if_are_shared_with_its_bodies() -> None:
    graph = onnx.parser.parse_graph("""g (float[64,64] x, bool c) => (float[64,64] z) {
        y = Mul(x, w)
        z = If (c) <then_branch = t () => (float[64,64] a) { a = Add(y, w) },
                    else_branch = e () => (float[64,64] b) { b = Sub(y, w) }>
    }""")
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    gc.collect()
    before = mx.get_active_memory()
    session = ort_ep.InferenceSession(model, strict=True)
    x = np.ones((64, 64), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x, "c": np.array(False)})[0], np.zeros_like(x))
    assert mx.get_active_memory() - before < 1.1 * w.nbytes


def test_the_last_session_frees_the_weights() -> None:
    _, sessions = sessions_memory(3)
    held = mx.get_active_memory()
    sessions.clear()
    gc.collect()
    assert mx.get_active_memory() <= held - 2 * 16384
    assert live_buffers() == []


# ---- processes


def run(code: str, *args: str) -> Iterator[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stderr) == (0, "")
    return iter(done.stdout.splitlines())


def test_import_needs_neither_onnx_nor_onnxruntime() -> None:
    code = """
import sys
sys.modules["onnx"] = sys.modules["onnxruntime"] = None
import ort_ep.shared_initializers as si
print(si.own(bytes(4096), 1, [1024]).nbytes)
"""
    assert next(run(code)) == "4096"


def test_exit_with_live_entries() -> None:
    code = """
import ort_ep.shared_initializers as si
owner = si.own(bytes(8192), 1, [2048])
leaf = si.get(si.InitData.of(owner), [2048])
view = owner.view
print("done")
"""
    assert next(run(code)) == "done"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.skipif(mx.default_device().type == mx.gpu, reason="a forked child can't read CUDA's managed memory")
def test_fork_with_live_entries() -> None:
    code = """
import os, warnings
import ort_ep.shared_initializers as si
warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads
owner = si.own(bytes(8192), 1, [2048])
leaf = si.get(si.InitData.of(owner), [2048])
child = os.fork()
if not child:
    same = si.own(bytes(8192), 1, [2048]) is owner and bytes(owner.view) == bytes(8192)
    os._exit(0 if same else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert next(run(code)) == "0"
