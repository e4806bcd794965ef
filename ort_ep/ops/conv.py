"""Convolutions, through MLX's channels-last conv_general."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import chain, product
from typing import Any, NamedTuple, TypedDict, Unpack

import mlxc_py as mx
from mlxc_py import Array, cpu_primitives
from mlxc_py.cpu_primitives import Packed
from ort_ep.graph import Node
from ort_ep.ops.axes import channels_first, channels_last
from ort_ep.ops.precision import accumulated, narrow, on_cpu
from ort_ep.ops.window import Sliding, Window
from ort_ep.registry import SINGLES, op


class Kernel(NamedTuple):
    """Weights as convolutions take them: [O, ..., C / group], or packed where our own primitive convolves."""

    weights: Array | Packed
    window: tuple[int, ...]

    @classmethod
    def of(cls, w: Array, group: int) -> Kernel:
        """Of weights [O, ..., C / group]."""
        wide = accumulated(w)
        packs = cpu_primitives.packs(wide, group)
        return cls(cpu_primitives.pack(wide, group) if packs else wide, w.shape[1:-1])


def kernel(w: Array, *, group: int = 1) -> Kernel:
    """The prepared weights of a convolution."""
    return Kernel.of(w.transpose(channels_last(w.ndim)), group)


class Convolution(Sliding, total=False):
    """The attributes of a convolution; kernel_shape repeats the shape of the weights."""

    group: int
    kernel_shape: Sequence[int] | None


class Transposition(TypedDict, total=False):
    """The attributes of a transposed convolution, besides those that say how large the result is."""

    auto_pad: str
    dilations: Sequence[int] | None
    group: int
    kernel_shape: Sequence[int] | None
    output_padding: Sequence[int] | None
    strides: Sequence[int] | None


def one_to_three_axes(node: Node) -> str | None:
    """One to three spatial axes; the rank must be known."""
    rank = next((value.rank for value in node.inputs if value is not None and value.rank is not None), None)
    if rank is None:
        return "the rank of data and weights is unknown"
    return None if 3 <= rank <= 5 else f"MLX convolves over 1 to 3 axes, not {rank - 2}"


@op("Conv", since=1, dtypes=SINGLES, claim=one_to_three_axes, prepare={"w": kernel})
def conv(
    x: Array,
    w: Kernel,
    b: Array | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    **sliding: Unpack[Sliding],
) -> Array:
    window = Window.of(x.shape[2:], w.window, **sliding)
    return narrow(convolve(accumulated(x), w, b, window, group), x.dtype)


def convolve(x: Array, kernel: Kernel, b: Array | None, window: Window, group: int) -> Array:
    """[N, C, ...] with the weights of a kernel."""
    w = kernel.weights
    if isinstance(w, Packed):
        data, bias = x.transpose(channels_last(x.ndim)), None if b is None else b.astype(x.dtype)
        geometry: dict[str, Any] = {"stride": window.strides, "dilation": window.dilations, "groups": group}
        padding = (window.before, window.after)
        y = cpu_primitives.convolution(data, w, bias, padding=padding, **geometry)
        return y.transpose(channels_first(y.ndim))
    if group == 1 and max(window.dilations) > 1 and on_cpu():
        return biased(tap_by_tap(x, w, window), b)
    return channels_last_conv(
        x,
        w,
        b,
        group,
        stride=window.strides,
        padding=(window.before, window.after),
        kernel_dilation=window.dilations,
    )


def tap_by_tap(x: Array, w: Array, window: Window) -> Array:
    """A matrix product for each kernel element: MLX's CPU convolution is 100 times slower where it is dilated."""
    widths = [(0, 0), *zip(window.before, window.after, strict=True), (0, 0)]
    data = mx.pad(x.transpose(channels_last(x.ndim)), widths)
    parts = []
    for tap in product(*map(range, window.kernel)):
        starts = [i * dilation for i, dilation in zip(tap, window.dilations, strict=True)]
        steps = zip(starts, window.output, window.strides, strict=True)
        seen = (slice(start, start + (count - 1) * stride + 1, stride) for start, count, stride in steps)
        parts.append(mx.matmul(data[(slice(None), *seen)], w[(slice(None), *tap)].T))
    return reduce(mx.add, parts)


