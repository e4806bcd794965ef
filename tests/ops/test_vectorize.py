from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

TOKENS = np.array([[1, 1, 3, 3, 3, 7, 8, 6], [7, 8, 6, 7, 5, 6, 8, 7]])
POOL = {
    "ngram_counts": [0, 4],
    "ngram_indexes": [0, 1, 2, 3, 4, 5, 6],
    "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("shortest", "longest", "skips"), [(1, 1, 0), (2, 2, 0), (2, 2, 5), (1, 2, 3), (1, 2, 20)])
def test_counts(check: Callable[..., None], dtype: Any, mode: str, shortest: int, longest: int, skips: int) -> None:
    for tokens in (TOKENS, TOKENS[0]):
        check(
            "TfIdfVectorizer",
            tokens.astype(dtype),
            mode=mode,
            min_gram_length=shortest,
            max_gram_length=longest,
            max_skip_count=skips,
            weights=[0.5, 1.0, 2.0, 1.0, 3.0, 1.0, 0.25],
            **POOL,
        )


def test_columns_follow_the_indexes(check: Callable[..., None]) -> None:
    order = [6, 0, 5, 1, 4, 2, 3]
    check(
        "TfIdfVectorizer",
        TOKENS,
        mode="TF",
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=1,
        **(POOL | {"ngram_indexes": order}),
    )


def test_strings_are_declined(reasons: Callable[..., list[str]]) -> None:
    attributes = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    answer = reasons("TfIdfVectorizer", TOKENS, ngram_counts=[0], ngram_indexes=[0], pool_strings=["a"], **attributes)
    assert answer == ["TfIdfVectorizer: the n-grams are strings"]
