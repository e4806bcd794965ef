"""What one operation costs, mlxc_py against mlx.core: building it and releasing its result, nothing evaluated.

Both sides run the same text on equal arrays, in turns, in one process. The ratio's goal for `a + b` is 2.5 on Python
3.11 and 3 on 3.13. The second pair of columns is a process with MLXC_PY_NO_NATIVE=1, where every call is ctypes'.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import timeit
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SWITCH = "MLXC_PY_NO_NATIVE"
# Run with mx the package, a, b scalars, m of shape (2, 3, 4), p, q matrices, all evaluated; host a numpy array.
OPERATIONS = {
    "a + b": "a + b",
    "a + 2.0": "a + 2.0",
    "mx.add": "mx.add(a, b)",
    "reshape": "mx.reshape(m, (6, 4))",
    "transpose": "mx.transpose(m, (2, 0, 1))",
    "softmax": "mx.softmax(m, -1)",
    "sum": "mx.sum(m, 1)",
    "slice": "m[0:1, 0:2, 0:3]",
    "concatenate": "mx.concatenate([m, m], 1)",
    "matmul": "p @ q",
    "shape": "m.shape",
    "eval of a + b": "mx.eval(a + b)",
    "array from numpy": "mx.array(host)",
}
FLOORS = {
    "empty ctypes call, 4 arguments": "empty(0, 0, 0, 0)",
    "ctypes mlx_add and mlx_array_free": "add(out, x, y, s); free(slot[0]); slot[0] = 0",
    "fast call of mlx_add, result released": "call.mlx_add(a, b)",
}


def arrays(mx: Any) -> dict[str, Any]:
    """The names that the operations use, for one package."""
    import numpy as np

    host = np.arange(16, dtype=np.float32).reshape(4, 4)
    names = {
        "a": mx.array(1.0),
        "b": mx.array(2.0),
        "m": mx.array(np.arange(24, dtype=np.float32).reshape(2, 3, 4)),
        "p": mx.array(host),
        "q": mx.array(host),
    }
    mx.eval(*names.values())
    return {**names, "mx": mx, "host": host}


def floors(ours: dict[str, Any]) -> dict[str, Any]:
    """The names that the floor statements use."""
    c = importlib.import_module("mlxc_py._sys.mlx")
    fastcall = importlib.import_module("mlxc_py._sys.fastcall")
    empty = ctypes.CDLL(None)["memccpy"]
    empty.argtypes = [ctypes.c_void_p] * 4
    slot = (ctypes.c_size_t * 1)()
    c.mlx_add(ctypes.addressof(slot), ours["a"].handle, ours["b"].handle, stream := c.mlx_default_cpu_stream_new())
    c.mlx_array_free(slot[0])
    slot[0] = 0
    return {
        **ours,
        "empty": empty,
        "add": c.mlx_add,
        "free": c.mlx_array_free,
        "call": fastcall.Caller(type(ours["a"]), print),
        "slot": slot,
        "out": ctypes.addressof(slot),
        "x": ours["a"].handle,
        "y": ours["b"].handle,
        "s": stream,
    }


def measure(rounds: int) -> dict[str, list[float]]:
    """Median nanoseconds: [mlx.core, mlxc_py, their ratio] for each operation, [mlxc_py] for each floor.

    The ratio is the median of the rounds' own ratios: a round's two sides follow each other within milliseconds.
    """
    core = arrays(importlib.import_module("mlx.core"))
    ours = arrays(importlib.import_module("mlxc_py"))
    timers = {
        **{
            (name, i): timeit.Timer(text, globals=names)
            for name, text in OPERATIONS.items()
            for i, names in enumerate((core, ours))
        },
        **{(name, 0): timeit.Timer(text, globals=floors(ours)) for name, text in FLOORS.items()},
    }
    loops = {key: max(20, int(0.002 / (timer.timeit(50) / 50))) for key, timer in timers.items()}
    samples: dict[tuple[str, int], list[float]] = {key: [] for key in timers}
    for _ in range(rounds):
        for key, timer in timers.items():
            samples[key].append(timer.timeit(loops[key]) / loops[key] * 1e9)
    result = {name: [statistics.median(samples[name, 0])] for name in FLOORS}
    for name in OPERATIONS:
        core_ns, our_ns = samples[name, 0], samples[name, 1]
        ratios = [mine / theirs for theirs, mine in zip(core_ns, our_ns, strict=True)]
        result[name] = [statistics.median(values) for values in (core_ns, our_ns, ratios)]
    return result


def in_a_process(rounds: int, native: bool) -> dict[str, list[float]]:
    """`measure` in an interpreter of its own."""
    environ = {**os.environ, SWITCH: "0" if native else "1"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, __file__, "--one", "--rounds", str(rounds)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the measuring process failed:\n{done.stderr}")
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def table(native: dict[str, list[float]], plain: dict[str, list[float]]) -> str:
    """The results as text."""
    lines = [f"{'operation, ns':24}{'mlx.core':>10}{'mlxc_py':>10}{'ratio':>8}{'ctypes only':>14}{'ratio':>8}"]
    for name in OPERATIONS:
        (core, ours, ratio), (_, slow, slow_ratio) = native[name], plain[name]
        lines.append(f"{name:24}{core:10.0f}{ours:10.0f}{ratio:8.2f}{slow:14.0f}{slow_ratio:8.2f}")
    lines += ["", "What an operation is made of, ns:"]
    lines += [f"  {name:40}{native[name][0]:8.0f}" for name in FLOORS]
    bare, fast = native["ctypes mlx_add and mlx_array_free"][0], native["fast call of mlx_add, result released"][0]
    core = native["a + b"][0]
    lines.append(
        f"""
The floor of ctypes is its two calls: {bare / core:.2f}x of mlx.core's whole `a + b`, before any Python of ours.
The native entry points (mlxc_py/_sys/fastcall.py) need {fast / core:.2f}x; the operator's Python function comes on top.
Below that are MLX's own work and one allocation for the C handle, which mlx.core keeps inside its Python object."""
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=25, help="interleaved rounds of about 2 ms per operation and side"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--one", action="store_true", help="measure this process only and print JSON")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.rounds)))
        return
    native, plain = in_a_process(args.rounds, native=True), in_a_process(args.rounds, native=False)
    if args.json:
        print(json.dumps({"python": platform.python_version(), "native": native, "ctypes_only": plain}))
    else:
        print(f"Python {platform.python_version()}, {platform.machine()}, medians of {args.rounds} rounds\n")
        print(table(native, plain))


if __name__ == "__main__":
    main()
