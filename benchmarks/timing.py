"""What the benchmarks of sessions share: sides measured in turns, sessions of both providers, percentiles."""

from __future__ import annotations

import importlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

Feeds = Mapping[str, np.ndarray[Any, Any]]


def in_turns(
    sides: Mapping[str, Callable[[], Any]], rounds: int, seconds: float, pause: float = 0
) -> dict[str, list[float]]:
    """Milliseconds of every call: each side once a round, after one untimed round, until rounds or seconds are over.

    `pause` seconds pass before each call.
    """
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        call()
    end = time.perf_counter() + seconds
    for done in range(rounds):
        if done >= 3 and time.perf_counter() > end:
            break
        for name, call in sides.items():
            time.sleep(pause)
            start = time.perf_counter()
            call()
            samples[name].append((time.perf_counter() - start) * 1e3)
    return samples


def once(call: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of one call, and its result."""
    start = time.perf_counter()
    result = call()
    return (time.perf_counter() - start) * 1e3, result


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Least, median and 95th percentile."""
    ordered = sorted(samples)
    return {
        "min": ordered[0],
        "median": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)],
    }


def geometric_mean(ratios: Iterable[float]) -> float:
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def on_mlx(model: str | bytes, **options: Any) -> Any:
    """A session of the plugin; a run that fails is an error."""
    return importlib.import_module("ort_ep").InferenceSession(model, on_compute_error="raise", **options)


def on_cpu(model: str | bytes, threads: int = 0) -> Any:
    """A session of ONNX Runtime's CPU provider; 0 threads: as many as it likes."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
