"""Filters that fade and scales that are priced, as remedies: how small they make, what they keep, what they refuse."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay import shelf
from assay.errors import AssayError
from assay.methods.compress import slimming as method
from assay.methods.compress.fading import Fading
from assay.methods.compress.price import flops, parameters
from assay.methods.compress.surgery import cut, edges
from assay.methods.train.fit import fit
from assay.probe import configure
from assay.remedies import _retraining
from assay.remedies._shrinking import Shrinking, example
from assay.remedies.bfrifp import Bfrifp
from assay.remedies.slimming import Slimming
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject
from assay.tasks import Detection


class Residual(nn.Module):
    """A stream that two layers write, an inner edge, and a flattened map."""

    def __init__(self, normed: bool = True) -> None:
        super().__init__()
        norm = nn.BatchNorm2d if normed else nn.Identity
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), norm(8), nn.ReLU())
        self.inner = nn.Sequential(
            nn.Conv2d(8, 12, 3, padding=1), norm(12), nn.ReLU(), nn.Conv2d(12, 8, 1), norm(8)
        )  # fmt: skip
        self.head = nn.Linear(8 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        out: Tensor = self.head(torch.relu(x + self.inner(x)).flatten(1))
        return out


class Boxes(nn.Module):
    """Four proposals, a box, an objectness and two classes each."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 1), nn.ReLU())
        self.head = nn.Conv2d(6, 7, 1)

    def forward(self, x: Tensor) -> Tensor:  # n 1 4 4 -> n 4 7
        said = self.head(self.body(x)).flatten(2).transpose(1, 2)
        return torch.cat([said[..., :4].sigmoid(), said[..., 4:]], 2)


