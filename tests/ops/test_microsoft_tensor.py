"""Operators of com.microsoft that move, transform or compare tensors, against ORT's CPU kernels or numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ort_ep.ops import microsoft_tensor

Check = Callable[..., None]
Draw = Callable[..., Any]
MICROSOFT = "com.microsoft"


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(check: Check, draw: Draw, dtype: Any, upper: int) -> None:
    check("Trilu", draw(dtype, 2, 3, 4), np.array(1), domain=MICROSOFT, upper=upper, constants=[1])


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16, np.bool_])
def test_gather_nd(check: Check, draw: Draw, dtype: Any) -> None:
    check("GatherND", draw(dtype, 3, 4, 5), np.array([[0, 1], [2, 3]]), domain=MICROSOFT)
    check("GatherND", draw(dtype, 3, 4, 5), np.array([[[-1]], [[2]]], np.int32), domain=MICROSOFT)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample(check: Check, draw: Draw, mode: str, padding: str) -> None:
    x, grid = draw(np.float32, 2, 3, 5, 6), (0.6 * draw(np.float32, 2, 4, 3, 2)).astype(np.float32)
    check("GridSample", x, grid, domain=MICROSOFT, mode=mode, padding_mode=padding, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("pads", [[1, 0, 2, 1], [[1, 1, 0, 2]]])
def test_pad(check: Check, draw: Draw, mode: str, pads: list[Any]) -> None:
    value = np.array([2.5], np.float32) if mode == "constant" else None
    check("Pad", draw(np.float32, 3, 4), np.array(pads), value, domain=MICROSOFT, constants=[1], mode=mode)


def test_range_and_expand_dims(check: Check, draw: Draw) -> None:
    one, ten, three = np.array([1], np.int64), np.array(10, np.int64), np.array(3, np.int64)
    check("Range", one, ten, three, domain=MICROSOFT, constants=[0, 1, 2])
    check("Range", one, ten, domain=MICROSOFT, constants=[0, 1])
    for axis in (0, 1, -1):
        check("ExpandDims", draw(np.float32, 2, 3), np.array(axis, np.int32), domain=MICROSOFT, constants=[1])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_inverse(check: Check, draw: Draw, dtype: Any) -> None:
    x = (draw(dtype, 2, 3, 3) + 3 * np.eye(3)).astype(dtype)
    expected = np.linalg.inv(x.astype(np.float64)).astype(dtype)
    check("Inverse", x, expect=expected, domain=MICROSOFT, rtol=None if dtype is not np.float32 else 1e-4)


def test_inverse_of_a_singular_matrix_is_nan_on_cuda(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the error that it is elsewhere would end the process."""
    monkeypatch.setattr(microsoft_tensor, "on_cuda", lambda: True)
    x = np.stack([np.diag([2, 4]), np.zeros((2, 2)), [[1, 2], [2, 4]], [[0, 1], [1, 0]]]).astype(np.float32)
    nan = np.full((2, 2), np.nan)
    expected = np.stack([np.diag([0.5, 0.25]), nan, nan, x[3]]).astype(np.float32)
    check("Inverse", x, expect=expected, domain=MICROSOFT)


@pytest.mark.parametrize("ndim", [1, 2])
def test_fourier(check: Check, draw: Draw, ndim: int) -> None:
    x = draw(np.float32, 3, 6, 8)
    axes = tuple(range(-ndim, 0))
    spectrum = np.fft.rfftn(x, axes=axes)
    parts = np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32)
    check("Rfft", x, expect=parts, domain=MICROSOFT, signal_ndim=ndim, rtol=1e-4, atol=1e-4)
    check("Irfft", parts, expect=x, domain=MICROSOFT, signal_ndim=ndim, rtol=1e-4, atol=1e-5)


def test_unique(check: Check) -> None:
    check("Unique", np.array([2, 1, 1, 3, 4, 3, 2], np.float32), outputs=3, domain=MICROSOFT)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_distances(check: Check, draw: Draw, dtype: Any, metric: str) -> None:
    rtol = 1e-4 if dtype is np.float32 else None
    check("CDist", draw(dtype, 4, 5), draw(dtype, 3, 5), domain=MICROSOFT, metric=metric, rtol=rtol)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 4), (1, 1), (2, 1)])
def test_crop_and_resize(check: Check, draw: Draw, mode: str, size: tuple[int, int]) -> None:
    rois = np.array([[0, 0, 1, 1], [0.1, 0.3, 0.75, 0.9], [-0.5, 0.2, 1.5, 0.8]], np.float32)
    given = [draw(np.float32, 2, 3, 6, 7), rois, np.array([0, 1, 1], np.int32), np.array(size, np.int32)]
    check("CropAndResize", *given, constants=[3], domain=MICROSOFT, mode=mode, extrapolation_value=-2.0)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float64])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_unfold(check: Check, draw: Draw, dtype: Any, dim: int) -> None:
    check("UnfoldTensor", draw(dtype, 5, 6, 7), domain=MICROSOFT, dim=dim, size=3, step=2)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_ngram_repeats(check: Check, draw: Draw, size: int) -> None:
    ids = np.array([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4]])
    check("NGramRepeatBlock", ids, draw(np.float32, 2, 6), domain=MICROSOFT, ngram_size=size)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_gated_add(check: Check, draw: Draw, dtype: Any) -> None:
    x, y, gate = draw(dtype, 2, 3, 4), draw(dtype, 2, 3, 4), draw(dtype, 2, 3, 1)
    check("GatedAdd", x, y, gate, expect=x + y * gate, domain=MICROSOFT)


def test_all_finite(check: Check, draw: Draw) -> None:
    x, inf, nan = draw(np.float32, 3), np.array([1, np.inf], np.float32), np.array([np.nan], np.float32)
    for given, how, expected in (
        ([x], {}, True),
        ([x, inf], {}, False),
        ([x, nan], {}, False),
        ([x, inf], {"isnan_only": 1}, True),
        ([x, nan], {"isinf_only": 1}, True),
        ([x, inf], {"isinf_only": 1}, False),
    ):
        check("IsAllFinite", *given, expect=np.array(expected), domain=MICROSOFT, **how)


def test_torch_embedding(check: Check, draw: Draw) -> None:
    weight, indices = draw(np.float32, 6, 4), np.array([[0, 5], [2, 2]])
    check("TorchEmbedding", weight, indices, np.array(2), expect=weight[indices], domain=MICROSOFT, constants=[2])


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("flat", [True, False])
def test_multimodal_rotary(check: Check, draw: Draw, layout: int, interleaved: int, flat: bool) -> None:
    x = draw(np.float32, *((2, 5, 48) if flat else (2, 3, 5, 16)))
    positions = draw(np.int64, 3, 2, 5, low=0, high=10)
    how = {
        "mrope_section": [4, 2, 2],
        "mrope_layout": layout,
        "interleaved": interleaved,
        "num_heads": 3 if flat else 0,
    }
    caches = draw(np.float32, 10, 8), draw(np.float32, 10, 8)
    check("MRotaryEmbedding", x, positions, *caches, domain=MICROSOFT, **how)
