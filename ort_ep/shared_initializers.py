"""Weights once per process: initializers interned by content, held by their users, looked up weakly.

A `HostBuffer` is immutable bytes whose storage *is* one evaluated MLX array: leaves and typed views are that array or
views of it, so a weight exists once however many sessions, dtypes and shapes look at it. Buffers are equal when ONNX
dtype, shape and content are; the indexes hold weak references only, and the last user frees the memory.

Content is compared byte by byte, and only with live buffers of the same dtype, shape and sampled bytes. A SHA-256 of
each weight would decide the same at a tenth of the speed, and for a model that is loaded once decide nothing.
Importable without `onnx` and `onnxruntime`, for other execution providers.
"""

from __future__ import annotations

import ctypes
import math
import operator
import os
import threading
import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

import mlxc_py as mx
from ort_ep import dtypes
from ort_ep.addresses import readable
from ort_ep.streams import evaluate

MIN_SHARED_BYTES = 4096
"""Smaller initializers are always private copies: an index entry would cost more than it saves."""

NO_SHARED_INITIALIZERS = "ONNXRUNTIME_EP_MLX_NO_SHARED_INITIALIZERS"
NO_SHARED_QUANT_VIEWS = "ONNXRUNTIME_EP_MLX_NO_SHARED_QUANT_VIEWS"

_WINDOW = 1 << 20  # bytes read or compared at a time
_PARALLEL_BYTES = 8 << 20  # less than this is not worth starting threads
_SAMPLE_WINDOWS = 16
_SAMPLE_BYTES = 64


_local = threading.local()  # `arrays`: this thread's index of leaves and views; `off`: the switches of `switched_off`


def sharing_enabled() -> bool:
    """Whether buffers are interned; off when NO_SHARED_INITIALIZERS is set to anything but `0` (also to nothing)."""
    return os.environ.get(NO_SHARED_INITIALIZERS, "0") == "0" and NO_SHARED_INITIALIZERS not in _switched_off()


def views_enabled() -> bool:
    """Whether typed views are shared; off when NO_SHARED_QUANT_VIEWS is set to anything but `0` (also to nothing)."""
    return os.environ.get(NO_SHARED_QUANT_VIEWS, "0") == "0" and NO_SHARED_QUANT_VIEWS not in _switched_off()


def _switched_off() -> frozenset[str]:
    return getattr(_local, "off", frozenset())


@contextmanager
def switched_off(*switches: str) -> Iterator[None]:
    """On this thread and meanwhile, as if these environment switches were set: how one session opts out."""
    before = _switched_off()
    _local.off = before | set(switches)
    try:
        yield
    finally:
        _local.off = before


class HostBuffer:
    """Immutable bytes of one initializer: `address`, `nbytes`, ONNX `dtype` code, `shape`, read-only `view`.

    `array` is the evaluated MLX array whose memory the bytes are.
    """

    __slots__ = ("__weakref__", "address", "array", "dtype", "nbytes", "shape")

    def __init__(self, array: mx.Array, address: int, dtype: int, shape: tuple[int, ...], nbytes: int) -> None:
        self.array = array
        self.address = address
        self.dtype = dtype
        self.shape = shape
        self.nbytes = nbytes

    @property
    def view(self) -> memoryview:
        """The bytes as a read-only memoryview that keeps this buffer alive."""
        return _read_only(self.address, self.nbytes, self).data

    def __repr__(self) -> str:
        return f"HostBuffer({dtypes.name_of(self.dtype)}{list(self.shape)}, {self.nbytes} bytes)"


@dataclass(frozen=True, slots=True)
class InitData:
    """One initializer as a session sees it: `data` address, `shape`, ONNX `dtype` code, element `count`, its owner."""

    data: int
    shape: tuple[int, ...]
    dtype: int
    count: int
    owned: HostBuffer | None = None

    @classmethod
    def of(cls, buffer: HostBuffer) -> InitData:
        """The record of an owned buffer."""
        return cls(buffer.address, buffer.shape, buffer.dtype, math.prod(buffer.shape), buffer)


