"""What one operation costs, mlxc_py against mlx.core: building it and releasing its result, nothing evaluated.

Both sides run the same text on equal arrays, in turns, in one process. The ratio's goal for `a + b` is 2.5 on Python
3.11 and 3 on 3.13. The second pair of columns is a process with MLXC_PY_NO_NATIVE=1, where every call is ctypes'.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import statistics
import timeit
from collections.abc import Iterator
from typing import Any

import output

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


Timings = dict[str, list[float]]


def rows_of(native: Timings, plain: Timings) -> Iterator[dict[str, Any]]:
    for name in OPERATIONS:
        (core, ours, ratio), (_, slow, slow_ratio) = native[name], plain[name]
        yield {
            "operation, ns": name,
            "mlx.core": core,
            "mlxc_py": ours,
            "ratio": ratio,
            "ctypes only": slow,
            "its ratio": slow_ratio,
        }


def made_of(native: Timings) -> Iterator[str]:
    """What an operation is made of, as text."""
    yield "What an operation is made of, ns:"
    for name in FLOORS:
        yield f"  {name:40}{native[name][0]:8.0f}"
    core = native["a + b"][0]
    bare, fast = (native[name][0] / core for name in list(FLOORS)[1:])
    yield f"The floor of ctypes is its two calls: {bare:.2f}x of mlx.core's whole `a + b`, before any Python of ours."
    yield f"The native entry points (mlxc_py/_sys/fastcall.py) need {fast:.2f}x; the operator's function comes on top."
    yield "Below that are MLX's work and one allocation for the C handle, which mlx.core keeps in its Python object."


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument(
        "--rounds", type=int, default=25, help="interleaved rounds of about 2 ms per operation and side"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.rounds)))
        return
    native, plain = (
        output.in_a_process(["--one", "--rounds", str(args.rounds)], {SWITCH: switch}) for switch in ("0", "1")
    )
    bars = ("mlx.core", "mlxc_py", "ctypes only")
    output.show(args, list(rows_of(native, plain)), notes=list(made_of(native)), bars=bars, unit="ns")


if __name__ == "__main__":
    main()
