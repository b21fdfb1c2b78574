"""Questions about changes, put to a table and to padded series: nothing moves that nobody can change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Finding, Witnesses
from assay.inputs import Channel, Column, Row, Series
from assay.probe import judge_witnesses, put
from assay.probes.attacked.distance_to_failure import DistanceToFailure
from assay.probes.attacked.is_the_number_real import IsTheNumberReal
from assay.probes.attacked.one_change_for_all import OneChangeForAll
from assay.probes.attacked.worst_case_accuracy import WorstCaseAccuracy
from assay.run import Budget, Run
from assay.subject import Subject

RUN = Run(engine=ThisProcess(), budget=Budget("tiny", samples=20, steps=3, restarts=1, shown=2), debug=True)
ROW = Row(
    (
        Column("income", "number", 0.0, 100.0, 50.0),
        Column("age", "integer", 18, 58, 30),
        Column("colour", "category", 0, 2, 0, categories=("blue", "green", "red")),
        Column("member", "boolean", 0, 1, 0),
        Column("born", "integer", 1940, 2000, 1970, fixed=True),
        Column("rate", "number", -1.0, 1.0, 0.0, fixed=True),
    )
)
SERIES = Series(6, (Channel("heat", 0.0, 5.0), Channel("push", -1.0, 1.0)), padding=0.0)
PROBES = (
    WorstCaseAccuracy(radius=0.06),
    DistanceToFailure(inputs=10),
    OneChangeForAll(radius=0.2),
    IsTheNumberReal(radius=0.2, inputs=10),
)


class Scaled(nn.Module):
    """tanh units behind values as shares of their range, so that every column counts; in natural units."""

    def __init__(self, low: Tensor, span: Tensor, seed: int = 0) -> None:
        super().__init__()
        self.low, self.span = low.float(), span.float()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = nn.Sequential(nn.Flatten(), nn.Linear(low.numel(), 16), nn.Tanh(), nn.Linear(16, 2))
        self.model[1].weight.data *= 3

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model((x - self.low) / self.span - 0.5)
        return out


def subject_of(kind: Row | Series, x: Tensor, **told) -> Subject:
    low, span = kind.edges()
    model = Scaled(low, span)
    with torch.no_grad():
        margin = model(x).diff(dim=1)
        model.model[-1].bias[0] += margin.median()
        y = model(x).argmax(1)
    bounds = (low.flatten().tolist(), (low + span).flatten().tolist())
    half = len(x) // 2
    data = {"test": (x[:half].numpy(), y[:half].numpy()), "train": (x[half:].numpy(), y[half:].numpy())}
    return Subject.of(model, data, kind=kind, bounds=bounds, classes=("no", "yes"), **told)


@pytest.fixture(scope="module")
def table() -> Subject:
    low, span = ROW.edges()
    u = torch.rand(80, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return subject_of(ROW, ROW.typed((low + span * u).float()))


@pytest.fixture(scope="module")
def series() -> Subject:
    low, span = SERIES.edges()
    rng = torch.Generator().manual_seed(1)
    x = (low + span * (0.1 + 0.8 * torch.rand(80, 6, 2, generator=rng, dtype=torch.float64))).float()
    for row, length in enumerate(torch.randint(2, 7, (80,), generator=rng).tolist()):
        x[row, length:] = 0.0
    return subject_of(SERIES, x)


def asked(probe, subject: Subject) -> tuple[Finding, Witnesses]:
    answer = put(probe, subject, RUN)
    assert answer.finding is not None, answer.why
    assert answer.finding.witnesses is not None
    assert not [a for a in answer.finding.alarms if "judged afresh" in a.says]
    return answer.finding, answer.finding.witnesses


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name())
def test_what_breaks_a_table_is_a_row_that_someone_could_write(probe, table: Subject) -> None:
    finding, found = asked(probe, table)
    moved = found.changed != found.clean
    assert not moved[:, 4:].any()  # what is fixed
    assert moved[:, 0].any()
    assert (found.changed[:, 1:4] == np.round(found.changed[:, 1:4])).all()
    assert moved[:, 1].any()
    norms = np.array([norm.partition("+")[0] for norm in found.norm])
    codes = moved[:, 2:4].sum(1)
    assert (codes[norms != "l0"] <= (1 if probe.name() == "worst-case-accuracy" else 0)).all()
    assert "whole numbers in whole steps" in finding.says + finding.measures[0].about
    assert ("any one category at will" in finding.says) == (probe.name() == "worst-case-accuracy")
    with torch.no_grad():
        out = table.model(torch.from_numpy(found.changed))
    assert (out.argmax(1).numpy() != found.label).all()


def test_categories_count_only_where_they_may(table: Subject) -> None:
    """More categories break no less, and none at all are moved where none may be."""
    held = []
    for cells in (0, 1, 2):
        finding, found = asked(WorstCaseAccuracy(radius=0.01, steps=2, cells=cells), table)
        codes = (found.changed != found.clean)[:, 2:4].sum(1)
        assert codes.max() <= cells
        assert (codes.max() > 0) == (cells > 0)
        assert set(found.norm) <= ({"linf", "l2"} if cells == 0 else {f"linf+{cells}", f"l2+{cells}"})
        held.append(finding.measure("worst-case accuracy").value)
    assert held[0] > held[1] >= held[2]
    with pytest.raises(AssayError, match="cells=-1 .* at least 0"):
        WorstCaseAccuracy(cells=-1)


def test_a_category_alone_breaks_an_input_at_radius_0(table: Subject) -> None:
    _, found = asked(WorstCaseAccuracy(radius=0.0, l2_radius=0.0), table)
    moved = found.changed != found.clean
    assert len(found)
    assert (moved.sum(1) == 1).all()
    assert moved[:, 2:4].any(1).all()


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name())
def test_padding_never_moves(probe, series: Subject) -> None:
    _, found = asked(probe, series)
    there = np.asarray(SERIES.present(torch.from_numpy(found.clean)))
    assert not there.all()
    moved = found.changed != found.clean
    assert not (moved & ~there).any()
    assert moved[np.broadcast_to(there, moved.shape)].any()


def test_a_model_without_gradients_is_searched_within_its_reach(table: Subject) -> None:
    blind = replace(table, differentiable=False)
    worst, found = asked(WorstCaseAccuracy(radius=0.06, steps=1), blind)
    assert not (found.changed != found.clean)[:, 4:].any()
    assert worst.measures[0].value < 1.0
    assert "Square and a beam over cells" in worst.alarms[0].says
    far, found = asked(DistanceToFailure(inputs=4, steps=1), blind)
    assert far.measures[0].value > 0
    assert (found.changed[:, 1] == np.round(found.changed[:, 1])).all()


def broken(subject: Subject, norm: str, *changes: tuple[int, float], radius: float = 1.0) -> str:
    """What the judge says of an input of the table with these columns changed; its answer is called wrong."""
    x, _ = subject.data["test"].take(np.array([0]))
    changed = x.numpy().copy()
    for column, by in changes:
        changed[0, column] = by
    with torch.no_grad():
        said = subject.model(torch.from_numpy(changed)).argmax(1).numpy()
    witness = Witnesses(
        split="test", index=np.array([0]), clean=x.numpy(), changed=changed, label=1 - said, said=said,
        norm=(norm,), radius=np.array([radius]), how=("by hand",),
    )  # fmt: skip
    return judge_witnesses(witness, subject, RUN)[1][0]


def test_the_judge_refutes_what_nobody_can_change(table: Subject) -> None:
    x = table.data["test"].take(np.array([0]))[0][0].tolist()
    age, colour = x[1], x[2]
    up, other, flag = age + (1 if age < 58 else -1), (colour + 1) % 3, 1 - x[3]
    assert broken(table, "linf", (0, 40.0), (1, up)) == ""
    assert "'born', which nobody can change" in broken(table, "linf", (4, x[4] + (1 if x[4] < 2000 else -1)))
    assert "'rate', which nobody can change" in broken(table, "none", (5, x[5] / 2))
    assert "not in whole steps of 1" in broken(table, "linf", (1, (age + up) / 2))
    assert "none of its 3 codes" in broken(table, "linf+1", (2, colour + (0.03 if colour < 2 else -0.03)))
    assert "1 of its categories changed, and none may" in broken(table, "linf", (2, other))
    assert broken(table, "linf+1", (2, other), radius=0.0) == ""
    assert "2 of its categories changed, and 1 may" in broken(table, "linf+1", (2, other), (3, flag))
    assert broken(table, "l0", (2, other), (3, flag), radius=2.0) == ""
    assert "l0 distance 2 is above the radius 1" in broken(table, "l0", (2, other), (3, flag))
    narrow = replace(table, kind=Row((replace(ROW.columns[0], high=60.0), *ROW.columns[1:])))
    assert "'income' the value 60.5, outside its 0 to 60" in broken(narrow, "linf", (0, 60.5))
    assert broken(narrow, "linf", (0, 60.0)) == ""
    assert "unknown norm 'linf+x'" in broken(table, "linf+x", (0, 40.0))
    # without a kind nobody said so
    assert broken(replace(table, kind=None), "linf", (1, (age + up) / 2)) == ""


def test_a_missing_cell_is_no_number_to_the_judge(table: Subject) -> None:
    columns = tuple(replace(c, missing=c.name == "income") for c in ROW.columns)
    may = replace(table, kind=Row(columns), model=Filled(table.model))
    assert broken(may, "none", (0, float("nan"))) == ""
    assert broken(may, "l0", (0, float("nan"))) == ""
    assert "it empties a cell, feature 0" in broken(may, "linf", (0, float("nan")))
    x = np.array([[np.nan, 30, 0, 0, 1970, 0.0]], dtype=np.float32)
    for norm, says in (("linf", "it fills in a missing cell, feature 0"), ("none", "")):
        full = np.where(np.isnan(x), np.float32(40), x)
        label = 1 - may.predict(torch.from_numpy(full)).argmax(1).numpy()
        found = Witnesses(
            split="test", index=np.array([0]), clean=x, changed=full, label=label, said=1 - label,
            norm=(norm,), radius=np.array([1.0]), how=("by hand",),
        )  # fmt: skip
        assert judge_witnesses(found, may, RUN)[1] == [says]
    assert "leaves the box" in broken(replace(table, model=Filled(table.model)), "none", (0, float("nan")))


class Filled(nn.Module):
    """A model that reads a missing cell as 0."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x.nan_to_num(0.0))
        return out


