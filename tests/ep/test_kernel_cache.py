"""Where kernels for an NVIDIA GPU are kept, what is thrown away, and what a long first run says. No GPU is needed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import mlxc_py as mx
from ort_ep import kernel_cache

H200: dict[str, str | int] = {"compute_capability_major": 9, "compute_capability_minor": 0}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As on a machine with a GPU, before MLX's first kernel; the folder for caches."""
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda device: H200)
    monkeypatch.setattr(kernel_cache, "_kept", False)
    monkeypatch.setattr(os, "environ", {"XDG_CACHE_HOME": str(tmp_path / "späce here")})
    return tmp_path / "späce here"


def test_a_folder_for_each_mlx_and_each_kind_of_gpu() -> None:
    chosen = kernel_cache.folder({"HOME": "/home/ü"}, "0.32.4", H200)
    assert chosen == Path("/home/ü/.cache/mlxc-py/kernels/mlx-0.32.4-sm_90")
    assert kernel_cache.folder({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "1.0", H200).is_relative_to("/c/mlxc-py")
    older = {"compute_capability_major": 8, "compute_capability_minor": 0}
    assert len({kernel_cache.folder({"HOME": "/h"}, v, d) for v in ("1.0", "1.1") for d in (H200, older)}) == 4


def test_mlx_is_told_of_a_folder_that_only_the_user_reads(cuda: Path) -> None:
    kernel_cache.keep()
    kept = Path(os.environ[kernel_cache.VARIABLE])
    assert kept.is_relative_to(cuda)
    assert kept.stat().st_mode & 0o777 == 0o700


def test_the_users_own_choice_stays(cuda: Path) -> None:
    os.environ[kernel_cache.VARIABLE] = "/somewhere"
    kernel_cache.keep()
    assert os.environ[kernel_cache.VARIABLE] == "/somewhere"
    assert not cuda.exists()


def test_without_cuda_nothing_happens(cuda: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.cuda, "is_available", lambda: False)
    kernel_cache.keep()
    assert kernel_cache.VARIABLE not in os.environ
    assert not cuda.exists()


def test_where_nothing_can_be_written_mlx_keeps_its_own_place(cuda: Path) -> None:
    cuda.touch()
    kernel_cache.keep()
    assert kernel_cache.VARIABLE not in os.environ


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    def kernel(name: str, source: str | None, age: float) -> Path:
        binary = tmp_path / f"{name}.ptx"
        binary.parent.mkdir(exist_ok=True)
        binary.write_bytes(b"cubin")
        if source is not None:
            binary.with_suffix(".cu").write_text(source)
        os.utime(binary, (time.time() - age,) * 2)
        return binary

    complete = kernel("whole", "void f()", 1000)
    being_written = kernel("young", None, 0)
    broken = [kernel("torn", None, 1000), kernel("empty", "", 1000), kernel("long/name", None, 1000)]
    kernel_cache.remove_incomplete(tmp_path)
    assert complete.exists()
    assert being_written.exists()
    assert not any(binary.exists() for binary in broken)


def test_only_a_long_run_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with kernel_cache.announced(said.append):
        pass
    assert not said
    monkeypatch.setattr(kernel_cache, "PATIENCE_SECONDS", 0.0)
    with kernel_cache.announced(said.append):
        while not said:
            time.sleep(0.001)
    assert "compiles kernels" in said[0]
    assert "fuse=off" in said[0]


def test_a_failing_run_is_still_the_runs_error() -> None:
    with pytest.raises(ZeroDivisionError), kernel_cache.announced(print):
        raise ZeroDivisionError