class SharedInitializer:
    """An evaluated MLX `array` over the storage of `owner`; both live as long as anyone holds this object."""

    __slots__ = ("__weakref__", "array", "owner")

    def __init__(self, array: mx.Array, owner: HostBuffer) -> None:
        self.array = array
        self.owner = owner


# ---- where bytes come from


class Source(Protocol):
    """Where an initializer's bytes come from; equal `identity` names equal bytes without reading them."""

    nbytes: int
    identity: Hashable | None

    def read_into(self, target: np.ndarray, at: int) -> None:
        """Fill `target` (uint8, contiguous) with the bytes from offset `at`, without the GIL."""
        ...

    def equals(self, held: np.ndarray) -> bool:
        """Whether the bytes are those of `held` (uint8, contiguous, of the same length), without the GIL."""
        ...

    def sample(self) -> bytes:
        """A few short windows: different ones are different content."""
        ...


class MemorySource:
    """Any contiguous bytes-like object; TypeError for anything else."""

    def __init__(self, data: Any) -> None:
        try:
            self._bytes = np.frombuffer(data, np.uint8) if memoryview(data).nbytes else np.empty(0, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise TypeError(f"expected a contiguous bytes-like object, got {type(data).__name__}: {error}") from error
        self.nbytes = self._bytes.nbytes
        self.identity: Hashable | None = None

    @classmethod
    def at(cls, address: int, nbytes: int) -> MemorySource:
        """The bytes at an address that stays valid while the source is used."""
        return cls(readable(address, nbytes) if nbytes else b"")

    def read_into(self, target: np.ndarray, at: int) -> None:
        np.copyto(target, self._bytes[at : at + target.nbytes])

    def equals(self, held: np.ndarray) -> bool:
        return _same_memory(self._bytes, held)

    def sample(self) -> bytes:
        window, step = _windows(self.nbytes)
        return np.ndarray((_SAMPLE_WINDOWS, window), np.uint8, self._bytes, strides=(step, 1)).tobytes()


class ArraySource(MemorySource):
    """The memory of an evaluated, row-contiguous MLX array; where nobody holds these bytes, it becomes the storage."""

    def __init__(self, array: mx.Array) -> None:
        super().__init__(readable(array.address, array.nbytes) if array.nbytes else b"")
        self.array = array


class FileSource:
    """A window of a file, read with preadv: mapped pages that are touched would count as resident memory."""

    def __init__(self, path: str | os.PathLike[str], offset: int, nbytes: int) -> None:
        self.path = os.fspath(path)
        self.offset = offset
        self.nbytes = nbytes
        info = os.stat(self.path)
        if offset < 0 or nbytes < 0 or offset + nbytes > info.st_size:
            raise ValueError(
                f"{self.path}: bytes {offset} to {offset + nbytes} lie outside the file ({info.st_size} bytes);"
                " the model and this external data file do not belong together"
            )
        stamp = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        self.identity: Hashable | None = (*stamp, offset, nbytes)

    def read_into(self, target: np.ndarray, at: int) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < target.nbytes:
                window = target[done : done + _WINDOW]
                count = os.preadv(descriptor, [window.data], self.offset + at + done)
                if not count:
                    raise OSError(f"{self.path} ended {target.nbytes - done} bytes early while it was read")
                done += count
        finally:
            os.close(descriptor)

    def equals(self, held: np.ndarray) -> bool:
        window = np.empty(min(_WINDOW, self.nbytes), np.uint8)
        for at in range(0, self.nbytes, _WINDOW):
            part = window[: self.nbytes - at]
            self.read_into(part, at)
            if not _same_memory(part, held[at : at + part.nbytes]):
                return False
        return True

    def sample(self) -> bytes:
        window, step = _windows(self.nbytes)
        windows = np.empty((_SAMPLE_WINDOWS, window), np.uint8)
        for index in range(_SAMPLE_WINDOWS):
            self.read_into(windows[index], step * index)
        return windows.tobytes()


def _windows(nbytes: int) -> tuple[int, int]:
    """The length of a sample's windows, and how far apart they begin."""
    window = min(_SAMPLE_BYTES, nbytes)
    return window, (nbytes - window) // (_SAMPLE_WINDOWS - 1)


# Called through ctypes it drops the GIL, and unlike numpy's comparison it allocates nothing: worker threads that
# allocate leave an arena of the C heap behind each.
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def _same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    return not _memcmp(_address(a), _address(b), a.nbytes)


def _address(a: np.ndarray) -> int:
    """Without `a.ctypes`, for which numpy makes a string that Python's cache of methods keeps."""
    found: int = a.__array_interface__["data"][0]
    return found


# ---- weak indexes

_T = TypeVar("_T")


class _WeakIndex(Generic[_T]):
    """Key -> live objects. References are weak; dead keys go with `purge`, and when their number has doubled."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[weakref.ref[_T], ...]] = {}
        self._purge_at = 64

    def live(self, key: Hashable) -> list[_T]:
        return [found for ref in self._entries.get(key, ()) if (found := ref()) is not None]

    def add(self, key: Hashable, value: _T) -> None:
        if len(self._entries) >= self._purge_at:
            self.purge()
        self._entries[key] = (*_alive(self._entries.get(key, ())), weakref.ref(value))

    def purge(self) -> None:
        """Forget what is gone."""
        # In place: a new dictionary after sessions that have ended would hold on to the arena that they have left.
        for key, refs in list(self._entries.items()):
            kept = tuple(_alive(refs))
            if not kept:
                del self._entries[key]
            elif len(kept) < len(refs):
                self._entries[key] = kept
        if not self._entries:
            self._entries.clear()  # and its table
        self._purge_at = max(64, 2 * len(self._entries))

    def __len__(self) -> int:
        return len(self._entries)


def _alive(refs: Iterable[weakref.ref[_T]]) -> Iterator[weakref.ref[_T]]:
    return (ref for ref in refs if ref() is not None)


_lock = threading.Lock()  # guards the two indexes below; nothing that can fail or wait runs under it
_buffers: _WeakIndex[HostBuffer] = _WeakIndex()  # by (dtype, shape, sample)
_files: _WeakIndex[HostBuffer] = _WeakIndex()  # by (dtype, shape, identity of a file window)


def _arrays() -> _WeakIndex[SharedInitializer]:
    """This thread's index of leaves and views."""
    index: _WeakIndex[SharedInitializer] | None = getattr(_local, "arrays", None)
    if index is None:
        index = _local.arrays = _WeakIndex()
    return index


def purge() -> None:
    """Forget what is gone, on this thread: sessions end many at a time, and small remains hold on to whole arenas."""
    _arrays().purge()
    with _lock:
        _buffers.purge()
        _files.purge()


# ---- the contract


def own(data: Any, dtype: int, shape: Sequence[int]) -> HostBuffer:
    """The immutable owner of an initializer's bytes; equal content of equal dtype and shape gives the same object.

    data: any contiguous bytes-like object; dtype: ONNX element type code; shape: any sequence of ints.
    Under 4096 bytes, or with sharing switched off, always a private copy. ValueError where the bytes do not fit.
    """
    return own_source(MemorySource(data), dtype, shape)


def own_file(path: str | os.PathLike[str], offset: int, dtype: int, shape: Sequence[int]) -> HostBuffer:
    """`own` for external data: the bytes are read from `path` at `offset` straight into place."""
    dims = _dims(shape)
    nbytes = _expected_bytes(dims, dtype)
    if nbytes is None:
        raise ValueError(f"shape {list(dims)} has a negative dimension; supply the shape of the data in {path}")
    return own_source(FileSource(path, offset, nbytes), dtype, dims)


def own_all(sources: Iterable[tuple[Source, int, Sequence[int]]]) -> list[HostBuffer]:
    """`own_source` for many, in order; reading and comparing run in parallel, off the GIL."""
    claims = [_Claim(source, dtype, shape) for source, dtype, shape in sources]
    for claim in claims:
        claim.prepare()
    if sum(claim.source.nbytes for claim in claims) < _PARALLEL_BYTES:
        for claim in claims:
            claim.work()
    else:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1), "mlx-weights") as pool:
            list(pool.map(_Claim.work, claims))
    return [claim.publish() for claim in claims]


