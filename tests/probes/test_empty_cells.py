"""Rows with empty cells, where the model takes them: who only asks the model asks, who computes with inputs says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from torch import Tensor, nn

import assay as package
from assay.door import admit
from assay.engine.local import ThisProcess
from assay.errors import SubjectError
from assay.inputs import Column, Row
from assay.jobs.verify import verify
from assay.probe import put
from assay.probes.attacked.worst_case_accuracy import WorstCaseAccuracy
from assay.probes.fair.is_it_fair import IsItFair
from assay.probes.right.accuracy import Accuracy
from assay.probes.right.which_labels_look_wrong import WhichLabelsLookWrong
from assay.probes.steady.does_it_depend_on_its_company import DoesItDependOnItsCompany
from assay.probes.steady.everyday_change import EverydayChange
from assay.probes.sure.confidence import Confidence
from assay.run import Budget, Run
from assay.subject import Subject

RUN = Run(engine=ThisProcess(), budget=Budget("tiny", samples=None, steps=2, restarts=1), debug=True)
ROW = Row(tuple(Column(f"c{i}", "number", 0.0, 10.0, 5.0, missing=i == 2) for i in range(3)))
BOUNDS = ((0.0,) * 3, (10.0,) * 3)


class Fills(nn.Module):
    """Class 1 where the first two columns and the third, or 5 where that is empty, come to more than 15."""

    def forward(self, x: Tensor) -> Tensor:
        there = torch.where(x.isnan(), 5.0, x)
        return torch.stack([torch.full_like(x[:, 0], 15.0), there.sum(1)], 1)


def data() -> tuple[np.ndarray, np.ndarray]:
    """Of two rows in three the cell is empty, the first among them; a row in ten has the other label."""
    x = 10 * torch.rand(120, 3, generator=torch.Generator().manual_seed(0))
    x[torch.arange(120) % 3 != 1, 2] = torch.nan
    y = Fills()(x).argmax(1)
    y[::10] = 1 - y[::10]
    return x.numpy(), y.numpy()


def table(model: nn.Module | None = None, **told: object) -> Subject:
    return Subject.of(model or Fills(), {"test": data(), "train": data()}, kind=ROW, bounds=BOUNDS, **told)


@pytest.mark.parametrize("probe", [Accuracy(), Confidence(), EverydayChange(), DoesItDependOnItsCompany()])
def test_who_only_asks_the_model_asks_about_empty_cells(probe) -> None:
    finding = put(probe, table(), RUN).finding
    assert finding is not None
    assert len(finding.samples) == 120
    if probe == Accuracy():
        assert finding.measure().value == pytest.approx(0.9)
    if probe == EverydayChange():  # what was empty stays so or is another row's, and no other column loses a cell
        assert finding.witnesses is not None
        assert np.isnan(finding.witnesses.changed[:, 2]).any()
        assert not np.isnan(finding.witnesses.changed[:, :2]).any()


def test_who_computes_with_inputs_says_which_column_is_empty() -> None:
    for probe in (WorstCaseAccuracy(), WhichLabelsLookWrong()):
        answer = put(probe, table(), RUN)
        assert answer.status == "does not apply"
        assert answer.why == (
            "it computes with inputs, and those of 'test' have empty cells, in the column 'c2'; fill them"
        )
    whole = table()
    x, y = (part.numpy() for part in whole.data["test"].take(np.arange(120)))
    whole = replace(whole, data={**whole.data, "test": type(whole.data["test"])(np.nan_to_num(x, nan=5.0), y)})
    assert WorstCaseAccuracy().why_not(whole) is None
    assert "those of 'train'" in (WhichLabelsLookWrong().why_not(whole) or "")
    with pytest.raises(SubjectError, match=r"Input 0 of 'train' has an empty cell in the column 'c2', .*; fill it\."):
        RUN.predict(whole, "train", np.arange(120), "")


def test_a_cell_that_may_not_be_empty_is_named_by_its_column() -> None:
    x, y = data()
    x[7, 1] = np.nan
    subject = Subject.of(Fills(), (x, y), kind=ROW, bounds=BOUNDS)
    answer = put(Accuracy(), subject, replace(RUN, debug=False))
    assert answer.why.startswith("Input 7 of 'test' has the value nan in the column 'c1'; fill it, or say that")
    with pytest.raises(SubjectError, match=r"Input 0 of 'test' has the value nan in feature 2; fill it, .*kind=Row"):
        Subject.of(Fills(), (x, y), bounds=BOUNDS)


def test_fairness_is_asked_but_for_the_attack() -> None:
    sex = np.where(np.arange(120) % 2 == 0, "f", "m")
    finding = put(IsItFair(hard=True), table(attributes={"sex": {"test": sex}}), RUN).finding
    assert finding is not None
    names = {m.name for m in finding.measures}
    assert "equalised odds difference under everyday change" in names
    assert not any("under attack" in name for name in names)
    assert any("Nobody was attacked" in a.says and "in the column 'c2'" in a.says for a in finding.alarms)


def test_an_empty_cell_is_no_input_that_was_changed_in_place() -> None:
    assert admit(table()).subject.notes == ()

    class InPlace(Fills):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.nan_to_num_(nan=5.0))

    assert "changes its input in place" in admit(table(InPlace())).subject.notes[0]


def test_a_forest_that_takes_empty_cells_gets_them_and_its_ranges_are_those_of_what_is_there() -> None:
    x, y = data()
    forest = RandomForestClassifier(9, random_state=0).fit(x, y)
    subject = Subject.of(forest, {"test": (x, y), "train": (x, y)}, kind=ROW)
    low, span = subject.inputs.edges()
    assert np.allclose(low, np.nanmin(x, 0))
    assert np.allclose(low + span, np.nanmax(x, 0))
    finding = put(Accuracy(), subject, RUN).finding
    assert finding is not None
    assert finding.measure().value == pytest.approx((forest.predict(x) == y).mean())


@pytest.mark.usefixtures("undrawn")
def test_a_run_about_empty_cells_is_whole(tmp_path: Path) -> None:
    done = package.audit(table(), probes=["accuracy", "everyday-change"], out=tmp_path)
    assert done.folder is not None
    found = verify(done.folder, lambda: admit(table()), RUN)
    assert (found.broken, found.lost, found.unchecked) == ((), (), ())
    assert all(q.witnesses == q.held > 0 for q in found.questions)
