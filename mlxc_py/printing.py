"""Text forms of arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from mlxc_py.arrays import Array
from mlxc_py.interop import host_view


@dataclass
class PrintOptions:
    """How arrays are printed: significant digits."""

    precision: int = 6


_options = PrintOptions()


def get_printoptions() -> PrintOptions:
    """The options in force."""
    return PrintOptions(_options.precision)


def set_printoptions(precision: int = 6) -> None:
    """Set the number of significant digits."""
    if precision < 1:
        raise ValueError(f"precision must be at least 1, not {precision}")
    _options.precision = precision


@contextmanager
def printoptions(precision: int = 6) -> Iterator[PrintOptions]:
    """Use other options inside a `with`."""
    before = _options.precision
    set_printoptions(precision)
    try:
        yield get_printoptions()
    finally:
        _options.precision = before


def describe(a: Array) -> str:
    """array(..., dtype=...) as mlx.core prints it; evaluates the array."""
    host = host_view(a)
    if host.dtype.name == "bfloat16":
        host = host.astype(np.float32)
    digits = _options.precision
    body = np.array2string(
        host,
        separator=", ",
        prefix="array(",
        threshold=1000,
        formatter={"bool": str, "float_kind": lambda x: f"{x:.{digits}g}", "complex_kind": lambda x: f"{x:.{digits}g}"},
    )
    lines = re.sub("\n+", "\n", body)  # numpy leaves one empty between matrices
    return f"array({lines}, dtype={a.dtype.name})"
