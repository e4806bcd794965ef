"""ONNX's own backend cases through ONNX Runtime: what passes on MLX, with help of the CPU, or not; and on CPU alone.

All 2,024 cases of onnx.backend.test (node, simple, pytorch-converted, pytorch-operator), with typed OrtValue feeds, one
tolerance for both sides, and no graph optimisation, so that what a case says is what the provider is offered. Cases run
in forked children, a chunk each: one that kills its process is a failure of that case, and the next child goes on.
    python benchmarks/backend_cases.py                 all of them, 2 to 4 minutes
    python benchmarks/backend_cases.py --match loop    some, with each failure's text
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import output
from onnx import numpy_helper

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
CHUNK = 100
RTOL, ATOL = 1e-3, 1e-5
NARROW = {"bfloat16": 1e-2, "float16": 2e-3}
SIDES = {"CPU passes": "cpu", "we pass": "mine"}
OUTCOMES = ("on MLX", "with CPU help", "CPU alone", "expected failure", "fail")

# Cases that fail, as regular expressions of whole names, and why. One that passes all the same is reported.
EXPECTED = {
    r"test_(adagrad|adam|momentum|nesterov_momentum)(_multiple)?": "ORT has no ai.onnx.preview.training",
    r"test_gradient_of_.*": "ORT has no ai.onnx.preview.training",
    r"test_flexattention(?!.*_expanded).*": "ORT has no FlexAttention",
    r"test_optional_get_element_(optional_.*|sequence)": "an optional comes in, and ORT has no kernel of opset 28",
    r"test_optional_has_element_(optional|empty_optional|tensor)_input": "an optional comes in, and ORT has no kernel",
}
# Random numbers, and ONNX names no generator: only dtype and shape are compared, on both sides.
RANDOM = r"test_(bernoulli.*|training_dropout(_default)?(_mask)?)"
# Cases that fail in ORT's own code on some machines.
MAY_FAIL = {r"test_strnorm.*": "ORT's StringNormalizer wants the locale en_US.UTF-8, which not every machine has"}


# ---------------------------------------------------------------- cases
def load_cases() -> list[tuple[str, Any]]:
    """(kind, case) of every case, in a fixed order; needs neither ONNX Runtime nor MLX."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases' own generators divide by zero and overflow
        from onnx.backend.test.loader import load_model_tests

        return [(kind, case) for kind in KINDS for case in sorted(load_model_tests(kind=kind), key=lambda c: c.name)]


def model_of(case: Any) -> onnx.ModelProto:
    return case.model if case.model is not None else onnx.load(os.path.join(case.model_dir, "model.onnx"))


def data_sets(case: Any, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    """(inputs, outputs) as numpy arrays, lists of them, or None."""
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield list(map(plain, inputs)), list(map(plain, outputs))
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        yield (
            [stored(folder / f"input_{i}.pb", v) for i, v in enumerate(model.graph.input)],
            [stored(folder / f"output_{i}.pb", v) for i, v in enumerate(model.graph.output)],
        )


def stored(path: Path, declared: onnx.ValueInfoProto) -> Any:
    if not path.exists():  # an input that has an initializer
        return None
    kinds: dict[Any, Any] = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}
    proto = kinds.get(declared.type.WhichOneof("value"), onnx.TensorProto)()
    proto.ParseFromString(path.read_bytes())
    return plain(proto)


def plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return plain(numpy_helper.to_optional(value))
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None else np.asarray(value)


# ---------------------------------------------------------------- one case on one session
def typed(ort: Any, array: np.ndarray[Any, Any], code: int) -> tuple[Any, Any]:
    """An OrtValue over an array's content, of any element type, and what has to live as long."""
    dtypes = importlib.import_module("ort_ep.dtypes")
    row = dtypes.ELEM_TYPES[code]
    if row.numpy.isbuiltin == 1:  # 2: registered by ml_dtypes
        array = np.array(array, order="C")
        return ort.OrtValue.ortvalue_from_numpy(array), array
    content = np.zeros(array.shape, f"u{max(row.bits // 8, 1)}")
    if row.bits >= 8:
        content[...] = array.view(content.dtype)
    elif array.size:
        # packed into the first bytes: ORT takes the shape from the array and the content from its address
        codes = (
            np.ravel(array).astype(np.int8) if row.name.startswith(("int", "uint")) else np.ravel(array).view(np.int8)
        )
        bits = np.unpackbits(codes.view(np.uint8)[:, None], axis=1, bitorder="little")[:, : row.bits]
        packed = np.packbits(bits.reshape(-1), bitorder="little")
        content.reshape(-1)[: packed.size] = packed
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(content, code), content


