"""Strings, vectors and maps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from capi_harness import CApi, Failed, Slot

from mlxc_py._sys import load, mlx

ONE, TWO = np.array([1.0], "f4"), np.array([2.0, 3.0], "f4")


def test_strings(capi: CApi) -> None:
    c = capi.c
    assert c.mlx_string_new() == 0
    text = capi.need(c.mlx_string_new_data("grün %s%n".encode()))
    assert capi.text(text) == "grün %s%n"
    copy = capi.filled("mlx_string_set", text)
    capi.check(c.mlx_string_free(text))
    assert capi.text(copy) == "grün %s%n"
    capi.check(c.mlx_string_free(copy))
    assert c.mlx_string_data(0) is None
    assert load.take_error()
    assert c.mlx_string_new_data(None) == 0


class Vector:
    """One of the five vector types, with how its elements are made, packed and compared."""

    def __init__(
        self, capi: CApi, kind: str, values: list[Any], pack: Callable[[list[Any]], Any], read: Callable[[Any], Any]
    ) -> None:
        self.capi, self.prefix, self.values, self.pack, self.read = capi, f"mlx_vector_{kind}", values, pack, read

    def call(self, name: str, *args: Any) -> Any:
        return getattr(self.capi.c, f"{self.prefix}_{name}")(*args)

    def content(self, vector: int) -> list[Any]:
        kind = ctypes.c_int if self.prefix.endswith("int") else ctypes.c_size_t
        got = []
        for i in range(self.call("size", vector)):
            slot = Slot(kind)
            self.capi.check(self.call("get", slot.address, vector, i))
            got.append(self.read(slot.value))
        return got


def handles(values: list[int]) -> Any:
    return (ctypes.c_size_t * len(values))(*values)


def vectors(capi: CApi) -> dict[str, Vector]:
    c = capi.c
    arrays = [capi.array(ONE), capi.array(TWO)]
    nested = [capi.vector([ONE]), capi.vector([ONE, TWO])]
    streams = [capi.stream, capi.need(c.mlx_default_cpu_stream_new())]
    return {
        "array": Vector(capi, "array", arrays, handles, lambda h: capi.numpy(h).tolist()),
        "vector_array": Vector(capi, "vector_array", nested, handles, lambda h: [a.tolist() for a in capi.arrays(h)]),
        "int": Vector(capi, "int", [7, -9], lambda v: (ctypes.c_int * len(v))(*v), int),
        "string": Vector(
            capi, "string", [b"a", b"%s"], lambda v: (ctypes.c_char_p * len(v))(*v), lambda p: ctypes.string_at(p)
        ),
        "stream": Vector(
            capi, "stream", streams, handles, lambda h: capi.filled("mlx_stream_get_index", h, kind=ctypes.c_int)
        ),
    }


CONTENT: dict[str, list[Any]] = {
    "array": [[1.0], [2.0, 3.0]],
    "vector_array": [[[1.0]], [[1.0], [2.0, 3.0]]],
    "int": [7, -9],
    "string": [b"a", b"%s"],
    "stream": [0, 0],
}


@pytest.mark.parametrize("kind", CONTENT)
def test_vectors(capi: CApi, kind: str) -> None:
    v = vectors(capi)[kind]
    first, second = CONTENT[kind]
    empty = capi.need(v.call("new"))
    assert v.call("size", empty) == 0
    data = v.pack(v.values)
    both = capi.need(v.call("new_data", data, 2))
    if kind == "stream":
        first = second = v.content(both)[0]
    assert v.content(both) == [first, second]
    single = capi.need(v.call("new_value", v.values[1]))
    assert v.content(single) == [second]

    slot = (ctypes.c_size_t * 1)()
    capi.check(v.call("set", slot, both))
    assert slot[0] not in (0, both) and v.content(slot[0]) == [first, second]
    before = slot[0]
    capi.check(v.call("set_value", slot, v.values[0]))
    assert slot[0] == before and v.content(slot[0]) == [first]
    capi.check(v.call("set_data", slot, data, 2))
    assert v.content(slot[0]) == [first, second]

    capi.check(v.call("append_value", empty, v.values[1]))
    capi.check(v.call("append_data", empty, data, 2))
    assert v.content(empty) == [second, first, second]
    for vector in (empty, both, single, slot[0]):
        capi.check(v.call("free", vector))
    assert v.call("free", 0) == 0


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("kind", CONTENT)
def test_vectors_refuse(capi: CApi, kind: str) -> None:
    v = vectors(capi)[kind]
    both = capi.need(v.call("new_data", v.pack(v.values), 2))
    room = (ctypes.c_size_t * 1)()
    assert v.call("get", room, both, 2) == 1
    assert v.call("get", room, 0, 0) == 1
    assert v.call("get", None, both, 0) == 1
    assert v.call("new_data", None, 2) == 0
    assert v.call("append_data", both, None, 1) == 1
    assert v.call("set", room, 0) == 1
    assert v.call("set", None, both) == 1
    assert v.call("size", 0) == 0
    if kind != "int":
        nothing = None if kind == "string" else 0
        assert v.call("append_value", both, nothing) == 1
        assert v.call("new_value", nothing) == 0
    assert v.call("size", both) == 2
    assert load.take_error()
    assert v.call("new_data", None, 0) != 0


def test_map_of_arrays(capi: CApi) -> None:
    c = capi.c
    m = capi.need(c.mlx_map_string_to_array_new())
    capi.check(c.mlx_map_string_to_array_insert(m, b"one", capi.array(TWO)))
    capi.check(c.mlx_map_string_to_array_insert(m, b"one", capi.array(ONE)))
    capi.check(c.mlx_map_string_to_array_insert(m, b"%n", capi.array(TWO)))
    np.testing.assert_array_equal(capi.numpy(capi.filled("mlx_map_string_to_array_get", m, b"one")), ONE)
    copy = capi.filled("mlx_map_string_to_array_set", m)
    capi.check(c.mlx_map_string_to_array_free(m))
    assert {k: v.tolist() for k, v in array_items(capi, copy).items()} == {b"one": [1.0], b"%n": [2.0, 3.0]}
    with pytest.raises(Failed, match="NULL string"):
        capi.check(c.mlx_map_string_to_array_insert(copy, None, capi.array(ONE)))


def array_items(capi: CApi, m: int) -> dict[bytes, np.ndarray]:
    """A map's content, through its iterator."""
    c = capi.c
    it = c.mlx_map_string_to_array_iterator_new(m)
    found = {}
    while True:
        key, value = Slot(ctypes.c_char_p), Slot()
        rc = c.mlx_map_string_to_array_iterator_next(key.address, value.address, it)
        if rc:
            assert rc == 2
            break
        found[key.value] = capi.numpy(value.value)
    capi.check(c.mlx_map_string_to_array_iterator_free(it))
    return found


