"""Operators that make, move and index tensors."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from harness import Given, Maker, Unfit, case
from onnx import numpy_helper

DOMAIN = ""


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def moved(*shape: int, **attributes: Any) -> Maker:
    """An operator that needs only attributes."""
    return lambda g: case(g(0, *shape), **attributes)


def concat(g: Given) -> Any:
    return case(g(0, 2, 3), g(0, 2, 2), axis=1)


def squeeze(g: Given) -> Any:
    x = g(0, 1, 3, 1, 4)
    if g.version < 13:
        return case(x, axes=[0, 2], expect=x[0, :, 0])
    return case(x, ints(0, 2), constants=[1], expect=x[0, :, 0])


def unsqueeze(g: Given) -> Any:
    x = g(0, 3, 4)
    if g.version < 13:
        return case(x, axes=[0, 2], expect=x[None, :, None])
    return case(x, ints(0, 2), constants=[1], expect=x[None, :, None])


def reshape(g: Given) -> Any:
    x = g(0, 2, 3, 4)
    if g.version < 5:
        return case(x, shape=[0, -1], expect=x.reshape(2, 12))
    return case(x, ints(0, -1), constants=[1], expect=x.reshape(2, 12))


def slice_(g: Given) -> Any:
    x = g(0, 5, 6)
    if g.version < 10:
        return case(x, starts=[1, -4], ends=[4, 100], axes=[0, 1], expect=x[1:4, 2:])
    rows = [g.at(index + 1, values) for index, values in enumerate(([1, -1], [4, -100], [0, 1], [1, -2]))]
    return case(x, *rows, constants=[1, 2, 3, 4], expect=x[1:4, ::-2])


def split(g: Given) -> Any:
    x = g(0, 2, 6)
    expect = [x[:, :2], x[:, 2:]]
    if g.version < 13:
        return case(x, axis=1, split=[2, 4], outputs=2, expect=expect)
    return case(x, ints(2, 4), axis=1, outputs=2, constants=[1], expect=expect)


def pad(g: Given) -> Any:
    x = g(0, 2, 3)
    if g.version < 11:
        return case(x, pads=[1, 0, 0, 2], value=2.0, expect=np.pad(x, ((1, 0), (0, 2)), constant_values=2))
    value = g.at(2, 1)
    how: Any = {"constants": [1]}
    if g.version >= 18:
        expect = np.pad(x, ((0, 0), (1, 2)), constant_values=value)
        return case(x, ints(1, 2), value, g.at(3, [1]), expect=expect, constants=[1])  # ORT refuses constant int32 axes
    return case(x, ints(1, 0, 0, 2), value, expect=np.pad(x, ((1, 0), (0, 2)), constant_values=value), **how)


def tile(g: Given) -> Any:
    x = g(0, 2, 3)
    return case(x, ints(2, 2), constants=[1], expect=np.tile(x, (2, 2)))


def gather(g: Given) -> Any:
    x, at = g(0, 4, 3), g.at(1, [[0, 3], [2, 2]])
    return case(x, at, axis=0, expect=x[at])


def gather_elements(g: Given) -> Any:
    x, at = g(0, 3, 4), g.at(1, [[0, 2, 1, 0], [2, -1, 0, 1]])
    return case(x, at, axis=0, expect=np.take_along_axis(x, at.astype(np.int64) % 3, 0))


def gather_nd(g: Given) -> Any:
    x = g(0, 3, 4, 5)
    return case(x, ints(0, 1, 2, 3).reshape(2, 2), expect=x[[0, 2], [1, 3]])


def scatter_elements(g: Given) -> Any:
    x, at, updates = g(0, 3, 4), g.at(1, [[0, 2, 1, 0], [2, 1, 0, 1]]), g(2, 2, 4)
    expect = x.copy()
    np.put_along_axis(expect, at.astype(np.int64), updates, 0)
    return case(x, at, updates, axis=0, expect=expect)


def scatter_nd(g: Given) -> Any:
    x, updates = g(0, 3, 4), g(2, 2)
    expect = x.copy()
    expect[[0, 2], [1, 3]] = updates
    return case(x, ints(0, 1, 2, 3).reshape(2, 2), updates, expect=expect)


def compress(g: Given) -> Any:
    x, kept = g(0, 4, 3), np.array([True, False, True, True])
    return case(x, kept, axis=0, expect=x[kept])


def unique(g: Given) -> Any:
    x = g(0, 8, high=2)
    values, index, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    return case(x, outputs=4, expect=[values, index, inverse, counts])


def non_zero(g: Given) -> Any:
    x = g(0, 3, 4, high=1)
    return case(x, expect=np.array(np.nonzero(x)))


def one_hot(g: Given) -> Any:
    at, values = g.at(0, [0, 2, 1]), g.at(2, [0, 1])
    return case(at, g.at(1, 3), values, constants=[1], expect=np.eye(3)[[0, 2, 1]].astype(values.dtype))


def trilu(g: Given) -> Any:
    x = g(0, 3, 4)
    return case(x, np.array(1), upper=1, constants=[1], expect=np.triu(x, 1))


def eye_like(g: Given) -> Any:
    return case(g(0, 3, 4), dtype=g.code("T2"), k=1, expect=np.eye(3, 4, 1).astype(g.dtype("T2")))


def constant_of_shape(g: Given) -> Any:
    g.narrow("T1")
    value = g.at("T2", [1])
    return case(ints(2, 3), value=numpy_helper.from_array(value), constants=[0], expect=np.full((2, 3), value[0]))


def shape_of(g: Given) -> Any:
    g.narrow("T1")
    size = g.triple.name == "Size"
    return case(g(0, 2, 3), expect=np.array(6 if size else [2, 3]))


def range_(g: Given) -> Any:
    ends = g.at(0, 1), g.at(1, 10), g.at(2, 3)
    return case(*ends, constants=[0, 1, 2], expect=np.array([1, 4, 7]).astype(g.dtype(0)))


def depth_to_space(g: Given) -> Any:
    x = g(0, 1, 8, 2, 3)
    expect = x.reshape(1, 2, 2, 2, 2, 3).transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 4, 6)
    return case(x, blocksize=2, expect=expect)


def space_to_depth(g: Given) -> Any:
    x = g(0, 1, 2, 4, 6)
    expect = x.reshape(1, 2, 2, 2, 3, 2).transpose(0, 3, 5, 1, 2, 4).reshape(1, 8, 2, 3)
    return case(x, blocksize=2, expect=expect)


def reverse_sequence(g: Given) -> Any:
    x = g(0, 4, 2)
    expect = x.copy()
    expect[:3, 0], expect[:2, 1] = x[2::-1, 0], x[1::-1, 1]
    return case(x, ints(3, 2), expect=expect)


def expand(g: Given) -> Any:
    x = g(0, 3, 1)
    return case(x, ints(2, 1, 4), constants=[1], expect=np.broadcast_to(x, (2, 3, 4)))


def tensor_scatter(g: Given) -> Any:
    cache, update = g(0, 2, 5, 3), g(1, 2, 2, 3)
    expect = cache.copy()
    expect[0, 1:3], expect[1, 3:5] = update
    return case(cache, update, ints(1, 3), axis=1, expect=expect)


def col_to_image(g: Given) -> Any:
    x = g(0, 1, 4, 9)
    expect = np.zeros((1, 1, 4, 4))
    for row, column in np.ndindex(3, 3):
        expect[0, 0, row : row + 2, column : column + 2] += x[0, :, 3 * row + column].reshape(2, 2)
    return case(x, ints(4, 4), ints(2, 2), constants=[1, 2], expect=expect.astype(x.dtype))


def center_crop_pad(g: Given) -> Any:
    return case(g(0, 4, 3), g.at(1, [2, 5]), constants=[1])


def einsum(g: Given) -> Any:
    return case(g(0, 2, 3, 4, high=2), g(0, 2, 4, 5, high=2), equation="bij,bjk->bik")


def resize(g: Given) -> Any:
    x = g(0, 1, 2, 3, 4)
    scales = np.array([1, 1, 2, 2], np.float32)
    if g.version < 11:
        return case(x, scales, mode="nearest", constants=[1])
    roi = g.at(1, [])
    sizes = ints(1, 2, 6, 8)
    how: Any = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return case(x, roi, np.array([], np.float32) if g.version < 13 else None, sizes, constants=[1, 2, 3], **how)


def upsample(g: Given) -> Any:
    x = g(0, 1, 2, 3, 4)
    expect = x.repeat(2, 2).repeat(3, 3)
    if g.version < 9:
        return case(x, mode="nearest", scales=[1.0, 1.0, 2.0, 3.0], expect=expect)
    return case(x, np.array([1, 1, 2, 3], np.float32), mode="nearest", constants=[1], expect=expect)


def like(low: float, high: float) -> Maker:
    """Random values: their dtype, shape and bounds are known."""

    def make(g: Given) -> Any:
        dtype = g.dtype("T2" if g.triple.name.endswith("Like") else "T")

        def verify(outputs: list[Any]) -> bool:
            (y,) = outputs
            wide = y.astype(np.float64)
            return y.dtype == dtype and y.shape == (30, 40) and low <= wide.min() < wide.mean() < wide.max() <= high

        if g.triple.name.endswith("Like"):
            return case(g(0, 30, 40), dtype=g.code("T2"), verify=verify, seed=1.0)
        return case(dtype=g.code("T"), shape=[30, 40], verify=verify, seed=1.0)

    return make


def bernoulli(g: Given) -> Any:
    x = g.at(0, np.tile([0.0, 1.0], (3, 2)))
    return case(x, dtype=g.code("T2"), expect=x.astype(np.float32).astype(g.dtype("T2")))


def multinomial(g: Given) -> Any:
    x = g.at(0, [[-1e4, 0, -1e4], [0, -1e4, -1e4]])
    return case(x, sample_size=4, dtype=g.code("T2"), expect=np.repeat([[1], [0]], 4, 1).astype(g.dtype("T2")))


def window(g: Given) -> Any:
    return case(g.at(0, 7), constants=[0], output_datatype=g.code("T2"), tolerance=1e-6)


def mel(g: Given) -> Any:
    if g.narrow("T2") in ("int8", "uint8"):
        raise Unfit("no frequencies beyond a byte")
    integers = [g.at(0, value) for value in (4, 16, 100)]
    edges = [g.at(3, 0), g.at(4, 50)]
    return case(*integers, *edges, constants=[0, 1, 2, 3, 4], output_datatype=g.code("T3"), tolerance=1e-6)


def tf_idf(g: Given) -> Any:
    x = g.at(0, [1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8])
    how: Any = {"mode": "TF", "min_gram_length": 2, "max_gram_length": 2, "max_skip_count": 0}
    how |= {
        "ngram_counts": [0, 4],
        "ngram_indexes": [0, 1, 2, 3, 4, 5, 6],
        "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
    }
    return case(x, **how)


def image(g: Given) -> Any:
    from PIL import Image

    g.narrow("T2")
    pixels = g.random.integers(0, 256, (4, 5, 3)).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return case(np.frombuffer(stream.getvalue(), np.uint8), expect=pixels)


def non_max(g: Given) -> Any:
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.7]]], np.float32)
    limits = np.array([3]), np.array([0.5], np.float32), np.array([0.0], np.float32)
    return case(boxes, scores, *limits)


CASES: dict[str, Maker] = {
    "Bernoulli": bernoulli,
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), window),
    "CenterCropPad": center_crop_pad,
    "Col2Im": col_to_image,
    "Compress": compress,
    "Concat": concat,
    "ConstantOfShape": constant_of_shape,
    "DepthToSpace": depth_to_space,
    "Einsum": einsum,
    "Expand": expand,
    "EyeLike": eye_like,
    "Flatten": lambda g: (lambda x: case(x, axis=2, expect=x.reshape(6, 4)))(g(0, 2, 3, 4)),
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "ImageDecoder": image,
    "MelWeightMatrix": mel,
    "Multinomial": multinomial,
    "NonMaxSuppression": non_max,
    "NonZero": non_zero,
    "OneHot": one_hot,
    "Pad": pad,
    **dict.fromkeys(("RandomNormal", "RandomNormalLike"), like(-6, 6)),
    **dict.fromkeys(("RandomUniform", "RandomUniformLike"), like(0, 1)),
    "Range": range_,
    "Reshape": reshape,
    "Resize": resize,
    "ReverseSequence": reverse_sequence,
    **dict.fromkeys(("Scatter", "ScatterElements"), scatter_elements),
    "ScatterND": scatter_nd,
    **dict.fromkeys(("Shape", "Size"), shape_of),
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Squeeze": squeeze,
    "TensorScatter": tensor_scatter,
    "TfIdfVectorizer": tf_idf,
    "Tile": tile,
    "Transpose": lambda g: (lambda x: case(x, perm=[2, 0, 1], expect=x.transpose(2, 0, 1)))(g(0, 2, 3, 4)),
    "Trilu": trilu,
    "Unique": unique,
    "Unsqueeze": unsqueeze,
    "Upsample": upsample,
}
