"""Provider options: one typed table. An environment variable ONNXRUNTIME_EP_MLX_<OPTION> mirrors each of them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

ENVIRONMENT_PREFIX: Final = "ONNXRUNTIME_EP_MLX_"
OTHER_VARIABLES: Final = ("libpython",)  # what the plugin library reads itself
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class OptionError(ValueError):
    """An unknown option or a value it does not take; says what is accepted."""

    ort_status_code = 2  # ORT_INVALID_ARGUMENT


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table; `choices` lists the values of a string option, `minimum` bounds a number.

    `switch`: its environment variable, set to anything but 0, is on.
    """

    name: str
    default: Any
    doc: str
    choices: tuple[str, ...] = ()
    minimum: int = 1
    switch: bool = False

    @property
    def type(self) -> str:
        return " | ".join(self.choices) if self.choices else type(self.default).__name__

    @property
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    def set_by(self, environment: Mapping[str, str]) -> str | None:
        """What the environment says; None where it says nothing, which an empty value does unless it is a switch."""
        text = environment.get(self.environment)
        return text if text or self.switch else None

    def parse(self, value: Any, source: str) -> Any:
        """The value in its own type; OptionError names `source` and what is accepted."""
        text = str(value).strip()
        if isinstance(self.default, bool):
            if text.lower() in _TRUE + _FALSE:
                return text.lower() in _TRUE
            raise OptionError(f"{source} is {text!r}; it takes {'/'.join(_TRUE)} or {'/'.join(_FALSE)}")
        if isinstance(self.default, int):
            if text.isascii() and text.isdecimal() and int(text) >= self.minimum:
                return int(text)
            raise OptionError(f"{source} is {text!r}; it takes a whole number from {self.minimum}")
        if text in self.choices:
            return text
        accepted = " or ".join(self.choices)
        raise OptionError(f"{source} is {text!r}; {_suggestion(text, self.choices)}it takes {accepted}")


OPTIONS: Final = (
    Option(
        "compile_cache",
        64,
        "For how many combinations of input shapes and stream a subgraph's traces are kept, 16 each where they depend"
        " on values, too; the least recently used go first.",
    ),
    Option(
        "cuda_graph",
        "auto",
        "Keep what a subgraph without host steps does for given shapes as one launch on CUDA, with the memory it works"
        " in (for all sessions at most an eighth of what MLX may use); auto is on where MLX is the release for it.",
        ("auto", "off"),
    ),
    Option("device", "auto", "MLX device: auto is the GPU where MLX has one, else the CPU.", ("auto", "cpu", "gpu")),
    Option(
        "engine",
        "auto",
        "How subgraphs run: tape records a graph once and replays it, compile uses MLX's compile, eager rebuilds the"
        " graph in each run; auto is tape on the CPU and compile on a GPU.",
        ("auto", "tape", "compile", "eager"),
    ),
    Option(
        "fuse",
        "auto",
        "Fuse operations into kernels that MLX makes at run time on a GPU, for the whole process; auto is on. On the"
        " CPU nothing is made at run time: tapes always fuse arithmetic, by loops that libmlxc brings along.",
        ("auto", "on", "off"),
    ),
    Option(
        "no_shared_initializers",
        False,
        "Keep a copy of the weights for each session instead of one for the process. Environment: anything but 0.",
        switch=True,
    ),
    Option(
        "no_shared_quant_views",
        False,
        "Don't share typed views of packed weights and arrays computed from weights. Environment: anything but 0.",
        switch=True,
    ),
    Option(
        "on_compute_error",
        "cpu",
        "A run that fails on MLX: cpu lets ONNX Runtime rerun it on a CPU session from then on, raise is an error.",
        ("cpu", "raise"),
    ),
    Option(
        "partition",
        "all",
        "all takes every subgraph MLX can run, cost gives back those too small to pay for the round trip.",
        ("all", "cost"),
    ),
    Option("strict", False, "Fail when the session is made if any node stays on the CPU provider."),
    Option(
        "tf32",
        "auto",
        "Whether float32 products and convolutions on a GPU round their factors to TF32, for the whole process and from"
        " MLX's first product on; auto is what MLX_ENABLE_TF32 says, else on, as with ONNX Runtime's CUDA provider.",
        ("auto", "on", "off"),
    ),
    Option("verbose", False, "Log every node that stays on the CPU provider, with its reason."),
)
BY_NAME: Final = {option.name: option for option in OPTIONS}


@dataclass(frozen=True, slots=True)
class Options:
    """Parsed provider options."""

    compile_cache: int = 64
    cuda_graph: str = "auto"
    device: str = "auto"
    engine: str = "auto"
    fuse: str = "auto"
    no_shared_initializers: bool = False
    no_shared_quant_views: bool = False
    on_compute_error: str = "cpu"
    partition: str = "all"
    strict: bool = False
    tf32: str = "auto"
    verbose: bool = False


def parse(given: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Options:
    """Options from provider options over environment variables over defaults; OptionError for what is not valid."""
    environment = os.environ if environment is None else environment
    for name in given:
        if name not in BY_NAME:
            raise OptionError(
                f"unknown provider option {name!r}; {_suggestion(name, BY_NAME)}the options are {', '.join(BY_NAME)}"
            )
    _check_variables(environment)
    values = {}
    for name, option in BY_NAME.items():
        if name in given:
            values[name] = option.parse(given[name], source(name, given))
        elif (text := option.set_by(environment)) is not None:
            values[name] = text != "0" if option.switch else option.parse(text, source(name, given))
    return Options(**values)


def source(name: str, given: Mapping[str, Any]) -> str:
    """Where an option's value comes from that is not its default, for messages."""
    return f"provider option {name}" if name in given else f"environment variable {BY_NAME[name].environment}"


def _check_variables(environment: Mapping[str, str]) -> None:
    known = (*BY_NAME, *OTHER_VARIABLES)
    for variable in environment:
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if name in map(str.upper, known):
            continue
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {ENVIRONMENT_PREFIX}{near[0].upper()}? " if near else ""
        raise OptionError(
            f"unknown environment variable {variable}; {hint}after {ENVIRONMENT_PREFIX} comes the name of an option,"
            f" {', '.join(BY_NAME)}, in capitals, or LIBPYTHON"
        )


def _suggestion(word: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""
