"""Alone, in mixed company and among its own kind: a model that answers for its batch is told as that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.door import alone, moved
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.finding import Bars, Finding, Measure
from assay.probe import configure, put
from assay.probes.steady.does_it_depend_on_its_company import DoesItDependOnItsCompany
from assay.run import Run
from assay.standard import judge
from assay.subject import Subject

X = np.random.default_rng(0).random((90, 1, 4, 4), dtype=np.float32)
Y = (X.mean((1, 2, 3)) > np.median(X.mean((1, 2, 3)))).astype(np.int64)


class Bright(nn.Module):
    """Two classes by the brightness: against a fixed one, or against that of the batch."""

    def __init__(self, by_batch: bool, noise: float = 0.0) -> None:
        super().__init__()
        self.by_batch, self.noise = by_batch, noise

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1).mean(1)
        z = z - (z.mean() if self.by_batch else float(np.median(X.mean((1, 2, 3)))))
        z = 40 * z + self.noise * torch.randn_like(z)
        return torch.stack([-z, z], 1)


def asked(model: nn.Module, run: Run, targets: np.ndarray = Y, **options: int) -> Finding:
    subject = Subject.of(model, (X, targets), name="bright", **options)
    answer = put(DoesItDependOnItsCompany(company=15), subject, run)
    assert answer.finding is not None
    return answer.finding


def values(finding: Finding) -> dict[str, float]:
    return {m.name: m.value or 0.0 for m in finding.measures}


def test_one_that_answers_for_an_input_is_the_same_in_any_company(run: Run) -> None:
    found = asked(Bright(by_batch=False), run)
    seen = values(found)
    assert seen["answers moved by company"] == 0
    assert seen["accuracy alone"] == seen["accuracy in mixed company"] == seen["accuracy among its own kind"] > 0.95
    assert seen["accuracy lost alone"] == seen["accuracy lost among its own kind"] == 0
    assert "the same in any company" in found.says
    assert judge(DoesItDependOnItsCompany.standards[0], found).verdict == "pass"


def test_one_that_answers_for_its_batch_fails_and_each_accuracy_is_told(run: Run) -> None:
    found = asked(Bright(by_batch=True), run)
    seen = values(found)
    assert seen["answers moved by company"] > 0.95
    assert seen["accuracy alone"] == pytest.approx(0.5, abs=0.02)  # every brightness is that of its batch
    assert seen["accuracy in mixed company"] > 0.8
    assert 0.3 < seen["accuracy among its own kind"] < 0.7  # half of a batch of bright ones is below its mean
    lost = seen["accuracy in mixed company"] - seen["accuracy alone"]
    assert seen["accuracy lost alone"] == pytest.approx(lost)
    assert judge(DoesItDependOnItsCompany.standards[0], found).verdict == "fail"
    assert "move with their company: alone it is right on 50 %" in found.says
    (bars,) = found.views
    assert isinstance(bars, Bars)
    assert bars.labels == ("alone", "in mixed company", "among its own kind")


def test_the_table_pairs_the_same_input_in_each_company(run: Run) -> None:
    found = asked(Bright(by_batch=True), run)
    assert found.samples is not None
    columns = found.samples.columns
    model = Bright(by_batch=True)
    index = np.asarray(columns["index"])
    assert sorted(index) == list(range(90))
    order = index[np.argsort(Y[index], kind="stable")]  # 45 of each class: three batches of 15, and three
    x = torch.from_numpy(X)
    said = torch.cat([model(x[rows.copy()]).argmax(1) for rows in np.array_split(order, 6)])
    right = dict(zip(order.tolist(), (said.numpy() == Y[order]).tolist(), strict=True))
    assert [right[i] for i in index.tolist()] == np.asarray(columns["own"]).tolist()


def test_a_random_model_is_not_taken_for_one_that_looks_at_its_company(run: Run) -> None:
    few = replace(run, budget=replace(run.budget, samples=30))
    for by_batch in (False, True):
        torch.manual_seed(0)
        moved = values(asked(Bright(by_batch, noise=0.3), few, draws=4))["answers moved by company"]
        assert (moved > 0.3) == by_batch
        assert moved < 0.05 or by_batch


def test_of_a_regression_those_of_like_value_stand_together_and_of_masks_none_do(run: Run) -> None:
    numbers = nn.Sequential(nn.Flatten(), nn.Linear(16, 1), nn.Flatten(0))
    seen = values(asked(numbers, run, X.mean((1, 2, 3))))
    assert "accuracy among its own kind" in seen
    labels = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    several = np.random.default_rng(1).integers(0, 2, (90, 3))
    assert "accuracy among its own kind" not in values(asked(labels, run, several))


def test_an_input_is_compared_with_itself_whatever_order_its_batches_have() -> None:
    x = torch.from_numpy(X)
    backwards = torch.split(torch.arange(90).flip(0), 7)
    assert not moved(Bright(by_batch=False), x, backwards, alone(90)).any()
    assert moved(Bright(by_batch=True), x, backwards, alone(90)).sum() > 80


class Drowned(nn.Module):
    """What parts the classes is against that of the batch, and small beside what both logits share."""

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1).mean(1)
        return 1e4 * z[:, None] + Bright(by_batch=True)(x) / 40


def test_an_answer_that_turns_wrong_alone_has_moved_however_small_the_step(run: Run) -> None:
    found = asked(Drowned(), run)
    assert found.samples is not None
    columns = {name: np.asarray(column) for name, column in found.samples.columns.items()}
    turned = columns["alone"] != columns["mixed"]
    assert turned.mean() > 0.2
    assert columns["moved"][turned].all()
    assert "move with their company" in found.says


class Counting(Bright):
    """Keeps the sizes of the batches that it is shown."""

    def __init__(self) -> None:
        super().__init__(by_batch=True)
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return super().forward(x)


@pytest.mark.parametrize("shard", [10, 44, 89, 128])
def test_a_batch_is_as_large_as_is_said_however_the_inputs_are_sharded(shard: int, run: Run) -> None:
    model = Counting()
    subject = Subject.of(model, (X, Y), name="counting")
    whole = put(DoesItDependOnItsCompany(company=24), subject, run).finding
    model.sizes.clear()
    found = put(DoesItDependOnItsCompany(company=24), subject, replace(run, engine=ThisProcess(batch=shard))).finding
    assert found is not None
    assert whole is not None
    # 90 are 24 + 24 + 42, and 45 of each kind; two passes over a party in one batch tell whether the model is random
    assert {1, 24, 42, 45} <= set(model.sizes) <= {1, 24, 42, 45, 48, 66, 90}
    assert [m.value for m in found.measures] == [m.value for m in whole.measures]
    assert "among 23 or more others" in found.measures[0].about


class Wary(Bright):
    """Takes a batch of more than eight that are nearly all of one class for a fault, and answers the other."""

    def __init__(self) -> None:
        super().__init__(by_batch=False)

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        ruled = (z[:, 1] > z[:, 0]).float().mean()
        return z.flip(1) if len(x) > 8 and (ruled - 0.5).abs() > 0.45 else z


def test_one_that_changes_its_mind_among_its_own_kind_alone_fails(run: Run) -> None:
    """Alone and in mixed company nothing moves: it passed, as the same in any company."""
    found = asked(Wary(), run)
    seen = values(found)
    assert seen["accuracy alone"] == seen["accuracy in mixed company"] > 0.95
    assert seen["accuracy among its own kind"] < 0.05
    assert seen["answers moved by company"] > 0.95
    assert "move with their company" in found.says
    assert judge(DoesItDependOnItsCompany.standards[0], found).verdict == "fail"


class Tenths(nn.Module):
    """Ten classes by the first pixel; where most of a batch are of one class, it answers another."""

    def forward(self, x: Tensor) -> Tensor:
        z = -(10 * x[:, 0, 0, :1] - torch.arange(10) - 0.5).abs()
        ruled = len(x) > 1 and bool((z.argmax(1).bincount() > len(x) / 2).any())
        return z.flip(1) if ruled else z


@pytest.mark.parametrize(("of_each", "told"), [(9, False), (3, True)])
def test_a_batch_of_its_own_kind_has_one_class_however_few_there_are_of_it(of_each: int, told: bool, run: Run) -> None:
    """Batches of 15 that went on with the next class were mixed, and nothing said so."""
    y = np.arange(10 * of_each) % 10
    x = X[: len(y)].copy()
    x[:, 0, 0, 0] = (y + 0.5) / 10
    found = put(DoesItDependOnItsCompany(company=15), Subject.of(Tenths(), (x, y), name="tenths"), run).finding
    assert found is not None
    seen = values(found)
    assert seen["accuracy alone"] == seen["accuracy in mixed company"] == 1
    assert seen["accuracy among its own kind"] == 0
    assert seen["answers moved by company"] == 1
    own = found.measure("accuracy among its own kind")
    assert f"of one kind alone, usually of {of_each}" in own.about
    assert [alarm.doubts for alarm in found.alarms] == [(own.name,)] * told
    assert all(f"usually has {of_each} of the inputs asked" in alarm.says for alarm in found.alarms)


def test_where_few_of_a_kind_were_asked_it_is_not_called_the_same_in_any_company(run: Run) -> None:
    x, y = X[:30].copy(), np.arange(30) % 10
    subject = Subject.of(nn.Sequential(nn.Flatten(), nn.Linear(16, 10)), (x, y), name="few of each")
    found = put(DoesItDependOnItsCompany(company=15), subject, run).finding
    assert found is not None
    assert "the same alone and in mixed company" in found.says


class Thrown(Bright):
    """Throws its dice once for a whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 60 * torch.randn(()) * torch.tensor([1.0, -1.0])


