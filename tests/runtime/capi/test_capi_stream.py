"""Devices, streams and threads."""

from __future__ import annotations

import ctypes
import threading

import mlx.core as mx
import numpy as np
import pytest
from capi_harness import CApi, Failed

from mlxc_py._sys import load, mlx

X = np.arange(4, dtype="f4")


def cpu(capi: CApi) -> int:
    return capi.need(capi.c.mlx_device_new_type(mlx.MLX_CPU, 0))


def test_devices(capi: CApi) -> None:
    c = capi.c
    assert c.mlx_device_new() == 0
    device = cpu(capi)
    assert capi.text(capi.filled("mlx_device_tostring", device)) == "Device(cpu, 0)"
    other = capi.need(c.mlx_device_new_type(mlx.MLX_GPU, 3))
    assert capi.filled("mlx_device_get_index", other, kind=ctypes.c_int) == 3
    assert capi.filled("mlx_device_get_type", other, kind=ctypes.c_int) == mlx.MLX_GPU
    assert capi.filled("mlx_device_get_type", device, kind=ctypes.c_int) == mlx.MLX_CPU
    assert not c.mlx_device_equal(device, other)
    copy = capi.filled("mlx_device_set", device)
    assert copy != device and c.mlx_device_equal(copy, device)
    capi.check(c.mlx_device_free(copy))
    assert c.mlx_device_new_type(9, 0) == 0
    assert load.take_error() == "unknown device type"
    assert not c.mlx_device_equal(0, device)
    assert load.take_error()


def test_counts(capi: CApi) -> None:
    assert capi.op("device_count", mlx.MLX_CPU) == 1
    assert capi.op("device_is_available", cpu(capi)) is True
    gpu = capi.need(capi.c.mlx_device_new_type(mlx.MLX_GPU, 0))
    assert capi.op("device_is_available", gpu) == mx.is_available(mx.gpu)
    with pytest.raises(Failed, match="device type"):
        capi.op("device_count", 7)


def test_device_info(capi: CApi) -> None:
    c = capi.c
    assert c.mlx_device_info_new() == 0
    info = capi.filled("mlx_device_info_get", cpu(capi))
    wanted = mx.device_info(mx.Device(mx.cpu, 0))
    names = capi.filled("mlx_device_info_get_keys", info)
    keys = [
        ctypes.string_at(capi.filled("mlx_vector_string_get", names, i)) for i in range(c.mlx_vector_string_size(names))
    ]
    assert sorted(k.decode() for k in keys) == sorted(wanted)
    for key in keys:
        is_text = capi.filled("mlx_device_info_is_string", info, key, kind=ctypes.c_bool)
        getter, kind = ("string", ctypes.c_char_p) if is_text else ("size", ctypes.c_size_t)
        got = capi.filled(f"mlx_device_info_get_{getter}", info, key, kind=kind)
        assert (got.decode() if is_text else got) == wanted[key.decode()]
        wrong = "size" if is_text else "string"
        with pytest.raises(Failed, match="another type"):
            capi.filled(f"mlx_device_info_get_{wrong}", info, key)
    assert capi.filled("mlx_device_info_has_key", info, b"device_name", kind=ctypes.c_bool)
    assert not capi.filled("mlx_device_info_has_key", info, b"%s", kind=ctypes.c_bool)
    with pytest.raises(Failed, match="no key"):
        capi.filled("mlx_device_info_get_size", info, b"nothing")
    capi.check(c.mlx_device_info_free(info))


def test_default_device(capi: CApi) -> None:
    before = capi.filled("mlx_get_default_device")
    capi.check(capi.c.mlx_set_default_device(cpu(capi)))
    assert capi.c.mlx_device_equal(capi.filled("mlx_get_default_device"), cpu(capi))
    capi.check(capi.c.mlx_set_default_device(before))


def index(capi: CApi, stream: int) -> int:
    return capi.filled("mlx_stream_get_index", stream, kind=ctypes.c_int)


