"""`demo`: Google's Magika tells what files are, its model running on MLX."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from ort_ep.cli.compare import Difference, difference
from ort_ep.cli.console import CommandError, out, progress, row, say, table, warn
from ort_ep.cli.flags import Debug, Options, Runs, Strict, provider_options
from ort_ep.cli.placement import Placement, placement, refuse_fallback, show_declined
from ort_ep.cli.sessions import Timed, cpu_session, import_onnxruntime, mlx_session, time_runs

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

LIMIT = 1e-3
OWN_FILES = ("__init__.py", "py.typed", "models/standard_v3_3/model.onnx", "config/content_types_kb.min.json")


@dataclass
class BothProviders:
    """Stands in for Magika's onnxruntime session: answers from MLX, and keeps both providers' results."""

    mlx: InferenceSession
    cpu: InferenceSession
    runs: int
    last: tuple[Timed, Timed] | None = field(default=None, init=False)

    def run(self, names: list[str], feeds: dict[str, Any]) -> list[np.ndarray]:
        """Magika's call: lists of byte values in, probabilities of shape (files, labels) out."""
        arrays = {name: np.asarray(value, np.int32) for name, value in feeds.items()}
        self.last = time_runs(self.mlx, arrays, self.runs, "MLX"), time_runs(self.cpu, arrays, self.runs, "CPU")
        return [self.last[0].outputs[name] for name in names]


@dataclass(frozen=True)
class Finding:
    """What one file is, and the two providers' results where its content went through the model."""

    path: Path
    label: str
    description: str
    score: float
    timed: tuple[Timed, Timed] | None

    @property
    def apart(self) -> Difference | None:
        if self.timed is None:
            return None
        got, expected = self.timed
        return difference(list(got.outputs.values()), list(expected.outputs.values()))


def demo(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files to identify; Magika's own when none are given.", show_default=False),
    ] = None,
    runs: Runs = 10,
    option: Options = None,
    strict: Strict = False,
    debug: Debug = False,
) -> None:
    """Identify FILES with Google's Magika, its model running on MLX, and compare with CPU.

    For each file: what it is, how many nodes ran on MLX and on CPU, the largest difference from ONNX Runtime's CPU
    provider, and both latencies.
    """
    options = provider_options(option)
    import_onnxruntime()
    magika = _import_magika()
    home = Path(magika.__file__).parent
    paths = files or [path for path in (home / name for name in OWN_FILES) if path.is_file()]
    _check(paths)

    model = _model_of(magika, home)
    providers = BothProviders(
        mlx_session(model, options, strict=strict, debug=debug), cpu_session(model, debug=debug), runs
    )
    identify = _identifier(magika, providers)
    with progress("Identifying files"):
        findings = [_identify(identify, providers, path) for path in paths]
    where = placement(providers.mlx)
    say(f"Magika {metadata.version('magika')} ({model.parent.name}) on MLXExecutionProvider")
    if not files:
        say(f"Files of {home}")
    say()
    _show(findings, where, None if files else home)
    show_declined(where)
    refuse_fallback(where)
    _judge(findings)


def _import_magika() -> Any:
    try:
        with progress("Importing Magika"):
            import magika
    except ModuleNotFoundError as error:
        if error.name != "magika":
            raise
        raise CommandError(
            "the demo needs Google's magika", "Install the extra: pip install 'mlxc-py[demo]'."
        ) from error
    return magika


def _check(paths: list[Path]) -> None:
    """Every file must be there before the model is loaded."""
    for path in paths:
        if path.is_dir():
            raise CommandError(f"{path} is a directory", "Give files, for example with a shell pattern.")
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise CommandError(f"can't read {path}: {error.strerror}", "Check the path and its permissions.") from error


def _model_of(magika: Any, home: Path) -> Path:
    found = home / "models" / magika.Magika._get_default_model_name() / "model.onnx"
    if not found.is_file():
        raise CommandError(
            f"magika's model is missing: {found}", "Install it again: pip install --force-reinstall magika."
        )
    return found


def _identifier(magika: Any, providers: BothProviders) -> Any:
    """A Magika whose feature extraction and thresholds are its own, and whose session is ours."""

    class OnMlx(magika.Magika):
        def _init_onnx_session(self) -> Any:
            return providers

    made = OnMlx()
    if made._onnx_session is not providers:
        raise CommandError(
            f"magika {metadata.version('magika')} loads its model in a way this demo does not know",
            "Install the version it was written for: pip install 'magika==1.0.3'.",
        )
    return made


def _identify(identify: Any, providers: BothProviders, path: Path) -> Finding:
    providers.last = None
    result = identify.identify_path(path)
    if not result.ok:
        raise CommandError(f"Magika can't read {path}: {result.status}", "Check the file's permissions.")
    return Finding(path, str(result.output.label), result.output.description, float(result.score), providers.last)


def _show(findings: list[Finding], where: Placement, home: Path | None) -> None:
    made = table("", "file", "what it is", "score", "nodes MLX / CPU", "max difference", "MLX", "CPU")
    made.columns[1].justify = "left"
    for one in findings:
        file = str(one.path.relative_to(home) if home else one.path)
        what = f"{one.label}: {one.description}"
        if one.timed is None or one.apart is None:
            # empty and tiny files: Magika's rules decide without the model
            row(made, file, what, f"{one.score:.3f}", "no model run needed", "", "", "")
            continue
        got, expected = one.timed
        row(
            made,
            file,
            what,
            f"{one.score:.3f}",
            f"{where.on_mlx} / {where.on_cpu}",
            one.apart.mismatch or f"{one.apart.absolute:.2g}",
            f"{got.median_ms:.2f} ms",
            f"{expected.median_ms:.2f} ms",
        )
    out().print(made)
    timed = [one.timed for one in findings if one.timed is not None]
    if timed:
        first = timed[0][0].first_ms
        say()
        say(f"Latencies are medians; the first run on MLX took {first:.1f} ms.")
        ratio = statistics.median(cpu.median_ms / mlx.median_ms for mlx, cpu in timed)
        say(f"CPU time / MLX time: {ratio:.2f}")


def _judge(findings: list[Finding]) -> None:
    for one in findings:
        if one.apart is not None and not one.apart.within(LIMIT):
            raise CommandError(
                f"MLX and CPU disagree on {one.path}: {one.apart.exceeding(LIMIT)}",
                "Please report it with the output of: python -m ort_ep doctor.",
            )
    if all(one.timed is None for one in findings):
        warn("none of these files went through the model: they are empty or too small")
