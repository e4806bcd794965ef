"""Quantising and its inverse over ranks, axes, blocks and absent zero points; products of integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from drawn import SEEDS, broadcast, shapes, values
from hypothesis import given
from hypothesis import strategies as st

Check = Callable[..., None]
LEVELS = st.sampled_from(["int8", "uint8", "int16", "uint16"])


@given(seed=SEEDS, shape=shapes(least=1, most=5), dtype=LEVELS, zero=st.booleans(), data=st.data())
def test_there_and_back(
    check: Check, seed: int, shape: tuple[int, ...], dtype: str, zero: bool, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    form = data.draw(st.sampled_from(["tensor", "axis", "block"] if 0 not in shape else ["tensor", "axis"]))
    extent = {"tensor": (), "axis": (shape[axis],)}.get(form, list(shape))
    block = 0
    if form == "block":
        block = data.draw(st.integers(1, shape[axis]))
        extent = list(shape)
        extent[axis] = -(-shape[axis] // block)
    random = np.random.default_rng(seed)
    scale = (2.0 ** random.integers(-2, 3, extent)).astype(np.float32)
    zeros = random.integers(0, 5, extent).astype(dtype) if zero else None
    x = (10 * values(seed, "float32", shape)).astype(np.float32)

    def spread(row: Any) -> Any:
        if form == "axis":
            return row.reshape([-1 if index == axis % len(shape) else 1 for index in range(len(shape))])
        if form == "block":
            return np.take(row.repeat(block, axis), np.arange(shape[axis]), axis)
        return row

    limits, shift = np.iinfo(dtype), 0 if zeros is None else spread(zeros).astype(np.float64)
    quantised = np.clip(np.round(x / spread(scale)) + shift, limits.min, limits.max).astype(dtype)
    how: dict[str, Any] = {"axis": axis} | ({"block_size": block} if block else {})
    code = {"int8": 3, "uint8": 2, "int16": 5, "uint16": 4}[dtype]
    named = {} if zero else {"output_dtype": code}
    check("QuantizeLinear", x, scale, zeros, expect=quantised, opset=21, **how, **named)
    expect = ((quantised.astype(np.float64) - shift) * spread(scale)).astype(np.float32)
    check("DequantizeLinear", quantised, scale, zeros, expect=expect, opset=21, **how)


@given(seed=SEEDS, shape=shapes(smallest=1))
def test_dynamic(check: Check, seed: int, shape: tuple[int, ...]) -> None:
    check("DynamicQuantizeLinear", values(seed, "float32", shape), outputs=3)


@given(
    seed=SEEDS,
    batch=broadcast(2),
    sizes=st.tuples(*[st.integers(0, 5)] * 3),
    kinds=st.tuples(*[st.sampled_from(["int8", "uint8"])] * 2),
    zeros=st.tuples(st.booleans(), st.sampled_from(["absent", "one", "columns"])),
)
def test_integer_products(
    check: Check, seed: int, batch: Any, sizes: tuple[int, ...], kinds: tuple[str, str], zeros: tuple[bool, str]
) -> None:
    m, k, n = sizes
    random = np.random.default_rng(seed)

    def levels(dtype: str, extent: Any) -> Any:
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max + 1, extent).astype(dtype)

    a, b = levels(kinds[0], (*batch[0], m, k)), levels(kinds[1], (*batch[1], k, n))
    zero_a = levels(kinds[0], ()) if zeros[0] else None
    zero_b = None if zeros[1] == "absent" else levels(kinds[1], () if zeros[1] == "one" else (n,))
    left, right = a.astype(np.int32), b.astype(np.int32)
    left = left if zero_a is None else left - zero_a.astype(np.int32)
    right = right if zero_b is None else right - zero_b.astype(np.int32)
    check("MatMulInteger", a, b, zero_a, zero_b, expect=np.matmul(left, right))
