"""How fast MLX multiplies matrices on CPU, against numpy: with BLAS routing and without.

Every row is a process with OPENBLAS_NUM_THREADS=1, so both sides have one thread, but for the last, where numpy takes
its default number. The goal is 1.5x of numpy with routing on, from 29x without. Where the machine sets
OPENBLAS_CORETYPE it binds both sides; `env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE` shows them without it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import output

DTYPES = ("float32", "float64", "complex64")
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "MLXC_PY_BLAS_THREADS": "1"}
ROWS: dict[str, dict[str, str | None]] = {
    "routed to OpenBLAS": {**ONE_THREAD, "MLXC_PY_BLAS": None},
    "not routed": {**ONE_THREAD, "MLXC_PY_BLAS": "0"},
    "routed, numpy with its own threads": {**ONE_THREAD, "OPENBLAS_NUM_THREADS": None, "MLXC_PY_BLAS": None},
}


def measure(size: int, dtype: str, rounds: int) -> dict[str, Any]:
    """Median milliseconds of both sides in this process, in turns, and which BLAS each has."""
    np = importlib.import_module("numpy")
    mx = importlib.import_module("mlxc_py")
    rng = np.random.default_rng(0)
    host = [rng.standard_normal((size, size)).astype(dtype) for _ in range(2)]
    with mx.stream(mx.cpu):
        mine = [mx.array(h, dtype=getattr(mx, dtype)) for h in host]
        mx.eval(*mine)
        sides: dict[str, Callable[[], Any]] = {
            "numpy": lambda: host[0] @ host[1],
            "mlx": lambda: mx.eval(mx.matmul(mine[0], mine[1])),
        }
        samples: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(rounds + 1):
            for name, multiply in sides.items():
                start = time.perf_counter()
                multiply()
                if turn:
                    samples[name].append((time.perf_counter() - start) * 1e3)
        difference = float(np.abs(np.array(mx.matmul(mine[0], mine[1])) - host[0] @ host[1]).max())
    blas = str(importlib.import_module("mlxc_py._sys.blas").status())
    return {
        **{name: statistics.median(values) for name, values in samples.items()},
        "difference": difference,
        "blas": blas,
    }


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument("--size", type=int, default=1024, help="rows and columns of both matrices")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--rounds", type=int, default=15, help="products per side, in turns, after one untimed")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.size, args.dtype, args.rounds)))
        return
    arguments = ["--one", "--size", str(args.size), "--dtype", args.dtype, "--rounds", str(args.rounds)]
    results = {row: output.in_a_process(arguments, environ) for row, environ in ROWS.items()}
    rows = [{"MLX, ms": row, **found, "ratio": found["mlx"] / found["numpy"]} for row, found in results.items()]
    core = os.environ.get("OPENBLAS_CORETYPE", "as detected")
    notes = [
        f"{args.size}x{args.size} {args.dtype}, OpenBLAS kernels: {core}",
        f"MLX's BLAS when routed: {rows[0]['blas']}",
        f"largest difference from numpy: {max(row['difference'] for row in rows):.2g}",
    ]
    output.show(args, rows, ("MLX, ms", "numpy", "mlx", "ratio"), notes=notes, bars=("numpy", "mlx"))


if __name__ == "__main__":
    main()
