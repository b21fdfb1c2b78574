"""The study with programs, made small; the two claims that train nothing, as they are."""

from __future__ import annotations

import pytest

from assay.claims import anand2020 as study


@pytest.fixture(scope="module")
def _small():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "PEOPLE": 3, "TRIES": 4, "RANDOM": 8, "SEEDS": 2, "EPOCHS": 3, "RESAMPLES": 50, "CASES": 200,
        }.items():  # fmt: skip
            patch.setattr(study, name, value)
        forget()
        yield
    forget()


def forget():
    for kept in (study._bench, study._drawn, study._tuned):
        kept.cache_clear()


CLAIMS = {claim.name: claim for claim in study.SHELVED}


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("name", CLAIMS)
def test_every_study_measures_and_says_what_it_rests_on(name, run):
    claim = CLAIMS[name]
    found = claim.test(run)
    assert found.says.endswith(".")
    assert all(m.value is not None for m in found.measures)
    named = {m.name for m in found.measures}
    assert all((p.measured or p.what) in named for p in claim.published)
    if not claim.ours and name != "groups-differ":
        assert found.verdict == "cannot tell"  # programs are no people
        assert "not print's" in found.says


@pytest.mark.usefixtures("_small")
def test_levene_does_not_see_level(run):
    found = {m.name: m.value for m in study.levene_is_not_of_level(run).measures}
    assert found["Levene speaks where groups differ in level alone"] < 0.1
    assert found["Mann-Whitney speaks where groups differ in level alone"] > 0.8
    assert found["Levene speaks where groups differ in spread alone"] > 0.8
    assert found["Mann-Whitney speaks where groups differ in nothing"] < 0.1


def test_the_printed_statistics_hold_by_holm_and_not_by_bonferroni(run):
    found = study.groups_differ_in_spread(run)
    assert found.verdict == "holds"
    p = {m.name: m.value for m in found.measures}
    assert p["p of Levene, medium and expert"] == pytest.approx(0.029, abs=6e-4)
    assert p["p of Levene, medium and expert, Bonferroni"] > 0.05 > p["p of Levene, medium and expert, Holm"]


def test_an_expert_that_is_no_better_than_chance_does_not_hold():
    from assay.finding import Measure

    def of(low, high):
        return Measure(name="gap", value=(low + high) / 2, low=low, high=high, better="higher")

    assert study._held(of(0.01, 0.2), of(0.02, 0.1)) == "holds"
    assert study._held(of(-0.01, 0.2), of(0.02, 0.1)) == "cannot tell"
    assert study._held(of(-0.2, -0.1), of(0.02, 0.1)) == "fails"
