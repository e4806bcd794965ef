"""The base of objects that own a handle of libmlxc's."""

from __future__ import annotations

from ctypes import c_int, c_void_p
from functools import cache
from typing import Any, Self

from mlxc_py._sys.load import library
from mlxc_py.errors import ClosedError
from mlxc_py.state import local


@cache
def _freeing(name: str) -> Any:
    return library().typed(name, c_int, c_void_p)


class Owner:
    """One handle, freed once: by close(), at the end of a `with`, or when collected, on any thread."""

    __slots__ = ("__weakref__", "handle")
    handle: int
    free: str  # name of the C function that frees the handle

    def __init__(self, handle: int) -> None:
        self.handle = handle
        if not handle:
            raise local.here.failure(type(self).__name__)

    @classmethod
    def adopt(cls, handle: int) -> Self:
        """Take ownership of a handle."""
        new = cls.__new__(cls)
        Owner.__init__(new, handle)
        return new

    @property
    def live(self) -> int:
        """The handle, or ClosedError."""
        if not self.handle:
            raise ClosedError(f"this {type(self).__name__} is closed")
        return self.handle

    def close(self) -> None:
        """Free the handle now; a second time does nothing."""
        handle, self.handle = getattr(self, "handle", 0), 0  # missing where __init__ failed before it
        if handle:
            _freeing(self.free)(handle)

    def __del__(self) -> None:
        if _freeing is not None:  # late in the interpreter's shutdown it is, and the memory goes with the process
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
