"""Fourier transforms. MLX's are complex64: float32 accuracy, so float64 is declined."""

from __future__ import annotations

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.ops.axes import axis_of
from ort_ep.registry import SINGLES, op


def to_complex(x: Array) -> Array:
    """[..., 1] real or [..., 2] real and imaginary -> [...]."""
    wide = x.astype(mx.float32)
    real = wide[..., 0]
    imaginary = wide[..., 1] if x.shape[-1] == 2 else mx.zeros_like(real)
    return real.astype(mx.complex64) + imaginary.astype(mx.complex64) * mx.array(1j, mx.complex64)


def from_complex(x: Array) -> Array:
    return mx.stack([mx.real(x), mx.imag(x)], -1)


@op("DFT", since=17, host=("dft_length",), dtypes=SINGLES)
def dft_17(
    x: Array, dft_length: np.ndarray | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Array:
    return dft(x, dft_length, np.array(axis), inverse=inverse, onesided=onesided)


@op("DFT", since=20, host=("dft_length", "axis"), dtypes=SINGLES)
def dft(
    x: Array,
    dft_length: np.ndarray | None = None,
    axis: np.ndarray | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Array:
    along = axis_of(-2 if axis is None else int(axis.item()), x.ndim)
    half = bool(inverse and onesided)
    length = x.shape[along] if not half else 2 * (x.shape[along] - 1)
    length = length if dft_length is None else int(dft_length.item())
    signal = to_complex(x)
    if half:
        return mx.fft.irfft(signal, length, along)[..., None].astype(x.dtype)
    result = mx.fft.ifft(signal, length, along) if inverse else mx.fft.fft(signal, length, along)
    if onesided:
        result = result[(slice(None),) * along + (slice(0, length // 2 + 1),)]
    return from_complex(result).astype(x.dtype)


@op("STFT", since=17, host=("frame_step", "frame_length"), dtypes=SINGLES)
def stft(
    signal: Array,
    frame_step: np.ndarray,
    window: Array | None = None,
    frame_length: np.ndarray | None = None,
    *,
    onesided: int = 1,
) -> Array:
    if frame_length is not None:
        length = int(frame_length.item())
    elif window is not None:
        length = window.shape[0]
    else:
        raise ValueError("STFT needs a window or a frame length")
    if length > signal.shape[1]:
        raise ValueError(f"STFT with frames of {length} of a signal of {signal.shape[1]}")
    step = int(frame_step.item())
    starts = np.arange(0, signal.shape[1] - length + 1, step)
    positions = mx.array(starts[:, None] + np.arange(length))
    frames = mx.take(to_complex(signal), positions, 1)
    frames = frames if window is None else frames * window.astype(mx.complex64)
    spectrum = mx.fft.fft(frames, length, 2)
    return from_complex(spectrum[..., : length // 2 + 1] if onesided else spectrum).astype(signal.dtype)