def own_source(source: Source, dtype: int, shape: Sequence[int]) -> HostBuffer:
    """`own` from any `Source`."""
    claim = _Claim(source, dtype, shape)
    claim.prepare()
    claim.work()
    return claim.publish()


def _twin(source: Source, rivals: Sequence[HostBuffer]) -> HostBuffer | None:
    return next((rival for rival in rivals if source.equals(np.frombuffer(rival.view, np.uint8))), None)


class _Claim:
    """One buffer on its way into the index: `prepare` and `publish` on the caller's thread, `work` on any.

    Memory is allocated by `prepare`: the C heap then reuses what ORT has freed on that thread, which a worker's can't.
    """

    def __init__(self, source: Source, dtype: int, shape: Sequence[int]) -> None:
        self.source = source
        self.dtype = dtype
        self.dims = _dims(shape)
        _check_bytes(source.nbytes, self.dims, dtype)
        self.private = source.nbytes < MIN_SHARED_BYTES or not sharing_enabled()
        self.file_key = (dtype, self.dims, source.identity) if source.identity and not self.private else None
        self.key: Hashable = None
        self.found: HostBuffer | None = None
        self.rivals: list[HostBuffer] = []  # same dtype, shape and sample; the content decides
        self.mine: mx.Array | None = None
        self.unread: np.ndarray | None = None  # the memory of `mine` as long as the bytes are not there

    def prepare(self) -> None:
        """Find the same window of the same file, or rivals, or allocate."""
        if self.file_key is not None:
            with _lock:
                self.found = next(iter(_files.live(self.file_key)), None)
        if self.found is not None:
            return
        if not self.private:
            self.key = (self.dtype, self.dims, hash(self.source.sample()))  # the sample itself is 1 KiB
            with _lock:
                self.rivals = _buffers.live(self.key)
        if not self.rivals:
            self._allocate()

    def work(self) -> None:
        """Read or compare; what takes long, without the GIL."""
        self._read()
        if self.rivals:
            self.found = _twin(self.source, self.rivals)

    def publish(self) -> HostBuffer:
        """The owner: found, or ours and from now on in the index. A rival that came meanwhile is compared too."""
        if self.found is None and self.mine is None:
            self._allocate()
            self._read()
        buffer = self._buffer() if self.found is None else None
        while self.found is None and buffer is not None and not self.private:
            with _lock:
                fresh = [rival for rival in _buffers.live(self.key) if rival not in self.rivals]
                if not fresh:
                    _buffers.add(self.key, buffer)
                    self.found = buffer
            if fresh:
                self.rivals += fresh
                self.found = _twin(MemorySource(buffer.view), fresh)
        owner = self.found or buffer
        assert owner is not None
        if self.file_key is not None:
            with _lock:
                _files.add(self.file_key, owner)
        return owner

    def _allocate(self) -> None:
        if isinstance(self.source, ArraySource):
            self.mine = self.source.array
        else:
            row = dtypes.ELEM_TYPES[self.dtype]
            leaf = (self.dims, dtypes.to_mlx(self.dtype)) if row.mlx and self.source.nbytes else None
            shape, dtype = leaf or (_storage_shape(self.source.nbytes, self.source.nbytes), mx.uint8)
            self.mine, self.unread = mx.uninitialized(shape, dtype)

    def _read(self) -> None:
        if self.unread is not None:
            self.source.read_into(self.unread, 0)
            self.unread = None

    def _buffer(self) -> HostBuffer:
        assert self.mine is not None
        return HostBuffer(self.mine, self.mine.address, self.dtype, self.dims, self.source.nbytes)


