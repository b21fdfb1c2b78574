import pytest

from assay.claims import yoshida2021_semi_hard as study


@pytest.fixture
def small(monkeypatch):
    for name, value in {"SEEDS": 2, "PERSONS": 1, "SHARES": (1.0,), "LAMS": (100.0,)}.items():
        monkeypatch.setattr(study, name, value)
    study._rates.cache_clear()
    yield
    study._rates.cache_clear()


def test_no_training_impostor_is_let_in_and_the_twin_rejects_more(small, run):
    found = study._zero_in_training(run)
    assert all(m.value == 0 for m in found.measures if "training" in m.name)
    assert len(found.measures) == 6
    twin = study._twin_rejects(run)
    assert twin.measures[0].value >= 0.4
    assert twin.verdict == "cannot tell"
    (claim,) = [each for each in study.SHELVED if each.name == "lower-far"]
    names = [m.name.removeprefix("FAR of ") for m in study._lower_far(run).measures]
    assert names[:4] == ["svm", "sh-svm", "sh-svdd", "cm"]  # in the order of print's
    assert [p.what.rpartition(" ")[2] for p in claim.published] == ["SVM", "SH-SVM", "SH-SVDD", "CM"]
    assert len(study._sphere_is_near(run).measures) == 4
