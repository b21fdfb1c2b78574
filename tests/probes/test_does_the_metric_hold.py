"""Does the metric hold: closed forms where a pencil is enough, the embedding for what it is, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.arrays import Arrays
from assay.errors import AssayError
from assay.methods.certify.nearest import attack
from assay.nn.members import Drawn
from assay.nn.nearest_neighbour import NearestNeighbour
from assay.probe import put
from assay.probes.compared import does_the_metric_hold
from assay.probes.compared.does_the_metric_hold import DoesTheMetricHold, score
from assay.subject import Subject


def ask(subject, run, **settings):
    answer = put(DoesTheMetricHold(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def beside(measure):
    return {b.label: b.value for b in measure.beside}


def nearest(points, owner, x, y, *, factor=None, **kwargs):
    model = NearestNeighbour(torch.tensor(points), torch.tensor(owner), factor=factor)
    return Subject.classifier(model.eval(), (torch.tensor(x), torch.tensor(y)), bounds=(0.0, 1.0), **kwargs)


ENDS = [[0.0, 0.0], [1.0, 0.0]]


def test_between_two_points_the_radius_is_the_distance_to_the_bisector(run):
    x, y = [[0.0, 0.0], [0.4, 0.9], [0.7, 0.0], [0.45, 0.0]], [0, 0, 1, 1]
    finding = ask(nearest(ENDS, [0, 1], x, y), run, radius=0.15)
    c = finding.samples.columns
    np.testing.assert_allclose(c["radius"], [0.5, 0.1, 0.2, 0.0], atol=1e-6)
    np.testing.assert_allclose(c["certified radius"], c["radius"], atol=1e-6)  # with two points the bound is tight
    assert c["wrong"].tolist() == [False, False, False, True]
    assert c["not certified"].tolist() == [False, True, False, True]
    assert finding.measure().name == "certified error"
    assert finding.measure().value == 0.5
    assert finding.measure("error").value == 0.25
    assert finding.measure("median certified radius").value == pytest.approx(0.1, abs=1e-6)
    (curve,) = finding.views
    assert [line.label for line in curve.lines] == ["Euclid"]
    assert curve.lines[0].y[0] == 0.25
    assert curve.lines[0].y[-1] >= 0.75
    assert curve.marks[0].value == 0.15
    assert not finding.alarms  # raw inputs: nothing has to be taken back


def test_a_metric_that_looks_along_another_axis_stands_beside_euclid(run):
    """d = 9 dx^2 + dy^2 between (0, 0) and (1, 1): the boundary is 9 x + y = 5, Euclid's x + y = 1."""
    points, factor = [[0.0, 0.0], [1.0, 1.0]], torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    x = [[0.5, 0.1], [0.1, 0.2], [0.2, 0.7]]
    finding = ask(nearest(points, [0, 1], x, [0, 0, 0], factor=factor), run, radius=0.1)
    mine = [(5 - 9 * a - b) / 82**0.5 for a, b in x]
    euclid = [(1 - a - b) / 2**0.5 for a, b in x]
    np.testing.assert_allclose(finding.samples.columns["radius"], mine, atol=1e-6)
    np.testing.assert_allclose(finding.samples.columns["radius, Euclid"], euclid, atol=1e-6)
    assert finding.measure().value == pytest.approx(1 / 3)
    assert beside(finding.measure()) == {"Euclid": pytest.approx(1 / 3)}
    assert [line.label for line in finding.views[0].lines] == ["its metric", "Euclid"]


def test_a_training_point_that_stands_in_two_classes_is_told(run):
    finding = ask(nearest([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], [0, 1, 1], [[0.1, 0.0]], [0]), run)
    assert finding.samples.columns["radius"].tolist() == [0.0]
    (alarm,) = finding.alarms
    assert alarm.says.startswith("2 of 3 training points stand in two classes at once, the first at 0: ")


