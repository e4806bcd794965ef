"""One-node models for every operator, version and dtype that docs/OPS.md states: made, run on MLX, and compared."""

from __future__ import annotations

import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

sys.path[1:1] = [str(Path(__file__).resolve().parents[3] / folder) for folder in ("", "benchmarks", "scripts")]

import gen_ops  # noqa: E402
from backend_cases import typed, untyped  # noqa: E402

import ort_ep  # noqa: E402
from ort_ep import dtypes  # noqa: E402
from ort_ep.registry import ANY, REGISTRY  # noqa: E402

Host = np.ndarray[Any, Any]
NEWEST = {"": 28, "ai.onnx.ml": 5, "com.microsoft": 1}
PREFERRED = ("float32", "int64", "int32", "uint8", "bool", "float16")
TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-4, "float64": 1e-9}
SHORT = ("int8", "int16", "uint8", "uint16")
INTEGERS = (*SHORT, "int32", "int64", "uint32", "uint64")
# What an oracle without a kernel for a dtype may compute in instead: the values are the same.
WIDER = (
    {"float16": "float32", "bfloat16": "float32"},
    dict.fromkeys(SHORT, "int32") | {"uint32": "int64", "uint64": "int64"},
    dict.fromkeys(INTEGERS, "int64"),
    dict.fromkeys((*INTEGERS, "bool"), "float32"),
    dict.fromkeys(INTEGERS, "float64"),
    {"float64": "float32"},
)
ORT_NAMES = {"float": "float32", "double": "float64", "float8e8m0": "float8_e8m0fnu", "float4e2m1": "float4_e2m1fn"}
ORT_NAMES |= {"float8e4m3fn": "float8_e4m3fn", "float8e4m3fnuz": "float8_e4m3fnuz"}
ORT_NAMES |= {"float8e5m2": "float8_e5m2", "float8e5m2fnuz": "float8_e5m2fnuz"}
ORT_NAMES |= {"float6e2m3": "float6_e2m3fn", "float6e3m2": "float6_e3m2fn"}


ONLY_CPU = "which MLX has on the CPU device only"  # float64, where MLX runs on a GPU


class Unfit(Exception):
    """The operator does not allow this combination of dtypes, which its type constraints can't say."""


# ---------------------------------------------------------------- what is stated
@cache
def schemas() -> dict[tuple[str, str], list[Any]]:
    """ONNX Runtime's schemas of every operator, oldest first: what a model is checked against when it is loaded."""
    found: dict[tuple[str, str], list[Any]] = {}
    for schema in sorted(get_all_operator_schema(), key=lambda schema: schema.since_version):
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return found


def operators() -> list[tuple[str, str]]:
    """(domain, name) of every operator that OPS.md lists as translated."""
    REGISTRY.load()
    names = {(handler.domain, handler.name) for handler in REGISTRY.handlers()}
    return sorted(names | {("", name) for name in gen_ops.FUNCTIONS["ai.onnx"]})


def dtype_of(text: str) -> str:
    """The dtype in "tensor(float)" or "seq(tensor(float))"; empty for what holds no tensors."""
    found = re.fullmatch(r"(?:optional\(|seq\()*tensor\((\w+)\)+", text)
    return ORT_NAMES.get(found[1], found[1]) if found else ""


def stated(schema: Any) -> dict[str, list[str]]:
    """By type variable, the dtypes that both ONNX and the registry allow."""
    handler = REGISTRY.lookup(schema.domain, schema.name, schema.since_version)
    allowed = {
        row.type_param_str: {dtype_of(text) for text in row.allowed_type_strs} & dtypes.BY_NAME.keys() - {"string"}
        for row in schema.type_constraints
    }
    for index, formal in enumerate([*schema.inputs, *schema.outputs]):
        if formal.typeStr not in allowed:
            continue
        names: Any = ANY
        if handler is not None and isinstance(handler.dtypes, Mapping):
            parameter = handler.parameter(index) if index < len(schema.inputs) else ""
            named = (handler.dtypes.get(key or "") for key in (parameter, formal.typeStr, formal.name))
            names = next(filter(None, named), ANY)
        elif handler is not None and index < len(schema.inputs) and handler.parameter(index) not in handler.host:
            names = handler.dtypes
        allowed[formal.typeStr] &= names
    used = {formal.typeStr for formal in chain(schema.inputs, schema.outputs)}
    return {name: sorted(names, key=rank) for name, names in allowed.items() if names and name in used}


