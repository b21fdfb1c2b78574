"""How far to a tie: exact on a linear ranker, honest about what it did not find, and not to be talked round."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.arrays import Arrays
from assay.data.pairs import Pairs
from assay.errors import AssayError
from assay.finding import Finding, Gallery
from assay.nn.siamese import Distance, Siamese
from assay.probe import put
from assay.probes.compared.how_far_to_a_tie import HEADLINE, HowFarToATie
from assay.run import Run, Shard
from assay.standard import judge
from assay.subject import Subject

EDGE = torch.zeros(8, 8, dtype=torch.bool)
EDGE[0] = True


class Gap(nn.Module):
    """Sigmoid of the difference, as steep as it is told to be."""

    def __init__(self, steep: float = 1.0) -> None:
        super().__init__()
        self.steep = steep

    def forward(self, e1: Tensor, e2: Tensor) -> Tensor:
        return (self.steep * (e1 - e2)).sum(1).sigmoid()


def pictures(n: int = 40) -> Tensor:
    """Grey pictures of growing brightness, whose first row is always 0.5."""
    x = 0.4 + 0.1 * torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    x += 0.2 * torch.linspace(0, 1, n).view(-1, 1, 1, 1)
    x[:, 0, EDGE] = 0.5
    return x


def ranker(w: Tensor, tail: nn.Module | None = None, values: Tensor | None = None) -> Subject:
    linear = nn.Linear(64, 1, bias=False)
    linear.weight.data = w.flatten()[None]
    x = pictures()
    v = x[:, 0, ~EDGE].mean(1) if values is None else values
    data = Pairs.ranked(Arrays(x, torch.zeros(len(x), dtype=torch.long)), v.double().numpy(), 120)
    return Subject.ranker(
        Siamese(nn.Sequential(nn.Flatten(), linear), tail or Gap()), data, low=0, high=1, name="linear"
    )


def ask(subject: Subject, run: Run, **settings: object) -> Finding:
    answer = put(HowFarToATie(**settings), subject, run)  # type: ignore[arg-type]
    assert answer.finding is not None, answer.why
    return answer.finding


BRIGHT = torch.where(EDGE, 0.0, 1 / 56)


def test_on_a_linear_ranker_the_distance_is_known(run: Run) -> None:
    subject = ranker(BRIGHT, Gap(20.0))
    finding = ask(subject, run, pairs=60)
    assert finding.samples is not None
    columns = finding.samples.columns
    pairs = subject.pairs["test"]
    assert (columns["index"] < pairs.untied).all()
    x, _ = pairs.take(columns["index"])
    a, b = x.flatten(2).unbind(1)
    # whichever is longer changes by less of its length
    truth = ((a - b) @ BRIGHT.flatten()).abs() / BRIGHT.norm() / torch.maximum(a.norm(dim=1), b.norm(dim=1))
    np.testing.assert_allclose(columns["distance"], truth.numpy(), rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(columns["in one step"], truth.numpy(), rtol=2e-3, atol=1e-5)
    longer = np.where(a.norm(dim=1) >= b.norm(dim=1), "first", "second")
    assert (columns["changed"] == longer).mean() > 0.95
    assert columns["right"].all()
    assert columns["tie found"].all()
    assert finding.measure().value == pytest.approx(np.sort(truth.numpy())[29], rel=2e-3)
    assert finding.measure("one step over many").value == pytest.approx(1, rel=1e-3)
    assert finding.measure("rank correlation with the true gap").value == pytest.approx(1, abs=0.02)
    turned = finding.measure("random changes of that length that turn the answer")
    assert turned.value is not None
    assert turned.value < 0.02
    assert finding.measure("values that a tie is sensitive to").value == pytest.approx(56 / 64)
    assert not finding.alarms


def test_an_order_that_a_tiny_change_turns_fails_and_a_sturdy_one_passes(run: Run) -> None:
    """Both give every order right; one also reads a row that is the same in all pictures, and reads it loudly."""
    loud = BRIGHT + torch.where(EDGE, 3.0, 0.0) * torch.tensor([1.0, -1.0] * 4)
    verdicts = {}
    for name, w in (("sturdy", BRIGHT), ("fragile", loud)):
        finding = ask(ranker(w), run, pairs=80)
        assert finding.samples is not None
        assert finding.samples.columns["right"].all()
        verdicts[name] = judge(HowFarToATie.standards[0], finding).verdict
    assert verdicts == {"sturdy": "pass", "fragile": "fail"}


def test_wrong_orders_count_as_no_distance_at_all(run: Run) -> None:
    finding = ask(ranker(-BRIGHT), run, pairs=40)
    assert finding.measure().value == 0
    assert "40 of 40 (100 %) are in the wrong order" in finding.says
    assert finding.samples is not None
    assert (finding.samples.columns["distance"] > 0).all()
    assert not any(isinstance(v, Gallery) for v in finding.views)


def test_pairs_with_equal_values_are_not_asked_about(run: Run) -> None:
    values = torch.linspace(0, 1, 40).mul(4).round() / 4  # five kinds
    subject = ranker(BRIGHT, values=values)
    untied = subject.pairs["test"].untied
    assert untied < 120
    finding = ask(subject, run, pairs=120)
    assert finding.samples is not None
    assert sorted(finding.samples.columns["index"]) == list(range(untied))
    assert (finding.samples.columns["true gap"] > 0).all()


def test_a_similarity_has_its_tie_at_the_threshold(run: Run) -> None:
    x = pictures()
    data = Pairs.alike(Arrays(x, (torch.arange(40) >= 20).long()), (np.arange(40) >= 20), 60)
    subject = Subject.similarity(Siamese(nn.Flatten(), Distance()), data, threshold=0.9, name="distance")
    finding = ask(subject, run, pairs=40, clip=False)
    assert finding.samples is not None
    pairs, _ = data.take(finding.samples.columns["index"])
    a, b = pairs.flatten(2).unbind(1)
    truth = ((a - b).norm(dim=1) - 0.9).abs() / torch.maximum(a.norm(dim=1), b.norm(dim=1))
    np.testing.assert_allclose(finding.samples.columns["distance"], truth.numpy(), rtol=2e-3, atol=1e-5)
    assert "true gap" not in finding.samples.columns


def test_a_model_that_never_ties_is_not_measured_and_says_so(run: Run) -> None:
    class Never(nn.Module):
        def forward(self, e1: Tensor, e2: Tensor) -> Tensor:
            return 0.6 + 0.3 * (e1 - e2).sum(1).sigmoid()

    finding = ask(ranker(BRIGHT, Never(), values=torch.linspace(0, 1, 40)), run, pairs=30)
    assert finding.measure("pairs with a tie").value == 0
    assert finding.samples is not None
    assert finding.samples.columns["right"].any()
    assert np.isnan(finding.samples.columns["distance"]).all()
    assert "For 30 of 30 (100 %) of the pairs no tie was found" in finding.alarms[0].says
    assert HEADLINE in finding.alarms[0].doubts


def test_the_bounds_are_kept_unless_one_lets_go(run: Run) -> None:
    few = BRIGHT.clone()
    few[4, 4] = 0.2  # a pixel that has to give way a lot
    subject = ranker(few)
    x, y = subject.pairs["test"].take(np.arange(100))
    shard = Shard(x, y, np.arange(100), torch.Generator().manual_seed(0))
    tight = Subject.ranker(subject.model, subject.pairs["test"], low=0, high=1, bounds=(0.39, 0.71))
    for clip, probe in ((True, HowFarToATie()), (False, HowFarToATie(clip=False))):
        tie = probe._search(tight, 10, shard)["tie"]
        assert bool((tie >= 0.39).all() and (tie <= 0.71).all()) == clip


def test_the_nearest_ties_are_shown_nearest_first(run: Run) -> None:
    finding = ask(ranker(BRIGHT), run, pairs=50)
    gallery = finding.views[-1]
    assert isinstance(gallery, Gallery)
    assert finding.samples is not None
    columns = finding.samples.columns
    order = columns["index"][np.argsort(columns["distance"], kind="stable")]
    assert [e.index for e in gallery.exhibits] == order[:3].tolist()
    assert "a tie when the" in gallery.exhibits[0].caption
    assert len(gallery.exhibits[0].panels) == 3
    curve = finding.views[0]
    assert all(a >= b for line in curve.lines for a, b in zip(line.y, line.y[1:], strict=False))  # type: ignore[union-attr]


def test_with_a_single_value_half_of_the_random_changes_go_the_right_way(run: Run) -> None:
    x = torch.linspace(0.2, 0.8, 40)[:, None]
    data = Pairs.ranked(Arrays(x, torch.zeros(40, dtype=torch.long)), x[:, 0].numpy(), 60)
    finding = ask(Subject.ranker(Siamese(nn.Identity(), Gap()), data, low=0, high=1), run, pairs=50, clip=False)
    turned = finding.measure("random changes of that length that turn the answer").value
    assert turned == pytest.approx(0.5, abs=0.15)
    assert not any(isinstance(v, Gallery) for v in finding.views)  # no pictures


def test_the_same_seed_gives_the_same_answer_and_classifiers_are_left_alone(run: Run) -> None:
    subject = ranker(BRIGHT, Gap(20.0))
    assert ask(subject, run, pairs=20).measures == ask(subject, run, pairs=20).measures
    classifier = Subject.classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), (pictures(), torch.arange(40) % 2))
    assert "it needs a comparison of two inputs" in (HowFarToATie().why_not(classifier) or "")
    with pytest.raises(AssayError, match="directions=0 .* at least 1"):
        HowFarToATie(directions=0)
