"""Shape operators: at run time, folded on the host, at the spec's edges, and over random shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

Check = Callable[..., None]
Draw = Callable[..., Any]
TYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    ml_dtypes.bfloat16,
]
SHAPES = st.lists(st.integers(0, 4), max_size=5).map(tuple)
FEW = settings(max_examples=40, deadline=None)


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_dtype(check: Check, draw: Draw, dtype: Any) -> None:
    x = draw(dtype, 2, 3, 4)
    check("Identity", x, expect=x)
    check("Reshape", x, ints(0, -1), expect=x.reshape(2, 12), constants=(1,))
    check("Flatten", x, expect=x.reshape(6, 4), axis=2)
    check("Transpose", x, expect=x.transpose(1, 2, 0), perm=[1, 2, 0])
    check("Concat", x, x[:1], expect=np.concatenate([x, x[:1]]), axis=0)
    check("Slice", x, ints(1), ints(9), ints(2), ints(2), expect=x[:, :, 1:9:2], constants=(1, 2, 3, 4))
    check("Expand", x[:, :1], ints(5, 1, 3, 1), expect=np.broadcast_to(x[:, :1], (5, 2, 3, 4)), constants=(1,))
    check("Tile", x, ints(1, 2, 3), expect=np.tile(x, (1, 2, 3)), constants=(1,))
    check("Split", x, ints(1, 3), expect=[x[:, :, :1], x[:, :, 1:]], axis=2, outputs=2, constants=(1,))
    check("Unsqueeze", x, ints(0, -1), expect=x[None, ..., None], constants=(1,))
    check("Squeeze", x[:, :1], ints(1), expect=x[:, 0], constants=(1,))
    check("Shape", x, expect=ints(2, 3, 4))
    check("Size", x, expect=np.array(24))


@pytest.mark.parametrize(
    ("shape", "target", "allowzero"),
    [
        ((2, 3), (0, -1), 0),
        ((0, 3), (3, 0), 1),
        ((6,), (1, -1, 2), 0),
        ((1,), (), 0),
        ((), (1, 1), 0),
    ],
)
def test_reshape(check: Check, shape: tuple[int, ...], target: tuple[int, ...], allowzero: int) -> None:
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    check("Reshape", x, ints(*target), expect="cpu", allowzero=allowzero, constants=(1,))
    check("Reshape", x, ints(*target), expect="cpu", allowzero=allowzero)


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        (0, 2**63 - 1, 1),
        (-1, -(2**63), -1),
        (-1, -(2**31), -2),
        (2**31 - 1, -(2**31), -1),
        (3, 1, 1),
        (-100, 100, 3),
        (5, 0, -1),
        (1, 4, 2**31),
        (0, 0, 1),
        (-9, -8, 1),
    ],
)
def test_slice_bounds(check: Check, start: int, end: int, step: int) -> None:
    x = np.arange(14, dtype=np.float32).reshape(2, 7)
    check("Slice", x, ints(start), ints(end), ints(1), ints(step), expect=x[:, start:end:step], constants=(1, 2, 3, 4))


def test_slice_by_attributes(check: Check, draw: Draw) -> None:
    x = draw(np.float32, 4, 5)
    check("Slice", x, expect=x[1:3, 0:-1], opset=9, starts=[1, 0], ends=[3, -1])
    check("Slice", x, expect=x[:, 2:5], opset=9, starts=[2], ends=[1000], axes=[1])


def test_slice_with_int32_and_runtime_bounds(check: Check, draw: Draw) -> None:
    x = draw(np.float32, 4, 5)
    check("Slice", x, np.array([1], np.int32), np.array([3], np.int32), expect=x[1:3])


@FEW
@given(shape=SHAPES, data=st.data())
def test_slice_of_anything(check: Check, shape: tuple[int, ...], data: st.DataObject) -> None:
    x = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    if not shape:
        return
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    start, end = data.draw(st.integers(-6, 6)), data.draw(st.integers(-6, 6))
    step = data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))
    check("Slice", x, ints(start), ints(end), ints(axis), ints(step), constants=(1, 2, 3, 4))


@FEW
@given(shape=SHAPES, order=st.randoms(use_true_random=False))
def test_transpose_of_anything(check: Check, shape: tuple[int, ...], order: Any) -> None:
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    perm = list(range(len(shape)))
    order.shuffle(perm)
    check("Transpose", x, expect=x.transpose(perm), **({"perm": perm} if perm else {}))
    check("Transpose", x, expect=x.T)


@FEW
@given(shapes=st.lists(SHAPES, min_size=2, max_size=2))
def test_expand_of_anything(check: Check, shapes: list[tuple[int, ...]]) -> None:
    try:
        target = np.broadcast_shapes(*shapes)
    except ValueError:
        return
    x = np.arange(np.prod(shapes[0], dtype=int), dtype=np.float32).reshape(shapes[0])
    check("Expand", x, ints(*shapes[1]), expect=np.broadcast_to(x, target), constants=(1,))


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_uneven_split(check: Check, draw: Draw, parts: int) -> None:
    x = draw(np.float32, 2, 7)
    size = -(-7 // parts)
    pieces = [x[:, i * size : (i + 1) * size] for i in range(parts)]
    check("Split", x, expect=pieces, axis=1, num_outputs=parts, outputs=parts)


def test_older_forms(check: Check, draw: Draw) -> None:
    x = draw(np.float32, 1, 4, 1)
    check("Squeeze", x, expect=x[0], opset=11, axes=[0])
    check("Squeeze", x, expect=x[0, :, 0], opset=11)
    check("Unsqueeze", x, expect=x[None, :, None], opset=11, axes=[0, 2])
    check("Split", x, expect=[x[:, :1], x[:, 1:]], opset=11, axis=1, split=[1, 3], outputs=2)
    check("Split", x, expect=[x[:, :2], x[:, 2:]], opset=11, axis=1, outputs=2)
    check("Concat", x, x, expect=np.concatenate([x, x], 1), opset=7, axis=1)


@pytest.mark.parametrize(("start", "end"), [(0, None), (1, None), (-2, None), (0, -1), (3, 1), (-9, 9)])
def test_shape_of_a_part(check: Check, start: int, end: int | None) -> None:
    attributes = {"start": start} if end is None else {"start": start, "end": end}
    x = np.zeros((2, 3, 4), np.float32)
    check("Shape", x, expect=np.array(x.shape[start:end], np.int64), **attributes)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(check: Check, draw: Draw, mode: str) -> None:
    x = draw(np.float32, 2, 12, 2, 3)
    check("DepthToSpace", x, expect="cpu", blocksize=2, mode=mode)
    check("SpaceToDepth", draw(np.float32, 2, 3, 4, 6), expect="cpu", blocksize=2)


def test_shape_arithmetic_stays_on_the_host(plan_of: Callable[..., Any], same: Check) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[N, C, H, W] x) => (float[A, B] y, int64 count) {
        zero = Constant <value_int: int = 0> ()
        two = Constant <value_int: int = 2> ()
        all = Shape (x)
        n = Gather <axis = 0> (all, zero)
        h = Gather <axis = 0> (all, two)
        rows = Mul (n, h)
        axes = Constant <value_ints: ints = [0]> ()
        row = Unsqueeze (rows, axes)
        rest = Constant <value_ints: ints = [-1]> ()
        shape = Concat <axis = 0> (row, rest)
        y = Reshape (x, shape)
        half = Div (rows, two)
        count = Cast <to = 7> (half)
    }
    """
    x = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    y, count = plan_of(onnx.parser.parse_model(text), {"x": x})
    same(y, x.reshape(8, 15))
    same(count, np.array(4))
