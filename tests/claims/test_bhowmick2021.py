from __future__ import annotations

import pytest

from assay.claim import Claim
from assay.claims import bhowmick2021
from assay.run import Run


def claim(name: str) -> Claim:
    return next(c for c in bhowmick2021.SHELVED if c.name == name)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bhowmick2021, "HIDDEN", ((8, 6),))


def test_the_iris_rows_come_out_as_printed(run: Run) -> None:
    evidence = claim("iris-constants").test(run)
    assert evidence.verdict == "holds"
    assert [m.name for m in evidence.measures] == [p.what for p in claim("iris-constants").published]
    for measure, printed in zip(evidence.measures, claim("iris-constants").published, strict=True):
        assert measure.value == pytest.approx(printed.value, abs=2e-3)


def test_another_network_is_not_taken_for_theirs(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    (w1, b1), *rest = bhowmick2021.IRIS
    monkeypatch.setattr(bhowmick2021, "IRIS", (([[2 * v for v in row] for row in w1], b1), *rest))
    assert bhowmick2021.iris_constants(run).verdict == "fails"


def test_a_search_that_stops_elsewhere_is_no_failure(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    assert claim("iris-approximations").test(run).verdict in ("holds", "cannot tell")
    monkeypatch.setattr(bhowmick2021, "PRINTED", -1.0)
    assert bhowmick2021.iris_approximations(run).verdict == "cannot tell"


def test_measures_stand_in_the_order_of_the_table(tiny: None, run: Run) -> None:
    evidence = bhowmick2021.exact_below_first(run)
    assert evidence.verdict == "holds"
    first, exact, seconds = (evidence.measures[i : i + 3] for i in (0, 3, 6))
    assert all((e.value or 0) < (f.value or 0) for f, e in zip(first, exact, strict=True))
    assert all((s.value or 0) > 0 and s.unit == "s" for s in seconds)
    published = claim("exact-below-first").published
    assert len(published) == 27
    assert [p.what.split(" of print's")[0] for p in published][::9] == [
        m.name.split(",")[0] for m in evidence.measures
    ][::3]
    assert not {p.what for p in published} & {m.name for m in evidence.measures}  # other networks: no pair


def test_what_is_not_reached_in_time_is_not_claimed(tiny: None, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(bhowmick2021, "SECONDS", 0.0)
    evidence = bhowmick2021.exact_below_first(run)
    assert evidence.verdict == "cannot tell"
    assert "0 of 3 were reached" in evidence.says
