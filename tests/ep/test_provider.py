"""The provider as the plugin library drives it, with documents made from models instead of ORT graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from ort_ep import proto
from ort_ep.options import OptionError
from ort_ep.provider import Provider, StrictError
from ort_ep.registry import Registry
from ort_ep.runtime import EP_FAIL, FAIL, ComputeError

HEAD = '<ir_version: 8, opset_import: ["": 17, "my": 1]>'
SPLIT = f"{HEAD} g (float[N] x) => (float[N] y) {{ a = Relu(x) b = Abs(a) c = Exp(b) y = Add(c, a) }}"
BROKEN = f"{HEAD} g (float[N] x) => (float[N] y) {{ y = my.Broken(x) }}"
Document = Callable[..., Any]


@pytest.fixture
def broken(toy: Registry) -> Registry:
    """The toy registry with an operator that claims and then fails."""

    def explode(x: Any) -> Any:
        raise ValueError("nothing works")

    toy.op("Broken", domain="my")(explode)
    return toy


def run_all(compute: Any, x: np.ndarray[Any, Any]) -> list[tuple[int, ...]]:
    return [shape for shape, *_ in compute([(x.ctypes.data, 1, x.shape)])]


def test_claim_compile_run_close(toy: Registry, document: Document) -> None:
    graph = proto.from_model(onnx.parser.parse_model(SPLIT))
    provider = Provider({}, registry=toy)
    whole = document(graph)
    groups = provider.get_capability(whole.text)
    assert groups == [[0], [2, 3]]
    assert provider.get_capability(whole.text) == groups
    fused = [document(graph, group) for group in groups]
    first, second = provider.compile([part.text for part in fused], ["fused_0", "fused_1"])
    x = np.array([-1, 2], np.float32)
    assert run_all(first, x) == [(2,)]
    assert [shape for shape, *_ in second([(x.ctypes.data, 1, x.shape)] * 2)] == [(2,)]
    report = provider.report
    assert (report.mlx_nodes, report.cpu_nodes, report.share, report.host_steps) == (3, 1, 0.75, 0)
    (abs_node,) = report.declined
    assert abs_node.op_type == "Abs"
    assert abs_node.reason in str(report)
    assert [cluster.nodes for cluster in report.clusters] == [1, 2]
    provider.close()
    with pytest.raises(ComputeError, match="closed"):
        run_all(first, x)


def test_bad_options_fail_in_compile_where_ort_cannot_swallow_them(toy: Registry, document: Document) -> None:
    provider = Provider({"partition": "some"}, registry=toy)
    whole = document(onnx.parser.parse_model(f"{HEAD} g (float[N] x) => (float[N] y) {{ y = my.Unknown(x) }}"))
    assert provider.get_capability(whole.text) == [[0]]
    with pytest.raises(OptionError, match="provider option partition is 'some'"):
        provider.compile([whole.text], ["fused_0"])


@pytest.mark.parametrize("where", ["provider option device", "environment variable ONNXRUNTIME_EP_MLX_DEVICE"])
def test_gpu_where_there_is_none_is_an_error(
    toy: Registry, document: Document, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr("mlxc_py.is_available", lambda device: False)
    monkeypatch.delenv("ONNXRUNTIME_EP_MLX_DEVICE", raising=False)
    if where.startswith("environment"):
        monkeypatch.setenv("ONNXRUNTIME_EP_MLX_DEVICE", "gpu")
    provider = Provider({} if where.startswith("environment") else {"device": "gpu"}, registry=toy)
    whole = document(onnx.parser.parse_model(SPLIT))
    provider.get_capability(whole.text)
    with pytest.raises(OptionError, match=f"{where} is 'gpu', but this MLX has no GPU back end"):
        provider.compile([whole.text], ["fused_0"])


@pytest.mark.parametrize(("happens", "says"), [(True, "tf32=off comes too late"), (False, "")])
def test_tf32_is_settled_before_the_first_product_or_said_to_be_too_late(
    toy: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, happens: bool, says: str
) -> None:
    asked = []
    monkeypatch.setattr("ort_ep.provider._device", lambda option, source: "gpu")
    monkeypatch.setattr("mlxc_py.tf32.choose", lambda on: asked.append(on) or happens)
    Provider({"tf32": "off"}, registry=toy)
    assert asked == [False]
    assert (says in caplog.text) and bool(says) == bool(caplog.text)
    Provider({}, registry=toy)
    assert asked == [False]


def test_strict_fails_loudly_and_names_the_nodes(toy: Registry, document: Document) -> None:
    provider = Provider({"strict": "1"}, registry=toy)
    whole = document(onnx.parser.parse_model(SPLIT))
    assert provider.get_capability(whole.text) == [[0]]
    with pytest.raises(StrictError, match="strict: 1 nodes would run on the CPU provider: Abs: no handler"):
        provider.compile([whole.text], ["fused_0"])
    claimed = document(onnx.parser.parse_model(f"{HEAD} g (float[N] x) => (float[N] y) {{ y = Relu(x) }}"))
    assert Provider({"strict": "1"}, registry=toy).get_capability(claimed.text) == [[0]]


def test_strict_waits_for_functions_that_ort_will_inline(toy: Registry, document: Document) -> None:
    text = f"{HEAD} g (float[N] x) => (float[N] y) {{ z = my.Unknown(x) y = Relu(z) }}"
    source = onnx.parser.parse_model(text)
    source.graph.value_info.append(onnx.helper.make_tensor_value_info("z", 1, ["N"]))
    assert Provider({"strict": "1"}, registry=toy).get_capability(document(source).text) == [[1]]


def test_model_memory_cannot_be_read_after_compiling(toy: Registry, document: Document) -> None:
    kept: list[Any] = []

    @toy.op("Peek", domain="my")
    def peek(x: Any, w: Any, *, node: Any) -> Any:
        kept.append(node)
        return node.constant(1) if len(kept) > 1 else x

    source = onnx.parser.parse_model(
        f"{HEAD} g (float[2] x) => (float[2] y) {{ w = Constant <value = float[2] {{1, 2}}> () y = my.Peek(x, w) }}"
    )
    (compute,) = Provider({"engine": "eager"}, registry=toy).compile([document(source).text], ["fused_0"])
    x = np.zeros(2, np.float32)
    assert run_all(compute, x) == [(2,)]
    with pytest.raises(ComputeError, match="can be read only while its graph is claimed or compiled"):
        run_all(compute, x)


def test_nodes_that_are_fused_already_are_neither_claimed_nor_reported(toy: Registry, document: Document) -> None:
    text = f"{HEAD} g (float[N] x) => (float[N] y) {{ z = my.MLXExecutionProvider_123_0(x) y = Relu(z) }}"
    source = onnx.parser.parse_model(text)
    source.graph.value_info.append(onnx.helper.make_tensor_value_info("z", 1, ["N"]))
    provider = Provider({}, registry=toy)
    assert provider.get_capability(document(source).text) == [[1]]
    assert provider.report.declined == []


def test_cost_gives_back_what_does_not_pay_with_its_reason(toy: Registry, document: Document) -> None:
    text = HEAD + " g (float[{n}] x) => (float[{n}] y) {{ y = Relu(x) }}"
    tiny, huge = (document(onnx.parser.parse_model(text.format(n=n))) for n in (4, 10_000_000))
    provider = Provider({"partition": "cost"}, registry=toy)
    assert provider.get_capability(tiny.text) == []
    assert provider.report.declined[0].reason.startswith("cost: ")
    assert provider.get_capability(huge.text) == [[0]]
    assert Provider({}, registry=toy).get_capability(tiny.text) == [[0]]


@pytest.mark.parametrize(("option", "code"), [("cpu", EP_FAIL), ("raise", FAIL)])
def test_failing_runs_answer_what_the_option_says_and_are_logged_once(
    broken: Registry, document: Document, caplog: pytest.LogCaptureFixture, option: str, code: int
) -> None:
    provider = Provider({"on_compute_error": option}, registry=broken)
    whole = document(onnx.parser.parse_model(BROKEN))
    assert provider.get_capability(whole.text) == [[0]]
    (compute,) = provider.compile([whole.text], ["fused_0"])
    for _ in range(2):
        with pytest.raises(ComputeError, match=r"fused_0: my::Broken failed on \(float32\[2\]\): ValueError") as caught:
            run_all(compute, np.zeros(2, np.float32))
        assert caught.value.ort_status_code == code
        assert isinstance(caught.value.__cause__, Exception)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert len(provider.report.failures) == 1


def test_interrupts_are_never_a_reason_to_fall_back(toy: Registry, document: Document) -> None:
    def interrupt(x: Any) -> Any:
        raise KeyboardInterrupt

    toy.op("Wait", domain="my")(interrupt)
    whole = document(onnx.parser.parse_model(f"{HEAD} g (float[N] x) => (float[N] y) {{ y = my.Wait(x) }}"))
    (compute,) = Provider({}, registry=toy).compile([whole.text], ["fused_0"])
    with pytest.raises(KeyboardInterrupt):
        run_all(compute, np.zeros(2, np.float32))


def test_subgraphs_that_cannot_be_compiled_run_on_the_cpu_provider(broken: Registry, document: Document) -> None:
    text = f"""{HEAD} g (float[2] x) => (float[2] y) {{
        w = Constant <value = float[2] {{1, 2}}> () z = my.Broken(w) y = Add(x, z) }}"""
    source = onnx.parser.parse_model(text)
    source.graph.value_info.append(onnx.helper.make_tensor_value_info("z", 1, [2]))
    whole = document(source)
    provider = Provider({}, registry=broken)
    (compute,) = provider.compile([whole.text], ["fused_0"])
    assert "can't be compiled" in provider.report.failures[0]
    with pytest.raises(ComputeError, match="could not be compiled: my::Broken failed") as caught:
        run_all(compute, np.zeros(2, np.float32))
    assert caught.value.ort_status_code == EP_FAIL
    with pytest.raises(RuntimeError, match="my::Broken failed"):
        Provider({"on_compute_error": "raise"}, registry=broken).compile([whole.text], ["fused_0"])


def test_compiling_what_was_not_claimed_is_an_error(toy: Registry, document: Document) -> None:
    provider = Provider({"on_compute_error": "raise"}, registry=toy)
    with pytest.raises(RuntimeError, match="Abs was claimed and can't be translated: no handler"):
        provider.compile([document(onnx.parser.parse_model(SPLIT)).text], ["fused_0"])


def test_declined_nodes_are_logged(toy: Registry, document: Document, caplog: pytest.LogCaptureFixture) -> None:
    Provider({"verbose": "1"}, registry=toy).get_capability(document(onnx.parser.parse_model(SPLIT)).text)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith("Abs stays on CPU: no handler")
