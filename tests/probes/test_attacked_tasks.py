"""What is asked about attacks and everyday change of tasks that are no classes: closed forms, words, witnesses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import assay
from assay.engine.local import ThisProcess
from assay.jobs.verify import verify
from assay.probe import judge_witnesses, put
from assay.probes.attacked.distance_to_failure import DistanceToFailure
from assay.probes.attacked.one_change_for_all import OneChangeForAll
from assay.probes.attacked.worst_case_accuracy import WorstCaseAccuracy
from assay.probes.steady.everyday_change import EverydayChange
from assay.run import Run
from assay.subject import Subject
from assay.tasks import Labels, Regression, Segmentation

PIXELS = 64
RADIUS = 0.03


class Weighted(nn.Module):
    """A weighted sum of the pixels; with `noise`, of the pixels and dice."""

    def __init__(self, weight: Tensor, noise: float = 0.0) -> None:
        super().__init__()
        self.weight, self.noise = nn.Parameter(weight), noise

    def forward(self, x: Tensor) -> Tensor:
        out = x.flatten(1) @ self.weight.T
        return out + self.noise * torch.randn_like(out) if self.noise else out


class AnswersOnly(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach()).detach()


def weights(numbers: int = 1) -> Tensor:
    return torch.randn(numbers, PIXELS, generator=torch.Generator().manual_seed(0)) / 8


def regression(model: nn.Module | None = None, *, draws: int = 1, bounds: tuple[float, float] = (0.0, 1.0)) -> Subject:
    """A regression with a tolerance of 0.3 and known errors up to 0.36, so that some are wrong as they are."""
    rng = torch.Generator().manual_seed(1)
    low, high = bounds
    x = low + (high - low) * (0.3 + 0.4 * torch.rand(40, 1, 8, 8, generator=rng))
    with torch.no_grad():
        y = Weighted(weights())(x) - torch.linspace(-0.36, 0.36, 40)[:, None]
    return Subject.of(
        model or Weighted(weights()), {"test": (x.numpy(), y.numpy())}, Regression(("age",), (0.3,), ("years",)),
        bounds=bounds, draws=draws, differentiable=not isinstance(model, AnswersOnly),
    )  # fmt: skip


def room() -> np.ndarray:
    """What is left of the tolerance, below 0 where the answer is wrong as it is."""
    return 0.3 - np.abs(np.linspace(-0.36, 0.36, 40))


def test_the_worst_case_of_a_regression_is_the_one_known_by_hand(run: Run) -> None:
    exact = {"linf": room() / float(weights().abs().sum()), "l2": room() / float(weights().norm())}
    radius = {"linf": float(np.median(exact["linf"])), "l2": float(np.median(exact["l2"]))}
    finding = put(
        WorstCaseAccuracy(radius=radius["linf"], l2_radius=radius["l2"], steps=10),
        regression(),
        replace(run, debug=True),
    ).finding
    assert finding is not None
    columns = finding.samples.columns
    assert "label" not in columns
    assert np.array_equal(columns["clean"], room() > 0)
    for norm in ("linf", "l2"):
        clear = np.abs(exact[norm] / radius[norm] - 1) > 0.01
        assert np.array_equal(columns[f"held {norm}"][clear], (exact[norm] > radius[norm])[clear])
    right = room() > 0
    np.testing.assert_allclose(columns["smallest l2"][right], exact["l2"][right], rtol=0.02)
    assert finding.measures[0].name == "worst-case accuracy"
    assert [b.label for b in finding.measures[0].beside] == ["always says the median", "clean accuracy"]
    assert not any(view.name == "by-class" for view in finding.views)
    captions = [e.caption for view in finding.views if view.name == "broken" for e in view.exhibits]
    assert captions
    assert all(" years, said " in caption for caption in captions)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (0.0, 255.0)])
def test_witnesses_hold_the_targets_and_the_outputs(run: Run, bounds: tuple[float, float]) -> None:
    subject = regression(bounds=bounds)
    task, data = subject.task, subject.data["test"]
    for probe in (
        WorstCaseAccuracy(radius=RADIUS, l2_radius=0.2, steps=5),
        DistanceToFailure(steps=20, inputs=20),
        OneChangeForAll(radius=RADIUS, steps=5),
        EverydayChange(corruptions=("brightness", "translation")),
    ):
        answer = put(probe, subject, replace(run, debug=True))
        assert answer.status == "asked", answer.why
        finding = answer.finding
        assert finding is not None
        witnesses = finding.witnesses
        assert witnesses is not None
        assert witnesses.label.shape == (len(witnesses), 1)
        assert witnesses.said.shape == (len(witnesses), 1)
        np.testing.assert_array_equal(witnesses.label, data.labels[witnesses.index])
        out = subject.predict(torch.from_numpy(witnesses.changed))
        np.testing.assert_allclose(witnesses.said, out.numpy(), rtol=1e-3, atol=1e-4)
        assert not task.right(out, torch.from_numpy(witnesses.label)).any()
        held, _ = judge_witnesses(witnesses, subject, run)
        assert held.all()
        # a change that does nothing is no witness, and the judge says so by the task
        right = task.right(
            subject.predict(torch.from_numpy(witnesses.clean)), torch.from_numpy(witnesses.label)
        ).numpy()
        back, why = judge_witnesses(replace(witnesses, changed=witnesses.clean), subject, run)
        assert np.array_equal(back, ~right)
        assert right.any()
        assert "which is right" in why[int(np.argmax(right))]


def test_the_smallest_change_is_the_one_known_by_hand(run: Run) -> None:
    finding = put(DistanceToFailure(steps=40, inputs=40), regression(), replace(run, debug=True)).finding
    assert finding is not None
    columns = finding.samples.columns
    index, right = columns["index"], room()[columns["index"]] > 0
    for norm, size in (("linf", weights().abs().sum()), ("l2", weights().norm())):
        exact = np.maximum(room()[index], 0) / float(size)
        np.testing.assert_allclose(columns[f"smallest {norm}"], exact, rtol=0.02, atol=1e-9)
        # to first order it is exact, as the margin is a line
        np.testing.assert_allclose(columns[f"first order {norm}"][right], exact[right], rtol=1e-3)


def test_one_change_breaks_the_side_that_it_pushes_to(run: Run) -> None:
    """Up or down: whichever it is, the inputs whose error points that way leave their tolerance, the others do not."""
    radius = 0.2 / float(weights().abs().sum())  # moves every answer by 0.2
    finding = put(OneChangeForAll(radius=radius, steps=20), regression(), replace(run, debug=True)).finding
    assert finding is not None
    columns = finding.samples.columns
    error = np.linspace(-0.36, 0.36, 40)[columns["index"]]
    sides = [np.abs(error + push) >= 0.3 for push in (-0.2, 0.2)]
    assert any((columns["error"] == side).mean() > 0.9 for side in sides)
    assert np.array_equal(columns["clean error"], np.abs(error) > 0.3)
    assert "said" not in columns
    assert [m.name for m in finding.measures] == ["error under one change", "beyond noise"]


def test_a_regression_without_gradients_is_asked_too(run: Run) -> None:
    subject = regression(AnswersOnly(weights()))
    broken = put(WorstCaseAccuracy(radius=0.2, steps=5), subject, replace(run, debug=True)).finding
    assert broken is not None
    assert broken.measures[0].value < 0.2
    far = put(DistanceToFailure(steps=10, inputs=12), subject, replace(run, debug=True)).finding
    assert far is not None
    exact = np.maximum(room()[far.samples.columns["index"]], 0) / float(weights().norm())
    found = far.samples.columns["smallest l2"]
    assert (found >= exact * (1 - 1e-4)).all()
    assert np.median(found) < 3 * np.median(exact)


def test_a_random_regression_is_judged_by_the_mean_of_its_passes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass in two is out of tolerance; the mean of 8 almost never is, and that is the answer that counts."""
    monkeypatch.setattr("assay.methods.attack.chance.PASSES", 64)  # 16 fresh answers to a point, for 32
    for module in ("methods.attack.chance", "probes.attacked.distance_to_failure"):
        monkeypatch.setattr(f"assay.{module}.MOST", 16)
    subject = regression(Weighted(weights(), noise=0.3), draws=8)
    few = replace(run, debug=True)
    finding = put(WorstCaseAccuracy(radius=0.001, l2_radius=0.001, steps=2), subject, few).finding
    assert finding is not None
    clean = finding.samples.columns["clean"]
    assert clean[np.abs(room() - 0.3) < 0.1].min() > 0.7
    assert finding.measures[0].value == pytest.approx(clean.mean(), abs=0.15)
    single = finding.measure("worst-case accuracy, a single draw").value
    assert single < clean.mean() - 0.15
    assert finding.measure("worst-case accuracy, asked 10 times").value <= clean.mean()
    for probe in (
        DistanceToFailure(steps=1, inputs=2),
        OneChangeForAll(radius=0.01, steps=3),
        EverydayChange(("fog",)),
    ):
        assert put(probe, replace(subject, draws=2), few).status == "asked"


