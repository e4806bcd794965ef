"""Whether float32 products and convolutions on a GPU round their factors to TF32's 10 bits, as MLX's do by default.

MLX reads the environment variable MLX_ENABLE_TF32 once, at the first product in the process, and never again. Set it to
0 before that, or call `choose`, where results must be float32's own.
"""

from __future__ import annotations

import os
import threading

import mlxc_py as mx

VARIABLE = "MLX_ENABLE_TF32"
_lock = threading.Lock()
_measured: bool | None = None


def choose(wanted: bool) -> bool:
    """Ask for TF32 or for float32; returns what this process does, the other one where MLX has decided before."""
    with _lock:
        if _measured is None:
            os.environ[VARIABLE] = "1" if wanted else "0"
        return _once()


def enabled() -> bool:
    """What this process does on the GPU, told from one product; False without a GPU. From then on it is decided."""
    with _lock:
        return _once()


def _once() -> bool:
    global _measured
    if _measured is None:
        _measured = mx.is_available(mx.gpu) and _product_loses_bits(mx.gpu)
    return _measured


def _product_loses_bits(device: mx.DeviceType) -> bool:
    with mx.stream(device):
        fine = mx.full((128, 128), 1 + 2**-12)  # float32 holds it, TF32 makes it 1
        return bool((mx.matmul(fine, mx.eye(128)).max() == 1).item())
