"""Agreeing with an ONNX Runtime on the newest API version that both sides know."""

from __future__ import annotations

import ctypes
from typing import Any, Generic, TypeVar, cast

from mlxc_py._sys import ort
from mlxc_py._sys.load import LibraryError

LOWEST = 24
"""Minor version of the oldest ONNX Runtime that is supported."""

T = TypeVar("T", bound=ctypes.Structure)


class VersionError(LibraryError):
    """The ONNX Runtime at hand is too old, or gives no API."""


class Table(Generic[T]):
    """A table of function pointers at an address, as far as an ONNX Runtime of version 1.`version` fills it.

    Members are attributes; one that this ONNX Runtime does not have yet raises VersionError and never reads past the
    table's end.
    """

    def __init__(self, kind: type[T], address: int, version: int, release: str) -> None:
        self._struct = kind.from_address(address)
        self._since: dict[str, int] = dict(
            zip((name for name, *_ in kind._fields_), getattr(ort, f"SINCE_{kind.__name__}"), strict=True)
        )
        self.version, self.release = version, release

    def has(self, name: str) -> bool:
        """Whether this ONNX Runtime has the member."""
        return self._since.get(name, self.version + 1) <= self.version

    def __getattr__(self, name: str) -> Any:
        if name not in self._since:
            raise AttributeError(f"{type(self._struct).__name__} has no member {name}")
        if not self.has(name):
            table = type(self._struct).__name__
            raise VersionError(f"{table}.{name} needs onnxruntime >= 1.{self._since[name]}, have {self.release}")
        member = getattr(self._struct, name)
        setattr(self, name, member)  # ctypes makes a new function object at every access
        return member


def negotiate(base_address: int) -> Table[ort.OrtApi]:
    """The OrtApi behind an OrtApiBase*, of the newest version that both sides know; VersionError below 1.24."""
    base = ort.OrtApiBase.from_address(base_address)
    release = (base.GetVersionString() or b"").decode()
    parts = release.split(".")
    minor = int(parts[1]) if len(parts) > 1 and parts[0] == "1" and parts[1].isdigit() else ort.ORT_API_VERSION
    if minor < LOWEST:
        raise VersionError(f"needs onnxruntime >= 1.{LOWEST}, have {release}")
    # An API version that ONNX Runtime does not have gives NULL and a line on stderr, hence the start at its own.
    for version in range(min(minor, ort.ORT_API_VERSION), LOWEST - 1, -1):
        if address := base.GetApi(version):
            return Table(ort.OrtApi, address, version, release)
    raise VersionError(f"onnxruntime {release} gives none of the API versions {LOWEST} to {ort.ORT_API_VERSION}")


def sub_api(api: Table[ort.OrtApi], getter: str, kind: type[T]) -> Table[T]:
    """Another table reached from OrtApi, such as `sub_api(api, "GetEpApi", ort.OrtEpApi)`."""
    address = cast(int | None, getattr(api, getter)())
    if not address:
        raise VersionError(f"onnxruntime {api.release} returns nothing from {getter}")
    return Table(kind, address, api.version, api.release)