def demanded() -> list[str]:
    """Inputs that ONNX calls optional and a handler can't do without."""
    found = []
    for domain, name in operators():
        for schema in versions(domain, name):
            handler = REGISTRY.lookup(domain, name, schema.since_version)
            optional = [index for index, formal in enumerate(schema.inputs) if int(formal.option) == 1]
            found += [
                f"{domain or 'ai.onnx'}::{name}-{schema.since_version} demands {schema.inputs[index].name}"
                for index in optional
                if handler is not None and index < handler.required and index not in handler.nullable
            ]
    return found


def unknown() -> list[str]:
    """Operators that this ONNX Runtime has no version of, of which `triples` has none either."""
    return [f"{domain or 'ai.onnx'}::{name}" for domain, name in operators() if not versions(domain, name)]


def rank(name: str) -> tuple[int, str]:
    return (PREFERRED.index(name) if name in PREFERRED else len(PREFERRED), name)


def versions(domain: str, name: str) -> list[Any]:
    """The schemas of an operator that a handler or a function body serves; none where ONNX Runtime does not know it."""
    found = schemas().get((domain, name), [])
    rows = [row for row in found if not row.deprecated and row.since_version <= NEWEST[domain]]
    known = REGISTRY.versions(domain, name)
    return [row for row in rows if not known or known[0] <= row.since_version]


def nearest(name: str, names: Sequence[str]) -> str:
    """A name itself, the first that differs only in its width, or the first of all."""
    alike = (other for other in names if other.rstrip("0123456789") == name.rstrip("0123456789"))
    return name if name in names else next(alike, names[0])


@dataclass(frozen=True)
class Triple:
    """An operator, a version of it, and a dtype for each of its type variables."""

    domain: str
    name: str
    version: int
    types: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        types = ",".join(f"{variable}={name}" for variable, name in self.types)
        return f"{self.domain or 'ai.onnx'}::{self.name}-{self.version}[{types}]"


def triples(domain: str, name: str) -> Iterator[Triple]:
    """Each dtype of each type variable, at every version: alone, and with the others as much alike as they can be."""
    for schema in versions(domain, name):
        table = stated(schema)
        base = {variable: names[0] for variable, names in table.items()}
        rows = [base] + [base | {variable: name} for variable, names in table.items() for name in names]
        every = sorted({name for names in table.values() for name in names})
        rows += [{variable: nearest(name, names) for variable, names in table.items()} for name in every]
        for row in {tuple(row.items()): None for row in rows}:
            yield Triple(domain, name, schema.since_version, row)


# ---------------------------------------------------------------- cases
@dataclass
class Case:
    """A model and what goes into it.

    expect: the outputs, where no oracle knows the case. verify: whether outputs that nothing can be compared with are
    right. oracle: the version to ask instead, where the CPU provider has a kernel for an equal one only. levels: how
    far apart integers may be. batch: the inputs whose first axis has no fixed length; it is tried without rows, too.
    """

    model: onnx.ModelProto
    feeds: dict[str, Host]
    expect: Any = None
    verify: Callable[[list[Host]], bool] | None = None
    tolerance: float | None = None
    levels: int = 0
    oracle: int = 0
    batch: Sequence[str] = ()


