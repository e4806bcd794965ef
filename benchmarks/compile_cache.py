"""What changing shapes cost: a trace for each new one, a bounded number of traces kept, memory flat.

A model with symbolic sizes sees `--shapes` distinct ones, each twice in a row: the first run traces, the second
replays. Then as many runs of one shape. The eager engine beside it rebuilds the graph in every run.
"""

from __future__ import annotations

import gc
import importlib
from functools import partial
from typing import Any

import numpy as np
import output
import timing
from onnx import helper, numpy_helper

import mlxc_py as mx
import ort_ep

WIDTH, LAYERS = 64, 20


def network() -> bytes:
    """A perceptron on [N, WIDTH]: LAYERS times MatMul, Add, Relu."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for i in range(LAYERS):
        weights.append(numpy_helper.from_array(rng.normal(0, 0.1, (WIDTH, WIDTH)).astype(np.float32), f"w{i}"))
        weights.append(numpy_helper.from_array(rng.normal(0, 0.1, WIDTH).astype(np.float32), f"b{i}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"p{i}"]))
        nodes.append(helper.make_node("Add", [f"p{i}", f"b{i}"], [f"s{i}"]))
        nodes.append(helper.make_node("Relu", [f"s{i}"], [f"r{i}"]))
        last = f"r{i}"
    x = helper.make_tensor_value_info("x", 1, ["N", WIDTH])
    y = helper.make_tensor_value_info(last, 1, ["N", WIDTH])
    graph = helper.make_graph(nodes, "perceptron", [x], [y], weights)
    data: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    return data


def memory() -> tuple[float, float]:
    """MiB: what MLX's arrays take, and the process."""
    gc.collect()
    mx.clear_cache()
    return mx.get_active_memory() / 2**20, importlib.import_module("psutil").Process().memory_info().rss / 2**20


def measure(engine: str, shapes: int, kept: int) -> dict[str, Any]:
    session = timing.on_mlx(network(), engine=engine, compile_cache=kept)
    feeds = [{"x": np.ones((n, WIDTH), np.float32)} for n in range(1, shapes + 1)]
    new, again = [], []
    for position, feed in enumerate(feeds):
        new.append(timing.once(partial(session.run, None, feed))[0])
        again.append(timing.once(partial(session.run, None, feed))[0])
        if position + 1 == max(1, shapes // 10):
            early = memory()
    late = memory()
    one = [timing.once(partial(session.run, None, feeds[0]))[0] for _ in range(shapes)]
    report = ort_ep.claim_report(session).compile
    return {
        "engine": engine,
        "new shape, ms": timing.summary(new)["median"],
        "again, ms": timing.summary(again)["median"],
        "one shape, ms": timing.summary(one)["median"],
        "traces": report.traces,
        "evicted": report.evictions,
        "MLX grew, MiB": late[0] - early[0],
        "RSS grew, MiB": late[1] - early[1],
        "new / again": timing.summary(new)["median"] / timing.summary(again)["median"],
    }


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument("--shapes", type=int, default=1000)
    parser.add_argument("--kept", type=int, default=64, help="the provider's option compile_cache")
    parser.add_argument("--engines", nargs="+", default=["tape", "eager"], help="tape, compile, eager")
    args = parser.parse_args()
    rows = [measure(engine, args.shapes, args.kept) for engine in args.engines]
    output.show(args, rows, bars=("new shape, ms", "again, ms", "one shape, ms"))


if __name__ == "__main__":
    main()
