"""Temperature: fitted on what then leaves the data, and kept with the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from assay.data.arrays import Arrays
from assay.data.held_out import held_out
from assay.jobs.cure import cure
from assay.methods.uncertainty import calibration_error
from assay.methods.uncertainty.scaling import fit_temperature
from assay.nn.scaled import Scaled
from assay.remedies.temperature import Temperature
from assay.run import Run
from assay.subject import Data, Subject


@pytest.fixture
def sharp(digits: Subject) -> Subject:
    """The digits, five times too sure."""
    model = Scaled(digits.model, 10)
    model.set(torch.full((10,), 5.0), torch.zeros(10))
    return replace(digits, model=model, about="Digits.")


def surprise(subject: Subject, data: Data) -> float:
    x, y = data.take(np.arange(len(data)))
    return float(F.cross_entropy(subject.predict(x), y))


def scale(subject: Subject) -> torch.Tensor:
    assert isinstance(subject.model, Scaled)
    return subject.model.scale


def test_it_is_fitted_on_one_half_of_test_and_the_other_half_stays(sharp: Subject, run: Run) -> None:
    part, before = held_out(sharp.data), sharp.fingerprint()
    cured = Temperature().apply(sharp, run)
    x, y = sharp.data["test"].take(part.fit)
    want = fit_temperature(sharp.predict(x), y).temperature
    assert want > 2
    assert float(1 / scale(cured)[0]) == pytest.approx(want, rel=1e-5)
    left = cured.data["test"]
    assert len(left) == len(part.ask)
    assert np.array_equal(left.take(np.arange(len(left)))[0], sharp.data["test"].take(part.ask)[0])
    assert left.fingerprint() != sharp.data["test"].fingerprint()
    assert set(cured.data) == {"test", "train"}
    assert surprise(cured, left) < 0.7 * surprise(sharp, left)
    x, _ = left.take(np.arange(len(left)))
    assert torch.equal(cured.predict(x).argmax(1), sharp.predict(x).argmax(1))
    assert cured.origin == ("temperature",)
    assert cured.about == (
        f"Digits. Its logits are scaled (temperature), fitted on {len(part.fit)} inputs: one half of 'test', which "
        "left the data."
    )
    assert sharp.fingerprint() == before


def test_a_split_for_calibration_is_used_up_and_test_stays_whole(sharp: Subject, run: Run) -> None:
    x, y = sharp.data["test"].take(np.arange(100))
    given = replace(sharp, data={**sharp.data, "calibration": Arrays(x, y)})
    cured = Temperature().apply(given, run)
    assert float(1 / scale(cured)[0]) == pytest.approx(fit_temperature(sharp.predict(x), y).temperature, rel=1e-5)
    assert set(cured.data) == {"test", "train"}
    assert cured.data["test"].fingerprint() == sharp.data["test"].fingerprint()  # so that comparisons are paired
    assert "the split 'calibration', which left the data" in cured.about


def test_vector_scaling_fits_a_factor_for_each_class(digits: Subject, run: Run) -> None:
    rng = torch.Generator().manual_seed(0)
    factor = torch.linspace(0.5, 2, 10)
    z = 3 * torch.randn(3000, 10, generator=rng)
    y = torch.multinomial((factor * z).softmax(1), 1, generator=rng)[:, 0]
    low, high = float(z.min()), float(z.max())
    inputs = replace(digits.inputs, shape=(10,), low=low, high=high)
    subject = replace(digits, model=torch.nn.Identity(), inputs=inputs, data={"test": Arrays(z, y)}, layers={})
    cured = Temperature(kind="vector").apply(subject, run)
    np.testing.assert_allclose(scale(cured), factor, rtol=0.25)
    one = Temperature().apply(subject, run)
    assert surprise(cured, cured.data["test"]) < surprise(one, one.data["test"]) < surprise(subject, one.data["test"])


def test_it_asks_the_model_in_eval_mode_and_leaves_its_mode(sharp: Subject, run: Run) -> None:
    asleep = Temperature().apply(sharp, run)
    sharp.model.train()
    awake = Temperature().apply(sharp, run)
    assert sharp.model.training
    sharp.model.eval()
    assert torch.equal(scale(asleep), scale(awake))


def test_it_can_be_applied_twice_and_the_second_finds_little_to_do(sharp: Subject, run: Run) -> None:
    once = Temperature().apply(sharp, run)
    twice = Temperature().apply(once, run)
    assert float(scale(twice)[0]) == pytest.approx(1, abs=0.35)
    assert twice.origin == ("temperature", "temperature")


def test_means_of_random_answers_are_not_scaled(sharp: Subject) -> None:
    assert "means of 5 random ones" in (Temperature().why_not(replace(sharp, draws=5)) or "")
    assert Temperature().why_not(sharp) is None
    assert Temperature().cost() == (0, 1)


def test_kept_weights_go_into_its_frame(sharp: Subject, run: Run) -> None:
    cured, frame = Temperature().apply(sharp, run), Temperature().frame(sharp)
    assert frame.fingerprint() != cured.fingerprint()
    frame.model.load_state_dict(cured.model.state_dict())
    assert frame.fingerprint() == cured.fingerprint()
    assert frame.about == cured.about


def test_logits_ten_times_too_sharp_get_a_temperature_of_ten_and_confidence_that_is_worth_itself(run: Run) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(3000, 4, generator=rng)
    y = torch.multinomial((4 * x).softmax(1), 1, generator=rng)[:, 0]
    sharp = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        sharp.weight.copy_(40 * torch.eye(4))
    subject = Subject.classifier(sharp, (x, y))
    cured = Temperature().apply(subject, run)
    assert float(1 / scale(cured)[0]) == pytest.approx(10, rel=0.15)
    x, y = cured.data["test"].take(np.arange(1500))
    errors = []
    for each in (subject, cured):
        p = each.predict(x).double().softmax(1)
        errors.append(calibration_error(p.amax(1), p.argmax(1) == y))
    assert errors[0].value > 0.3
    assert errors[1].value < 2 * errors[1].floor < 0.2 * errors[0].value  # about what a calibrated model shows


def test_a_cure_asks_before_and_after_about_the_same_inputs(sharp: Subject, tmp_path: Path) -> None:
    part = held_out(sharp.data)
    done = cure("temperature", sharp, probes=["accuracy"], out=tmp_path)
    assert done.control is None
    assert done.before.subject.data == done.after.subject.data
    assert done.before.subject.splits["test"] == len(part.ask) < len(sharp.data["test"])
    change = next(c for c in done.changes if c.measure == "accuracy")
    assert change.paired
    assert change.difference == 0
    assert change.why.startswith("paired on")
    note = f"keeps {len(part.fit):,} of the {len(sharp.data['test']):,} test inputs for itself"
    assert any(note in told for told in done.notes)
    assert note in done.page.read_text(encoding="utf-8")


def test_on_a_domain_it_is_fitted_to_one_half_and_the_other_stays(digits: Subject, run: Run) -> None:
    x, y = digits.data["test"].take(np.arange(400))
    odd = torch.where(
        torch.arange(400) % 3 == 0, (y + 1) % 10, y
    )  # labels that no home input has: it is too sure there
    elsewhere = replace(digits, data={**digits.data, "elsewhere": Arrays(x, odd)}, unlabelled={"dark": Arrays(x, y)})
    remedy, part = Temperature(domain="elsewhere"), held_out(elsewhere.data, "elsewhere")
    assert part.split == "elsewhere"
    assert sorted([*part.fit, *part.ask]) == list(range(400))
    cured = remedy.apply(elsewhere, run)
    want = fit_temperature(digits.predict(x[part.fit]), odd[part.fit]).temperature
    assert float(1 / scale(cured)[0]) == pytest.approx(want, rel=1e-5)
    left = cured.data["elsewhere"]
    assert np.array_equal(left.take(np.arange(len(left)))[0], x[part.ask])
    assert surprise(cured, left) < 0.9 * surprise(elsewhere, left)
    assert surprise(cured, left) < surprise(Temperature().apply(elsewhere, run), left)
    assert cured.data["test"].fingerprint() == digits.data["test"].fingerprint()
    assert list(cured.data) == list(elsewhere.data)
    assert "one half of 'elsewhere', which left the data" in cured.about
    assert "has no labels; domains with labels: elsewhere" in str(Temperature(domain="dark").why_not(elsewhere))
    assert "none of this subject's" in str(Temperature(domain="nowhere").why_not(elsewhere))
    few = replace(digits, data={**digits.data, "few": Arrays(x[:50], y[:50])})
    assert "'few' has 50 inputs; give at least 60" in str(Temperature(domain="few").why_not(few))
