"""Recycling: exact with a perfect autoencoder, nothing from nothing, better than a random change."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.errors import ShapeError
from assay.methods.rank.perception import random_change
from assay.methods.rank.recycling import recycle
from assay.methods.rank.walk import walk
from assay.nn.siamese import Siamese

N, D = 30, 12


class Difference(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.register_buffer("w", w)

    def forward(self, a, b):
        return torch.sigmoid((a - b) @ self.w)


def siamese(code, back, w):
    """A linear encoder (s d) and decoder (d s) of flat inputs."""
    encoder, decoder = nn.Linear(D, len(code), bias=False), nn.Linear(len(code), D, bias=False)
    encoder.weight.data, decoder.weight.data = code, back
    return Siamese(encoder, Difference(w), decoder).double().requires_grad_(False)


@pytest.fixture
def pairs():
    rng = torch.Generator().manual_seed(0)
    return torch.rand(2, N, D, generator=rng, dtype=torch.float64)


@pytest.fixture
def code():
    return torch.randn(D, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def attacked(model, a, b, target=0.0):
    other = model.encode(b)
    return walk(lambda x: model.compare(model.encode(x), other), a, target=target, steps=20, step=0.1).x


def test_a_perfect_autoencoder_recycles_the_attack_itself(pairs, code):
    a, b = pairs
    model = siamese(code, torch.linalg.inv(code), torch.ones(D))
    end = attacked(model, a, b)
    told = recycle(model, a, end, b)
    assert_close(told.change, end - a)
    assert_close(told.x, end)
    assert_close(told.c[2], told.c[1])
    assert_close(told.seen[2], told.seen[1])
    for ones in (told.perception, told.decision, told.cosine):
        assert_close(ones, torch.ones(N).double(), rtol=0, atol=1e-5)
    assert (told.spearman > 0.99).all()
    assert_close(*told.length)


def test_nothing_comes_of_nothing(pairs, code):
    a, b = pairs
    told = recycle(siamese(code, torch.linalg.inv(code), torch.ones(D)), a, a, b)
    assert (told.change == 0).all()
    assert_close(told.c[2], told.c[0], rtol=0, atol=0)
    assert_close(told.seen[2], told.seen[0], rtol=0, atol=0)
    assert told.decision.isnan().all()  # there is no ratio to nothing
    assert told.perception.isnan().all()


def test_algorithm_4_line_by_line(pairs, code):
    a, b = pairs
    back = torch.randn(D, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64) / 3
    model = siamese(code[:4], back, torch.ones(4))
    end = attacked(model, a, b)
    told = recycle(model, a, end, b)
    for i in range(3):  # one pair at a time, plain matrices
        h, h1 = back @ code[:4] @ a[i], back @ code[:4] @ end[i]
        d = h1 - h
        h2 = back @ code[:4] @ (a[i] + d)
        c, c1, c2 = (torch.sigmoid((code[:4] @ (x - b[i])).sum()) for x in (a[i], end[i], a[i] + d))
        assert_close(told.change[i], d)
        assert_close(told.perception[i], torch.cosine_similarity(h2 - h, h1 - h, 0), rtol=0, atol=1e-6)
        assert_close(told.decision[i], (c2 - c) / (c1 - c))
        assert_close(told.cosine[i], torch.cosine_similarity(d, end[i] - a[i], 0), rtol=0, atol=1e-6)
        assert_close(told.length[1][i], d.norm())


def test_a_decoder_that_draws_the_opposite_turns_the_decision_round(pairs, code):
    """With p = -e^-1 the recycled change is -ε: the ratio has to say so by its sign."""
    a, b = pairs
    model = siamese(code, -torch.linalg.inv(code), torch.full((D,), 0.1))
    told = recycle(model, a, attacked(model, a, b), b)
    assert (told.decision < 0).all()
    assert_close(told.cosine, -torch.ones(N).double(), rtol=0, atol=1e-5)
    assert_close(told.perception, -torch.ones(N).double(), rtol=0, atol=1e-5)


def test_the_perceived_change_beats_a_random_one_of_the_same_length(pairs, code):
    """The decoder of principal directions: d lies where the model looks, a random change hardly does."""
    a, b = pairs
    basis = torch.linalg.qr(code).Q[:, :3]  # d 3
    model = siamese(basis.T.contiguous(), basis, torch.ones(3))
    end = attacked(model, a, b)
    told = recycle(model, a, end, b)
    zero = torch.zeros_like(a)
    noise = random_change(zero, told.length[1], rng=torch.Generator().manual_seed(3))
    blind = recycle(model, a, end, b, instead=noise)
    assert_close(blind.length[1], told.length[1])
    assert told.perception.mean() > 0.99
    assert blind.perception.abs().mean() < 0.8
    assert (told.decision > 0).all()
    assert told.decision.median() > blind.decision.median() + 0.5
    assert_close(blind.seen[1], told.seen[1])  # the attack is the same


def test_clipping_is_an_option(pairs, code):
    a, b = pairs
    model = siamese(code, 20 * torch.linalg.inv(code), torch.ones(D))
    end = attacked(model, a, b)
    free, cut = recycle(model, a, end, b), recycle(model, a, end, b, box=(0.0, 1.0))
    assert free.x.min() < 0 or free.x.max() > 1
    assert cut.x.min() >= 0
    assert cut.x.max() <= 1
    assert_close(cut.change, free.change)


def test_what_does_not_fit_is_refused(pairs, code):
    a, b = pairs
    with pytest.raises(ShapeError, match=r"of one shape, got \(30, 12\), \(30, 12\), \(3, 12\)"):
        recycle(siamese(code, code, torch.ones(D)), a, a, b[:3])