def test_several_labels_at_once(run: Run) -> None:
    x = torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    model = nn.Sequential(Weighted(weights(3)), nn.Hardtanh(-100, 100))
    with torch.no_grad():
        y = (model(x) > 0).long()
    y[0] = 1 - y[0]
    subject = Subject.of(model, {"test": (x.numpy(), y.numpy())}, Labels(("red", "big", "new")), bounds=(0.0, 1.0))
    z, w = model(x).detach().abs(), weights(3).norm(dim=1)
    exact = (z / w).amin(1).numpy()  # to the nearest label that turns
    exact[0] = 0
    radius = float(np.median(exact))
    finding = put(
        WorstCaseAccuracy(radius=0.001, l2_radius=radius, steps=10), subject, replace(run, debug=True)
    ).finding
    assert finding is not None
    clear = np.abs(exact / radius - 1) > 0.03
    clear &= exact < 0.5  # the box is in the way of more
    assert np.array_equal(finding.samples.columns["held l2"][clear], (exact > radius)[clear])
    assert finding.witnesses is not None
    assert finding.witnesses.label.shape[1:] == (3,)


def test_everyday_change_counts_what_is_within_the_tolerance(run: Run) -> None:
    subject = regression()
    finding = put(EverydayChange(corruptions=("brightness",)), subject, replace(run, debug=True)).finding
    assert finding is not None
    columns = finding.samples.columns
    assert np.array_equal(columns["clean"], room() > 0)
    assert 0 < finding.measures[0].value < 1
    assert finding.measures[0].beside[0].label == "always says the median"


