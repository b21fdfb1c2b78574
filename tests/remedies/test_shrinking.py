"""What all remedies that shrink share, with one that drops at random."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay import shelf
from assay.errors import AssayError
from assay.jobs.cure import cure
from assay.methods.compress import bill, price
from assay.methods.compress.price import affordable, flops, parameters
from assay.methods.compress.surgery import cut, edges
from assay.remedies import _retraining, _shrinking
from assay.remedies._retraining import PlainRetraining
from assay.remedies._shrinking import EXAMPLES, Shrinking, example
from assay.remedy import Remedy
from assay.run import Run
from assay.subject import Subject
from assay.tasks import Regression


@dataclass(frozen=True)
class AtRandom(Shrinking):
    """Drops channels at random, then trains what is left."""

    may_empty: bool = False
    source: ClassVar[str] = "a test"
    made: ClassVar[list[Shrinking]] = []

    def apply(self, subject: Subject, run: Run) -> Subject:
        self.made.append(self)
        rng = run.rng()
        model = self.begun(subject.model, rng)
        found, x = self.prunable(subject, model), example(subject)
        scores = {edge.name: torch.rand(edge.size, generator=rng) for edge in found}
        kept = affordable(model, found, scores, self.priced, x, may_empty=self.may_empty)
        small = self.finetuned(cut(model, found, kept), subject, run, rng)
        return subject.cured(small, self.name())


NAMES = [name for name in shelf.names("remedies") if issubclass(shelf.load("remedies", name), Shrinking)]


class Residual(nn.Module):
    """Of a size at which an inner edge is soon emptied."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.inner = nn.Sequential(nn.Conv2d(6, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
                                   nn.Conv2d(4, 6, 1, bias=False), nn.BatchNorm2d(6))  # fmt: skip
        self.head = nn.Linear(6 * 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        out: torch.Tensor = self.head(torch.relu(x + self.inner(x)).flatten(1))
        return out


@pytest.fixture(scope="module")
def few() -> Subject:
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(80, 1, 4, 4, generator=draw)
    y = (3 * x[:, 0, 0, 0]).long()
    torch.manual_seed(0)
    return Subject.classifier(Residual().eval(), {"train": (x[:40], y[:40]), "test": (x[40:], y[40:])}, name="few")


def test_it_is_as_small_as_the_price_says_and_answers(few: Subject, run: Run) -> None:
    before = {name: t.clone() for name, t in few.model.state_dict().items()}
    remedy = AtRandom(epochs=1, price="parameters=0.4")
    small = remedy.apply(few, run)
    assert parameters(small.model) <= 0.4 * parameters(few.model)
    assert small.predict(example(few)).shape == (2, 3)
    assert_close(dict(few.model.state_dict()), before)  # the original stays


def fits(remedy: Remedy, subject: Subject, run: Run, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `fit` is asked for, and what of the network takes a gradient then, without the training."""
    calls: list[dict[str, Any]] = []

    def watched(model: nn.Module, data: Any, **settings: Any) -> None:
        asked = {name: settings[name] for name in ("epochs", "lr", "batch", "weight_decay", "optimiser", "momentum")}
        trained = {name.removeprefix("net.") for name, p in model.named_parameters() if p.requires_grad}  # wrapped
        calls.append({**asked, "inputs": len(data), "trained": trained})

    with monkeypatch.context() as patch:
        patch.setattr(_retraining, "fit", watched)
        remedy.apply(subject, run)
    return calls


@pytest.mark.parametrize("name", [name for name in NAMES if name != "blended-pruning"])  # tries many a little first
def test_the_control_of_each_trains_as_long_by_the_same_schedule(
    name: str, few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"epochs": 20, "lr": 0.03, "optimiser": "adam", "momentum": 0.5, "batch": 16}
    for settings in ({}, given):
        remedy = shelf.load("remedies", name)(**settings).settled(few)
        control = remedy.control()
        assert isinstance(control, PlainRetraining)
        ours, (plain,) = fits(remedy, few, run, monkeypatch), fits(control, few, run, monkeypatch)
        assert sum(call.pop("epochs") for call in ours) == plain.pop("epochs")
        for call in (*ours, plain):
            call.pop("trained")
        assert all(call == plain for call in ours)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_frozen_is_not_trained_unless_all_of_it_is(
    name: str, few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_tries = {"population": 2, "iterations": 1, "top": 1} if name == "blended-pruning" else {}
    remedy = shelf.load("remedies", name)(epochs=4, **few_tries)
    half, stone = copy.deepcopy(few.model), copy.deepcopy(few.model).requires_grad_(False)
    half.get_submodule("stem").requires_grad_(False)
    for model, wanted in ((half, False), (stone, True)):
        for call in fits(remedy, replace(few, model=model), run, monkeypatch):
            assert ("stem.weight" in call["trained"]) is wanted
            assert "head.weight" in call["trained"]


@pytest.mark.parametrize("name", NAMES)
def test_a_latency_is_met_on_the_batch_whose_time_is_told(
    name: str, few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs: list[int] = []

    def seconds(model: nn.Module, x: torch.Tensor, device: object = "cpu") -> float:
        inputs.append(len(x))
        return float(parameters(model))

    for module in (price, bill, _shrinking):
        monkeypatch.setattr(module, "latency", seconds)
    monkeypatch.setattr(_retraining, "fit", lambda *a, **k: None)
    few_tries = {"population": 2, "iterations": 0, "top": 1} if name == "blended-pruning" else {}
    remedy = shelf.load("remedies", name)(epochs=4, price="latency=0.7", **few_tries)
    small = remedy.apply(few, run)
    assert inputs
    assert f"a batch of {EXAMPLES} takes" in remedy.beside(few, small, run)[0]
    assert set(inputs) == {EXAMPLES}


def test_its_control_trains_on_as_long_and_cuts_nothing(few: Subject, run: Run) -> None:
    control = AtRandom(epochs=2, lr=0.01, batch=16).control()
    assert control == PlainRetraining(2, 0.01, 5e-4, "sgd", "weights", may_be_swift=True, batch=16)
    assert AtRandom().learning_rate == pytest.approx(0.01)  # a tenth of the usual one, from trained weights
    assert parameters(control.apply(few, run).model) == parameters(few.model)


@pytest.mark.usefixtures("undrawn")
def test_kept_weights_come_back_into_a_network_of_their_size(few: Subject, tmp_path: Path) -> None:
    remedy = AtRandom(epochs=1, lr=1e-3, price="flops=0.05", may_empty=True)  # a block is emptied
    done = cure(remedy, few, probes=["accuracy"], out=tmp_path, control=False)
    assert any("multiply-adds for one input" in note for note in done.notes)
    assert any("stem 6 to" in note for note in done.notes)
    made = len(AtRandom.made)
    again = cure(remedy, few, probes=["accuracy"], out=tmp_path, control=False)
    assert len(AtRandom.made) == made
    assert again.after.subject.fingerprint == done.after.subject.fingerprint


def test_a_regression_is_shrunk_too(run: Run) -> None:
    x = torch.rand(40, 5, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).eval()
    y = x.sum(1).numpy()
    subject = Subject.of(model, {"train": (x, y), "test": (x, y)}, Regression(("sum",), (0.1,)), name="sum")
    small = AtRandom(epochs=1, price="flops=0.5").apply(subject, run)
    assert parameters(small.model) == 4 * 6 + 5
    control = AtRandom(epochs=1).control()
    assert control is not None
    control.apply(subject, run)


@pytest.mark.parametrize(
    ("price", "says"),
    [("watts=0.5", "is of no known kind"), ("flops=2", "is no share"), ("flops", "is no share"), ("flops=x", "share")],
)
def test_a_price_that_is_none_is_one_line(price: str, says: str) -> None:
    with pytest.raises(AssayError, match=says):
        AtRandom(price=price)


def test_a_price_that_cannot_be_met_says_the_least(few: Subject, run: Run) -> None:
    with pytest.raises(AssayError, match=r"flops=0.001 cannot be met.*still costs 0\.0\d+.*ask for 0\.\d+ or more"):
        AtRandom(price="flops=0.001").apply(few, run)


class Unlike(nn.Module):
    """A sum with what is put side by side: its last channels cost far more than its first."""

    def __init__(self) -> None:
        super().__init__()
        self.cheap, self.dear, self.all = nn.Conv2d(1, 3, 1), nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(1, 6, 1)
        self.head = nn.Linear(6 * 16, 3)
        with torch.no_grad():
            self.cheap.weight.fill_(9.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = torch.cat([self.cheap(x), self.dear(x)], 1)
        out: torch.Tensor = self.head(torch.relu(side + self.all(x)).flatten(1))
        return out


def test_a_price_that_the_best_channel_meets_is_not_refused_before(few: Subject, run: Run) -> None:
    subject = replace(few, model=Unlike().eval())
    (edge,) = edges(subject.model, example(subject))
    first, last = (
        flops(cut(subject.model, [edge], {edge.name: torch.arange(6) == i}), example(subject)) for i in (0, 5)
    )
    whole = flops(subject.model, example(subject))
    remedy = shelf.load("remedies", "prune")(price=f"flops={(first + last) / 2 / whole}", epochs=1)
    assert remedy.why_not(subject) is None
    assert flops(remedy.apply(subject, run).model, example(subject)) == first < last


def test_remarks_stand_on_the_two_networks_alone(few: Subject, run: Run) -> None:
    small = AtRandom(epochs=1, price="flops=0.05", may_empty=True).apply(few, run)
    told = " ".join(AtRandom(price="flops=0.05").beside(few, small, run))
    assert f"{flops(small.model, example(few)):,} of {flops(few.model, example(few)):,}" in told
    assert "inner.0 4 to 0" in told
    same = AtRandom().beside(few, replace(few), run)
    assert same[1] == "It lost no channel."
    assert np.isfinite(AtRandom().cost().inference)  # type: ignore[union-attr]


class Normed(nn.Module):
    """A residual stream, an inner edge and a normalisation behind each convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6))
        self.inner = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                                   nn.Conv2d(8, 6, 1, bias=False), nn.BatchNorm2d(6), nn.Dropout(0.1))  # fmt: skip
        self.head = nn.Linear(6 * 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        out: torch.Tensor = self.head(torch.relu(x + self.inner(x)).flatten(1))
        return out


QUICK: dict[str, dict[str, Any]] = {
    "blended-pruning": {"population": 3, "iterations": 1, "top": 2, "epochs": 1},
    "bfrifp": {"choice": "random", "lambda_e": 4.0},
    "prune": {"criterion": "taylor-l1", "epochs": 1},
}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_small_model_to_the_bit_and_another_seed_another(
    name: str, few: Subject, run: Run
) -> None:
    """Whatever else has drawn in between, and in each way to shrink that stands on the shelf."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        subject = replace(few, model=Normed().eval())
    before = subject.fingerprint()
    remedy = shelf.load("remedies", name)(**{"epochs": 3, "batch": 10, **QUICK.get(name, {})})
    small = []
    for seed in (run.seed, run.seed, run.seed + 1):
        torch.rand(7), np.random.rand(7)  # noqa: NPY002
        small.append(remedy.apply(subject, replace(run, seed=seed)))
    one, same = (each.model.state_dict() for each in small[:2])
    assert one.keys() == same.keys()
    for tensor, again in zip(one.values(), same.values(), strict=True):
        assert torch.equal(tensor, again)
    assert small[0].fingerprint() == small[1].fingerprint() != small[2].fingerprint()
    assert parameters(small[0].model) < parameters(subject.model)
    assert subject.fingerprint() == before
