"""Products with weights of few bits on the CPU, which are unpacked a few rows at a time, in the cache."""

from __future__ import annotations

from mlxc_py import extras
from mlxc_py.arrays import Array
from mlxc_py.dtype import float32
from mlxc_py.extras import own
from mlxc_py.state import StreamLike, on

__all__ = ["product", "serves"]


def serves(x: Array, bits: int, stream: StreamLike = None) -> bool:
    """Whether `product` takes this array and weights of so many bits: float32 on a stream of the CPU; 2, 4 or 8."""
    return x.dtype is float32 and bits in (2, 4, 8) and extras.serves(stream)


def product(x: Array, words: Array, gains: Array, offsets: Array, bits: int, *, stream: StreamLike = None) -> Array:
    """x [..., K] times the rows of w, float32 [..., N], where w is packed as by `mx.quantize`.

    words: uint32 [N, K * bits / 32]; gains, offsets: float32 [N, K / group], for groups of whole words. MLXError where
    they do not fit, or `serves(x, bits)` is false.
    """
    arrays = dict.fromkeys(("x", "words", "gains", "offsets"), "mlx_array")
    return own("mlxc_py_cpu_packed_product", **arrays, bits="int")(x, words, gains, offsets, bits, on(stream))