def test_an_interval_allows_for_luck_that_a_batch_shares(run: Run) -> None:
    torch.manual_seed(0)
    few = replace(run, budget=replace(run.budget, samples=45))
    found = asked(Thrown(by_batch=False), few, draws=2)
    assert found.samples is not None
    for where in ("among its own kind", "alone"):
        lost = found.measure(f"accuracy lost {where}")
        over_inputs = Measure.mean(lost.name, found.samples.columns[f"lost {where}"], better="neither", seed=run.seed)
        assert lost.low <= over_inputs.low
        assert lost.high >= over_inputs.high
        if where == "among its own kind":  # alone, luck is an input's own
            assert lost.high - lost.low > 1.5 * (over_inputs.high - over_inputs.low)
        assert "share" in lost.about


def test_of_fewer_than_a_company_all_are_one(run: Run) -> None:
    subject = Subject.of(Bright(by_batch=True), (X[:9], Y[:9]), name="few")
    found = put(DoesItDependOnItsCompany(company=24), subject, run).finding
    assert found is not None
    assert "among 8 or more others" in found.measures[0].about


def test_a_company_of_one_is_refused() -> None:
    with pytest.raises(AssayError, match="company=1 of 'does-it-depend-on-its-company' must be a number of at least 2"):
        configure(DoesItDependOnItsCompany, {"company": "1"})
