"""Fixtures of the corpus tests; fetch, feeds and fill_light beside this file are importable by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fetch


@pytest.fixture(scope="session")
def corpus_model() -> Callable[[str], tuple[fetch.Model, Path]]:
    """Entry and file of a corpus model by key; skips the test where its package can't be had."""

    def get(key: str) -> tuple[fetch.Model, Path]:
        model = fetch.corpus()[key]
        try:
            return model, fetch.fetch(model)
        except fetch.Unavailable as reason:
            pytest.skip(str(reason))

    return get