def channels_last_conv(x: Array, w: Array, b: Array | None, group: int, **geometry: Any) -> Array:
    """[N, C, ...] with weights [O, ..., C / group]; MLX has no groups in 3-D, so there they are done one by one."""
    data = x.transpose(channels_last(x.ndim))
    if group > 1 and x.ndim == 5:
        parts = zip(mx.split(data, group, -1), mx.split(w, group, 0), strict=True)
        y = mx.concatenate([mx.conv_general(*part, **geometry) for part in parts], -1)
    else:
        y = mx.conv_general(data, w, groups=group, **geometry)
    return biased(y, b)


def biased(y: Array, b: Array | None) -> Array:
    """[N, ..., O] -> [N, O, ...] with the bias added."""
    y = y if b is None else y + b.astype(y.dtype)
    return y.transpose(channels_first(y.ndim))


def stretched(x: Array, strides: Sequence[int]) -> Array:
    """Channels last: stride - 1 zeros after each element."""
    for axis, stride in enumerate(strides):
        if stride > 1:
            x = mx.expand_dims(x, 2 + axis)
            x = mx.pad(x, [(0, stride - 1 if i == 2 + axis else 0) for i in range(x.ndim)])
            x = x.reshape([*x.shape[: 1 + axis], x.shape[1 + axis] * stride, *x.shape[3 + axis :]])
    return x


def cropped(x: Array, before: Sequence[int], after: Sequence[int]) -> tuple[Array, tuple[list[int], list[int]]]:
    """Channels last: negative padding taken off x, and the padding that is left."""
    kept = [
        slice(max(-first, 0), length - max(-last, 0))
        for first, last, length in zip(before, after, x.shape[1:-1], strict=True)
    ]
    return x[(slice(None), *kept)], ([max(first, 0) for first in before], [max(last, 0) for last in after])


class TransposedKernel(NamedTuple):
    """Weights of a transposed convolution, as a plain convolution takes them.

    phased: the kernel makes the stride's outputs from each position, side by side; otherwise it is for an input that is
    stretched by the stride.
    """

    kernel: Kernel
    window: tuple[int, ...]
    phased: bool


