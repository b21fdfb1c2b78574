"""LocalNorm for batch normalisation, as a remedy: what it answers for, what it says of itself, what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay import shelf
from assay.door import admit
from assay.errors import AssayError
from assay.nn.local_norm import LocalNorm, LocalNormed, Mode
from assay.nn.members import Drawn
from assay.probe import configure
from assay.remedies.localnorm import Localnorm
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)).eval()


def subject_of(model: nn.Module, side: int = 6, count: int = 80) -> Subject:
    x = torch.rand(count, 1, 6, side, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0, 0, 0] > 0.5).long()
    half = count // 2
    return Subject.classifier(model, {"train": (x[:half], y[:half]), "test": (x[half:], y[half:])}, name="few")


@pytest.fixture(scope="module")
def few() -> Subject:
    return subject_of(net())


def test_it_stands_on_the_shelf_with_its_settings_and_costs(few: Subject) -> None:
    assert shelf.load("remedies", "localnorm") is Localnorm
    made = configure(Localnorm, {"groups": "4", "mode": "single-vote", "rotations": "1", "start": "weights"})
    assert made == Localnorm(groups=4, mode="single-vote", rotations=1, start="weights")
    assert made.cost() == Cost(1, 8)
    assert Localnorm().cost() == Cost(1, 4)
    assert Localnorm(mode="batch").cost() == Cost(1, 1)
    assert Localnorm(mode="voting", groups=4).cost() == Cost(1, 4)
    assert Localnorm(groups=4).settled(few).rotations == 3
    assert (
        Localnorm(groups=4)
        .settled(subject_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(40, 2)), 7))
        .rotations
        == 0
    )


def test_by_itself_it_answers_for_each_input_and_in_company_the_door_doubts_it(few: Subject, run: Run) -> None:
    for mode, alarmed in (("single", False), ("single-vote", False), ("batch", True), ("voting", True)):
        remedy = configure(Localnorm, {"groups": 4, "mode": mode, "epochs": 1})
        cured = remedy.apply(few, run)
        assert cured.name == "few+localnorm"
        assert isinstance(cured.model, LocalNormed)
        assert any("in the batch" in alarm.says for alarm in admit(cured).alarms) == alarmed
        said = " ".join(remedy.remarks(cured, run))
        assert "LocalNorm stands where its 1 batch normalisations were." in said
        assert ("every number here is in doubt" in said) == alarmed
        assert ("its answer is the same in any batch" in said) != alarmed
        assert all(f"{each} " in said.split("by mode: ")[1] for each in ("single", "single-vote", "batch", "voting"))


def test_its_frame_takes_the_weights_and_answers_as_it_does(few: Subject, run: Run) -> None:
    remedy = Localnorm(groups=4, epochs=1).settled(few)
    cured, frame = remedy.apply(few, run), remedy.frame(few)
    frame.model.load_state_dict(cured.model.state_dict())
    x, _ = few.data["test"].take(np.arange(10))
    assert_close(frame.predict(x), cured.predict(x))
    assert not frame.model.training


def test_from_weights_it_starts_where_the_subject_is(few: Subject, run: Run) -> None:
    cured = Localnorm(groups=4, epochs=1, lr=1e-9, start="weights").apply(few, run)
    own = dict(few.model.named_parameters())
    for name, p in cured.model.named_parameters():
        other = own[name.removeprefix("net.")]
        assert_close(p, other.expand(p.shape), rtol=0, atol=1e-6)
    anew = Localnorm(groups=4, epochs=1, lr=1e-9).apply(few, run)
    assert not torch.allclose(dict(anew.model.named_parameters())["net.0.weight"], own["0.weight"])


def test_the_remarks_count_the_answers_of_each_mode(few: Subject, run: Run) -> None:
    remedy = Localnorm(groups=4, epochs=1, rotations=0)
    cured = remedy.apply(few, run)
    said = next(r for r in remedy.remarks(cured, run) if "by mode" in r)
    x, y = few.data["test"].take(np.arange(40))
    right = 100 * float((cured.predict(x).argmax(1) == y).double().mean())
    assert f"single {right:.1f} %" in said


def test_each_number_by_mode_is_that_of_its_own_mode(few: Subject, run: Run) -> None:
    """A constant that the groups' shifts add to an answer is not the same in each, so that the modes differ."""
    remedy = Localnorm(groups=4, epochs=1, rotations=0)
    cured = remedy.apply(few, run)
    assert isinstance(cured.model, LocalNormed)
    layer = next(module for module in cured.model.modules() if isinstance(module, LocalNorm))
    with torch.no_grad():
        layer.bias.copy_(3 * torch.randn(layer.bias.shape, generator=torch.Generator().manual_seed(1)))
    told = next(r for r in remedy.remarks(cured, run) if "by mode" in r).split("by mode: ")[1].rstrip(".")
    x, y = few.data["test"].take(np.arange(40))
    wanted = {}
    for mode in get_args(Mode):
        with torch.no_grad():
            right = cured.model.asked(mode, rotations=0)(x).argmax(1) == y
        wanted[mode] = f"{100 * float(right.double().mean()):.1f}"
    assert told == ", ".join(f"{mode} {value} %" for mode, value in wanted.items())
    assert len(set(wanted.values())) > 2


