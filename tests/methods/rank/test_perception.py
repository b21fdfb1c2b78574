"""What a model sees before and after a change, and the reader from outside: closed forms on linear models."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.rank.maps import grey
from assay.methods.rank.perception import KEPT, gate, nearest_reader, perceive, random_change, read
from assay.methods.rank.walk import walk
from assay.nn.siamese import Siamese

SIDE, D = 4, 16


class Difference(nn.Module):
    """sigmoid(w . (e1 - e2))"""

    def __init__(self, w):
        super().__init__()
        self.register_buffer("w", w)

    def forward(self, a, b):
        return torch.sigmoid((a - b) @ self.w)


def ranker(w, keep=None):
    """Sees everything (or the directions `keep`, s d) and compares along w; draws what it sees."""
    encoder, decoder = nn.Sequential(nn.Flatten()), nn.Sequential(nn.Unflatten(1, (1, SIDE, SIDE)))
    if keep is not None:
        to, back = nn.Linear(D, len(keep), bias=False), nn.Linear(len(keep), D, bias=False)
        to.weight.data, back.weight.data = keep, torch.linalg.pinv(keep)
        encoder.append(to)
        decoder.insert(0, back)
    return Siamese(encoder, Difference(w), decoder).double().requires_grad_(False)


@pytest.fixture(scope="module")
def scene():
    """Blobs whose brightness along `truth` is their value; a mark in the first pixel has nothing to do with it."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(400, 1, SIDE, SIDE, generator=rng, dtype=torch.float64)
    truth = torch.linspace(0, 1, D, dtype=torch.float64)
    return x, x.flatten(1) @ truth


def fitted(x, values):
    """Least squares of the values on the pixels, the first pixel left out."""
    flat = x.flatten(1)[:, 1:]
    w = torch.linalg.lstsq(flat - flat.mean(0), (values - values.mean())[:, None]).solution[:, 0]
    return torch.cat([w.new_zeros(1), w])


def attack(model, x, partner, target):
    other = model.encode(partner)
    return walk(lambda a: model.compare(model.encode(a), other), x, target=target, steps=30, step=0.5)


def test_the_pair_is_what_the_decoder_makes_of_both(scene):
    x, _ = scene
    keep = torch.randn(3, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model = ranker(torch.ones(3), keep)
    seen = perceive(model, x[:5], x[5:10])
    onto = torch.linalg.pinv(keep) @ keep
    assert_close(seen.before.flatten(1), x[:5].flatten(1) @ onto.T)
    assert_close(seen.after.flatten(1), x[5:10].flatten(1) @ onto.T)
    assert_close(seen.map, grey(seen.before, seen.after), rtol=0, atol=0)
    assert_close(seen.change, seen.after - seen.before, rtol=0, atol=0)
    assert_close(seen.error, (seen.before - x[:5]).square().mean((1, 2, 3)))
    again = perceive(model, x[:5], x[5:10])
    assert_close(again.before, seen.before, rtol=0, atol=0)
    nothing = perceive(model, x[:5], x[:5])
    assert (nothing.map == 0).all()
    assert (nothing.change == 0).all()


def test_coherence_beats_a_random_change_and_a_model_that_learnt_permuted_values(scene):
    x, values = scene
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))
    reader = nearest_reader(x[100:], values[100:])
    a, b, rng = x[:50], x[50:100], torch.Generator().manual_seed(3)
    share = {}
    for name, learnt in (("true", values), ("permuted", values[order])):
        model = ranker(fitted(x, learnt))
        c = model(torch.stack([a, b], 1))
        target = (c < 0.5).double()
        end = attack(model, a, b, target)
        share[name] = read(reader, a, end.x, perceive(model, a, end.x), toward=target - c).coherent
        if name == "true":
            other = random_change(a, (end.x - a).flatten(1).norm(dim=1), rng=rng)
            share["random"] = read(reader, a, other, perceive(model, a, other), toward=target - c).coherent
    mean = {name: float(hits.double().mean()) for name, hits in share.items()}
    assert mean["true"] > 0.9
    assert mean["random"] < 0.7
    assert mean["permuted"] < 0.7


def test_movements_have_the_sign_of_the_target_and_the_gap_is_their_difference(scene):
    x, values = scene
    model, up = ranker(fitted(x, values)), torch.tensor([1.0, -1.0, 0.3, -0.2]).double()
    reader = lambda images: images.flatten(1).sum(1)  # noqa: E731
    after = x[4:8]
    moved = read(reader, x[:4], after, perceive(model, x[:4], after), toward=up)
    wanted = up.sign() * (after - x[:4]).sum((1, 2, 3))
    assert_close(moved.image_moved, wanted)
    assert_close(moved.perception_moved, wanted)  # this model sees everything
    assert_close(moved.gap, torch.zeros(4).double())
    assert (moved.coherent == (wanted > 0)).all()


