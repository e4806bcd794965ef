"""Finding libmlxc: where it is looked for on each platform, and what each failure says."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlxc_py._sys import load, places, stamp
from mlxc_py._sys.image import missing_bytes
from mlxc_py._sys.places import Place, Platform

LINUX, MAC = Platform("linux", "x86_64"), Platform("darwin", "arm64")


@pytest.fixture(autouse=True)
def nothing_on_the_loader_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare name would find the libmlxc that other tests have loaded into this process."""
    load_library = ctypes.CDLL

    def cdll(name: str | None, *arguments: Any) -> ctypes.CDLL:
        if name in ("libmlxc.so", "libmlxc.dylib"):
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        return load_library(name, *arguments)

    monkeypatch.setattr(ctypes, "CDLL", cdll)


# ---------------------------------------------------------------- platforms
def test_places_on_a_mac() -> None:
    assert places.places(MAC, {}, Path("/site/mlxc_py")) == [
        Place("built into the package", "/site/mlxc_py/lib/libmlxc.dylib"),
        Place("installed", "/opt/homebrew/lib/libmlxc.dylib"),
        Place("installed", "/usr/local/lib/libmlxc.dylib"),
        Place("the loader's path", "libmlxc.dylib", on_loader_path=True),
    ]


def test_places_on_linux() -> None:
    found = [p.path for p in places.places(LINUX, {"HOMEBREW_PREFIX": "/brew"}, Path("/site/mlxc_py"))]
    assert found == [
        "/site/mlxc_py/lib/libmlxc.so",
        "/brew/lib/libmlxc.so",
        "/home/linuxbrew/.linuxbrew/lib/libmlxc.so",
        "/usr/local/lib/libmlxc.so",
        "libmlxc.so",
    ]


@pytest.mark.parametrize("platform", [LINUX, MAC])
def test_a_library_named_in_the_environment_is_the_only_place(platform: Platform) -> None:
    environ = {"MLXC_PY_LIBRARY": "/x/libmlxc", "HOMEBREW_PREFIX": "/brew"}
    assert places.places(platform, environ, Path("/p")) == [Place("MLXC_PY_LIBRARY", "/x/libmlxc")]


def test_library_names() -> None:
    assert places.library_file(MAC, "mlx") == "libmlx.dylib"
    assert places.library_file(LINUX, "mlx") == "libmlx.so"


def test_libmlx_is_found_in_the_folders_of_a_namespace_package(tmp_path: Path) -> None:
    for folder, name in (("a", "libmlx.so"), ("b", "libmlx.dylib")):
        (tmp_path / folder / "lib").mkdir(parents=True)
        (tmp_path / folder / "lib" / name).touch()
    folders = [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "c")]
    assert places.mlx_libraries(LINUX, folders) == [tmp_path / "a" / "lib" / "libmlx.so"]
    assert places.mlx_libraries(MAC, folders) == [tmp_path / "b" / "lib" / "libmlx.dylib"]


def test_remedies() -> None:
    def remedy(platform: Platform, mlx: bool, back_end: bool, tree: bool = False) -> str:
        return places.remedy(platform, mlx_installed=mlx, back_end_installed=back_end, source_tree=tree)

    assert remedy(LINUX, mlx=True, back_end=False).startswith("mlx is installed without a back end")
    for extra in ("mlx[cpu]", "mlx[cuda12]", "mlx[cuda13]"):
        assert extra in remedy(LINUX, mlx=True, back_end=False)
        assert extra in remedy(LINUX, mlx=False, back_end=False, tree=True)
    assert remedy(MAC, mlx=False, back_end=False) == "mlx is not installed: pip install mlx"
    assert "brew install mlx-c" in remedy(MAC, mlx=True, back_end=True)
    assert "C++ compiler" in remedy(LINUX, mlx=True, back_end=True)
    assert "python native/build.py" in remedy(LINUX, mlx=True, back_end=True, tree=True)


