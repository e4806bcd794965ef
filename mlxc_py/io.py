"""Saving and loading arrays: npy, npz, safetensors, gguf; files by path or open binary file."""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import addressof, c_bool
from pathlib import Path
from typing import IO, Any

import numpy as np

from mlxc_py._sys import mlx as c
from mlxc_py.arguments import text
from mlxc_py.arrays import Array, as_array, take, wrap
from mlxc_py.convert import from_numpy
from mlxc_py.dtype import dtype_of
from mlxc_py.evaluate import eval as evaluate
from mlxc_py.guards import check_fork
from mlxc_py.interop import host_view
from mlxc_py.owner import Owner
from mlxc_py.state import StreamLike, local
from mlxc_py.vector import ArrayMap, StringMap, StringVector

File = str | os.PathLike[str] | IO[bytes]
Metadata = Array | str | list[str]
_SUFFIXES = (".npy", ".npz", ".safetensors", ".gguf")


# ---- open Python files as MLX's readers and writers
class _Open:
    """A Python file behind an mlx_io_vtable; an exception of its methods is kept for the caller."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.problem: BaseException | None = None

    def attempt(self, action: Any, *args: Any) -> Any:
        """Run a method of the file; 0 after a failure."""
        if self.problem is None:
            try:
                return action(*args)
            except BaseException as problem:
                self.problem = problem
        return 0

    def read(self, target: int, n: int) -> None:
        """Fill n bytes of memory."""
        data = self.file.read(n)
        if len(data) != n:
            raise EOFError(f"the file ends {n - len(data)} bytes early")
        ctypes.memmove(target, data, n)

    def read_at(self, target: int, n: int, offset: int) -> None:
        """Fill n bytes of memory from an offset."""
        self.file.seek(offset)
        self.read(target, n)


_open: dict[int, _Open] = {}
_numbers = itertools.count(1)
_LABEL = ctypes.create_string_buffer(b"Python file")
_FIELDS: dict[str, Any] = {field[0]: field[1] for field in c.mlx_io_vtable._fields_}


def _table() -> Any:
    def member(name: str, body: Any) -> Any:
        return _FIELDS[name](lambda key, *args: body(_open[key], *args))

    return c.mlx_io_vtable(
        is_open=member("is_open", lambda f: not getattr(f.file, "closed", False)),
        good=member("good", lambda f: f.problem is None),
        tell=member("tell", lambda f: f.attempt(f.file.tell)),
        seek=member("seek", lambda f, offset, whence: f.attempt(f.file.seek, offset, whence) and None),
        read=member("read", lambda f, data, n: f.attempt(f.read, data, n) and None),
        read_at_offset=member("read_at_offset", lambda f, data, n, at: f.attempt(f.read_at, data, n, at) and None),
        write=member("write", lambda f, data, n: f.attempt(f.file.write, ctypes.string_at(data, n)) and None),
        label=member("label", lambda _: addressof(_LABEL)),
        free=_FIELDS["free"](lambda key: _open.pop(key, None) and None),
    )


_TABLE = _table()


@contextmanager
def _stream_of(file: IO[bytes], method: str, create: Any, free: Any) -> Iterator[int]:
    if not hasattr(file, method):
        raise TypeError(f"a file is a path or an open binary file, not {type(file).__name__}")
    key = next(_numbers)
    _open[key] = opened = _Open(file)
    handle = create(key, _TABLE)
    if not handle:
        raise local.here.failure("io")
    try:
        yield handle
    except Exception:
        if opened.problem is not None:
            raise opened.problem from None
        raise
    finally:
        free(handle)  # everything was evaluated inside the `with`, so MLX reads no more
    if opened.problem is not None:
        raise opened.problem


def _path(file: File, suffix: str) -> bytes | None:
    """A path with the suffix that mlx.core would add; None for an open file."""
    if not isinstance(file, str | os.PathLike):
        return None
    name = os.fspath(file)
    return text(name if name.endswith(suffix) else name + suffix).encode()


# ---- loading
def load(file: File, /, format: str | None = None, return_metadata: bool = False, *, stream: StreamLike = None) -> Any:
    """What a file holds: an array (npy), or a dict of arrays; with metadata beside it if asked (safetensors, gguf)."""
    kind = _format(file, format)
    if return_metadata and kind not in ("safetensors", "gguf"):
        raise ValueError(f"load: {kind} files have no metadata")
    if kind == "npz":
        return _load_npz(file)
    if isinstance(file, str | os.PathLike):
        path = text(os.fspath(file)).encode()
        if not Path(file).is_file():
            raise FileNotFoundError(f"load: no file {os.fspath(file)!r}")
        if kind == "npy":
            here = local.here
            return take(here, c.mlx_load(here.out, path, here.on(stream)))
        arrays, metadata = _load_gguf(path, stream) if kind == "gguf" else _load_safetensors(path, None, stream)
    elif kind == "gguf":
        raise ValueError("load: gguf files are loaded by path")
    else:
        with _stream_of(file, "read", c.mlx_io_reader_new, c.mlx_io_reader_free) as reader:
            if kind == "npy":
                here = local.here
                array = take(here, c.mlx_load_reader(here.out, reader, here.on(stream)))
                evaluate(array)
                return array
            arrays, metadata = _load_safetensors(None, reader, stream)
            evaluate(arrays)
    return (arrays, metadata) if return_metadata else arrays


def _format(file: File, format: str | None) -> str:
    name = os.fspath(file) if isinstance(file, str | os.PathLike) else getattr(file, "name", "")
    kind = format or (Path(name).suffix[1:] if isinstance(name, str) else "")
    if f".{kind}" not in _SUFFIXES:
        raise ValueError(f"load: the format of {name or 'this file'!r} is not one of npy, npz, safetensors, gguf")
    return kind


def _load_safetensors(
    path: bytes | None, reader: int | None, stream: StreamLike
) -> tuple[dict[str, Array], dict[str, str]]:
    here = local.here
    on = here.on(stream)
    if path is not None:
        failed = c.mlx_load_safetensors(here.out, here.out2, path, on)
    else:
        failed = c.mlx_load_safetensors_reader(here.out, here.out2, reader or 0, on)
    if failed:
        raise here.failure("load")
    first, second = here.slot[0], here.slot[1]
    here.slot[0] = here.slot[1] = 0
    with ArrayMap.adopt(first) as arrays, StringMap.adopt(second) as metadata:
        return dict(arrays.items()), dict(metadata.items())


def _load_npz(file: Any) -> dict[str, Array]:
    with np.load(file, allow_pickle=False) as members:
        return {name: from_numpy(value, dtype_of(value.dtype)) for name, value in members.items()}


class _Gguf(Owner):
    """An mlx_io_gguf."""

    __slots__ = ()
    free = "mlx_io_gguf_free"

    def call(self, name: str, *args: Any) -> None:
        """mlx_io_gguf_<name>(self, ...)."""
        if getattr(c, f"mlx_io_gguf_{name}")(self.live, *args):
            raise local.here.failure("gguf")

    def get(self, name: str, key: bytes) -> int:
        """The handle that mlx_io_gguf_get_<name> gives for a key."""
        here = local.here
        if getattr(c, f"mlx_io_gguf_get_{name}")(here.out, self.live, key):
            raise here.failure("gguf")
        return here.take_raw()

    def array_names(self) -> list[str]:
        """Names of the arrays."""
        here = local.here
        if c.mlx_io_gguf_get_keys(here.out, self.live):
            raise here.failure("gguf")
        with StringVector.adopt(here.take_raw()) as keys:
            return list(keys)

    def has(self, name: str, key: bytes) -> bool:
        """Whether metadata of a kind exists under a key."""
        flag = c_bool()
        if getattr(c, f"mlx_io_gguf_has_metadata_{name}")(addressof(flag), self.live, key):
            raise local.here.failure("gguf")
        return flag.value


def _load_gguf(path: bytes, stream: StreamLike) -> tuple[dict[str, Array], dict[str, Metadata]]:
    here = local.here
    if c.mlx_load_gguf(here.out, path, here.on(stream)):
        raise here.failure("load")
    metadata: dict[str, Metadata] = {}
    with _Gguf.adopt(here.take_raw()) as gguf:
        arrays = {name: wrap(gguf.get("array", name.encode())) for name in gguf.array_names()}
        for name in _metadata_names(path):
            key = name.encode()
            if gguf.has("string", key):
                handle = gguf.get("metadata_string", key)
                metadata[name] = (c.mlx_string_data(handle) or b"").decode()
                c.mlx_string_free(handle)
            elif gguf.has("vector_string", key):
                with StringVector.adopt(gguf.get("metadata_vector_string", key)) as strings:
                    metadata[name] = list(strings)
            elif gguf.has("array", key):
                metadata[name] = wrap(gguf.get("metadata_array", key))
    return arrays, metadata


# Sizes of a gguf value by its type; 8 is a string, 9 an array.
_GGUF_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def _metadata_names(path: bytes) -> list[str]:
    """Names of a gguf file's metadata, which mlx-c gives no way to list."""
    with open(path, "rb") as file:

        def number(form: str) -> int:
            return int(struct.unpack("<" + form, file.read(struct.calcsize(form)))[0])

        def skip(kind: int) -> None:
            if kind == 8:
                file.seek(number("Q"), 1)
            elif kind == 9:
                inner, count = number("I"), number("Q")
                if inner in _GGUF_SIZES:
                    file.seek(count * _GGUF_SIZES[inner], 1)
                else:
                    for _ in range(count):
                        skip(inner)
            else:
                file.seek(_GGUF_SIZES[kind], 1)

        file.seek(16)  # magic, version, number of tensors
        names = []
        for _ in range(number("Q")):
            names.append(file.read(number("Q")).decode())
            skip(number("I"))
        return names


