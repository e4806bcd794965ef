"""The plugin library between ONNX Runtime and a provider that misbehaves: every failure is a status with its text."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_ep
import ort_ep.provider

EP_FAIL = 11
X = np.array([[-2.0, 1.0]], np.float32)


class Stub:
    """A provider for graphs of Add and Relu on float32, computed with numpy; a test replaces single methods."""

    def __init__(self, options: dict[str, str], logger: int) -> None:
        self.options = options
        self.logger = logger
        self.report = object()
        self.documents: list[Any] = []
        self.closed = 0
        made.append(self)

    def get_capability(self, document: bytes) -> Any:
        self.documents.append(json.loads(document))
        return [list(range(len(self.documents[-1]["nodes"])))] if self.documents[-1]["nodes"] else []

    def compile(self, documents: Sequence[bytes], names: Sequence[str]) -> Any:
        assert len(documents) == len(names)
        self.compiled = json.loads(documents[0])
        return [self.compute for _ in documents]

    def compute(self, inputs: Any) -> Any:
        self.inputs = inputs
        address, _, shape = inputs[0]
        x = np.frombuffer(ctypes.string_at(address, 4 * int(np.prod(shape))), np.float32).reshape(shape)
        y = np.maximum(x + 1, 0)
        return [(y.shape, y.ctypes.data, y.nbytes, y)]

    def session_ready(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


made: list[Stub] = []


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Stub]]:
    """The class that makes providers during the test."""
    made.clear()
    fresh = type("Stub", (Stub,), {})
    monkeypatch.setattr(ort_ep.provider, "Provider", fresh)
    ort_ep.register()
    yield fresh
    made.clear()


def model(body: str = "t = Add(x, one) y = Relu(t)") -> bytes:
    text = f"g (float[N, M] x) => (float[N, M] y) <float one = {{1}}> {{ {body} }}"
    graph = onnx.parser.parse_graph(text)
    made_model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
    return made_model.SerializeToString()


def open_session(**options: str) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.add_provider_for_devices(ort_ep.devices()[:1], options)
    return onnxruntime.InferenceSession(model(), settings)


def raising(error: BaseException) -> Callable[..., Any]:
    def method(*_: Any) -> Any:
        raise error

    return method


def failure(session: Any) -> str:
    with pytest.raises(Exception) as caught:
        session.run(None, {"x": X})
    return str(caught.value)


def test_runs(stub: type[Stub]) -> None:
    session = open_session()
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], [[0, 2]])
    ((address, elem_type, shape),) = made[0].inputs
    assert address and elem_type == onnx.TensorProto.FLOAT and shape == (1, 2)
    assert session.run(None, {"x": np.zeros((0, 3), np.float32)})[0].shape == (0, 3)
    # constants are part of the compiled graph, not inputs of it
    assert [made[0].compiled["values"][i][0] for i in made[0].compiled["inputs"]] == ["x"]


def test_options_arrive_without_prefix(stub: type[Stub]) -> None:
    open_session(Alpha="1", beta="x y")
    assert made[0].options == {"Alpha": "1", "beta": "x y"}


def test_raw_config_entries_are_options(stub: type[Stub]) -> None:
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("ep.mlxexecutionprovider.gamma", "3")
    settings.add_session_config_entry("ep.other.delta", "4")
    settings.add_provider_for_devices(ort_ep.devices()[:1], {})
    onnxruntime.InferenceSession(model(), settings)
    assert made[0].options == {"gamma": "3"}


def test_close_once(stub: type[Stub]) -> None:
    session = open_session()
    assert made[0].closed == 0
    del session
    assert made[0].closed == 1


def test_large_outputs(stub: type[Stub]) -> None:
    x = np.arange(1 << 20, dtype=np.float32).reshape(1024, -1)  # copied with the GIL released
    np.testing.assert_array_equal(open_session().run(None, {"x": x})[0], x + 1)


def test_a_result_may_copy_its_bytes_itself(stub: type[Stub]) -> None:
    def compute(self: Stub, inputs: Any) -> Any:
        ((shape, address, nbytes, owner),) = Stub.compute(self, inputs)
        return [(shape, lambda to: ctypes.memmove(to, address, nbytes), nbytes, owner)]

    stub.compute = compute  # type: ignore[method-assign,assignment]
    np.testing.assert_array_equal(open_session().run(None, {"x": X})[0], [[0, 2]])
    assert open_session().run(None, {"x": X[:0]})[0].shape == (0, 2)


# ---------------------------------------------------------------- errors
def test_creation_fails(stub: type[Stub]) -> None:
    stub.__init__ = raising(ValueError("no such luck"))  # type: ignore[method-assign]
    with pytest.raises(Exception, match="creating the provider: ValueError: no such luck"):
        open_session()


def test_capability_fails(stub: type[Stub]) -> None:
    stub.get_capability = raising(ValueError("lost"))  # type: ignore[method-assign]
    session = open_session()  # ORT logs it and leaves everything to the CPU
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], [[0, 2]])


@pytest.mark.parametrize("answer", [5, [5], [[7]], [[-1]], [["a"]], [[0.5]]])
def test_capability_answers_nonsense(stub: type[Stub], answer: Any) -> None:
    stub.get_capability = lambda self, document: answer  # type: ignore[method-assign]
    np.testing.assert_array_equal(open_session().run(None, {"x": X})[0], [[0, 2]])


@pytest.mark.parametrize("error", [ValueError("bad é"), SystemExit("gone"), KeyError("k")], ids=repr)
def test_compile_fails(stub: type[Stub], error: BaseException) -> None:
    stub.compile = raising(error)  # type: ignore[method-assign]
    with pytest.raises(Exception, match=f"Compile: {type(error).__name__}: ") as caught:
        open_session()
    assert str(error) in str(caught.value)


@pytest.mark.parametrize("answer", [None, [], [1, 2]])
def test_compile_answers_nonsense(stub: type[Stub], answer: Any) -> None:
    stub.compile = lambda self, documents, names: answer  # type: ignore[method-assign]
    with pytest.raises(Exception, match="compile"):
        open_session()


@pytest.mark.parametrize("error", [ValueError("bad ü\nline 2"), SystemExit("gone"), MemoryError()], ids=repr)
def test_compute_fails(stub: type[Stub], error: BaseException) -> None:
    stub.compute = raising(error)  # type: ignore[method-assign]
    text = failure(open_session())
    assert f"Compute: {type(error).__name__}: {error}" in text


class Worded(RuntimeError):
    ort_status_code = 2


def test_worded_error_keeps_text_and_code(stub: type[Stub]) -> None:
    stub.compute = raising(Worded("the tensor is too green"))  # type: ignore[method-assign]
    session = open_session()
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument) as caught:
        session.run(None, {"x": X})
    assert "MLXExecutionProvider: the tensor is too green" in str(caught.value)


@pytest.mark.filterwarnings("ignore:Specified .providers.")
def test_ep_fail_falls_back_to_cpu(stub: type[Stub], capfd: pytest.CaptureFixture[str]) -> None:
    error = Worded("broken")
    error.ort_status_code = EP_FAIL
    stub.compute = raising(error)  # type: ignore[method-assign]
    session = open_session()
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], [[0, 2]])
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert "broken" in capfd.readouterr().out


def test_interrupt_reaches_the_main_thread(stub: type[Stub]) -> None:
    error = KeyboardInterrupt()
    error.ort_status_code = EP_FAIL  # type: ignore[attr-defined]
    stub.compute = raising(error)  # type: ignore[method-assign]
    session = open_session()
    with pytest.raises(KeyboardInterrupt):
        failure(session)
    assert session.get_providers()[0] == "MLXExecutionProvider"


def test_a_finaliser_does_not_swallow_the_interrupt(stub: type[Stub]) -> None:
    class Finalised:
        def __del__(self) -> None:
            seen.append(len(seen))  # any Python code is where a pending interrupt is raised

    def interrupted(*arguments: object) -> None:
        held = Finalised()
        raise KeyboardInterrupt(str(type(held)))

    seen: list[int] = []
    stub.compute = interrupted  # type: ignore[method-assign,assignment]
    session = open_session()
    with pytest.raises(KeyboardInterrupt):
        failure(session)
    assert seen == [0]


@pytest.mark.parametrize(
    ("results", "told"),
    [
        (None, "reading the results of compute: TypeError"),
        ([], "gave 0 outputs instead of 1"),
        ([1], "reading the result of compute: TypeError"),
        ([((1, 2), 0)], "reading the result of compute: IndexError"),
        ([((1, 2), "address", 8, None)], "reading the result of compute: TypeError"),
        (
            [((1, 2), raising(ValueError("device lost")), 8, None)],
            "copying a result of compute: ValueError: device lost",
        ),
        ([((1, 2), 0, 4, None)], "has 4 bytes where its ONNX type needs 8"),
        ([((1, 1 << 80), 0, 4, None)], "reading the result of compute: OverflowError"),
        ([((1,) * 65, 0, 4, None)], "reading the result of compute"),
        ([((1, -2), 0, 8, None)], ""),
    ],
)
def test_compute_answers_nonsense(stub: type[Stub], results: Any, told: str) -> None:
    stub.compute = lambda self, inputs: results  # type: ignore[method-assign]
    assert told in failure(open_session())


def test_none_leaves_an_output_out(stub: type[Stub]) -> None:
    stub.compute = lambda self, inputs: [None]  # type: ignore[method-assign]
    assert open_session().run(None, {"x": X}) == [None]


def test_close_fails(stub: type[Stub], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    stub.close = raising(ValueError("late"))  # type: ignore[method-assign]
    session = open_session()
    del session
    assert [str(one.exc_value) for one in told] == ["late"]


# ---------------------------------------------------------------- log
def plugin_log(logger: int, severity: int, message: str) -> int:
    log = ctypes.CDLL(ort_ep.get_library_path()).mlx_plugin_log
    text = ctypes.c_char_p
    log.argtypes = [ctypes.c_void_p, ctypes.c_int, text, text, ctypes.c_int, text]
    return int(log(logger, severity, message.encode(), b"here.py", 12, b"spot"))


def test_log_obeys_the_session(stub: type[Stub], capfd: pytest.CaptureFixture[str]) -> None:
    settings = onnxruntime.SessionOptions()
    settings.add_provider_for_devices(ort_ep.devices()[:1], {})
    settings.log_severity_level = 2
    session = onnxruntime.InferenceSession(model(), settings)
    assert plugin_log(made[0].logger, 2, "100% à point")
    assert plugin_log(made[0].logger, 1, "not this one")
    told = capfd.readouterr().err
    assert "here.py:12 spot] 100% à point" in told and "not this one" not in told
    logger = made[0].logger
    del session
    assert not plugin_log(logger, 2, "too late")
    assert not plugin_log(0, 2, "nobody")
    assert capfd.readouterr().err == ""
