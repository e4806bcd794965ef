"""Devices, streams, and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest

import mlxc_py as mx
from mlxc_py import state
from mlxc_py._sys import fastcall, load


def in_thread(action: Callable[[], Any]) -> Any:
    """The result of an action on another thread, or its exception."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(action())
        except BaseException as problem:
            outcome.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert outcome, "the thread hangs"
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def test_devices() -> None:
    assert mx.default_device() in (mx.Device(mx.cpu), mx.Device(mx.gpu))
    assert repr(mx.Device(mx.cpu)) == "Device(cpu, 0)"
    assert mx.is_available(mx.cpu)
    assert mx.device_count(mx.cpu) == 1
    info = mx.device_info(mx.cpu)
    assert info
    assert all(isinstance(v, str | int) for v in info.values())
    with pytest.raises(TypeError, match="Device"):
        mx.default_stream("cpu")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="stream must be"):
        mx.add(1, 2, stream=3)  # type: ignore[arg-type]


needs_07 = pytest.mark.skipif(load.library().generation.startswith("0.6"), reason="mlx-c 0.6 has no such streams")


@needs_07
def test_every_kind_of_stream_argument() -> None:
    streams: list[Any] = [
        None,
        mx.cpu,
        mx.Device(mx.cpu),
        mx.default_stream(mx.cpu),
        mx.new_stream(mx.cpu),
        mx.new_thread_local_stream(mx.cpu),
        mx.new_thread_unsafe_stream(mx.cpu),
    ]
    for stream in streams:
        assert mx.add(mx.array([1]), 2, stream=stream).tolist() == [3]
        assert mx.split(mx.array([1, 2]), 2, stream=stream)[1].tolist() == [2]
        mx.synchronize(stream)


def test_with_stream_nests_and_restores() -> None:
    first, second = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)
    outside = mx.current_stream()
    with mx.stream(first) as entered:
        assert entered == first == mx.current_stream()
        with mx.stream(second):
            assert mx.current_stream() == second
            assert (mx.array([1]) + 1).tolist() == [2]
        assert mx.current_stream() == first
        assert in_thread(mx.current_stream) not in (first, second)
        with pytest.raises(ZeroDivisionError), mx.stream(second):
            raise ZeroDivisionError
        assert mx.current_stream() == first
    assert mx.current_stream() == outside


@pytest.mark.usefixtures("on_cpu")
def test_setting_the_default() -> None:
    before = mx.default_stream(mx.cpu)
    mine = mx.new_stream(mx.cpu)
    mx.set_default_stream(mine)
    try:
        assert mx.default_stream(mx.cpu) == mine == mx.current_stream()
        assert in_thread(lambda: mx.default_stream(mx.cpu)) != mine
    finally:
        mx.set_default_stream(before)
    device = mx.default_device()
    mx.set_default_device(mx.cpu)
    assert mx.default_device() == mx.Device(mx.cpu)
    assert in_thread(lambda: (mx.array([1]) + 1).tolist()) == [2]
    mx.set_default_device(device)


def test_arrays_cross_threads_when_evaluated() -> None:
    a = mx.array([1.0, 2.0]) * 3
    mx.eval(a)
    assert in_thread(lambda: (a + 1).tolist()) == [4.0, 7.0]


def test_a_lazy_array_of_another_thread_is_an_error_in_words() -> None:
    lazy = mx.array([1.0]) + 1
    with pytest.raises(mx.MLXStreamError, match="There is no Stream"):
        in_thread(lazy.tolist)
    assert lazy.tolist() == [2.0]


@needs_07
def test_a_thread_unsafe_stream_serves_any_thread() -> None:
    shared = mx.new_thread_unsafe_stream(mx.cpu)
    with mx.stream(shared):
        lazy = mx.exp(mx.array([0.0])) + 1
    assert in_thread(lazy.tolist) == [2.0]


def test_threads_compute_at_once() -> None:
    expected = np.arange(500, dtype=np.float32) ** 2 + 1
    wrong: list[Any] = []

    def work() -> None:
        a = mx.arange(500, dtype=mx.float32)
        wrong.extend(1 for _ in range(30) if not np.array_equal(np.array(a * a + 1), expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_errors_stay_on_their_thread() -> None:
    texts: dict[int, set[str]] = {}

    def work(n: int) -> None:
        texts[n] = set()
        for _ in range(50):
            try:
                mx.reshape(mx.zeros((n,)), (n + 1,))
            except mx.MLXError as problem:
                texts[n].add(str(problem))

    threads = [threading.Thread(target=work, args=(n,)) for n in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(len(t) == 1 and f"size {n} into shape ({n + 1})" in next(iter(t)) for n, t in texts.items())


def test_threads_that_only_build_leave_no_threads() -> None:
    count = psutil.Process().num_threads()
    for _ in range(10):
        in_thread(lambda: mx.array([1]) + 1)
    assert psutil.Process().num_threads() <= count + 1


def test_the_state_of_a_thread_takes_the_stream_of_its_calls_along() -> None:
    """On threads that Python did not start each callback has a new state, and the native part sees one thread."""

    def two_callbacks() -> tuple[int, int, float]:
        mx.ones((2,))
        state.local.here = state.Here()
        others = [mx.new_stream(mx.cpu) for _ in range(8)]  # where the first state's handle was
        used = fastcall.current_stream()
        return used, mx.current_stream().handle, float(mx.sum(mx.ones((2,)))) + len(others)

    used, current, total = in_thread(two_callbacks)
    assert (used, total) == (current, 10)
