"""Subjects that compare two inputs: what they are made of, how their answers are read, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.pairs import Pairs
from assay.errors import AssayError, SubjectError
from assay.nn.siamese import Siamese
from assay.probe import put
from assay.probes.attacked.distance_to_failure import DistanceToFailure
from assay.probes.attacked.worst_case_accuracy import WorstCaseAccuracy
from assay.probes.compared.is_it_a_consistent_order import SHELVED as IsItAConsistentOrder
from assay.probes.right.accuracy import Accuracy
from assay.probes.steady.everyday_change import EverydayChange
from assay.subject import PairModel, Subject
from assay.tasks import Ranking, Similarity


class Mean(nn.Module):
    """The embedding is the mean of the picture: what it shows is how bright it is."""

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n 1
        return x.flatten(1).mean(1, keepdim=True)


class Sooner(nn.Module):
    """c = 1/2 + (a - b) / 2, as the right answer is for brightness from 0 to 1."""

    def forward(self, e1: Tensor, e2: Tensor) -> Tensor:  # n 1, n 1 -> n 1
        return 0.5 + (e1 - e2) / 2


class Apart(nn.Module):
    def forward(self, e1: Tensor, e2: Tensor) -> Tensor:
        return (e1 - e2).abs()


def grey(n: int = 40, side: int = 8) -> tuple[Tensor, np.ndarray]:
    """Pictures of one grey each, from black to white, with their brightness."""
    value = np.linspace(0.05, 0.95, n)
    return torch.tensor(value, dtype=torch.float32)[:, None, None, None].expand(n, 1, side, side).clone(), value


@pytest.fixture
def brighter() -> Subject:
    return Subject.ranker(Siamese(Mean(), Sooner()), grey(), low=0.0, high=1.0, pairs=120)


def test_the_right_comparison():
    cars = Ranking(50, 400)
    assert cars.target(np.array([150.0 - 250.0])) == pytest.approx(-100 / 700 + 0.5)  # printed 0.36
    gaps = np.linspace(-350, 350, 11)
    np.testing.assert_allclose(cars.target(gaps) + cars.target(-gaps), 1)
    assert cars.target(np.array([0.0, 350.0, -350.0])).tolist() == [0.5, 1.0, 0.0]


def test_odds_are_those_of_the_comparison_and_finite_at_its_ends():
    c = torch.tensor([0.0, 0.2, 0.5, 0.9, 1.0])
    odds = Ranking(0, 9).odds(c)
    torch.testing.assert_close(odds[1:4].sigmoid(), c[1:4])
    assert torch.isfinite(odds).all()
    assert (Similarity(2.0).odds(torch.tensor([0.0, 2.0, 6.0])).tolist()) == [1.0, 0.0, -2.0]


def test_a_ranker_is_a_model_of_pairs_with_its_range(brighter):
    assert isinstance(brighter.model, PairModel)
    assert brighter.inputs.shape == (2, 1, 8, 8)
    assert brighter.inputs.is_picture
    assert not brighter.inputs.is_image
    x, _ = brighter.pairs["test"].take(np.arange(5))
    np.testing.assert_allclose(brighter.model(x), brighter.task.target(brighter.pairs["test"].gaps[:5]), atol=1e-6)
    learnt = Subject.ranker(Siamese(Mean(), Sooner()), grey(), pairs=10)
    assert (learnt.task.low, learnt.task.high) == (0.05, 0.95)


@pytest.fixture
def tied(brighter) -> Subject:
    """Of its pairs about half have equal values."""
    singles = brighter.pairs["test"].singles
    return Subject.ranker(Siamese(Mean(), Sooner()), Pairs.ranked(singles, [0.2, 0.4] * 20, 60))


def test_its_choice_is_a_class_of_the_pairs_that_have_an_order(brighter, tied):
    order = tied.in_classes()
    assert order.task.classes == ("lower", "higher")
    assert len(order.data["test"]) == tied.pairs["test"].untied < len(tied.data["test"])
    assert order.in_classes() is order
    x, _ = grey(6)
    pair = torch.stack([x[:3], x[3:]], 1)
    torch.testing.assert_close(order.model(pair).softmax(1)[:, 1], brighter.model(pair))


def test_its_answer_is_that_of_the_model_whatever_is_asked(brighter):
    """The task reads what `predict` gives, and says of each pair what its logits say."""
    x, y = brighter.data["test"].take(np.arange(40))
    out, logits = brighter.predict(x), brighter.in_classes().predict(x)
    torch.testing.assert_close(out, brighter.model(x))
    task, chosen = brighter.task, brighter.in_classes().task
    for flipped in (y, 1 - y):
        assert torch.equal(task.right(out, flipped), chosen.right(logits, flipped))
        torch.testing.assert_close(task.margin(out, flipped), chosen.margin(logits, flipped))
    torch.testing.assert_close(task.confidence(out), chosen.confidence(logits))


@pytest.mark.parametrize("task", [Ranking(0, 1), Similarity(2.0)])
def test_even_odds_are_the_first_class_by_every_reading(task):
    even, label = torch.tensor([task.tie, task.tie]), torch.tensor([0, 1])
    chosen = task.choice(nn.Identity(), {})
    assert task.right(even, label).tolist() == [True, False]
    assert (task.margin(even, label) > 0).tolist() == [True, False]
    assert chosen.task.right(chosen.model(even), label).tolist() == [True, False]


def test_a_pair_without_an_order_is_asked_about_only_where_ties_count(tied, run):
    """No answer to two equal values is right or wrong, and what is asked of the comparison itself wants all pairs."""
    asked = put(Accuracy(), tied, run).finding.samples.columns["index"]
    assert asked.tolist() == list(range(tied.pairs["test"].untied))
    both = put(IsItAConsistentOrder(inputs=3), tied, run).finding.samples.columns["index"]
    assert both.tolist() == list(range(len(tied.data["test"])))


def test_questions_that_need_no_comparison_are_put_to_pairs(brighter, run):
    """Each picture may move by r, so a pair holds exactly where its gap is above 2 r."""
    found = put(Accuracy(), brighter, run).finding
    assert found.measure().value == 1.0
    gap = np.abs(brighter.pairs["test"].gaps[: brighter.pairs["test"].untied])
    worst = put(WorstCaseAccuracy(radius=0.1), brighter, run).finding
    assert worst.measure().value == pytest.approx((gap > 0.2).mean(), abs=0.03)
    assert worst.witnesses.changed.shape[1:] == (2, 1, 8, 8)
    assert any(view.name == "broken" for view in worst.views)
    far = put(DistanceToFailure(inputs=20), brighter, run).finding
    column, truth = far.samples.columns, gap[far.samples.columns["index"]] / 2
    near = truth < 0.25  # as far as the few steps of this budget get
    assert near.sum() > 10
    np.testing.assert_allclose(column["smallest linf"][near], truth[near], rtol=0.01)


def test_everyday_change_spoils_each_picture_of_a_pair_by_itself(brighter, run):
    """Both pictures lose the same contrast, so their order stays; noise of one kind may turn close pairs."""
    found = put(EverydayChange(corruptions=("contrast", "gaussian-noise")), brighter, run).finding
    matrix = next(view for view in found.views if view.name == "corruptions")
    assert matrix.values[0] == (1.0,) * 5
    assert found.witnesses is None or found.witnesses.clean.shape[1:] == (2, 1, 8, 8)


def test_a_similarity_is_a_classifier_by_its_threshold(run):
    x, values = grey()
    pairs = Pairs.alike(Subject.ranker(Siamese(Mean(), Sooner()), (x, values)).pairs["test"].singles, values > 0.5, 80)
    subject = Subject.similarity(Siamese(Mean(), Apart()), pairs, threshold=0.31)
    a, b = values[pairs.pairs].T
    said = np.abs(a - b) < 0.31
    assert np.abs(np.abs(a - b) - 0.31).min() > 1e-3  # no pair on the threshold, where rounding would choose
    found = put(Accuracy(), subject, run).finding
    assert found.measure().value == pytest.approx((said == (pairs.labels == 1)).mean())


def test_probes_that_are_not_for_pairs_say_so(brighter, run):
    from assay.probes.sure.confidence import SHELVED as Confidence

    answer = put(Confidence(), brighter, run)
    assert answer.status == "does not apply"
    assert "Ranking" in answer.why


class Broken(nn.Module):
    def __init__(self, out: float) -> None:
        super().__init__()
        self.out = out

    def forward(self, e1: Tensor, e2: Tensor) -> Tensor:
        return torch.full((len(e1),), self.out)


class OneOnly(nn.Module):
    def forward(self, e1: Tensor) -> Tensor:
        return e1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Subject.ranker(Mean(), grey()), "Mean is no model of pairs; give assay.nn.siamese.Siamese"),
        (
            lambda: Subject.ranker(Siamese(Mean(), OneOnly()), grey()),
            r"The tail does not take two embeddings of shape \(1, 1\)",
        ),
        (
            lambda: Subject.ranker(Siamese(nn.Linear(3, 2), Sooner()), grey()),
            "The model raised RuntimeError on an input",
        ),
        (
            lambda: Subject.ranker(Siamese(Mean(), Broken(1.5)), grey()),
            "output is one comparison from 0 to 1 .* returned 1.5 for a pair",
        ),
        (lambda: Subject.ranker(Siamese(Mean(), Broken(float("nan"))), grey()), "returned NaN or infinity for input 0"),
        (
            lambda: Subject.ranker(Siamese(Mean(), Sooner()), grey(), low=0.5),
            "value 0.05 of input 0 in 'test' lies out",
        ),
        (lambda: Subject.ranker(Siamese(Mean(), Sooner()), {"train": grey()}), "no split 'test', only"),
        (lambda: Subject.ranker(Siamese(Mean(), Sooner()), 5), "The data of 'test' is a int"),
        (
            lambda: Subject.ranker(Siamese(Mean(), Sooner()), ([np.zeros((1, 8, 8)), np.zeros((1, 8, 9))], [0, 1])),
            "a pair needs two of one shape",
        ),
        (lambda: Ranking(3, 3), "low 3 and high 3"),
        (lambda: Similarity(0), "threshold above 0"),
    ],
)
def test_bad_input_gets_one_line(make, words):
    with pytest.raises((AssayError, SubjectError), match=words) as e:
        make()
    assert "\n" not in str(e.value)