def get(init: InitData, shape: Sequence[int]) -> SharedInitializer | None:
    """The evaluated MLX leaf of an owned initializer on this thread, or None: not owned, under 4096 bytes, disabled.

    Keyed by storage, MLX dtype and shape. A failed evaluation raises and leaves nothing in the index.
    """
    if not sharing_enabled() or init.owned is None or init.owned.nbytes < MIN_SHARED_BYTES:
        return None
    return _view(init.owned, dtypes.to_mlx(init.dtype), shape)


def get_view(init: InitData, shape: Sequence[int], dtype: mx.Dtype) -> SharedInitializer | None:
    """The same storage under another MLX dtype (packed quantised weights as uint32 words), or None as for `get`.

    ValueError where shape and dtype do not make up exactly the storage's bytes.
    """
    if not sharing_enabled() or not views_enabled() or init.owned is None or init.owned.nbytes < MIN_SHARED_BYTES:
        return None
    return _view(init.owned, dtype, shape)


def get_derived(data: Any, shape: Sequence[int], dtype: int) -> SharedInitializer | None:
    """An array computed from weights (repacked, decoded), shared by content; None when disabled or under 4096 bytes.

    data: any contiguous bytes-like object, or an evaluated, row-contiguous MLX array, whose memory is then kept.
    Bytes that are not exactly shape x dtype are a ValueError, whatever the switches and the size.
    """
    source = ArraySource(data) if isinstance(data, mx.Array) else MemorySource(data)
    dims = _dims(shape)
    _check_bytes(source.nbytes, dims, dtype)
    if not sharing_enabled() or not views_enabled() or source.nbytes < MIN_SHARED_BYTES:
        return None
    owner = own_source(source, dtype, dims)
    return _view(owner, dtypes.to_mlx(dtype), dims)