# ---------------------------------------------------------------- failures
@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An empty mlxc_py package folder."""
    (tmp_path / "site" / "mlxc_py" / "lib").mkdir(parents=True)
    return tmp_path / "site" / "mlxc_py"


def make_mlx(folder: Path, version: str | None) -> Path:
    """A folder like that of the mlx wheel, with a libmlx that cannot be loaded."""
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "libmlx.so").write_text("not a library")
    if version:
        header = folder / "include" / "mlx" / "version.h"
        header.parent.mkdir(parents=True)
        parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
        header.write_text("".join(f"#define MLX_VERSION_{n} {v}\n" for n, v in parts))
    return folder


@pytest.mark.parametrize("platform", [LINUX, MAC])
def test_every_place_tried_is_listed(platform: Platform, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "mlx_folders", list)
    environ = {"HOMEBREW_PREFIX": "/no/brew"}
    with pytest.raises(load.LibraryError) as e:
        load.find(platform, environ, package)
    text = str(e.value)
    assert text.startswith(f"no usable {places.library_file(platform, 'mlxc')}. Tried:")
    for place in places.places(platform, environ, package):
        assert place.path in text
    wanted = "install one of the extras mlx[cpu], mlx[cuda12], mlx[cuda13]" if platform == LINUX else "pip install mlx"
    assert wanted in text


def test_a_wrong_path_in_the_environment_is_not_passed_over(package: Path) -> None:
    with pytest.raises(load.LibraryError, match="MLXC_PY_LIBRARY is set, so nothing else was tried") as e:
        load.find(LINUX, {"MLXC_PY_LIBRARY": "/nowhere/libmlxc.so"}, package)
    assert "/nowhere/libmlxc.so: no such file" in str(e.value)
    with pytest.raises(load.LibraryError, match=f"{package}: a folder, not a library"):
        load.find(LINUX, {"MLXC_PY_LIBRARY": str(package)}, package)


def test_a_file_that_is_no_library(package: Path, tmp_path: Path) -> None:
    file = tmp_path / "libmlxc.so"
    file.write_text("text")
    with pytest.raises(load.LibraryError, match=r"libmlxc\.so"):
        load.find(LINUX, {"MLXC_PY_LIBRARY": str(file)}, package)


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9])
def test_a_file_that_is_cut_short(
    package: Path, tmp_path: Path, build_library: Callable[[str, Path], Path], kept: float
) -> None:
    whole = build_library("static char big[1 << 20] = {1}; char* f(void) { return big; }", tmp_path / "whole.so")
    assert missing_bytes(whole) == 0
    cut = tmp_path / "cut.so"
    cut.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * kept)])
    with pytest.raises(load.LibraryError, match=r"cut\.so: the file is cut short, \d+ bytes are missing"):
        load.find(LINUX, {"MLXC_PY_LIBRARY": str(cut)}, package)


def test_mach_o_files_state_their_length_too(tmp_path: Path) -> None:
    segment = struct.pack("<II16sQQQQ", 0x19, 72, b"__TEXT", 0, 4096, 0, 4096).ljust(72, b"\0")
    thin = struct.pack("<4s5I8x", b"\xcf\xfa\xed\xfe", 0, 0, 6, 2, 80) + struct.pack("<II", 2, 8) + segment
    fat = struct.pack(">4sI5I", b"\xca\xfe\xba\xbe", 1, 0, 0, 64, 4096, 0)
    file = tmp_path / "lib.dylib"
    for image, length in ((thin, 4096), (fat, 4160)):
        file.write_bytes(image.ljust(1000, b"\0"))
        assert missing_bytes(file) == length - 1000
        file.write_bytes(image.ljust(length, b"\0"))
        assert missing_bytes(file) == 0
    for image in (
        b"",
        b"\x7fELF",
        b"\x7fELF\x02\x01" + b"\xff" * 100,
        b"\x7fELF\x02\x01" + bytes(100),
        thin[:50],
        b"INPUT(libmlxc.so.1)",
    ):
        file.write_bytes(image)
        assert missing_bytes(file) == 0


def test_a_library_that_is_not_mlx_c(package: Path, tmp_path: Path, build_library: Callable[[str, Path], Path]) -> None:
    other = build_library("int add(int a) { return a; }", tmp_path / "other" / "libmlxc.so")
    with pytest.raises(load.LibraryError, match="not an mlx-c library"):
        load.find(LINUX, {"MLXC_PY_LIBRARY": str(other)}, package)


def stamped(package: Path, **content: str) -> Path:
    library = package / "lib" / "libmlxc.so"
    library.write_text("never opened")
    stamp.stamp_path(library).write_text(json.dumps(content))
    return library


def test_another_mlx_is_refused_before_the_library_is_opened(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = stamped(package, mlx_version="0.32.4", source_hash="")
    monkeypatch.setattr(load, "mlx_folders", lambda: [str(make_mlx(tmp_path / "mlx", "0.33.0"))])
    with pytest.raises(load.LibraryError) as e:
        load.find(LINUX, {}, package)
    assert str(e.value).startswith(f"{library} was built for MLX 0.32.4, but MLX 0.33.0 is installed")
    assert "pip install 'mlx[cpu]==0.32.4'" in str(e.value)


def test_mlx_without_a_back_end_is_said(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamped(package, mlx_version="0.32.4", source_hash="")
    monkeypatch.setattr(load, "mlx_folders", lambda: [str(tmp_path)])
    with pytest.raises(load.LibraryError, match=r"mlx is installed without a back end.*mlx\[cpu\]"):
        load.find(LINUX, {}, package)


def test_a_library_older_than_its_sources_is_refused(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = package.parent / "native" / "mlxc"
    native.mkdir(parents=True)
    (native / "a.cpp").write_text("int a;")
    fresh = stamp.source_hash(native)
    stamped(package, mlx_version="0.32.4", source_hash=fresh)
    mlx = str(make_mlx(tmp_path / "mlx", "0.32.4"))
    monkeypatch.setattr(load, "mlx_folders", lambda: [mlx])
    with pytest.raises(load.LibraryError, match="no usable"):  # fits its sources, so it gets as far as dlopen
        load.find(LINUX, {}, package)
    (native / "a.cpp").write_text("int b;")
    assert stamp.source_hash(native) != fresh
    with pytest.raises(load.LibraryError, match="was built from other sources"):
        load.find(LINUX, {}, package)


def test_an_unreadable_stamp_is_an_error_in_words(package: Path) -> None:
    library = package / "lib" / "libmlxc.so"
    library.write_text("never opened")
    stamp.stamp_path(library).write_text("{}")
    with pytest.raises(load.LibraryError, match=r"libmlxc\.json is not a stamp written by the build: reinstall"):
        load.find(LINUX, {}, package)


def test_the_hash_covers_names_and_contents_of_sources_alone(tmp_path: Path) -> None:
    (tmp_path / "x.cpp").write_text("int x;")
    first = stamp.source_hash(tmp_path)
    (tmp_path / "README.txt").write_text("not a source")
    assert stamp.source_hash(tmp_path) == first
    (tmp_path / "x.cpp").rename(tmp_path / "y.cpp")
    renamed = stamp.source_hash(tmp_path)
    (tmp_path / "y.cpp").write_text("int y;")
    assert len({first, renamed, stamp.source_hash(tmp_path)}) == 3


def test_the_version_of_mlx_comes_from_its_header(tmp_path: Path) -> None:
    with_header = make_mlx(tmp_path / "a", "1.2.3") / "lib" / "libmlx.so"
    without = make_mlx(tmp_path / "b", None) / "lib" / "libmlx.so"
    assert load.installed_mlx_version(with_header) == "1.2.3"
    assert load.installed_mlx_version(without) is None


# ---------------------------------------------------------------- the process's own library
def test_importing_the_bindings_loads_nothing(repository: Path) -> None:
    script = (
        "import mlxc_py._sys.mlx as m, mlxc_py._sys.load as l\n"
        "assert l._library is None\n"
        "assert 'libmlx' not in open('/proc/self/maps').read()\n"
        "print(m.FUNCTION_COUNT, m.API)\n"
    )
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    # The package's own __init__ is not this test's matter, so the bindings are imported without it.
    alone = f"import sys, types; p = types.ModuleType('mlxc_py'); p.__path__ = [{str(repository / 'mlxc_py')!r}]; "
    done = subprocess.run(
        [sys.executable, "-c", alone + "sys.modules['mlxc_py'] = p\n" + script], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("674 0.7.0\n", "")


def test_a_missing_library_fails_at_the_first_call_only(package_environment: dict[str, str]) -> None:
    script = (
        "import mlxc_py._sys.mlx as m\n"
        "from mlxc_py._sys.load import LibraryError\n"
        "f = m.mlx_array_new\n"
        "try: f()\n"
        "except LibraryError as e: print('refused', 'MLXC_PY_LIBRARY' in str(e))\n"
    )
    environ = {**package_environment, "MLXC_PY_LIBRARY": "/nowhere.so"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environ)
    assert (done.stdout, done.stderr) == ("refused True\n", "")


def test_a_library_of_another_mlx_in_one_process_is_named(
    stub_path: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stamp says 0.32.4; the library itself, once loaded, reports another MLX."""
    library = tmp_path / "site" / "mlxc_py" / "lib" / "libmlxc.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(stub_path("0.7.0").read_bytes())
    stamp.stamp_path(library).write_text(json.dumps({"mlx_version": "0.32.4", "source_hash": ""}))
    mlx = make_mlx(tmp_path / "mlx", "0.32.4")
    (mlx / "lib" / "libmlx.so").write_bytes(stub_path("0.7.0").read_bytes())
    monkeypatch.setattr(load, "mlx_folders", lambda: [str(mlx)])
    with pytest.raises(load.LibraryError, match=r"built for MLX 0\.32\.4, but runs on MLX 0\.32\.3"):
        load.find(LINUX, {}, library.parents[1])


def test_the_installed_library_is_the_target_generation() -> None:
    try:
        library = load.library()
    except load.LibraryError as e:
        pytest.skip(str(e))
    assert library.generation in ("0.7.0", "newer", "0.6")
    assert load.library() is library
    assert repr(library).startswith(f"<libmlxc {library.path}: mlx-c {library.generation}, MLX {library.mlx_version}")


def test_find_spec_trouble_means_no_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> SimpleNamespace:
        raise ValueError(f"{name}.__spec__ is None")

    monkeypatch.setattr(importlib.util, "find_spec", broken)
    assert load.mlx_folders() == []
