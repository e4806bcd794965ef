"""The typer application and its error boundary."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mlxc_py._version import __version__
from ort_ep.cli import demo, doctor, run
from ort_ep.cli.console import CommandError, one_line, show_error
from ort_ep.cli.flags import debugging

PROGRAM = "python -m ort_ep"
INTERRUPTED = 130


class Commands(TyperGroup):
    """Turns what a command raises into one sentence on stderr and a non-zero exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CommandError as error:
            if debugging(ctx):
                raise
            show_error(str(error), error.advice)
            raise typer.Exit(1) from error
        except (typer.Exit, typer.Abort, KeyboardInterrupt, BrokenPipeError):
            raise
        except Exception as error:
            # typer's own usage errors know how to show themselves
            if debugging(ctx) or hasattr(error, "format_message"):
                raise
            kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
            show_error(f"{kind}{one_line(str(error))}", "Run again with --debug for the traceback.")
            raise typer.Exit(1) from error


app = typer.Typer(cls=Commands, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"mlxc-py {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Run ONNX models on MLX through ONNX Runtime's MLXExecutionProvider."""


app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("doctor")(doctor.doctor)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code (0 fine, 1 failed, 2 usage, 130 interrupted)."""
    for stream in (sys.stdout, sys.stderr):
        # a path that the terminal's encoding lacks is printed escaped, not a crash
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(args=arguments, prog_name=PROGRAM)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        code = INTERRUPTED
    else:
        code = 0
    if code == INTERRUPTED:
        # a thread may be deep in native code, and it must not be waited for
        os._exit(INTERRUPTED)
    return code
