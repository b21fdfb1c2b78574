from __future__ import annotations

from assay.claims import fuhl2021


def test_the_identity_is_found_under_sgd_and_not_under_adam(run, monkeypatch):
    monkeypatch.setattr(fuhl2021, "STEPS", 40)
    evidence = fuhl2021.same_weights(run)
    sgd, adam = (m.value for m in evidence.measures)
    assert sgd < 1e-12
    assert adam > 1e-3
    assert evidence.verdict == "fails"


def test_the_accuracy_study_pairs_its_seeds(run, monkeypatch):
    monkeypatch.setattr(fuhl2021, "SEEDS", 2)
    monkeypatch.setattr(fuhl2021, "EPOCHS", 1)
    from assay.data import fashion

    whole = fashion.load_fashion()
    small = {name: type(data)(data.x[:60], data.labels[:60], data.classes) for name, data in whole.items()}
    monkeypatch.setattr(fashion, "load_fashion", lambda: small)
    evidence = fuhl2021.accuracy_gain(run)
    plain, both, gain = evidence.measures
    assert gain.value == __import__("pytest").approx(both.value - plain.value)
    assert gain.low <= gain.value <= gain.high
    assert evidence.verdict in ("holds", "fails", "cannot tell")
