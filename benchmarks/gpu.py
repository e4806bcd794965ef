"""The provider on a GPU, beside what one would use instead: mlx.core, ONNX Runtime's CPU and CUDA providers, torch.

Milliseconds, medians of one run; weights are equal on all sides and TF32 is on or off for all of them. "numpy" columns
take and return numpy arrays. "eval" is the part of a run that the provider spends evaluating, from its own counter
(claim_report(session).runs); "on device" has its input on the device and leaves the result there. Goals: EP / mlx.core
<= 1.05 in both forms, numpy / eval <= 1.4 at batch 32, ORT CPU / EP >= 15 at batch 32 and 2.4 at batch 1 for ResNet-50.
    python benchmarks/gpu.py --json gpu.json
    python benchmarks/gpu.py --models encoder --layers 2 --hidden 64 --batches 1 --runs 3      works on the CPU too
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import output

COLUMNS = {
    "EP numpy": "ep",
    "EP eval": "ep_eval",
    "mlx numpy": "mlx",
    "mlx on device": "mlx_device",
    "ORT CPU": "ort_cpu",
    "ORT CUDA": "ort_cuda",
    "torch numpy": "torch",
    "torch on device": "torch_device",
}
RATIOS = {
    "EP / mlx, numpy": ("ep", "mlx"),
    "EP eval / mlx on device": ("ep_eval", "mlx_device"),
    "EP numpy / eval": ("ep", "ep_eval"),
    "ORT CPU / EP": ("ort_cpu", "ep"),
    "ORT CUDA / EP": ("ort_cuda", "ep"),
    "torch / EP": ("torch", "ep"),
}


# ---------------------------------------------------------------- timing
def median(run: Callable[[], object], runs: int, seconds: float) -> float:
    """Median milliseconds of at most `runs` calls within about `seconds`, after warming up for a fifth of both."""
    return statistics.median(samples(run, runs, seconds))


def samples(run: Callable[[], object], runs: int, seconds: float) -> list[float]:
    for times in (max(1, runs // 5), runs):
        taken: list[float] = []
        end = time.perf_counter() + seconds * times / runs
        while len(taken) < times and (len(taken) < min(3, times) or time.perf_counter() < end):
            began = time.perf_counter()
            run()
            taken.append((time.perf_counter() - began) * 1e3)
    return taken


def deviation(ours: Any, theirs: Any) -> float:
    ours, theirs = (np.asarray(value, np.float32) for value in (ours, theirs))
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


# ---------------------------------------------------------------- the sides
def measure_ep(session: Any, feed: dict[str, Any], runs: int, seconds: float) -> dict[str, float]:
    ort_ep = importlib.import_module("ort_ep")
    counter = ort_ep.claim_report(session).runs
    evaluating: list[float] = []

    def run() -> None:
        before = counter.evaluating_ns
        session.run(None, feed)
        evaluating.append((counter.evaluating_ns - before) / 1e6)

    taken = samples(run, runs, seconds)
    return {"ep": statistics.median(taken), "ep_eval": statistics.median(evaluating[-len(taken) :])}


def measure_mlx(mx: Any, run: Callable[[Any], Any], x: Any, runs: int, seconds: float) -> dict[str, float]:
    held = mx.array(x)
    mx.eval(held)
    return {
        "mlx": median(lambda: np.array(run(mx.array(x))), runs, seconds),
        "mlx_device": median(lambda: mx.eval(run(held)), runs, seconds),
    }


def measure_torch(torch: Any, run: Callable[[Any], Any], x: Any, runs: int, seconds: float) -> dict[str, float]:
    held = torch.from_numpy(x).cuda()

    def on_device() -> None:
        run(held)
        torch.cuda.synchronize()

    with torch.inference_mode():
        return {
            "torch": median(lambda: run(torch.from_numpy(x).cuda()).cpu().numpy(), runs, seconds),
            "torch_device": median(on_device, runs, seconds),
        }


def plain_session(ort: Any, model: bytes, provider: str, tf32: bool) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    chosen = {"use_tf32": int(tf32)} if provider == "CUDAExecutionProvider" else {}
    session = ort.InferenceSession(model, options, providers=[(provider, chosen)])
    if session.get_providers()[0] != provider:
        raise RuntimeError(f"{provider} is listed by onnxruntime but makes no session here: look at its log above")
    return session


def torch_on_cuda() -> Any | None:
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    return torch if torch.cuda.is_available() else None


# ---------------------------------------------------------------- rows
def rows_of(model: Any, batches: Sequence[int], options: argparse.Namespace) -> list[dict[str, Any]]:
    """One record per batch; sessions and twins are made once for all of them."""
    ort, ort_ep, mx = (importlib.import_module(name) for name in ("onnxruntime", "ort_ep", "mlx.core"))
    budget, data, tf32 = (options.runs, options.seconds), model.onnx.SerializeToString(), options.tf32 == "on"
    began = time.perf_counter()
    ours = ort_ep.InferenceSession(data, device=options.device, tf32=options.tf32, on_compute_error="raise")
    created = (time.perf_counter() - began) * 1e3
    cpu = plain_session(ort, data, "CPUExecutionProvider", tf32)
    cuda = None
    if "CUDAExecutionProvider" in ort.get_available_providers():
        cuda = plain_session(ort, data, "CUDAExecutionProvider", tf32)
    twin = mx.compile(model.mlx(mx))
    torch = torch_on_cuda() if model.torch else None
    name = ours.get_inputs()[0].name
    placed = ort_ep.claim_report(ours)
    rows = []
    for batch in batches:
        x = model.example(batch)
        feed = {name: x}
        began = time.perf_counter()
        (got,) = ours.run(None, feed)
        first = (time.perf_counter() - began) * 1e3
        (expected,) = cpu.run(None, feed)
        row: dict[str, Any] = {
            "model": model.name,
            "batch": batch,
            "created": created,
            "first": first,
            "on_mlx": placed.share,
            "subgraphs": len(placed.clusters),
            "deviation": deviation(got, expected),
            "mlx_deviation": deviation(np.array(twin(mx.array(x))), expected),
            **measure_ep(ours, feed, *budget),
            **measure_mlx(mx, twin, x, *budget),
            "ort_cpu": median(partial(cpu.run, None, feed), *budget),
        }
        if cuda is not None:
            row["ort_cuda"] = median(partial(cuda.run, None, feed), *budget)
        if torch is not None:
            row |= measure_torch(torch, model.torch(torch), x, *budget)
        row["ratios"] = {
            label: row[above] / row[below] for label, (above, below) in RATIOS.items() if above in row and below in row
        }
        rows.append(row)
        print(f"{model.name}, batch {batch}: done", file=sys.stderr, flush=True)
    return rows


def device_of(options: argparse.Namespace) -> dict[str, Any]:
    """What a figure needs beside it to mean something."""
    ort, mx, tf32 = (importlib.import_module(name) for name in ("onnxruntime", "mlxc_py", "mlxc_py.tf32"))
    device = options.device if options.device != "auto" else "gpu" if mx.default_device().type == mx.gpu else "cpu"
    details = mx.device_info(mx.gpu) if device == "gpu" else {"device_name": platform.processor() or platform.machine()}
    torch = torch_on_cuda()
    return {
        "device": device,
        "device_name": str(details.get("device_name", "")),
        "tf32": tf32.enabled() if device == "gpu" else False,
        "providers": ort.get_available_providers(),
        "torch": None if torch is None else torch.__version__,
        "runs": options.runs,
    }


def text(rows: Sequence[dict[str, Any]]) -> str:
    """Milliseconds above, ratios below; a side that is not there is a dash."""
    times = [{**row, **{head: row.get(name) for head, name in COLUMNS.items()}} for row in rows]
    ratios = [{**row, **row["ratios"]} for row in rows]
    lines = [
        output.table(times, ["model", "batch", *COLUMNS]),
        "",
        output.table(ratios, ["model", "batch", *RATIOS]),
        "",
    ]
    lines += [
        f"{row['model']}, batch {row['batch']}: {row['on_mlx']:.0%} of the nodes on MLX in {row['subgraphs']}"
        f" subgraph(s), created in {row['created']:.0f} ms, first run {row['first']:.0f} ms,"
        f" deviation from ORT CPU {row['deviation']:.1e} (mlx.core {row['mlx_deviation']:.1e})"
        for row in rows
    ]
    products = [row["ratios"]["ORT CUDA / EP"] for row in rows if "ORT CUDA / EP" in row["ratios"]]
    if products:
        lines.append(f"geometric mean of ORT CUDA / EP: {statistics.geometric_mean(products):.2f}x")
    return "\n".join(lines)


def main() -> None:
    parser = output.parser(__doc__)
    parser.add_argument(
        "--models", nargs="+", choices=["resnet50", "encoder", "mlp"], default=["resnet50", "encoder", "mlp"]
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto")
    parser.add_argument("--tf32", choices=["on", "off"], default="on", help="for all sides")
    parser.add_argument("--runs", type=int, default=50, help="at most, for each median")
    parser.add_argument("--seconds", type=float, default=1.5, help="at most, for each median")
    parser.add_argument("--layers", type=int, default=12, help="of the encoder")
    parser.add_argument("--hidden", type=int, default=768, help="of the encoder, 64 per head")
    parser.add_argument("--width", type=int, default=2048, help="of the MLP")
    options = parser.parse_args()
    os.environ["MLX_ENABLE_TF32"] = str(int(options.tf32 == "on"))
    mx = importlib.import_module("mlx.core")
    if options.device != "auto":
        mx.set_default_device(getattr(mx, options.device))
    if (torch := torch_on_cuda()) is not None:
        torch.set_float32_matmul_precision("high" if options.tf32 == "on" else "highest")
    models = importlib.import_module("gpu_models")
    makers = {
        "resnet50": models.resnet50,
        "encoder": lambda: models.encoder(options.layers, options.hidden, max(1, options.hidden // 64)),
        "mlp": lambda: models.mlp(options.width),
    }
    here = device_of(options)
    print(*(f"{name} {value}" for name, value in here.items()), sep=", ", flush=True)
    rows: list[dict[str, Any]] = []
    for name in options.models:
        rows += rows_of(makers[name](), options.batches, options)
        output.save(options, rows, text(rows), device=here)  # after every model: it stays where a later one fails
    print(text(rows))
    if options.plot:
        output.draw(options.plot, rows, list(COLUMNS.values()), ("model", "batch"), "ms")


if __name__ == "__main__":
    main()
