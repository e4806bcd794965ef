"""How the time to create a session grows with the number of nodes, against ONNX Runtime's CPU provider.

`chain` is one subgraph; in `islands` every tenth node is a pair of casts by way of
strings, which MLX does not run, so there are many.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import numpy as np
import onnxruntime as ort
import output
import timing
from onnx import helper

import ort_ep

SIZES = (100, 300, 1000, 3000, 10000)


def graph(nodes: int, islands: bool) -> bytes:
    """Adds in a row; with `islands` every tenth is a cast to strings and back, which stays on the CPU."""
    made = []
    last = "x"
    for i in range(nodes):
        if islands and i % 10 == 9:
            made.append(helper.make_node("Cast", [last], [f"t{i}"], to=8))
            made.append(helper.make_node("Cast", [f"t{i}"], [f"v{i}"], to=1))
        else:
            made.append(helper.make_node("Add", [last, "x"], [f"v{i}"]))
        last = f"v{i}"
    value = [helper.make_tensor_value_info(name, 1, [4]) for name in ("x", last)]
    described = helper.make_graph(made, "g", value[:1], value[1:])
    data: bytes = helper.make_model(described, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    return data


def measure(kind: str, nodes: int, rounds: int) -> dict[str, Any]:
    data = graph(nodes, kind == "islands")
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    mine, cpu, first = [], [], []
    clusters = 0
    for _ in range(rounds):
        took, session = timing.once(lambda: ort_ep.InferenceSession(data, plain, on_compute_error="raise"))
        mine.append(took)
        clusters = len(ort_ep.claim_report(session).clusters)
        first.append(timing.once(partial(session.run, None, {"x": np.ones(4, np.float32)}))[0])
        cpu.append(timing.once(lambda: ort.InferenceSession(data, plain, providers=["CPUExecutionProvider"]))[0])
        del session
    ours, theirs = statistics.median(mine), statistics.median(cpu)
    return {
        "graph": kind,
        "nodes": nodes,
        "subgraphs": clusters,
        "create, ms": ours,
        "us per node": ours * 1e3 / nodes,
        "first run, ms": statistics.median(first),
        "cpu create, ms": theirs,
        "ratio": ours / theirs,
    }


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    measure("chain", 10, 1)  # loads and registers
    rows = [measure(kind, n, args.rounds) for kind in ("chain", "islands") for n in args.sizes]
    output.show(args, rows, bars=("create, ms", "first run, ms", "cpu create, ms"), label=("graph", "nodes"))


if __name__ == "__main__":
    main()
