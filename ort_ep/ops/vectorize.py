"""Counting of n-grams: TfIdfVectorizer over integer tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.graph import Node
from ort_ep.registry import INDEX, op


def over_integers(node: Node) -> str | None:
    """No n-grams of strings."""
    return "the n-grams are strings" if node.attributes.get("pool_strings") else None


@op("TfIdfVectorizer", since=9, dtypes={"x": INDEX}, claim=over_integers)
def tf_idf_vectorizer(
    x: Array,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] = (),
    pool_strings: Sequence[str] = (),
    weights: Sequence[float] | None = None,
) -> Array:
    columns = np.argsort(ngram_indexes)
    found = [
        occurrences(x.astype(mx.int64), grams, max_skip_count if grams.shape[1] > 1 else 0)
        if min_gram_length <= grams.shape[1] <= max_gram_length
        else mx.zeros([*x.shape[:-1], len(grams)], mx.float32)
        for grams in grams_by_length(pool_int64s, ngram_counts)
    ]
    counts = mx.take(mx.concatenate(found, -1), mx.array(columns), -1)
    if mode == "TF":
        return counts
    counts = counts if mode == "TFIDF" else (counts > 0).astype(mx.float32)
    return counts if weights is None else counts * mx.array(np.array(weights, np.float32)[columns])


def grams_by_length(pool: Sequence[int], starts: Sequence[int]) -> Iterator[np.ndarray]:
    """The pool's n-grams of every length n from 1 on, [count, n]."""
    for length, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        yield np.array(pool[start:end], np.int64).reshape(-1, length)


def occurrences(x: Array, grams: np.ndarray, skips: int) -> Array:
    """How often each n-gram occurs in the last axis, its tokens up to `skips` apart: [..., n-grams]."""
    count, length = grams.shape
    total = mx.zeros([*x.shape[:-1], count], mx.float32)
    for stride in range(1, skips + 2):
        places = x.shape[-1] - (length - 1) * stride
        if places > 0 and count:
            tokens = [x[..., i * stride : i * stride + places] for i in range(length)]
            equal = [token[..., None] == mx.array(grams[:, i]) for i, token in enumerate(tokens)]
            together = equal[0]
            for other in equal[1:]:
                together = mx.logical_and(together, other)
            total = total + mx.sum(together.astype(mx.float32), -2)
    return total
