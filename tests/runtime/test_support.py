"""Owners of wrapped memory: kept until MLX has released it, dropped once, on any thread, also after Python's end."""

from __future__ import annotations

import ctypes
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mlxc_py._sys import mlx as c
from mlxc_py._sys import support

needs_native = pytest.mark.skipif(support.library() is None, reason=f"no native library: {support.reason()}")


class Owner:
    """Something that a weak reference can watch."""


@pytest.fixture
def release() -> Iterator[Callable[[int], None]]:
    """MLX's part: runs the destructor on a payload, without the GIL."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(support.RELEASE)
    support.drain()
    before = support.held()
    yield function
    support.drain()
    assert support.held() == before


@needs_native
def test_an_owner_lives_until_its_memory_is_released_and_the_list_drained(release: Callable[[int], None]) -> None:
    owner = Owner()
    watch = weakref.ref(owner)
    payload = support.hold(owner)
    del owner
    assert support.drain() == 0
    assert watch() is not None
    release(payload)
    assert watch() is not None
    assert support.drain() == 1
    assert watch() is None
    assert support.drain() == 0


@needs_native
def test_more_releases_than_one_batch_are_all_drained(release: Callable[[int], None]) -> None:
    payloads = [support.hold(Owner()) for _ in range(1000)]
    for payload in payloads:
        release(payload)
    assert support.drain() == 1000


@needs_native
def test_a_short_drain_leaves_the_rest_in_the_list(release: Callable[[int], None]) -> None:
    drain = support.function("mlxc_support_drain", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
    held = [support.hold(Owner()) for _ in range(10)]
    for payload in held:
        release(payload)
    tokens = (ctypes.c_uint64 * 4)()
    taken: list[int] = []
    while n := drain(tokens, 4):
        taken += tokens[:n]
    assert len(set(taken)) == 10
    assert drain(tokens, 0) == 0
    for token in taken:
        del support._owners[token]


@needs_native
def test_releases_on_many_threads_drop_each_owner_once(release: Callable[[int], None]) -> None:
    owners = [Owner() for _ in range(8000)]
    watches = [weakref.ref(o) for o in owners]
    payloads = [support.hold(o) for o in owners]
    owners.clear()
    drained: list[int] = []

    def work(mine: list[int]) -> None:
        for payload in mine:
            release(payload)
            if payload % 16 == 0:
                drained.append(support.drain())

    threads = [threading.Thread(target=work, args=(payloads[i::8],)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    drained.append(support.drain())
    assert sum(drained) == 8000
    assert [w for w in watches if w() is not None] == []


@needs_native
def test_mlx_reads_wrapped_memory_and_its_release_drops_the_owner(release: Callable[[int], None]) -> None:
    owner = (ctypes.c_float * 4)(1, 2, 3, 4)
    keeper = Owner()
    keeper.memory = owner  # type: ignore[attr-defined]
    watch = weakref.ref(keeper)
    shape = (ctypes.c_int * 1)(4)
    array = c.mlx_array_new_data_managed_payload(
        ctypes.addressof(owner), shape, 1, c.MLX_FLOAT32, support.hold(keeper), support.RELEASE
    )
    del keeper
    assert c.mlx_array_eval(array) == 0
    data = ctypes.cast(c.mlx_array_data_float32(array), ctypes.POINTER(ctypes.c_float))
    assert data[:4] == [1, 2, 3, 4]
    c.mlx_array_free(array)
    support.drain()
    assert watch() is None


@needs_native
def test_a_release_after_python_has_ended_is_silent(run_python: Any) -> None:
    done = run_python(
        """
        import ctypes
        from mlxc_py._sys import support

        # C's exit handlers run after Py_Finalize; each finds the payload of an owner that Python has forgotten.
        at_exit = ctypes.CDLL(None)["__cxa_atexit"]
        at_exit.argtypes = [ctypes.c_void_p] * 3
        for _ in range(100):
            at_exit(support.RELEASE, support.hold(object()), None)
        print(support.held())
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "100\n", "")


@needs_native
def test_a_release_on_a_thread_that_outlives_python_is_silent(run_python: Any) -> None:
    done = run_python(
        """
        import ctypes
        from mlxc_py._sys import support

        libc = ctypes.CDLL(None)
        thread = ctypes.c_ulong()
        payloads = [support.hold(object()) for _ in range(50)]
        # A thread of the system's own, which Python does not know: its body is the destructor itself.
        for payload in payloads:
            body, argument = ctypes.c_void_p(support.RELEASE), ctypes.c_void_p(payload)
            assert libc.pthread_create(ctypes.byref(thread), None, body, argument) == 0
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_the_native_library_there_is_no_destructor_and_a_reason(run_python: Any) -> None:
    done = run_python(
        """
        from mlxc_py._sys import support
        print(support.RELEASE, support.library(), support.drain(), support.reason())
        """,
        MLXC_PY_NO_NATIVE="1",
    )
    assert (done.stdout, done.stderr) == ("0 None 0 MLXC_PY_NO_NATIVE is set\n", "")


def test_a_library_that_was_not_built_or_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv(support.ENVIRONMENT_SWITCH, raising=False)
    monkeypatch.setattr(support, "path", lambda: tmp_path / "libmlxc_support.so")
    assert support._load()[1] == f"{tmp_path}/libmlxc_support.so was not built: reinstall with a C compiler"
    (tmp_path / "libmlxc_support.so").write_text("no library")
    assert support._load()[1].startswith(f"{tmp_path}/libmlxc_support.so does not load: ")


@needs_native
def test_a_library_built_from_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    folder = tmp_path / "mlxc_py" / "lib"
    folder.mkdir(parents=True)
    built = folder / support.path().name
    shutil.copy(support.path(), built)
    built.with_suffix(".json").write_text('{"source_hash": "of older sources"}')
    monkeypatch.setattr(support, "path", lambda: built)
    assert support._load()[1] == ""
    (tmp_path / "native" / "support").mkdir(parents=True)
    assert support._load()[1] == f"{built} was built from other sources than native/support holds: run native/build.py"
