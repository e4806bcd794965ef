"""Files, readers and writers, gguf, exported functions, pictures of graphs."""

from __future__ import annotations

import ctypes
import io
import os
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from capi_harness import CApi, Failed, Slot

from mlxc_py._sys import load, mlx

X = np.arange(6, dtype="f4").reshape(2, 3)
Y = np.array([7, -8], "i4")
HOSTILE = "%s%n%d.npy"


def path(folder: Path, name: str) -> bytes:
    return os.fsencode(folder / name)


def maps(capi: CApi) -> tuple[int, int]:
    c = capi.c
    arrays, texts = capi.need(c.mlx_map_string_to_array_new()), capi.need(c.mlx_map_string_to_string_new())
    capi.check(c.mlx_map_string_to_array_insert(arrays, b"x", capi.array(X)))
    capi.check(c.mlx_map_string_to_array_insert(arrays, b"y", capi.array(Y)))
    capi.check(c.mlx_map_string_to_string_insert(texts, b"format", b"%s"))
    return arrays, texts


def check_maps(capi: CApi, arrays: int, texts: int) -> None:
    np.testing.assert_array_equal(capi.numpy(capi.filled("mlx_map_string_to_array_get", arrays, b"x")), X)
    np.testing.assert_array_equal(capi.numpy(capi.filled("mlx_map_string_to_array_get", arrays, b"y")), Y)
    assert capi.filled("mlx_map_string_to_string_get", texts, b"format", kind=ctypes.c_char_p) == b"%s"


def test_npy(capi: CApi, tmp_path: Path) -> None:
    capi.check(capi.c.mlx_save(path(tmp_path, HOSTILE), capi.array(X)))
    np.testing.assert_array_equal(np.load(tmp_path / HOSTILE), X)
    np.testing.assert_array_equal(capi.op("load", path(tmp_path, HOSTILE)), X)


