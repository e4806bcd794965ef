"""Vectors, maps, kernels, dtypes' functions, memory, distributed: the smaller parts of the runtime."""

from __future__ import annotations

import gc
from typing import Any

import mlx.core as reference
import pytest

import mlxc_py as mx

X, Y = mx.array([1.0, 2.0]), mx.array([3])


def test_vectors_of_arrays() -> None:
    vector = mx.VectorArray([X, Y])
    vector.append(X)
    assert len(vector) == 3
    assert [a.tolist() for a in vector] == [[1.0, 2.0], [3], [1.0, 2.0]]
    last = vector[2]
    with pytest.raises(IndexError):
        vector[3]
    vector.close()
    vector.close()
    assert last.tolist() == [1.0, 2.0]
    with pytest.raises(mx.ClosedError):
        len(vector)
    with mx.VectorVectorArray([mx.VectorArray([X]), mx.VectorArray()]) as nested:
        assert [len(inner) for inner in nested] == [1, 0]
    closed = mx.array([1])
    closed.close()
    with pytest.raises(mx.ClosedError, match="array 1 of the list"):
        mx.VectorArray([X, closed])


def test_vectors_of_ints_and_strings() -> None:
    assert list(mx.IntVector([1, -2, 3])) == [1, -2, 3]
    assert list(mx.IntVector()) == []
    assert list(mx.StringVector(["a", "ü", ""])) == ["a", "ü", ""]


def test_maps() -> None:
    arrays = mx.ArrayMap({"b": Y, "a": X})
    arrays["c"] = X
    assert {k: v.tolist() for k, v in arrays.items()} == {"a": [1.0, 2.0], "b": [3], "c": [1.0, 2.0]}
    assert dict(mx.StringMap({"k": "v", "%s": "%n"}).items()) == {"k": "v", "%s": "%n"}
    assert list(mx.StringMap().items()) == []
    first = next(iter(arrays.items()))  # an iteration left half-way
    del arrays
    gc.collect()
    assert first[1].size in (1, 2)


def test_evaluating_trees() -> None:
    tree = {"a": [X + 1, (Y + 1,)], "b": 3, "c": None}
    mx.eval(tree, X * 2, "text")
    assert tree["a"][0].evaluated  # type: ignore[index]
    lazy = X * 5
    assert not lazy.evaluated
    mx.async_eval([lazy])
    assert lazy.tolist() == [5.0, 10.0]
    mx.eval()


@pytest.mark.parametrize("make", [mx.fast.metal_kernel, mx.fast.cuda_kernel])
def test_kernels_need_their_back_end(make: Any) -> None:
    available = mx.metal.is_available() if make is mx.fast.metal_kernel else mx.cuda.is_available()
    if available:
        pytest.skip("this machine has the back end; kernels run in the GPU tests")
    with pytest.raises(mx.UnsupportedError, match="back-end"):
        kernel = make("k", ["x"], ["out"], "out[0] = x[0];")
        outputs = kernel(
            inputs=[X],
            output_shapes=[(2,)],
            output_dtypes=[mx.float32],
            grid=(2, 1, 1),
            threadgroup=(2, 1, 1),
            template=[("T", mx.float32), ("N", 3), ("B", True)],
            init_value=0.0,
            stream=mx.cpu,
        )
        mx.eval(outputs)


def test_limits_of_dtypes() -> None:
    for name in ("float16", "bfloat16", "float32"):
        ours, theirs = mx.finfo(getattr(mx, name)), reference.finfo(getattr(reference, name))
        assert (ours.min, ours.max, ours.eps) == pytest.approx((theirs.min, theirs.max, theirs.eps))
    for name in ("int8", "uint16", "int64"):
        ours_i, theirs_i = mx.iinfo(getattr(mx, name)), reference.iinfo(getattr(reference, name))
        assert (ours_i.min, ours_i.max) == (theirs_i.min, theirs_i.max)
    with pytest.raises(ValueError, match="not a floating dtype"):
        mx.finfo(mx.int8)
    with pytest.raises(ValueError, match="not an integer dtype"):
        mx.iinfo(mx.float32)


def test_families_of_dtypes() -> None:
    names = [d.name if d is not mx.bool_ else "bool_" for d in mx.DTYPES]
    families = ["generic", "number", "integer", "signedinteger", "unsignedinteger", "inexact", "floating"]
    for name in names:
        for family in [*families, "complexfloating", *names]:
            ours = mx.issubdtype(getattr(mx, name), getattr(mx, family))
            assert ours == reference.issubdtype(getattr(reference, name), getattr(reference, family))
        for kind in ("bool", "integral", "signed integer", "unsigned integer", "real floating", "numeric"):
            ours = mx.isdtype(getattr(mx, name), kind)
            assert ours == reference.isdtype(getattr(reference, name), kind)
    assert mx.isdtype(mx.int8, ("bool", "integral"))
    with pytest.raises(ValueError, match="unknown kind"):
        mx.isdtype(mx.int8, "text")


def test_casts_and_shapes() -> None:
    for a in mx.DTYPES:
        for b in mx.DTYPES:
            theirs = [getattr(reference, d.name + "_" * (d is mx.bool_)) for d in (a, b)]
            assert mx.can_cast(a, b) == reference.can_cast(*theirs)
    assert mx.result_type(X, mx.float16) is mx.float32
    assert mx.broadcast_shapes((2, 1), (3,), ()) == (2, 3)


def test_memory_counters() -> None:
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    a = mx.ones((1 << 18,))
    a.eval()
    assert mx.get_active_memory() >= before + (1 << 20)
    assert mx.get_peak_memory() >= mx.get_active_memory() - before
    previous = mx.set_cache_limit(1 << 20)
    assert mx.set_cache_limit(previous) in (0, 1 << 20)
    limit = mx.get_memory_limit()
    assert mx.set_memory_limit(limit) == limit
    mx.clear_cache()
    assert mx.get_cache_memory() <= (8192 if mx.cuda.is_available() else 0)  # CUDA's pool of scalars stays
    with pytest.raises(ValueError, match="negative"):
        mx.set_memory_limit(-1)


def test_a_group_of_one() -> None:
    with mx.distributed.init() as group:
        assert (group.rank(), group.size()) == (0, 1)
        assert mx.distributed.all_sum(X, group=group).tolist() == X.tolist()
        assert mx.distributed.all_max(X).tolist() == X.tolist()
        assert mx.distributed.all_min(X).tolist() == X.tolist()
        assert mx.distributed.all_gather(X).tolist() == X.tolist()
        for alone in (
            lambda: group.split(0),
            lambda: mx.distributed.send(X, 0),
            lambda: mx.distributed.recv_like(X, 0),
        ):
            with pytest.raises(mx.MLXError):
                alone()
        with pytest.raises(mx.MLXError):
            mx.distributed.recv((2,), mx.float32, 0)
    assert isinstance(mx.distributed.is_available(), bool)


def test_back_ends_are_told() -> None:
    assert isinstance(mx.metal.is_available(), bool)
    assert isinstance(mx.cuda.is_available(), bool)
    assert mx.library_path().endswith((".so", ".dylib"))
    mx.random.seed(3)
    first = mx.random.uniform(shape=(2,)).tolist()
    mx.random.seed(3)
    assert mx.random.uniform(shape=(2,)).tolist() == first
