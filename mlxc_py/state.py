"""What each thread needs to call MLX: result slots, its current stream, and an exception that a callback raised."""

from __future__ import annotations

import sys
import threading
import weakref
from ctypes import addressof, c_size_t
from typing import TYPE_CHECKING, TypeAlias

from mlxc_py._sys import fastcall, load
from mlxc_py.errors import error

if TYPE_CHECKING:
    from mlxc_py.device import Device, DeviceType
    from mlxc_py.streams import Stream, ThreadLocalStream

StreamLike: TypeAlias = "Stream | ThreadLocalStream | Device | DeviceType | None"
"""What `stream=` takes; None is the current stream."""


class Here:
    """One thread's state. A ctypes call writes its result handle to `out`; the caller takes it from `slot` at once."""

    __slots__ = ("__weakref__", "current", "out", "out2", "pinned", "raised", "slot", "streams")

    def __init__(self) -> None:
        # Zeroed whenever nothing is in flight: MLX reassigns a non-empty result handle in place [M 20].
        self.slot = (c_size_t * 2)()
        self.out = addressof(self.slot)
        self.out2 = self.out + 8
        self.current: Stream | None = None  # what ops use; None: this thread's default, fetched at the next op
        self.pinned: list[Stream] = []  # of the `with stream(...)` around: a new default device leaves them alone
        self.streams: dict[Device, Stream] = {}
        self.raised: BaseException | None = None

    def use(self, stream: Stream | None) -> None:
        """Make a stream the one that ops on this thread use; None: the default, fetched when next needed."""
        self.current = stream
        fastcall.set_stream(0 if stream is None else stream.handle, stream is not None and bool(self.pinned))

    def resolve(self) -> Stream:
        """The current stream; a thread's default is fetched on it, as each has its own since MLX 0.31.2 [M 24]."""
        current = self.current
        if current is None:
            from mlxc_py.device import default_device
            from mlxc_py.streams import default_stream

            current = default_stream(default_device())
            self.use(current)
        return current

    def on(self, stream: StreamLike) -> int:
        """The handle of the stream an op shall run on."""
        return on(stream) or self.resolve().handle

    def take_raw(self) -> int:
        """The handle that the last call wrote to `out`."""
        handle: int = self.slot[0]
        self.slot[0] = 0
        return handle

    def failure(self, call: str | None = None) -> BaseException:
        """The exception for a failed call: a callback's own where one was raised, else MLX's message."""
        raised, self.raised = self.raised, None
        message = load.take_error()
        self.slot[0] = self.slot[1] = 0
        if raised is not None:
            return raised
        return error(call or sys._getframe(2).f_code.co_name, message)


class _Local(threading.local):
    def __init__(self) -> None:
        self.here = Here()
        _EVERY.add(self.here)

    @staticmethod
    def forget_streams() -> None:
        """Make every thread outside `with stream(...)` ask for its default stream again."""
        fastcall.forget_streams()
        for here in list(_EVERY):
            if not here.pinned:
                here.current = None


_EVERY: weakref.WeakSet[Here] = weakref.WeakSet()
local = _Local()


def current_handle() -> int:
    """The handle of the stream that ops without `stream=` use on this thread."""
    return local.here.resolve().handle


def on(stream: StreamLike) -> int | None:
    """The handle of the stream an op shall run on, None for the current one."""
    if stream is None:
        return None
    from mlxc_py.streams import as_stream

    return as_stream(stream).handle


fastcall.set_resolver(current_handle)
