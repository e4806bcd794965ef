"""Streams: the queues that ops run on, per thread by default, and `with stream(...)`."""

from __future__ import annotations

import weakref
from ctypes import addressof, c_int

from mlxc_py._sys import fastcall
from mlxc_py._sys import mlx as c
from mlxc_py.device import Device, DeviceType, _read, as_device
from mlxc_py.errors import ClosedError, MLXStreamError
from mlxc_py.guards import check_fork
from mlxc_py.state import Here, StreamLike, local


class Stream:
    """An mlx_stream: `device`, `index`. Owns its handle; the stream itself lives as long as MLX does."""

    __slots__ = ("__weakref__", "device", "handle", "index")

    def __init__(self, device: Device | DeviceType) -> None:
        check_fork()
        here = local.here
        self._adopt(here, c.mlx_stream_new_device(as_device(device).handle))

    def _adopt(self, here: Here, handle: int) -> None:
        if not handle:
            raise here.failure("Stream")
        self.handle = handle
        weakref.finalize(self, _free, handle).atexit = False
        index = c_int()
        if c.mlx_stream_get_index(addressof(index), handle) or c.mlx_stream_get_device(here.out, handle):
            raise here.failure("Stream")
        self.index = index.value
        device = here.take_raw()
        self.device = _read(device)
        c.mlx_device_free(device)

    @classmethod
    def adopt(cls, handle: int) -> Stream:
        """Take ownership of an mlx_stream."""
        stream = cls.__new__(cls)
        stream._adopt(local.here, handle)
        return stream

    def __repr__(self) -> str:
        return f"Stream({self.device!r}, {self.index})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device, self.index) == (other.device, other.index)

    def __hash__(self) -> int:
        return hash((self.device, self.index))


def _free(handle: int) -> None:
    # On a thread that Python did not start, a thread's state goes with each callback; what calls use would stay behind.
    fastcall.drop_stream(handle)
    c.mlx_stream_free(handle)


class ThreadLocalStream:
    """A stream that stands for a different underlying stream on each thread (libmlxc 0.7)."""

    __slots__ = ("__weakref__", "device", "handle")

    def __init__(self, device: Device | DeviceType) -> None:
        here = local.here
        self.device = as_device(device)
        self.handle: int = c.mlx_stream_thread_local_new(self.device.handle)
        if not self.handle:
            raise here.failure("new_thread_local_stream")
        weakref.finalize(self, c.mlx_stream_thread_local_free, self.handle).atexit = False

    def here(self) -> Stream:
        """This thread's stream."""
        state = local.here
        if c.mlx_stream_from_thread_local(state.out, self.handle):
            raise state.failure("ThreadLocalStream")
        return Stream.adopt(state.take_raw())

    def __repr__(self) -> str:
        return f"ThreadLocalStream({self.device!r})"


def as_stream(stream: StreamLike) -> Stream:
    """The Stream meant on this thread: a device's default one, the current one for None."""
    if isinstance(stream, Stream):
        if not stream.handle:
            raise ClosedError("the stream was closed")
        return stream
    if isinstance(stream, ThreadLocalStream):
        return _thread_stream(stream)
    if isinstance(stream, Device | DeviceType):
        return default_stream(stream)
    if stream is None:
        return current_stream()
    raise TypeError(f"stream must be a Stream, Device or DeviceType, not {type(stream).__name__}")


_thread_streams: weakref.WeakKeyDictionary[Here, weakref.WeakKeyDictionary[ThreadLocalStream, Stream]] = (
    weakref.WeakKeyDictionary()
)


def _thread_stream(stream: ThreadLocalStream) -> Stream:
    mine = _thread_streams.setdefault(local.here, weakref.WeakKeyDictionary())
    if stream not in mine:
        mine[stream] = stream.here()
    return mine[stream]


def default_stream(device: Device | DeviceType) -> Stream:
    """This thread's default stream of a device."""
    here = local.here
    device = as_device(device)
    if device not in here.streams:
        if c.mlx_get_default_stream(here.out, device.handle):
            raise here.failure("default_stream")
        here.streams[device] = Stream.adopt(here.take_raw())
    return here.streams[device]


def current_stream() -> Stream:
    """The stream that ops without `stream=` run on now, on this thread."""
    return local.here.resolve()


def set_default_stream(stream: Stream) -> None:
    """Make stream this thread's default for its device."""
    here = local.here
    if c.mlx_set_default_stream(stream.handle):
        raise here.failure("set_default_stream")
    here.streams[stream.device] = stream
    if not here.pinned:
        here.use(None)


class StreamContext:
    """A `with` block whose ops run on a stream, on this thread, unless they name one of their own."""

    __slots__ = ("_stream",)

    def __init__(self, stream: StreamLike) -> None:
        self._stream = stream

    def __enter__(self) -> Stream:
        here, chosen = local.here, as_stream(self._stream)
        here.pinned.append(chosen)
        here.use(chosen)
        return chosen

    def __exit__(self, *_: object) -> None:
        here = local.here
        here.pinned.pop()
        # Outside every block the default may have changed meanwhile: it is asked for again.
        here.use(here.pinned[-1] if here.pinned else None)


def stream(s: StreamLike) -> StreamContext:
    """Run the ops built in a `with` block on s; the block gets the Stream."""
    return StreamContext(s)


def new_stream(device: Device | DeviceType) -> Stream:
    """A new stream; usable on the thread that made it."""
    return Stream(device)


def new_thread_unsafe_stream(device: Device | DeviceType) -> Stream:
    """A new stream that any one thread at a time may use (libmlxc 0.7; the caller keeps the lock)."""
    check_fork()
    here = local.here
    handle = c.mlx_stream_new_thread_unsafe(as_device(device).handle)
    if not handle:
        raise here.failure("new_thread_unsafe_stream")
    return Stream.adopt(handle)


def new_thread_local_stream(device: Device | DeviceType) -> ThreadLocalStream:
    """A stream that is another one on each thread (libmlxc 0.7)."""
    return ThreadLocalStream(device)


def synchronize(stream: StreamLike = None) -> None:
    """Wait until everything on the stream is done; the current stream when None."""
    check_fork()
    here = local.here
    if c.mlx_synchronize(as_stream(stream).handle):
        raise here.failure("synchronize")


def clear_streams() -> None:
    """Drop this thread's streams and what they hold in MLX (libmlxc 0.7); new ones are made at the next op."""
    here = local.here
    if here.pinned:
        raise MLXStreamError("clear_streams: not inside `with stream(...)`")
    if c.mlx_clear_streams():
        raise here.failure("clear_streams")
    here.streams.clear()
    here.use(None)