class Maps(nn.Module):
    """The mean of each pixel's surroundings, as the logits of "thing" and "ground"."""

    def __init__(self) -> None:
        super().__init__()
        self.sharp = nn.Parameter(torch.tensor(5.0))

    def forward(self, x: Tensor) -> Tensor:
        bright = nn.functional.avg_pool2d(x, 3, stride=1, padding=1) - 0.5
        return torch.cat([-bright, bright], 1) * self.sharp


@pytest.mark.usefixtures("undrawn")
def test_what_was_found_is_stored_and_verified(tmp_path: Path) -> None:
    x = torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    maps = Subject.of(
        Maps(), {"test": (x.numpy(), Maps()(x).argmax(1).numpy())}, Segmentation(("ground", "thing")), bounds=(0.0, 1.0)
    )
    for subject, shape in ((regression(), (1,)), (maps, (8, 8))):
        probes = [
            WorstCaseAccuracy(l2_radius=1.0, steps=5),
            DistanceToFailure(steps=5, inputs=6),
            OneChangeForAll(radius=0.1, steps=5),
            EverydayChange(corruptions=("brightness",)),
        ]
        audit = assay.audit(subject, probes=probes, out=tmp_path / subject.task.name())
        assert audit.folder is not None
        for probe in probes:
            finding = assay.open_audit(audit.folder, whole=True).row(probe.name()).answer.finding
            assert finding is not None
            assert finding.witnesses is not None
            assert finding.witnesses.label.shape[1:] == shape
            target, said = (torch.from_numpy(part[0]) for part in (finding.witnesses.label, finding.witnesses.said))
            assert subject.in_words(target, said) == (subject.task.told(target), subject.task.words(said))
        fresh = Run(engine=ThisProcess())
        assert verify(audit.folder, lambda subject=subject: (subject, ()), fresh).status == 0
