"""Every way a process may end while sessions, runs and threads use the plugin: no crash, no hang, nothing printed."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import ort_ep

Run = Callable[..., subprocess.CompletedProcess[str]]

SCRIPT = Path(__file__).resolve().parent / "exit_cases.py"
FORKED = "MLX can't run in such a child"

FAST = [
    "alive",
    "deleted",
    "unregistered_while_alive",
    "cycle_without_gc",
    "exception",
    "keyboard_interrupt",
    "interrupted_compute",
    "run_in_atexit",
    "run_in_late_atexit",
    "daemons",
    "daemon_in_1s_compute",
    "fork_runs_session",
    "fork_before_use",
    "fork_inside_callback",
    "multiprocessing_fork",
    "parallel_mode_daemons",
]
SLOW = [
    "registered_only",
    "unregistered",
    "cycle",
    "held_by_builtins",
    "held_by_early_module",
    "deleted_in_thread",
    "system_exit",
    "os_exit",
    "sigterm",
    "atexit_error",
    "daemon_in_8s_compute",
    "non_daemon",
    "thread_pool",
    "run_async",
    "fork_without_run",
    "multiprocessing_spawn",
    "multiprocessing_forkserver",
]
RACY = ["cycle_without_gc", "daemons", "daemon_in_1s_compute", "parallel_mode_daemons", "thread_pool", "run_async"]

EXIT_CODE = {
    "exception": 1,
    "system_exit": 3,
    "keyboard_interrupt": -signal.SIGINT,
    "interrupted_compute": -signal.SIGINT,
    "sigterm": -signal.SIGTERM,
}
STDERR = {
    "exception": r"Traceback .*RuntimeError: boom",
    "keyboard_interrupt": r"Traceback .*KeyboardInterrupt",
    "interrupted_compute": r"Traceback .*KeyboardInterrupt",
    "atexit_error": r"Exception ignored in atexit callback.*ZeroDivisionError: [a-z ]+",
}
STDOUT = {
    "run_in_atexit": r"sum 78\.0",
    "run_in_late_atexit": r".*the Python interpreter is shutting down",
    "fork_runs_session": f"child: .*{FORKED}.*'spawn' or 'forkserver'",
    "multiprocessing_fork": f"child: .*FAIL.*{FORKED}.*'spawn' or 'forkserver'",
    "fork_before_use": "child ran",
    "fork_inside_callback": "child ended",
    "multiprocessing_spawn": "child ran",
    "multiprocessing_forkserver": "child ran",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Relu(x + 1) on float32 [N, 4]."""
    graph = onnx.parser.parse_graph(
        "g (float[N, 4] x) => (float[N, 4] y) <float one = {1}> { t = Add(x, one) y = Relu(t) }"
    )
    path = tmp_path_factory.mktemp("exit") / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10), path)
    return str(path)


def check(run_python: Run, model: str, case: str) -> None:
    # CPython 3.12 and newer warn of every fork of a process with threads
    ended = run_python(
        "-W", "ignore::DeprecationWarning", str(SCRIPT), case, model, ort_ep.get_library_path(), timeout=60
    )
    told = f"{case}\nstdout:\n{ended.stdout}\nstderr:\n{ended.stderr}"
    assert ended.returncode == EXIT_CODE.get(case, 0), told
    # what ORT logs of a failing Compute is its own matter
    stderr = "\n".join(line for line in ended.stderr.splitlines() if "[E:onnxruntime:" not in line).strip()
    assert re.fullmatch(STDERR.get(case, ""), stderr, re.DOTALL), told
    assert re.fullmatch(STDOUT.get(case, ""), ended.stdout.strip(), re.DOTALL), told


@pytest.mark.parametrize("case", FAST)
def test_exit(run_python: Run, model: str, case: str) -> None:
    check(run_python, model, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW)
def test_exit_slow(run_python: Run, model: str, case: str) -> None:
    check(run_python, model, case)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(5))
@pytest.mark.parametrize("case", RACY)
def test_exit_again(run_python: Run, model: str, case: str, attempt: int) -> None:
    check(run_python, model, case)
