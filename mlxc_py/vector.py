"""mlx-c's containers: vectors of arrays, ints, strings and vectors, and the two string maps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ctypes import addressof, byref, c_char_p, c_int, c_size_t
from struct import pack

from mlxc_py._sys import load
from mlxc_py._sys import mlx as c
from mlxc_py.arguments import ints
from mlxc_py.arrays import Array, take, unpack, wrap
from mlxc_py.errors import ClosedError
from mlxc_py.owner import Owner
from mlxc_py.state import local


class VectorArray(Owner):
    """A vector of arrays; iterates over its arrays, which outlive it."""

    __slots__ = ()
    free = "mlx_vector_array_free"

    def __init__(self, arrays: Iterable[Array] = ()) -> None:
        arrays = tuple(arrays)
        handles = [a.handle for a in arrays]
        if 0 in handles:
            self.handle = 0
            raise ClosedError(f"array {handles.index(0)} of the list is closed")
        super().__init__(c.mlx_vector_array_new_data(pack(f"{len(handles)}P", *handles) or None, len(handles)))

    def __len__(self) -> int:
        return int(c.mlx_vector_array_size(self.live))

    def __getitem__(self, index: int) -> Array:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} into a vector of {len(self)}")
        here = local.here
        return take(here, c.mlx_vector_array_get(here.out, self.handle, index))

    def __iter__(self) -> Iterator[Array]:
        return iter(unpack(local.here, self.live))

    def append(self, array: Array) -> None:
        """Add an array at the end."""
        if c.mlx_vector_array_append_value(self.live, array.handle):
            raise local.here.failure("VectorArray.append")


class VectorVectorArray(Owner):
    """A vector of vectors of arrays."""

    __slots__ = ()
    free = "mlx_vector_vector_array_free"

    def __init__(self, vectors: Iterable[VectorArray] = ()) -> None:
        vectors = tuple(vectors)
        handles = [v.live for v in vectors]
        super().__init__(c.mlx_vector_vector_array_new_data(pack(f"{len(handles)}P", *handles) or None, len(handles)))

    def __len__(self) -> int:
        return int(c.mlx_vector_vector_array_size(self.live))

    def __getitem__(self, index: int) -> VectorArray:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} into a vector of {len(self)}")
        here = local.here
        if c.mlx_vector_vector_array_get(here.out, self.handle, index):
            raise here.failure("VectorVectorArray")
        return VectorArray.adopt(here.take_raw())

    def __iter__(self) -> Iterator[VectorArray]:
        return (self[i] for i in range(len(self)))


class IntVector(Owner):
    """A vector of ints."""

    __slots__ = ()
    free = "mlx_vector_int_free"

    def __init__(self, values: Iterable[int] = ()) -> None:
        packed = ints(tuple(values))
        super().__init__(c.mlx_vector_int_new_data(packed or None, len(packed) // 4))

    def __len__(self) -> int:
        return int(c.mlx_vector_int_size(self.live))

    def __iter__(self) -> Iterator[int]:
        value = c_int()
        for i in range(len(self)):
            if c.mlx_vector_int_get(addressof(value), self.handle, i):
                raise local.here.failure("IntVector")
            yield value.value


class StringVector(Owner):
    """A vector of strings."""

    __slots__ = ()
    free = "mlx_vector_string_free"

    def __init__(self, values: Iterable[str] = ()) -> None:
        encoded = [value.encode() for value in values]
        pointers = (c_char_p * len(encoded))(*encoded)
        super().__init__(c.mlx_vector_string_new_data(addressof(pointers), len(encoded)))

    def __len__(self) -> int:
        return int(c.mlx_vector_string_size(self.live))

    def __iter__(self) -> Iterator[str]:
        value = c_char_p()
        for i in range(len(self)):
            if c.mlx_vector_string_get(addressof(value), self.handle, i):
                raise local.here.failure("StringVector")
            yield (value.value or b"").decode()


class ArrayMap(Owner):
    """A map from strings to arrays."""

    __slots__ = ()
    free = "mlx_map_string_to_array_free"

    def __init__(self, items: Mapping[str, Array] | None = None) -> None:
        super().__init__(c.mlx_map_string_to_array_new())
        for key, value in (items or {}).items():
            self[key] = value

    def __setitem__(self, key: str, value: Array) -> None:
        if c.mlx_map_string_to_array_insert(self.live, key.encode(), value.handle):
            raise local.here.failure("ArrayMap")

    def items(self) -> Iterator[tuple[str, Array]]:
        """Every key with its array, in MLX's order."""
        iterator = c.mlx_map_string_to_array_iterator_new(self.live)
        key, value = c_char_p(), c_size_t()
        try:
            while not c.mlx_map_string_to_array_iterator_next(addressof(key), addressof(value), iterator):
                handle, value.value = value.value, 0
                yield (key.value or b"").decode(), wrap(handle)
        finally:
            load.take_error()
            c.mlx_map_string_to_array_iterator_free(iterator)


class StringMap(Owner):
    """A map from strings to strings."""

    __slots__ = ()
    free = "mlx_map_string_to_string_free"

    def __init__(self, items: Mapping[str, str] | None = None) -> None:
        super().__init__(c.mlx_map_string_to_string_new())
        for key, value in (items or {}).items():
            if c.mlx_map_string_to_string_insert(self.handle, key.encode(), value.encode()):
                raise local.here.failure("StringMap")

    def items(self) -> Iterator[tuple[str, str]]:
        """Every key with its value, in MLX's order."""
        iterator = c.mlx_map_string_to_string_iterator_new(self.live)
        key, value = c_char_p(), c_char_p()
        try:
            while not c.mlx_map_string_to_string_iterator_next(byref(key), byref(value), iterator):
                yield (key.value or b"").decode(), (value.value or b"").decode()
        finally:
            load.take_error()
            c.mlx_map_string_to_string_iterator_free(iterator)
