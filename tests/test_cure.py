"""A cure asks the same before and after, keeps the cured weights, and does not train twice."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from assay import shelf
from assay.errors import AssayError
from assay.jobs.audit import audit
from assay.jobs.cure import Cure, cure
from assay.remedy import Remedy
from assay.run import Run
from assay.subject import Subject

TRAINED: list[float] = []


@dataclass(frozen=True)
class Turn(Remedy):
    """Turn the answers round."""

    by: float = 1.0
    source: ClassVar[str] = "nowhere"

    def apply(self, subject: Subject, run: Run) -> Subject:
        TRAINED.append(self.by)
        model = copy.deepcopy(subject.model)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(-self.by)
        return subject.cured(model, self.name())


@dataclass(frozen=True)
class Wrap(Turn):
    """Turn the answers round by another model."""

    def apply(self, subject: Subject, run: Run) -> Subject:
        TRAINED.append(self.by)
        return subject.cured(nn.Sequential(copy.deepcopy(subject.model), Negative()), self.name())


@dataclass(frozen=True)
class Plainly(Remedy):
    """Train plainly: here, shake the weights by the seed."""

    by: float = 1.0
    needs_train: ClassVar[bool] = True
    source: ClassVar[str] = "nowhere"

    def apply(self, subject: Subject, run: Run) -> Subject:
        TRAINED.append(run.seed)
        model = copy.deepcopy(subject.model)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(self.by * torch.randn(p.shape, generator=run.rng()))
        return subject.cured(model, type(self).__name__.lower())


@dataclass(frozen=True)
class Harder(Plainly):
    """Train otherwise."""

    def control(self) -> Remedy:
        return Plainly(by=self.by / 2)


class Negative(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -x


@pytest.fixture(autouse=True)
def on_shelf(monkeypatch: pytest.MonkeyPatch, undrawn: None) -> None:
    TRAINED.clear()
    real, named = shelf.load, shelf.names
    ours = {"turn": Turn, "wrap": Wrap}
    monkeypatch.setattr(shelf, "names", lambda which: sorted(ours) if which == "remedies" else named(which))
    monkeypatch.setattr(shelf, "load", lambda which, name: ours[name] if which == "remedies" else real(which, name))


def subject() -> Subject:
    """Wrong on every input but one in ten, so that turning it round helps."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(60, 1, 4, 4, generator=draw)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(torch.randn(2, 16, generator=draw))  # type: ignore[operator]
        y = model(x).argmin(1)
    y[::10] = 1 - y[::10]
    return Subject.classifier(model, (x, y), name="turned")


def cured(out: Path, remedy: str | Remedy = "turn", settings: dict[str, str] | None = None) -> Cure:
    return cure(remedy, subject(), settings=settings, probes=["accuracy"], out=out)


def test_before_and_after_are_asked_the_same_and_compared_in_pairs(tmp_path: Path) -> None:
    done = cured(tmp_path)
    assert done.before.row("accuracy").answer.finding.measure().value == pytest.approx(0.1)  # type: ignore[union-attr]
    assert done.after.row("accuracy").answer.finding.measure().value == pytest.approx(0.9)  # type: ignore[union-attr]
    assert done.after.subject.origin == ("test-cure",)
    change = next(c for c in done.changes if c.measure == "accuracy")
    assert change.paired
    assert change.difference == pytest.approx(0.8)
    assert change.verdict == "better"
    page = done.page.read_text(encoding="utf-8")
    assert "turned+test-cure" in page
    old, new = subject().model.state_dict(), load_file(done.weights)
    assert old.keys() == new.keys()
    assert all(torch.equal(new[name], -old[name]) for name in old)


def test_a_cure_is_not_applied_twice(tmp_path: Path) -> None:
    first, again = cured(tmp_path), cured(tmp_path)
    assert TRAINED == [1.0]
    assert again.folder == first.folder
    assert again.after.subject.fingerprint == first.after.subject.fingerprint
    assert again.after.subject.name == first.after.subject.name
    assert again.changes == first.changes


def test_other_settings_and_other_seeds_are_another_cure(tmp_path: Path) -> None:
    cured(tmp_path)
    cured(tmp_path, settings={"by": "2"})
    cure("turn", subject(), probes=["accuracy"], out=tmp_path, seed=1)
    assert TRAINED == [1.0, 2.0, 1.0]


