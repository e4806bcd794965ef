"""mlxc_py._sys.ort and ort_api: tables as the headers have them, and agreeing on a version."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from mlxc_py._sys import ort, ort_api


def test_every_struct_enum_and_callback_is_there(models: Any) -> None:
    api = models.ort
    for s in api.structs.values():
        assert [name for name, *_ in getattr(ort, s.name)._fields_] == [m.name for m in s.members]
    for e in api.enums.values():
        assert {n: m.value for n, m in getattr(ort, e.name).__members__.items()} == e.values
    for t in api.typedefs.values():
        assert hasattr(ort, t.name) == ("(*)" in t.type)
    assert all(getattr(ort, name) is int for name in api.opaque)
    assert ort.ORT_API_VERSION == 29
    assert len(ort.OrtApi._fields_) == len(ort.SINCE_OrtApi) == 425


def test_members_versions_only_grow() -> None:
    for name in (n for n in vars(ort) if n.startswith("SINCE_")):
        since = getattr(ort, name)
        assert list(since) == sorted(since), name
    assert ort.SINCE_OrtApi[0] == 0 and ort.SINCE_OrtApi[-1] == 29


class Runtime:
    """An OrtApiBase of an ONNX Runtime `release` whose GetApi knows the versions up to `newest`."""

    def __init__(self, release: bytes, newest: int) -> None:
        self.asked: list[int] = []
        self.table = ort.OrtApi()
        # As seen from the implementing side a string is returned as an address, or ctypes would leak it.
        self.text = ctypes.create_string_buffer(release)
        self.get_version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.addressof(self.text))

        def get_api(version: int) -> int | None:
            self.asked.append(version)
            return ctypes.addressof(self.table) if version <= newest else None

        self.get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(get_api)
        self.base = ort.OrtApiBase()
        for slot, function in enumerate((self.get_api, self.get_version)):  # the table's two members
            place = ctypes.c_void_p.from_buffer(self.base, slot * ctypes.sizeof(ctypes.c_void_p))
            place.value = ctypes.cast(function, ctypes.c_void_p).value

    @property
    def address(self) -> int:
        return ctypes.addressof(self.base)


@pytest.mark.parametrize(
    ("release", "newest", "version", "asked"),
    [
        (b"1.24.4", 24, 24, [24]),
        (b"1.27.1", 27, 27, [27]),
        (b"1.29.0", 29, 29, [29]),
        (b"1.32.0", 32, 29, [29]),
        (b"1.28.0", 26, 26, [28, 27, 26]),
        (b"2.0.0", 40, 29, [29]),
    ],
)
def test_the_newest_common_version_is_asked_for(release: bytes, newest: int, version: int, asked: list[int]) -> None:
    runtime = Runtime(release, newest)
    api = ort_api.negotiate(runtime.address)
    assert (api.version, api.release) == (version, release.decode())
    assert runtime.asked == asked


def test_too_old_is_said_and_nothing_is_asked() -> None:
    runtime = Runtime(b"1.23.2", 23)
    with pytest.raises(ort_api.VersionError, match=r"^needs onnxruntime >= 1\.24, have 1\.23\.2$"):
        ort_api.negotiate(runtime.address)
    assert runtime.asked == []


def test_an_onnxruntime_that_gives_no_api() -> None:
    with pytest.raises(ort_api.VersionError, match=r"onnxruntime 1\.30\.0 gives none of the API versions 24 to 29"):
        ort_api.negotiate(Runtime(b"1.30.0", 0).address)


def test_members_past_the_tables_end_are_never_read() -> None:
    api = ort_api.negotiate(Runtime(b"1.24.4", 24).address)
    name = ort.OrtApi._fields_[-1][0]
    assert api.has("CreateStatus") and not api.has(name) and not api.has("NoSuchThing")
    with pytest.raises(ort_api.VersionError, match=rf"OrtApi\.{name} needs onnxruntime >= 1\.29, have 1\.24\.4"):
        getattr(api, name)
    with pytest.raises(AttributeError, match="OrtApi has no member NoSuchThing"):
        _ = api.NoSuchThing


def test_a_real_onnxruntime() -> None:
    spec = importlib.util.find_spec("onnxruntime")
    libraries = sorted(Path(f).parent.glob("capi/libonnxruntime.*")) if spec and (f := spec.origin) else []
    if not libraries:
        pytest.skip("onnxruntime ships no shared library here")
    get_base = ctypes.CDLL(str(libraries[0]))["OrtGetApiBase"]
    get_base.restype = ctypes.c_void_p
    api = ort_api.negotiate(get_base())
    status = api.CreateStatus(ort.OrtErrorCode.ORT_NOT_FOUND, b"some text")
    assert api.GetErrorCode(status) == ort.OrtErrorCode.ORT_NOT_FOUND
    assert api.GetErrorMessage(status) == b"some text"
    api.ReleaseStatus(status)
    pairs = ctypes.c_void_p()
    api.CreateKeyValuePairs(ctypes.byref(pairs))
    api.AddKeyValuePair(pairs, b"key", b"value")
    assert api.GetKeyValue(pairs, b"key") == b"value"
    api.ReleaseKeyValuePairs(pairs)
    ep_api = ort_api.sub_api(api, "GetEpApi", ort.OrtEpApi)
    assert ep_api.has("CreateEpDevice") and ep_api.CreateEpDevice
