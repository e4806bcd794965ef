"""How exact the corpus models are on MLX, and how much of them runs there, with both feeds of each.

The deviation of an output is max|y - reference| / max|reference|, the reference being ONNX Runtime's CPU provider with
one thread; the largest of a model's outputs in three runs is shown. Beside it the noise floor: the same measure between
the reference and the CPU provider with two threads, or with its graph optimisations off. `limit` is what the tests
allow. Goals: 99 % of the nodes on MLX but for strings and maps, one subgraph, deviations within the limit.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import onnxruntime as ort
import output

from ort_ep.cli.compare import Difference, difference

recipes, fetch = (importlib.import_module(name) for name in ("feeds", "fetch"))
LEVELS = ort.GraphOptimizationLevel
VARIANTS = {"1 thread": (1, LEVELS.ORT_ENABLE_ALL), "2 threads": (2, LEVELS.ORT_ENABLE_ALL)}
VARIANTS |= {"not optimised": (1, LEVELS.ORT_DISABLE_ALL)}

RUNS = 3  # the first one traces, on CUDA the second one keeps a graph


def cpu_outputs(path: str, feed: Mapping[str, Any], threads: int, level: Any) -> list[Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.graph_optimization_level = threads, level
    found: list[Any] = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feed)
    return found


def largest(got: Sequence[Any], expected: Sequence[Any]) -> Difference:
    return reduce(Difference.worse, map(difference, got, expected), Difference())


def measure(key: str, feed: str) -> dict[str, Any]:
    """One row: where the nodes are, what the traces hold, how far the results are from the reference."""
    ort_ep, tape = importlib.import_module("ort_ep"), importlib.import_module("mlxc_py.tape")
    model = fetch.corpus()[key]
    path, inputs = str(fetch.fetch(model)), recipes.make(model.feeds[feed])
    session = ort_ep.InferenceSession(path, on_compute_error="raise")
    got = [session.run(None, inputs) for _ in range(RUNS)]
    report = ort_ep.claim_report(session)
    tapes = [found for found in gc.get_objects() if isinstance(found, tape.Tape)]
    reference, *others = (cpu_outputs(path, inputs, *variant) for variant in VARIANTS.values())
    deviation = reduce(Difference.worse, (largest(each, reference) for each in got))
    noise = [largest(other, reference) for other in others]
    return {
        "model": key,
        "feed": feed,
        "on MLX": report.mlx_nodes,
        "nodes": len(report.nodes),
        "share": report.share,
        "subgraphs": len(report.clusters),
        "host steps": report.host_steps,
        "operations": sum(map(len, tapes)),
        "transposes": sum(found.count("Transpose") for found in tapes),
        "deviation": deviation.relative,
        "noise": max(one.relative for one in noise),
        "limit": model.limit,
        "mismatch": deviation.mismatch,
        "declined": [f"{count} x {op}: {reason}" for (op, reason), count in report.reasons().most_common()],
    }


SHOWN = ("model", "feed", "on MLX", "nodes", "subgraphs", "host steps", "operations", "transposes")


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument("keys", nargs="*", help="models by key, all that can be had by default")
    parser.add_argument("--one", nargs=2, metavar=("KEY", "FEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    corpus, rows, notes = fetch.corpus(), [], []
    for key in options.keys or corpus:
        for feed in corpus[key].feeds:
            try:
                rows.append(output.in_a_process(["--one", key, feed]))
            except RuntimeError as reason:
                notes.append(f"{key} {feed}: {reason}")
    for row in rows:
        notes += [f"{row['model']} {row['feed']}, on the CPU: {text}" for text in row["declined"]]
        if row["mismatch"]:
            notes.append(f"{row['model']} {row['feed']}: {row['mismatch']}")
    columns = (*SHOWN, "deviation", "noise", "limit")
    output.show(
        options, rows, columns, notes=notes, bars=("deviation", "noise"), label=("model", "feed"), unit="relative"
    )


if __name__ == "__main__":
    main()
