"""What sessions of one model cost: memory and load time of 1, 2, 4 and 10, after loading, after a run, once closed.

Rows: MLXExecutionProvider, the same with sharing off, and ONNX Runtime's CPU provider, each in a process of its own.
Models are loaded by path. Memory is proportional set size (PSS) over the process before its first session, and MLX's
active memory, which on the CPU is part of it; "x weights" divides by the bytes of the weights, whose one copy is the
floor. `fixed` is what a first session without weights costs any process. The peak is resident size while the first
session is made. Goals: ten sessions <= 1.1x one; after loading <= 1.1x weights; at the peak <= 1.2x for external data,
<= 2.2x for weights inside the model file, of which ORT's own copy is one; after the last close within 2 % of the state
after one warm-up session was closed (PSS counts a part of each library, which changes as other processes come and go:
memory that no file backs is given too).
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import output

COUNTS = (1, 2, 4, 10)
CELLS = ("loaded", "ran", "mlx", "mlx ran", "seconds")
MIB = 1 << 20
ROWS: dict[str, dict[str, str]] = {
    "MLX, shared": {},
    "MLX, sharing off": {"ONNXRUNTIME_EP_MLX_NO_SHARED_INITIALIZERS": "1"},
    "ORT CPU": {},
}


# ---------------------------------------------------------------- models
def resnet50(folder: Path) -> Path:
    """ResNet-50 of the corpus, weights inside the file."""
    fetch = importlib.import_module("fetch")
    found: Path = fetch.fetch(fetch.corpus()["onnx/filled_resnet50"])
    return found


def decoder(folder: Path, gigabytes: float = 1.0) -> Path:
    """A decoder-like stack of gated feed-forward and projection layers, weights in an external file."""
    np = importlib.import_module("numpy")
    onnx = importlib.import_module("onnx")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    hidden, inner = 2048, 5632
    shapes = [(hidden, hidden)] * 4 + [(hidden, inner), (hidden, inner), (inner, hidden)]
    layers = max(1, round(gigabytes * 1e9 / (4 * sum(rows * columns for rows, columns in shapes))))
    nodes: list[Any] = []
    initializers, offset = [], 0
    rng = np.random.default_rng(0)
    data = folder / "decoder.bin"
    with data.open("wb") as file:

        def weight(name: str, shape: tuple[int, int]) -> str:
            nonlocal offset
            content = rng.standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5)
            file.write(content.data)
            tensor = onnx.TensorProto(name=name, data_type=float32, dims=shape)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", data.name), ("offset", offset), ("length", content.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            offset += content.nbytes
            initializers.append(tensor)
            return name

        x = "x"
        for layer in range(layers):
            names = [weight(f"w{layer}_{index}", shape) for index, shape in enumerate(shapes)]

            def node(op: str, *inputs: str, layer: int = layer) -> str:
                output = f"v{layer}_{len(nodes)}"
                nodes.append(helper.make_node(op, list(inputs), [output], name=output))
                return output

            attention = node("MatMul", x, names[0])
            for name in names[1:4]:
                attention = node("Tanh", node("MatMul", attention, name))
            x = node("Add", x, attention)
            gate = node("Sigmoid", node("MatMul", x, names[4]))
            x = node("Add", x, node("MatMul", node("Mul", gate, node("MatMul", x, names[5])), names[6]))
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info("x", float32, ["tokens", hidden])],
        [helper.make_tensor_value_info(x, float32, ["tokens", hidden])],
        initializers,
    )
    path = folder / "decoder.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def one_node() -> bytes:
    """A model without weights: its session is what any first session costs."""
    helper, float32 = importlib.import_module("onnx").helper, 1
    ends = [helper.make_tensor_value_info(name, float32, ["N"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "one", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    content: bytes = model.SerializeToString()
    return content


def weight_bytes(model: Path) -> int:
    onnx = importlib.import_module("onnx")
    external = model.with_suffix(".bin")
    graph = onnx.load(model, load_external_data=False).graph
    inside = sum(len(tensor.raw_data) + 4 * len(tensor.float_data) for tensor in graph.initializer)
    return inside + (external.stat().st_size if external.exists() else 0)


# ---------------------------------------------------------------- one process
def pss() -> int:
    psutil = importlib.import_module("psutil")
    found: int = psutil.Process().memory_full_info().pss
    return found


def private() -> int:
    """Bytes that no file backs: what other processes share of libraries changes while these run."""
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
    return next(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Anonymous:"))


@contextmanager
def peak_rss() -> Iterator[list[int]]:
    """The largest resident size seen meanwhile (sampled every 5 ms: a sharper peak is missed)."""
    psutil = importlib.import_module("psutil")
    process, found, done = psutil.Process(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            found[0] = max(found[0], process.memory_info().rss)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def measure(model: str, row: str) -> dict[str, Any]:
    """Sessions made one after the other in this process, and what they hold."""
    ort = importlib.import_module("onnxruntime")
    np = importlib.import_module("numpy")
    mx: Any = None
    if row == "ORT CPU":

        def make(source: Any = model) -> Any:
            return ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    else:
        mx, ort_ep = importlib.import_module("mlxc_py"), importlib.import_module("ort_ep")
        ort_ep.register()
        importlib.import_module("ort_ep.provider")
        one = mx.ones((2, 2))
        mx.eval(one @ one)  # libraries and threads that any first use of MLX brings

        def make(source: Any = model) -> Any:
            return ort_ep.InferenceSession(source)

    def settle() -> int:
        gc.collect()
        if mx:
            mx.clear_cache()
        return pss()

    def run(session: Any) -> None:
        feeds = {
            item.name: np.zeros([d if isinstance(d, int) else 2 for d in item.shape], np.float32)
            for item in session.get_inputs()
        }
        session.run(None, feeds)

    before = settle()
    session = make(one_node())
    del session
    fixed = settle() - before
    start_rss = importlib.import_module("psutil").Process().memory_info().rss
    with peak_rss() as peak:
        warm_up = make()
    run(warm_up)
    del warm_up
    closed, closed_private = settle() - before, private()
    sessions: list[Any] = []
    # made before the sessions, because what is kept beside them holds on to memory that they leave
    rows = {count: array("d", [0.0] * len(CELLS)) for count in COUNTS}
    for count in range(1, max(COUNTS) + 1):
        begin = time.perf_counter()
        sessions.append(make())
        seconds = time.perf_counter() - begin
        if count in COUNTS:
            loaded, mlx = settle() - before, mx.get_active_memory() if mx else 0
            run(sessions[-1])
            ran, mlx_ran = settle() - before, mx.get_active_memory() if mx else 0
            rows[count][:] = array("d", [loaded, ran, mlx, mlx_ran, seconds])
    sessions.clear()
    after, after_private = settle() - before, private()
    return {
        "rows": {count: dict(zip(CELLS, cells, strict=True)) for count, cells in rows.items()},
        "peak": peak[0] - start_rss,
        "fixed": fixed,
        "closed": closed,
        "after": after,
        "private": (closed_private, after_private),
        "process": (before + closed, before + after),
    }


# ---------------------------------------------------------------- table
def rows_of(model: str, row: str, found: dict[str, Any], weights: int) -> Iterator[dict[str, Any]]:
    """A line for each number of sessions."""
    one = found["rows"]["1"]["loaded"]
    for count, cells in found["rows"].items():
        yield {
            "model": model,
            "provider": row,
            "sessions": int(count),
            "loaded, MiB": cells["loaded"] / MIB,
            "x one": cells["loaded"] / one,
            "x weights": cells["loaded"] / weights,
            "less fixed": (cells["loaded"] - found["fixed"]) / weights,
            "after a run": (cells["ran"] - found["fixed"]) / weights,
            "MLX, MiB": cells["mlx"] / MIB,
            "MLX after a run": cells["mlx ran"] / MIB,
            "load, s": cells["seconds"],
        }


def note(model: str, row: str, found: dict[str, Any], weights: int) -> str:
    left = found["after"] - found["closed"]
    warm, last = found["private"]
    whole_warm, whole_last = found["process"]
    return (
        f"{model}, {row}: {weights / MIB:.0f} MiB of weights, fixed {found['fixed'] / MIB:.0f} MiB; "
        f"peak while loading {found['peak'] / weights:.2f}x weights; closed after a warm-up "
        f"{found['closed'] / MIB:.1f} MiB, after the last of {max(COUNTS)} {found['after'] / MIB:.1f} MiB "
        f"({found['after'] / found['closed']:.3f}x, {left / weights:+.1%} of the weights), of the process without "
        f"libraries {warm / MIB:.1f} and {last / MIB:.1f} MiB ({last / warm:.3f}x), "
        f"of the whole process {whole_warm / MIB:.1f} and {whole_last / MIB:.1f} MiB ({whole_last / whole_warm:.3f}x)"
    )


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument("--model", choices=("resnet50", "decoder", "both"), default="both")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the synthetic decoder")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "ROW"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one)))
        return
    rows: list[dict[str, Any]] = []
    notes = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("resnet50", "decoder") if args.model == "both" else (args.model,):
            print(f"preparing {name} ...", file=sys.stderr)
            model = resnet50(Path(folder)) if name == "resnet50" else decoder(Path(folder), args.gigabytes)
            weights = weight_bytes(model)
            for row, environ in ROWS.items():
                print(f"measuring {name}: {row} ...", file=sys.stderr)
                found = output.in_a_process(["--one", str(model), row], environ)
                rows += rows_of(name, row, found, weights)
                notes.append(note(name, row, found, weights))
    output.show(args, rows, notes=notes, bars=("loaded, MiB",), label=("model", "provider", "sessions"), unit="MiB")


if __name__ == "__main__":
    main()
