"""Garbage collection around what makes sessions."""

from __future__ import annotations

import gc
import threading

import pytest

from ort_ep import memory


def test_collections_are_paused_until_the_last_thread_is_done() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with memory.collections_paused():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    assert gc.isenabled()
    with pytest.raises(KeyError), memory.collections_paused(), memory.collections_paused():
        assert not gc.isenabled()
        thread.start()
        inside.wait(10)
        raise KeyError
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_a_program_without_collections_stays_so() -> None:
    gc.disable()
    try:
        with memory.collections_paused(), memory.collections_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_giving_memory_back_leaves_methods_found() -> None:
    class Counter:
        def count(self) -> int:
            return 1

    memory.give_back()
    assert Counter().count() == 1
