"""New arrays: constants, ranges, windows, random numbers."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from capi_compare import Case, case, compare
from capi_harness import CApi, Failed

X = np.arange(6, dtype="f4").reshape(2, 3)
HALF = np.array(0.5, "f4")

CREATED = [
    case("arange", 1.0, 7.0, 1.5, np.float32),
    case("arange", 0.0, 5.0, 1.0, np.int64),
    case("bartlett", 7),
    case("blackman", 7),
    case("hamming", 7),
    case("hanning", 7),
    case("eye", 3, 4, 1, np.float16),
    case("identity", 3, np.int32),
    case("full", (2, 3), HALF, np.float32),
    case("full_like", X, HALF, dtype=np.int32),
    case("linspace", 0.0, 1.0, 5, dtype=np.float32),
    case("linspace_endpoint", 0.0, 1.0, 5, False, np.float32,
         ref=lambda a, b, n, end, t: mx.linspace(a, b, n, dtype=t, endpoint=end)),
    case("ones", (2, 3), np.int8),
    case("ones_like", X),
    case("ones_like_dtype", X, np.uint8, ref=lambda a, t: mx.ones_like(a, t)),
    case("zeros", (0, 3), np.float32),
    case("zeros", (), np.bool_),
    case("zeros_like", X),
    case("zeros_like_dtype", X, np.complex64, ref=lambda a, t: mx.zeros_like(a, t)),
    case("tri", 3, 4, -1, np.float32),
]  # fmt: skip


@pytest.mark.parametrize("c", CREATED)
def test_creation(capi: CApi, c: Case) -> None:
    compare(capi, c)


KEY = np.array(mx.random.key(7))
LOGITS = np.log(np.array([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1]], "f4"))
MEAN, COVARIANCE = np.zeros(2, "f4"), np.eye(2, dtype="f4")
LOW, HIGH = np.array(-1.0, "f4"), np.array(2.0, "f4")


RANDOM = [
    case("random_key", 7),
    case("random_split", KEY, ref=lambda key: list(mx.random.split(key))),
    case("random_split_num", KEY, 3),
    case("random_bernoulli", HALF, (4, 5), KEY),
    case("random_categorical", LOGITS, -1, KEY, ref=lambda a, axis, key: mx.random.categorical(a, axis, key=key)),
    case("random_categorical_num_samples", LOGITS, 1, 6, KEY,
         ref=lambda a, axis, n, key: mx.random.categorical(a, axis, num_samples=n, key=key)),
    case("random_categorical_shape", LOGITS, 1, (4, 2), KEY,
         ref=lambda a, axis, shape, key: mx.random.categorical(a, axis, shape=shape, key=key)),
    case("random_gumbel", (3, 4), np.float32, KEY),
    case("random_laplace", (3, 4), np.float32, 1.0, 2.0, KEY),
    case("random_multivariate_normal", MEAN, COVARIANCE, (5,), np.float32, KEY),
    case("random_normal", (3, 4), np.float32, 1.0, 2.0, KEY),
    case("random_normal_broadcast", (3, 4), np.float32, HALF, None, KEY),
    case("random_permutation", X, 1, KEY),
    case("random_permutation_arange", 9, key=KEY),
    case("random_randint", np.array(2, "i4"), np.array(9, "i4"), (10,), np.int32, KEY),
    case("random_truncated_normal", LOW, HIGH, (10,), np.float32, KEY),
    case("random_uniform", LOW, HIGH, (10,), np.float32, KEY),
]  # fmt: skip


@pytest.mark.parametrize("c", RANDOM)
def test_random(capi: CApi, c: Case) -> None:
    compare(capi, c)


@pytest.mark.parametrize(("width", "dtype"), [(1, np.uint8), (2, np.uint16), (4, np.uint32)])
def test_random_bits(capi: CApi, width: int, dtype: type) -> None:
    got = capi.op("random_bits", (1000,), width, KEY)
    assert got.dtype == dtype
    ones = np.unpackbits(got.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 0.03
    np.testing.assert_array_equal(got, capi.op("random_bits", (1000,), width, KEY))
    with pytest.raises(Failed):
        capi.op("random_bits", (3,), 3, KEY)


def test_seed(capi: CApi) -> None:
    def draw() -> Any:
        capi.op("random_seed", 11)
        return capi.op("random_normal", (4,), np.float32, 0.0, 1.0, None)

    first = draw()
    np.testing.assert_array_equal(first, draw())
    mx.random.seed(11)
    np.testing.assert_array_equal(first, np.array(mx.random.normal((4,))))