# ---- saving
def save(file: File, arr: Array) -> None:
    """Save an array as npy; ".npy" is added to a path without it."""
    check_fork()
    array = as_array(arr)
    path = _path(file, ".npy")
    if path is not None:
        if c.mlx_save(path, array.live):
            raise local.here.failure("save")
        return
    with _stream_of(file, "write", c.mlx_io_writer_new, c.mlx_io_writer_free) as writer:  # type: ignore[arg-type]
        if c.mlx_save_writer(writer, array.live):
            raise local.here.failure("save")


def savez(file: Any, *args: Any, **kwargs: Any) -> None:
    """Save arrays as an npz, named by keyword or arr_0, arr_1, ..."""
    np.savez(file, *map(_numpy, args), **{name: _numpy(value) for name, value in kwargs.items()})  # type: ignore[arg-type]


def savez_compressed(file: Any, *args: Any, **kwargs: Any) -> None:
    """savez, compressed."""
    np.savez_compressed(file, *map(_numpy, args), **{name: _numpy(value) for name, value in kwargs.items()})  # type: ignore[arg-type]


def _numpy(value: Any) -> np.ndarray:
    host = host_view(as_array(value))
    if host.dtype.name == "bfloat16":
        raise ValueError("npz files can't hold bfloat16: use save_safetensors, or convert to float32")
    return host


