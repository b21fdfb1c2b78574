"""Recalibration: fitted on one half of test, and what it leaves is the map of the method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from assay.data.arrays import Arrays
from assay.data.held_out import held_out
from assay.methods.uncertainty.dirichlet import fit_dirichlet
from assay.methods.uncertainty.ensemble_temperature import fit_ensemble_temperature
from assay.nn.recalibrated import Mixed, Remapped
from assay.remedies.recalibration import Recalibration
from assay.run import Run
from assay.subject import Subject


@pytest.mark.parametrize("kind", ["ets", "dirichlet"])
def test_it_is_the_map_of_the_method_fitted_on_the_half_that_left(digits: Subject, run: Run, kind: str) -> None:
    before, part = digits.fingerprint(), held_out(digits.data)
    remedy = Recalibration(kind=kind)  # type: ignore[arg-type]
    cured = remedy.apply(digits, run)
    x, y = digits.data["test"].take(part.fit)
    z = digits.predict(x)
    fitted = fit_ensemble_temperature(z, y) if kind == "ets" else fit_dirichlet(z, y)
    new, _ = cured.data["test"].take(torch.arange(50).numpy())
    torch.testing.assert_close(cured.predict(new).softmax(1), fitted.apply(digits.predict(new)), atol=1e-4, rtol=0)
    assert len(cured.data["test"]) == len(part.ask)
    assert f"({kind}), fitted on {len(part.fit):,} inputs" in cured.about
    if kind == "ets":
        assert torch.equal(cured.predict(new).argmax(1), digits.predict(new).argmax(1))
    assert digits.fingerprint() == before
    again = remedy.frame(digits)
    again.model.load_state_dict(cured.model.state_dict())
    torch.testing.assert_close(again.predict(new), cured.predict(new))


def test_before_a_fit_nothing_is_changed_and_a_split_for_calibration_comes_first(digits: Subject, run: Run) -> None:
    x, _ = digits.data["test"].take(torch.arange(40).numpy())
    for wrapped in (Mixed(digits.model), Remapped(digits.model, 10)):
        torch.testing.assert_close(wrapped(x).softmax(1), digits.model(x).softmax(1), atol=1e-6, rtol=0)
    hold, labels = digits.data["test"].take(torch.arange(300).numpy())
    cured = Recalibration().apply(replace(digits, data={**digits.data, "calibration": Arrays(hold, labels)}), run)
    assert "calibration" not in cured.data
    assert len(cured.data["test"]) == len(digits.data["test"])
    assert "single answers" in (Recalibration().why_not(replace(digits, draws=5)) or "")


def test_on_a_domain_it_is_fitted_there_and_test_stays_whole(digits: Subject, run: Run) -> None:
    x, y = digits.data["test"].take(torch.arange(400).numpy())
    odd = torch.where(torch.arange(400) % 3 == 0, (y + 1) % 10, y)
    elsewhere = replace(digits, data={**digits.data, "elsewhere": Arrays(x, odd)})
    part = held_out(elsewhere.data, "elsewhere")
    cured = Recalibration(domain="elsewhere").apply(elsewhere, run)
    fitted = fit_ensemble_temperature(digits.predict(x[part.fit]), odd[part.fit])
    torch.testing.assert_close(cured.predict(x).softmax(1), fitted.apply(digits.predict(x)), atol=1e-4, rtol=0)
    assert len(cured.data["elsewhere"]) == len(part.ask)
    assert len(cured.data["test"]) == len(digits.data["test"])
    assert "none of this subject's" in str(Recalibration(domain="nowhere").why_not(elsewhere))
