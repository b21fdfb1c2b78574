"""Whatever a test of a probe finds: its measures follow from its table, or `assay verify` calls the run broken."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from assay.finding import Finding
from assay.jobs.verify import CLOSE


@pytest.fixture(scope="module", autouse=True)
def _measures_follow_from_their_tables() -> Iterator[None]:
    made = Finding.__post_init__

    def also(finding: Finding) -> None:
        made(finding)
        for m in finding.measures if finding.samples is not None else ():
            if m.column is None or m.value is None:
                continue
            assert finding.samples is not None
            column = np.asarray(finding.samples.columns[m.column], dtype=np.float64)
            there = column[~np.isnan(column)]
            assert m.n in (None, len(there)), f"{m.name!r} is of {m.n} inputs, its column {m.column!r} of {len(there)}"
            assert there.mean() == pytest.approx(m.value, rel=CLOSE, abs=CLOSE), f"{m.name!r} is not its column's mean"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Finding, "__post_init__", also)
        yield
