"""`doctor`: what is installed, which libraries are in use, and whether a model can run on MLX."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from typing import Annotated, Any

import typer

from ort_ep.cli.console import CommandError, out, progress, row, say, show_error, table
from ort_ep.cli.flags import Debug, debugging
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
        sections = [_examine(ctx, title, look) for title, look in EXAMINATIONS]
    broken = [section for section in sections if section.problem]
    if as_json:
        typer.echo(json.dumps(_document(sections), indent=2, ensure_ascii=False))
    else:
        for section in sections:
            _show(section)
        for section in broken:
            show_error(f"{section.title}: {section.problem}", section.advice)
        if not broken:
            say("Ready: models run on MLX.", style="green")
    if broken:
        raise typer.Exit(1)


def _examine(ctx: typer.Context, title: str, look: Callable[[Section], None]) -> Section:
    """One section; what goes wrong in it is its finding and doesn't keep the others from being looked at."""
    section = Section(title)
    try:
        look(section)
    except CommandError as error:
        section.problem, section.advice = str(error), error.advice
    except Exception as error:
        if debugging(ctx):
            raise
        section.problem = sentence(error)
    return section
EXAMINATIONS = ()
