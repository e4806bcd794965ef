"""Find, check and load libmlxc, once per process; install the error handler before any other call."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import importlib.util
import os
import re
import threading
from pathlib import Path
from typing import Any

from mlxc_py._sys.generations import Generation, UnknownLibrary, classify
from mlxc_py._sys.image import missing_bytes
from mlxc_py._sys.places import (
    ENVIRONMENT_VARIABLE,
    Place,
    Platform,
    library_file,
    mlx_libraries,
    places,
    remedy,
    this_platform,
)
from mlxc_py._sys.stamp import read_stamp, source_hash

_PACKAGE = Path(__file__).resolve().parents[1]
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)
_messages = threading.local()
_lock = threading.RLock()
_library: Library | None = None


class LibraryError(RuntimeError):
    """No usable libmlxc, or one that does not fit the MLX that is installed."""


class SymbolError(LibraryError, NotImplementedError):
    """The loaded libmlxc lacks a function, or has it with another signature."""


class Library:
    """A loaded libmlxc.

    `path` is the file, `mlx_version` what MLX says of itself, `generation` the mlx-c generation ("0.6.0", "0.6",
    "0.7-pre", "0.7.0" or "newer"), `refused` the functions whose signature is unknown, `mlx_path` the libmlx in use.
    """

    def __init__(self, handle: ctypes.CDLL, place: Place, mlx_path: str | None) -> None:
        self.handle = handle
        self.origin = place.origin
        self.path = _file_of(place, handle)
        self.mlx_path = mlx_path
        self._known: dict[str, bool] = {}
        if not self.has("mlx_set_error_handler") or not self.has("mlx_version"):
            raise UnknownLibrary("it exports no mlx_set_error_handler and mlx_version, so it is not an mlx-c library")
        _install_handler(handle)
        self.mlx_version = _mlx_version(handle)
        generation: Generation = classify(self.has, self.mlx_version, self.path)
        self.generation = generation.name
        self.refused = generation.refused

    def has(self, name: str) -> bool:
        """Whether the library exports this name."""
        if name not in self._known:
            try:
                self.handle[name]
            except AttributeError:
                self._known[name] = False
            else:
                self._known[name] = True
        return self._known[name]

    def function(self, name: str) -> Any:
        """A new ctypes function object for an exported name, its types still unset."""
        return self.handle[name]

    def typed(self, name: str, result: Any, *arguments: Any) -> Any:
        """The same with its types set."""
        call = self.function(name)
        call.restype, call.argtypes = result, arguments
        return call

    def __repr__(self) -> str:
        return f"<libmlxc {self.path}: mlx-c {self.generation}, MLX {self.mlx_version}>"


def library() -> Library:
    """The libmlxc in use, loaded at the first call; LibraryError says what was tried and what to do."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = find(this_platform(), dict(os.environ), _PACKAGE)
                _route_blas(_library)
    return _library


def last_error() -> str | None:
    """The message of this thread's latest failed call, None when there was none since it was taken."""
    return getattr(_messages, "text", None)


def take_error() -> str | None:
    """`last_error()`, which is then forgotten."""
    text: str | None = getattr(_messages, "text", None)
    _messages.text = None
    return text


# ---------------------------------------------------------------- search
def find(platform: Platform, environ: dict[str, str], package: Path) -> Library:
    """Load the first usable libmlxc of `places(...)`."""
    folders = mlx_folders()
    libmlx = mlx_libraries(platform, folders)
    tried: list[str] = []
    for place in places(platform, environ, package):
        if not place.on_loader_path and not Path(place.path).is_file():
            what = "a folder, not a library" if Path(place.path).is_dir() else "no such file"
            tried.append(f"{place.origin}: {place.path}: {what}")
            continue
        if not place.on_loader_path:
            _check_stamp(Path(place.path), package, libmlx, platform, bool(folders))
        try:
            return _open(place, libmlx)
        except UnknownLibrary as e:
            tried.append(f"{place.origin}: {place.path}: {e}")
        except OSError as e:
            tried.append(f"{place.origin}: {e}")
    lines = "\n  ".join(tried)
    advice = remedy(platform, bool(folders), bool(libmlx), (package.parent / "native" / "build.py").is_file())
    if len(tried) == 1 and environ.get(ENVIRONMENT_VARIABLE):
        advice = f"{ENVIRONMENT_VARIABLE} is set, so nothing else was tried: correct or unset it"
    raise LibraryError(f"no usable {library_file(platform, 'mlxc')}. Tried:\n  {lines}\nWhat to do: {advice}.")


def mlx_folders() -> list[str]:
    """Folders of the installed `mlx` package, which is not imported for it."""
    try:
        spec = importlib.util.find_spec("mlx")
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or []) if spec else []


