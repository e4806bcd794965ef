"""What ends the process in MLX, or is wrong there without a word, can't be reached by any model.

Each fact about MLX has its cases here; they are models of one node, run through ONNX Runtime in one process that must
live to tell of all of them. Facts that no model can touch are tested where they are guarded: an empty stream handle, a
double free (tests/runtime/test_errors.py), the error handler's printf formats (tests/runtime/test_guards.py).
"""

from __future__ import annotations

import mmap
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import mlxc_py as mx
import ort_ep

FAR = 2**31 + 7
GPU = mx.default_device().type == mx.gpu
MICROSOFT = "com.microsoft"
Tensor = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A node and what comes of it: the results, or None where an error in words will do as well as a number."""

    op: str
    inputs: Sequence[Tensor | None]
    expected: Tensor | Callable[..., Tensor] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = ""
    opset: int = 21
    outputs: int = 1
    rtol: float = 0.0
    claimed: bool = True  # False: that it is left to the CPU provider is the protection


def f32(*shape: int) -> Tensor:
    return np.linspace(-2, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def i64(*values: Any) -> Tensor:
    return np.array(values, np.int64)


def i32(*values: Any) -> Tensor:
    return np.array(values, np.int32)


def of(dtype: str) -> Callable[..., Tensor]:
    return lambda *values: np.array(values, dtype)


f, f16, i8, u8 = map(of, ("float32", "float16", "int8", "uint8"))
X = f32(3, 4)
EMPTY = np.zeros((0, 4), np.float32)
ODD = i32(-7, 7, -7, 7, 5)
BY = i32(2, 2, -2, -2, 1)
LOW = np.array([-(2**31)], np.int32)
HALF = np.full(4096, 1, np.float16)
PACKED = np.full((8, 2, 8), 0x98, np.uint8)  # 4-bit nibbles 8 and 9: of zero point 8, the weights 0 and 1
NAN = np.nan
WIDE = np.linspace(-2, 2, 64).reshape(4, 16)


def truncated(a: Tensor, b: Tensor) -> Tensor:
    return np.trunc(a.astype(np.float64) / b).astype(a.dtype)


def soft(x: Tensor) -> Tensor:
    grown = np.exp(x - x.max(-1, keepdims=True))
    return grown / grown.sum(-1, keepdims=True)


BEYOND = "M 67: memory that there is not"
FACTS: dict[str, list[Case]] = {
    "M 49: log and log10 of one input are merged": [Case("Log", [np.exp(X)], X, rtol=1e-5)],
    "M 64, 68: negative dimensions": [
        Case("Reshape", [X, i64(-2, -6)]),
        Case("Expand", [X, i64(-1, 4)]),
        Case("Tile", [X, i64(-1, 1)]),
        Case("ConstantOfShape", [i64(-3)]),
        Case("OneHot", [i64(0, 1), i64(-3)[0], f32(2)]),
        Case("Range", [i64(0)[0], i64(5)[0], i64(0)[0]]),
        Case("Pad", [X, i64(-9, 0, 0, 0)]),
        Case("Split", [X, i64(-1, 4)], outputs=2, attributes={"axis": 0}),
    ],
    "M 65: exceptions in MLX's worker threads": [
        Case("Inverse", [np.zeros((3, 3), np.float32)], domain=MICROSOFT),
        Case("Inverse", [np.full((3, 3), np.nan, np.float32)], domain=MICROSOFT),
        Case("Det", [np.zeros((3, 3), np.float32)], np.array(0, np.float32)),
        Case("Det", [np.full((2, 2), np.nan, np.float32)], np.array(NAN, np.float32)),
        *(
            Case(
                "MatMulNBits",
                [np.ones((2, 2 * block), np.float32), np.full((3, 2, block // 2), 0x98, np.uint8), f32(6) * 0 + 1],
                np.full((2, 3), block, np.float32),
                {"K": 2 * block, "N": 3, "bits": 4, "block_size": block},
                MICROSOFT,
                rtol=1e-5,
            )
            for block in (16, 32, 256)
        ),
        Case("Erf", [WIDE], claimed=False),
    ],
    BEYOND: [
        Case("ConstantOfShape", [i64(2**20, 2**20)]),
        Case("Expand", [X[:1, :1], i64(2**20, 2**20)]),
        Case("Tile", [X, i64(2**20, 2**20)]),
        Case("Range", [i64(0)[0], i64(2**42)[0], i64(1)[0]]),
        Case("OneHot", [i64(0, 1), i64(2**42)[0], f32(2)]),
        Case("Pad", [X, i64(2**20, 2**20, 2**20, 2**20)]),
        Case("Resize", [f32(1, 1, 3, 4), None, None, i64(1, 1, 2**20, 2**20)]),
        Case("Reshape", [X, i64(2**40)]),
    ],
    "M 68: indices out of range": [
        Case("Gather", [X, i64(FAR)]),
        Case("Gather", [X, i64(-FAR, 3)]),
        Case("Gather", [X, i32(2**30)]),
        Case("GatherElements", [X, i64([FAR, 0, -FAR, 5])]),
        Case("GatherND", [X, i64([FAR, -FAR])]),
        Case("GatherND", [X, i64([7])]),
        Case("ScatterElements", [X, i64([FAR, -FAR, 9, 3]), f32(1, 4)]),
        Case("ScatterND", [X, i64([FAR], [-FAR], [3]), f32(3, 4)]),
        Case("ScatterND", [X, i64([FAR, FAR]), f32(1)], attributes={"reduction": "add"}),
        Case("OneHot", [i64(FAR, -FAR, 9), i64(3)[0], f32(2)], np.full((3, 3), -2, np.float32)),
        Case("TensorScatter", [f32(1, 1, 4, 2), f32(1, 1, 2, 2), i64(FAR)], opset=24),
        Case("ReverseSequence", [f32(4, 2), i64(FAR, -FAR)]),
        Case("MaxUnpool", [f32(1, 1, 2, 2), i64([[[FAR, -FAR], [99, -1]]])], attributes={"kernel_shape": [2, 2]}),
        Case("Slice", [X, i64(-(2**63), 1), i64(2**63 - 1, 2**31), i64(0, 1), i64(1, 2)], X[:, 1::2]),
        Case("Slice", [X, i64(2**63 - 1), i64(-(2**63)), i64(0), i64(-1)], X[::-1]),
        Case("Trilu", [X, i64(2**40)], np.zeros_like(X)),
        Case("MaxPool", [f32(1, 1, 3, 3)], attributes={"kernel_shape": [9, 9]}),
        Case("RoiAlign", [f32(1, 1, 4, 4), f32(1, 4) * 1e30, i64(FAR)], opset=16),
        Case("GridSample", [f32(1, 1, 4, 4), f32(1, 2, 2, 2) * np.inf], opset=20),
    ],
    "M 68: axes that are not there": [
        Case("Gather", [X, i64(0)], attributes={"axis": -7}),
        Case("GatherElements", [X, i64([0])], attributes={"axis": -7}),
        Case("CumSum", [X, i64(-7)[0]]),
        Case("ReduceSum", [X, i64(-7)]),
        Case("Squeeze", [X, i64(-7)]),
        Case("Unsqueeze", [X, i64(-7)]),
    ],
    "M 68, 83: integer division": [
        Case("Div", [i32(1, -1, 0), i32(0, 0, 0)]),
        Case("Mod", [i32(1, -1, 0), i32(0, 0, 0)]),
        Case("Mod", [i32(1, -1, 0), i32(0, 0, 0)], attributes={"fmod": 1}),
        Case("Div", [LOW, i32(-1)]),
        Case("Mod", [LOW, i32(-1)], i32(0)),
        Case("Div", [u8(1, 255), u8(0, 0)], opset=14),
        Case("Div", [ODD, BY], truncated),
        Case("Div", [ODD.astype(np.int8), BY.astype(np.int8)], truncated),
        Case("Div", [i64(2**62 + 1, -(2**62) - 1), i64(1, -1)], i64(2**62 + 1, 2**62 + 1)),
        Case("Mod", [ODD, BY], lambda a, b: np.mod(a, b)),
        Case("Mod", [ODD, BY], lambda a, b: np.fmod(a, b), {"fmod": 1}),
        Case("Pow", [i32(2, 1, -1, 0), i32(-1, -3, -3, -1)]),
        Case("Pow", [i32(2, -2), i64(3, 3)], i32(8, -8), opset=15),
    ],
    "M 68: axes without elements": [
        Case("TopK", [EMPTY, i64(0)], attributes={"axis": 0}, outputs=2),
        Case("CumSum", [EMPTY, i64(0)[0]], EMPTY),
        Case("ArgMax", [EMPTY], attributes={"axis": 0}),
        Case("ArgMax", [EMPTY], np.zeros((0, 1), np.int64), {"axis": 1}),
        Case("ReduceMax", [EMPTY, i64(1)], np.zeros((0, 1), np.float32)),
        Case("ReduceMax", [EMPTY, i64(0)], np.full((1, 4), -np.inf, np.float32), opset=20),
        Case("ReduceLogSumExp", [EMPTY, i64(0)], np.full((1, 4), -np.inf, np.float32)),
        Case("ReduceProd", [EMPTY, i64(0)], np.ones((1, 4), np.float32)),
        Case("Softmax", [EMPTY], EMPTY),
        Case("Unique", [EMPTY[:, 0]], outputs=4),
        Case("Reshape", [EMPTY, i64(4, -1)]),
        Case(
            "MatMulNBits",
            [np.zeros((0, 32), np.float32), PACKED, f32(16)],
            np.zeros((0, 8), np.float32),
            {"K": 32, "N": 8, "bits": 4, "block_size": 16},
            MICROSOFT,
        ),
        Case("LSTM", [np.zeros((0, 2, 3), np.float32), f32(1, 8, 3), f32(1, 8, 2)], attributes={"hidden_size": 2}),
    ],
    "M 77, 78: products of integers": [
        Case("MatMul", [i32([3, -4]), i32([5], [6])], i32([-9])),
        Case("MatMul", [i64([2**40, 1]), i64([3], [5])], i64([3 * 2**40 + 5])),
        Case(
            "MatMulInteger",
            [np.full((1, 4096), 127, np.int8), np.full((4096, 1), 127, np.int8)],
            i32([4096 * 127 * 127]),
        ),
        Case(
            "ConvInteger",
            [np.full((1, 512, 3, 3), 255, np.uint8), np.full((1, 512, 3, 3), 255, np.uint8)],
            np.full((1, 1, 1, 1), 512 * 9 * 255 * 255, np.int32),
        ),
    ],
    "M 79: float64 that is float32": [
        Case("Exp", [WIDE], lambda x: np.exp(x), rtol=1e-14),
        Case("Sin", [WIDE], lambda x: np.sin(x), rtol=1e-13),
        Case("Cos", [WIDE], lambda x: np.cos(x), rtol=1e-13),
        Case("Sigmoid", [WIDE], lambda x: 1 / (1 + np.exp(-x)), rtol=1e-14),
        Case("Softmax", [WIDE], soft, rtol=1e-14),
        Case("LogSoftmax", [WIDE], lambda x: np.log(soft(x)), rtol=1e-13),
        Case("ReduceLogSumExp", [WIDE, i64(1)], lambda x, _: np.log(np.exp(x).sum(1, keepdims=True)), rtol=1e-13),
        Case(
            "LayerNormalization",
            [WIDE, np.ones(16)],
            lambda x, _: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + np.float32(1e-5)),
            rtol=1e-9,
        ),
    ],
    "M 80: results of another type": [
        Case("ReduceSum", [i32([2**30, -(2**30)], [5, 6]), i64(0)], i32([2**30 + 5, 6 - 2**30])),
        Case("ReduceProd", [i64([3], [5]), i64(1)], i64([3], [5])),
        Case("ReduceMax", [i8([1, -128]), i64(1)], i8([1])),
        Case("ReduceMean", [i32([7, 8]), i64(1)], i32([7])),
        Case("ArgMin", [X], np.zeros((3, 1), np.int64), {"axis": 1}),
        Case("CumSum", [i32(1, 2, 3), i64(0)[0]], i32(1, 3, 6)),
        Case("BitShift", [u8(255), u8(9)], u8(0), {"direction": "LEFT"}),
        Case("Neg", [i8(-128, 5)], i8(-128, -5)),
    ],
    "M 81: sums in 16 bits": [
        Case("ReduceSum", [HALF, i64(0)], f16(4096)),
        Case("ReduceMean", [HALF * np.float16(100), i64(0)], f16(100)),
        Case("ReduceL2", [HALF * np.float16(16), i64(0)], f16(1024)),
        Case("CumSum", [HALF, i64(0)[0]], lambda x, _: np.arange(1, 4097).astype(np.float16)),
        Case("Softmax", [np.zeros((1, 4096), np.float16)], np.full((1, 4096), 1 / 4096, np.float16)),
        Case("GlobalAveragePool", [HALF.reshape(1, 1, 64, 64)], np.ones((1, 1, 1, 1), np.float16)),
        Case("LayerNormalization", [HALF[None] * np.float16(300), HALF], np.zeros((1, 4096), np.float16)),
    ],
    "M 82, 84, 85, 86: values at the edges": [
        Case("Mod", [f16(-1, 1), f16(3, -3)], f16(-1, 1), {"fmod": 1}),
        Case("Sin", [f(1e8)], np.sin(f(1e8)), rtol=1e-4),
        Case("Cast", [f(-0.0, 0.1)], np.array([False, True]), {"to": TensorProto.BOOL}),
        Case("Cast", [f(1e10, np.nan, -1.5)], attributes={"to": TensorProto.INT32}),
        Case("Cast", [f(300.7, -1.5)], attributes={"to": TensorProto.UINT8}),
        Case("Cast", [i64(2**32 + 5, -1)], i32(5, -1), {"to": TensorProto.INT32}),
        Case("ReduceProd", [f([3]), i64(1)], f([3])),
        Case("Round", [f(0.5, 1.5, 2.5, -0.5)], f(0, 2, 2, -0.0)),
        Case("Max", [f(NAN, 1), f(1, NAN)], f(NAN, NAN)),
        Case("Clip", [f(NAN, 5), np.array(0, np.float32), np.array(1, np.float32)], f(NAN, 1)),
        Case("Log", [f(0)], f(-np.inf)),
        Case("Softmax", [np.full((1, 3), -np.inf, np.float32)], np.full((1, 3), NAN, np.float32)),
        Case("ReduceLogSumExp", [np.full((1, 3), -np.inf, np.float32), i64(1)], np.full((1, 1), -np.inf, np.float32)),
        Case("Sign", [f(NAN, -3, 0)], f(NAN, -1, 0)),
        Case("Resize", [f32(1, 1, 0, 4), None, None, i64(1, 1, 3, 4)], attributes={"mode": "linear"}),
    ],
}


def model_of(case: Case, constants: bool, unseen: bool) -> ModelProto:
    """The node; `constants`: all inputs but the first are initializers; `unseen`: no shape is declared."""
    inputs, stored, names = [], [], []
    for index, value in enumerate(case.inputs):
        names.append("" if value is None else f"x{index}")
        if value is not None and index and constants:
            stored.append(numpy_helper.from_array(np.asarray(value), names[-1]))
        elif value is not None:
            shape = [f"d{index}_{axis}" for axis in range(value.ndim)] if unseen else value.shape
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            inputs.append(helper.make_tensor_value_info(names[-1], kind, shape))
    outputs = [helper.make_empty_tensor_value_info(f"y{index}") for index in range(case.outputs)]
    node = helper.make_node(case.op, names, [y.name for y in outputs], domain=case.domain, **case.attributes)
    graph = helper.make_graph([node], "g", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", case.opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def session_of(model: ModelProto | str, strict: bool = True, **options: str) -> ort_ep.InferenceSession:
    """A session in which ONNX Runtime neither computes constants itself nor answers in our place.

    Unfused, because on a GPU MLX compiles a kernel of its own for each of these models, for seconds each.
    """
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.log_severity_level = 4
    given = model if isinstance(model, str) else model.SerializeToString()
    options = {"on_compute_error": "raise", "tf32": "off", "fuse": "off"} | options
    return ort_ep.InferenceSession(given, settings, strict=strict, **options)


def trouble(case: Case, constants: bool, unseen: bool) -> str:
    """What is wrong with a case; empty where it is as it should be."""
    feeds = {f"x{i}": np.asarray(x) for i, x in enumerate(case.inputs) if x is not None and not (i and constants)}
    report = None
    try:
        session = session_of(model_of(case, constants, unseen), strict=False)
        report = ort_ep.claim_report(session)
        results = session.run(None, feeds)
    except Exception as error:
        refused = report is None and case.expected is None  # by ONNX Runtime itself, on the way to us
        if case.expected is None and (refused or len(str(error)) > 20):
            return ""
        return f"{type(error).__name__}: {error}"
    claimed = case.claimed and not (GPU and any(x is not None and x.dtype == np.float64 for x in case.inputs))
    if bool(report.mlx_nodes) is not claimed:
        return f"claimed: {report.mlx_nodes}; {report.reasons()}"
    if case.expected is None:
        return ""
    wanted = case.expected(*case.inputs) if callable(case.expected) else np.asarray(case.expected)
    if results[0].dtype != wanted.dtype or results[0].shape != wanted.shape:
        return f"{results[0].dtype}{results[0].shape} and not {wanted.dtype}{wanted.shape}"
    close = np.allclose(results[0], wanted, rtol=case.rtol, atol=case.rtol, equal_nan=True)
    return "" if close else f"{results[0]} and not {wanted}"


# an operator, its attributes, and the shapes that one session sees, one after the other
REPLAYS: list[tuple[str, dict[str, Any], list[list[tuple[int, ...]]]]] = [
    ("Gather", {"axis": 1}, [[(2, 3)], [(3, 4)], [(1, 1)]]),
    ("Flatten", {"axis": 1}, [[(2, 3, 4)], [(5, 1, 2)], [(1, 0, 2)]]),
    ("Gemm", {}, [[(2, 3), (3, 4), (1, 4)], [(5, 2), (2, 3), (5, 1)], [(1, 1), (1, 1), (1, 1)]]),
    ("ReduceSum", {"keepdims": 0}, [[(1, 3)], [(10, 3)], [(4, 1)]]),
    ("Softmax", {}, [[(1, 1)], [(3, 5)], [(2, 1)]]),
]


def replayed(op: str, attributes: dict[str, Any], shapes: list[list[tuple[int, ...]]], engine: str) -> str:
    """One session that sees several shapes against one that sees each of them alone."""
    values = [[f32(*shape) for shape in row] for row in shapes]
    extra = [i64(0, -1)] if op == "Gather" else [i64(0)] if op == "ReduceSum" else []
    cases = [Case(op, [*row, *extra], attributes=attributes) for row in values]
    session = session_of(model_of(cases[0], False, True), engine=engine)
    for case in cases:
        feeds = {f"x{index}": value for index, value in enumerate(case.inputs)}
        alone = ort.InferenceSession(
            model_of(case, False, True).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        mine, theirs = session.run(None, feeds)[0], alone.run(None, feeds)[0]
        if mine.shape != theirs.shape or not np.allclose(mine, theirs, 1e-5, 1e-6):
            return f"{engine}: {mine} and not {theirs}"
    return ""


def drawn_again(op: str, inputs: list[Tensor], attributes: dict[str, Any], engine: str) -> str:
    """Two runs of a random operator without a seed."""
    session = session_of(model_of(Case(op, inputs, attributes=attributes), len(inputs) > 1, False), engine=engine)
    first, second = (session.run(None, {"x0": inputs[0]} if inputs else {})[0] for _ in range(2))
    return f"{engine}: twice the same" if np.array_equal(first, second) else ""


HALVES = np.full((8, 64), 0.5, np.float32)
RANDOM: list[tuple[str, list[Tensor], dict[str, Any]]] = [
    ("RandomNormal", [], {"shape": [64]}),
    ("RandomUniform", [], {"shape": [64]}),
    ("RandomNormalLike", [HALVES], {}),
    ("RandomUniformLike", [HALVES], {}),
    ("Bernoulli", [HALVES], {}),
    ("Multinomial", [np.log(HALVES)], {"sample_size": 64}),
    ("Dropout", [HALVES, np.array(0.5, np.float32), np.array(True)], {}),
]


def after_an_error() -> str:
    """A run that fails leaves the session as it was."""
    session = session_of(model_of(Case("Reshape", [X, i64(4, 3)]), False, True))
    for shape, right in ((i64(4, 3), True), (i64(5, 5), False), (i64(2, 6), True), (i64(-1, -1), False)):
        try:
            done = session.run(None, {"x0": X, "x1": shape})[0].shape == tuple(shape)
        except Exception:
            done = False
        if done is not right:
            return f"{shape}: {done}"
    return ""


def beside_percent_signs() -> str:
    """A model whose path and external data are full of printf directives."""
    with tempfile.TemporaryDirectory(prefix="100%s%n") as folder:
        weight = f32(64, 64)
        model = model_of(Case("MatMul", [weight, weight]), True, False)
        path = Path(folder) / "%s%n.onnx"
        onnx.save(model, path, save_as_external_data=True, location="%n%s.bin", size_threshold=0)
        close = np.allclose(session_of(str(path)).run(None, {"x0": weight})[0], weight @ weight, rtol=1e-4, atol=1e-4)
    return "" if close else "another product"


def promised() -> bool:
    """Whether the system hands out memory that it does not have, as under Kubernetes (vm.overcommit_memory is 1)."""
    try:
        mmap.mmap(-1, 2**42).close()
    except OSError:
        return False
    return True


def checks() -> Iterator[tuple[str, str, Callable[[], str]]]:
    """(fact, what is checked, the check) of everything here."""
    for fact, cases in FACTS.items():
        for number, case in enumerate(cases):
            for constants, unseen in ((False, True), (False, False), (True, True)):
                how = f"{'constants ' * constants}{'unseen' * unseen}"
                yield fact, f"{number} {case.op} {how}", partial(trouble, case, constants, unseen)
    for engine in ("tape", "compile"):
        for replay in REPLAYS:
            yield "M 42: other shapes in one trace", replay[0], partial(replayed, *replay, engine)
        for random in RANDOM:
            yield "M 48: random numbers that are frozen", random[0], partial(drawn_again, *random, engine)
    yield "M 63: file names as printf formats", "external data", beside_percent_signs
    yield "M 66: errors while a run is being scheduled", "the next run", after_an_error


def main() -> None:
    """Check everything in this process; a line before and a line after each check."""
    for fact, what, check in checks():
        if fact == BEYOND and promised():
            continue
        print(f"{fact}: {what}", flush=True)
        print(check().replace("\n", " ") or "fine", flush=True)


@pytest.fixture(scope="module")
def told() -> tuple[dict[str, str], str]:
    """What the process said of each check, and its last words."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=500, check=False)
    lines = done.stdout.splitlines()
    return dict(zip(lines[::2], lines[1::2], strict=False)), f"rc {done.returncode} {lines[-2:]} {done.stderr[-2000:]}"


@pytest.mark.parametrize("fact", dict.fromkeys(fact for fact, _, _ in checks()))
def test_no_model_reaches(fact: str, told: tuple[dict[str, str], str]) -> None:
    if fact == BEYOND and promised():
        pytest.skip("numpy and ONNX Runtime are given memory here that the system kills a process for touching")
    answers, last = told
    names = [f"{fact}: {what}" for owner, what, _ in checks() if owner == fact]
    assert {name: answers.get(name, "not reached") for name in names} == dict.fromkeys(names, "fine"), last


if __name__ == "__main__":
    main()
