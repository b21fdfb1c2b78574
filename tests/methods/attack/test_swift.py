from __future__ import annotations

import torch
from torch import nn

from assay.methods.attack.pgd import pgd
from assay.methods.attack.swift import Swift


def test_answers_are_the_models_own_and_gradients_come_from_padded_chunks(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)  # what is compiled is torch's affair
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval().requires_grad_(False)
    swift = Swift(model, sizes=(4, 8))
    sizes = []
    search = swift.search
    swift.search = lambda x: (sizes.append(len(x)), search(x))[1]
    x = torch.rand(19, 1, 8, 8)
    torch.testing.assert_close(swift(x), model(x))
    assert not sizes
    at = x.clone().requires_grad_()
    (fast,) = torch.autograd.grad(swift(at).square().sum(), at)
    assert sizes == [8, 8, 4]
    (slow,) = torch.autograd.grad(model(at).square().sum(), at)
    torch.testing.assert_close(fast, slow, rtol=0.1, atol=0.02)  # bf16 has eight bits
    y = model(x).argmax(1)
    ours, plain = (pgd(m, x, y, radius=0.05, steps=10) for m in (swift, model))
    assert torch.equal(model(ours.x).argmax(1) != y, ours.success)
    assert abs(int(ours.success.sum()) - int(plain.success.sum())) <= 1
