"""The remedies that train a network to hold: settings, starts, controls, what they refuse, and what they bring."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay import shelf
from assay.data.column import Column
from assay.errors import AssayError
from assay.inputs.row import Row
from assay.jobs.cure import cure
from assay.methods.attack.pgd import pgd
from assay.methods.train.universal_adversarial_training import UniversalAdversary
from assay.nn.bounded_relu import BoundedReLU
from assay.nn.read_as import Rescaled
from assay.probe import configure
from assay.remedies._retraining import Hardening, PlainRetraining, Retraining
from assay.remedies.adv_bnn import AdvBnn
from assay.remedies.bounded_relu import BoundedRelu
from assay.remedies.defensive_distillation import DefensiveDistillation
from assay.remedies.fgsm_training import FgsmTraining
from assay.remedies.gaussian_training import GaussianTraining
from assay.remedies.mart import Mart
from assay.remedies.mixup import Mixup
from assay.remedies.pgd_training import PgdTraining
from assay.remedies.rse import Rse
from assay.remedies.trades import Trades
from assay.remedies.universal_adversarial_training import UniversalAdversarialTraining
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject

ALL = (
    PgdTraining, FgsmTraining, Trades, Mart, GaussianTraining, DefensiveDistillation, BoundedRelu,
    UniversalAdversarialTraining,
)  # fmt: skip
NAMES = (
    "pgd-training", "fgsm-training", "trades", "mart", "gaussian-training", "defensive-distillation", "bounded-relu",
    "universal-adversarial-training",
)  # fmt: skip
NOTHING: tuple[Hardening, ...] = (
    PgdTraining(radius=0, epochs=2),
    FgsmTraining(radius=0, least=0, epochs=2),
    Trades(beta=0, epochs=2),
    Mart(radius=0, epochs=2),
    GaussianTraining(sigma=0, epochs=2),
    BoundedRelu(bound=float("inf"), sigma=0, epochs=2),
    UniversalAdversarialTraining(radius=0, epochs=2),
)


@pytest.fixture(scope="module")
def few() -> Subject:
    """Two classes that one feature tells apart, 40 inputs of each kind of data."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(80, 1, 4, 4, generator=draw)
    y = (x[:, 0, 0, 0] > 0.5).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    return Subject.classifier(model.eval(), {"train": (x[:40], y[:40]), "test": (x[40:], y[40:])}, name="few")


def said(subject: Subject) -> torch.Tensor:
    return subject.predict(subject.data["test"].take(np.arange(40))[0])


def test_they_stand_on_the_shelf_by_these_names() -> None:
    assert [shelf.load("remedies", name) for name in NAMES] == list(ALL)


@pytest.mark.parametrize("remedy", NOTHING, ids=lambda r: r.name())
def test_one_that_does_nothing_is_its_control_from_either_start(remedy: Hardening, few: Subject, run: Run) -> None:
    for start in ("scratch", "weights"):
        one = replace(remedy, start=start)
        control = one.control()
        assert isinstance(control, PlainRetraining)
        assert_close(said(one.apply(few, run)), said(control.apply(few, run)))


@pytest.mark.parametrize("kind", ALL, ids=lambda k: k.name())
def test_the_subjects_own_weights_go_on_gently_or_not_at_all(kind: type[Hardening], few: Subject, run: Run) -> None:
    before = said(few)
    still = kind(start="weights", epochs=1, lr=1e-9, **({"bound": 100.0} if kind is BoundedRelu else {}))
    cured = still.apply(few, run)
    # batch normalisation has seen one more batch; the weights are the subject's own
    own = dict(few.model.named_parameters())
    for name, p in cured.model.named_parameters():
        assert_close(p, own[name], rtol=0, atol=1e-6)
    anew = dict(replace(still, start="scratch").apply(few, run).model.named_parameters())
    assert not torch.allclose(anew["0.weight"], own["0.weight"])
    assert torch.equal(said(few), before)
    assert cured.name == f"few+{kind.name()}"
    gentle = kind(start="weights").settled(few)
    assert gentle.lr == pytest.approx(0.01)
    assert gentle.settled(few).lr == gentle.lr
    assert gentle.control() == PlainRetraining(gentle.epochs, gentle.lr, start="weights", may_be_swift=True)
    assert kind(start="scratch").settled(few).lr == 0.1


