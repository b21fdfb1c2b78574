"""What the tests of several studies share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from small_studies import made_small

from assay.claims import _queries, wang2019_places


@pytest.fixture(scope="module")
def tiny(request: pytest.FixtureRequest) -> Iterator[None]:
    """The `study` of a test file on a few images, as small_studies.py says."""
    with made_small(request.module.study):
        yield


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals over queries by a tenth of the draws: verdicts of made-up shares are clear of them."""
    monkeypatch.setattr(_queries, "DRAWS", 200)
    monkeypatch.setattr(wang2019_places, "DRAWS", 100)
