from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from assay.claim import Claim
from assay.claims import liu2021_random as study
from assay.data import beyond, fashion
from assay.errors import AssayError
from assay.nn import vgg
from assay.nn.members import Drawn
from assay.nn.noisy import Noise
from assay.nn.variational import Variational
from assay.nn.vgg import Vgg16
from assay.run import Run

CACHED = (study._data, study._trained, study._seen, study._clean)


def claim(name: str) -> Claim:
    return next(c for c in study.SHELVED if c.name == name)


def test_without_data_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    for each in CACHED:
        each.cache_clear()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        claim("bnn-alone").test(run)


def test_published_numbers_stand_beside_those_of_the_printed_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the tables: what is measured first is named as what is printed."""
    seen = study._Seen(*(np.ones(4) for _ in range(5)))
    monkeypatch.setattr(study, "_all", lambda arms, attack, at, run: {(arm, s): [seen] * 3 for arm in arms for s in at})
    monkeypatch.setattr(study, "_many", lambda arm, run: [np.ones(4)] * 3)
    for name, study_of in (("rse-against-c", study.against_c), ("adv-bnn-mid-radius", study.mid_radius)):
        measures = study_of(None).measures  # type: ignore[arg-type]
        assert len(claim(name).published) == 10
        for printed, measure in zip(claim(name).published, measures, strict=False):
            assert measure.name.removesuffix(", printed") == printed.what
            assert measure.unit == printed.unit


@pytest.fixture(scope="module")
def tiny() -> Iterator[None]:
    """CIFAR-10 is a few images of the bundled sample in three equal colours, and every effort is small."""
    patch = pytest.MonkeyPatch()
    arms = tuple(study.EPOCHS)
    for name, value in {
        "SEEDS": 1, "EPOCHS": dict.fromkeys(arms, 1), "BATCH": 30, "WIDTH": 1, "INNER_STEPS": 1, "IMAGES": 12,
        "CLEAN": 30,
        "DRAWS": {arm: 2 if study.DRAWS[arm] > 1 else 1 for arm in arms}, "EOT": 2, "PGD_STEPS": 2, "STEPS": 2,
        "PRINTED_STEPS": 2, "ANSWERS": 2, "CS": (0.01, 0.2), "RADII": (0.015, 0.035, 0.055), "TRACED": 8, "PAIRS": 3,
        "TANH_EPOCHS": 1,
    }.items():  # fmt: skip
        patch.setattr(study, name, value)
    patch.setattr(vgg, "STAGES", (1, 1, 1))
    patch.setattr(vgg, "WIDER", (2, 2, 2))
    whole = fashion.load_fashion()
    small = {
        name: type(data)(np.repeat(data.x[:60, :, ::4, ::4], 3, axis=1), data.labels[:60], data.classes)
        for name, data in whole.items()
    }
    patch.setattr(beyond, "cifar10", lambda: small)
    few = {name: type(data)(data.x[:100], data.labels[:100], data.classes) for name, data in whole.items()}
    patch.setattr(fashion, "load_fashion", lambda: few)
    for each in CACHED:
        each.cache_clear()
    yield
    patch.undo()
    for each in CACHED:
        each.cache_clear()


@pytest.mark.parametrize("name", [c.name for c in study.SHELVED])
def test_the_study_runs_on_a_few_images_shows_both_attacks_and_knows_it_is_not_print(
    tiny: None, run: Run, name: str
) -> None:
    evidence = claim(name).test(run)
    if name == "second-order":
        assert "as a multiple of half of its variance" in evidence.says
        assert all(np.isfinite(m.value or np.nan) for m in evidence.measures)
        return
    assert evidence.verdict == "cannot tell"
    assert "The networks are not those in print" in evidence.says
    for protocol in study.PROTOCOLS:
        assert any(m.name.endswith(protocol) for m in evidence.measures)
    names = [m.name for m in evidence.measures]
    assert len(set(names)) == len(names)
    assert claim(name).test(run) == evidence


def test_each_arm_is_the_net_that_it_says(tiny: None) -> None:
    nets = {arm: study._trained(arm, 0, "cpu") for arm in study.EPOCHS}
    assert isinstance(nets["none"], Vgg16)
    assert isinstance(nets["adversarial training"], Vgg16)
    assert isinstance(nets["RSE"], Drawn)
    assert isinstance(nets["BNN"], Variational)
    assert isinstance(nets["Adv-BNN"], Variational)
    noise = [float(m.std) for m in nets["RSE"].modules() if isinstance(m, Noise)]
    assert noise == pytest.approx([0.2, 0.0, 0.1, 0.1])  # three convolutions here
    for net in nets.values():
        assert not any(type(m).__name__ == "_Half" for m in net.modules())
        assert not any(p.requires_grad for p in net.parameters())
        assert not net.training
    plain, attacked = nets["none"].state_dict(), nets["adversarial training"].state_dict()
    assert any(not torch.equal(plain[name], attacked[name]) for name in plain)


def made_up(monkeypatch: pytest.MonkeyPatch, **right: Any) -> None:
    """Networks of these accuracies by arm and protocol, on 400 images, with a wobble."""

    def of(arm: str, at: float) -> list[float]:
        return [v(at) if callable(v) else v for v in right[arm.replace("-", "_").split(" ")[0]]]

    def one(arm: str, at: float) -> study._Seen:
        wobble = 1e-3 * np.sin(np.arange(400.0) + len(arm))
        clean, printed, single, adaptive = of(arm, at)
        return study._Seen(
            clean + wobble, printed + wobble, single + wobble / 2, adaptive + wobble, single + wobble / 3
        )

    monkeypatch.setattr(
        study, "_all", lambda arms, attack, ats, run: {(arm, at): [one(arm, at)] * 3 for arm in arms for at in ats}
    )
    monkeypatch.setattr(study, "_many", lambda arm, run: [np.full(400, of(arm, 0.0)[0])] * 3)


@pytest.mark.parametrize(
    ("rse", "none", "verdict"),
    [
        ((0.9, 0.8, 0.7, 0.6), (0.93, 0.1, 0.3, 0.2), "holds"),
        ((0.9, 0.8, 0.7, 0.1), (0.93, 0.1, 0.3, 0.2), "fails"),  # the adaptive attack takes it
        ((0.7, 0.8, 0.7, 0.6), (0.93, 0.1, 0.3, 0.2), "cannot tell"),  # trained too little
        ((0.9, 0.8, 0.7, 0.6), (0.93, 0.6, 0.3, 0.2), "cannot tell"),  # the printed attack is too weak here
        ((0.9, 0.8, 0.7, 0.6), (0.8, 0.1, 0.3, 0.2), "cannot tell"),
    ],
)
def test_verdicts_against_c(monkeypatch: pytest.MonkeyPatch, rse: Any, none: Any, verdict: str) -> None:
    made_up(monkeypatch, RSE=rse, none=none)
    evidence = study.against_c(None)  # type: ignore[arg-type]
    assert evidence.verdict == verdict
    assert ("not those in print" in evidence.says) == (verdict == "cannot tell")


@pytest.mark.parametrize(
    ("single", "verdict"),
    [
        (lambda c: 0.6 if c < 1 else 0.2, "holds"),
        (lambda c: 0.6 if c < 1 else 0.05, "fails"),
        (lambda c: 0.8 if c < 1 else 0.2, "fails"),
    ],
)
def test_verdicts_of_the_ensemble(monkeypatch: pytest.MonkeyPatch, single: Any, verdict: str) -> None:
    mean = lambda c: 0.7 if c < 1 else 0.1  # noqa: E731
    made_up(monkeypatch, RSE=(0.9, mean, single, mean), none=(0.93, 0.3, 0.3, 0.2))
    assert study.ensemble_when_strong(None).verdict == verdict  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bnn", "verdict"),
    [
        ((0.79, 0.45, 0.4, 0.4), "holds"),
        ((0.79, 0.45, 0.4, 0.25), "fails"),
        ((0.5, 0.45, 0.4, 0.4), "cannot tell"),
    ],
)
def test_verdicts_at_the_mid_radius(monkeypatch: pytest.MonkeyPatch, bnn: Any, verdict: str) -> None:
    made_up(monkeypatch, Adv_BNN=bnn, adversarial=(0.8, 0.31, 0.31, 0.3))
    assert study.mid_radius(None).verdict == verdict  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bnn", "verdict"),
    [
        ((0.9, 0.4, 0.3, 0.01), "holds"),  # what the printed attack leaves, a better one takes
        ((0.9, 0.4, 0.3, 0.2), "fails"),
        ((0.9, 0.4, 0.3, 0.03), "cannot tell"),
        ((0.5, 0.4, 0.3, 0.01), "cannot tell"),
    ],
)
def test_verdicts_of_gaussian_weights_alone(monkeypatch: pytest.MonkeyPatch, bnn: Any, verdict: str) -> None:
    made_up(monkeypatch, BNN=bnn, none=(0.93, 0.0, 0.0, 0.0))
    assert study.bnn_alone(None).verdict == verdict  # type: ignore[arg-type]
