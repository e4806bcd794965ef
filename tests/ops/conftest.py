"""One-node models through the translation layer, without ONNX Runtime's plugin, and the oracles to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from hypothesis import currently_in_test_context, reject
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mlxc_py as mx
from ort_ep import dtypes, plan, planner, proto, streams
from ort_ep.bodies import Bodies
from ort_ep.capability import Analyzer
from ort_ep.engine import EagerEngine

Array = np.ndarray[Any, Any]
DEVICE = "gpu" if mx.default_device().type == mx.gpu else "cpu"
ONLY_CPU = "which MLX has on the CPU device only"
ORT_VERSION = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
NEWEST_FORMS = (1, 32)  # operators of com.microsoft grow with every release: from here on it knows all that is tested
UNKNOWN_TO_ORT = (
    "is not a registered function/op",
    "Could not find an implementation",
    "Failed to find kernel",
    "This is an invalid model",
)
RELATIVE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5, "float64": 1e-11, "complex64": 2e-5}


def one_node(
    op: str,
    inputs: Sequence[Array | None],
    opset: int,
    domain: str,
    constants: Sequence[int],
    outputs: int | Sequence[Array],
    **attributes: Any,
) -> ModelProto:
    """A model of one node; the inputs listed in `constants` are initializers, the others graph inputs.

    `outputs` is their number, or examples of them, where ONNX infers no type.
    """
    examples = [None] * outputs if isinstance(outputs, int) else outputs
    results = [
        helper.make_empty_tensor_value_info(f"y{index}")
        if example is None
        else helper.make_tensor_value_info(f"y{index}", dtypes.BY_NUMPY[example.dtype].code, example.shape)
        for index, example in enumerate(examples)
    ]
    names = ["" if value is None else f"x{index}" for index, value in enumerate(inputs)]
    node = helper.make_node(op, names, [value.name for value in results], domain=domain, **attributes)
    given = [(index, value) for index, value in enumerate(inputs) if value is not None]
    graph = helper.make_graph(
        [node],
        op,
        [
            helper.make_tensor_value_info(f"x{index}", dtypes.BY_NUMPY[value.dtype].code, value.shape)
            for index, value in given
            if index not in constants
        ],
        results,
        [numpy_helper.from_array(value, f"x{index}") for index, value in given if index in constants],
    )
    # TreeEnsemble came with version 5 of ai.onnx.ml, which took the older ensembles away
    version = 1 if domain != "ai.onnx.ml" else 5 if op == "TreeEnsemble" else 4
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, version)] if domain else [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def feeds_of(model: ModelProto, inputs: Sequence[Array | None]) -> dict[str, Array]:
    wanted = {value.name for value in model.graph.input}
    named = {f"x{index}": value for index, value in enumerate(inputs) if value is not None}
    return {name: value for name, value in named.items() if name in wanted}


def declined(model: ModelProto) -> list[str]:
    """Why the nodes of a model that are not claimed are left to the CPU provider."""
    return [
        f"{verdict.node.op_type}: {verdict.reason}"
        for verdict in Analyzer(proto.from_model(model)).verdicts()
        if not verdict.claimed
    ]


def run_plan(model: ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs as the handlers leave them: not cast to the declared type, which would hide a wrong one."""
    graph = proto.from_model(model)
    verdicts = Analyzer(graph, device=DEVICE).verdicts()
    refused = [f"{verdict.node.op_type}: {verdict.reason}" for verdict in verdicts if not verdict.claimed]
    if DEVICE == "gpu" and refused and all(ONLY_CPU in reason for reason in refused):
        not_on_gpu(refused[0])
    assert not refused, refused
    with streams.pool(DEVICE).lease():
        built = planner.build(graph, [call for verdict in verdicts for call in verdict.calls])
    values = [feeds[port.name] for port in built.inputs]
    frame = built.frame(
        [mx.array(value, mx.dtype_of(value.dtype)) if dtypes.BY_NUMPY[value.dtype].mlx else value for value in values]
    )
    for position in built.host_inputs:
        frame.twins[built.inputs[position].slot] = values[position]
    with streams.pool(DEVICE).lease() as stream:
        for segment in built.segments:
            stream.evaluate(plan.arrays(frame.values[slot] for slot in segment.sync))
            frame.sync(segment.sync)
            frame.execute(segment, Bodies(EagerEngine).runner(stream))
    results = [(built.codes.get(port.slot), np.array(frame.values[port.slot])) for port in built.outputs]
    return [value if row is None or value.dtype == row.numpy else dtypes.of_codes(row, value) for row, value in results]


