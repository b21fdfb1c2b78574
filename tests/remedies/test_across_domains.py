"""The remedies that train across domains: what they may see, what they are compared with, what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay import shelf
from assay.data.arrays import Arrays
from assay.data.held_out import Part
from assay.data.joined import Joined
from assay.errors import AssayError
from assay.jobs.cure import cure
from assay.methods.shift.principal import principal
from assay.methods.train.fit import Diverged
from assay.methods.train.importance_weighted import Weighted, weighted_loss
from assay.probe import configure
from assay.probes.steady.how_far_is_it_from_home import HowFarIsItFromHome
from assay.remedies import _retraining, importance_weighting
from assay.remedies._across_domains import AcrossDomains, Adapting, JointRetraining
from assay.remedies.coral import Coral
from assay.remedies.gradient_reversal import GradientReversal
from assay.remedies.hir import Hir
from assay.remedies.importance_weighting import ImportanceWeighting
from assay.remedies.mk_mmd_adaptation import MkMmdAdaptation
from assay.remedy import Cost
from assay.run import Run
from assay.subject import Subject

ALL: dict[str, type[AcrossDomains]] = {
    "hir": Hir,
    "mk-mmd-adaptation": MkMmdAdaptation,
    "coral": Coral,
    "gradient-reversal": GradientReversal,
    "importance-weighting": ImportanceWeighting,
}
ADAPTING = (MkMmdAdaptation, Coral, GradientReversal, ImportanceWeighting)
SMALL: dict[str, Any] = {"epochs": 2, "batch": 36, "lr": 0.01}
NOTHING: dict[str, dict[str, Any]] = {
    "hir": {"alpha": 0.0},
    "mk-mmd-adaptation": {"weight": 0.0},
    "coral": {"weight": 0.0},
    "gradient-reversal": {"weight": 0.0},
    "importance-weighting": {"power": 0.0},
}


def moved(seed: int, by: float, n: int = 60) -> Arrays:
    """Three classes in a row, and a second feature that says which domain this is."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    place = torch.stack([0.2 + 0.3 * y, torch.full((n,), by), torch.full((n,), 0.5)], 1)
    x = place + 0.05 * torch.randn(n, 3, generator=draw)
    return Arrays(x.clamp(0, 1), y)


