"""Thresholds by group and reweighing: the identities they rest on, and what they do to the planted bias."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn

from assay import Subject, shelf
from assay.errors import AssayError
from assay.methods.fair.groups import counted, rates, spread
from assay.methods.fair.reweighing import reweighing
from assay.methods.fair.thresholds import _hull, thresholds
from assay.nn.by_group import ByGroup
from assay.remedies.group_thresholds import GroupThresholds
from assay.remedies.reweighing import Reweighing


@pytest.fixture(scope="module")
def hiring():
    return shelf.load("subjects", "hiring-mlp").build()


def gap(subject, name, rate):
    test = subject.data["test"]
    x, y = test.take(np.arange(len(test)))
    attribute = subject.attributes[name]
    said = subject.predict(x).argmax(1).numpy()
    table = counted(attribute.codes["test"], y.numpy(), said, sizes=(len(attribute.values), 2))
    tally = getattr(rates(table, (1,)), rate)
    return float(spread(tally, tally.enough()))


def test_under_the_weights_the_group_says_nothing_of_the_label_and_their_mean_is_one():
    rng = np.random.default_rng(0)
    g = rng.integers(0, 3, 500)
    y = (rng.random(500) < 0.2 + 0.2 * g).astype(int)
    w = reweighing(g, y)
    assert w.mean() == pytest.approx(1)
    shares = [w[(g == k) & (y == 1)].sum() / w[g == k].sum() for k in range(3)]
    np.testing.assert_allclose(shares, y.mean())
    for k in range(3):
        for c in range(2):
            rows = (g == k) & (y == c)
            np.testing.assert_allclose(w[rows], (g == k).mean() * (y == c).mean() / rows.mean())
    assert reweighing([-1, -1], [0, 1]).tolist() == [1, 1]
    some = np.where(np.arange(500) < 50, -1, g)
    np.testing.assert_allclose(reweighing(some, y), np.r_[np.ones(50), reweighing(g[50:], y[50:])])


def test_the_expected_odds_are_equal_on_what_the_thresholds_were_fitted_on():
    rng = np.random.default_rng(1)
    g, y = rng.integers(0, 3, 900), rng.integers(0, 2, 900)
    s = 1 / (1 + np.exp(-(1.0 + g) * (y - 0.5) - g + rng.normal(size=900)))  # one group is told apart worse
    q = thresholds(s, y, g, count=3).chance(s, g)
    assert ((q >= 0) & (q <= 1)).all()
    for label in (0, 1):
        told = [q[(g == k) & (y == label)].mean() for k in range(3)]
        np.testing.assert_allclose(told, told[0], atol=1e-9)
    accuracy = np.where(y == 1, q, 1 - q).mean()
    assert accuracy > max(y.mean(), 1 - y.mean())
    told = [thresholds(s, y, g, goal="parity", count=3).chance(s, g)[g == k].mean() for k in range(3)]
    assert (np.abs(told - (s >= 0.5).mean()) * np.bincount(g) < 0.5 + 1e-9).all()  # as near as whole people come
    with pytest.raises(AssayError, match="fewer than two labels"):
        thresholds(s, np.where(g == 1, 0, y), g, count=3)


def test_scores_that_many_share_are_parted_for_parity():
    s, g = np.r_[np.repeat([0.2, 0.8], [300, 700]), np.linspace(0, 0.6, 1000)], np.repeat([0, 1], 1000)
    q = thresholds(s, np.arange(2000) % 2, g, goal="parity", count=2).chance(s, g)
    np.testing.assert_allclose([q[g == k].mean() for k in (0, 1)], (s >= 0.5).mean(), atol=1e-3)
    assert (q[s == 0.8] < 1).all()


def test_the_hull_is_that_of_every_threshold_in_no_time():
    rng = np.random.default_rng(2)
    s, y = rng.integers(0, 40, 300) / 40, rng.integers(0, 2, 300)
    x, t, at = _hull(s, y)
    np.testing.assert_allclose(x, [(s[y == 0] >= a).mean() for a in at])
    np.testing.assert_allclose(t, [(s[y == 1] >= a).mean() for a in at])
    for a in np.unique(s):  # no threshold is above it
        assert (s[y == 1] >= a).mean() <= np.interp((s[y == 0] >= a).mean(), x, t) + 1e-12
    tracemalloc.start()
    _hull(rng.random(6000), np.arange(6000) % 2)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 6000**2 / 4  # one byte for each score and threshold would be four times that


def test_groups_of_near_states_are_told_apart_and_of_the_same_are_refused():
    model = ByGroup(nn.Linear(2, 2), [0], [[0.2], [0.4]])
    model.set(*torch.tensor([[2.0, -1.0], [2.0, -1.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))  # no to one, yes to all
    assert model(torch.tensor([[0.2, 0.5], [0.4, 0.5]])).argmax(1).tolist() == [0, 1]
    with pytest.raises(AssayError, match="the same numbers"):
        ByGroup(nn.Linear(2, 2), [0], [[0.2], [0.2]])


def test_rounding_does_not_toss_the_coin_again(hiring):
    class Even(nn.Module):
        def forward(self, x):
            return torch.zeros(len(x), 2) + 0 * x.sum(1, keepdim=True)

    x, _ = hiring.data["test"].take(np.arange(1500))
    model = ByGroup(Even(), [0], [[-99.0], [99.0]], *hiring.inputs.edges())
    model.near = 1e9  # everyone is of a group, and all hang on a coin
    model.set(*torch.tensor([[2.0, 2], [2, 2], [1, 1], [1, 1], [0.5, 0.5]]))
    said = model(x).argmax(1)
    assert 0.4 < said.float().mean() < 0.6
    assert (model(x * (1 + 1e-7)).argmax(1) != said).sum() <= 3


def test_thresholds_close_the_gaps_of_a_column_and_answer_the_same_each_time(hiring, run):
    odds, parity = (GroupThresholds(goal=goal).apply(hiring, run) for goal in ("odds", "parity"))
    for rate in ("true_positive", "false_positive"):
        assert gap(odds, "origin", rate) < gap(hiring, "origin", rate)
    assert gap(parity, "origin", "selection") < 0.5 * gap(hiring, "origin", "selection")
    x, _ = odds.data["test"].take(np.arange(50))
    assert torch.equal(odds.predict(x), odds.predict(x))
    assert "nearly alike may get different answers" in GroupThresholds().remarks(odds, run)[1]
    torch.testing.assert_close(odds.predict(x)[:7], odds.predict(x[:7]))  # in other company too
    assert len(odds.data["test"]) == 1500  # half was fitted on
    kept = GroupThresholds().frame(hiring)
    kept.model.load_state_dict(odds.model.state_dict())
    assert torch.equal(kept.predict(x), odds.predict(x))


def test_weights_close_the_gap_that_the_labels_have(hiring, run):
    remedy = Reweighing(epochs=3, optimiser="adam")
    assert remedy.control() is not None
    cured = remedy.apply(hiring, run)
    assert gap(cured, "sex", "selection") < 0.5 * gap(hiring, "sex", "selection")
    assert "go from" in remedy.remarks(cured, run)[0]


def test_weights_are_of_the_attribute_that_is_named_and_of_all_crossed_without(hiring):
    labels = np.asarray(hiring.data["train"].labels)
    codes = {name: hiring.attributes[name].codes["train"] for name in ("sex", "origin")}
    for name, other in (("sex", "origin"), ("origin", "sex")):
        w = Reweighing(attribute=name)._weights(hiring).numpy()
        np.testing.assert_allclose(w, reweighing(codes[name], labels))
        by = {
            of: np.array([w[(codes[of] == g) & (labels == 1)].sum() / w[codes[of] == g].sum() for g in (0, 1)])
            for of in (name, other)
        }
        assert np.ptp(by[name]) < 1e-9  # says nothing of the label any more
        assert np.ptp(by[other]) > 0.02  # still does
    both = codes["sex"] * len(hiring.attributes["origin"].values) + codes["origin"]
    np.testing.assert_allclose(Reweighing()._weights(hiring).numpy(), reweighing(both, labels))


def test_what_cannot_be_is_said_in_one_line(hiring):
    assert "no input here shows it" in (GroupThresholds(attribute="sex").why_not(hiring) or "")
    assert "is not known of the training inputs" in (Reweighing(attribute="age").why_not(hiring) or "")
    rng = np.random.default_rng(0)
    x = rng.random((90, 2), dtype=np.float32)
    three = Subject.of(nn.Linear(2, 3), {"test": (x, np.arange(90) % 3), "train": (x, np.arange(90) % 3)})
    assert "for two classes" in (GroupThresholds().why_not(three) or "")
    assert "--groups NAME@train=PATH" in (Reweighing().why_not(three) or "")