def untyped(value: Any) -> Any:
    """A tensor OrtValue as numpy, of any element type."""
    dtypes, graph = importlib.import_module("ort_ep.dtypes"), importlib.import_module("ort_ep.graph")
    code, shape = value.element_type(), tuple(value.shape())
    row = dtypes.ELEM_TYPES[code]
    if row.numpy is None or row.numpy.isbuiltin == 1:
        return value.numpy()
    raw = ctypes.string_at(value.data_ptr(), row.nbytes(int(np.prod(shape))))
    return graph.decode(code, shape, np.frombuffer(raw, np.uint8))


def run(ort: Any, session: Any, model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any]:
    declared = [value for value, given in zip(model.graph.input, inputs, strict=False) if given is not None]
    given = [value for value in inputs if value is not None]
    results = [value.type.WhichOneof("value") for value in model.graph.output]
    strings = onnx.TensorProto.STRING
    tensors = all(
        value.type.WhichOneof("value") == "tensor_type" and value.type.tensor_type.elem_type != strings
        for value in declared
    )
    if tensors and set(results) == {"tensor_type"}:
        feeds, alive = {}, []
        for value, array in zip(declared, given, strict=True):
            feeds[value.name], kept = typed(ort, array, value.type.tensor_type.elem_type)
            alive.append(kept)
        names = [value.name for value in session.get_outputs()]
        return [untyped(value) for value in session.run_with_ort_values(names, feeds)]
    return list(session.run(None, {value.name: array for value, array in zip(declared, given, strict=True)}))


def difference(actual: Any, expected: Any, random: bool) -> str:
    """What is wrong with an output; empty where nothing is."""
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return f"a sequence of {len(expected)} expected, got {actual!r:.200}"
        return next(filter(None, (difference(*pair, random) for pair in zip(actual, expected, strict=True))), "")
    if expected is None or actual is None:
        return "" if expected is actual else f"{expected!r:.100} expected, got {actual!r:.100}"
    actual = np.asarray(actual)
    if expected.dtype.kind in "OSUT":
        return "" if np.array_equal(actual.astype(str), expected.astype(str)) else "strings differ"
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"{expected.dtype}{expected.shape} expected, got {actual.dtype}{actual.shape}"
    if random:
        return ""
    rtol, atol = max(RTOL, NARROW.get(expected.dtype.name, 0)), max(ATOL, NARROW.get(expected.dtype.name, 0))
    if expected.dtype.kind not in "biufc":
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    if np.allclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True):
        return ""
    with np.errstate(all="ignore"):
        return f"differs by up to {np.nanmax(np.abs(actual.astype(np.complex128) - expected)):g}"


def attempt(ort: Any, make: Any, case: Any) -> tuple[str, Any]:
    """(why the case fails or "", the session where one was made)."""
    session = None
    try:
        model = model_of(case)
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = make(model.SerializeToString(), options)
        for inputs, outputs in data_sets(case, model):
            actual = run(ort, session, model, inputs)
            random = re.fullmatch(RANDOM, case.name) is not None
            wrong = next(filter(None, (difference(*p, random) for p in zip(actual, outputs, strict=False))), "")
            if wrong or len(actual) != len(outputs):
                return wrong or f"{len(outputs)} outputs expected, got {len(actual)}", session
    except Exception as error:
        return f"{type(error).__name__}: {error}", session
    return "", session


