"""Memory, back ends, version, groups of processes, the error handler."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from capi_harness import CApi, Failed

from mlxc_py._sys import load, mlx

X = np.arange(4, dtype="f4")


def test_version(capi: CApi) -> None:
    assert capi.op("version") == load.library().mlx_version


def test_active_and_peak_memory(capi: CApi) -> None:
    before = capi.op("get_active_memory")
    x = capi.need(capi.array(np.zeros(1 << 20, "u1")))
    assert capi.op("get_active_memory") >= before + (1 << 20)
    assert capi.op("get_peak_memory") >= before + (1 << 20)
    capi.check(capi.c.mlx_array_free(x))
    assert capi.op("get_active_memory") < before + (1 << 20)
    capi.op("reset_peak_memory")
    assert capi.op("get_peak_memory") < before + (1 << 20)


def test_memory_limits(capi: CApi) -> None:
    before = capi.op("set_memory_limit", 1 << 33)
    assert capi.op("get_memory_limit") == 1 << 33
    assert capi.op("set_memory_limit", before) == 1 << 33
    before = capi.op("set_cache_limit", 1 << 20)
    assert capi.op("set_cache_limit", before) == 1 << 20
    capi.op("clear_cache")
    assert capi.op("get_cache_memory") == 0
    if mx.metal.is_available():
        before = capi.op("set_wired_limit", 1 << 20)
        assert capi.op("set_wired_limit", before) == 1 << 20
    else:
        assert capi.op("set_wired_limit", 1 << 20) == 0


def test_back_ends(capi: CApi) -> None:
    assert capi.op("metal_is_available") == mx.metal.is_available()
    assert capi.op("cuda_is_available") == mx.cuda.is_available()


@pytest.mark.skipif(mx.metal.is_available(), reason="what these say where there is no Metal")
def test_metal_functions_without_metal(capi: CApi, tmp_path: Path) -> None:
    capi.op("metal_start_capture", str(tmp_path / "%s.gputrace"))
    capi.op("metal_stop_capture")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Failed, match="NULL string"):
        capi.op("metal_start_capture", None)


def metallib_path(capi: CApi) -> str | None:
    """The path that MLX would load, None where there is no Metal."""
    try:
        return capi.op("metal_get_metallib_path")
    except Failed:
        return None


def test_metallib_path(capi: CApi) -> None:
    before = metallib_path(capi)
    try:
        capi.op("metal_set_metallib_path", "/somewhere/%s.metallib")
    except Failed as e:
        assert str(e)
        return
    assert metallib_path(capi) in ("/somewhere/%s.metallib", before)
    capi.op("metal_set_metallib_path", before or "")


# ---- groups of processes: one rank, where a collective gives what it gets
def test_groups(capi: CApi) -> None:
    c = capi.c
    assert c.mlx_distributed_group_new() == 0
    assert c.mlx_distributed_is_available(None) == mx.distributed.is_available()
    assert not c.mlx_distributed_is_available(b"no such back end")
    group = capi.filled("mlx_distributed_init", False, None)
    assert (c.mlx_distributed_group_rank(group), c.mlx_distributed_group_size(group)) == (0, 1)
    with pytest.raises(Failed):
        capi.filled("mlx_distributed_group_split", group, 0, 0)
    with pytest.raises(Failed):
        capi.filled("mlx_distributed_init", True, b"no such back end")
    capi.check(c.mlx_distributed_group_free(group))
    assert c.mlx_distributed_group_rank(0) == 0
    assert load.take_error()


@pytest.mark.parametrize("name", ["all_sum", "all_gather", "all_max", "all_min", "sum_scatter"])
@pytest.mark.parametrize("given", [False, True])
def test_collectives(capi: CApi, name: str, given: bool) -> None:
    group = capi.filled("mlx_distributed_init", False, b"any") if given else 0
    np.testing.assert_array_equal(capi.op(f"distributed_{name}", X, group), X)


def test_point_to_point_needs_two(capi: CApi) -> None:
    with pytest.raises(Failed, match=r"(?i)send"):
        capi.op("distributed_send", X, 0, 0)
    with pytest.raises(Failed, match=r"(?i)recv|receive"):
        capi.op("distributed_recv", (4,), np.float32, 0, 0)
    with pytest.raises(Failed, match=r"(?i)recv|receive"):
        capi.op("distributed_recv_like", X, 0, 0)


# ---- the error handler
@pytest.fixture
def handler(capi: CApi) -> Any:
    """Installs a handler for the test; mlxc_py's own comes back afterwards."""

    def install(function: Callable[[int, int], None], data: int = 0, dtor: Any = None) -> None:
        callback = capi.keep(mlx.mlx_error_handler_func(function))
        capi.c.mlx_set_error_handler(ctypes.cast(callback, ctypes.c_void_p), data, dtor)

    yield install
    load._install_handler(load.library().handle)


def test_error_handler(capi: CApi, handler: Any) -> None:
    seen: list[tuple[bytes, int, str]] = []
    released: list[int] = []
    dtor = ctypes.cast(capi.keep(mlx.mlx_array_new_data_managed_dtor(released.append)), ctypes.c_void_p)

    def remember(message: int, data: int) -> None:
        seen.append((ctypes.string_at(message), data, threading.current_thread().name))

    handler(remember, 42, dtor)
    worker = threading.Thread(target=lambda: capi.c.mlx_string_data(0), name="worker")
    worker.start()
    worker.join()
    assert seen == [(b"expected a non-empty mlx_string", 42, "worker")]
    assert released == []
    handler(lambda _message, _data: None)
    assert released == [42]
    assert capi.c.mlx_string_data(0) is None
    assert len(seen) == 1
