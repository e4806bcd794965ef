"""Every function of the API model is exported, and was called by the tests of this folder."""

from __future__ import annotations

import platform

import pytest
from capi_harness import CApi

from mlxc_py._sys import load, mlx

# Declared for AArch64 only; ours exports them everywhere, an official library does not.
AARCH64 = {f"mlx_array_{what}_{kind}" for what in ("data", "item") for kind in ("float16", "bfloat16")}
VARIADIC = {"_mlx_error"}  # a C function with `...` has no ctypes form


def test_every_function_is_exported(capi: CApi) -> None:
    missing = {name for name in mlx.FUNCTIONS if not load.library().has(name)}
    ours = load.library().has("mlxc_py_build_mlx_version")
    optional = set() if ours or platform.machine() in ("arm64", "aarch64") else AARCH64
    assert missing - optional == set()


def test_every_function_was_called(capi: CApi, all_selected: bool) -> None:
    if not all_selected:
        pytest.skip("only part of the C API's tests was selected")
    assert set(mlx.FUNCTIONS) - capi.c.called == VARIADIC