def transposed_kernel(
    w: Array, *, group: int = 1, strides: Sequence[int] | None = None, dilations: Sequence[int] | None = None
) -> TransposedKernel:
    """The prepared weights of a transposed convolution, from [C, O / group, ...]."""
    w, window = accumulated(w), w.shape[2:]
    if group == 1 and strides and max(strides) > 1 and max(dilations or [1]) == 1 and cpu_primitives.packs(w, group):
        return TransposedKernel(phases(w, strides), window, phased=True)
    per_group = w.reshape([group, w.shape[0] // group, *w.shape[1:]])
    kernel = per_group.transpose([0, 2, *range(3, w.ndim + 1), 1])
    kernel = kernel.reshape([-1, *kernel.shape[2:]])
    reverse = (slice(None), *[slice(None, None, -1)] * len(window))
    return TransposedKernel(Kernel.of(kernel[reverse], group), window, phased=False)


def phases(w: Array, strides: Sequence[int]) -> Kernel:
    """From [C, O, ...]: output stride * q + phase is the sum over the inputs q - t times element phase + stride * t."""
    taps = [-(-size // stride) for size, stride in zip(w.shape[2:], strides, strict=True)]
    missing = [(0, t * stride - size) for t, stride, size in zip(taps, strides, w.shape[2:], strict=True)]
    split = mx.pad(w, [(0, 0), (0, 0), *missing]).reshape([*w.shape[:2], *chain(*zip(taps, strides, strict=True))])
    split = split[(slice(None), slice(None), *[slice(None, None, -1), slice(None)] * len(taps))]
    kernel = split.transpose([*range(3, split.ndim, 2), 1, *range(2, split.ndim, 2), 0])
    return Kernel.of(kernel.reshape([-1, *taps, w.shape[0]]), 1)


def convolve_phases(
    x: Array, w: Kernel, b: Array | None, strides: Sequence[int], start: Sequence[int], count: Sequence[int]
) -> Array:
    """[N, C, ...]: `count` outputs from `start` on of the transposed convolution without padding."""
    first = [begin // stride for begin, stride in zip(start, strides, strict=True)]
    ends = [-(-(begin + n) // stride) for begin, n, stride in zip(start, count, strides, strict=True)]
    before = [taps - 1 - begin for taps, begin in zip(w.window, first, strict=True)]
    after = [end - length for end, length in zip(ends, x.shape[2:], strict=True)]
    every = None if b is None else mx.tile(b, math.prod(strides))
    y = convolve(x, w, every, Window.of(x.shape[2:], w.window, pads=[*before, *after]), 1)
    rank, lengths, channels = len(strides), y.shape[2:], y.shape[1] // math.prod(strides)
    split = y.transpose(channels_last(y.ndim)).reshape([x.shape[0], *lengths, *strides, channels])
    order = [0, *chain(*((1 + axis, 1 + rank + axis) for axis in range(rank))), 1 + 2 * rank]
    sizes = [length * stride for length, stride in zip(lengths, strides, strict=True)]
    joined = split.transpose(order).reshape([x.shape[0], *sizes, channels])
    skipped = [begin - at * stride for begin, at, stride in zip(start, first, strides, strict=True)]
    kept = [slice(begin, begin + n) for begin, n in zip(skipped, count, strict=True)]
    return joined[(slice(None), *kept)].transpose(channels_first(x.ndim))


@op("ConvTranspose", since=1, dtypes=SINGLES, claim=one_to_three_axes, prepare={"w": transposed_kernel})
def conv_transpose(
    x: Array,
    w: TransposedKernel,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    rank = x.ndim - 2
    strides, dilations, extra = strides or [1] * rank, dilations or [1] * rank, output_padding or [0] * rank
    pads = pads or [0] * (2 * rank)
    before, after, cuts, targets = [], [], [], []
    for axis, length in enumerate(x.shape[2:]):
        reach = dilations[axis] * (w.window[axis] - 1)
        full = strides[axis] * (length - 1) + extra[axis] + reach + 1
        if output_shape:
            target = output_shape[-rank + axis]
        elif auto_pad.startswith("SAME"):
            target = length * strides[axis]
        else:
            target = full - pads[axis] - pads[rank + axis]
        cut = pads[axis]
        if output_shape or auto_pad.startswith("SAME"):
            total = max(full - target, 0)
            cut = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        cuts.append(cut)
        targets.append(target)
        # the same sum seen from the output: a correlation of the stretched input with the reversed kernel
        before.append(reach - cut)
        after.append(target - 1 - strides[axis] * (length - 1) + cut)
    data, weights = accumulated(x), w.kernel.weights
    if w.phased:
        return narrow(convolve_phases(data, w.kernel, b, strides, cuts, targets), x.dtype)
    if isinstance(weights, Packed) or not on_cpu() or min(*before, *after) < 0:
        # MLX crops what negative padding takes off before it stretches the input; on CUDA it computes stretched
        # convolutions with uneven padding wrongly
        wide = stretched(data.transpose(channels_last(x.ndim)), strides)
        # the zeros after the last element are part of the padding
        after = [width - (stride - 1) for width, stride in zip(after, strides, strict=True)]
        wide, padding = cropped(wide, before, after)
        window = Window.of(wide.shape[1:-1], w.window, dilations=dilations, pads=[*padding[0], *padding[1]])
        return narrow(convolve(wide.transpose(channels_first(x.ndim)), w.kernel, b, window, group), x.dtype)
    geometry: dict[str, Any] = {"padding": (before, after), "kernel_dilation": dilations, "input_dilation": strides}
    return channels_last_conv(data, weights, b, group, **geometry).astype(x.dtype)
