from __future__ import annotations

import numpy as np
import pytest

from assay.claim import judged
from assay.claims import _networks, fuhl2021
from assay.data import beyond, fashion
from assay.nn import vgg


def test_the_identity_is_found_under_sgd_and_not_under_adam(run, monkeypatch):
    monkeypatch.setattr(fuhl2021, "STEPS", 40)
    evidence = fuhl2021.same_weights(run)
    sgd, adam = (m.value for m in evidence.measures)
    assert sgd < 1e-12
    assert adam > 1e-3
    assert evidence.verdict == "fails"


@pytest.fixture
def tiny(monkeypatch):
    whole = fashion.load_fashion()
    small = {
        name: type(data)(np.repeat(data.x[:60, :, ::3, ::3], 3, axis=1), data.labels[:60], data.classes)
        for name, data in whole.items()
    }
    for name, value in {"SEEDS": 2, "EPOCHS": 1, "WIDTH": 1, "BATCH": 30}.items():
        monkeypatch.setattr(fuhl2021, name, value)
    monkeypatch.setattr(beyond, "cifar10", lambda: small)
    monkeypatch.setattr(vgg, "STAGES", (1, 1))
    monkeypatch.setattr(vgg, "WIDER", (2, 2))
    for kept in (fuhl2021._right, _networks.images):
        kept.cache_clear()
    yield
    for kept in (fuhl2021._right, _networks.images):
        kept.cache_clear()


def test_the_accuracy_study_pairs_its_seeds_under_both_optimisers(tiny, run):
    evidence = fuhl2021.accuracy_gain(run)
    told = {m.name: m.value for m in evidence.measures}
    assert told["gain"] == pytest.approx(told["accuracy, WC+GC"] - told["accuracy, plain"])
    assert told["gain under Adam"] == pytest.approx(told["accuracy, WC+GC, Adam"] - told["accuracy, plain, Adam"])
    assert evidence.seeds == 2


@pytest.mark.parametrize(("plain", "centred", "verdict"), [
    (0.845, 0.86, "holds"), (0.845, 0.83, "fails"), (0.845, 0.845, "cannot tell"), (0.75, 0.8, "cannot tell"),
    (0.93, 0.95, "cannot tell"),
])  # fmt: skip
def test_verdicts_of_the_gain(plain, centred, verdict, run, monkeypatch):
    def right(optimiser, arm, seed, device):
        rows = np.random.default_rng(seed).permutation(4000)
        return (rows < 4000 * (centred if arm else plain)).astype(float)

    monkeypatch.setattr(fuhl2021, "_right", right)
    claim = next(c for c in fuhl2021.SHELVED if c.name == "accuracy")
    assert judged(claim, fuhl2021.accuracy_gain(run)).verdict == verdict
