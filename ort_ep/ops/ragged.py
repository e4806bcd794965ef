"""Sequences of different lengths, packed one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops.indexing import in_range


@dataclass(frozen=True)
class Ragged:
    """Tokens of several requests; `starts` [B + 1] says where each begins, and where the last one ends."""

    starts: Array
    count: int

    @property
    def requests(self) -> Array:
        """[T]: which request each token belongs to."""
        ends = self.starts[1:]
        found = mx.sum(mx.arange(self.count)[:, None] >= ends, 1)
        return in_range(found, ends.size) if self.count else found

    @property
    def lengths(self) -> Array:
        return self.starts[1:] - self.starts[:-1]

    def rows(self, tokens: Array, past: Array, requests: Array, places: Array) -> Array:
        """tokens [T, ...] at places within their requests; what lies before is in past [B, kept, ...]."""
        kept = past.shape[1]
        table = mx.concatenate([tokens, past.reshape([past.shape[0] * kept, *past.shape[2:]])])
        ahead = mx.take(self.starts, in_range(requests, self.starts.size)) + places
        before = self.count + requests * kept + kept + places
        return mx.take(table, in_range(mx.where(places >= 0, ahead, before), table.shape[0]), 0)
