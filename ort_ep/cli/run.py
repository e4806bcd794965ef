"""`run`: one model on MLX, compared with ONNX Runtime's CPU provider."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ort_ep.cli.compare import Difference, difference
from ort_ep.cli.console import CommandError, out, row, say, table
from ort_ep.cli.flags import Debug, Options, Runs, Strict, key_values, provider_options
from ort_ep.cli.inputs import Dims, make_feeds, split_files
from ort_ep.cli.model import input_specs, load_model
from ort_ep.cli.placement import placement, refuse_fallback, show_placement
from ort_ep.cli.sessions import Timed, cpu_session, failing_as, import_onnxruntime, mlx_session, time_runs

# the corpus limits: ONNX Runtime's CPU provider differs from itself by up to 1.7e-3 in fp16
LIMIT, LOW_PRECISION_LIMIT = 1e-3, 5e-3


def run(
    model: Annotated[Path, typer.Argument(help="An ONNX model.", show_default=False)],
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input", "-i", metavar="NAME=FILE.npy", help="An input's value. Repeatable; the rest is random."
        ),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", "-d", metavar="NAME=N", help="A symbolic dimension's size, or INPUT:AXIS=N. Repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random inputs.")] = 0,
    runs: Runs = 10,
    option: Options = None,
    strict: Strict = False,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Save MLX's outputs there, one .npy per tensor.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            min=0,
            help="Largest relative difference from CPU; 1e-3, or 5e-3 with float16.",
            show_default=False,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Run MODEL on MLX and on CPU; print where its nodes ran, the differences and the latencies.

    Exit code 1 when the results differ by more than the tolerance.
    """
    options = provider_options(option)
    dims = Dims(_sizes(key_values(dim, "--dim")))
    proto = load_model(model)
    specs = input_specs(proto)
    files = split_files(input_, specs)
    dims.check_names(specs)
    feeds = make_feeds(proto, specs, files, dims, seed)
    import_onnxruntime()
    if output is not None:
        _make_folder(output)

    mlx = mlx_session(model, options, strict=strict, debug=debug)
    cpu = cpu_session(model, debug=debug)
    _show_inputs(model, feeds, set(files), dims, seed)
    advice = "Give sizes with --dim, or real inputs with --input." if len(files) < len(specs) else ""
    with failing_as("ONNX Runtime's CPU provider can't run the model with these inputs", advice):
        expected = time_runs(cpu, feeds, runs, "CPU")
    with failing_as("MLX can't run the model with these inputs"):
        got = time_runs(mlx, feeds, runs, "MLX")

    say()
    where = placement(mlx)
    show_placement(where)
    differences = {name: difference(got.outputs[name], expected.outputs[name]) for name in expected.outputs}
    say()
    _show_outputs(got.outputs, differences)
    say()
    _show_latencies(got, expected, runs)
    if output is not None:
        _save(got.outputs, output)
    refuse_fallback(where)
    _judge(differences, feeds, got.outputs, tolerance)


def _sizes(given: dict[str, str]) -> dict[str, int]:
    for name, text in given.items():
        if not text.isdecimal():
            raise typer.BadParameter(f"{name}={text}: {text!r} is not a size (0, 1, 2, ...)", param_hint="--dim")
    return {name: int(text) for name, text in given.items()}


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"can't make the output folder {folder}: {error.strerror}", "Give another folder with --output."
        ) from error


def _show_inputs(model: Path, feeds: dict[str, np.ndarray], from_files: set[str], dims: Dims, seed: int) -> None:
    say(str(model), style="bold")
    for name, array in feeds.items():
        origin = "from file" if name in from_files else f"random, seed {seed}"
        say(f"  input {name}: {array.dtype.name} {list(array.shape)} ({origin})")
    if dims.chosen:
        sizes = ", ".join(f"{name}={size}" for name, size in dims.chosen.items())
        say(f"  free dimensions set to {sizes}; change them with --dim")


def _show_outputs(outputs: dict[str, Any], differences: dict[str, Difference]) -> None:
    made = table("", "output", "dtype and shape", "largest difference", "relative")
    for name, value in outputs.items():
        one = differences[name]
        what = f"{value.dtype.name} {list(value.shape)}" if isinstance(value, np.ndarray) else f"{len(value)} items"
        row(made, name, what, one.mismatch or f"{one.absolute:.3g}", "" if one.mismatch else f"{one.relative:.3g}")
    out().print(made)


def _show_latencies(got: Timed, expected: Timed, runs: int) -> None:
    made = table("", "latency", "first run", f"median of {runs}")
    for label, timed in (("MLX", got), ("CPU", expected)):
        row(made, label, f"{timed.first_ms:.2f} ms", f"{timed.median_ms:.2f} ms")
    out().print(made)


def _save(outputs: dict[str, Any], folder: Path) -> None:
    for number, (name, value) in enumerate(outputs.items()):
        if not isinstance(value, np.ndarray):
            say(f"not saved: output {name} is not a tensor")
            continue
        # names hold slashes and colons; the number keeps two that then look alike apart
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        path = folder / f"{number}_{safe}.npy"
        try:
            np.save(path, value)
        except OSError as error:
            raise CommandError(
                f"can't write {path}: {error.strerror or error}", "Give another folder with --output."
            ) from error
    say(f"outputs saved in {folder}")


def _judge(
    differences: dict[str, Difference], feeds: dict[str, np.ndarray], outputs: dict[str, Any], tolerance: float | None
) -> None:
    """Fail when any output is further from the CPU provider's than allowed."""
    dtypes = [array.dtype for array in [*feeds.values(), *outputs.values()] if isinstance(array, np.ndarray)]
    low = any(d.itemsize < 4 and d.kind in "fV" for d in dtypes)
    limit = tolerance if tolerance is not None else LOW_PRECISION_LIMIT if low else LIMIT
    for name, one in differences.items():
        if not one.within(limit):
            raise CommandError(
                f"output {name!r} differs from the CPU provider's: {one.exceeding(limit)}",
                "Quantised and float16 models may need --tolerance 5e-3; else please report it with the model.",
            )