def test_a_cure_that_was_stopped_in_its_last_audit_does_not_train_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def stops(of: Subject, **options: object) -> object:
        calls.append(of.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return audit(of, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("assay.jobs.cure.audit", stops)
    with pytest.raises(KeyboardInterrupt):
        cured(tmp_path)
    assert not (tmp_path / "cure.html").exists()
    done = cured(tmp_path)
    assert TRAINED == [1.0]
    assert done.page.exists()


def test_a_remedy_that_builds_another_model_is_applied_again_and_gives_the_same(tmp_path: Path) -> None:
    first, again = cured(tmp_path, Wrap()), cured(tmp_path, Wrap())
    assert TRAINED == [1.0, 1.0]
    assert again.after.subject.fingerprint == first.after.subject.fingerprint
    assert again.after.row("accuracy").answer.finding.measure().value == pytest.approx(0.9)  # type: ignore[union-attr]


def test_weights_that_someone_changed_are_not_believed(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    done = cured(tmp_path)
    with safe_open(done.weights, framework="pt") as f:
        about = f.metadata()
    save_file({name: t + 1 for name, t in load_file(done.weights).items()}, done.weights, metadata=about)
    again = cured(tmp_path)
    assert TRAINED == [1.0, 1.0]
    assert again.after.subject.fingerprint == done.after.subject.fingerprint


def test_a_broken_file_of_weights_names_itself(tmp_path: Path) -> None:
    done = cured(tmp_path)
    done.weights.write_bytes(b"not weights")
    with pytest.raises(AssayError, match=r"cured weights .*weights\.safetensors.*delete that file"):
        cured(tmp_path)


def test_a_remedy_that_does_not_apply_says_why_before_anything_is_asked(tmp_path: Path) -> None:
    class Trains(Turn):
        """Needs data to train on."""

        needs_train = True

    with pytest.raises(AssayError, match=r"cannot be applied to 'turned': it trains, and .* no split 'train'"):
        cured(tmp_path, Trains())
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match=r"no setting 'bye'; its settings: by"):
        cured(tmp_path, settings={"bye": "1"})


def test_several_trainings_have_a_seed_each_and_are_asked_about_the_same_inputs(tmp_path: Path) -> None:
    given = subject()
    given = replace(given, data={"train": given.data["test"], "test": given.data["test"]})
    done = cure(Harder(), given, probes=["accuracy"], out=tmp_path, seed=3, inputs=40, trainings=3)
    assert sorted(TRAINED) == [3, 3, 4, 4, 5, 5]
    audits = [(done.control, done.after), *done.further]
    assert len({each.subject.fingerprint for pair in audits for each in pair if each}) == 6
    values = np.array([
        [each.row("accuracy").answer.finding.measure().value for each in pair]  # type: ignore[union-attr]
        for pair in audits
    ])  # fmt: skip
    change = next(c for c in done.changes if c.measure == "accuracy")
    assert (change.paired, change.n) == (True, 40)
    assert change.difference == pytest.approx((values[:, 1] - values[:, 0]).mean())
    assert (change.before.value, change.after.value) == pytest.approx(tuple(values.mean(0)))
    assert "in the mean of 3 trainings" in done.notes[0]
    assert done.notes[1].startswith("Trained 3 times, with seeds 3 to 5: differences are means")
    assert "the mean of 3 trainings (" in done.page.read_text(encoding="utf-8")
    stored = json.loads((done.folder / "cure.json").read_text())
    assert [each["control"]["subject"] for each in stored["further_trainings"]] == ["turned+plainly"] * 2

    TRAINED.clear()
    without = cure(
        Harder(), given, probes=["accuracy"], out=tmp_path, seed=3, inputs=40, trainings=3, control=False
    )  # fmt: skip
    assert TRAINED == []
    assert without.folder == done.folder
    assert [plain for plain, _ in without.further] == [None, None]
    assert without.changes == without.since_before == done.since_before


def test_trainings_that_tell_nothing_are_refused(tmp_path: Path) -> None:
    for count in (0, 2):
        with pytest.raises(
            AssayError, match=rf"trainings={count} cannot tell a remedy from luck; give 1, or 3 or more"
        ):
            cure(Turn(), subject(), trainings=count, out=tmp_path)
    with pytest.raises(AssayError, match=r"trainings=3, and test-cure trains nothing; leave the trainings out"):
        cure(Turn(), subject(), trainings=3, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_old_subject_stays_as_it_was(tmp_path: Path) -> None:
    given = subject()
    before = given.fingerprint()
    cure("turn", given, probes=["accuracy"], out=tmp_path)
    assert given.fingerprint() == before
