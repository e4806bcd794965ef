"""TF32 on a GPU: chosen before the first product, told from a product."""

from __future__ import annotations

from typing import Any

import pytest

import mlxc_py as mx
from mlxc_py import tf32


def test_a_product_on_the_cpu_keeps_its_bits() -> None:
    assert not tf32._product_loses_bits(mx.cpu)


def test_these_tests_run_without_it() -> None:
    assert not tf32.enabled()


@pytest.mark.skipif(not mx.is_available(mx.gpu), reason="without a GPU nothing rounds to TF32")
def test_the_environment_and_the_first_choice_decide(run_python: Any) -> None:
    program = "from mlxc_py import tf32; print({})"
    late = program.format("tf32.enabled(), tf32.choose(False)")
    assert run_python(late, MLX_ENABLE_TF32=None).stdout == "True True\n"
    assert run_python(program.format("tf32.choose(False), tf32.choose(True)")).stdout == "False False\n"
    assert run_python(program.format("tf32.enabled()"), MLX_ENABLE_TF32="0").stdout == "False\n"


def test_what_was_measured_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf32, "_measured", None)
    monkeypatch.setattr(mx, "is_available", lambda device: True)
    monkeypatch.setattr(tf32, "_product_loses_bits", lambda device: tf32.os.environ[tf32.VARIABLE] == "1")
    monkeypatch.setenv(tf32.VARIABLE, "")
    assert [tf32.choose(True), tf32.choose(False), tf32.enabled()] == [True, True, True]
    assert tf32.os.environ[tf32.VARIABLE] == "1"
