"""One CApi for all tests of the C API; the test that counts the functions they called runs last."""

from __future__ import annotations

import sys
from pathlib import Path

import mlx.core as mx
import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # for capi_harness and capi_compare, which the test modules import by name

from capi_harness import CApi  # noqa: E402

from mlxc_py._sys import load  # noqa: E402

_capi: CApi | None = None


@pytest.fixture(scope="session")
def capi() -> CApi:
    global _capi
    if _capi is None:
        mx.set_default_device(mx.cpu)
        _capi = CApi()
    return _capi


@pytest.fixture
def ours(capi: CApi) -> None:
    """Skips the test on an official libmlxc, where what it tries would end the process."""
    if not load.library().has("mlxc_py_build_mlx_version"):
        pytest.skip("an official libmlxc does not check this")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    last = [i for i in items if i.path.name == "test_capi_coverage.py"]
    items[:] = [i for i in items if i not in last] + last


@pytest.fixture
def all_selected(request: pytest.FixtureRequest) -> bool:
    """Whether this run holds every test of the C API, so that what they called can be counted."""
    config = request.config
    modules = {i.path.name for i in request.session.items if i.path.parent == HERE}
    narrowed = config.option.keyword or any("::" in a for a in config.args)
    return not narrowed and modules == {p.name for p in HERE.glob("test_capi_*.py")}
