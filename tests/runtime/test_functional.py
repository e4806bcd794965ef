"""The table behind the functional API refuses to render once the headers change under it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def generator() -> Iterator[Any]:
    """bindgen.functional and the committed 0.7 model."""
    if not SCRIPTS.is_dir():
        pytest.skip("the scripts are part of the repository, not of the installed package")
    sys.path.insert(0, str(SCRIPTS))
    try:
        from bindgen import functional, model

        yield functional, model, model.load_models()
    finally:
        sys.path.remove(str(SCRIPTS))


def changed(models: Any, name: str, **changes: Any) -> Any:
    """The models with one function of mlx-c changed, or gone when nothing is given."""
    api = models.mlx_07
    functions = [dataclasses.replace(f, **changes) if f.name == name else f for f in api.functions]
    kept = tuple(f for f in functions if changes or f.name != name)
    return dataclasses.replace(models, mlx_07=dataclasses.replace(api, functions=kept))


def test_it_renders_what_is_committed(generator: Any) -> None:
    functional, _, models = generator
    for module in functional.MODULES:
        text = functional.render(models, module)
        compile(text, module, "exec")
    functional.check_coverage(models.mlx_07)


def test_changes_are_refused(generator: Any) -> None:
    functional, model, models = generator
    softmax = models.mlx_07.by_name["mlx_softmax"]
    one_more = (*softmax.params[:-1], model.Param("extra", "int"), softmax.params[-1])
    other_type = (*softmax.params[:2], model.Param("precise", "mlx_node_namer"), softmax.params[-1])
    for broken in (
        changed(models, "mlx_softmax"),
        changed(models, "mlx_softmax", params=one_more),
        changed(models, "mlx_softmax", params=other_type),
        changed(models, "mlx_softmax", params=softmax.params[:-1]),
        changed(models, "mlx_softmax", result="void"),
    ):
        with pytest.raises(model.BindgenError, match=r"softmax"):
            functional.render(broken, "ops")


def test_new_functions_must_be_covered(generator: Any) -> None:
    functional, model, models = generator
    exp = models.mlx_07.by_name["mlx_exp"]
    newer = dataclasses.replace(
        models.mlx_07, functions=(*models.mlx_07.functions, dataclasses.replace(exp, name="mlx_exp3"))
    )
    with pytest.raises(model.BindgenError, match="nothing covers mlx_exp3"):
        functional.check_coverage(newer)


@pytest.mark.parametrize("row", ["f(a: array) = mlx_exp(a)", "f(a: array)  # Text.", "f a  # Text.\n    mlx_exp(a)"])
def test_unreadable_rows_are_named(row: str, generator: Any) -> None:
    functional, model, _ = generator
    with pytest.raises(model.BindgenError, match="cannot read 'f"):
        list(functional.parse(row))