def test_the_gap_is_positive_where_the_model_sees_more_than_there_is(scene):
    """A decoder that doubles every change: perception moves twice as far."""
    x, values = scene
    model = ranker(fitted(x, values))
    double = Siamese(model.encoder, model.tail, nn.Sequential(Twice(x.mean(0).flatten()), *model.decoder))
    c = model(torch.stack([x[:20], x[20:40]], 1))
    end = attack(model, x[:20], x[20:40], 0.0)
    reader = lambda images: images.flatten(1) @ torch.linspace(0, 1, D).double()  # noqa: E731
    moved = read(reader, x[:20], end.x, perceive(double, x[:20], end.x), toward=0 - c)
    assert_close(moved.gap, moved.image_moved)
    assert (moved.gap > 0).all()


class Twice(nn.Module):
    def __init__(self, centre):
        super().__init__()
        self.centre = centre

    def forward(self, e):
        return self.centre + 2 * (e - self.centre)


def test_a_mark_that_the_model_ignores_stays_in_what_it_sees(scene):
    x, values = scene
    model = ranker(fitted(x, values))
    marked = x[:20].clone()
    marked[:, :, 0, 0] = 1
    end = attack(model, marked, x[20:40], 1.0)
    seen = perceive(model, marked, end.x)
    assert (seen.after[:, :, 0, 0] == 1).all()
    assert (seen.map[:, 0, 0] == 0).all()
    assert (seen.map.flatten(1).amax(1) == 1).all()


def test_the_gate_opens_where_what_is_seen_can_be_read_and_not_where_it_cannot(scene):
    x, values = scene
    reader = nearest_reader(x[100:], values[100:])
    truth = torch.linspace(0, 1, D).double()
    blind = torch.randn(2, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    blind -= (blind @ truth)[:, None] * truth / truth.square().sum()  # sees nothing of the value
    a = x[:100]
    for keep, passes in ((None, True), (blind, False)):
        model = ranker(torch.ones(D if keep is None else 2), keep)
        told = gate(reader(a), reader(model.decode(model.encode(a))), values[:100])
        assert told.passes is passes
        assert told.image < told.constant
        assert told.kept == pytest.approx((told.constant - told.perception) / (told.constant - told.image))
    assert told.kept < KEPT
    perfect = gate(reader(a), reader(a), values[:100])
    assert perfect.kept == 1
    assert perfect.image == perfect.perception


def test_a_reader_that_cannot_read_inputs_opens_no_gate(scene):
    _, values = scene
    told = gate(torch.full((50,), 99.0), torch.full((50,), 99.0), values[:50])
    assert told.kept is None
    assert not told.passes


def test_the_nearest_reader_is_a_weighted_mean_and_exact_where_neighbours_agree(scene):
    x, values = scene
    reader = nearest_reader(x[100:], values[100:], k=3)
    got = reader(x[:10])
    for i in range(10):  # one at a time, as it is written
        distance = (x[100:] - x[i]).flatten(1).norm(dim=1)
        near = distance.argsort()[:3]
        weight = 1 / distance[near]
        assert_close(got[i], (weight * values[100:][near]).sum() / weight.sum())
    classes = torch.full((300,), 0.1, dtype=torch.float64)
    steady = nearest_reader(x[100:], classes)(x[:50])
    assert (steady == 0.1).all()  # to the bit
    assert_close(reader(x[100:110]), values[100:110], rtol=0, atol=1e-5)  # an input that is known


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), length=st.floats(0, 1.2))
def test_a_random_change_has_its_length_also_in_the_box(seed, length):
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(4, 1, 5, 5, generator=rng, dtype=torch.float64)
    x[:, :, 0] = 0  # many values at the bound
    wanted = torch.full((4,), length).double()
    for box in (None, (0.0, 1.0)):
        new = random_change(x, wanted, rng=rng, box=box)
        assert_close((new - x).flatten(1).norm(dim=1), wanted, rtol=1e-5, atol=1e-9)
        assert box is None or (new.min() >= 0 and new.max() <= 1)


def test_a_random_change_that_the_box_cannot_hold_goes_as_far_as_it_can():
    x = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    new = random_change(x, torch.tensor([9.0]).double(), rng=torch.Generator().manual_seed(0), box=(0.0, 1.0))
    assert set(new.flatten().tolist()) <= {0.0, 1.0}


def test_what_does_not_fit_is_refused(scene):
    x, values = scene
    model = ranker(torch.ones(D))
    with pytest.raises(ShapeError, match=r"\(2, 1, 4, 4\) before and \(3, 1, 4, 4\) after"):
        perceive(model, x[:2], x[:3])
    with pytest.raises(ShapeError, match="has to draw an input"):
        perceive(Siamese(nn.Flatten(), model.tail, nn.Identity()), x[:2], x[2:4])
    with pytest.raises(AssayError, match="5 nearest needs 5 inputs with a value each, got 3, 3"):
        nearest_reader(x[:3], values[:3])