@pytest.fixture(scope="module")
def few() -> Subject:
    """Home at 0.2, domains with labels at 0.4 and 0.6, one without at 0.8."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    data = {"train": moved(0, 0.2), "test": moved(1, 0.2), "at-40": moved(2, 0.4), "at-60": moved(3, 0.6)}
    subject = Subject.classifier(model, data, name="few", classes=("a", "b", "c"))
    return replace(subject, unlabelled={"far": moved(4, 0.8)})


def said(subject: Subject) -> Tensor:
    return subject.predict(subject.data["test"].take(np.arange(60))[0])


def fits(remedy: Any, subject: Subject, run: Run, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `fit` is asked for, without its training."""
    calls: list[dict[str, Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(_retraining, "fit", lambda model, data, **k: calls.append({**k, "data": data, "model": model}))
        remedy.apply(subject, run)
    (call,) = calls
    return call


class Watched:
    """Data that note who takes what of them."""

    def __init__(self, whole: Any, labels: Any = None) -> None:
        self.whole, self.classes, self.taken = whole, whole.classes, list[int]()
        self.labels = whole.labels if labels is None else labels

    def __len__(self) -> int:
        return len(self.whole)

    def take(self, indices: Any) -> Any:
        self.taken += np.asarray(indices).tolist()
        return self.whole.take(indices)

    def fingerprint(self) -> str:
        return str(self.whole.fingerprint())


def test_they_stand_on_the_shelf_and_cost_one_training() -> None:
    for name, kind in ALL.items():
        assert shelf.load("remedies", name) is kind
        assert kind().cost() == Cost(1, 1)
    assert configure(Hir, {"hold-out": "x", "alpha": "1e-3", "across": "false"}) == Hir(
        hold_out="x", alpha=1e-3, across=False
    )
    assert configure(Coral, {"target": "x,y"}).target == ("x", "y")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("start", ["scratch", "weights"])
def test_one_that_does_nothing_is_its_control_and_one_that_does_is_not(
    name: str, start: Any, few: Subject, run: Run
) -> None:
    nothing = ALL[name](start=start, **SMALL, **NOTHING[name])
    control = nothing.control()
    assert isinstance(control, JointRetraining)
    plain = control.apply(few, run)
    assert plain.name == "few+joint-retraining"
    assert_close(said(nothing.apply(few, run)), said(plain))
    much = (
        {"weight": 1e9} if name == "coral" else {}
    )  # covariances here are some thousandths, and it is of their squares
    cured = ALL[name](start=start, **SMALL, **much).apply(few, run)
    assert not torch.allclose(said(cured), said(plain), atol=1e-4)
    assert [n for n, _ in cured.model.named_parameters()] == [n for n, _ in few.model.named_parameters()]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in cured.model.modules())


@pytest.mark.parametrize("name", ALL)
def test_a_control_has_the_very_batches_and_schedule_of_its_remedy(
    name: str, few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    remedy = ALL[name](lr=0.02, weight_decay=0.1, optimiser="sgd", momentum=0.5, batch=36, hold_out="at-60").settled(
        few
    )
    control = remedy.control()
    ours, plain = (fits(one, few, run, monkeypatch) for one in (remedy, control))
    for setting in ("epochs", "lr", "batch", "weight_decay", "optimiser", "momentum", "swift"):
        assert ours[setting] == plain[setting]
    assert ours["epochs"] == 334  # a thousand steps on 60 + 30 inputs
    assert len(ours["data"]) == len(plain["data"]) == 90
    if name == "importance-weighting":
        assert ours["order"] is plain["order"] is None
        return
    batches = [one["order"](torch.Generator().manual_seed(0)) for one in (ours, plain)]
    for mine, other in zip(*batches, strict=True):
        assert mine.tolist() == other.tolist()
        x, y = plain["data"].take(mine.numpy())
        assert y.tolist() == [c for _ in range(2) for c in (0, 1, 2) for _ in range(6)]
        assert (x[:18, 1] < 0.4).all()
        assert (x[18:, 1] < 0.6).all()


@pytest.mark.parametrize("name", ALL)
def test_what_is_held_out_is_not_looked_at_and_no_label_of_a_target_is_read(name: str, few: Subject, run: Run) -> None:
    held, seen = Watched(few.data["at-60"]), Watched(few.data["at-40"], labels=few.data["at-40"].labels)
    subject = replace(few, data={**few.data, "at-60": held, "at-40": seen})
    remedy = ALL[name](**SMALL, hold_out="at-60")
    cured = remedy.apply(subject, run)
    assert held.taken == []
    assert cured.data["at-60"] is held
    asked = cured.data["at-40"]
    assert isinstance(asked, Part)
    assert seen.taken
    assert not set(seen.taken) & set(asked.rows.tolist())
    assert len(asked) == 30
    assert np.bincount(asked.labels).tolist() == [10, 10, 10]
    assert remedy.frame(subject).fingerprint() == replace(cured, model=subject.model).fingerprint()
    if not issubclass(ALL[name], Adapting):
        assert remedy.roles(subject).targets == {}
        return
    much = {"weight": 1e9} if name == "coral" else {}
    one = ALL[name](**SMALL, **much, target=("at-40",))  # type: ignore[call-arg]
    roles = one.roles(few)
    assert [*roles.sources, *roles.targets] == ["train", "at-60", "at-40"]
    ours, asked = one.apply(few, run), roles.asked["at-40"]
    assert isinstance(asked, Part)
    assert len(asked) == 30
    x, y = few.data["at-40"].take(np.arange(60))
    wrong = replace(few, data={**few.data, "at-40": Arrays(x, y.sort().values)})
    assert_close(said(one.apply(wrong, run)), said(ours))
    assert not torch.allclose(said(ALL[name](**SMALL, **much).apply(few, run)), said(ours), atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_of_a_domain_without_labels_no_input_is_both_trained_on_and_asked_about(
    name: str, few: Subject, run: Run
) -> None:
    far = Watched(moved(4, 0.8))
    subject = replace(few, unlabelled={"far": far})
    remedy = ALL[name](**SMALL)
    cured = remedy.apply(subject, run)
    assert remedy.frame(subject).fingerprint() == replace(cured, model=subject.model).fingerprint()
    trained, far.taken = set(far.taken), []
    asked = cured.unlabelled["far"]
    asked.take(np.arange(len(asked)))
    if not issubclass(ALL[name], Adapting):
        assert (trained, len(asked)) == (set(), 60)
        return
    assert trained
    assert not trained & set(far.taken)
    assert len(asked) == len(remedy.roles(subject).targets["far"]) == 30
    held = ALL[name](**SMALL, hold_out="far").frame(subject)
    assert len(held.unlabelled["far"]) == 60
    rows = Part(few.data["test"], np.arange(40))  # of the test data themselves
    assert len(remedy.frame(replace(few, unlabelled={"far": rows})).data["test"]) == 40
    one = replace(few, unlabelled={"far": moved(4, 0.8, n=1)})
    assert reason(remedy, one).startswith("the domain 'far' has one input, and half of a domain is trained on")


def test_alpha_gives_the_mean_over_pairs_the_weight_3_and_the_ablation_has_fewer_pairs(few: Subject, run: Run) -> None:
    remedy = Hir(**SMALL)  # 36 = 3 domains x 3 classes x 4 inputs
    assert remedy.settled(few).alpha == pytest.approx(3 / (3 * 12 * 11 / 2))
    within = replace(remedy, across=False)
    assert within.settled(few).alpha == pytest.approx(3 / (9 * 4 * 3 / 2))
    assert Hir(alpha=0.5, **SMALL).settled(few).alpha == 0.5
    both, one = (replace(r, alpha=0.05).apply(few, run) for r in (remedy, within))
    assert not torch.allclose(said(both), said(one), atol=1e-4)
    assert within.control() == remedy.control()


def test_remarks_tell_what_was_seen_and_what_was_not(few: Subject, run: Run) -> None:
    (told,) = Hir(**SMALL).remarks(Hir(**SMALL).frame(few), run)
    assert "trained on 'train' and on one half of 'at-40' and 'at-60'." in told
    assert "No domain was held out" in told
    assert "no label" not in told
    remedy = Coral(**SMALL, hold_out="at-60", target=("at-40",))
    (told,) = remedy.remarks(remedy.frame(few), run)
    assert told.startswith("It was trained on 'train'. Of 'at-40' it saw one half of the inputs and no label")
    assert "; the other half is asked about. 'at-60' was held out: neither trained on nor looked at" in told


def test_weights_lean_towards_the_target_and_their_worth_is_told(few: Subject, run: Run) -> None:
    remedy = ImportanceWeighting(**SMALL, hold_out="at-40")
    weights, sources = remedy._weights(few, run), remedy.roles(few).sources
    assert list(sources) == ["train", "at-60"]
    assert len(weights) == 90
    assert float(weights.mean()) == pytest.approx(1)
    assert float(weights[60:].mean()) > 2 * float(weights[:60].mean())  # 0.6 is nearer to 0.8 than 0.2 is
    first, second = remedy.remarks(remedy.apply(few, run), run)
    assert "Of 'far' it saw one half of the inputs and no label" in first
    size = float(weights.sum() ** 2 / (weights**2).sum())
    assert f"are worth {size:.1f} equal ones" in second or f"are worth {size:,.0f} equal ones" in second
    gauss = replace(remedy, nu=float("inf"), hold_out="at-60")
    (alarm,) = gauss.remarks(gauss.frame(few), run)[1:]
    assert "what they weigh hangs on a handful of inputs" in alarm


def test_the_weighted_loss_is_the_mean_of_each_times_its_weight(few: Subject) -> None:
    rows = Weighted(few.data["train"], torch.arange(60.0))
    x, target = rows.take(np.array([3, 7]))
    z = torch.tensor([[1.0, 0.0, 2.0], [0.5, 1.5, 0.0]])
    each = [-z[i].log_softmax(0)[int(target[i, 0])] for i in range(2)]
    assert_close(float(weighted_loss(z, target)), float((3 * each[0] + 7 * each[1]) / 2))
    assert x.shape == (2, 3)
    with pytest.raises(AssayError, match="Got 2 weights for 60 inputs"):
        Weighted(few.data["train"], torch.ones(2))


def test_fewer_of_wide_inputs_are_held_to_weigh_by_and_as_float32(
    few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Tensor] = []
    monkeypatch.setattr(importance_weighting, "principal", lambda x, k: held.append(torch.cat(x)) or principal(x, k))
    monkeypatch.setattr(importance_weighting, "LEAST", 5)
    many = replace(few, unlabelled={"far": moved(4, 0.8, n=200)})
    for budget, both in ((2**20, 120 + 100), (16 * 3 * 20, 40), (1, 10)):
        monkeypatch.setattr(importance_weighting, "HELD_BYTES", budget)
        ImportanceWeighting(**SMALL)._weights(many, run)
        assert (held[-1].shape, held[-1].dtype) == ((both, 3), torch.float32)


def test_joined_data_are_their_parts_one_after_the_other(few: Subject) -> None:
    a, b = few.data["train"], few.data["at-40"]
    both = Joined({"a": a, "b": b})
    index = np.array([70, 0, 59, 60, 5, 119])
    x, y = both.take(index)
    for at, row, label in zip(index, x, y, strict=True):
        part, place = (a, at) if at < 60 else (b, at - 60)
        assert_close(row, part.take(np.array([place]))[0][0])
        assert label == part.labels[place] == both.labels[at]
    assert both.domain.tolist() == [0] * 60 + [1] * 60
    assert both.fingerprint() != Joined({"b": b, "a": a}).fingerprint()
    assert both.take(np.array([], dtype=np.int64))[0].shape == (0, 3)
    with pytest.raises(AssayError, match="Joined got no data"):
        Joined({})


def reason(remedy: AcrossDomains, subject: Subject) -> str:
    return remedy.why_not(subject) or ""


def test_what_cannot_be_is_refused_in_one_line_before_any_training(few: Subject, tmp_path: Path) -> None:
    alone = replace(few, data={k: few.data[k] for k in ("train", "test")}, unlabelled={})
    for kind in ALL.values():
        assert "(--domain NAME=PATH), and there are ['test', 'train']" in reason(kind(), alone)
        assert reason(kind(hold_out="at-7"), few) == "hold-out=at-7 is no domain of it; there are at-40, at-60, far"
        assert "no split 'train'" in reason(kind(), replace(few, data={"test": few.data["test"]}))
    unlabelled = replace(alone, unlabelled=few.unlabelled)
    assert "a domain with labels beside train" in reason(Hir(), unlabelled)
    assert MkMmdAdaptation().why_not(unlabelled) is None
    one = replace(few, data={k: few.data[k] for k in ("train", "test", "at-40")}, unlabelled={})
    for kind in (Hir, MkMmdAdaptation, Coral, GradientReversal):
        assert reason(kind(hold_out="at-40"), one) == (
            "it needs 2 domains to train on, and with 'at-40' held out there is only 'train'"
        )
        assert kind().why_not(one) is None
    assert "set target=NAME" in reason(ImportanceWeighting(), one)
    assert ImportanceWeighting(target=("at-40",)).why_not(one) is None
    assert "both held out and a target" in reason(Coral(hold_out="at-40", target=("at-40",)), few)
    assert reason(Coral(target=("x",)), few) == "target=x is no domain of it; there are at-40, at-60, far"
    x, y = few.data["at-40"].take(np.arange(60))
    lacking = replace(few, data={**few.data, "at-40": Arrays(x[y != 1], y[y != 1])})
    says = "the domain 'at-40' has no input of class 'b' in the half that is trained on"
    for kind in (Hir, MkMmdAdaptation, Coral, GradientReversal):
        assert says in reason(kind(), lacking)
        assert kind(hold_out="at-40").why_not(lacking) is None
    assert ImportanceWeighting().why_not(lacking) is None  # its batches are drawn from all
    assert reason(Hir(batch=8), few) == (
        "a batch of 8 does not hold one input of 3 classes from 3 domains; set batch=9 or more"
    )
    assert reason(Hir(batch=9, across=False), few).endswith("set batch=18 or more")
    headless = replace(few, model=nn.Sequential(nn.Conv1d(3, 3, 1), nn.Flatten()), layers={"last_conv": "0"})
    for kind in (MkMmdAdaptation, Coral, GradientReversal):
        assert "what enters the last linear layer, and the model has none" in reason(kind(), headless)
    assert Hir().why_not(headless) is None
    single = replace(few, data={**few.data, "at-40": Arrays(x[:1], y[:1])})
    assert "the domain 'at-40' has one input" in reason(Hir(), single)
    with pytest.raises(AssayError, match="The remedy 'hir' cannot be applied to 'few': hold-out=x is no domain"):
        cure("hir", few, settings={"hold-out": "x"}, out=tmp_path)
    for kind, given, words in (
        (Hir, {"alpha": -1.0}, "alpha=-1.0 is no weight"),
        (Coral, {"weight": -1.0}, "weight=-1.0 of 'coral'"),
        (GradientReversal, {"weight": float("nan")}, "weight=nan of 'gradient-reversal'"),
        (ImportanceWeighting, {"power": 2.0}, "power=2.0"),
        (ImportanceWeighting, {"nu": 0.0}, "nu=0.0 are no degrees"),
        (ImportanceWeighting, {"components": 0}, "components=0"),
    ):
        with pytest.raises(AssayError, match=words):
            kind(**given)  # type: ignore[operator]


@pytest.mark.parametrize("kind", [Coral, GradientReversal])
def test_what_diverges_hands_back_the_network_alone(
    kind: type[AcrossDomains], few: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverges(self: Any, model: nn.Module, *rest: Any, **more: Any) -> None:
        raise Diverged("It diverged.", model, 1)

    monkeypatch.setattr(kind, "hardened", diverges)
    with pytest.raises(Diverged) as caught:
        kind(**SMALL).apply(few, run)
    assert list(caught.value.model.state_dict()) == list(few.model.state_dict())


@pytest.mark.parametrize("name", ["hir", "gradient-reversal", "importance-weighting"])
def test_a_training_that_is_killed_goes_on_to_the_same_weights(
    name: str, few: Subject, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remedy = ALL[name](**{**SMALL, "epochs": 4})
    whole = remedy.apply(few, run)
    real, seen = _retraining._right, []

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
    steps: list[int] = []
    monkeypatch.setattr(_retraining, "_right", lambda *given: steps.append(1) or real(*given))
    assert_close(said(remedy.apply(few, kept)), said(whole))
    assert len(steps) == 1  # of the epochs that were left: the third, as the last tells nothing


@pytest.mark.usefixtures("undrawn")
def test_a_cure_shows_before_the_control_and_after_on_the_domain_held_out(few: Subject, tmp_path: Path) -> None:
    settings = {"epochs": 2, "batch": 36, "lr": 0.01, "hold-out": "at-60"}
    done = cure("hir", few, settings=settings, probes=["confidence-under-shift"], out=tmp_path)
    assert done.control is not None
    assert done.control.subject.name == "few+joint-retraining"
    sizes = {c.measure: c.after.n for c in done.changes if c.measure.startswith("accuracy on")}
    assert sizes == {"accuracy on at-40": 30, "accuracy on at-60": 60}
    assert any(
        "keeps part of 'at-40' for itself; before and after are both asked about the rest" in n for n in done.notes
    )
    assert any("start=scratch, hold-out=at-60, even=True)" in note for note in done.notes)
    page = done.page.read_text(encoding="utf-8")
    assert "was held out: neither trained on nor looked at" in page
    again = cure("hir", few, settings=settings, probes=["confidence-under-shift"], out=tmp_path)
    assert again.notes == done.notes


@pytest.mark.usefixtures("undrawn")
def test_before_the_control_and_after_meet_the_same_half_of_a_domain_without_labels(
    few: Subject, tmp_path: Path
) -> None:
    settings = {"epochs": 1, "batch": 36, "lr": 0.01, "hold-out": "at-60"}
    many = replace(few, unlabelled={"far": moved(4, 0.8, n=120)})
    probe = HowFarIsItFromHome(inputs=100, deals=19)
    done = cure("mk-mmd-adaptation", many, settings=settings, probes=[probe], out=tmp_path)
    for audit in (done.before, done.control, done.after):
        assert audit is not None
        (row,) = audit.rows
        assert row.answer.finding is not None
        assert row.answer.finding.measure("AUC, inputs, far").n == 60
    assert any("keeps part of 'at-40', 'far' for itself" in note for note in done.notes)
    (change,) = (c for c in done.since_before if c.measure == "MMD squared, inputs, far")
    assert change.before.value == pytest.approx(change.after.value)  # the very same inputs
