"""Where the command line prints: results on stdout, errors and progress on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

ROOMY = 160


class CommandError(Exception):
    """What stops a command: one sentence that says what was wrong, one that says what to do."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


def out() -> Console:
    """A console on the current stdout (looked up per call: tests and pipes replace it)."""
    return Console(highlight=False, soft_wrap=True, width=_width(sys.stdout))


def err() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True, width=_width(sys.stderr))


def _width(stream: TextIO) -> int | None:
    """A terminal's own width; a file or a pipe has room."""
    return None if stream.isatty() or "COLUMNS" in os.environ else ROOMY


def say(line: str = "", style: str = "") -> None:
    """Print one line as it is: brackets in paths and messages are not markup."""
    out().print(Text(line, style=style))


def warn(line: str) -> None:
    err().print(Text(f"warning: {line}", style="yellow"))


def show_error(message: str, advice: str = "") -> None:
    err().print(Text(f"error: {message}", style="red"))
    if advice:
        err().print(Text(f"  {advice}"))


def one_line(text: str) -> str:
    return " ".join(text.split())


def table(title: str, *columns: str) -> Table:
    """A table whose columns are right-aligned except for the first."""
    made = Table(
        title=Text(title) if title else None, title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for position, name in enumerate(columns):
        made.add_column(name, justify="left" if position == 0 else "right", overflow="fold")
    return made


def row(made: Table, *cells: str) -> None:
    """Add a row of plain text: brackets in names are not markup."""
    made.add_row(*map(Text, cells))


_running: Status | None = None


@contextmanager
def progress(what: str) -> Iterator[None]:
    """A spinner on a terminal's stderr while the body runs; silent elsewhere. Within another it changes its text."""
    global _running
    if _running is not None:
        outer = _running.status
        _running.update(Text(what))
        try:
            yield
        finally:
            _running.update(outer)
        return
    console = err()
    if not console.is_terminal:
        yield
        return
    try:
        with console.status(Text(what)) as _running:
            yield
    finally:
        _running = None