@dataclass
class Given:
    """What the maker of a case is told of its triple; calling it draws an input.

    `wide` replaces dtypes that an oracle does not know: values are drawn as the triple says, and then converted.
    """

    triple: Triple
    schema: Any
    wide: Mapping[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    seed: str = ""

    def __post_init__(self) -> None:
        self.types = dict(self.triple.types)
        self.random = np.random.default_rng(zlib.crc32((self.seed or str(self.triple)).encode()))
        self.version = self.triple.version

    def variable(self, place: int | str) -> str:
        """The type variable, or the type, of an input (its position) or itself."""
        if isinstance(place, str):
            return place
        return str(self.schema.inputs[min(place, len(self.schema.inputs) - 1)].typeStr)

    def narrow(self, place: int | str) -> str:
        """The dtype that the triple gives an input or type variable."""
        variable = self.variable(place)
        self.used.add(variable)
        if variable in dtypes.BY_NAME:
            return variable
        return self.types.get(variable) or dtype_of(variable) or variable

    def dtype(self, place: int | str) -> np.dtype[Any]:
        """The dtype an input has in the model."""
        found = dtypes.BY_NAME[self._widened(self.narrow(place), place)].numpy
        assert found is not None
        return found

    def _widened(self, name: str, place: int | str) -> str:
        variable = self.variable(place)
        wide = self.wide.get(name, name)
        allowed = next((row for row in self.schema.type_constraints if row.type_param_str == variable), None)
        return wide if allowed and wide in map(dtype_of, allowed.allowed_type_strs) else name

    def code(self, place: int | str) -> int:
        """The number ONNX has for the dtype of an input or type variable."""
        return dtypes.BY_NUMPY[self.dtype(place)].code

    def __call__(self, place: int | str, *shape: int, low: float | None = None, high: float = 5) -> Host:
        """Values for an input: floats between `low` (default: -high) and `high`, small integers, fair bools."""
        name = self.narrow(place)
        row = dtypes.BY_NAME[name]
        assert row.numpy is not None
        unsigned = name.startswith("u") or name == "bool" or name == "float8_e8m0fnu"
        low = (0 if unsigned else -high) if low is None else low
        if "int" in name:
            limits = 2 ** (row.bits - (not unsigned))
            bounds = max(low, 0 if unsigned else -limits), min(high + 1, limits)
            values: Host = self.random.integers(int(bounds[0]), max(int(bounds[1]), int(bounds[0]) + 1), shape)
        elif name == "bool":
            values = self.random.integers(0, 2, shape)
        else:
            values = self.random.uniform(low, high, shape)
        values = np.asarray(values)
        if values.dtype == np.int64:
            return values.astype(np.int32 if row.bits < 8 else np.int64).astype(row.numpy).astype(self.dtype(place))
        return values.astype(row.numpy).astype(self.dtype(place))

    def at(self, place: int | str, values: Any) -> Host:
        """Given values, in the dtype of an input."""
        return np.asarray(values).astype(self.dtype(place))


Maker = Callable[[Given], Any]


def case(
    *inputs: Host | None,
    constants: Sequence[int] = (),
    outputs: int = 1,
    expect: Any = None,
    verify: Callable[[list[Host]], bool] | None = None,
    tolerance: float | None = None,
    levels: int = 0,
    oracle: int = 0,
    batch: Sequence[int] = (),
    **attributes: Any,
) -> Callable[[Given], Case]:
    """One node. constants: positions of inputs that are initializers; the rest is Case's."""

    def make(given: Given) -> Case:
        names = ["" if value is None else f"x{index}" for index, value in enumerate(inputs)]
        results = [f"y{index}" for index in range(outputs)]
        node = helper.make_node(given.triple.name, names, results, domain=given.triple.domain, **attributes)
        infos = []
        for index, result in enumerate(results):
            variable = given.schema.outputs[min(index, len(given.schema.outputs) - 1)].typeStr
            known = variable in given.types or dtype_of(variable)
            infos.append(
                helper.make_tensor_value_info(result, given.code(variable), None)
                if known
                else helper.make_empty_tensor_value_info(result)
            )
        values = {name: value for name, value in zip(names, inputs, strict=True) if value is not None}
        fixed = {f"x{index}" for index in constants}
        loose = [f"x{index}" for index in batch]
        graph = helper.make_graph(
            [node],
            given.triple.name,
            [tensor(name, value, name in loose) for name, value in values.items() if name not in fixed],
            infos,
            [numpy_helper.from_array(value, name) for name, value in values.items() if name in fixed],
        )
        feeds = {name: value for name, value in values.items() if name not in fixed}
        return Case(wrapped(given, graph), feeds, expect, verify, tolerance, levels, oracle, loose)

    return make


def element(given: Given) -> str:
    """The one dtype of the tensors, sequences and optionals of a triple."""
    names = {given.narrow(variable) for variable in ("T", "V", "S", "O") if variable in given.types}
    if len(names) > 1:
        raise Unfit("elements are of one dtype")
    return names.pop()


def graph(text: str, expect: Any = None, **feeds: Host) -> Callable[[Given], Case]:
    """A graph in ONNX's text form; `{T}` is the dtype of its elements, `{I}` that of the type variable I."""

    def make(given: Given) -> Case:
        names = {"{T}": element(given), "{I}": given.narrow("I") if "I" in given.types else "int64"}
        written = text
        for mark, name in names.items():
            written = written.replace(mark, onnx.TensorProto.DataType.Name(dtypes.BY_NAME[name].code).lower())
        parsed = onnx.parser.parse_graph(written)
        return Case(wrapped(given, parsed), feeds, expect)

    return make


def tensor(name: str, value: Host, loose: bool) -> onnx.ValueInfoProto:
    shape = ("N", *value.shape[1:]) if loose else value.shape
    return helper.make_tensor_value_info(name, dtypes.BY_NUMPY[value.dtype].code, shape)


def wrapped(given: Given, graph: onnx.GraphProto) -> onnx.ModelProto:
    domain, version = given.triple.domain, given.version
    imports = [helper.make_opsetid("", 21 if domain else version)]
    imports += [helper.make_opsetid(domain, version)] if domain else []
    return helper.make_model(graph, opset_imports=imports, ir_version=14 if not domain and version > 24 else 10)


# ---------------------------------------------------------------- running
def options() -> ort.SessionOptions:
    made = ort.SessionOptions()
    made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    made.log_severity_level = 4
    made.intra_op_num_threads = 1
    return made


def run(session: ort.InferenceSession, feeds: Mapping[str, Host]) -> list[Host]:
    values = {name: typed(ort, value, dtypes.BY_NUMPY[value.dtype].code) for name, value in feeds.items()}
    given = {name: value for name, (value, _) in values.items()}  # `values` keeps what the OrtValues point at
    return [np.asarray(untyped(value)) for value in session.run_with_ort_values(None, given)]


def on_cpu(made: Case) -> list[Host]:
    session = ort.InferenceSession(made.model.SerializeToString(), options(), providers=["CPUExecutionProvider"])
    return run(session, made.feeds)


def by_reference(made: Case) -> list[Host]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [np.asarray(value) for value in ReferenceEvaluator(made.model).run(None, dict(made.feeds))]


def expected(maker: Maker, given: Given, made: Case) -> tuple[str, list[Host]]:
    """The name of the oracle that knows the case, and what it says."""
    if made.expect is not None:
        values = made.expect
        return "numpy", [np.asarray(value) for value in (values if isinstance(values, list) else [values])]
    exact = {"float64", "bool"} & set(given.types.values()) and not made.oracle
    asked = given
    if made.oracle and made.oracle != given.version:
        known = [row for row in schemas()[given.triple.domain, given.triple.name] if row.since_version <= made.oracle]
        asked = Given(replace(given.triple, version=known[-1].since_version), known[-1])

    def on_cpu_in(wide: Mapping[str, str]) -> list[Host]:
        other = Given(asked.triple, asked.schema, wide, seed=str(given.triple))
        return on_cpu(maker(other)(other))

    tables = [table for table in WIDER if table.keys() & set(given.types.values())]
    widened = [(f"CPU in {', '.join(sorted(set(table.values())))}", partial(on_cpu_in, table)) for table in tables]
    reference = [("reference", partial(by_reference, made))]
    trials = [("CPU", partial(on_cpu_in, {})), *((reference + widened) if exact else (widened + reference))]
    failures = []
    for name, trial in trials:
        try:
            return name, trial()
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    raise LookupError(f"no oracle: {'; '.join(failures)}")


def difference(actual: Host, wanted: Host, made: Case, oracle: str, types: Iterable[str]) -> str:
    """What is wrong with an output; empty where nothing is."""
    if actual.shape != wanted.shape:
        return f"shape {wanted.shape} expected, got {actual.shape}"
    if oracle in ("CPU", "numpy", "reference") and actual.dtype != wanted.dtype:
        return f"{wanted.dtype} expected, got {actual.dtype}"
    tolerance = TOLERANCES.get(actual.dtype.name)
    if tolerance is None:
        if actual.dtype.kind not in "biu":
            actual, wanted = actual.astype(np.float32), wanted.astype(np.float32)
        elif wanted.dtype != actual.dtype:
            wanted = (np.trunc(wanted) if wanted.dtype.kind == "f" else wanted).astype(actual.dtype)
        with np.errstate(all="ignore"):
            apart = np.abs(actual.astype(np.float64) - wanted.astype(np.float64))
        return "" if np.all((apart <= made.levels) | (actual == wanted)) else f"{wanted} expected, got {actual}"[:400]
    # what passes through a narrower type on its way, or through an oracle's, is no more accurate than that
    narrowest = max(TOLERANCES.get(name, 0) for name in (*types, oracle.removeprefix("CPU in ")))
    tolerance = max(tolerance, narrowest, made.tolerance or 0)
    actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        if np.allclose(actual, wanted, rtol=tolerance, atol=tolerance, equal_nan=True):
            return ""
        return f"differs by up to {np.nanmax(np.abs(actual - wanted)):g}: {wanted.ravel()[:6]} / {actual.ravel()[:6]}"


def without_rows(session: ort.InferenceSession, made: Case, full: list[Host]) -> str:
    """What is wrong with the outputs for a batch of nothing; empty where nothing is."""
    if not made.batch:
        return ""
    rows = len(made.feeds[made.batch[0]])
    feeds = {name: value[:0] if name in made.batch else value for name, value in made.feeds.items()}
    shapes = [value.shape for value in run(session, feeds)]
    wanted = [(0, *value.shape[1:]) if len(value) == rows else value.shape for value in full]
    return "" if shapes == wanted else f"of an empty batch {wanted} expected, got {shapes}"


def plain(triple: Triple) -> dict[str, Any]:
    """A triple as JSON knows it."""
    return {"domain": triple.domain, "name": triple.name, "version": triple.version, "types": dict(triple.types)}


def attempt(maker: Maker, triple: Triple) -> dict[str, Any]:
    """The record of one triple: its outcome ("ok", "unfit" or what is wrong), the oracle, and what was said."""
    schema = next(row for row in schemas()[triple.domain, triple.name] if row.since_version == triple.version)
    given = Given(triple, schema)
    row = plain(triple)
    try:
        made = maker(given)(given)
        varied = {variable for variable, names in stated(schema).items() if len(names) > 1}
        if unused := varied - given.used:
            return row | {"outcome": "unused", "text": f"the case does not use {sorted(unused)}"}
        session = ort_ep.InferenceSession(made.model.SerializeToString(), options(), on_compute_error="raise")
        report = ort_ep.claim_report(session)
        if report.declined or not report.mlx_nodes:
            reasons = [node.reason for node in report.declined]
            only_cpu = bool(reasons) and all(ONLY_CPU in reason for reason in reasons)
            return row | {"outcome": "unfit" if only_cpu else "declined", "text": "; ".join(reasons)}
        actual = run(session, made.feeds)
        if report.compile.uncompiled:
            return row | {"outcome": "uncompiled", "text": report.compile.uncompiled[0]}
        if made.verify is not None:
            return row | {"outcome": "ok" if made.verify(actual) else "wrong", "oracle": "property", "text": ""}
        oracle, wanted = expected(maker, given, made)
        pairs = zip(actual, wanted, strict=True)
        text = "; ".join(filter(None, (difference(*pair, made, oracle, given.types.values()) for pair in pairs)))
        text = text or without_rows(session, made, actual)
        return row | {"outcome": "wrong" if text else "ok", "oracle": oracle, "text": text}
    except Unfit as error:
        return row | {"outcome": "unfit", "text": str(error)}
    except Exception as error:
        if "is not currently registered or supported" in str(error):
            return row | {"outcome": "unfit", "text": f"ONNX Runtime {ort.__version__} has no tensors of this dtype"}
        return row | {"outcome": "error", "text": f"{type(error).__name__}: {str(error)[:500]}"}
