"""Fourier transforms against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Check = Callable[..., None]
Draw = Callable[..., Any]


def pairs(x: Any) -> Any:
    return np.stack([x.real, x.imag], -1).astype(np.float32)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("length", [None, 4, 9])
@pytest.mark.parametrize("axis", [0, 1])
def test_dft(check: Check, draw: Draw, parts: int, length: int | None, axis: int) -> None:
    x = draw(np.float32, 6, 7, parts)
    signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    points = None if length is None else np.array(length)
    check("DFT", x, points, np.array(axis), expect=pairs(np.fft.fft(signal, length, axis)), atol=1e-4)
    check("DFT", x, points, np.array(axis), expect=pairs(np.fft.ifft(signal, length, axis)), inverse=1, atol=1e-4)
    check("DFT", x, points, expect=pairs(np.fft.fft(signal, length, axis)), opset=17, axis=axis, atol=1e-4)
    if parts == 1:
        half = pairs(np.fft.rfft(signal, length, axis))
        check("DFT", x, points, np.array(axis), expect=half, onesided=1, atol=1e-4)


def test_back_from_one_side(check: Check, draw: Draw) -> None:
    x = draw(np.float32, 3, 5, 2)
    real = np.fft.irfft(x[..., 0] + 1j * x[..., 1], axis=1)[..., None].astype(np.float32)
    check("DFT", x, None, np.array(1), expect=real, onesided=1, inverse=1, atol=1e-4)


@pytest.mark.parametrize("onesided", [0, 1])
def test_short_time(check: Check, draw: Draw, onesided: int) -> None:
    signal, window = draw(np.float32, 2, 40, 1), np.hanning(16).astype(np.float32)
    check("STFT", signal, np.array(8), window, expect="cpu", opset=17, onesided=onesided, atol=1e-4)
    check("STFT", signal, np.array(5), None, np.array(16), expect="cpu", opset=17, onesided=onesided, atol=1e-4)


def test_double_precision_is_declined(reasons: Callable[..., list[str]]) -> None:
    assert "float64" in reasons("DFT", np.zeros((1, 4, 1)))[0]