def test_their_costs_and_settings() -> None:
    assert PgdTraining().cost() == Cost(8, 1)
    assert PgdTraining(radius=0).cost() == Cost(1, 1)
    assert Trades().cost() == Mart().cost() == Cost(12, 1)
    assert FgsmTraining().cost() == Cost(1.5, 1)
    assert FgsmTraining(radius=0).cost() == Cost(1, 1)
    assert GaussianTraining().cost() == BoundedRelu().cost() == Cost(1, 1)
    assert configure(PgdTraining, {"radius": "4/255", "start": "weights", "optimiser": "adam", "step": "none"}) == (
        PgdTraining(radius=4 / 255, start="weights", optimiser="adam")
    )
    with pytest.raises(AssayError, match="start='there'"):
        configure(Trades, {"start": "there"})


def test_what_cannot_be_is_refused_in_one_line_before_any_training(few: Subject, run: Run) -> None:
    for kind in (PgdTraining, FgsmTraining, Trades, Mart):
        with pytest.raises(AssayError, match="radius=2 is no share of a value's range; give one from 0 to 1"):
            kind(radius=2)
    with pytest.raises(AssayError, match="sigma=-1"):
        GaussianTraining(sigma=-1)
    with pytest.raises(AssayError, match="temperature=0"):
        DefensiveDistillation(temperature=0)
    with pytest.raises(AssayError, match="bound=0"):
        BoundedRelu(bound=0)
    without = replace(few, data={"test": few.data["test"]})
    for kind in ALL:
        assert "no split 'train'" in (kind().why_not(without) or "")
    smooth = replace(few, model=nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 2)).eval())
    assert BoundedRelu().why_not(smooth) == "it bounds layers of nn.ReLU, and Sequential has none"
    assert BoundedRelu().why_not(few) is None


def test_bounded_relus_are_in_the_cured_model_and_in_its_frame(few: Subject, run: Run) -> None:
    remedy = BoundedRelu(bound=0.5, epochs=1)
    for made in (remedy.apply(few, run), remedy.frame(few)):
        (bounded,) = [module for module in made.model.modules() if isinstance(module, BoundedReLU)]
        assert bounded.bound == 0.5
        assert not made.model.training