# ---- parts


def _view(owner: HostBuffer, dtype: mx.Dtype, shape: Sequence[int]) -> SharedInitializer:
    dims = _dims(shape)
    if any(dim < 0 for dim in dims) or math.prod(dims) * dtype.size != owner.nbytes:
        raise ValueError(
            f"a {dtype.name}{list(dims)} view does not fit {owner}: it takes {math.prod(dims) * dtype.size} bytes,"
            f" the storage has {owner.nbytes}"
        )
    index = _arrays()
    key = (id(owner), dtype.name, dims)  # the entry holds the owner: its id is not reused while the entry lives
    for shared in index.live(key):
        return shared
    array = owner.array
    if array.dtype is not dtype or array.shape != dims:
        flat = mx.reshape(array, _storage_shape(array.size, owner.nbytes))
        array = mx.reshape(mx.view(flat, dtype), dims)
        evaluate([array])
    shared = SharedInitializer(array, owner)
    index.add(key, shared)
    return shared


def _storage_shape(count: int, nbytes: int) -> tuple[int, ...]:
    """One row where it fits, also as single bytes: MLX's dimensions are 32-bit."""
    row = math.gcd(count, 1 << 20)
    return (count,) if nbytes < 1 << 31 else (count // row, row)


def _read_only(address: int, nbytes: int, owner: object) -> np.ndarray:
    """A uint8 array over memory it cannot write to, not even by `setflags`; it keeps `owner` alive."""
    if not nbytes:
        return np.frombuffer(b"", np.uint8)
    view = np.frombuffer(readable(address, nbytes), np.uint8).view(_OwnedBytes)
    view.owner = owner
    return view


class _OwnedBytes(np.ndarray):
    owner: object


def _dims(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(operator.index(dim) for dim in shape)


def _expected_bytes(dims: tuple[int, ...], dtype: int) -> int | None:
    """Bytes of an ONNX tensor; None where a negative dimension makes that meaningless."""
    row = dtypes.ELEM_TYPES.get(dtype)
    if row is None or not row.bits:
        raise ValueError(f"{dtypes.name_of(dtype)} has no fixed element size; such initializers stay with ONNX Runtime")
    return None if any(dim < 0 for dim in dims) else row.nbytes(math.prod(dims))


def _check_bytes(nbytes: int, dims: tuple[int, ...], dtype: int) -> None:
    expected = _expected_bytes(dims, dtype)
    if expected != nbytes:
        takes = "has a negative dimension" if expected is None else f"takes {expected} bytes"
        raise ValueError(
            f"{nbytes} bytes do not make up a {dtypes.name_of(dtype)} array of shape {list(dims)}, which {takes};"
            " supply exactly the bytes of that shape and dtype"
        )
