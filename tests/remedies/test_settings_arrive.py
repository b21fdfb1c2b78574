"""What is set on a remedy is what its training is given: radius, prices, temperatures, in the units of the inputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.methods.train.adv_bnn import robust_elbo
from assay.methods.train.adversary import Adversary
from assay.methods.train.distillation import Distillation
from assay.methods.train.fgsm_training import FgsmTraining as SingleSteps
from assay.methods.train.mmf import Mmf as Losses
from assay.nn.local_norm import LocalNorm, LocalNormed, Mode
from assay.nn.noisy import Noise
from assay.probe import configure
from assay.remedies import _retraining, adv_bnn
from assay.remedies._retraining import Hardening
from assay.remedies.adv_bnn import AdvBnn
from assay.remedies.bounded_relu import BoundedRelu
from assay.remedies.channel_capacity import ChannelCapacity
from assay.remedies.defensive_distillation import DefensiveDistillation
from assay.remedies.fgsm_training import FgsmTraining
from assay.remedies.gaussian_training import GaussianTraining
from assay.remedies.localnorm import Localnorm
from assay.remedies.mart import Mart
from assay.remedies.mmf import Mmf
from assay.remedies.pgd_training import PgdTraining
from assay.remedies.rse import Rse
from assay.remedies.trades import Trades
from assay.remedies.universal_adversarial_training import UniversalAdversarialTraining
from assay.run import Run
from assay.subject import Subject

LOW, SPAN = -50.0, 200.0


class Fit(NamedTuple):
    """One training that was asked for."""

    model: nn.Module
    loss: Any
    augment: Any
    how: dict[str, Any]


@pytest.fixture(scope="module")
def few() -> Subject:
    """Three classes of 40 inputs, from -50 to 150."""
    draw = torch.Generator().manual_seed(0)
    x = LOW + SPAN * torch.rand(80, 1, 4, 4, generator=draw)
    y = torch.arange(80) % 3
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    data = {"train": (x[:40], y[:40]), "test": (x[40:], y[40:])}
    return Subject.classifier(model.eval(), data, name="few", bounds=(LOW, LOW + SPAN))


def asked(remedy: Hardening, subject: Subject, run: Run, monkeypatch: pytest.MonkeyPatch) -> list[Fit]:
    """The trainings that it asks for, none of which is made."""
    seen: list[Fit] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            _retraining, "fit", lambda model, data, *, loss, augment, **how: seen.append(Fit(model, loss, augment, how))
        )
        remedy.apply(subject, run)
    return seen


def method_of(made: Fit) -> Any:
    """The method whose piece is put on each batch."""
    assert made.augment is not None
    return made.augment.__self__


def assert_searches(adversary: Adversary, made: Fit, **wanted: object) -> None:
    assert adversary.model is made.model
    assert {name: getattr(adversary, name) for name in wanted} == wanted
    assert float(adversary.range.low.max()) == LOW
    assert float(adversary.range.span.min()) == SPAN


@pytest.mark.parametrize("kind", [PgdTraining, Trades, Mart])
def test_an_attacker_searches_as_far_and_in_as_many_steps_as_is_set(
    kind: type[Hardening], few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    remedy = configure(kind, {"radius": "0.125", "steps": "3", "step": "0.0625"})
    (made,) = asked(remedy, few, run, monkeypatch)
    assert_searches(method_of(made).adversary, made, radius=0.125, steps=3, step=0.0625)
    (made,) = asked(kind(), few, run, monkeypatch)
    assert_searches(method_of(made).adversary, made, radius=8 / 255, steps=7 if kind is PgdTraining else 10, step=None)


def test_what_trades_and_mart_weigh_is_what_is_set(few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for remedy, name, wanted in (
        (Trades(), "beta", 6.0),
        (Trades(beta=1.5), "beta", 1.5),
        (Mart(), "lam", 5.0),
        (Mart(lam=2.5), "lam", 2.5),
    ):
        (made,) = asked(remedy, few, run, monkeypatch)
        assert getattr(method_of(made), name) == wanted
        assert made.loss.__self__ is method_of(made)  # the loss is that of the inputs it has searched


def test_single_steps_go_from_a_tenth_to_three_tenths_unless_told(
    few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for remedy, least, radius, clean in (
        (FgsmTraining(), 0.1, 0.3, 0.5),
        (FgsmTraining(radius=0.05), 0.05, 0.05, 0.5),
        (FgsmTraining(least=0.2, radius=0.25, clean=0.125), 0.2, 0.25, 0.125),
    ):
        (made,) = asked(remedy, few, run, monkeypatch)
        method = method_of(made)
        assert isinstance(method, SingleSteps)
        assert (method.least, method.clean) == (least, clean)
        assert_searches(method.adversary, made, radius=radius)
        assert remedy.settled(few).least == least
        assert_close(made.model.state_dict(), few.model.state_dict())  # on a network that was trained before


@pytest.mark.parametrize(
    ("remedy", "sigma"),
    [
        (GaussianTraining(), 0.25),
        (GaussianTraining(sigma=0.1), 0.1),
        (BoundedRelu(), 0.05),
        (BoundedRelu(sigma=0.2), 0.2),
    ],
    ids=("gaussian", "gaussian 0.1", "bounded", "bounded 0.2"),
)
def test_noise_on_inputs_is_a_share_of_their_range(
    remedy: Hardening, sigma: float, few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made,) = asked(remedy, few, run, monkeypatch)
    x, y = torch.zeros(2000, 1, 4, 4), torch.zeros(2000, dtype=torch.long)
    noisy, _ = made.augment(x, y, torch.Generator().manual_seed(0))
    assert float(noisy.std()) == pytest.approx(sigma * SPAN, rel=0.02)


@pytest.mark.parametrize("temperature", [40.0, 7.0])
def test_teacher_and_student_are_trained_at_the_same_temperature_and_the_student_by_the_teacher(
    temperature: float, few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    remedy = DefensiveDistillation() if temperature == 40 else DefensiveDistillation(temperature=temperature)
    teacher, student = asked(remedy, few, run, monkeypatch)
    assert teacher.augment is None  # on the labels
    assert isinstance(method_of(student), Distillation)
    assert (method_of(student).temperature, teacher.loss.__self__.temperature) == (temperature, temperature)
    assert student.loss.__self__ is method_of(student)
    assert method_of(student).teacher is teacher.model
    assert student.model is not teacher.model


def test_gaussian_weights_are_trained_on_the_bound_that_is_set(
    few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, given = robust_elbo, list[dict[str, Any]]()

    def watched(model: Any, n: int, **how: Any) -> Any:
        given.append({"n": n, **how})
        return real(model, n, **how)

    monkeypatch.setattr(adv_bnn, "robust_elbo", watched)
    settings: dict[str, Any] = {"radius": 0.125, "alpha": 0.5, "steps": 3, "eot": 4}
    for remedy, wanted in (
        (AdvBnn(**settings), {**settings, "as_published": False}),
        (AdvBnn(as_published=True), {"radius": 8 / 255, "alpha": 0.02, "steps": 10, "eot": 1, "as_published": True}),
    ):
        (made,) = asked(remedy, few, run, monkeypatch)
        assert {name: given[-1][name] for name in wanted} == wanted
        assert given[-1]["n"] == 40
        assert (float(given[-1]["low"].max()), float(given[-1]["span"].min())) == (LOW, SPAN)
        assert made.augment is not None
        x, y = few.data["train"].take(np.arange(40))
        moved, _ = made.augment(x, y, torch.Generator().manual_seed(0))
        assert 0.01 * SPAN < float((moved - x).abs().max()) <= wanted["radius"] * SPAN * (1 + 1e-5)
        kl = made.model.kl()  # type: ignore[operator]
        gap = made.loss(torch.zeros(40, 3), y) - np.log(3)
        assert_close(gap, wanted["alpha"] / 40 * kl, rtol=1e-4, atol=1e-6)


def test_the_noise_on_the_input_is_a_share_of_its_range_and_that_inside_is_not(few: Subject) -> None:
    two = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(8, 3)).eval()
    subject = Subject.classifier(two, few.data, name="two", bounds=(LOW, LOW + SPAN))
    for remedy, first, inner in ((Rse(), 0.2, 0.1), (Rse(first=0.05, inner=0.4), 0.05, 0.4)):
        stds = [m.std for m in remedy.frame(subject).model.modules() if isinstance(m, Noise) and not m.is_off]
        assert [float(std) for std in stds] == pytest.approx([first * SPAN, inner])


def test_prices_on_capacity_arrive_with_the_range_of_the_inputs(
    few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for remedy, wanted in (
        (ChannelCapacity(), (0.05, 0.0, False)),
        (ChannelCapacity(eic=0.25, mic=0.5, as_published=True), (0.25, 0.5, True)),
    ):
        (made,) = asked(remedy, few, run, monkeypatch)
        priced = method_of(made)
        assert (priced.eic, priced.mic, priced.as_published) == wanted
        assert made.loss.__self__ is priced
        assert priced.model is made.model
        assert (float(priced.low.max()), float(priced.span.min())) == (LOW, SPAN)


def test_each_tree_has_the_weight_that_is_set(few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = '{"a": ["0", "1"], "b": ["2"]}'
    (made,) = asked(Mmf(trees=(tree, "inputs"), weights=(0.125, 0.25)), few, run, monkeypatch)
    losses = made.loss.__self__
    assert isinstance(losses, Losses)
    assert losses.weights == (0.125, 0.25)
    assert losses.groups[0].tolist() == [0, 0, 1]
    (made,) = asked(Mmf(trees=(tree,)), few, run, monkeypatch)
    assert made.loss.__self__.weights == (0.1,)


def test_a_tree_that_is_found_has_as_many_groups_as_are_set(
    few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, _ = few.data["train"].take(np.arange(40))
    y = torch.arange(40) % 6
    wide = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 6)).eval()
    six = Subject.classifier(wide, {"train": (x, y), "test": (x, y)}, name="six", bounds=(LOW, LOW + SPAN))
    for groups, wanted in ((None, 2), (4, 4)):
        for source in ("inputs", "features"):
            (made,) = asked(Mmf(trees=(source,), groups=groups), six, run, monkeypatch)
            assert made.loss.__self__.sizes == (wanted,)


def test_heads_for_groups_read_the_stage_that_is_set(few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = '{"a": ["0", "1"], "b": ["2"]}'
    for stage, wide in (("0", 2), ("3", 8)):
        (made,) = asked(Mmf(trees=(tree,), stage=stage), few, run, monkeypatch)
        assert [head.in_features for head in made.model.heads] == [wide]  # type: ignore[operator,union-attr]


@pytest.mark.parametrize(("mode", "rotations"), [("single", 1), ("single-vote", 0), ("batch", None), ("voting", None)])
def test_groups_mode_and_rotations_are_those_of_the_layers(
    mode: Mode, rotations: int | None, few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    remedy = Localnorm(groups=5, mode=mode, rotations=rotations)
    (made,) = asked(remedy, few, run, monkeypatch)
    for model in (made.model, remedy.frame(few).model):
        assert isinstance(model, LocalNormed)
        assert (model.groups, model.mode, model.rotations) == (5, mode, rotations or 0)
        assert [m.groups for m in model.modules() if isinstance(m, LocalNorm)] == [5]
    (made,) = asked(Localnorm(), few, run, monkeypatch)
    assert isinstance(made.model, LocalNormed)
    assert (made.model.groups, made.model.mode, made.model.rotations) == (32, "single", 3)


def test_one_change_of_all_inputs_is_as_large_as_is_set(
    few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for remedy, radius, step in (
        (UniversalAdversarialTraining(), 0.1, 0.1),
        (UniversalAdversarialTraining(radius=0.25, step=0.125), 0.25, 0.125),
    ):
        (made,) = asked(remedy, few, run, monkeypatch)
        against = method_of(made)
        assert (against.radius, against.step) == (radius, step)
        assert (float(against.low.max()), float(against.span.min())) == (LOW, SPAN)


def test_the_optimisers_settings_arrive_with_the_rates_of_each_start(
    few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = {
        "epochs": "3",
        "lr": "0.02",
        "momentum": "0.5",
        "weight_decay": "0.001",
        "batch": "16",
        "optimiser": "adamw",
    }
    for kind in (PgdTraining, FgsmTraining, Trades, Mart, GaussianTraining, DefensiveDistillation, BoundedRelu, Rse):
        for made in asked(configure(kind, typed), few, run, monkeypatch):
            told = {name: made.how[name] for name in typed}
            assert told == {
                "epochs": 3, "lr": 0.02, "momentum": 0.5, "weight_decay": 0.001, "batch": 16, "optimiser": "adamw"
            }  # fmt: skip