def not_on_gpu(reason: str) -> NoReturn:
    """Leave out what the provider declines on a GPU: one example where Hypothesis draws them, else the whole test."""
    if currently_in_test_context():
        reject()
    pytest.skip(reason)


def session_of(model: ModelProto) -> onnxruntime.InferenceSession:
    """The model on the CPU provider, not optimised; a form that an older ONNX Runtime does not know skips the test."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if ORT_VERSION >= NEWEST_FORMS or not any(sign in str(error) for sign in UNKNOWN_TO_ORT):
            raise
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} does not know this form of {model.graph.name}")


def run_cpu(model: ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    return [np.asarray(value) for value in session_of(model).run(None, dict(feeds))]


def run_reference(model: ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    return [np.asarray(value) for value in ReferenceEvaluator(model).run(None, dict(feeds))]


def assert_same(actual: Array, expected: Array, rtol: float | None = None, atol: float | None = None) -> None:
    """Same dtype and shape, and the same values: exactly, or for floats within the tolerance of the type."""
    expected = np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    relative = RELATIVE.get(expected.dtype.name)
    if relative is None:
        if expected.dtype.name in dtypes.NARROW:  # numpy does not know that these have NaNs
            actual, expected = actual.astype(np.float32), expected.astype(np.float32)
        np.testing.assert_array_equal(actual, expected)
        return
    rtol = relative if rtol is None else rtol
    if expected.dtype in (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)):
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol if atol is None else atol)


ORACLES: dict[str, Callable[[ModelProto, Mapping[str, Array]], list[Array]]] = {
    "cpu": run_cpu,
    "reference": run_reference,
}


@pytest.fixture(scope="session")
def check() -> Callable[..., None]:
    """Run one node through the plan and compare: `expect` is an oracle's name or the values themselves."""

    def check(
        op: str,
        *inputs: Array | None,
        expect: str | Array | Sequence[Array] = "cpu",
        opset: int = 21,
        domain: str = "",
        constants: Sequence[int] = (),
        outputs: int = 1,
        rtol: float | None = None,
        atol: float | None = None,
        **attributes: Any,
    ) -> None:
        if isinstance(expect, str):
            untyped = one_node(op, inputs, opset, domain, constants, outputs, **attributes)
            expected: Sequence[Array] = ORACLES[expect](untyped, feeds_of(untyped, inputs))
        else:
            expected = [expect] if isinstance(expect, np.ndarray | np.generic) else expect
        model = one_node(op, inputs, opset, domain, constants, expected, **attributes)
        feeds = feeds_of(model, inputs)
        actual = run_plan(model, feeds)
        assert len(actual) == len(expected)
        for mine, theirs in zip(actual, expected, strict=True):
            assert_same(mine, theirs, rtol, atol)

    return check


@pytest.fixture(scope="session")
def reasons() -> Callable[..., list[str]]:
    """Why one node is declined; empty where it is claimed."""

    def reasons(
        op: str,
        *inputs: Array | None,
        opset: int = 21,
        domain: str = "",
        outputs: int | Sequence[Array] = 1,
        **attributes: Any,
    ) -> list[str]:
        return declined(one_node(op, inputs, opset, domain, (), outputs, **attributes))

    return reasons


@pytest.fixture(scope="session")
def device() -> str:
    """Where plans run in these tests: "gpu" where MLX has one that works, else "cpu"."""
    return DEVICE


@pytest.fixture(scope="session")
def plan_of() -> Callable[[ModelProto, Mapping[str, Array]], list[Array]]:
    """Run a whole model through the translation layer."""
    return run_plan


@pytest.fixture(scope="session")
def cpu_session() -> Callable[[ModelProto], onnxruntime.InferenceSession]:
    """A whole model on ONNX Runtime's CPU provider."""
    return session_of


@pytest.fixture(scope="session")
def same() -> Callable[..., None]:
    return assert_same


@pytest.fixture
def draw() -> Callable[..., Array]:
    """Seeded values of any dtype and shape: normal floats, small integers, fair bools."""
    generator = np.random.default_rng(7)

    def draw(dtype: Any, *shape: int, low: int | None = None, high: int = 7) -> Array:
        dtype = np.dtype(dtype)
        if dtype.kind in "iub":
            low = (0 if dtype.kind in "ub" else -high) if low is None else low
            return np.asarray(generator.integers(low, 2 if dtype.kind == "b" else high, shape)).astype(dtype)
        return np.asarray(generator.standard_normal(shape)).astype(dtype)

    return draw


@pytest.fixture(scope="session")
def model_of() -> Callable[..., ModelProto]:
    """A model of one node: operator, inputs, opset, domain, positions of constants, outputs, attributes."""
    return one_node
