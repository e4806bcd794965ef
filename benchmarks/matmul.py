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
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
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


def in_a_process(row: str, size: int, dtype: str, rounds: int) -> dict[str, Any]:
    """`measure` in an interpreter of its own, with the row's environment."""
    environ: dict[str, str | None] = {**os.environ, **ROWS[row]}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, __file__, "--one", "--size", str(size), "--dtype", dtype, "--rounds", str(rounds)]
    kept = {name: value for name, value in environ.items() if value is not None}
    done = subprocess.run(command, env=kept, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the measuring process failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="rows and columns of both matrices")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--rounds", type=int, default=15, help="products per side, in turns, after one untimed")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--one", action="store_true", help="measure this process only and print JSON")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.size, args.dtype, args.rounds)))
        return
    results = {row: in_a_process(row, args.size, args.dtype, args.rounds) for row in ROWS}
    if args.json:
        print(json.dumps({"size": args.size, "dtype": args.dtype, "rows": results}))
        return
    core = os.environ.get("OPENBLAS_CORETYPE", "as detected")
    print(f"{args.size}x{args.size} {args.dtype}, {os.cpu_count()} cores, OpenBLAS kernels: {core}\n")
    print(f"{'MLX, ms':36}{'numpy':>9}{'MLX':>9}{'ratio':>8}")
    for row, found in results.items():
        print(f"{row:36}{found['numpy']:9.2f}{found['mlx']:9.2f}{found['mlx'] / found['numpy']:8.2f}")
    print("\nMLX's BLAS when routed: " + results["routed to OpenBLAS"]["blas"])
    print(f"largest difference from numpy: {max(found['difference'] for found in results.values()):.2g}")


if __name__ == "__main__":
    main()
