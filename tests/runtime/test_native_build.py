"""native/build.py: what it says when it cannot build, and what it leaves alone."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def build() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("native_build", ROOT / "native" / "build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def fake_compiler(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_no_compiler(build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError) as e:
        build.find_compiler(tmp_path)
    text = str(e.value)
    assert text.startswith("no C++ compiler (c++, g++, clang++) found")
    assert "set CXX" in text and "MLXC_PY_NO_NATIVE=1" in text and "\n" not in text


def test_a_compiler_that_is_not_there(build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/c++ -m64")
    with pytest.raises(build.BuildError, match=r"CXX names '/no/such/c\+\+ -m64', which is not there"):
        build.find_compiler(tmp_path)


def test_an_old_compiler(build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_compiler(tmp_path / "bin", "g++", 'case "$*" in *--version*) echo "g++ 7.5.0"; exit 0;; esac; exit 1')
    monkeypatch.setenv("CXX", str(old))
    with pytest.raises(build.BuildError, match=r"\(g\+\+ 7\.5\.0\) does not compile C\+\+20: install g\+\+ 11"):
        build.find_compiler(tmp_path)


def test_the_first_compiler_that_will_do(build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    fake_compiler(folder, "c++", "exit 1")
    fake_compiler(folder, "clang++", "exit 0")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    assert build.find_compiler(tmp_path) == ["clang++"]


def test_no_mlx(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(build.BuildError, match=r"no MLX headers and libmlx.* pip install 'mlx"):
        build.find_mlx()


def test_another_mlx(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "supported_mlx", lambda: "99.1.0")
    with pytest.raises(
        build.BuildError, match=r"made for MLX 99\.1\.0, but .* is MLX \d.*: pip install 'mlx.*==99\.1\.0'"
    ):
        build.find_mlx()


def test_the_pin_is_the_release_of_the_model(build: ModuleType) -> None:
    (model,) = (ROOT / "scripts" / "api").glob("mlx_cpp-*.json")
    assert model.stem == f"mlx_cpp-{build.supported_mlx()}"


def test_a_failing_compilation_shows_the_compilers_words(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'case "$*" in *probe*) exit 0;; esac; echo "error: no such overload" >&2; exit 1'
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path / "bin", "g++", script)))
    with pytest.raises(build.BuildError, match=r"(?s)does not compile against MLX [\d.]+:\n.*error: no such overload"):
        build.build(tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.so"))


def test_commands_differ_between_systems(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    mlx = build.Mlx(Path("/m/include"), Path("/m/lib/libmlx"), "1.2.3")
    library, out = build.LIBRARIES[0], Path("/o/lib")
    monkeypatch.setattr(build, "DARWIN", False)
    linux = build.link_command(["c++"], library, [Path("a b.o")], out, mlx)
    assert "$ORIGIN/../../mlx/lib" in linux and "--version-script" in linux and "-shared" in linux and "a b.o" in linux
    monkeypatch.setattr(build, "DARWIN", True)
    mac = build.link_command(["c++"], library, [Path("a b.o")], out, mlx)
    assert "@loader_path/../../mlx/lib" in mac and "-exported_symbols_list" in mac and "@rpath/libmlxc.dylib" in mac
    assert not {"-soname", "-z", "--version-script"} & set(mac)


def small_tree(folder: Path) -> Path:
    """A copy of the build with one tiny library in place of the real ones."""
    native, sys_ = folder / "native" / "tiny", folder / "mlxc_py" / "_sys"
    native.mkdir(parents=True), sys_.mkdir(parents=True)
    (native / "tiny.c").write_text('__attribute__((visibility("default"))) int tiny(void) { return 7; }\n')
    shutil.copy(ROOT / "mlxc_py" / "_sys" / "stamp.py", sys_)
    shutil.copy(ROOT / "setup.cfg", folder)
    text = (ROOT / "native" / "build.py").read_text()
    start, end = text.index("LIBRARIES = ("), text.index("class BuildError")
    text = text[:start] + 'LIBRARIES = (Library("tiny", "tiny", "mlxc_py"),)\n\n\n' + text[end:]
    (folder / "native" / "build.py").write_text(text)
    return native / "tiny.c"


@pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")), reason="no compiler")
def test_only_what_changed_is_built_again(tmp_path: Path) -> None:
    root = tmp_path / "a, b (c) mit Ümlaut"
    source = small_tree(root)

    def run(*args: str) -> str:
        command = [sys.executable, str(root / "native" / "build.py"), *args]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "building libtiny" in run()
    assert run() == ""
    assert "building libtiny" in run("--force")
    source.write_text(source.read_text().replace("7", "8"))
    assert "building libtiny" in run()
    (library,) = (p for p in (root / "mlxc_py" / "lib").iterdir() if p.suffix != ".json")
    os.remove(library)
    assert "building libtiny" in run()


def test_a_read_only_clone_is_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    root = tmp_path / "clone"
    files = ["setup.py", "setup.cfg", "README.md", "LICENSE", "native/build.py"]
    for name in (*files, "mlxc_py/__init__.py", "mlxc_py/_version.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    before = sorted(root.rglob("*"))
    # A test may run as root, who may write anywhere: so the answer is given here.
    script = "import os, runpy; os.access = lambda *a, **k: False; runpy.run_path('setup.py')"
    done = subprocess.run(
        [sys.executable, "-B", "-c", script, "build", "--build-lib", str(tmp_path / "lib")],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "MLXC_PY_NO_NATIVE": "1", "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "lib" / "mlxc_py" / "_version.py").is_file()
    assert sorted(root.rglob("*")) == before
    assert not list(tmp_path.glob("mlxc-py-*"))
