"""Graphs that are kept as one launch on CUDA; elsewhere there are none, and the class says so."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import cuda_graph, device_memory
from mlxc_py._sys.load import library

cuda = pytest.mark.skipif(not cuda_graph.supported(), reason="MLX has no CUDA device here, or is not release 0.32.4")
Build = Callable[..., list[mx.Array]]
Host = np.ndarray[Any, Any]


@pytest.mark.skipif(cuda_graph.supported(), reason="this MLX has a CUDA device")
def test_without_cuda_it_says_so() -> None:
    with pytest.raises(mx.UnsupportedError, match="on CUDA only"):
        cuda_graph.CudaGraph([], [mx.ones(3) + 1], 1)


def test_mlx_still_describes_its_encoder_as_ours() -> None:
    """native/mlxc repeats the class, because MLX's header of it needs CUDA's toolkit."""
    spec = find_spec("mlx")
    assert spec is not None and spec.submodule_search_locations
    header = Path(next(iter(spec.submodule_search_locations)), "include/mlx/backend/cuda/device.h")
    if not header.is_file():
        pytest.skip(f"this mlx wheel has no {header}")
    if library().mlx_version != "0.32.4":
        pytest.skip("with other releases of MLX graphs are not kept")
    (members,) = re.findall(r"Device& device_;\n(.*?)graph_cache_;", header.read_text(), re.S)
    assert re.findall(r"^\s*([\w:<> ]+) (\w+)_(?:\{\w+\})?;", members, re.M) == [
        ("CudaStream", "stream"),
        ("CudaGraph", "graph"),
        ("std::shared_ptr<Worker>", "worker"),
        ("int", "node_count"),
        ("bool", "in_concurrent"),
        ("std::vector<cudaGraphNode_t>", "from_nodes"),
        ("std::vector<cudaGraphNode_t>", "to_nodes"),
        ("std::string", "graph_nodes_key"),
        ("std::string", "graph_deps_key"),
        ("std::vector<GraphNode>", "concurrent_nodes"),
        ("std::vector<std::shared_ptr<array::Data>>", "temporaries"),
    ]


def on_device(x: Host) -> mx.Array:
    return device_memory.copy_to_device(x.ctypes.data, x.shape, mx.dtype_of(x.dtype))


def on_host(array: mx.Array) -> Host:
    found = np.empty(array.shape, array.dtype.numpy)
    device_memory.copy_to(array, found.ctypes.data)
    return found


def kept(build: Build, *inputs: Host, most: int = 1 << 30) -> cuda_graph.CudaGraph:
    mx.eval(build(*map(on_device, inputs)))
    opened = [on_device(x) for x in inputs]
    return cuda_graph.CudaGraph(opened, build(*opened), most)


def run(graph: cuda_graph.CudaGraph, *inputs: Host) -> list[Host]:
    arrays, nanoseconds = graph.run([x.ctypes.data for x in inputs])
    assert nanoseconds > 0
    return [on_host(array) for array in arrays]


def random(*shape: int, seed: int = 0) -> Host:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


WEIGHTS = random(64, 48)
KERNEL = random(8, 3, 3, 4) * 0.2


def dense(x: mx.Array) -> list[mx.Array]:
    y = mx.matmul(x, mx.array(WEIGHTS))
    return [mx.contiguous(mx.softmax(y, -1)), mx.contiguous(mx.argmax(y, -1))]


def images(x: mx.Array) -> list[mx.Array]:
    y = mx.maximum(mx.conv2d(x, mx.array(KERNEL), padding=1), 0.0)
    return [mx.contiguous(mx.transpose(y, (0, 3, 1, 2))), mx.contiguous(mx.mean(y, (1, 2)))]


def attention(q: mx.Array, k: mx.Array) -> list[mx.Array]:
    return [mx.contiguous(mx.fast.scaled_dot_product_attention(q, k, k, scale=0.125))]


def many(x: mx.Array) -> list[mx.Array]:
    y, sides = x, []
    for i in range(150):
        y = mx.sin(y) + i / 100
        sides.append(mx.sort(y, -1) if i % 30 == 0 else mx.sum(y, -1, keepdims=True))
    return [mx.contiguous(y), mx.contiguous(mx.concatenate(sides, -1))]


def views(x: mx.Array) -> list[mx.Array]:
    return [mx.contiguous(x[1:] * 2), mx.contiguous(x.reshape((-1,))[::3]), mx.cumsum(x, 0)]


@cuda
@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (dense, [(16, 64)]),
        (images, [(2, 9, 11, 4)]),
        (attention, [(1, 4, 32, 64), (1, 4, 40, 64)]),
        (many, [(7, 33)]),
        (views, [(5, 6)]),
    ],
)
def test_runs_are_what_an_evaluation_is(build: Build, shapes: Sequence[tuple[int, ...]]) -> None:
    graph = kept(build, *(random(*shape) for shape in shapes))
    assert graph.nbytes > 0
    for seed in range(1, 5):
        given = [random(*shape, seed=seed + 10 * i) for i, shape in enumerate(shapes)]
        expected = build(*map(on_device, given))
        mx.eval(expected)
        for ours, theirs in zip(run(graph, *given), expected, strict=True):
            np.testing.assert_array_equal(ours, on_host(theirs))
        mx.clear_cache()  # memory that the graph works in is nobody else's
        junk = [mx.random.normal((257, 1031)) for _ in range(8)]
        mx.eval(junk)


@cuda
def test_results_of_a_run_stay_when_the_next_one_writes() -> None:
    graph = kept(views, random(5, 6))
    (first, *_), _ = graph.run([random(5, 6, seed=1).ctypes.data])
    run(graph, random(5, 6, seed=2))
    np.testing.assert_array_equal(on_host(first), random(5, 6, seed=1)[1:] * 2)
    graph.close()
    np.testing.assert_array_equal(on_host(first), random(5, 6, seed=1)[1:] * 2)
    with pytest.raises(mx.ClosedError):
        graph.run([random(5, 6).ctypes.data])


@cuda
def test_ordinary_evaluations_go_on_on_the_stream() -> None:
    graphs = [kept(build, random(5, 6)) for build in (many, views)]
    for seed in range(3):
        x = random(5, 6, seed=seed)
        (y,) = [mx.exp(on_device(x))]
        np.testing.assert_allclose(np.array(y), np.exp(x), rtol=1e-5)
        for graph in graphs:
            assert run(graph, x)
    del graphs
    np.testing.assert_allclose(np.array(mx.exp(on_device(random(5, 6)))), np.exp(random(5, 6)), rtol=1e-5)


@cuda
def test_memory_beyond_the_limit_is_an_error_and_leaves_the_stream_usable() -> None:
    with pytest.raises(mx.MLXError, match="more memory than is left"):
        kept(many, random(700, 33), most=1 << 16)
    assert run(kept(views, random(5, 6)), random(5, 6, seed=3))


@cuda
def test_several_streams_are_an_error() -> None:
    other = mx.new_stream(mx.gpu)
    x = on_device(random(3, 3))
    with pytest.raises(mx.MLXError, match="several streams"):
        cuda_graph.CudaGraph([x], [mx.add(mx.exp(x), 1.0, stream=other)], 1 << 20)


@cuda
def test_wrong_number_of_inputs_is_an_error() -> None:
    with pytest.raises(ValueError, match="the graph has 1 inputs, 2 were given"):
        kept(views, random(5, 6)).run([1, 2])


@cuda
def test_a_constant_that_the_host_has_read_ends_the_graph() -> None:
    constant = on_device(random(5, 6))
    graph = kept(lambda x: [x + constant], random(5, 6))
    np.testing.assert_array_equal(run(graph, random(5, 6))[0], random(5, 6) * 2)
    np.array(constant)  # moves it to managed memory
    with pytest.raises(mx.MLXError, match="moved to the host"):
        run(graph, random(5, 6))


@cuda
def test_threads_take_turns() -> None:
    graph, failures = kept(many, random(7, 33)), []

    def work(seed: int) -> None:
        try:
            x = random(7, 33, seed=seed)
            expected = run(graph, x)[0]
            for _ in range(50):
                np.testing.assert_array_equal(run(graph, x)[0], expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@cuda
def test_freed_memory_comes_back() -> None:
    def cycle() -> None:
        kept(many, random(200, 333)).close()

    cycle()
    mx.clear_cache()
    before = mx.get_active_memory()
    for _ in range(5):
        cycle()
    mx.clear_cache()
    assert mx.get_active_memory() <= before + (1 << 20)
