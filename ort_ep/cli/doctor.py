"""`doctor`: what is installed, which libraries are in use, and whether a model can run on MLX."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from onnx import TensorProto, helper

from ort_ep.cli.console import CommandError, out, progress, row, say, show_error, table
from ort_ep.cli.flags import Debug
from ort_ep.cli.sessions import import_onnxruntime, sentence

# what pip calls the things that matter here; onnxruntime comes under several names
DISTRIBUTIONS = (
    "mlxc-py",
    "mlx",
    "mlx-cpu",
    "mlx-cuda-12",
    "mlx-cuda-13",
    "mlx-metal",
    "scipy-openblas32",
    "numpy",
    "ml-dtypes",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "magika",
)


@dataclass
class Section:
    """One part of the examination: facts in order, and what makes it fail."""

    title: str
    facts: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    advice: str = ""


def doctor(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")] = False,
    debug: Debug = False,
) -> None:
    """Show versions, libraries, BLAS, devices and options; exit code 1 when models can't run on MLX."""
    with progress("Examining the installation"):
        sections = examine()
    broken = [section for section in sections if section.problem]
    if as_json:
        document = {"ready": not broken, **{section.title: _plain(section) for section in sections}}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        for section in sections:
            _show(section)
        for section in broken:
            show_error(f"{section.title}: {section.problem}", section.advice)
        if not broken:
            say("Ready: models run on MLX.", style="green")
    if broken:
        raise typer.Exit(1)


def examine() -> list[Section]:
    """Every section in order; one that rests on a broken one is left out."""
    sections: dict[str, Section] = {}
    for title, (needs, look) in EXAMINATIONS.items():
        if any(name not in sections or sections[name].problem for name in needs):
            continue
        section = sections[title] = Section(title)
        try:
            look(section.facts)
        except CommandError as error:
            section.problem, section.advice = str(error), error.advice
        except Exception as error:
            # whatever is wrong with one part is a finding; the others are still looked at
            section.problem = sentence(error)
    return list(sections.values())


def _plain(section: Section) -> dict[str, Any]:
    problem = {"problem": section.problem, "advice": section.advice} if section.problem else {}
    return {**section.facts, **problem}


def _show(section: Section) -> None:
    if not section.facts:
        return
    say(section.title, style="bold")
    if section.title == "Options":
        _show_options(section.facts)
        return
    made = table("", "", "")
    made.show_header = False
    made.columns[1].justify = "left"
    for name, value in section.facts.items():
        for number, line in enumerate(value if isinstance(value, list) else [value]):
            row(made, "" if number else f"  {name}", _line(line))
    out().print(made)
    say()


def _show_options(facts: dict[str, Any]) -> None:
    """One row an option; a value from the environment stands in place of the default, marked."""
    made = table("", "  option", "value", "takes", "environment variable", "meaning")
    for name, option in facts.items():
        set_to = option["from environment"]
        value = str(option["default"]) if set_to is None else f"{set_to} (from environment)"
        row(made, f"  {name}", value, option["takes"], option["environment"], option["meaning"])
    for column in made.columns:
        column.justify = "left"
    out().print(made)
    say()


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return "-" if value is None else str(value)


# ---------------------------------------------------------------- the examinations
def _python(facts: dict[str, Any]) -> None:
    facts["version"] = platform.python_version()
    facts["executable"] = sys.executable
    facts["platform"] = platform.platform()


def _packages(facts: dict[str, Any]) -> None:
    for name in DISTRIBUTIONS:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    for name in ("mlxc_py", "ort_ep"):
        spec = importlib.util.find_spec(name)
        facts[f"{name} from"] = spec.origin if spec else None


def _libmlxc(facts: dict[str, Any]) -> None:
    from mlxc_py._sys import load, mlx

    found = load.library()
    facts["path"] = found.path
    facts["found by"] = found.origin
    facts["mlx-c API"] = found.generation
    facts["functions"] = f"{sum(map(found.has, mlx.FUNCTIONS))} of {mlx.FUNCTION_COUNT}"
    facts["MLX"] = found.mlx_version
    facts["libmlx"] = found.mlx_path
    if found.refused:
        facts["not called"] = [f"{name}: {why}" for name, why in found.refused.items()]


def _native(facts: dict[str, Any]) -> None:
    from mlxc_py._sys import blas, load, support

    load.library()
    found = support.library()
    facts["support library"] = str(support.path()) if found is not None else f"none: {support.reason()}"
    facts["BLAS of MLX on CPU"] = str(blas.status())


def _devices(facts: dict[str, Any]) -> None:
    import mlxc_py as mx

    facts["default"] = str(mx.default_device())
    facts["Metal"] = "available" if mx.metal.is_available() else "no"
    facts["CUDA"] = "available" if mx.cuda.is_available() else "no"


def _onnxruntime(facts: dict[str, Any]) -> None:
    onnxruntime = import_onnxruntime()
    facts["version"] = onnxruntime.__version__
    facts["path"] = str(Path(onnxruntime.__file__).parent)


def _plugin(facts: dict[str, Any]) -> None:
    import ort_ep

    facts["library"] = ort_ep.get_library_path()
    facts["provider"] = ort_ep.get_ep_name()
    ort_ep.register()
    facts["devices"] = [_device(device) for device in ort_ep.devices()]


def _device(device: Any) -> dict[str, str]:
    kind = str(device.device.type).rpartition(".")[2]
    return {"on": kind, **{key: value for key, value in device.ep_metadata.items() if key != "library_path"}}


def _probe(facts: dict[str, Any]) -> None:
    """A one-node model must run on MLX and give the right sum."""
    import ort_ep

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "probe", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    started = time.perf_counter()
    session = ort_ep.InferenceSession(model.SerializeToString(), strict=True)
    fed = np.arange(4, dtype=np.float32)
    (result,) = session.run(None, {"x": fed})
    if not np.array_equal(result, fed + fed):
        raise CommandError(f"x + x gave {result.tolist()} for {fed.tolist()}", "Please report this with doctor --json.")
    facts["x + x on MLX"] = f"right, {(time.perf_counter() - started) * 1e3:.1f} ms with loading"


def _options(facts: dict[str, Any]) -> None:
    """The provider options, their defaults, and what the environment makes of them."""
    from ort_ep.options import OPTIONS, parse

    for option in OPTIONS:
        facts[option.name] = {
            "takes": option.type,
            "default": option.default,
            "environment": option.environment,
            "from environment": option.set_by(os.environ),
            "meaning": option.doc,
        }
    parse({})


# title -> (sections it rests on, what looks)
EXAMINATIONS: dict[str, tuple[tuple[str, ...], Callable[[dict[str, Any]], None]]] = {
    "Python": ((), _python),
    "Packages": ((), _packages),
    "libmlxc": ((), _libmlxc),
    "Native support": (("libmlxc",), _native),
    "MLX devices": (("libmlxc",), _devices),
    "ONNX Runtime": ((), _onnxruntime),
    "Execution provider": (("libmlxc", "ONNX Runtime"), _plugin),
    "Options": ((), _options),
    "Probe": (("Execution provider",), _probe),
}
