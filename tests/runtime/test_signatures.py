"""The public surface against the installed mlx.core's own signatures: names, order and kinds of parameters."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import mlx.core as reference
import pytest

import mlxc_py as mx

MODULES = ("", "fast", "fft", "linalg", "random")

# Names of mlx.core that have no counterpart here, and why.
ABSENT = {
    "ArrayIterator": "iteration gives a plain iterator",
    "einsum_path": "mlx-c has no function for it",
    "get_array_buffer_size": "mlx-c has no function for it",
    "unique": "mlx-c has no function for it",
    "fast.gated_delta_update": "mlx-c has no function for it",
    "fast.precompiled_cuda_kernel": "mlx-c has no function for it",
    "fft.istft": "mlx-c has no function for it",
    "fft.stft": "mlx-c has no function for it",
}
# Parameters that mlx.core has and this package has not.
MISSING = {
    "gather_qmm": ({"global_scale"}, "mlx-c 0.7 has no such parameter"),
    "fast.metal_kernel": ({"compile_options"}, "mlx-c 0.7 has no such parameter"),
}
# Functions whose parameters are written differently.
DIFFERENT = {
    "arange": "two overloads there, *args here",
    "export_function": "the callback form is not in mlx-c",
    "save_gguf": "metadata may be left out here",
}


def names(module: str) -> list[str]:
    """Public names of an mlx.core module."""
    source = getattr(reference, module) if module else reference
    return [n for n in dir(source) if not n.startswith("_")]


def functions() -> list[str]:
    """Dotted names of mlx.core's functions that are expected here."""
    found = []
    for module in MODULES:
        source = getattr(reference, module) if module else reference
        for name in names(module):
            dotted = f"{module}.{name}" if module else name
            if hasattr(getattr(source, name), "__nb_signature__") and dotted not in ABSENT:
                found.append(dotted)
    return found


def resolve(root: Any, dotted: str) -> Any:
    """The object of a dotted name."""
    for part in dotted.split("."):
        root = getattr(root, part)
    return root


def parsed(function: Any) -> tuple[list[str], set[str], set[str], set[str]]:
    """(positional names in order, keyword-only names, *args names, names with defaults) of an mlx.core function."""
    text, _, _ = function.__nb_signature__[0]
    text = re.sub(r"\\(\d+)", r"None", text.split(" -> ")[0]).replace("def ", "", 1)
    body = text[text.index("(") + 1 : text.rindex(")")]
    body = re.sub(r"(:[^=,\[\]()]*(\[[^=]*?\])?[^=,]*?)(?=[=,]|$)", "", _without_brackets(body))
    positional, keywords, starred, defaults = [], set(), set(), set()
    only = False
    for part in (p.strip() for p in body.split(",")):
        name, has_default, _ = part.partition("=")
        name = name.strip()
        if not name or name == "/":
            continue
        if name == "*":
            only = True
        elif name.startswith("*"):
            starred.add(name.strip("*"))
            only = True
        elif only:
            keywords.add(name)
        else:
            positional.append(name)
        if has_default:
            defaults.add(name)
    return positional, keywords, starred, defaults


def _without_brackets(text: str) -> str:
    """The text without what stands in brackets, whose commas are no separators."""
    depth, kept = 0, []
    for character in text:
        depth -= character in ")]"
        if not depth:
            kept.append(character if character not in ")]" else " ")
        depth += character in "(["
    return "".join(kept)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_is_there(module: str) -> None:
    ours = importlib.import_module(f"mlxc_py.{module}") if module else mx
    prefix = f"{module}." if module else ""
    missing = [n for n in names(module) if not hasattr(ours, n) and prefix + n not in ABSENT]
    assert missing == []


def test_what_is_called_absent_is_absent() -> None:
    def has(dotted: str) -> bool:
        try:
            resolve(mx, dotted)
        except AttributeError:
            return False
        return True

    assert [name for name in ABSENT if has(name)] == []


@pytest.mark.parametrize("dotted", functions())
def test_parameters_have_the_same_names_and_order(dotted: str) -> None:
    if dotted in DIFFERENT:
        pytest.skip(DIFFERENT[dotted])
    positional, keywords, starred, _ = parsed(resolve(reference, dotted))
    parameters = inspect.signature(resolve(mx, dotted)).parameters
    kinds = inspect.Parameter
    ours = [
        n for n, p in parameters.items() if p.kind is kinds.POSITIONAL_OR_KEYWORD or p.kind is kinds.POSITIONAL_ONLY
    ]
    ours_only = {n for n, p in parameters.items() if p.kind is kinds.KEYWORD_ONLY}
    gone, _ = MISSING.get(dotted, (set(), ""))
    # `stream` is always keyword-only here; everything else keeps its place.
    assert [n for n in ours if n != "stream"] == [n for n in positional if n not in {"stream", *gone}]
    assert ours_only - {"stream"} == keywords - {"stream"} - gone
    assert ("stream" in parameters) == ("stream" in positional or "stream" in keywords)
    if starred:
        assert any(p.kind is kinds.VAR_POSITIONAL for p in parameters.values())


def test_the_parser_sees_what_is_there() -> None:
    assert parsed(reference.softmax)[:2] == (["a", "axis"], {"precise", "stream"})
    assert parsed(reference.conv_general)[0][:4] == ["input", "weight", "stride", "padding"]
    assert len(functions()) > 240


def test_methods_of_array_are_there() -> None:
    missing = [n for n in dir(reference.array) if not hasattr(mx.Array, n) and not n.startswith("__")]
    assert missing == []
    special = [
        n
        for n in vars(reference.array)
        if n.startswith("__") and n not in ("__div__", "__rdiv__", "__release_buffer__")
    ]
    assert [n for n in special if not hasattr(mx.Array, n) and n not in ("__setstate__", "__getstate__")] == []


def test_dir_lists_what_getattr_gives() -> None:
    listed = dir(mx)
    assert {"array", "softmax", "fast", "acos", "grad"} <= set(listed)
    assert [n for n in listed if not hasattr(mx, n)] == []