def installed_mlx_version(libmlx: Path) -> str | None:
    """Version of the MLX that a libmlx belongs to, from the header that ships beside it."""
    header = libmlx.parents[1] / "include" / "mlx" / "version.h"
    if not header.is_file():
        return None
    numbers = re.findall(r"#define MLX_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header.read_text(encoding="utf-8"))
    return ".".join(numbers) if len(numbers) == 3 else None


def _check_stamp(path: Path, package: Path, libmlx: list[Path], platform: Platform, mlx_installed: bool) -> None:
    """Refuse, before dlopen, a library of ours that was built for another MLX or from other sources."""
    try:
        stamp = read_stamp(path)
    except ValueError as e:
        raise LibraryError(f"{e}: reinstall mlxc-py") from e
    if stamp is None:
        return
    built_for = stamp["mlx_version"]
    if not libmlx:
        raise LibraryError(
            f"{path} needs MLX {built_for}'s {library_file(platform, 'mlx')}, which is not there: "
            f"{remedy(platform, mlx_installed, back_end_installed=False, source_tree=False)}."
        )
    installed = installed_mlx_version(libmlx[0])
    if installed is not None and installed != built_for:
        extra = "" if platform.system == "darwin" else "[cpu]"
        raise LibraryError(
            f"{path} was built for MLX {built_for}, but MLX {installed} is installed: "
            f"`pip install 'mlx{extra}=={built_for}'` (or the extra in use), or a release of mlxc-py that goes with it."
        )
    native = package.parent / "native" / "mlxc"
    if native.is_dir() and path.is_relative_to(package) and stamp.get("source_hash") != source_hash(native):
        raise LibraryError(f"{path} was built from other sources than {native} holds: run `python native/build.py`.")


def _open(place: Place, libmlx: list[Path]) -> Library:
    path = Path(place.path)
    ours = not place.on_loader_path and read_stamp(path) is not None
    if ours:
        _dlopen(libmlx[0])
    try:
        handle = ctypes.CDLL(place.path) if place.on_loader_path else _dlopen(path)
    except OSError as e:
        # An official libmlxc brings its own libmlx; one built against the wheel may need to be shown the wheel's.
        if ours or not libmlx or "libmlx" not in str(e).replace(place.path, ""):
            raise
        _dlopen(libmlx[0])
        handle = ctypes.CDLL(place.path)
    loaded = Library(handle, place, _mapped_libmlx() or (str(libmlx[0]) if ours else None))
    stamp = read_stamp(path) if ours else None
    built_for = stamp["mlx_version"] if stamp else _built_for(loaded)
    if built_for not in (None, loaded.mlx_version):
        raise LibraryError(
            f"{loaded.path} was built for MLX {built_for}, but runs on MLX {loaded.mlx_version}: "
            "another libmlx was loaded earlier in this process."
        )
    return loaded


def _dlopen(path: Path) -> ctypes.CDLL:
    if lacks := missing_bytes(path):
        raise OSError(f"{path}: the file is cut short, {lacks} bytes are missing: install it again")
    return ctypes.CDLL(str(path))


def _built_for(loaded: Library) -> str | None:
    """The MLX that a library of ours was built for by its own account, None for an official one."""
    if not loaded.has("mlxc_py_build_mlx_version"):
        return None
    return str(loaded.typed("mlxc_py_build_mlx_version", ctypes.c_char_p)().decode())


def _mapped_libmlx() -> str | None:
    """Path of the libmlx mapped into this process, on systems with /proc."""
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        return None
    found = re.search(r"\s(/\S.*/libmlx\.so[.\d]*)$", maps.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return found.group(1) if found else None


def _file_of(place: Place, handle: ctypes.CDLL) -> str:
    if not place.on_loader_path:
        return str(Path(place.path).resolve())
    name = re.escape(Path(place.path).name)
    maps = Path("/proc/self/maps")
    text = maps.read_text(encoding="utf-8", errors="replace") if maps.is_file() else ""
    found = re.search(rf"\s(/\S.*/{name}[.\d]*)$", text, re.MULTILINE)
    return found.group(1) if found else str(handle._name)


# ---------------------------------------------------------------- first calls
def _remember(message: bytes | None, data: int | None) -> None:
    _messages.text = (message or b"").decode("utf-8", "replace")


_handler = _HANDLER(_remember)


def _install_handler(handle: ctypes.CDLL) -> None:
    """MLX's own handler prints and ends the process, so ours goes in before anything can fail."""
    install = handle["mlx_set_error_handler"]
    install.argtypes, install.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p], None
    # MLX may call until the process ends: the callback's memory must outlive this module.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_handler))
    install(ctypes.cast(_handler, ctypes.c_void_p), None, None)
    # From here on Python may be gone when MLX fails; strlen takes the message and has no effect.
    silent = ctypes.cast(ctypes.CDLL(None)["strlen"], ctypes.c_void_p)
    atexit.register(install, silent, None, None)


def _mlx_version(handle: ctypes.CDLL) -> str:
    read, data, free = (handle[n] for n in ("mlx_version", "mlx_string_data", "mlx_string_free"))
    read.argtypes, data.argtypes, free.argtypes = [ctypes.c_void_p], [ctypes.c_void_p], [ctypes.c_void_p]
    data.restype = ctypes.c_char_p
    text = ctypes.c_void_p()
    if read(ctypes.byref(text)):
        raise UnknownLibrary(f"mlx_version fails: {take_error()}")
    version = data(text) or b""
    free(text)
    return str(version.decode())


def _route_blas(loaded: Library) -> None:
    """Send MLX's BLAS calls to a fast library where the support module knows how; it reports, never raises."""
    if loaded.mlx_path is None or importlib.util.find_spec("mlxc_py._sys.blas") is None:
        return
    importlib.import_module("mlxc_py._sys.blas").route(loaded.mlx_path)
