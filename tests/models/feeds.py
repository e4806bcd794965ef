"""Build a model's inputs from a feed recipe of models.json.

A recipe is a list of {"name", "dtype", "shape", "gen", ...}. Every tensor has a generator of its own, seeded by
(seed, position), so the order of the list is the only state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Recipe = Sequence[Mapping[str, Any]]
Shape = tuple[int, ...]
Maker = Callable[[np.random.Generator, Shape, Mapping[str, Any]], np.ndarray]

SAMPLE_RATE = 16000.0
GLYPH_ROWS, GLYPH_PIXEL, MARGIN = 8, 3, 20


def make(recipe: Recipe, seed: int = 0) -> dict[str, np.ndarray]:
    """One C-contiguous array per input, of the recipe's dtypes and shapes."""
    feed = {}
    for position, entry in enumerate(recipe):
        shape = tuple(entry["shape"])
        values = MAKERS[entry["gen"]](np.random.default_rng([seed, position]), shape, entry)
        feed[entry["name"]] = np.ascontiguousarray(np.asarray(values).astype(entry["dtype"])).reshape(shape)
    return feed


def normal(rng: np.random.Generator, shape: Shape, entry: Mapping[str, Any]) -> np.ndarray:
    return rng.standard_normal(shape) * entry.get("std", 1.0) + entry.get("mean", 0.0)


def uniform(rng: np.random.Generator, shape: Shape, entry: Mapping[str, Any]) -> np.ndarray:
    return scaled(rng.random(shape), entry)


def randint(rng: np.random.Generator, shape: Shape, entry: Mapping[str, Any]) -> np.ndarray:
    return rng.integers(entry["lo"], entry["hi"], shape)


def const(_rng: np.random.Generator, shape: Shape, entry: Mapping[str, Any]) -> np.ndarray:
    return np.full(shape, entry["value"])


def graph_edges(rng: np.random.Generator, shape: Shape, entry: Mapping[str, Any]) -> np.ndarray:
    """Random directed edges without self loops: [2, edges]."""
    nodes = entry["n_nodes"]
    start = rng.integers(0, nodes, shape[1])
    return np.stack([start, (start + rng.integers(1, nodes, shape[1])) % nodes])


def audio(rng: np.random.Generator, shape: Shape, entry: Mapping[str, Any]) -> np.ndarray:
    """A speech-like mix at 16 kHz: three tones under a 4 Hz envelope, and noise; time on the last axis."""
    time = np.arange(shape[-1]) / SAMPLE_RATE
    tones = sum(
        level * np.sin(2 * np.pi * pitch * time) for level, pitch in ((0.3, 180.0), (0.15, 540.0), (0.08, 1260.0))
    )
    wave = tones * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * time))
    return np.clip(np.broadcast_to(wave, shape) + 0.02 * rng.standard_normal(shape), -1, 1)


def blocks(rng: np.random.Generator, shape: Shape, entry: Mapping[str, Any]) -> np.ndarray:
    """NCHW image of flat random blocks, which gives detectors something to respond to."""
    side = entry.get("block", 16)
    n, c, h, w = shape
    coarse = rng.random((n, c, -(-h // side), -(-w // side)))
    image = coarse.repeat(side, 2).repeat(side, 3)[:, :, :h, :w]
    return scaled(np.clip(image + 0.02 * rng.standard_normal(shape), 0, 1), entry)


def textlike(rng: np.random.Generator, shape: Shape, entry: Mapping[str, Any]) -> np.ndarray:
    """NCHW page, light, with rows of random dark glyphs."""
    n, _c, h, w = shape
    page = np.ones((n, h, w))
    height, columns = GLYPH_ROWS * GLYPH_PIXEL, (w - 2 * MARGIN) // GLYPH_PIXEL
    for image in page:
        for top in range(12, h - 30, entry.get("pitch", 56)):
            ink = rng.random((GLYPH_ROWS, columns)) < 0.45
            ink[:, ::5] = False
            line = ink.repeat(GLYPH_PIXEL, 0).repeat(GLYPH_PIXEL, 1)
            image[top : top + height, MARGIN : MARGIN + line.shape[1]][line] = 0.0
    return scaled(np.clip(page[:, None] + 0.01 * rng.standard_normal(shape), 0, 1), entry)


def scaled(unit: np.ndarray, entry: Mapping[str, Any]) -> np.ndarray:
    return unit * (entry["hi"] - entry["lo"]) + entry["lo"]


MAKERS: dict[str, Maker] = {
    maker.__name__: maker for maker in (normal, uniform, randint, const, graph_edges, audio, blocks, textlike)
}