X = torch.rand(80, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def subject_of(model: nn.Module) -> Subject:
    y = (3 * X[:, 0, 0, 0]).long()
    return Subject.classifier(model.eval(), {"train": (X[:40], y[:40]), "test": (X[40:], y[40:])}, name="few")


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


@pytest.fixture(scope="module")
def few() -> Subject:
    return subject_of(seeded(Residual))


@pytest.fixture(scope="module")
def boxes() -> Subject:
    targets = np.tile(np.array([[0, 0.1, 0.1, 0.6, 0.6], [-1, -1, -1, -1, -1]], dtype=np.float32), (80, 1, 1))
    return Subject.of(
        seeded(Boxes).eval(), {"train": (X[:40], targets[:40]), "test": (X[40:], targets[40:])},
        Detection(("disc", "square")), name="boxes",
    )  # fmt: skip


FADING = Bfrifp(epochs=3, batch=10, lambda_e=4.0)
SLIM = Slimming(epochs=3, batch=20)
BOTH: tuple[Shrinking, ...] = (FADING, SLIM)


def test_they_stand_on_the_shelf_with_a_door_for_every_setting() -> None:
    assert shelf.load("remedies", "bfrifp") is Bfrifp
    assert shelf.load("remedies", "slimming") is Slimming
    assert configure(
        Bfrifp,
        {"choice": "highest-l1", "share": "0.45", "lambda_e": "3", "lambda_l": "1", "dead": "0.02", "noise": "0",
         "whole": "true", "fires": "false", "freezes": "false", "price": "parameters=0.3"},
    ) == Bfrifp(
        choice="highest-l1", share=0.45, lambda_e=3, lambda_l=1, dead=0.02, noise=0, whole=True, fires=False,
        freezes=False, price="parameters=0.3",
    )  # fmt: skip
    assert configure(
        Slimming,
        {"score": "mean", "sparsity": "0.1", "warm_up": "0", "end": "0.2", "soft_mask": "code", "rounds": "4",
         "rate": "0.25", "at_least": "0.2", "as_published": "true", "with_norms": "true"},
    ) == Slimming(
        score="mean", sparsity=0.1, warm_up=0, end=0.2, soft_mask="code", rounds=4, rate=0.25, at_least=0.2,
        as_published=True, with_norms=True,
    )  # fmt: skip
    assert Bfrifp(price="flops=0.25").cost() == Slimming(price="flops=0.25").cost() == Cost(1, 0.25)
    assert Bfrifp(share=0.1).cost() is None  # the price is not asked for
    assert Slimming(rate=0.05).cost() is None


@pytest.mark.parametrize("remedy", BOTH, ids=lambda each: each.name())
def test_it_is_as_small_as_the_price_and_its_weights_find_their_frame(
    remedy: Shrinking, few: Subject, run: Run
) -> None:
    before = {name: t.clone() for name, t in few.model.state_dict().items()}
    cured = remedy.apply(few, run)
    x = example(few, 40)
    assert flops(cured.model, x) <= 0.5 * flops(few.model, x)
    assert not cured.model.training
    assert_close(dict(few.model.state_dict()), before, rtol=0, atol=0)
    frame = remedy.framed(few, cured.model.state_dict())
    frame.model.load_state_dict(cured.model.state_dict())
    assert_close(frame.predict(x), cured.predict(x))
    told = remedy.beside(few, cured, run)
    assert "At the price flops=0.5" in told[0]


def test_the_last_filters_fade_in_every_layer_alike_and_the_distance_is_told(few: Subject, run: Run) -> None:
    remedy = replace(FADING, share=0.25, lr=1e-6, weight_decay=0.0)
    cured = remedy.apply(few, run)
    for name, kept in (("stem.0.weight", 6), ("inner.0.weight", 9), ("inner.3.weight", 6)):
        now, then = cured.model.get_parameter(name), few.model.get_parameter(name)
        assert_close(now, then[:kept, : now.shape[1]], rtol=0, atol=1e-4)
    assert "Kept filters are 1 times as far" in remedy.beside(few, cured, run)[-1]
    strong = replace(remedy, choice="highest-l1").apply(few, run).model.get_parameter("stem.0.weight")
    l1 = sum(
        few.model.get_parameter(f"{name}.weight").detach().abs().flatten(1).sum(1) for name in ("stem.0", "inner.3")
    )
    assert isinstance(l1, Tensor)
    weakest = l1.argsort()[:6].sort().values
    assert_close(strong, few.model.get_parameter("stem.0.weight")[weakest], rtol=0, atol=1e-4)
    assert replace(remedy, start="scratch").beside(few, cured, run)[-1].startswith("Channels left")


@pytest.mark.parametrize(
    ("remedy", "asked"),
    [
        (replace(FADING, share=0.25), "With 0.25 of each layer's channels gone it has "),
        (replace(SLIM, rate=0.3), "With 0.3 of the channels gone in each of 2 rounds it has "),
    ],
    ids=lambda each: each.name() if isinstance(each, Shrinking) else "",
)
def test_a_price_that_was_not_asked_for_is_not_told(remedy: Shrinking, asked: str, few: Subject, run: Run) -> None:
    assert Shrinking.beside(remedy, few, few, run)[0].startswith(asked)


def test_what_is_put_in_for_the_training_alone_is_not_paid_for(run: Run) -> None:
    plain = subject_of(seeded(lambda: Residual(normed=False)))
    normed = method.with_norms(plain.model, X)
    by_size = replace(SLIM, with_norms=True, price="parameters=0.5")
    assert by_size.paid(normed, plain, run) == by_size.paid(plain.model, plain, run) == parameters(plain.model)


def test_what_is_told_at_the_end_leaves_both_networks_where_they_were(few: Subject, run: Run) -> None:
    whole = replace(few, model=copy.deepcopy(few.model))
    found, gone = FADING._gone(whole.model, whole, run)
    small = whole.cured(cut(whole.model, found, {name: ~of for name, of in gone.items()}), "bfrifp")
    told = FADING.beside(whole, small, replace(run, device="meta"))  # any device but that of the inputs
    assert "measured on meta" in told[0]
    assert told[-1].startswith("Kept filters are 1 times")
    assert {t.device.type for each in (whole, small) for t in each.model.state_dict().values()} == {"cpu"}


def test_it_fades_while_it_trains_and_every_layer_loses_the_same_share(
    few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Fading] = []

    def watched(model: Fading, data: Any, **settings: Any) -> Any:
        seen.append(model)
        return fit(model, data, **settings)

    monkeypatch.setattr(_retraining, "fit", watched)
    small = replace(FADING, price="flops=0.2").apply(few, run).model
    assert int(seen[0].steps) == 3 * 4  # epochs of 40 inputs, ten at a time
    assert (seen[0].decays() < FADING.dead).all()
    stream, inner = (len(small.get_parameter(f"{name}.weight")) / n for name, n in (("stem.0", 8), ("inner.0", 12)))
    assert abs(stream - inner) <= 1 / 8  # a channel


def test_a_training_too_short_to_fade_is_refused_in_one_line(few: Subject, run: Run) -> None:
    with pytest.raises(AssayError, match=r"epochs=2 end before all filters have faded, which takes 4\.0 epochs") as e:
        Bfrifp(epochs=2).apply(few, run)
    assert "--set epochs=8, or lambda_e=4 or more" in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("remedy", [FADING, replace(SLIM, with_norms=True)], ids=lambda each: each.name())
def test_a_detector_learns_by_its_own_loss(remedy: Shrinking, boxes: Subject, run: Run) -> None:
    assert remedy.why_not(boxes) is None
    cured = remedy.apply(boxes, run)
    x = example(boxes, 40)
    assert flops(cured.model, x) <= 0.5 * flops(boxes.model, x)
    assert cured.predict(x).shape == (40, 4, 7)
    frame = remedy.framed(boxes, cured.model.state_dict())
    frame.model.load_state_dict(cured.model.state_dict())  # what was put in is folded: no layer more than before
    assert_close(frame.predict(x), cured.predict(x))


def test_a_network_without_batch_normalisation_is_told_of_the_setting(boxes: Subject) -> None:
    why = SLIM.why_not(boxes)
    assert why is not None
    assert "Boxes trains none; --set with_norms=true" in why
    assert FADING.why_not(boxes) is None


def test_a_network_that_no_batch_normalisation_can_be_put_in_is_not_told_to() -> None:
    rows = subject_of(nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3)))
    for remedy in (SLIM, replace(SLIM, with_norms=True)):
        why = remedy.why_not(rows)
        assert why is not None
        assert why.endswith("it needs convolutions or linear layers with batch normalisation behind them")


