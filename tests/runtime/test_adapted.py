"""Calls adapted to mlx-c 0.6: the older forms, played by the newer functions, give the newer ones' results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mlxc_py as mx
from mlxc_py import adapted
from mlxc_py._sys import load
from mlxc_py._sys import mlx as c
from mlxc_py.arrays import call, take_list
from mlxc_py.state import current_handle, local

pytestmark = pytest.mark.skipif(
    load.library().generation.startswith("0.6"), reason="the older functions are played by the newer ones"
)
A = mx.array(np.random.default_rng(3).standard_normal((3, 3, 4)).astype(np.float32))
HEADS = mx.array(np.random.default_rng(4).standard_normal((1, 2, 5, 8)).astype(np.float32))


class Older:
    """mlx-c 0.6's functions as `call` offers them; what both generations have is passed on."""

    def __getattr__(self, name: str) -> Any:
        if name in c.OLDER_FORMS:
            raise AttributeError(f"{name} is not played here")
        assert name not in adapted._OLDER, f"{name} has another form in mlx-c 0.6"
        return getattr(call, name)

    def mlx_trace__06(self, *args: Any) -> Any:
        return call.mlx_trace_axes(*args)

    def mlx_median__06(self, *args: Any) -> Any:
        return call.mlx_median_axes(*args)

    def mlx_fast_scaled_dot_product_attention__06(self, *args: Any) -> Any:
        return call.mlx_fast_scaled_dot_product_attention(*args[:-1], False, args[-1])


for _name in ("cummax", "cummin", "cumprod", "cumsum", "logcumsumexp"):
    _dtype = (None,) if _name in ("cumprod", "cumsum") else ()
    setattr(
        Older,
        f"mlx_{_name}__06",
        lambda self, a, axis, reverse, inclusive, s, name=_name, dtype=_dtype: getattr(call, f"mlx_{name}_axis")(
            a, axis, reverse, inclusive, *dtype, s
        ),
    )
for _name in ("fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftn"):
    setattr(
        Older,
        f"mlx_fft_{_name}__060",
        lambda self, a, n, axes, s, name=_name: getattr(call, f"mlx_fft_{name}")(a, n, axes, 0, s),
    )

CASES: list[tuple[str, tuple[Any, ...]]] = [
    *((f"mlx_{n}", (A, True, False)) for n in ("cummax", "cummin", "logcumsumexp")),
    *((f"mlx_{n}_axis", (A, 1, False, True)) for n in ("cummax", "cummin", "logcumsumexp")),
    *((f"mlx_{n}", (A, False, True, dtype)) for n in ("cumsum", "cumprod") for dtype in (None, mx.float16.code)),
    *((f"mlx_{n}_axis", (A, -1, True, True, None)) for n in ("cumsum", "cumprod")),
    ("mlx_median", (A, True)),
    ("mlx_median_axes", (A, (0, 2), False)),
    ("mlx_trace_axes", (A, 0, 0, 1, mx.float32.code)),
    ("mlx_flip", (A,)),
    ("mlx_flip_axes", (A, (0, -1))),
    ("mlx_flip_axes", (A, 1)),
    ("mlx_ones_like_dtype", (A, mx.int8.code)),
    ("mlx_zeros_like_dtype", (A, mx.int8.code)),
    ("mlx_linspace_endpoint", (0.0, 1.0, 5, False, mx.float32.code)),
    ("mlx_linspace_endpoint", (0.0, 1.0, 5, True, mx.float32.code)),
    ("mlx_fast_scaled_dot_product_attention", (HEADS, HEADS, HEADS, 0.5, "causal", None, None, False)),
    *((f"mlx_fft_{n}", (A, 4, -1, 0)) for n in ("fft", "ifft", "rfft", "irfft")),
    *((f"mlx_fft_{n}", (A, 4, -1, norm)) for n in ("fft", "irfft") for norm in (1, 2)),
    *((f"mlx_fft_{n}", (A, (3, 4), (1, 2), 0)) for n in ("fft2", "ifft2", "rfft2", "irfft2")),
    *((f"mlx_fft_{n}", (A, (3, 4), (1, 2), norm)) for n in ("rfft2", "ifftn") for norm in (1, 2)),
    *((f"mlx_fft_{n}", (A, (3, 3, 4), (0, 1, 2), 0)) for n in ("fftn", "ifftn", "rfftn", "irfftn")),
]


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Older:
    """mlx-c 0.6 in the adapters' place of `call`."""
    played = Older()
    monkeypatch.setattr(adapted, "call", played)
    return played


@pytest.mark.parametrize(("name", "args"), CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)])
def test_older_forms_give_the_same(name: str, args: tuple[Any, ...], older: Older) -> None:
    expected = getattr(call, name)(*args, None)
    got = adapted._OLDER[name](*args, None)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(np.array(got), np.array(expected), rtol=2e-3 if got.dtype is mx.float16 else 1e-5)


@pytest.mark.parametrize(("shape", "axis"), [((3, 4), 1), ((3, 4), 0), ((0, 2), 0), ((2, 0), 0)])
def test_unstack(shape: tuple[int, ...], axis: int) -> None:
    a = mx.zeros(shape)
    here = local.here
    parts = take_list(here, adapted._OLDER["mlx_unstack_axis"](here.out, a.handle, axis, current_handle()))
    assert [p.shape for p in parts] == [p.shape for p in mx.unstack(a, axis=axis)]


def test_what_0_6_cannot_do_is_said(older: Older) -> None:
    with pytest.raises(mx.UnsupportedError, match=r"force_fused.*needs mlx-c 0\.7"):
        adapted._OLDER["mlx_fast_scaled_dot_product_attention"](A, A, A, 1.0, "", None, None, True, None)


def test_every_case_is_tested() -> None:
    assert {name for name, _ in CASES} | {"mlx_unstack_axis"} == set(adapted._OLDER)


def test_the_newer_form_is_called_itself_where_it_is_there() -> None:
    if load.library().generation.startswith("0.7"):
        assert adapted.adapted.mlx_cumsum_axis is call.mlx_cumsum_axis
    with pytest.raises(AttributeError):
        adapted.adapted.mlx_add  # noqa: B018
