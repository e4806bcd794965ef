"""Weights of 2 to 8 bits in blocks that share a scale: products with them, and rows taken from them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

import mlxc_py as mx
from mlxc_py import Array, cpu_packed
from mlxc_py.cpu_primitives import Packed
from ort_ep.graph import Node
from ort_ep.ops.axes import axis_of
from ort_ep.ops.indexing import in_range
from ort_ep.ops.matmul import packed, product
from ort_ep.ops.precision import accumulated, on_cpu, on_cuda, widen
from ort_ep.registry import INDEX, MICROSOFT, SINGLES, op

UINT8 = frozenset({"uint8"})
PACKED = UINT8 | {"int4", "uint4"}
SPARE_ROWS = 6  # up to so many, reading packed weights beats unpacking them on the CPU [M 93]
GROUPS = (32, 64, 128)  # block sizes that MLX's quantised products know


class Blocks(NamedTuple):
    """Values for each block of weights [..., N, K]: w = level * gain + offset."""

    gains: Array
    offsets: Array

    @classmethod
    def of(cls, gains: Array, zero_points: Array | None, bits: int) -> Blocks:
        """Of float32 scales [..., N, blocks] and zero points, packed in their last axis or not."""
        return cls(gains, -zero_levels(zero_points, gains, bits) * gains)


class Grouped(NamedTuple):
    """Weights [..., N, K] as quantised products take them: packed into words, w = level * gain + offset."""

    words: Array
    gains: Array
    offsets: Array
    group: int


def unpacked(x: Array, bits: int) -> Array:
    """uint8 [..., bytes] -> uint8 [..., 8 * bytes // bits], the lowest bits first."""
    if bits == 8:
        return x
    if 8 % bits == 0:
        shifts = mx.array(np.arange(0, 8, bits, dtype=np.uint8))
        parts = mx.bitwise_and(mx.right_shift(x[..., None], shifts), mx.array(2**bits - 1, mx.uint8))
        return parts.reshape([*x.shape[:-1], x.shape[-1] * 8 // bits])
    count = x.shape[-1] * 8 // bits
    values = unpacked(x, 1)[..., : count * bits].reshape([*x.shape[:-1], count, bits])
    weights = mx.array((1 << np.arange(bits)).astype(np.uint8))
    return mx.sum(values * weights, -1).astype(mx.uint8)


def zero_levels(zero_points: Array | None, scales: Array, bits: int) -> Array:
    """float32 in the shape of the scales, whose last axis may be packed in the zero points."""
    if zero_points is None:
        return mx.full(scales.shape, 2 ** (bits - 1), mx.float32)
    rows = zero_points if zero_points.ndim == scales.ndim else zero_points.reshape([*scales.shape[:-1], -1])
    levels = unpacked(rows, bits) if rows.dtype == mx.uint8 else rows
    return levels[..., : scales.shape[-1]].astype(mx.float32)


def unprepared(node: Node) -> str | None:
    """No weights that are prepacked for another device."""
    return "the weights are prepacked for another device" if node.attributes.get("weight_prepacked", 0) else None


def nbits_weights(
    b: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
) -> Grouped | Array | Packed:
    """The prepared weights: as they are packed, or floats where MLX's products don't take them so."""
    rows = b.reshape([N, -1])
    if not b.size:
        return mx.zeros([K, N])
    blocks = Blocks.of(widen(scales).reshape([N, -(-K // block_size)]), zero_points, bits)
    if g_idx is None and cpu_packed.serves(blocks.gains, bits) and block_size * bits % 32 == 0:
        return Grouped(mx.view(rows, mx.uint32), *blocks, block_size)
    if g_idx is None and (layout := grouped(rows, blocks, bits, block_size)) is not None:
        return layout
    if g_idx is None:
        return packed(dequantized(rows, blocks, bits, block_size)[:, :K].T, b.evaluated)
    groups = in_range(g_idx, blocks.gains.shape[1])
    levels = unpacked(rows, bits)[:, :K].astype(mx.float32)
    weights = levels * mx.take(blocks.gains, groups, 1) + mx.take(blocks.offsets, groups, 1)
    return packed(weights.T, b.evaluated)


@op(
    "MatMulNBits",
    domain=MICROSOFT,
    dtypes={"a": SINGLES, "b": UINT8, "scales": SINGLES, "zero_points": SINGLES | UINT8},
    claim=unprepared,
    prepare={("b", "scales", "zero_points", "g_idx"): nbits_weights},
)
def matmul_nbits(
    a: Array,
    b: Grouped | Array | Packed,
    scales: None,
    zero_points: None = None,
    g_idx: None = None,
    bias: Array | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Array:
    if not a.size:
        total = mx.zeros([*a.shape[:-1], N], a.dtype)
    elif isinstance(b, Grouped):
        total = grouped_product(a, b, bits)
    else:
        total = product(accumulated(a), b)
    return (total if bias is None else total + widen(bias)).astype(a.dtype)


def grouped_product(a: Array, b: Grouped, bits: int) -> Array:
    """a @ w.T in float32; w's last axis may be longer than a's."""
    missing = b.gains.shape[1] * b.group - a.shape[-1]
    if missing:
        a = mx.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, missing)])
    if cpu_packed.serves(wide := widen(a), bits):
        return cpu_packed.product(wide, b.words, b.gains, b.offsets, bits)
    pays = math.prod(a.shape[:-1]) <= SPARE_ROWS or not on_cpu()
    if pays and not one_group_on_cuda(a.shape[-1], b):
        return mx.quantized_matmul(wide, b.words, b.gains, b.offsets, True, b.group, bits)
    return mx.matmul(accumulated(a), mx.dequantize(b.words, b.gains, b.offsets, b.group, bits).T)


def one_group_on_cuda(columns: int, layout: Grouped) -> bool:
    """What MLX 0.32.4 has a kernel of its own for (supports_qmm_sm90), whose products are wrong."""
    return on_cuda() and columns <= layout.group


def grouped(packed: Array, blocks: Blocks, bits: int, block: int) -> Grouped | None:
    """Weights [..., N, bytes] as MLX's quantised products take them, where their blocks and bits allow it."""
    group = next((size for size in GROUPS[::-1] if block % size == 0), None)
    if group is None or bits == 7 or packed.shape[-1] % 4:
        return None
    gains, offsets = blocks if block == group else (mx.repeat(values, block // group, -1) for values in blocks)
    return Grouped(mx.view(packed, mx.uint32), gains, offsets, group)


def dequantized(packed: Array, blocks: Blocks, bits: int, block: int) -> Array:
    """float32 weights [..., N, K] of [..., N, bytes] and values for each of their blocks."""
    gains, offsets = blocks
    levels = unpacked(packed.reshape([*gains.shape, -1]), bits).astype(mx.float32)
    weights = levels * gains[..., None] + offsets[..., None]
    return weights.reshape([*gains.shape[:-1], gains.shape[-1] * block])


@op(
    "GatherBlockQuantized",
    domain=MICROSOFT,
    dtypes={"data": PACKED, "indices": INDEX, "scales": SINGLES, "zero_points": PACKED},
)
def gather_block_quantized(
    data: Array | np.ndarray,
    indices: Array,
    scales: Array,
    zero_points: Array | np.ndarray | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Array:
    axis, quantized = axis_of(gather_axis, data.ndim), axis_of(quantize_axis, data.ndim)
    length = data.shape[axis]
    rows = in_range(indices, length)
    steps = widen(mx.take(scales, rows, axis))
    if isinstance(data, np.ndarray):
        # 4-bit types, which MLX does not have
        levels, given = mx.array(data.astype(np.int8)), zero_points
        levels = mx.take(levels, rows, axis)
        zeros = None if given is None else mx.take(mx.array(np.asarray(given).astype(np.int8)), rows, axis)
    else:
        levels = unpacked(mx.take(data, rows, axis), bits)
        given = zero_points.reshape([*scales.shape[:-1], -1]) if isinstance(zero_points, Array) else None
        zeros = zero_levels(None if given is None else mx.take(given, rows, axis), steps, bits)
    quantized += indices.ndim - 1 if quantized > axis else 0
    gains = blocks_of(steps, block_size, quantized, levels.shape)
    shifted = levels.astype(mx.float32)
    if zeros is not None:
        shifted = shifted - blocks_of(zeros.astype(mx.float32), block_size, quantized, levels.shape)
    known = mx.logical_and(indices >= -length, indices < length)
    known = known.reshape([1] * axis + list(indices.shape) + [1] * (levels.ndim - axis - indices.ndim))
    return mx.where(known, shifted * gains, mx.zeros_like(shifted)).astype(scales.dtype)


def blocks_of(values: Array, block: int, axis: int, shape: tuple[int, ...]) -> Array:
    """One value for each block along an axis, repeated to the whole shape."""
    return mx.repeat(values, block, axis)[(slice(None),) * axis + (slice(0, shape[axis]),)]


FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4])
# the quantiles of a normal distribution that QLoRA's NF4 names
NF4 = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ]
)


def bnb4_weights(
    b: Array, absmax: Array, *, K: int, N: int, block_size: int, quant_type: int, transB: int = 1
) -> Array | Packed:
    """The prepared weights, as floats: MLX multiplies by no packed form of theirs."""
    table = mx.array((NF4 if quant_type else np.concatenate([FP4, -FP4])).astype(np.float32))
    pairs = mx.stack([mx.right_shift(b, 4), mx.bitwise_and(b, 15)], -1)
    codes = pairs.reshape([-1])[: N * K]
    gains = mx.repeat(widen(absmax), block_size)[: N * K]
    weights = (mx.take(table, codes) * gains).reshape([N, K])
    return packed(weights.T if transB else weights, b.evaluated)


@op(
    "MatMulBnb4",
    domain=MICROSOFT,
    dtypes={"a": SINGLES, "b": UINT8, "absmax": SINGLES},
    prepare={("b", "absmax"): bnb4_weights},
)
def matmul_bnb4(
    a: Array,
    b: Array | Packed,
    absmax: None,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Array:
    return product(accumulated(a), b).astype(a.dtype)


# by blk_quant_type: how many elements share a scale, and whether they have a zero point of their own
FP_Q4 = {0: (32, False), 1: (32, True), 2: (64, False)}


def known_blocks(node: Node) -> str | None:
    """Only the blk_quant_type that ONNX Runtime defines."""
    kind = node.attributes.get("blk_quant_type", 1)
    return None if kind in FP_Q4 else f"blk_quant_type={kind!r} is not defined"


def fp_q4_weights(b: Array, b_shape: np.ndarray | Array, *, blk_quant_type: int = 1) -> Array | Packed:
    """The prepared weights, as floats."""
    (inner, columns), (size, with_zero_point) = b_shape.tolist(), FP_Q4[blk_quant_type]
    blocks = b.reshape([columns, -(-inner // size), -1])
    scale, first = mx.view(blocks[..., :4], mx.float32), 4 + with_zero_point
    # of every 32 elements the first 16 are in the low halves of the bytes
    nibbles = blocks[..., first:].reshape([*blocks.shape[:2], size // 32, 1, 16])
    shifts = mx.array(np.array([[0], [4]], np.uint8))
    level = mx.bitwise_and(mx.right_shift(nibbles, shifts), mx.array(15, mx.uint8)).reshape([*blocks.shape[:2], size])
    zero = blocks[..., 4:5].astype(mx.float32) if with_zero_point else 8.0
    weights = ((level.astype(mx.float32) - zero) * scale).reshape([columns, -1])[:, :inner]
    return packed(weights.T, b.evaluated)


@op(
    "MatMulFpQ4",
    domain=MICROSOFT,
    host=("b_shape",),
    dtypes={"a": frozenset({"float32"}), "b": UINT8},
    claim=known_blocks,
    prepare={"b": fp_q4_weights},
)
def matmul_fp_q4(a: Array, b: Array | Packed, b_shape: np.ndarray, *, blk_quant_type: int = 1) -> Array:
    return product(a, b)