def test_a_net_that_draws_leaves_the_global_generator_alone(run: Run) -> None:
    random = Drawn(nn.Sequential(AlwaysDropped(0.2), *net()), 2).eval()
    subject = replace(subject_of(random), draws=2)
    before = torch.get_rng_state()
    Localnorm(groups=4, epochs=1).apply(subject, run)
    assert torch.equal(torch.get_rng_state(), before)


class AlwaysDropped(nn.Dropout):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, self.p, training=True)


def test_a_net_without_batch_normalisation_gets_it_behind_its_convolutions_and_is_told_so(run: Run) -> None:
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)).eval()
    bare = subject_of(plain)
    remedy = Localnorm(groups=4, epochs=1)
    cured = remedy.apply(bare, run)
    assert sum(isinstance(m, LocalNorm) for m in cured.model.modules()) == 1
    assert "put behind its 1 convolutions" in remedy.remarks(cured, run)[0]
    frame = remedy.frame(bare)
    frame.model.load_state_dict(cured.model.state_dict())


def test_what_cannot_be_is_refused_in_one_line(few: Subject, run: Run) -> None:
    with pytest.raises(AssayError, match="groups=0 split nothing"):
        Localnorm(groups=0)
    with pytest.raises(AssayError, match="rotations=2 are for an input alone, and mode='batch' asks a batch"):
        Localnorm(mode="batch", rotations=2)
    with pytest.raises(AssayError, match="mode='all'"):
        configure(Localnorm, {"mode": "all"})
    assert Localnorm(groups=41).why_not(few) == (
        "a batch of 40 inputs cannot be split into 41 groups; use groups=40 or fewer"
    )
    assert Localnorm(groups=14, batch=16).why_not(few) == (
        "a batch of 13 inputs cannot be split into 14 groups; use groups=13 or fewer"
    )
    flat = replace(few, model=nn.Sequential(nn.Flatten(), nn.Linear(36, 2)))
    assert Localnorm().why_not(flat) == "it normalises the maps of convolutions, and the model has none"
    assert "no split 'train'" in (Localnorm().why_not(replace(few, data={"test": few.data["test"]})) or "")
    wide = subject_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(40, 2)).eval(), 7)
    assert (
        Localnorm(rotations=1).why_not(wide)
        == "inputs of shape (1, 6, 7) cannot be turned by a quarter; use rotations=0"
    )
    assert Localnorm(groups=4).why_not(few) is None


@pytest.mark.parametrize("kernel", [6, 3])
def test_a_net_of_which_nothing_is_left_alone_is_refused_before_it_is_trained(kernel: int, run: Run) -> None:
    """A map of 1 x 1, and the mean of a map: each is the shift of its group."""
    blind = nn.Sequential(
        nn.Conv2d(1, 3, kernel), nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)
    )
    subject = subject_of(blind.eval())
    with pytest.raises(AssayError, match="says the same of every input alone.*use --set mode=batch or mode=voting"):
        Localnorm(groups=4, rotations=0, epochs=1).apply(subject, run)
    assert Localnorm(groups=4, mode="batch", epochs=1).apply(subject, run).model(torch.rand(8, 1, 6, 6)).shape == (8, 2)


class Frames(nn.Module):
    """Each picture is seen as it is and turned, both as rows of one batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # n 1 h w -> n 3
        each: torch.Tensor = self.net(torch.stack([x, x.flip(-1)], 1).flatten(0, 1))
        return each.view(len(x), 2, -1).mean(1)


def test_a_net_that_folds_more_than_its_inputs_into_the_batch_is_refused_at_the_door() -> None:
    model = Frames().eval()
    model(torch.rand(2, 1, 6, 6))
    folds = subject_of(model)
    before = torch.get_rng_state()
    assert "the net folds more than its inputs into the batch" in (Localnorm().why_not(folds) or "")
    assert torch.equal(torch.get_rng_state(), before)
    assert Localnorm(groups=1, rotations=0, mode="batch").why_not(folds) is None
    assert not any(module.training for module in model.modules())
