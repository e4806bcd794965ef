"""ort_ep's own way to make sessions: options, strict, reports, what stays alive."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_ep
from ort_ep import factory
from ort_ep.options import OptionError

X = np.array([[-2.0, 1.0]], np.float32)
WORDS = np.array(["a", "B"])


def serialized(text: str) -> bytes:
    graph = onnx.parser.parse_graph(text)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
    return model.SerializeToString()


@pytest.fixture(scope="module")
def plain() -> bytes:
    """Relu(x + 1)."""
    return serialized("g (float[N, M] x) => (float[N, M] y) <float one = {1}> { t = Add(x, one) y = Relu(t) }")


@pytest.fixture(scope="module")
def mixed() -> bytes:
    """The same, and beside it a node on strings, which MLX has none of."""
    graph = onnx.parser.parse_graph(
        "g (float[N, M] x, string[L] s) => (float[N, M] y, string[L] u) "
        "<float one = {1}> { t = Add(x, one) y = Relu(t) u = StringConcat(s, s) }"
    )
    graph.node[2].name = "twice"
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    return model.SerializeToString()


def by_name() -> bool:
    return tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 25)


def test_public_surface() -> None:
    assert set(ort_ep.__all__) <= set(dir(ort_ep))
    assert all(getattr(ort_ep, name) is not None for name in ort_ep.__all__)
    assert (ort_ep.get_ep_name(), ort_ep.get_ep_names()) == (ort_ep.EP_NAME, [ort_ep.EP_NAME])
    assert Path(ort_ep.get_library_path()).is_absolute()
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ort_ep.nonsense


def test_session(plain: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(plain)
    for source in (plain, tmp_path / "m.onnx", str(tmp_path / "m.onnx")):
        session = ort_ep.InferenceSession(source, strict=True, device="auto", verbose=True)
        assert isinstance(session, onnxruntime.InferenceSession)
        assert session.get_providers() == [ort_ep.EP_NAME, "CPUExecutionProvider"]
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], [[0, 2]])


def test_runs_are_counted_and_timed(plain: bytes) -> None:
    session = ort_ep.InferenceSession(plain)
    runs = ort_ep.claim_report(session).runs
    assert (runs.count, runs.total_ns, runs.evaluating_ns) == (0, 0, 0)
    for count in (1, 2):
        session.run(None, {"x": X})
        assert runs.count == count
        assert 0 < runs.evaluating_ns < runs.total_ns


def test_own_settings(plain: bytes) -> None:
    settings = onnxruntime.SessionOptions()
    settings.logid = "mine"
    first = ort_ep.InferenceSession(plain, settings)
    second = ort_ep.InferenceSession(plain, settings)
    for session in (first, second):
        assert session.get_session_options().logid == "mine"
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], [[0, 2]])


def test_session_options(plain: bytes) -> None:
    settings = ort_ep.session_options(strict=True, partition="all")
    session = onnxruntime.InferenceSession(plain, settings)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], [[0, 2]])
    assert ort_ep.claim_report(session).cpu_nodes == 0


@pytest.mark.filterwarnings("error")
def test_session_options_in_our_session(plain: bytes, mixed: bytes) -> None:
    settings = ort_ep.session_options(strict=True)
    for _ in range(2):
        session = ort_ep.InferenceSession(plain, settings)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], [[0, 2]])
        assert ort_ep.claim_report(session).cpu_nodes == 0
    with pytest.raises(Exception, match="strict: 1 nodes would run on the CPU provider"):
        ort_ep.InferenceSession(mixed, settings)


# ---------------------------------------------------------------- what stays on the CPU
def test_report(mixed: bytes) -> None:
    session = ort_ep.InferenceSession(mixed)
    y, words = session.run(None, {"x": X, "s": WORDS})
    np.testing.assert_array_equal(y, [[0, 2]])
    assert words.tolist() == ["aa", "BB"]
    nodes = {node.op_type: node for node in ort_ep.claim_report(session).nodes}
    assert nodes["Add"].on_mlx and nodes["Relu"].on_mlx
    assert not nodes["StringConcat"].on_mlx and nodes["StringConcat"].reason


def test_report_of_plain_sessions(plain: bytes) -> None:
    ort_ep.register()
    settings = onnxruntime.SessionOptions()
    settings.add_provider_for_devices(ort_ep.devices()[:1], {})
    assert ort_ep.claim_report(onnxruntime.InferenceSession(plain, settings)).mlx_nodes == 2
    if by_name():
        session = onnxruntime.InferenceSession(plain, providers=[ort_ep.EP_NAME])
        assert ort_ep.claim_report(session).mlx_nodes == 2
    without = onnxruntime.InferenceSession(plain, providers=["CPUExecutionProvider"])
    with pytest.raises(ValueError, match="this session has no MLXExecutionProvider"):
        ort_ep.claim_report(without)
    with pytest.raises(TypeError, match=r"takes an onnxruntime\.InferenceSession, not NoneType"):
        ort_ep.claim_report(None)  # type: ignore[arg-type]


def test_strict(mixed: bytes) -> None:
    with pytest.raises(ort_ep.StrictError, match=r"1 node stays on the CPU: StringConcat 'twice': .+"):
        ort_ep.InferenceSession(mixed, strict=True)
    with pytest.raises(Exception, match="StringConcat"):
        onnxruntime.InferenceSession(mixed, ort_ep.session_options(strict=True))


# ---------------------------------------------------------------- interrupts
def test_an_interrupted_run(plain: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    session = ort_ep.InferenceSession(plain)
    session.run(None, {"x": X})

    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ort_ep.runtime.Compute.__call__", interrupted)
        try:  # not pytest.raises: leaving it calls Python, where a pending interrupt would be heard in any case
            session.run(None, {"x": X})
        except KeyboardInterrupt:
            heard = True
    assert heard
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], [[0, 2]])


# ---------------------------------------------------------------- wrong options
def test_unknown_option(plain: bytes) -> None:
    with pytest.raises(OptionError, match=r"unknown provider option 'devise'; did you mean 'device'\?"):
        ort_ep.InferenceSession(plain, devise="cpu")
    with pytest.raises(OptionError, match="provider option device is 'cpo'"):
        ort_ep.session_options(device="cpo")
    for wrong in ("maybe", 2):
        with pytest.raises(OptionError, match=f"provider option strict is '{wrong}'"):
            ort_ep.InferenceSession(plain, strict=wrong)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=f"provider option strict is '{wrong}'"):
            ort_ep.session_options(strict=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("keyword", ["providers", "provider_options"])
def test_the_providers_are_not_for_the_caller_to_set(plain: bytes, keyword: str) -> None:
    with pytest.raises(TypeError, match=r"sets the providers itself.*use onnxruntime\.InferenceSession"):
        ort_ep.InferenceSession(plain, **{keyword: []})


def test_unknown_option_past_the_helpers(plain: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    ort_ep.register()
    settings = onnxruntime.SessionOptions()
    settings.add_provider_for_devices(ort_ep.devices()[:1], {"devise": "cpu"})
    with pytest.raises(Exception, match=r"unknown provider option 'devise'; did you mean 'device'\?"):
        onnxruntime.InferenceSession(plain, settings)
    if by_name():
        with pytest.raises(Exception, match="unknown provider option 'devise'"):
            onnxruntime.InferenceSession(plain, providers=[(ort_ep.EP_NAME, {"devise": "cpu"})])
    assert "Falling back" not in capfd.readouterr().out


# ---------------------------------------------------------------- lives
def test_nothing_outlives_a_session(plain: bytes) -> None:
    gc.collect()
    before = len(factory.live_providers())
    session = ort_ep.InferenceSession(plain)
    assert len(factory.live_providers()) == before + 1
    ends: list[weakref.ref[Any]] = [weakref.ref(session), weakref.ref(factory.live_providers()[-1].provider)]
    del session
    assert len(factory.live_providers()) == before
    gc.collect()
    assert [end() for end in ends] == [None, None]


def test_failed_sessions_leave_nothing(mixed: bytes) -> None:
    gc.collect()
    before = len(factory.live_providers())
    for _ in range(3):
        with pytest.raises(ort_ep.StrictError):
            ort_ep.InferenceSession(mixed, strict=True)
        for wrong in ({"devise": "cpu"}, {"device": "cpo"}, {"strict": "1"}):
            settings = onnxruntime.SessionOptions()
            settings.add_provider_for_devices(ort_ep.devices()[:1], wrong)
            with pytest.raises(Exception, match="MLXExecutionProvider"):
                onnxruntime.InferenceSession(mixed, settings)
    gc.collect()
    assert len(factory.live_providers()) == before


# ---------------------------------------------------------------- devices, library
CPU_DEVICE = {"type": "cpu", "vendor_id": 0x8086, "vendor": "Intel", "device_id": 0, "metadata": {}}
APPLE_GPU = {"type": "gpu", "vendor_id": 0x106B, "vendor": "Apple", "device_id": 0, "metadata": {}}
NVIDIA_GPU = {"type": "gpu", "vendor_id": 0x10DE, "vendor": "NVIDIA", "device_id": 7, "metadata": {}}
AMD_GPU = {"type": "gpu", "vendor_id": 0x1002, "vendor": "AMD", "device_id": 7, "metadata": {}}
NPU = {"type": "npu", "vendor_id": 0x106B, "vendor": "Apple", "device_id": 0, "metadata": {}}


@pytest.mark.parametrize(
    ("back_end", "devices", "chosen"),
    [
        ("cpu", [CPU_DEVICE], [0]),
        ("cpu", [AMD_GPU, NVIDIA_GPU, CPU_DEVICE], [2]),
        ("metal", [CPU_DEVICE, APPLE_GPU, NPU], [1]),
        ("cuda", [CPU_DEVICE, AMD_GPU, NVIDIA_GPU, NVIDIA_GPU], [2]),
        ("cuda", [CPU_DEVICE], [0]),  # a container hides the GPU from ONNX Runtime
        ("metal", [NPU], []),
    ],
)
def test_device_selection(
    monkeypatch: pytest.MonkeyPatch, back_end: str, devices: list[dict[str, object]], chosen: list[int]
) -> None:
    monkeypatch.setattr(factory, "back_end", lambda: back_end)
    selected = factory.select_devices(devices)
    assert [index for index, _, _ in selected] == chosen
    assert all(metadata["mlx_back_end"] == back_end for _, metadata, _ in selected)


def test_stale_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "ort_ep" / "lib" / "libort_ep_mlx.so"
    sources = tmp_path / "native" / "plugin"
    sources.mkdir(parents=True)
    library.parent.mkdir(parents=True)
    (sources / "a.c").write_text("int a;")
    library.with_suffix(".json").write_text('{"source_hash": "of yesterday"}')
    monkeypatch.setattr(factory, "_LIBRARIES", library.parent)
    with pytest.raises(factory.PluginError, match=r"was built from other sources than .*: run native"):
        factory.attach(str(library))
    ort_ep.register()
    assert factory.attach(ort_ep.get_library_path()).version == ort_ep.__version__
