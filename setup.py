"""Metadata is in setup.cfg; this adds the native libraries (native/build.py) to the build.

MLXC_PY_NO_NATIVE=1 leaves them out: the bindings then need an official libmlxc, and there is no ONNX Runtime plugin.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from setuptools import Command, Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))
from native import build as native  # noqa: E402  build backends do not put the tree on sys.path

WITH_NATIVE = os.environ.get(native.SKIP, "") in ("", "0")


def build_libraries(root: Path, force: bool = False) -> list[Path]:
    """The libraries below `root`, built where needed; ends the build with one clear message."""
    try:
        return native.build(root, force)
    except native.BuildError as e:
        raise SystemExit(f"\nmlxc-py: {e}\n") from e


class BuildPy(build_py):
    """Python files and libraries; the libraries are also left in the tree, where commands run inside a clone look."""

    def run(self) -> None:
        if not self.editable_mode:
            for package in ("mlxc_py", "ort_ep"):  # a module deleted since the last build must not come back
                shutil.rmtree(Path(self.build_lib, package), ignore_errors=True)
        super().run()
        if not WITH_NATIVE:
            return
        if not os.access(ROOT, os.W_OK):
            build_libraries(Path(self.build_lib))
            return
        built = build_libraries(ROOT)
        if self.editable_mode:
            return
        for path in built:
            target = Path(self.build_lib, path.relative_to(ROOT))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


class BuildNative(Command):
    """`python setup.py build_native`: build the libraries into the tree."""

    description = "build libmlxc, its support library and the ONNX Runtime plugin into the tree"
    user_options = [("force", "f", "build what has not changed, too")]  # noqa: RUF012  as setuptools declares it
    boolean_options = ["force"]  # noqa: RUF012

    def initialize_options(self) -> None:
        self.force = False

    def finalize_options(self) -> None:
        pass

    def run(self) -> None:
        build_libraries(ROOT, bool(self.force))


class PlatformDistribution(Distribution):
    """Installed where libraries of a platform go, beside mlx, although setuptools compiles none of them."""

    def has_ext_modules(self) -> bool:
        return WITH_NATIVE


commands: dict[str, Any] = {"build_py": BuildPy, "build_native": BuildNative}

# Older setuptools has no bdist_wheel of its own and builds no wheels here, but it can run build_native.
with contextlib.suppress(ImportError):
    from setuptools.command.bdist_wheel import bdist_wheel

    class BdistWheel(bdist_wheel):
        """One wheel per platform serves every Python 3: no library links Python."""

        def get_tag(self) -> tuple[str, str, str]:
            _, _, platform = super().get_tag()
            return "py3", "none", platform

    commands["bdist_wheel"] = BdistWheel

options: dict[str, dict[str, str]] = {}
if not os.access(ROOT, os.W_OK):  # a clone of somebody else's: what setuptools leaves beside setup.py goes elsewhere
    scratch = tempfile.mkdtemp(prefix="mlxc-py-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    options = {"egg_info": {"egg_base": scratch}, "build": {"build_base": scratch}}

setup(distclass=PlatformDistribution, cmdclass=commands, options=options)
