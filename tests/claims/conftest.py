"""What the tests of several studies share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from small_studies import made_small


@pytest.fixture(scope="module")
def tiny(request: pytest.FixtureRequest) -> Iterator[None]:
    """The `study` of a test file on a few images, as small_studies.py says."""
    with made_small(request.module.study):
        yield
