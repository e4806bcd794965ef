"""How fast real models run, and what limits them, against ONNX Runtime's CPU provider with one thread and with all.

A process for each model and feed; the sides take turns in it, so a busy machine slows them alike. Milliseconds; `cpu1`
is the CPU provider with one thread. Memory is what a session and its first run add to a process in which both providers
have run another model. A run's multiplications, bytes and calls each take a time of their own at this machine's rates
(floors.py): `limit` is the largest of them and what part of the measured median it is. The goals on CPU are a geometric
mean of at most 2 against one thread, and sessions that are created in at most twice the CPU provider's time.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
from functools import partial
from typing import Any

import floors
import numpy as np
import output
import timing

import ort_ep

recipes, fetch, psutil, tape = (importlib.import_module(name) for name in ("feeds", "fetch", "psutil", "mlxc_py.tape"))
SIDES = ("mlx", "cpu1", "cpu")
CREATIONS = 5  # after a first one, which finds out about the model's operators; their median counts
PAUSE = 0.003  # seconds: the threads of ONNX Runtime's pool look for more work for a while


def resident() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 2**20


def measure(key: str, feed: str, engine: str, rounds: int, seconds: float) -> dict[str, Any]:
    """One row: milliseconds and MiB of both providers, and the work of one run."""
    model = fetch.corpus()[key]
    path, inputs = str(fetch.fetch(model)), recipes.make(model.feeds[feed])
    makers = {
        "mlx": partial(timing.on_mlx, engine=engine),
        "cpu1": partial(timing.on_cpu, threads=1),
        "cpu": timing.on_cpu,
    }
    other = floors.chain("MatMul", 2, (64, 64))
    for make in makers.values():
        make(other).run(None, {"x": np.ones((64, 64), np.float32)})
    row: dict[str, Any] = {"model": key, "feed": feed}
    sides = {}
    for name, make in makers.items():
        before = resident()
        row[f"{name} first create"], session = timing.once(partial(make, path))
        created = []
        for _ in range(CREATIONS):
            del session
            took, session = timing.once(partial(make, path))
            created.append(took)
        row[f"{name} create"] = statistics.median(created)
        run = partial(session.run, None, inputs)
        row[f"{name} first"], _ = timing.once(run)
        row[f"{name} MiB"] = resident() - before
        sides[name] = run
        if name == "mlx":
            row["share"] = ort_ep.claim_report(session).share
            row["operations"] = sum(len(found) for found in gc.get_objects() if isinstance(found, tape.Tape))
    for name, samples in timing.in_turns(sides, rounds, seconds, PAUSE).items():
        row |= {f"{name} {which}": value for which, value in timing.summary(samples).items()}
    for against in SIDES[1:]:
        row[f"/ {against}"] = row["mlx median"] / row[f"{against} median"]
        row[f"/ {against}, min"] = row["mlx min"] / row[f"{against} min"]
    row["create / cpu"] = row["mlx create"] / row["cpu create"]
    row |= floors.work(path, inputs)._asdict()
    return row


def limited(row: dict[str, Any], rates: floors.Rates) -> dict[str, Any]:
    """The row with its floors."""
    least = rates.floors(floors.Work(row["flops"], row["moved"]), row["operations"])
    largest = max(least, key=least.__getitem__)
    return {**row, **least, "limit": f"{largest} {least[largest] / row['mlx median']:.0%}"}


TABLE = ("model", "feed", "mlx create", "mlx first", "mlx median", "mlx p95", "mlx MiB")
TABLE += ("cpu1 median", "cpu median", "cpu1 MiB", "limit")
RATIOS = ("create / cpu", "/ cpu", "/ cpu1", "/ cpu1, min")


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument("keys", nargs="*", help="models by key, all that can be had by default")
    parser.add_argument("--feeds", choices=("default", "all"), default="all")
    parser.add_argument("--engine", default="auto", help="the provider's option of that name")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10, help="after which no further round starts")
    parser.add_argument("--one", nargs=2, metavar=("KEY", "FEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.engine, options.rounds, options.seconds)))
        return
    corpus, rates = fetch.corpus(), floors.rates()
    common = ["--engine", options.engine, "--rounds", str(options.rounds), "--seconds", str(options.seconds)]
    rows, notes = [], []
    for key in options.keys or corpus:
        for feed in corpus[key].feeds if options.feeds == "all" else ("default",):
            try:
                row = output.in_a_process(["--one", key, feed, *common], {"OPENBLAS_NUM_THREADS": "1"})
                rows.append(limited(row, rates))
            except RuntimeError as reason:
                notes.append(f"{key} {feed}: {reason}")
    means = (f"{name} {timing.geometric_mean(row[name] for row in rows):.2f}" for name in RATIOS if rows)
    notes.append(f"geometric means of {len(rows)} rows: " + "; ".join(means))
    notes.append(
        f"one thread: {rates.gflops:.0f} GFLOP/s, {rates.gigabytes:.1f} GB/s, {rates.call:.2f} us for each operation"
    )
    medians = [f"{name} median" for name in SIDES]
    output.show(options, rows, (*TABLE, *RATIOS), notes=notes, bars=medians, label=("model", "feed"))


if __name__ == "__main__":
    main()
