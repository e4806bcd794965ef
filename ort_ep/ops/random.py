"""Random tensors. A seed makes every call the same; without one, no two calls are."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

import mlxc_py as mx
from mlxc_py import Array
from ort_ep.dtypes import BY_NUMPY, to_mlx
from ort_ep.registry import ANY, FLOATS, op


def new_key(seed: float | None) -> Array:
    bits = secrets.randbits(63) if seed is None else int(np.float32(seed).view(np.uint32))
    return mx.random.key(bits)


def normal(shape: Sequence[int], mean: float, scale: float, seed: float | None, dtype: int) -> Array:
    return (mx.random.normal(shape, key=new_key(seed)) * scale + mean).astype(to_mlx(dtype))


def uniform(shape: Sequence[int], low: float, high: float, seed: float | None, dtype: int) -> Array:
    return mx.random.uniform(low, high, shape, key=new_key(seed)).astype(to_mlx(dtype))


@op("RandomNormal", since=1)
def random_normal(
    *, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None, shape: Sequence[int]
) -> Array:
    return normal(shape, mean, scale, seed, dtype)


@op("RandomUniform", since=1)
def random_uniform(
    *, dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float | None = None, shape: Sequence[int]
) -> Array:
    return uniform(shape, low, high, seed, dtype)


def type_like(x: Array, dtype: int | None) -> int:
    return BY_NUMPY[x.dtype.numpy].code if dtype is None else dtype


@op("RandomNormalLike", since=1, dtypes=ANY)
def random_normal_like(
    x: Array, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Array:
    return normal(x.shape, mean, scale, seed, type_like(x, dtype))


@op("RandomUniformLike", since=1, dtypes=ANY)
def random_uniform_like(
    x: Array, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0, seed: float | None = None
) -> Array:
    return uniform(x.shape, low, high, seed, type_like(x, dtype))


@op("Multinomial", since=7, dtypes=FLOATS)
def multinomial(x: Array, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Array:
    return mx.random.categorical(x.astype(mx.float32), num_samples=sample_size, key=new_key(seed)).astype(to_mlx(dtype))


@op("Bernoulli", since=15, dtypes=FLOATS)
def bernoulli(x: Array, *, dtype: int | None = None, seed: float | None = None) -> Array:
    # not by the schema's function body, which draws a 1 with probability 1 - x
    drawn = mx.random.uniform(0, 1, x.shape, key=new_key(seed)) < x.astype(mx.float32)
    return drawn.astype(to_mlx(type_like(x, dtype)))