def test_map_of_strings(capi: CApi) -> None:
    c = capi.c
    m = capi.need(c.mlx_map_string_to_string_new())
    capi.check(c.mlx_map_string_to_string_insert(m, b"k", b"old"))
    capi.check(c.mlx_map_string_to_string_insert(m, b"k", b"%s%n"))
    assert capi.filled("mlx_map_string_to_string_get", m, b"k", kind=ctypes.c_char_p) == b"%s%n"
    copy = capi.filled("mlx_map_string_to_string_set", m)
    capi.check(c.mlx_map_string_to_string_free(m))
    it = c.mlx_map_string_to_string_iterator_new(copy)
    key, value = Slot(ctypes.c_char_p), Slot(ctypes.c_char_p)
    capi.check(c.mlx_map_string_to_string_iterator_next(key.address, value.address, it))
    assert (key.value, value.value) == (b"k", b"%s%n")
    assert c.mlx_map_string_to_string_iterator_next(key.address, value.address, it) == 2
    capi.check(c.mlx_map_string_to_string_iterator_free(it))


@pytest.mark.parametrize("kind", ["array", "string"])
def test_a_missing_key_is_told_by_2_alone(capi: CApi, kind: str) -> None:
    c = capi.c
    m = capi.need(getattr(c, f"mlx_map_string_to_{kind}_new")())
    load.take_error()
    room = (ctypes.c_size_t * 1)()
    assert getattr(c, f"mlx_map_string_to_{kind}_get")(room, m, b"none") == 2
    assert load.take_error() is None
    assert getattr(c, f"mlx_map_string_to_{kind}_get")(room, 0, b"none") == 1
    assert load.take_error()


@pytest.mark.usefixtures("ours")
def test_iterators_of_nothing(capi: CApi) -> None:
    it = mlx.mlx_map_string_to_array_iterator(None, None)
    room = (ctypes.c_size_t * 2)()
    assert capi.c.mlx_map_string_to_array_iterator_next(room, room, it) == 1
    assert capi.c.mlx_map_string_to_array_iterator_free(it) == 0
    assert capi.c.mlx_map_string_to_string_iterator_new(0).ctx is None