def test_batch_normalisation_that_is_put_in_changes_no_answer_until_it_is_trained() -> None:
    net = seeded(lambda: Residual(normed=False)).eval()
    normed = method.with_norms(net, X)
    assert len(method.batch_norms(normed)) == 3
    assert_close(normed(X), net(X), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for norm in method.batch_norms(normed):
            nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    again = method.folded(normed)
    assert not method.batch_norms(again)
    assert again.state_dict().keys() == net.state_dict().keys()
    assert_close(again(X), normed(X), rtol=1e-3, atol=1e-3)
    assert len(method.batch_norms(method.with_norms(seeded(Residual), X))) == 3  # each has its own already


def test_no_batch_normalisation_is_put_behind_what_is_frozen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be trained, and folded into the weights that are to stay."""
    plain = seeded(lambda: Residual(normed=False))
    plain.get_submodule("stem.0").requires_grad_(False)
    assert method.foldable(plain) == ["inner.0", "inner.3"]
    subject, seen = subject_of(plain), []
    monkeypatch.setattr(_retraining, "fit", lambda model, *a, **k: seen.append(model) or fit(model, *a, **k))
    small = replace(SLIM, with_norms=True, price="flops=0.8", lr=0.1).apply(subject, run).model
    assert [len(each.norms) for each in seen] == [2, 2, 2]
    kept, was = (each.get_parameter("stem.0.weight") for each in (small, plain))
    assert not kept.requires_grad
    assert all(any(torch.equal(mine, its) for its in was) for mine in kept)
    assert not torch.equal(small.get_parameter("head.bias"), plain.get_parameter("head.bias"))
    stone = subject_of(plain.requires_grad_(False))  # where all is frozen, nothing is
    assert len(method.foldable(stone.model)) == 3
    plain.get_submodule("head").requires_grad_(True)
    why = replace(SLIM, with_norms=True).why_not(stone)
    assert why is not None
    assert "trains none" in why


def test_a_score_that_batch_normalisation_does_not_see_is_told_of(few: Subject, run: Run) -> None:
    assert "a weight decay of 0.0005 is all that ties" in SLIM.remarks(few, run)[0]
    assert "set weight_decay or score=gamma" in replace(SLIM, weight_decay=0.0).remarks(few, run)[0]
    assert replace(SLIM, score="gamma").remarks(few, run) == ()
    assert "begins with the spread of each channel" in replace(SLIM, with_norms=True).remarks(few, run)[1]


def test_scales_are_priced_while_it_trains(few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[method.Slimming] = []

    def watched(model: method.Slimming, data: Any, **settings: Any) -> Any:
        seen.append(model)
        return fit(model, data, **settings)

    monkeypatch.setattr(_retraining, "fit", watched)
    for sparsity in (0.0, 1.0):
        replace(SLIM, rounds=1, epochs=2, sparsity=sparsity, soft_mask="off").apply(few, run)
    assert [int(each.steps) for each in seen] == [2] * 4  # an epoch of 40 inputs each, twenty at a time
    free, priced = (float(each.norms[0].weight.detach().abs().mean()) for each in seen[::2])
    assert priced < free - 0.005


def test_rounds_cut_by_equal_shares_or_by_a_rate(few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    real = fit

    def watched(model: method.Slimming, data: Any, **settings: Any) -> Any:
        seen.append(flops(model.net, example(few)) / flops(few.model, example(few)))
        assert settings["epochs"] == 2
        return real(model, data, **settings | {"epochs": 1})

    monkeypatch.setattr(_retraining, "fit", watched)
    replace(SLIM, epochs=6).apply(few, run)
    assert seen[0] == 1
    assert 0.5 < seen[1] <= 0.5**0.5
    assert 0.35 < seen[2] <= 0.5
    seen.clear()
    by_rate = replace(SLIM, epochs=4, rounds=1, rate=0.5).apply(few, run)
    left = [by_rate.model.get_parameter(f"{name}.weight").shape[0] for name in ("stem.0", "inner.0", "inner.3")]
    assert left[0] == left[2]
    assert sum(left) == pytest.approx(0.5 * 28, abs=2)


def test_each_writers_own_channels_make_another_network(few: Subject, run: Run) -> None:
    ours, codes = (
        replace(SLIM, rounds=1, epochs=2, as_published=own).apply(few, run).model for own in (False, True)
    )  # fmt: skip
    assert [p.shape for p in ours.parameters()] == [p.shape for p in codes.parameters()]
    assert not torch.allclose(ours(X), codes(X))


def test_what_cannot_be_is_refused_in_one_line(few: Subject, run: Run) -> None:
    for call, words in (
        (lambda: replace(SLIM, price="flops=0.01").apply(few, run), r"The price flops=0\.01 cannot be met"),
        (lambda: replace(FADING, price="flops=0.001").apply(few, run), r"The price flops=0\.001 cannot be met"),
        (lambda: replace(SLIM, epochs=2).apply(few, run), "epochs=2 cannot be divided among 2 rounds"),
        (lambda: Slimming(rounds=0), "rounds=0 cut nothing"),
        (lambda: Slimming(rate=1.0), "rate=1"),
        (lambda: Slimming(at_least=-1.0), "at_least=-1"),
        (lambda: Slimming(warm_up=1.0), "warm_up=1"),
        (lambda: Slimming(score="max"), "There is no score 'max'"),  # type: ignore[arg-type]
        (lambda: Bfrifp(share=1.0), "A share of 1 "),
        (lambda: Bfrifp(choice="best"), "There is no choice 'best'"),  # type: ignore[arg-type]
        (lambda: Bfrifp(lambda_e=0.0), "lambda_e=0"),
        (lambda: Bfrifp(price="weight=1"), "The price 'weight=1'"),
    ):
        with pytest.raises(AssayError, match=words) as caught:
            call()  # type: ignore[no-untyped-call]
        assert "\n" not in str(caught.value)


def test_a_price_that_rounds_cannot_come_down_to_is_told_before_the_training(
    few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of all there was, whatever the round."""
    monkeypatch.setattr(_retraining, "fit", lambda *a, **k: pytest.fail("it trains"))
    x, half = example(few), seeded(Residual)
    keep = {edge.name: torch.arange(edge.size) < edge.size // 2 for edge in edges(half, x)}
    left = flops(cut(half, edges(half, x), keep), x) / flops(half, x)
    with pytest.raises(AssayError, match=rf"cut 1 of 2 leaves {left:.3g} of the flops where it must leave 0\.224;"):
        replace(SLIM, at_least=0.5, price="flops=0.05").apply(few, run)
    with pytest.raises(AssayError, match=r"with 10 % .* cut 3 of 3 leaves"):  # two channels stay
        replace(SLIM, epochs=4, rounds=3, price="flops=0.02").apply(few, run)


def test_what_was_stopped_goes_on_to_the_same_small_network(
    few: Subject, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its second round, after a first that was cut."""
    remedy, stop = replace(SLIM, epochs=6), 3
    whole = remedy.apply(few, run)
    real, done = fit, 0

    def stopped(model: nn.Module, data: Any, **settings: Any) -> Any:
        told = settings.pop("on_epoch")

        def on_epoch(epoch: int, mean: float) -> None:
            nonlocal done
            done += 1
            told(epoch, mean)
            if done == stop:
                raise KeyboardInterrupt

        return real(model, data, **settings | {"on_epoch": on_epoch})

    kept = replace(run, keep=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(_retraining, "fit", stopped)
        with pytest.raises(KeyboardInterrupt):
            remedy.apply(few, kept)
    again = remedy.apply(few, kept)
    assert parameters(again.model) == parameters(whole.model)
    for name, tensor in whole.model.state_dict().items():
        assert_close(again.model.state_dict()[name], tensor, rtol=0, atol=0)