def test_streams(capi: CApi) -> None:
    c = capi.c
    assert c.mlx_stream_new() == 0
    stream = capi.need(c.mlx_stream_new_device(cpu(capi)))
    assert index(capi, stream) not in (-1, index(capi, capi.stream))
    assert c.mlx_device_equal(capi.filled("mlx_stream_get_device", stream), cpu(capi))
    assert capi.text(capi.filled("mlx_stream_tostring", stream)) == f"Stream(Device(cpu, 0), {index(capi, stream)})"
    assert not c.mlx_stream_equal(stream, capi.stream)
    copy = capi.filled("mlx_stream_set", stream)
    assert c.mlx_stream_equal(copy, stream)
    listed = capi.filled("mlx_get_streams")
    found = [capi.filled("mlx_vector_stream_get", listed, i) for i in range(c.mlx_vector_stream_size(listed))]
    assert any(c.mlx_stream_equal(s, stream) for s in found)

    np.testing.assert_array_equal(capi.op("add", X, X, stream), X + X)
    capi.check(c.mlx_synchronize(stream))
    capi.check(c.mlx_synchronize_default())
    capi.check(c.mlx_stream_free(copy))
    assert not c.mlx_stream_equal(0, stream)
    assert load.take_error()


def test_default_stream(capi: CApi) -> None:
    c = capi.c
    before = capi.filled("mlx_get_default_stream", cpu(capi))
    assert c.mlx_stream_equal(before, capi.need(c.mlx_default_cpu_stream_new()))
    stream = capi.need(c.mlx_stream_new_device(cpu(capi)))
    capi.check(c.mlx_set_default_stream(stream))
    assert c.mlx_stream_equal(capi.filled("mlx_get_default_stream", cpu(capi)), stream)
    capi.check(c.mlx_set_default_stream(before))
    gpu = c.mlx_default_gpu_stream_new()
    assert bool(gpu) == mx.is_available(mx.gpu)
    if not gpu:
        assert "gpu" in (load.take_error() or "")


def in_thread(function: object) -> None:
    thread = threading.Thread(target=function)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_a_thread_unsafe_stream_is_evaluated_on_any_thread(capi: CApi) -> None:
    stream = capi.need(capi.c.mlx_stream_new_thread_unsafe(cpu(capi)))
    lazy = capi.node("add", X, X, stream)
    codes: list[int] = []
    in_thread(lambda: codes.append(capi.c.mlx_array_eval(lazy)))
    assert codes == [0]
    np.testing.assert_array_equal(capi.numpy(lazy), X + X)


def test_thread_local_streams(capi: CApi) -> None:
    c = capi.c
    local = capi.need(c.mlx_stream_thread_local_new(cpu(capi)))
    copy = capi.filled("mlx_stream_thread_local_set", local)
    here = capi.filled("mlx_stream_from_thread_local", local)
    assert c.mlx_stream_equal(here, capi.filled("mlx_stream_from_thread_local", copy))
    np.testing.assert_array_equal(capi.op("add", X, X, here), X + X)
    capi.check(c.mlx_synchronize_thread_local(local))
    there: list[int] = []

    def other() -> None:
        stream = capi.filled("mlx_stream_from_thread_local", local)
        total = capi.node("add", X, X, stream)
        there.extend([index(capi, stream), total, c.mlx_array_eval(total), c.mlx_clear_streams()])

    in_thread(other)
    number, total, *codes = there
    assert number != index(capi, here)
    assert codes == [0, 0]
    np.testing.assert_array_equal(capi.numpy(total), X + X)
    capi.check(c.mlx_stream_thread_local_free(copy))
    assert c.mlx_stream_thread_local_free(0) == 0


def test_an_error_belongs_to_the_thread_of_the_call(capi: CApi) -> None:
    load.take_error()
    seen: list[str | None] = []

    def fail() -> None:
        assert capi.c.mlx_string_data(0) is None
        seen.append(load.take_error())

    in_thread(fail)
    assert seen == ["expected a non-empty mlx_string"]
    assert load.take_error() is None
