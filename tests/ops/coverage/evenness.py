"""Whether what is derived for sizes along a line is what would be recorded there: one JSON line for each operator.

python tests/ops/coverage/evenness.py [--all]   the newest version of each operator, or all of them

Sizes of inputs grow together where they are equal, two such sizes, and each by itself; so do numbers on the host.
Where a line holds at its first two steps and further along, it has to hold at all steps in between.
"""

from __future__ import annotations

import argparse
import importlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import harness
import numpy as np
import onnx
from children import FAMILIES

import mlxc_py as mx
from ort_ep import capability, compiled, dtypes, lines, plan, planner, proto, stages, streams
from ort_ep.registry import REGISTRY

AHEAD = (9, 24, 70)
CLOSE = 24
Host = np.ndarray[Any, Any]


def without_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    for value in model.graph.input:
        if value.type.HasField("tensor_type"):
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                dim.Clear()
                dim.dim_param = f"{value.name}_{axis}"
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return model


def planned(model: onnx.ModelProto) -> plan.Plan | None:
    graph = proto.from_model(model)
    verdicts = capability.Analyzer(graph, REGISTRY).verdicts()
    if any(verdict.reason for verdict in verdicts):
        return None
    built = planner.build(graph, [call for verdict in verdicts for call in verdict.calls])
    return built if built.is_trace else None


def directions(point: lines.Point) -> Iterator[lines.Point]:
    sizes = {size for size in point if size >= 2}
    together = {tuple(int(size in (a, b)) for size in point) for a in sizes for b in sizes}
    alone = {tuple(int(i == k) for k in range(len(point))) for i, size in enumerate(point) if size >= 2}
    yield from sorted(together | alone)


class Stage:
    """The one stage of a plan with values in place."""

    def __init__(self, built: plan.Plan, feeds: list[Host | None]) -> None:
        def slot(position: int, value: Host | None) -> Any:
            on_host = position in built.host_inputs or not dtypes.ELEM_TYPES[built.inputs[position].elem_type].mlx
            return value if value is None or on_host else mx.array(value)

        self.plan = built
        self.frame = built.frame([slot(position, value) for position, value in enumerate(feeds)])
        self.stage = stages.cut(built)[0]
        self.key = self.stage.key(self.frame, compiled.ANYWHERE)

    def record(self, key: lines.Key) -> lines.Recorded[Any]:
        return stages.recording(self.plan, self.stage, self.frame, key)

    def line(self, start: int, direction: lines.Point) -> lines.Line[Any] | None:
        """The line in a direction, from some steps on, as far as it holds where a run would look."""
        assert self.key is not None
        try:
            key = lines.Keys(self.key, direction).at(start)
            made = lines._recorded(key, lines.point_of(key)[1], direction, self.record, threading.Lock())
        except Exception:  # a handler's, or not even
            return None
        for steps in (*AHEAD, made.least):
            try:
                made.check(steps, self.record(made.keys.at(steps)))
            except Exception:  # as above
                continue
            made.low, made.high = min(made.low, steps), max(made.high, steps)
        return made

    def examine(self) -> Iterator[tuple[str, str]]:
        """What was found at each step: "right", or "wrong" and how."""
        assert self.key is not None
        for direction in directions(lines.point_of(self.key)[1]):
            for start in (0, 1):
                line = self.line(start, direction)
                if line is None or (line.low, line.high) == (0, 1):
                    yield "not even", ""
                    continue
                for steps in (*range(line.low, min(line.high, CLOSE)), *range(max(line.high - 2, CLOSE), line.high)):
                    try:
                        line.check(steps, self.record(line.keys.at(steps)))
                        line.tapes.at(steps)
                    except Exception as error:
                        yield "wrong", f"{direction} from {start}, {steps} steps of {line.low} to {line.high}: {error}"
                    else:
                        yield "right", ""


def row(maker: harness.Maker, triple: harness.Triple) -> dict[str, Any]:
    schema = next(
        each for each in harness.schemas()[triple.domain, triple.name] if each.since_version == triple.version
    )
    given = harness.Given(triple, schema)
    try:
        made = maker(given)(given)
        built = planned(without_shapes(made.model))
    except harness.Unfit:
        return {}
    if built is None or not stages.cut(built)[0].even:
        return {}
    feeds = [made.feeds.get(port.name) for port in built.inputs]
    if any(isinstance(value, list) for value in feeds):
        return {}
    stage = Stage(built, cast(list[Host | None], feeds))
    if stage.key is None:
        return {}
    found = list(stage.examine())
    wrong = [text for outcome, text in found if outcome == "wrong"]
    return {"case": str(triple), **Counter(outcome for outcome, _ in found), "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all versions of each operator")
    arguments = parser.parse_args()
    cases = {
        (module.DOMAIN, name): case
        for module in map(importlib.import_module, FAMILIES)
        for name, case in module.CASES.items()
    }
    with streams.pool("cpu").lease():
        for domain, name in harness.operators():
            if (domain, name) not in cases:
                continue
            versions = {triple.version: triple for triple in reversed(list(harness.triples(domain, name)))}
            for version in sorted(versions) if arguments.all else sorted(versions)[-1:]:
                if found := row(cases[domain, name], versions[version]):
                    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
