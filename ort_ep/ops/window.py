"""Sliding windows: the geometry that convolution and pooling share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Self, TypedDict

import numpy as np

import mlxc_py as mx
from mlxc_py import Array


class Sliding(TypedDict, total=False):
    """The attributes by which a window slides over the spatial axes."""

    auto_pad: str
    dilations: Sequence[int] | None
    pads: Sequence[int] | None
    strides: Sequence[int] | None


@dataclass(frozen=True)
class Window:
    """A kernel, how it moves, and the padding it sees; one entry per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    output: tuple[int, ...]

    @classmethod
    def of(
        cls,
        spatial: Sequence[int],
        kernel: Sequence[int],
        *,
        auto_pad: str = "NOTSET",
        ceil_mode: int = 0,
        dilations: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> Self:
        rank = len(kernel)
        strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
        spans = [dilation * (size - 1) + 1 for size, dilation in zip(kernel, dilations, strict=True)]
        pads = pads if pads and auto_pad in ("NOTSET", "") else (0,) * (2 * rank)
        before, after = list(pads[:rank]), list(pads[rank:])
        if auto_pad.startswith("SAME"):
            for axis, (length, span, stride) in enumerate(zip(spatial, spans, strides, strict=True)):
                before[axis], after[axis] = same_padding(length, span, stride, auto_pad)
        output = []
        for length, span, stride, first, last in zip(spatial, spans, strides, before, after, strict=True):
            room = length + first + last - span
            if int(room / stride) < -1:  # less than that ONNX Runtime takes for an empty result
                raise ValueError(f"a window of {span} does not fit {length} elements padded by {first} and {last}")
            steps = -(-room // stride) if ceil_mode else room // stride
            # a last window that would start in the padding after the data is dropped
            starts_outside = ceil_mode and steps * stride >= length + first
            output.append(max(steps if starts_outside else steps + 1, 0))
        return cls(tuple(kernel), tuple(strides), tuple(dilations), tuple(before), tuple(after), tuple(output))

    def taps(self, axis: int) -> np.ndarray:
        """The input position of every (output, kernel element) along a spatial axis; outside the data where padded."""
        first = np.arange(self.output[axis]) * self.strides[axis] - self.before[axis]
        return first[:, None] + np.arange(self.kernel[axis]) * self.dilations[axis]

    def reach(self, axis: int) -> int:
        """The length of a spatial axis that the windows cover, padding before it included."""
        return (self.output[axis] - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def padded(self, x: Array, fill: float) -> Array:
        """[N, C, spatial...] with just the padding that the windows reach."""
        widths = [(0, 0), (0, 0)]
        for axis, length in enumerate(x.shape[2:]):
            widths.append((self.before[axis], max(self.reach(axis) - self.before[axis] - length, 0)))
        return mx.pad(x, widths, constant_values=mx.array(fill, x.dtype)) if any(map(any, widths)) else x

    def combine(self, x: Array, fill: float, combine: Callable[[Array, Array], Array]) -> Array:
        """[N, C, spatial...] -> [N, C, output...]: the elements of every window combined, one axis after the other."""
        x = self.padded(x, fill)
        for axis, (size, dilation, stride) in enumerate(zip(self.kernel, self.dilations, self.strides, strict=True)):
            span = max((self.output[axis] - 1) * stride + 1, 0)
            starts = range(0, size * dilation, dilation)
            x = reduce(combine, (x[(slice(None),) * (2 + axis) + (slice(i, i + span, stride),)] for i in starts))
        return x

    def slide(self, x: Array, fill: float) -> Array:
        """[N, C, spatial...] -> [N, C, output..., kernel elements]."""
        x = self.padded(x, fill)
        steps = [math.prod(x.shape[axis + 1 :]) for axis in range(x.ndim)]
        outer = [step * stride for step, stride in zip(steps[2:], self.strides, strict=True)]
        inner = [step * dilation for step, dilation in zip(steps[2:], self.dilations, strict=True)]
        views = mx.as_strided(x, [*x.shape[:2], *self.output, *self.kernel], [*steps[:2], *outer, *inner])
        # reductions of overlapping views are wrong in MLX 0.32: flattening makes a copy
        return views.reshape([*x.shape[:2], *self.output, math.prod(self.kernel)])


def same_padding(length: int, span: int, stride: int, auto_pad: str) -> tuple[int, int]:
    """The padding that makes ceil(length / stride) outputs; the odd element goes to the end that auto_pad names."""
    total = max((-(-length // stride) - 1) * stride + span - length, 0)
    before = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
    return before, total - before
