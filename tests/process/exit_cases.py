"""Run by test_exit.py: one way for a process to end with the plugin in use. exit_cases.py CASE MODEL LIBRARY"""

from __future__ import annotations

import atexit
import builtins
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import onnxruntime

NAME = "MLXExecutionProvider"
X = np.arange(12, dtype=np.float32).reshape(3, 4)
EXPECTED = np.maximum(X + 1, 0)
CASES: dict[str, Callable[[str], None]] = {}
held: list[Any] = []  # the only reference to the session, cleared with this module while the interpreter ends


def case(function: Callable[[str], None]) -> Callable[[str], None]:
    CASES[function.__name__] = function
    return function


def open_session(model: str, settings: Any = None) -> Any:
    settings = settings or onnxruntime.SessionOptions()
    settings.add_provider_for_devices([d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME][:1], {})
    return onnxruntime.InferenceSession(model, settings)


def run(session: Any) -> None:
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], EXPECTED)


def run_forever(session: Any) -> None:
    while True:
        run(session)


def run_often(session: Any) -> None:
    for _ in range(200):
        run(session)


def start_daemons(session: Any, count: int = 3) -> None:
    for _ in range(count):
        threading.Thread(target=run_forever, args=(session,), daemon=True).start()
    time.sleep(0.3)


def slow_compute(model: str, seconds: float) -> Any:
    """A session whose Compute sleeps, with the GIL released."""
    from ort_ep.provider import Provider

    compile_fast = Provider.compile

    def compile_slow(self: Any, graphs: list[bytes], names: list[str]) -> list[Any]:
        def slowed(compute: Any) -> Any:
            def slow(inputs: Any) -> Any:
                time.sleep(seconds)
                return compute(inputs)

            return slow

        return [slowed(compute) for compute in compile_fast(self, graphs, names)]

    Provider.compile = compile_slow  # type: ignore[method-assign, assignment]
    return open_session(model)


def failing(action: Callable[[], None]) -> str:
    try:
        action()
    except Exception as error:
        return str(error)
    return "no error"


# ---------------------------------------------------------------- sessions and the interpreter's end
@case
def registered_only(model: str) -> None:
    pass


@case
def alive(model: str) -> None:
    pass


@case
def deleted(model: str) -> None:
    held.clear()


@case
def unregistered(model: str) -> None:
    held.clear()
    onnxruntime.unregister_execution_provider_library(NAME)


@case
def unregistered_while_alive(model: str) -> None:
    onnxruntime.unregister_execution_provider_library(NAME)
    run(held[0])


@case
def cycle(model: str) -> None:
    class Holder:
        pass

    holder: Any = Holder()
    holder.session, holder.itself = held.pop(), holder


@case
def cycle_without_gc(model: str) -> None:
    gc.disable()
    holder = [held.pop()]
    holder.append(holder)


@case
def held_by_builtins(model: str) -> None:
    builtins.mlx_session = held.pop()  # type: ignore[attr-defined]
    sys.modules["mlx_session"] = builtins.mlx_session  # type: ignore[attr-defined]


@case
def held_by_early_module(model: str) -> None:
    np.mlx_session = held.pop()  # type: ignore[attr-defined]


@case
def deleted_in_thread(model: str) -> None:
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()


# ---------------------------------------------------------------- ways to end
@case
def exception(model: str) -> None:
    raise RuntimeError("boom")


@case
def system_exit(model: str) -> None:
    sys.exit(3)


@case
def os_exit(model: str) -> None:
    os._exit(0)


@case
def keyboard_interrupt(model: str) -> None:
    raise KeyboardInterrupt


@case
def interrupted_compute(model: str) -> None:
    session = slow_compute(model, 3.0)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:  # a program that survives failing runs still ends at Ctrl-C
        with suppress(Exception):
            run(session)


@case
def sigterm(model: str) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)


@case
def atexit_error(model: str) -> None:
    atexit.register(lambda: 1 / 0)


@case
def run_in_atexit(model: str) -> None:
    atexit.register(lambda: print("sum", held[0].run(None, {"x": X})[0].sum()))


@case
def run_in_late_atexit(model: str) -> None:
    pass  # main() registers it before the plugin, so it runs after the plugin's own


# ---------------------------------------------------------------- threads
@case
def daemons(model: str) -> None:
    start_daemons(held[0])


@case
def daemon_in_1s_compute(model: str) -> None:
    threading.Thread(target=run, args=(slow_compute(model, 1.0),), daemon=True).start()
    time.sleep(0.3)


@case
def daemon_in_8s_compute(model: str) -> None:
    threading.Thread(target=run, args=(slow_compute(model, 8.0),), daemon=True).start()
    time.sleep(0.3)


@case
def non_daemon(model: str) -> None:
    threading.Thread(target=run_often, args=(held[0],)).start()


@case
def parallel_mode_daemons(model: str) -> None:
    settings = onnxruntime.SessionOptions()
    settings.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    settings.inter_op_num_threads = 3
    start_daemons(open_session(model, settings))


@case
def thread_pool(model: str) -> None:
    pool = ThreadPoolExecutor(4)
    for _ in range(100):
        pool.submit(run, held[0])


@case
def run_async(model: str) -> None:
    held[0].run_async(None, {"x": X}, lambda *_: None, None)


# ---------------------------------------------------------------- processes
@case
def fork_runs_session(model: str) -> None:
    child = os.fork()
    if not child:
        print("child:", failing(lambda: run(held[0])), flush=True)
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@case
def fork_before_use(model: str) -> None:
    child = os.fork()
    if not child:
        run(open_session(model))
        print("child ran", flush=True)
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@case
def fork_without_run(model: str) -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    run(held[0])
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@case
def fork_inside_callback(model: str) -> None:
    """The child leaves the callback it was born in; at its end it must not wait, 5 s, for any to be left."""
    from ort_ep.provider import Provider

    children = []

    def fork(self: Any, document: bytes) -> list[list[int]]:
        children.append(os.fork())
        return []

    Provider.get_capability = fork  # type: ignore[method-assign]
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1  # a child has none of its parent's threads
    session = open_session(model, settings)
    if 0 in children:
        began = time.monotonic()
        atexit._run_exitfuncs()
        print("child waited" if time.monotonic() - began > 4 else "child ended", flush=True)
        os._exit(0)
    run(session)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


def work(model: str, library: str) -> None:
    """The target of the multiprocessing cases."""
    if not any(d.ep_name == NAME for d in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library(NAME, library)
    run(open_session(model))
    print("child ran", flush=True)


def multiprocess(method: str, model: str) -> None:
    process = multiprocessing.get_context(method).Process(target=report_work, args=(model, sys.argv[3]))  # type: ignore[attr-defined]
    process.start()
    process.join(120)
    sys.exit(process.exitcode if process.exitcode is not None else 99)


def report_work(model: str, library: str) -> None:
    text = failing(lambda: work(model, library))
    if text != "no error":
        print("child:", text, flush=True)


@case
def multiprocessing_fork(model: str) -> None:
    multiprocess("fork", model)


@case
def multiprocessing_spawn(model: str) -> None:
    multiprocess("spawn", model)


@case
def multiprocessing_forkserver(model: str) -> None:
    multiprocess("forkserver", model)


def main() -> None:
    name, model, library = sys.argv[1:]
    if name == "run_in_late_atexit":
        atexit.register(lambda: print(failing(lambda: run(held[0]))))
    onnxruntime.register_execution_provider_library(NAME, library)
    if name not in ("registered_only", "fork_before_use"):
        held.append(open_session(model))
        run(held[0])
    CASES[name](model)


if __name__ == "__main__":
    main()
