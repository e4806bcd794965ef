"""Tables of calls that must give what mlx.core gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from capi_harness import DTYPES, CApi, Failed


class Case(NamedTuple):
    """`mlx_<name>` against `reference`, by default mlx.core's function of that name.

    Both get `args` in order, then `keywords`: the C function by position, the reference by name.
    """

    name: str
    args: tuple[Any, ...]
    reference: Callable[..., Any] | None = None
    keywords: dict[str, Any] = {}  # noqa: RUF012  never written to


def case(name: str, *args: Any, ref: Callable[..., Any] | None = None, **keywords: Any) -> Any:
    """A pytest parameter named after its function."""
    return pytest.param(Case(name, args, ref, keywords), id=name)


def reference_of(name: str) -> Callable[..., Any]:
    """mlx.core's function for a C name: words are cut from the right until one exists."""
    words = name.split("_")
    module: Any = mx
    if words[0] in ("linalg", "fft", "fast", "random"):
        module, words = getattr(mx, words[0]), words[1:]
    for n in range(len(words), 0, -1):
        if found := getattr(module, "_".join(words[:n]), None):
            return found
    raise LookupError(f"mlx.core has nothing like {name}: give the case a ref")


def to_mlx(value: Any) -> Any:
    """Arrays and lists of arrays for mlx.core; everything else as it is."""
    if isinstance(value, np.ndarray):
        return mx.array(value)
    if isinstance(value, list):
        return [to_mlx(v) for v in value]
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return mlx_dtype(value)
    return value


def mlx_dtype(value: Any) -> mx.Dtype:
    """mlx.core's dtype for numpy's."""
    name = np.dtype(value).name
    return getattr(mx, {"bool": "bool_"}.get(name, name))


def to_numpy(value: Any) -> Any:
    """Evaluated ndarrays for arrays of mlx.core, in lists for tuples and lists of them."""
    if isinstance(value, (list, tuple)):
        return [to_numpy(v) for v in value]
    if isinstance(value, mx.array):
        if value.dtype == mx.bfloat16:
            return np.array(value.astype(mx.float32)).astype(DTYPES[12])
        return np.array(value)
    return np.asarray(value)


def assert_same(got: Any, wanted: Any) -> None:
    """Equal shapes and dtypes, values up to rounding."""
    if isinstance(wanted, list):
        assert len(got) == len(wanted)
        for g, w in zip(got, wanted, strict=True):
            assert_same(g, w)
        return
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64 if wanted.dtype.kind == "V" else None
    exact = wanted.dtype.kind in "biu"
    tolerance = 0 if exact else 1e-2 if wanted.dtype.itemsize == 2 else 1e-5
    np.testing.assert_allclose(
        got if wide is None else got.astype(wide),
        wanted if wide is None else wanted.astype(wide),
        rtol=tolerance,
        atol=tolerance,
        equal_nan=True,
    )


def compare(capi: CApi, c: Case) -> None:
    """Both raise, or both give the same."""
    reference = c.reference or reference_of(c.name)
    try:
        keywords = {k: to_mlx(v) for k, v in c.keywords.items()}
        wanted = to_numpy(reference(*map(to_mlx, c.args), **keywords))
    except (IndexError, ValueError, RuntimeError) as e:
        with pytest.raises(Failed):
            capi.op(c.name, *c.args, *c.keywords.values())
        assert str(e)
        return
    got = capi.op(c.name, *c.args, *c.keywords.values())
    assert_same(list(got) if isinstance(got, tuple) else got, wanted)