def test_behind_a_normalisation_the_radius_is_still_in_the_units_of_the_input(run):
    """The points are 0 and 1 after (x - 0.5) / 0.25 on one channel: in natural units 0.5 and 0.75."""
    points = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
    data = (torch.tensor([0.5, 0.7]).view(2, 1, 1, 1), torch.tensor([0, 1]))
    subject = Subject.classifier(NearestNeighbour(points, torch.tensor([0, 1])), data, mean=(0.5,), std=(0.25,))
    finding = ask(subject, run)
    np.testing.assert_allclose(finding.samples.columns["radius"], [0.125, 0.075], atol=1e-6)
    assert [line.label for line in finding.views[0].lines] == ["Euclid"]  # one scale for all is no metric of its own


def test_a_normalisation_that_differs_by_channel_is_a_metric(run):
    std = np.array([0.1, 0.2, 0.4])
    points = np.array([[0.2, 0.2, 0.2], [0.6, 0.4, 0.8]])
    x = np.array([[0.3, 0.3, 0.2], [0.5, 0.4, 0.9]])
    inner = NearestNeighbour(torch.tensor(points / std).float().view(2, 3, 1, 1), torch.tensor([0, 1]))
    data = (torch.tensor(x).float().view(2, 3, 1, 1), torch.tensor([0, 1]))
    finding = ask(Subject.classifier(inner, data, mean=(0.0, 0.0, 0.0), std=tuple(std.tolist())), run)
    away = (((x[:, None] - points) / std) ** 2).sum(2)  # 2 2
    ahead = np.array([away[0, 1] - away[0, 0], away[1, 0] - away[1, 1]])
    wanted = ahead / (2 * np.linalg.norm((points[1] - points[0]) / std**2))
    np.testing.assert_allclose(finding.samples.columns["radius"], wanted, rtol=1e-4)
    assert [line.label for line in finding.views[0].lines] == ["its metric", "Euclid"]


@pytest.mark.parametrize("k", [1, 3])
def test_bounds_are_in_order_and_the_vote_is_that_of_the_neighbours(k):
    rng = np.random.default_rng(0)
    points, owner = rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
    factor = rng.normal(size=(3, 3))
    for g in (None, factor):
        found = score(points, owner, x, y, k, g)
        fell = attack(points, owner, x, y, k, factor=g).radius
        assert found.exact == (k == 1)
        assert (found.bound <= found.radius + 1e-9).all()
        assert (found.radius <= fell + 1e-6).all()
        assert (found.radius[found.wrong] == 0).all()
        seen = np.eye(3) if g is None else g
        for i in range(40):
            away = np.linalg.norm((points - x[i]) @ seen.T, axis=1)
            votes = np.bincount(owner[np.argsort(away)[:k]], minlength=3)
            assert found.wrong[i] == (np.delete(votes, y[i]).max() >= votes[y[i]])
            assert found.apart[i] == pytest.approx(away[owner != y[i]].min())


def test_where_the_exact_radius_would_cost_too_much_the_bound_is_given_and_says_so(run, monkeypatch):
    subject = nearest(ENDS, [0, 1], [[0.1, 0.0], [0.8, 0.0]], [0, 1])
    assert "exact" in ask(subject, run).measure("median certified radius").about
    monkeypatch.setattr(does_the_metric_hold, "EXACT", 1)
    assert "bound" in ask(subject, run).measure("median certified radius").about


def test_of_a_network_the_embedding_is_scored_in_its_own_units(digits, run):
    finding = ask(digits, run, inputs=50)
    c = finding.samples.columns
    with torch.no_grad():
        body = nn.Sequential(*list(digits.model.children())[:-1])
        stored, owner = digits.data["train"].take(np.arange(len(digits.data["train"])))
        x, label = digits.data["test"].take(c["index"])
        e, f = body(stored).double(), body(x).double()
    away = torch.cdist(f, e)
    np.testing.assert_array_equal(c["wrong"], (owner[away.argmin(1)] != label).numpy())
    unit = float(np.median(away.masked_fill(owner == label[:, None], torch.inf).min(1).values))
    few = np.arange(0, 50, 10)
    plain = score(e, owner, f[few], label[few], 1, None)
    np.testing.assert_allclose(c["radius"][few], plain.radius / unit, rtol=1e-6)
    assert finding.measure().value == pytest.approx((c["radius"] <= 0.1).mean())
    assert finding.measure().value >= finding.measure("error").value
    assert set(beside(finding.measure("error"))) == {
        "raw inputs, Euclid",
        "the model's own answer",
        "always the commonest class",
    }
    assert [line.label for line in finding.views[0].lines] == ["embedding", "raw inputs, Euclid"]
    assert "What is certified is the embedding" in finding.alarms[0].says
    assert not any(m._forward_pre_hooks for m in digits.model.modules())