def test_a_kind_of_another_shape_is_refused(table: Subject) -> None:
    with pytest.raises(AssayError, match=r"shape \(5,\), its inputs \(6,\)"):
        replace(table, kind=Row(ROW.columns[:5])).reach()


def test_codes_reach_the_model_whole_and_with_a_gradient() -> None:
    """Shares of 47 miss some whole numbers in single precision, where a look-up would take the one below."""
    codes = torch.arange(48.0)
    kind = Row((Column("code", "integer", 0, 47, 0), Column("rate", "number", 0.0, 10.0, 5.0)))
    seen = []

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x)
            return torch.stack([x[:, 0], x[:, 1]], 1)

    x = torch.stack([codes, torch.linspace(0, 10, 48)], 1)
    subject = Subject.of(Looks(), (x.numpy(), np.arange(48) % 2), kind=kind, bounds=((0.0, 0.0), (47.0, 10.0)))
    shares = subject.in_shares()
    u = shares.data["test"].take(np.arange(48))[0].requires_grad_()
    out = shares.model(u)
    assert torch.equal(seen[-1][:, 0], codes)
    assert torch.equal(seen[-1][:, 1], 0.0 + u[:, 1] * 10)  # a number is what it was
    assert torch.equal(torch.autograd.grad(out.sum(), u)[0], torch.tensor([47.0, 10.0]).expand(48, 2))
    plain = replace(subject, kind=Row((kind.columns[1], replace(kind.columns[1], name="other"))))
    assert plain.in_shares().model.kind is None


@pytest.mark.parametrize("gradients", [True, False])
def test_numbers_keep_to_their_own_range_where_the_bounds_are_wider(gradients: bool) -> None:
    class Edge(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            z = 0.35 - x[:, 0] - 0.02 * x[:, 1]
            return torch.stack([z, -z], 1)

    kind = Row((Column("a", "number", 0.0, 0.335, 0.1), Column("f", "boolean", 0, 1, 0)))
    x = np.stack([np.full(8, 0.29), np.zeros(8)], 1).astype(np.float32)
    y = np.zeros(8, dtype=np.int64)
    subject = replace(Subject.classifier(Edge(), (x, y), classes=("u", "v")), kind=kind, differentiable=gradients)
    with_flag, _ = asked(WorstCaseAccuracy(radius=0.1, steps=10), subject)
    assert with_flag.measures[0].value == 0.0
    found = with_flag.witnesses
    assert found is not None
    assert (found.changed[:, 0] <= 0.335 + 1e-6).all()
    without = put(WorstCaseAccuracy(radius=0.1, steps=10, cells=0), subject, RUN).finding
    assert without is not None
    assert without.measures[0].value == 1.0  # 0.35 is beyond what the column has
