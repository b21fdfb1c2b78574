from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_studies import ruled

from assay.claims import _robust
from assay.claims import liu2021_random as study
from assay.methods.train.well_trained import Half
from assay.nn.members import Drawn
from assay.nn.noisy import Noise
from assay.nn.variational import Variational
from assay.nn.vgg import Vgg16
from assay.run import Run


@pytest.mark.parametrize("name", [c.name for c in study.SHELVED if c.name not in ("second-order", "transfer-affinity")])
def test_both_attacks_are_told(tiny: None, run: Run, name: str) -> None:
    names = [m.name for m in next(c for c in study.SHELVED if c.name == name).test(run).measures]
    for protocol in study.PROTOCOLS:
        assert any(n.endswith(protocol) for n in names)


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
    assert nets["adversarial training"] is _robust.robust(0, "cpu")  # the one that studies share
    start = study._started("Adv-BNN", 0, "cpu").get_submodule("net").state_dict()
    assert all(torch.equal(start[name], attacked[name]) for name in attacked)


def test_the_search_of_a_training_is_that_of_worst_inputs(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.methods.train import adv_bnn

    monkeypatch.setattr(study, "INNER_STEPS", 4)
    monkeypatch.setattr(adv_bnn, "PRINTED_STEP", study.INNER_STEP)
    net, data = study._trained("none", 0, "cpu"), study._data("cpu")["train"]
    x, y = data.x[:20], data.y[:20]
    theirs = adv_bnn.worst_inputs(net, radius=study.RADIUS, steps=4, as_published=True)
    ours = study._worst(net, net, x, y, study.RADIUS)
    torch.testing.assert_close(ours, theirs(x, y, torch.Generator())[0])
    assert (ours - x).abs().max() == pytest.approx(study.RADIUS, abs=1e-6)
    assert torch.equal(study._worst(net, net, x, y, 0.0), x)
    net.eval()


def test_gaussian_weights_as_one_vector_are_those_of_the_layers(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is negative_elbo's of the model that is made of them, for the same draws."""
    from assay.methods.train import recorded
    from assay.methods.train.variational import negative_elbo
    from assay.nn.variational import MeanField

    data, losses = study._data("cpu")["train"], []
    plain = recorded.fit_recorded

    def watched(model: Any, weights: Any, loss: Any, n: int, **rest: Any) -> None:
        def still(rows: torch.Tensor) -> torch.Tensor:
            cost = loss(rows)
            losses.append(cost.item())
            return cost

        plain(model, weights, still, n, **rest | {"lr": 1e-12, "batch": 60})

    monkeypatch.setattr(study, "fit_recorded", watched)
    monkeypatch.setattr(study, "SIGMA", 1e-9)  # so that every draw is the mean
    monkeypatch.setattr(study, "moved", lambda x, y, rng: (x, y))
    torch.manual_seed(0)
    half = Half(Vgg16(width=2))
    start = [p.detach().clone() for p in half.parameters()]
    model = study._gaussian(half, data, 0.0, 1, 1e-3, 0, "cpu")
    layers = [m for m in model.modules() if isinstance(m, MeanField)]
    means = [p for layer in layers for p in layer.layer.parameters()]
    torch.testing.assert_close(means, start)
    assert all(
        float((layer.sigma(name).detach() - 1e-9).abs().max()) < 1e-12 for layer in layers for name in layer.names
    )
    loss = negative_elbo(model.kl, len(data), beta=study.ALPHA)(model.train()(data.x), data.y)
    assert losses == pytest.approx([float(loss.detach())], rel=1e-4)


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
        study, "_all", lambda arms, attack, ats, run: {(arm, at): [one(arm, at)] * 5 for arm in arms for at in ats}
    )
    monkeypatch.setattr(study, "_many", lambda arm, run: [np.full(400, of(arm, 0.0)[0])] * 5)


@pytest.mark.parametrize(
    ("rse", "none", "verdict"),
    [
        ((0.9, 0.8, 0.7, 0.6), (0.93, 0.1, 0.3, 0.2), "holds"),
        ((0.9, 0.8, 0.7, 0.1), (0.93, 0.1, 0.3, 0.2), "fails"),  # the adaptive attack takes it
        ((0.6, 0.8, 0.7, 0.6), (0.93, 0.1, 0.3, 0.2), "cannot tell"),  # trained too little
        ((0.9, 0.8, 0.7, 0.6), (0.93, 0.6, 0.3, 0.2), "cannot tell"),  # the printed attack is too weak here
        ((0.9, 0.8, 0.7, 0.6), (0.8, 0.1, 0.3, 0.2), "cannot tell"),
    ],
)
def test_verdicts_against_c(monkeypatch: pytest.MonkeyPatch, rse: Any, none: Any, verdict: str) -> None:
    made_up(monkeypatch, RSE=rse, none=none)
    evidence = ruled(study, "rse-against-c", study.against_c(None))  # type: ignore[arg-type]
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
        ((0.45, 0.45, 0.4, 0.4), "cannot tell"),
    ],
)
def test_verdicts_at_the_mid_radius(monkeypatch: pytest.MonkeyPatch, bnn: Any, verdict: str) -> None:
    made_up(monkeypatch, Adv_BNN=bnn, adversarial=(0.8, 0.31, 0.31, 0.3))
    assert ruled(study, "adv-bnn-mid-radius", study.mid_radius(None)).verdict == verdict  # type: ignore[arg-type]


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
    assert ruled(study, "bnn-alone", study.bnn_alone(None)).verdict == verdict  # type: ignore[arg-type]
