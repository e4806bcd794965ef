"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ort_ep.cli.console import CommandError

_DEBUG = "ort_ep.debug"


def _remember(ctx: typer.Context, value: bool) -> bool:
    if value:
        ctx.find_root().meta[_DEBUG] = True
    return value


def debugging(ctx: Any) -> bool:
    """Whether the command line asked for tracebacks."""
    return bool(ctx.find_root().meta.get(_DEBUG))


Debug = Annotated[
    bool,
    typer.Option(
        "--debug", "--verbose", help="Show tracebacks and ONNX Runtime's log.", callback=_remember, is_eager=True
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="Provider option; `doctor` lists them. Repeatable."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail when any node stays on ONNX Runtime's CPU provider.")]
Runs = Annotated[int, typer.Option("--runs", min=1, help="Timed runs per provider; the median is shown.")]


def key_values(given: list[str] | None, flag: str) -> dict[str, str]:
    """`["a=1", "b=2"]` as a dict; usage error for anything without `=` or given twice."""
    pairs: dict[str, str] = {}
    for item in given or ():
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{item!r} is not KEY=VALUE", param_hint=flag)
        if key in pairs:
            raise typer.BadParameter(f"{key!r} is given twice", param_hint=flag)
        pairs[key] = value
    return pairs


def provider_options(given: list[str] | None) -> dict[str, str]:
    """The --option items, checked against the provider's table."""
    from ort_ep.options import OptionError, parse

    options = key_values(given, "--option")
    try:
        parse(options)
    except OptionError as error:
        raise CommandError(str(error), "`python -m ort_ep doctor` lists the options.") from error
    return options
