"""What a step of a decoder costs: its key and value caches grow by a row in each run, so that no shape comes back.

The provider derives what it replays from a few recordings (`ort_ep/lines.py`); where it can't it runs eagerly, as
`--engine eager` always does. `replay` runs one step over and over: what a step would cost if shapes did come back. All
sides read and write the same texts, in turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import decoders
import numpy as np
import output
import timing

import ort_ep

SIZES = {"small": decoders.SMALL, "middle": decoders.MIDDLE}
Caches = dict[str, np.ndarray[Any, Any]]


class Writer:
    """A session and what it has read and written so far."""

    def __init__(self, session: Any, prompt: Sequence[int]) -> None:
        self.session = session
        self.prompt = prompt
        self.names = {given.name for given in session.get_inputs()}
        self.took: list[float] = []
        self.start()

    def start(self) -> None:
        """Forget the text; the prompt is read by the next step."""
        self.words: list[int] = []
        self.caches: Caches = {
            given.name: np.zeros((1, given.shape[1], 0, given.shape[3]), np.float32)
            for given in self.session.get_inputs()
            if given.name.startswith(("key", "value"))
        }

    def feed(self) -> Mapping[str, np.ndarray[Any, Any]]:
        ids = np.array([self.words[-1:] or self.prompt])
        past = next(iter(self.caches.values())).shape[2]
        feed = {"ids": ids, **self.caches}
        return feed | {"mask": np.ones((1, past + ids.shape[1]), np.int64)} if "mask" in self.names else feed

    def step(self) -> tuple[float, np.ndarray[Any, Any]]:
        """Milliseconds, and the scores of the next word."""
        feed = self.feed()
        took, (scores, *caches) = timing.once(lambda: self.session.run(None, feed))
        self.caches = dict(zip(self.caches, caches, strict=True))
        return took, scores[0, -1]


def measure(kind: str, size: str, engines: Sequence[str], steps: int, texts: int) -> list[dict[str, Any]]:
    data = decoders.decoder(kind, SIZES[size])
    sessions = {engine: timing.on_mlx(data, engine=engine, tf32="off") for engine in engines}
    sessions |= {"cpu1": timing.on_cpu(data, 1), "cpu": timing.on_cpu(data)}
    prompt = np.random.default_rng(1).integers(0, SIZES[size].words, 10).tolist()
    writers = {name: Writer(session, prompt) for name, session in sessions.items()}
    took: dict[str, list[float]] = {name: [] for name in [*sessions, "replay"]}
    for _ in range(texts):
        for writer in writers.values():
            writer.start()
        for step in range(steps + 1):
            done = {name: writer.step() for name, writer in writers.items()}
            scores = done["cpu1"][1]
            for name, writer in writers.items():
                assert np.allclose(done[name][1], scores, rtol=1e-3, atol=1e-3), f"{name} does not write what cpu1 does"
                writer.words.append(int(scores.argmax()))  # one word for all, also where two score the same
                took[name] += [done[name][0]] if step else []  # the first reads the prompt
    again = writers[engines[0]]
    feed = again.feed()
    again.session.run(None, feed)
    took["replay"] = [timing.once(lambda: again.session.run(None, feed))[0] for _ in range(steps)]
    base = {name: timing.summary(took[name]) for name in ("cpu1", "cpu")}
    rows = []
    for name, samples in took.items():
        summary = timing.summary(samples)
        report = ort_ep.claim_report(sessions[name]).compile if name in engines else None
        rows.append(
            {
                "model": f"{kind}, {size}",
                "side": name,
                "median": summary["median"],
                "mean": statistics.fmean(samples),
                "min": summary["min"],
                "p95": summary["p95"],
                "/ cpu1": summary["median"] / base["cpu1"]["median"],
                "/ cpu1, min": summary["min"] / base["cpu1"]["min"],
                "/ cpu": summary["median"] / base["cpu"]["median"],
                "traces": report and report.traces,
                "derived": report and report.derivations,
            }
        )
    return rows


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument("--engine", nargs="+", default=["auto", "eager"], help="values of the provider's option")
    parser.add_argument("--model", nargs="+", default=decoders.MODELS, choices=decoders.MODELS)
    parser.add_argument("--size", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--texts", type=int, default=3)
    args = parser.parse_args()
    rows = []
    for size in args.size:
        for kind in args.model:
            rows += measure(kind, size, args.engine, args.steps, args.texts)
    output.show(args, rows, bars=("median", "min"), label=("model", "side"))


if __name__ == "__main__":
    main()
