"""How fast real models run, against ONNX Runtime's CPU provider with one thread and with all.

A process for each model and feed; the sides take turns in it, so a busy machine slows them alike. Memory is what a
session and its first run add to the process. The goal on CPU is a geometric mean of at most 2 against one thread.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import timing

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "models"))
recipes, fetch, psutil = (importlib.import_module(name) for name in ("feeds", "fetch", "psutil"))


def resident() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 2**20


def measure(key: str, feed: str, engine: str, rounds: int, seconds: float) -> dict[str, Any]:
    """One row: milliseconds and MiB of both providers."""
    model = fetch.corpus()[key]
    path = str(fetch.fetch(model))
    inputs = recipes.make(model.feeds[feed])
    makers = {
        "mlx": partial(timing.on_mlx, path, engine=engine),
        "cpu, 1 thread": partial(timing.on_cpu, path, 1),
        "cpu": partial(timing.on_cpu, path),
    }
    row: dict[str, Any] = {"model": key, "feed": feed}
    sides = {}
    for name, make in makers.items():
        before = resident()
        row[f"{name} create"], session = timing.once(make)
        run = partial(session.run, None, inputs)
        row[f"{name} first"], _ = timing.once(run)
        row[f"{name} MiB"] = resident() - before
        sides[name] = run
    for name, samples in timing.in_turns(sides, rounds, seconds).items():
        row |= {f"{name} {which}": value for which, value in timing.summary(samples).items()}
    for against in ("cpu, 1 thread", "cpu"):
        row[f"ratio to {against}"] = row["mlx median"] / row[f"{against} median"]
    return row


def in_a_process(key: str, feed: str, args: argparse.Namespace) -> dict[str, Any] | None:
    environ = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, __file__, "--one", key, feed, "--engine", args.engine]
    command += ["--rounds", str(args.rounds), "--seconds", str(args.seconds)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{key} {feed}: {(done.stderr.strip() or str(done.returncode)).splitlines()[-1]}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


SHOWN = ("mlx first", "mlx median", "mlx p95", "mlx MiB", "cpu, 1 thread median", "cpu median", "cpu, 1 thread MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", help="models by key, all that can be had by default")
    parser.add_argument("--feeds", choices=("default", "all"), default="all")
    parser.add_argument("--engine", default="auto", help="the provider's option of that name")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10, help="after which no further round starts")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("KEY", "FEED"), help="measure in this process only, print JSON")
    args = parser.parse_args()
    if args.one:
        key, feed = args.one
        print(json.dumps(measure(key, feed, args.engine, args.rounds, args.seconds)))
        return
    corpus = fetch.corpus()
    rows = []
    for key in args.keys or corpus:
        for feed in corpus[key].feeds if args.feeds == "all" else ("default",):
            row = in_a_process(key, feed, args)
            if row:
                rows.append(row)
    if not rows:
        sys.exit("nothing could be measured")
    ratios = ("ratio to cpu, 1 thread", "ratio to cpu")
    columns = ("model", "feed", *SHOWN, *ratios)
    timing.table(rows if args.json else [{name: row[name] for name in columns} for row in rows], args.json)
    if not args.json:
        means = [timing.geometric_mean(row[name] for row in rows) for name in ratios]
        print(f"\ngeometric mean of {len(rows)} rows: {means[0]:.2f} to one thread, {means[1]:.2f} to all")


if __name__ == "__main__":
    main()
