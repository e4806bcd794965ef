#!/usr/bin/env python3
"""Build the native libraries into the tree: libmlxc, its support library and ONNX Runtime's plugin.

Needs a C++20 compiler (CXX, else c++, g++ or clang++) and the `mlx` wheel, whose headers and library libmlxc is built
on; nothing else beyond the standard library. A library whose sources have not changed is left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "native"
DARWIN = sys.platform == "darwin"
SKIP = "MLXC_PY_NO_NATIVE"
SKIP_HINT = f"or skip the native parts with {SKIP}=1 (then an official libmlxc is needed, and there is no plugin)"
PROBE = "struct A { int x; bool operator==(const A&) const = default; }; int main() { return A{1} == A{2}; }\n"


@dataclass(frozen=True)
class Library:
    """A shared library: sources in native/<folder>, result in <package>/lib.

    With `joined`, the sources directly in the folder are compiled as one unit: MLX's headers cost 1.5 s a unit.
    """

    name: str
    folder: str
    package: str
    uses_mlx: bool = False
    joined: bool = False

    @property
    def file(self) -> str:
        """File name of the result."""
        return f"lib{self.name}.{'dylib' if DARWIN else 'so'}"

    def units(self, scratch: Path) -> list[Path]:
        """Its translation units; a joined one is written to `scratch`."""
        folder = NATIVE / self.folder
        sources = sorted(p for p in folder.rglob("*") if p.suffix in (".c", ".cpp"))
        if not self.joined:
            return sources
        top = [p for p in sources if p.parent == folder]
        unit = scratch / f"{self.name}.cpp"
        unit.write_text("".join(f'#include "{p.name}"\n' for p in top), encoding="utf-8")
        return [unit, *(p for p in sources if p not in top)]


LIBRARIES = (
    Library("mlxc", "mlxc", "mlxc_py", uses_mlx=True, joined=True),
    Library("mlxc_support", "support", "mlxc_py"),
    Library("ort_ep_mlx", "plugin", "ort_ep"),
)


class BuildError(Exception):
    """Why a library could not be built, and what to do: one line, compiler output below it."""


@dataclass(frozen=True)
class Mlx:
    """The MLX that is built against."""

    include: Path
    library: Path
    version: str


def supported_mlx() -> str:
    """The MLX release that the sources and the wrappers are made for, as setup.cfg pins it."""
    found = re.search(r"^    mlx == ([\d.]+)$", (ROOT / "setup.cfg").read_text(encoding="utf-8"), re.MULTILINE)
    assert found, "setup.cfg pins mlx in install_requires"
    return found.group(1)


def find_mlx() -> Mlx:
    """The `mlx` wheel of the running Python; raises BuildError unless it is the supported release."""
    spec = importlib.util.find_spec("mlx")
    name = "libmlx.dylib" if DARWIN else "libmlx.so"
    supported = supported_mlx()
    wanted = f"{'mlx' if DARWIN else 'mlx[cpu]'}=={supported}"
    for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
        header, library = folder / "include" / "mlx" / "version.h", folder / "lib" / name
        if header.is_file() and library.is_file():
            numbers = re.findall(r"#define MLX_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header.read_text(encoding="utf-8"))
            version = ".".join(numbers)
            if version != supported:
                raise BuildError(f"made for MLX {supported}, but {folder} is MLX {version}: pip install '{wanted}'")
            return Mlx(folder / "include", library, version)
    raise BuildError(
        f"no MLX headers and {name} found for {sys.executable}: pip install '{wanted}' "
        f"(without build isolation it must be there first), {SKIP_HINT}"
    )


def find_compiler(scratch: Path) -> list[str]:
    """The compiler command; it was seen to compile C++20."""
    chosen = os.environ.get("CXX", "").strip()
    candidates = [shlex.split(chosen)] if chosen else [[name] for name in ("c++", "g++", "clang++")]
    found = [c for c in candidates if shutil.which(c[0])]
    if not found:
        what = f"CXX names {chosen!r}, which is not there" if chosen else "no C++ compiler (c++, g++, clang++) found"
        how = "xcode-select --install" if DARWIN else "install one (Debian and Ubuntu: apt-get install g++)"
        raise BuildError(f"{what}: {how}, or set CXX, {SKIP_HINT}")
    probe = scratch / "probe.cpp"
    probe.write_text(PROBE, encoding="utf-8")
    for command in found:
        test = [*command, "-std=c++20", "-c", str(probe), "-o", str(scratch / "probe.o")]
        if subprocess.run(test, capture_output=True, check=False).returncode == 0:
            return command
    version = subprocess.run([*found[0], "--version"], capture_output=True, text=True, check=False).stdout
    raise BuildError(
        f"{shlex.join(found[0])} ({version.partition(chr(10))[0] or 'unknown version'}) does not compile C++20: "
        f"install g++ 11 or clang 14 or newer, or set CXX to one, {SKIP_HINT}"
    )


def compile_command(compiler: Sequence[str], source: Path, target: Path, mlx: Mlx | None) -> list[str]:
    """Command for one translation unit; C goes through the C++ compiler's driver too."""
    if source.suffix == ".c":
        language = ["-x", "c", "-std=gnu11", *shlex.split(os.environ.get("CFLAGS", ""))]
    else:
        language = ["-std=c++20", "-fvisibility-inlines-hidden", *shlex.split(os.environ.get("CXXFLAGS", ""))]
    include = ["-I", str(NATIVE / "mlxc"), "-isystem", str(mlx.include)] if mlx else []
    common = ["-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
    return [*compiler, *common, *language, *include, "-c", str(source), "-o", str(target)]


def link_command(
    compiler: Sequence[str], library: Library, objects: Sequence[Path], target: Path, mlx: Mlx | None
) -> list[str]:
    """Command that links the library; `-Xlinker` because `-Wl` would split a path at its commas."""
    command = [*compiler, *map(str, objects), "-o", str(target)]
    exports = NATIVE / library.folder / ("exports.macos.map" if DARWIN else "exports.map")
    if DARWIN:
        options = ["-install_name", f"@rpath/{library.file}"]
        options += ["-exported_symbols_list", str(exports)] if exports.is_file() else []
        options += ["-rpath", "@loader_path/../../mlx/lib"] if mlx else []
        command.append("-dynamiclib")
    else:
        options = ["-soname", library.file, "-z", "defs"]
        options += ["--version-script", str(exports)] if exports.is_file() else []
        options += ["-rpath", "$ORIGIN/../../mlx/lib"] if mlx else []
        command += ["-shared", "-pthread", "-ldl"]
    for option in options:
        command += ["-Xlinker", option]
    return [*command, *([str(mlx.library)] if mlx else []), *shlex.split(os.environ.get("LDFLAGS", ""))]


def build(root: Path, force: bool = False) -> list[Path]:
    """Build every library into `root`/<package>/lib; returns all of them. Raises BuildError."""
    if not (sys.platform.startswith("linux") or DARWIN):
        raise BuildError(f"the native parts build on Linux and macOS, not on {sys.platform}; {SKIP_HINT}")
    mlx = find_mlx()
    results = []
    with tempfile.TemporaryDirectory(prefix="mlxc-py-") as scratch:
        compiler: list[str] | None = None
        for library in LIBRARIES:
            result = root / library.package / "lib" / library.file
            stamp = _stamp(library, mlx)
            results += [result, result.with_suffix(".json")]
            if not force and _is_current(result, stamp):
                continue
            compiler = compiler or find_compiler(Path(scratch))
            print(f"building {result.name} with {shlex.join(compiler)}", flush=True)
            _build_one(library, compiler, mlx if library.uses_mlx else None, Path(scratch), result)
            result.with_suffix(".json").write_text(json.dumps(stamp) + "\n", encoding="utf-8")
    return results


def _build_one(library: Library, compiler: Sequence[str], mlx: Mlx | None, scratch: Path, result: Path) -> None:
    folder = scratch / library.name
    folder.mkdir()
    units = library.units(folder)
    objects = [folder / f"{i}_{unit.stem}.o" for i, unit in enumerate(units)]
    commands = [compile_command(compiler, u, o, mlx) for u, o in zip(units, objects, strict=True)]
    # A compiler takes up to 0.4 GB here, hence the limit on large machines.
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        for output in pool.map(_run, commands):
            if output:
                against = f" against MLX {mlx.version}" if mlx else ""
                raise BuildError(f"{library.file} does not compile{against}:\n{output}")
    linked = folder / library.file
    if output := _run(link_command(compiler, library, objects, linked, mlx)):
        raise BuildError(f"{library.file} does not link:\n{output}")
    result.parent.mkdir(parents=True, exist_ok=True)
    # Replaced, not overwritten: a process that has the old file mapped keeps it.
    new = result.with_suffix(".new")
    shutil.copy(linked, new)
    new.replace(result)


def _run(command: Sequence[str]) -> str:
    """Empty, or the command and the start of what it said when it failed."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0:
        return ""
    said = (done.stderr + done.stdout).splitlines()[:40]
    return "\n".join([shlex.join(command), *said, f"exit status {done.returncode}"])


def _stamp(library: Library, mlx: Mlx) -> dict[str, str]:
    """What a library is built from; the loader compares the first two entries of libmlxc's."""
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    stamp = {"mlx_version": mlx.version} if library.uses_mlx else {}
    return {**stamp, "source_hash": _stamp_module().source_hash(NATIVE / library.folder), "recipe": recipe}


def _is_current(result: Path, stamp: dict[str, str]) -> bool:
    beside = result.with_suffix(".json")
    return result.is_file() and beside.is_file() and beside.read_text(encoding="utf-8") == json.dumps(stamp) + "\n"


def _stamp_module() -> ModuleType:
    """mlxc_py._sys.stamp by path: importing the package would need its dependencies."""
    spec = importlib.util.spec_from_file_location("mlxc_py_stamp", ROOT / "mlxc_py" / "_sys" / "stamp.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--force", action="store_true", help="build what has not changed, too")
    args = parser.parse_args()
    try:
        build(ROOT, args.force)
    except BuildError as e:
        print(f"mlxc-py: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