def save_safetensors(file: File, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Save named arrays, with strings beside them; ".safetensors" is added to a path without it."""
    check_fork()
    path = _path(file, ".safetensors")
    with ArrayMap({k: as_array(v) for k, v in arrays.items()}) as named, StringMap(metadata) as strings:
        if path is not None:
            if c.mlx_save_safetensors(path, named.handle, strings.handle):
                raise local.here.failure("save_safetensors")
            return
        with _stream_of(file, "write", c.mlx_io_writer_new, c.mlx_io_writer_free) as writer:  # type: ignore[arg-type]
            if c.mlx_save_safetensors_writer(writer, named.handle, strings.handle):
                raise local.here.failure("save_safetensors")


def save_gguf(
    file: str | os.PathLike[str], arrays: Mapping[str, Array], metadata: Mapping[str, Metadata] | None = None
) -> None:
    """Save named arrays and metadata (arrays, strings, lists of strings) as gguf; ".gguf" is added to the path."""
    check_fork()
    path = _path(file, ".gguf")
    if path is None:
        raise ValueError("save_gguf: gguf files are saved by path")
    with _Gguf(c.mlx_io_gguf_new()) as gguf:
        for name, array in arrays.items():
            gguf.call("set_array", name.encode(), as_array(array).live)
        for name, value in (metadata or {}).items():
            if isinstance(value, str):
                gguf.call("set_metadata_string", name.encode(), value.encode())
            elif isinstance(value, list):
                with StringVector(value) as strings:
                    gguf.call("set_metadata_vector_string", name.encode(), strings.handle)
            else:
                gguf.call("set_metadata_array", name.encode(), as_array(value).live)
        if c.mlx_save_gguf(path, gguf.handle):
            raise local.here.failure("save_gguf")