def test_the_embedding_of_a_random_network_is_its_mean_over_draws_also_where_they_share_a_batch(digits, run):
    net = digits.model
    still = Drawn(net, 10, rows_apart=True).eval()  # without noise: all draws are the network's own answer
    random = digits.cured(still, "drawn", draws=10)
    random = replace(random, layers={k: f"net.{v}" for k, v in digits.layers.items()})
    plain, drawn = ask(digits, run, inputs=50), ask(random, run, inputs=50)
    np.testing.assert_allclose(drawn.samples.columns["radius"], plain.samples.columns["radius"], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(drawn.samples.columns["wrong"], plain.samples.columns["wrong"])


def test_the_scale_of_an_embedding_changes_nothing(digits, run):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            *body, head = digits.model.children()
            self.body, self.head = nn.Sequential(*body), head

        def forward(self, x):
            return self.head(1000 * self.body(x))

    loud = replace(digits, model=Scaled().eval(), layers={})
    np.testing.assert_allclose(
        ask(loud, run, inputs=20).samples.columns["radius"],
        ask(digits, run, inputs=20).samples.columns["radius"],
        rtol=1e-4,
        atol=1e-6,
    )


def test_raw_inputs_that_are_too_many_numbers_are_left_out(digits, run, monkeypatch):
    monkeypatch.setattr(does_the_metric_hold, "RAW", 1)
    finding = ask(digits, run, inputs=5)
    assert [line.label for line in finding.views[0].lines] == ["embedding"]


def test_a_class_that_has_no_training_point_is_wrong_and_not_an_accident():
    found = score([[0.0], [1.0]], [0, 1], [[0.0], [0.2]], [0, 2], 1, None)
    assert found.wrong.tolist() == [False, True]
    assert found.radius.tolist() == [pytest.approx(0.5), 0.0]


def test_what_it_needs_is_named(digits, run):
    answer = put(DoesTheMetricHold(), replace(digits, data={"test": digits.data["test"]}), run)
    assert answer.status == "does not apply"
    assert "training data" in answer.why
    assert "['test']" in answer.why

    class Headless(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :10]

    answer = put(DoesTheMetricHold(), replace(digits, model=Headless(), layers={}), run)
    assert "'head'" in answer.why


def test_a_head_that_is_passed_twice_is_refused_in_one_line(digits, run):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            return self.head(x.flatten(1)) + self.head(-x.flatten(1))

    answer = put(DoesTheMetricHold(), replace(digits, model=Twice().eval(), layers={}), run)
    assert answer.status == "failed"
    assert "'head' was called 2 times in 1 passes" in answer.why


def test_bad_settings_are_refused():
    with pytest.raises(AssayError, match="K must be odd.*got 2"):
        DoesTheMetricHold(k=2)
    with pytest.raises(AssayError, match="radius=-1 .* at least 0"):
        DoesTheMetricHold(radius=-1)
    with pytest.raises(AssayError, match="share=nan"):
        DoesTheMetricHold(share=float("nan"))


def test_a_point_beyond_a_feature_that_never_varies_is_told_in_one_line(run):
    model = NearestNeighbour(torch.tensor([[0.0, 1.0], [1.0, 2.0]]), torch.tensor([0, 1]))
    data = (torch.tensor([[0.2, 1.0], [0.8, 1.0]]), torch.tensor([0, 1]))
    answer = put(DoesTheMetricHold(), Subject.classifier(model.eval(), data, bounds=((0.0, 1.0), (1.0, 1.0))), run)
    assert answer.status == "failed"
    assert "a feature that never varies" in answer.why


def test_more_votes_than_points_is_an_answer_too(run):
    answer = put(DoesTheMetricHold(k=5), nearest(ENDS, [0, 1], [[0.0, 0.0]], [0]), run)
    assert answer.status == "failed"
    assert "K is 5 and there are 2 training points" in answer.why


def test_a_split_of_data_is_asked_by_the_budget(digits, run):
    few = replace(digits, data={**digits.data, "train": Arrays(*digits.data["train"].take(np.arange(100)))})
    assert len(ask(few, run).samples) == 10 * run.budget.steps


def search(items, labels, queries, asked, **told):
    """Descriptors are the inputs themselves."""
    x, q = (np.asarray(each, dtype=np.float32) for each in (items, queries))
    return Subject.retrieval(nn.Identity(), (x, labels), (q, asked), bounds=(0.0, 1.0), metric="euclidean", **told)


def test_of_a_search_the_descriptor_is_certified_in_units_of_the_nearest_that_is_not_relevant(run):
    queries, asked = [[0.1, 0.0], [0.4, 0.9], [0.7, 0.0], [0.45, 0.0]], [0, 0, 1, 1]
    finding = ask(search(ENDS, [0, 1], queries, asked), run, share=0.2)
    c = finding.samples.columns
    unit = np.median([0.9, np.hypot(0.6, 0.9), 0.7, 0.45])
    np.testing.assert_allclose(c["radius"], np.array([0.4, 0.1, 0.2, 0.0]) / unit, atol=1e-6)
    assert c["wrong"].tolist() == [False, False, False, True]
    assert c["not certified"].tolist() == [False, True, False, True]
    assert finding.measure("error").value == 0.25
    assert "2 items of the gallery" in finding.says
    (about,) = finding.alarms
    assert about.says.startswith("What is certified is the descriptor")


def test_of_a_search_by_pairs_each_query_has_its_own_relevant_items(run):
    """One item is relevant for the first query and not for the second, so that no classifier could say both."""
    items, queries = [[0.0, 0.0], [0.5, 0.0], [1.0, 0.0]], [[0.1, 0.0], [0.1, 0.0]]
    finding = ask(search(items, [0, 0, 0], queries, [0, 0], pairs=[[0, 0], [0, 1], [1, 0]]), run)
    radius = finding.samples.columns["radius"]
    np.testing.assert_allclose(radius, np.array([0.65, 0.15]) / np.median([0.9, 0.4]), atol=1e-6)


def test_of_a_search_no_change_within_the_radius_breaks_it_and_some_a_little_larger_does(run):
    rng = np.random.default_rng(4)
    items, queries = rng.random((30, 3)), rng.random((40, 3))
    labels, asked = rng.integers(0, 3, 30), rng.integers(0, 3, 40)
    subject = search(items, labels, queries, asked)
    c = ask(subject, run).samples.columns
    held = ~c["wrong"]
    assert held.any()
    unit = np.median(
        [np.linalg.norm(items[labels != y] - q, axis=1).min() for q, y in zip(queries, asked, strict=True)]
    )
    d, target = torch.from_numpy(queries[held]).float(), torch.as_tensor(subject.data["test"].labels[held])
    radius = torch.from_numpy(c["radius"][held] * unit).float()
    steps = torch.randn(400, *d.shape, generator=torch.Generator().manual_seed(0))
    steps = steps / torch.linalg.vector_norm(steps, dim=2, keepdim=True)
    for scale, breaks in ((0.99, False), (1.6, True)):
        right = torch.stack([subject.task.right(d + scale * radius[:, None] * step, target) for step in steps])
        assert bool((~right).any()) == breaks


def test_a_gallery_that_is_too_large_is_told(monkeypatch):
    monkeypatch.setattr(does_the_metric_hold, "RAW", 3)
    subject = search(ENDS, [0, 1], [[0.1, 0.0]], [0])
    assert "its gallery holds 4 numbers" in str(DoesTheMetricHold().why_not(subject))
