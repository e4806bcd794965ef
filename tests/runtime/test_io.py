"""Files: npy, npz, safetensors, gguf, exported functions, graphs as text."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import mlx.core as reference
import numpy as np
import pytest

import mlxc_py as mx

A = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_npy(tmp_path: Path) -> None:
    mx.save(tmp_path / "a", mx.array(A))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), A)
    np.testing.assert_array_equal(np.array(mx.load(str(tmp_path / "a.npy"))), A)
    with open(tmp_path / "b.npy", "wb") as file:
        mx.save(file, mx.transpose(mx.array(A)))
    with open(tmp_path / "b.npy", "rb") as file:
        np.testing.assert_array_equal(np.array(mx.load(file)), A.T)
    memory = io.BytesIO()
    mx.save(memory, mx.array(A))
    memory.seek(0)
    np.testing.assert_array_equal(np.array(mx.load(memory, format="npy")), A)


def test_npz(tmp_path: Path) -> None:
    mx.savez(tmp_path / "a.npz", mx.array(A), named=mx.array([1, 2]))
    mx.savez_compressed(tmp_path / "b.npz", named=mx.array([1, 2]))
    loaded = mx.load(tmp_path / "a.npz")
    assert sorted(loaded) == ["arr_0", "named"]
    assert loaded["named"].dtype is mx.int32
    assert mx.load(tmp_path / "b.npz")["named"].tolist() == [1, 2]
    with pytest.raises(ValueError, match="bfloat16"):
        mx.savez(tmp_path / "c.npz", mx.array([1], mx.bfloat16))


def test_safetensors(tmp_path: Path) -> None:
    arrays = {"a": mx.array(A), "b": mx.array([1, 2], mx.bfloat16), "empty": mx.zeros((0, 2))}
    mx.save_safetensors(tmp_path / "m", arrays, {"format": "mlx", "who": "me"})
    loaded, metadata = mx.load(tmp_path / "m.safetensors", return_metadata=True)
    assert metadata == {"format": "mlx", "who": "me"}
    assert {k: (v.shape, v.dtype) for k, v in loaded.items()} == {k: (v.shape, v.dtype) for k, v in arrays.items()}
    np.testing.assert_array_equal(np.array(loaded["a"]), A)
    assert reference.load(str(tmp_path / "m.safetensors"))["a"].tolist() == A.tolist()
    memory = io.BytesIO()
    mx.save_safetensors(memory, arrays)
    memory.seek(0)
    again = mx.load(memory, format="safetensors")
    np.testing.assert_array_equal(np.array(again["a"]), A)


def test_gguf(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {"text": "hello", "list": ["a", "b"], "numbers": mx.array([1.0, 2.0])}
    mx.save_gguf(tmp_path / "m", {"weights": mx.array(A)}, metadata)
    arrays, loaded = mx.load(tmp_path / "m.gguf", return_metadata=True)
    np.testing.assert_array_equal(np.array(arrays["weights"]), A)
    assert loaded["text"] == "hello"
    assert loaded["list"] == ["a", "b"]
    assert loaded["numbers"].tolist() == [1.0, 2.0]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file"):
        mx.load(tmp_path / "missing.npy")
    with pytest.raises(ValueError, match="format"):
        mx.load(tmp_path / "a.txt")
    mx.save(tmp_path / "a", mx.array(A))
    with pytest.raises(ValueError, match="no metadata"):
        mx.load(tmp_path / "a.npy", return_metadata=True)
    with pytest.raises(mx.MLXError):
        mx.save(tmp_path / "no" / "folder", mx.array(A))
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    with pytest.raises(mx.MLXError, match="load"):
        mx.load(tmp_path / "bad.safetensors")


@pytest.mark.parametrize("file", [None, 3, object()])
def test_what_is_no_file_is_refused(file: Any) -> None:
    for attempt in (
        lambda: mx.save(file, mx.array(1)),
        lambda: mx.save_safetensors(file, {"a": mx.array(1)}),
        lambda: mx.load(file, "npy"),
    ):
        with pytest.raises(TypeError, match=f"a path or an open binary file, not {type(file).__name__}"):
            attempt()


def test_problems_of_python_files_arrive_as_they_were(tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError("disk full")

        def read(self, n: int | None = -1) -> bytes:
            raise OSError("unreadable")

    with pytest.raises(OSError, match="disk full"):
        mx.save(Broken(), mx.array(A))
    with pytest.raises(OSError, match="unreadable"):
        mx.load(Broken(b"\x93NUMPY"), format="npy")
    memory = io.BytesIO()
    mx.save(memory, mx.array(np.ones(100, np.float32)))
    with pytest.raises((EOFError, mx.MLXError)):
        mx.load(io.BytesIO(memory.getvalue()[:-8]), format="npy")


def test_percent_signs_in_names(tmp_path: Path) -> None:
    path = tmp_path / "100%s%n.npy"
    try:
        mx.save(path, mx.array(A))
    except ValueError as refused:  # an official libmlxc would crash on it
        assert "%" in str(refused)
    else:
        np.testing.assert_array_equal(np.array(mx.load(path)), A)
    with pytest.raises(ValueError, match="null character"):
        mx.save("a\0b", mx.array(A))


def test_exported_functions(tmp_path: Path) -> None:
    path = tmp_path / "f.mlxfn"
    mx.export_function(path, lambda x, y: (mx.sin(x) + y, y), mx.array(A), mx.array(A))
    f = mx.import_function(path)
    out, second = f(mx.array(A), mx.array(A + 1))
    np.testing.assert_allclose(np.array(out), np.sin(A) + A + 1, rtol=1e-6)
    np.testing.assert_array_equal(np.array(second), A + 1)
    with pytest.raises(mx.MLXError):
        f(mx.array([1]))
    named = tmp_path / "g.mlxfn"
    mx.export_function(named, lambda x, scale: x * scale, mx.array(A), scale=mx.array(2.0))
    assert mx.import_function(named)(mx.array(A), scale=mx.array(3.0))[0].tolist() == (A * 3).tolist()
    many = tmp_path / "h.mlxfn"
    with mx.exporter(many, lambda x: x + 1) as export:
        export(mx.zeros((2,)))
        export(mx.zeros((3,)))
    assert [mx.import_function(many)(mx.zeros((n,)))[0].shape for n in (2, 3)] == [(2,), (3,)]
    with pytest.raises(ZeroDivisionError):
        mx.export_function(path, lambda x: 1 / 0, mx.array(A))
    with pytest.raises(FileNotFoundError):
        mx.import_function(tmp_path / "missing")
    with pytest.raises(mx.UnsupportedError):
        mx.export_function(path, lambda x: x, mx.array(A), metadata="text")


def test_graphs_as_text(tmp_path: Path) -> None:
    x = mx.array(A)
    y = mx.exp(x) + x
    mx.export_to_dot(tmp_path / "g.dot", y, x=x)
    text = (tmp_path / "g.dot").read_text()
    assert text.startswith("digraph")
    assert "Exp" in text
    written = io.StringIO()
    mx.print_graph(written, y)
    assert "Add" in written.getvalue()


def test_files_are_closed(tmp_path: Path) -> None:
    mx.save(tmp_path / "a", mx.array(A))
    mx.save_safetensors(tmp_path / "b", {"a": mx.array(A)})
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    mx.eval(mx.load(tmp_path / "a.npy"), mx.load(tmp_path / "b.safetensors"))
    before = len(os.listdir(folder))
    for _ in range(10):
        mx.eval(mx.load(tmp_path / "a.npy"), mx.load(tmp_path / "b.safetensors"))
    assert len(os.listdir(folder)) <= before + 1
