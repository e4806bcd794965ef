"""Where libraries lie and what they are called on each platform: pure functions, testable on any machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ENVIRONMENT_VARIABLE = "MLXC_PY_LIBRARY"


class Platform(NamedTuple):
    """An operating system (`linux`, `darwin`) and a machine (`x86_64`, `arm64`, `aarch64`)."""

    system: str
    machine: str


class Place(NamedTuple):
    """One place to look for a library; `on_loader_path` means a bare name that the system's loader resolves."""

    origin: str
    path: str
    on_loader_path: bool = False


def this_platform() -> Platform:
    """The platform that this process runs on."""
    return Platform(sys.platform, os.uname().machine)


def library_file(platform: Platform, stem: str) -> str:
    """File name of a shared library: libmlxc.so or libmlxc.dylib."""
    return f"lib{stem}.dylib" if platform.system == "darwin" else f"lib{stem}.so"


def places(platform: Platform, environ: Mapping[str, str], package: Path) -> list[Place]:
    """Places to look for libmlxc, in order; the environment variable, when set, is the only one."""
    if named := environ.get(ENVIRONMENT_VARIABLE):
        return [Place(ENVIRONMENT_VARIABLE, named)]
    name = library_file(platform, "mlxc")
    prefixes = [environ["HOMEBREW_PREFIX"]] if environ.get("HOMEBREW_PREFIX") else []
    if platform.system == "darwin":
        prefixes += ["/opt/homebrew", "/usr/local"]
    else:
        prefixes += ["/home/linuxbrew/.linuxbrew", "/usr/local"]
    found = [Place("built into the package", str(package / "lib" / name))]
    found += [Place("installed", f"{prefix}/lib/{name}") for prefix in dict.fromkeys(prefixes)]
    return [*found, Place("the loader's path", name, on_loader_path=True)]


def mlx_libraries(platform: Platform, package_folders: Sequence[str]) -> list[Path]:
    """Paths of libmlx below the folders of the `mlx` package that exist."""
    name = library_file(platform, "mlx")
    return [p for folder in package_folders if (p := Path(folder) / "lib" / name).is_file()]


def remedy(platform: Platform, mlx_installed: bool, back_end_installed: bool, source_tree: bool) -> str:
    """What to do when no usable libmlxc was found."""
    if not back_end_installed and platform.system == "linux":
        what = "mlx is installed without a back end" if mlx_installed else "mlx is not installed"
        return (
            f"{what}: install one of the extras mlx[cpu], mlx[cuda12], mlx[cuda13] "
            "(or mlxc-py[cpu], mlxc-py[cuda12], mlxc-py[cuda13])"
        )
    if not back_end_installed:
        return "mlx is not installed: pip install mlx"
    if source_tree:
        return f"build it with `python native/build.py`, or set {ENVIRONMENT_VARIABLE} to a libmlxc"
    if platform.system == "darwin":
        return f"reinstall mlxc-py, or `brew install mlx-c`, or set {ENVIRONMENT_VARIABLE} to a libmlxc.dylib"
    return f"reinstall mlxc-py (it builds libmlxc with a C++ compiler), or set {ENVIRONMENT_VARIABLE} to a libmlxc.so"