def record(ort: Any, ort_ep: Any, kind: str, case: Any) -> dict[str, Any]:
    cpu, _ = attempt(ort, lambda m, o: ort.InferenceSession(m, o, providers=["CPUExecutionProvider"]), case)
    mine, session = attempt(ort, lambda m, o: ort_ep.InferenceSession(m, o, on_compute_error="raise"), case)
    row = {"kind": kind, "name": case.name, "cpu": cpu[:400], "mine": mine[:400], "mlx_nodes": 0, "declined": []}
    if session is not None:
        report = ort_ep.claim_report(session)
        row["mlx_nodes"] = report.mlx_nodes
        row["declined"] = [f"{node.operator}: {node.reason}" for node in report.declined]
    return row


# ---------------------------------------------------------------- children
def child(cases: Sequence[tuple[str, Any]], out: int) -> None:
    """Run cases and write a line per event; never returns."""
    with os.fdopen(out, "w", buffering=1) as stream:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        ort, ort_ep = importlib.import_module("onnxruntime"), importlib.import_module("ort_ep")
        for kind, case in cases:
            print(json.dumps({"started": case.name}), file=stream)
            print(json.dumps(record(ort, ort_ep, kind, case)), file=stream)
    os._exit(0)


def records(cases: Sequence[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    """One record per case, in order."""
    while cases:
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            child(cases[:CHUNK], write)
        os.close(write)
        done, started = 0, ""
        with os.fdopen(read) as stream:
            for line in stream:
                event = json.loads(line)
                started = event.get("started", "")
                if not started:
                    done += 1
                    yield event
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            kind, case = cases[done]
            if case.name != started:
                raise RuntimeError(f"a child ended with {status} before its first case")
            text = f"the process ended with {status}"
            yield {"kind": kind, "name": case.name, "cpu": "", "mine": text, "mlx_nodes": 0, "declined": []}
            done += 1
        cases = cases[done:]


# ---------------------------------------------------------------- results
def reason(name: str, *tables: dict[str, str]) -> str:
    """Why a case is expected to fail; empty where it isn't."""
    return next((text for table in tables for pattern, text in table.items() if re.fullmatch(pattern, name)), "")


def outcome(row: dict[str, Any]) -> str:
    if row["mine"]:
        return "expected failure" if reason(row["name"], EXPECTED, MAY_FAIL) else "fail"
    if not row["mlx_nodes"]:
        return "CPU alone"
    return "with CPU help" if row["declined"] else "on MLX"


def regressions(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the CPU provider passes and the session with MLX does not."""
    return [row for row in rows if row["mine"] and not row["cpu"]]


def counted(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A line for each kind of case, and one for all."""
    for kind in (*KINDS, "all"):
        chosen = [row for row in rows if kind in (row["kind"], "all")]
        if chosen:
            passes = {name: sum(not row[side] for row in chosen) for name, side in SIDES.items()}
            counts = Counter(map(outcome, chosen))
            yield {"kind": kind, "cases": len(chosen), **passes, **{name: counts[name] for name in OUTCOMES}}


def goals(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    node = [row for row in rows if row["kind"] == "node"]
    if node:
        share = sum(outcome(row) == "on MLX" for row in node) / len(node)
        yield f"node cases that pass with every node on MLX: {share:.1%} (goal 85 %)"
    yield f"passed by the CPU provider and failed here: {len(regressions(rows))} (goal 0)"


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument("--match", default="", help="a regular expression that names must contain")
    parser.add_argument("--declined", action="store_true", help="count the reasons for nodes on the CPU")
    arguments = parser.parse_args()
    cases = [item for item in load_cases() if re.search(arguments.match, item[1].name)]
    rows = []
    for row in records(cases):
        rows.append(row)
        if outcome(row) == "fail":
            print(f"{'REGRESSION' if not row['cpu'] else 'fail':10} {row['name']}: {row['mine']}", flush=True)
        if not row["mine"] and reason(row["name"], EXPECTED):
            print(f"passes, though expected to fail: {row['name']}")
    if arguments.declined:
        for text, count in Counter(text for row in rows for text in row["declined"]).most_common():
            print(f"{count:5} {text}")
    table = list(counted(rows))
    printed = "\n".join([output.table(table, list(table[0])), *goals(rows)])
    print(printed)
    output.save(arguments, rows, printed)
    if arguments.plot:
        output.draw(arguments.plot, table, OUTCOMES, ["kind"], "cases")


if __name__ == "__main__":
    main()