def test_the_radius_is_a_share_of_the_range(few: Subject, run: Run) -> None:
    """Pixels from 0 to 255, read by the same net, give the same training."""
    pairs = {split: few.data[split].take(np.arange(40)) for split in ("train", "test")}
    wide = Subject.classifier(
        Rescaled(few.model, torch.tensor(0.0), torch.tensor(1 / 255)).eval(),
        {split: (255 * x, y) for split, (x, y) in pairs.items()},
        name="wide",
        bounds=(0.0, 255.0),
    )
    for remedy in (PgdTraining(radius=0.1, steps=2, epochs=2, lr=0.01), GaussianTraining(epochs=2, lr=0.01)):
        x, _ = pairs["test"]
        assert_close(remedy.apply(wide, run).predict(255 * x), remedy.apply(few, run).predict(x), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(
    "remedy",
    [
        PgdTraining(radius=0.3, steps=2, epochs=1), FgsmTraining(clean=0.0, epochs=1),
        AdvBnn(radius=0.3, steps=2, draws=2, epochs=1), UniversalAdversarialTraining(radius=0.3, epochs=1),
    ],
    ids=lambda r: r.name(),
)  # fmt: skip
def test_a_training_under_attack_moves_what_an_attacker_may_move(
    remedy: Retraining, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an applicant neither the age, which is fixed, nor where he lives, nor half a child."""
    from assay.remedies import _retraining

    columns = (
        Column("income", "number", 0.0, 100.0, 50.0), Column("children", "integer", 0.0, 10.0, 2.0),
        Column("home", "category", 0.0, 2.0, 0.0, categories=("rent", "own", "none")),
        Column("age", "number", 18.0, 99.0, 40.0, fixed=True),
    )  # fmt: skip
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(40, 4, generator=draw) * torch.tensor([100.0, 10.0, 2.0, 81.0]) + torch.tensor([0.0, 0, 0, 18])
    x[:, 1:3] = x[:, 1:3].round()
    y = (x[:, 0] > 50).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    bounds = [column.low for column in columns], [column.high for column in columns]
    plain = Subject.classifier(model, {"train": (x, y), "test": (x, y)}, bounds=bounds, name="applicants")
    subject = replace(plain, kind=Row(columns))
    real, change = _retraining.fit, []

    def watched(net: nn.Module, data: Any, *, augment: Any, **how: Any) -> Any:
        def seen(a: torch.Tensor, b: torch.Tensor, rng: torch.Generator) -> Any:
            moved, b = augment(a, b, rng)
            change.append(moved - a)
            return moved, b

        return real(net, data, augment=seen, **how | {"batch": 10})

    monkeypatch.setattr(_retraining, "fit", watched)
    assert remedy.why_not(subject) is None
    remedy.apply(subject, run)
    moved = torch.cat(change)
    assert float(moved[:, 0].abs().max()) > 15
    assert float(moved[:, 1].abs().max()) >= 2
    assert torch.equal(moved[:, 1], moved[:, 1].round())
    assert not bool(moved[:, 2:].any())
    rigid = replace(subject, kind=Row(tuple(replace(column, fixed=True) for column in columns)))
    assert remedy.why_not(rigid) == (
        "it changes numbers, and of an input here none may change; take `fixed` off a column of numbers"
    )


def test_digits_hold_better_after_pgd_training_than_after_its_control(digits: Subject, run: Run) -> None:
    """And are right a little less often where nobody attacks."""
    remedy = PgdTraining(radius=0.15, steps=3, epochs=4, start="weights", lr=0.05)
    control = remedy.control()
    assert control is not None
    x, y = digits.data["test"].take(np.arange(200))
    held, right = [], []
    for cured in (remedy.apply(digits, run), control.apply(digits, run)):
        model = cured.model.requires_grad_(False)
        held.append(1 - float(pgd(model, x, y, radius=0.1, steps=10).success.float().mean()))
        right.append(float((cured.predict(x).argmax(1) == y).float().mean()))
    assert held[0] > held[1] + 0.1
    assert 0.85 < right[0] < right[1] - 0.02  # at a price on clean inputs


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "remedy", [PgdTraining(), Rse(), AdvBnn(), UniversalAdversarialTraining(), Mixup()], ids=lambda r: r.name()
)
def test_a_remedy_and_its_control_train_alike_swiftly_or_not(
    remedy: Retraining, large: bool, few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.remedies import _retraining, universal_adversarial_training

    swift: list[bool] = []
    monkeypatch.setattr(_retraining, "fit", lambda *a, **k: swift.append(k["swift"]))
    for room in (_retraining, universal_adversarial_training):
        monkeypatch.setattr(room, "_is_swift", lambda model, run: large and model is few.model)
    control = remedy.control()
    assert control is not None
    for one in (remedy, control):
        one.apply(few, run)
    assert swift == [large and isinstance(remedy, Hardening)] * 2


@pytest.mark.parametrize("start", ["scratch", "weights"])
@pytest.mark.parametrize(
    "kind", [PgdTraining, Rse, AdvBnn, UniversalAdversarialTraining, PlainRetraining], ids=lambda k: k.name()
)
def test_what_is_frozen_is_neither_drawn_anew_nor_trained_unless_all_is(
    kind: type[Hardening], start: str, few: Subject, run: Run
) -> None:
    half, all_frozen = copy.deepcopy(few.model), copy.deepcopy(few.model).requires_grad_(False)
    for layer in half[:2]:  # type: ignore[index]
        layer.requires_grad_(False)
    remedy = kind(epochs=1, start=start)  # type: ignore[arg-type]
    for model, moved in ((half, 2), (all_frozen, 6)):
        cured = remedy.apply(replace(few, model=model), run).model
        own = [p for name, p in cured.named_parameters() if "rho" not in name]
        same = [torch.equal(p, q) for p, q in zip(own, model.parameters(), strict=True)]
        assert same == [True] * (6 - moved) + [False] * moved
    fresh = remedy.begun(half, torch.Generator().manual_seed(0))
    assert torch.equal(fresh[1].running_mean, half[1].running_mean)  # type: ignore[index,arg-type]


def test_what_is_kept_of_a_training_is_its_remedys_its_settings_and_its_datas(
    few: Subject, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.remedies import _retraining

    keys: list[str] = []
    monkeypatch.setattr(_retraining, "fit", lambda *a, keep_key, **k: keys.append(keep_key))
    kept = replace(run, keep=tmp_path)
    other = replace(few, data={"train": few.data["test"], "test": few.data["test"]})
    for remedy, subject in (
        (GaussianTraining(), few),
        (GaussianTraining(sigma=0.3), few),
        (PgdTraining(), few),
        (GaussianTraining(), other),
        (GaussianTraining(), few),
    ):
        remedy.apply(subject, kept)
    assert keys[-1] == keys[0]
    assert len(set(keys)) == 4


def test_the_one_change_of_a_training_that_is_killed_goes_on_with_it(
    few: Subject, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.remedies import _retraining

    remedy = UniversalAdversarialTraining(radius=0.3, step=0.02, epochs=3, batch=10)
    whole, real, seen = remedy.apply(few, run), _retraining._right, []

    def killed(*given: Any) -> float:
        seen.append(given)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(*given)

    kept = replace(run, keep=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(_retraining, "_right", killed)
        with pytest.raises(KeyboardInterrupt):
            remedy.apply(few, kept)
    changes: list[torch.Tensor] = []
    step_up = UniversalAdversary.after_step

    def watched(self: UniversalAdversary) -> None:
        assert self.delta is not None
        changes.append(self.delta)
        step_up(self)

    monkeypatch.setattr(UniversalAdversary, "after_step", watched)
    again = remedy.apply(few, kept)
    assert len(changes) == 4  # the last epoch alone
    assert float(changes[0].abs().max()) > 0.05  # as the two before had left it
    for name, tensor in whole.model.state_dict().items():
        assert_close(again.model.state_dict()[name], tensor, rtol=0, atol=1e-6)


def test_its_progress_tells_the_loss_and_the_clean_accuracy(few: Subject, run: Run) -> None:
    told: list[str] = []

    @contextmanager
    def progress(about: str, total: int) -> Any:
        told.append(about)
        yield lambda done: None

    GaussianTraining(epochs=3).apply(few, replace(run, progress=progress))
    assert told[0] == "training under noise for 3 epochs"
    assert len(told) == 3
    words = told[2].split(": ")[1]
    assert words.startswith("epoch 2 of 3, loss ")
    assert words.endswith(" %")
    assert "clean accuracy" in words


@pytest.mark.usefixtures("undrawn")
def test_a_cure_that_is_killed_goes_on_and_leaves_only_its_weights(
    few: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.remedies import _retraining

    options: dict[str, Any] = {"settings": {"epochs": 3}, "probes": ["accuracy"], "control": False}
    whole = cure("defensive-distillation", few, out=tmp_path / "whole", **options)
    real, seen = _retraining._right, []

    def killed(*given: Any) -> float:
        seen.append(given)
        if len(seen) == 4:  # the student's second epoch
            raise KeyboardInterrupt
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(_retraining, "_right", killed)
        with pytest.raises(KeyboardInterrupt):
            cure("defensive-distillation", few, out=tmp_path / "killed", **options)
    (folder,) = (tmp_path / "killed").glob("cure-*")
    assert len(list(folder.glob("training-*.safetensors"))) == 2  # the teacher, done, and the student
    calls: list[int] = []
    monkeypatch.setattr(_retraining, "_right", lambda *given: calls.append(1) or real(*given))
    again = cure("defensive-distillation", few, out=tmp_path / "killed", **options)
    assert calls == []  # the student's last epoch alone, after which nothing is told
    assert not list(folder.glob("training-*"))
    assert again.folder.name == whole.folder.name
    from safetensors.torch import load_file

    assert_close(load_file(again.weights), load_file(whole.weights), rtol=1e-6, atol=1e-7)


def test_telling_how_it_goes_does_not_move_the_training_of_a_net_that_draws(
    few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.remedies import _retraining

    class Drawing(nn.Dropout):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(x, self.p, training=True)

    random = replace(few, model=nn.Sequential(nn.Flatten(), nn.Linear(16, 8), Drawing(0.5), nn.Linear(8, 2)).eval())
    told = PlainRetraining(epochs=3).apply(random, run).model.state_dict()
    monkeypatch.setattr(_retraining, "_right", lambda *given: 0.0)
    assert_close(PlainRetraining(epochs=3).apply(random, run).model.state_dict(), told)
