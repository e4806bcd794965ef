"""Products with block-quantised weights against ONNX Runtime's CPU kernels and dequantisation in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import cpu_packed
from ort_ep.ops import nbits

Check = Callable[..., None]
Draw = Callable[..., Any]
Host = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"


def stream(levels: Host, bits: int) -> Host:
    """uint8 [..., n] -> bytes [..., ceil(n * bits / 8)], the lowest bits first."""
    digits = (levels[..., None] >> np.arange(bits)) & 1
    return np.packbits(digits.reshape(*levels.shape[:-1], -1).astype(np.uint8), axis=-1, bitorder="little")


def weights(draw: Draw, n: int, k: int, bits: int, block: int, zero: str, dtype: Any) -> tuple[Host, list[Any]]:
    """Dequantised [n, k] in double precision, and B, scales and zero points as the operator takes them."""
    blocks = -(-k // block)
    levels = draw(np.uint8, n, blocks, block, high=2**bits)
    scales = (0.05 * draw(np.float32, n, blocks)).astype(dtype)
    points = draw(np.uint8, n, blocks, high=2**bits)
    zeros: Host = points.astype(np.float64)
    given: Any = stream(points, bits)
    if zero == "float":
        given = (points + draw(np.float32, n, blocks)).astype(dtype)
        zeros = given.astype(np.float64)
    elif zero == "none":
        given, zeros = None, np.full((n, blocks), 2.0 ** (bits - 1))
    plain = (levels - zeros[..., None]) * scales.astype(np.float64)[..., None]
    return plain.reshape(n, -1)[:, :k], [stream(levels, bits), scales, given]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("zero", ["none", "packed"])
@pytest.mark.parametrize("rows", [1, 20])
def test_against_the_cpu_kernel(check: Check, draw: Draw, bits: int, block: int, zero: str, rows: int) -> None:
    _, given = weights(draw, 10, 512, bits, block, zero, np.float32)
    a, bias = draw(np.float32, 2, rows, 512), draw(np.float32, 10)
    how = {"K": 512, "N": 10, "bits": bits, "block_size": block, "constants": [1, 2, 3], "domain": MICROSOFT}
    check("MatMulNBits", a, *given, None, bias, rtol=1e-3, atol=1e-3, **how)


@pytest.mark.parametrize("rows", [1, 20])
def test_products_of_mlx_alone(check: Check, draw: Draw, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(cpu_packed, "serves", lambda *_: False)
    for block in (16, 32, 256):
        test_against_the_cpu_kernel(check, draw, 4, block, "packed", rows)


def test_the_form_that_cuda_gets(check: Check, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_packed, "serves", lambda *_: False)
    monkeypatch.setattr(nbits, "on_cuda", lambda: True)
    test_against_the_cpu_kernel(check, draw, 4, 32, "packed", 1)
    monkeypatch.setattr(mx, "quantized_matmul", None)  # not for rows of one group
    test_against_numpy(check, draw, np.float32, 4, 64, "packed", 64)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("zero", ["none", "packed", "float"])
@pytest.mark.parametrize("k", [64, 40])
def test_against_numpy(check: Check, draw: Draw, dtype: Any, bits: int, block: int, zero: str, k: int) -> None:
    plain, given = weights(draw, 6, k, bits, block, zero, dtype)
    a = draw(dtype, 3, k)
    expected = (a.astype(np.float64) @ plain.T).astype(dtype)
    how = {"K": k, "N": 6, "bits": bits, "block_size": block, "domain": MICROSOFT}
    tolerance = {np.float16: 5e-3, ml_dtypes.bfloat16: 3e-2}.get(dtype, 1e-4)
    check("MatMulNBits", a, *given, expect=expected, rtol=tolerance, atol=tolerance, **how)


def test_group_index(check: Check, draw: Draw) -> None:
    levels, scales = draw(np.uint8, 6, 2, 32, high=16), draw(np.float32, 6, 2)
    points, groups, a = draw(np.uint8, 6, 2, high=16), draw(np.int32, 64, low=0, high=2), draw(np.float32, 3, 64)
    plain = (levels.reshape(6, 64).astype(np.float64) - points[:, groups]) * scales[:, groups]
    given = [stream(levels, 4), scales, stream(points, 4), groups]
    expected = (a @ plain.T).astype(np.float32)
    check("MatMulNBits", a, *given, expect=expected, domain=MICROSOFT, K=64, N=6, block_size=32, rtol=1e-4)


def test_flat_scales_and_empty_operands(check: Check, draw: Draw) -> None:
    plain, given = weights(draw, 6, 64, 4, 32, "packed", np.float32)
    a, flat = draw(np.float32, 3, 64), [given[0], given[1].ravel(), given[2].ravel()]
    how = {"domain": MICROSOFT, "K": 64, "N": 6, "block_size": 32}
    check("MatMulNBits", a, *flat, expect=(a @ plain.T).astype(np.float32), rtol=1e-4, **how)
    check("MatMulNBits", a[:0], *given, expect=np.zeros((0, 6), np.float32), **how)
    check("MatMulNBits", a, given[0][:, :0], *given[1:], expect=np.zeros((3, 6), np.float32), **how)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_gather_bytes(check: Check, draw: Draw, bits: int, zero: bool, dtype: Any, index: Any) -> None:
    levels, scales = draw(np.uint8, 5, 3, 64, high=2**bits), draw(dtype, 5, 3, 4)
    points = stream(draw(np.uint8, 5, 3, 4, high=2**bits), bits) if zero else None
    rows = np.array([[0, 4], [-1, 2]], index)
    how = {"bits": bits, "block_size": 16, "quantize_axis": 2, "domain": MICROSOFT}
    check("GatherBlockQuantized", stream(levels, bits), rows, scales, points, constants=[0, 2, 3], **how)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (0, 2), (2, 1)])
@pytest.mark.parametrize("zero", [True, False])
def test_gather_nibbles(check: Check, draw: Draw, dtype: Any, axes: tuple[int, int], zero: bool) -> None:
    gather, quantize = axes
    shape, blocks = [4, 4, 4], [4, 4, 4]
    shape[quantize], blocks[quantize] = 32, 2
    low = -8 if dtype is ml_dtypes.int4 else 0
    data, scales = draw(np.int8, *shape, low=low, high=low + 16), draw(np.float32, *blocks)
    points = draw(np.int8, *blocks, low=low, high=low + 16) if zero else np.zeros(blocks, np.int8)
    rows = np.array([0, -2, 3, 9], np.int64)
    plain = (data - np.repeat(points, 16, quantize)) * np.repeat(scales, 16, quantize)
    expected = np.take(plain, rows.clip(-4, 3), gather).astype(np.float32)
    expected[(slice(None),) * gather + (3,)] = 0  # an index beyond the axis
    given = [data.astype(dtype), rows, scales, points.astype(dtype) if zero else None]
    how = {"gather_axis": gather, "quantize_axis": quantize, "block_size": 16, "domain": MICROSOFT}
    check("GatherBlockQuantized", *given, expect=expected, constants=[0, 2, 3], **how)


@pytest.mark.parametrize("quant_type", [0, 1])
@pytest.mark.parametrize("block", [16, 64])
def test_bitsandbytes(check: Check, draw: Draw, quant_type: int, block: int) -> None:
    a, packed = draw(np.float32, 3, 64), draw(np.uint8, 6 * 32, high=256)
    absmax = np.abs(draw(np.float32, 6 * 64 // block))
    how = {"K": 64, "N": 6, "block_size": block, "quant_type": quant_type, "domain": MICROSOFT}
    check("MatMulBnb4", a, packed, absmax, rtol=1e-4, atol=1e-5, constants=[1, 2], **how)