@pytest.mark.parametrize("loader", ["load", "load_safetensors", "load_gguf"])
def test_what_cannot_be_read(capi: CApi, tmp_path: Path, loader: str) -> None:
    (tmp_path / "broken").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (9,")
    slots = [Slot(), Slot()] if loader == "load_safetensors" else [Slot()]
    for name in ("missing %s%n", "broken"):
        stream = capi.stream
        assert getattr(capi.c, f"mlx_{loader}")(*(s.address for s in slots), path(tmp_path, name), stream) == 1
        assert load.take_error()
        assert all(s.value == 0 for s in slots)
    assert getattr(capi.c, f"mlx_{loader}")(*(s.address for s in slots), None, capi.stream) == 1


def test_a_file_that_cannot_be_written(capi: CApi, tmp_path: Path) -> None:
    target = path(tmp_path, "no such folder %s%n/x.npy")
    assert capi.c.mlx_save(target, capi.array(X)) == 1
    assert "%s%n" in (load.take_error() or "")


def test_safetensors(capi: CApi, tmp_path: Path) -> None:
    file = path(tmp_path, "a.safetensors")
    capi.check(capi.c.mlx_save_safetensors(file, *maps(capi)))
    loaded: Any = mx.load(os.fsdecode(file))
    np.testing.assert_array_equal(np.array(loaded["x"]), X)
    arrays, texts = Slot(), Slot()
    capi.check(capi.c.mlx_load_safetensors(arrays.address, texts.address, file, capi.stream))
    check_maps(capi, arrays.value, texts.value)
    capi.check(capi.c.mlx_save_safetensors(file, maps(capi)[0], 0))  # no metadata at all


# ---- readers and writers
class Stream:
    """A stream in memory behind mlx-c's table of functions."""

    def __init__(self, content: bytes = b"") -> None:
        self.file = io.BytesIO(content)
        self.freed: list[int] = []
        self.label = ctypes.create_string_buffer(b"memory %d")
        kinds: dict[str, Any] = {f[0]: f[1] for f in mlx.mlx_io_vtable._fields_}
        functions = {
            "is_open": lambda _: True,
            "good": lambda _: True,
            "tell": lambda _: self.file.tell(),
            "seek": lambda _, offset, whence: self.file.seek(offset, whence) and None,
            "read": lambda _, data, n: self._copy(data, self.file.read(n)),
            "read_at_offset": lambda _, data, n, at: self._copy(data, self.file.getvalue()[at : at + n]),
            "write": lambda _, data, n: self.file.write(ctypes.string_at(data, n)) and None,
            "label": lambda _: ctypes.addressof(self.label),
            "free": self.freed.append,
        }
        self.table = mlx.mlx_io_vtable(**{name: kinds[name](f) for name, f in functions.items()})

    @staticmethod
    def _copy(data: int, content: bytes) -> None:
        ctypes.memmove(data, content, len(content))


@pytest.mark.parametrize("kind", ["reader", "writer"])
def test_stream_handles(capi: CApi, kind: str) -> None:
    c, stream = capi.c, capi.keep(Stream())
    handle = capi.need(getattr(c, f"mlx_io_{kind}_new")(77, stream.table))
    assert capi.text(capi.filled(f"mlx_io_{kind}_tostring", handle)) == "memory %d"
    assert capi.filled(f"mlx_io_{kind}_descriptor", handle) == 77
    capi.check(getattr(c, f"mlx_io_{kind}_free")(handle))
    assert stream.freed == [77]
    assert getattr(c, f"mlx_io_{kind}_new")(1, mlx.mlx_io_vtable()) == 0
    assert "table lacks functions" in (load.take_error() or "")


def test_npy_through_streams(capi: CApi) -> None:
    out = capi.keep(Stream())
    writer = capi.need(capi.c.mlx_io_writer_new(1, out.table))
    capi.check(capi.c.mlx_save_writer(writer, capi.array(X)))
    np.testing.assert_array_equal(np.load(io.BytesIO(out.file.getvalue())), X)
    source = capi.keep(Stream(out.file.getvalue()))
    reader = capi.need(capi.c.mlx_io_reader_new(2, source.table))
    lazy = capi.filled("mlx_load_reader", reader, capi.stream)
    capi.check(capi.c.mlx_io_reader_free(reader))
    assert source.freed == []  # the lazy array still needs it
    np.testing.assert_array_equal(capi.numpy(lazy), X)
    capi.check(capi.c.mlx_array_free(lazy))
    deadline = time.monotonic() + 10
    while not source.freed and time.monotonic() < deadline:
        time.sleep(0.01)  # the thread that loaded may hold the reader a moment longer
    assert source.freed == [2]


def test_safetensors_through_streams(capi: CApi) -> None:
    out = capi.keep(Stream())
    writer = capi.need(capi.c.mlx_io_writer_new(1, out.table))
    capi.check(capi.c.mlx_save_safetensors_writer(writer, *maps(capi)))
    source = capi.keep(Stream(out.file.getvalue()))
    reader = capi.need(capi.c.mlx_io_reader_new(2, source.table))
    arrays, texts = Slot(), Slot()
    capi.check(capi.c.mlx_load_safetensors_reader(arrays.address, texts.address, reader, capi.stream))
    check_maps(capi, arrays.value, texts.value)


# ---- gguf
def test_gguf(capi: CApi, tmp_path: Path) -> None:
    c = capi.c
    g = capi.need(c.mlx_io_gguf_new())
    capi.check(c.mlx_io_gguf_set_array(g, b"w", capi.array(X)))
    capi.check(c.mlx_io_gguf_set_metadata_string(g, b"text", b"%s"))
    capi.check(c.mlx_io_gguf_set_metadata_array(g, b"numbers", capi.array(np.array([1.5, 2.5], "f4"))))
    words = capi.need(c.mlx_vector_string_new_value(b"a"))
    capi.check(c.mlx_vector_string_append_value(words, b"b"))
    capi.check(c.mlx_io_gguf_set_metadata_vector_string(g, b"words", words))
    file = path(tmp_path, "a.gguf")
    capi.check(c.mlx_save_gguf(file, g))
    capi.check(c.mlx_io_gguf_free(g))

    g = capi.filled("mlx_load_gguf", file, capi.stream)
    names = capi.filled("mlx_io_gguf_get_keys", g)
    assert c.mlx_vector_string_size(names) == 1
    assert ctypes.string_at(capi.filled("mlx_vector_string_get", names, 0)) == b"w"
    np.testing.assert_array_equal(capi.numpy(capi.filled("mlx_io_gguf_get_array", g, b"w")), X)
    assert capi.text(capi.filled("mlx_io_gguf_get_metadata_string", g, b"text")) == "%s"
    numbers = capi.filled("mlx_io_gguf_get_metadata_array", g, b"numbers")
    np.testing.assert_array_equal(capi.numpy(numbers), [1.5, 2.5])
    found = capi.filled("mlx_io_gguf_get_metadata_vector_string", g, b"words")
    assert [ctypes.string_at(capi.filled("mlx_vector_string_get", found, i)) for i in range(2)] == [b"a", b"b"]
    kinds = {"string": b"text", "array": b"numbers", "vector_string": b"words"}
    for kind, key in kinds.items():
        for other, name in kinds.items():
            held = capi.filled(f"mlx_io_gguf_has_metadata_{kind}", g, name, kind=ctypes.c_bool)
            assert held == (other == kind)
        with pytest.raises(Failed, match="no metadata of this type"):
            capi.filled(f"mlx_io_gguf_get_metadata_{kind}", g, b"nothing")
        assert getattr(c, f"mlx_io_gguf_get_metadata_{kind}")(None, g, key) == 1
    with pytest.raises(Failed, match="no array"):
        capi.filled("mlx_io_gguf_get_array", g, b"%s")


# ---- exported functions
def scaled(capi: CApi) -> int:
    return capi.closure(lambda v: [capi.node("multiply", v[0], v[0])])


def scaled_by_name(capi: CApi) -> int:
    def call(result: int, inputs: int, kwargs: int) -> int:
        by = capi.filled("mlx_map_string_to_array_get", kwargs, b"by")
        out = capi.node("multiply", capi.handles(inputs)[0], by)
        return capi.c.mlx_vector_array_set_value(result, out)

    fun = capi.keep(mlx.mlx_closure_kwargs_new_func_fun(call))
    return capi.need(capi.c.mlx_closure_kwargs_new_func(ctypes.cast(fun, ctypes.c_void_p)))


def named(capi: CApi, value: np.ndarray) -> int:
    m = capi.need(capi.c.mlx_map_string_to_array_new())
    capi.check(capi.c.mlx_map_string_to_array_insert(m, b"by", capi.array(value)))
    return m


def test_export_function(capi: CApi, tmp_path: Path) -> None:
    c, file = capi.c, path(tmp_path, "f %s.mlxfn")
    capi.check(c.mlx_export_function(file, scaled(capi), capi.vector([X]), False))
    f = capi.need(c.mlx_imported_function_new(file))
    np.testing.assert_array_equal(capi.op("imported_function_apply", f, [X + 1])[0], (X + 1) ** 2)
    with pytest.raises(Failed):
        capi.op("imported_function_apply", f, [Y])
    capi.check(c.mlx_imported_function_free(f))
    assert c.mlx_imported_function_new(path(tmp_path, "missing %n")) == 0
    assert "%n" in (load.take_error() or "")


def test_export_function_with_names(capi: CApi, tmp_path: Path) -> None:
    c, file = capi.c, path(tmp_path, "g.mlxfn")
    capi.check(c.mlx_export_function_kwargs(file, scaled_by_name(capi), capi.vector([X]), named(capi, X), False))
    f = capi.need(c.mlx_imported_function_new(file))
    got = capi.op("imported_function_apply_kwargs", f, [X], named(capi, X + 2))
    np.testing.assert_array_equal(got[0], X * (X + 2))


def test_exporter(capi: CApi, tmp_path: Path) -> None:
    c, file = capi.c, path(tmp_path, "h.mlxfn")
    exporter = capi.need(c.mlx_function_exporter_new(file, scaled(capi), False))
    capi.check(c.mlx_function_exporter_apply(exporter, capi.vector([X])))
    capi.check(c.mlx_function_exporter_apply(exporter, capi.vector([X[:1]])))
    capi.check(c.mlx_function_exporter_apply_kwargs(exporter, capi.vector([X[:, :2]]), named(capi, X)))
    capi.check(c.mlx_function_exporter_free(exporter))
    f = capi.need(c.mlx_imported_function_new(file))
    for x in (X, X[:1]):
        np.testing.assert_array_equal(capi.op("imported_function_apply", f, [x])[0], x**2)
    x = X[:, :2]
    np.testing.assert_array_equal(capi.op("imported_function_apply_kwargs", f, [x], named(capi, X))[0], x**2)
    with pytest.raises(Failed):
        capi.op("imported_function_apply", f, [x])


# ---- graphs
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
libc.fclose.argtypes = [ctypes.c_void_p]


@pytest.mark.parametrize("drawing", ["export_to_dot", "print_graph"])
def test_graphs(capi: CApi, tmp_path: Path, drawing: str) -> None:
    c = capi.c
    total = capi.node("add", X, X)
    namer = capi.need(c.mlx_node_namer_new())
    capi.check(c.mlx_node_namer_set_name(namer, total, b"total %s"))
    assert capi.filled("mlx_node_namer_get_name", namer, total, kind=ctypes.c_char_p) == b"total %s"
    file = libc.fopen(path(tmp_path, "graph"), b"w")
    capi.check(getattr(c, f"mlx_{drawing}")(file, namer, capi.vector([total])))
    libc.fclose(file)
    text = (tmp_path / "graph").read_text()
    assert "total %s" in text and "Add" in text
    assert getattr(c, f"mlx_{drawing}")(None, namer, capi.vector([total])) == 1
    readable = libc.fopen(path(tmp_path, "graph"), b"r")
    assert getattr(c, f"mlx_{drawing}")(readable, 0, capi.vector([total])) == 1
    assert "cannot write" in (load.take_error() or "")
    libc.fclose(readable)
    capi.check(c.mlx_node_namer_free(namer))
