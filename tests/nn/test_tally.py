"""Passes are counted as they are made, with and without gradients, and the network is left without a trace."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.func import functional_call

from assay.fingerprint import of_model
from assay.nn.tally import counted


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 2))).eval()


def test_inputs_are_counted_apart_by_whether_a_gradient_is_wanted():
    model, x = net(), torch.rand(5, 4)
    with counted(model) as tally:
        model(x)
        with torch.no_grad():
            model(x.clone().requires_grad_())
        model(x[:3].clone().requires_grad_()).sum().backward()
        functional_call(model, dict(model.named_parameters()), (x[:2],))
        model[2](torch.rand(9, 8))  # a part of it is not the model
    assert (tally.answers, tally.slopes) == (12, 3)
    model(x)
    assert tally.answers == 12


def test_nothing_of_it_is_seen_inside_or_left_outside():
    model, x = net(), torch.rand(5, 4)
    before, plain = of_model(model), model(x)
    with counted(model) as tally:
        assert of_model(model) == before
        assert not model._forward_hooks
        assert not model._forward_pre_hooks
        assert torch.equal(model(x), plain)
        other = copy.deepcopy(model)
        with torch.no_grad():
            other[0].weight.zero_()
        assert not torch.equal(other(x), plain)  # its own weights answer
        traced = torch.fx.symbolic_trace(model)
        assert torch.equal(traced(x), plain)
    assert tally.answers == 5
    assert "_compiled_call_impl" not in vars(model)


def test_what_was_compiled_is_compiled_after_and_a_script_is_left_alone():
    model = net()
    called = []
    model._compiled_call_impl = lambda x: called.append(len(x)) or x
    theirs = model._compiled_call_impl
    with counted(model) as tally:
        model(torch.rand(3, 4))
    assert model._compiled_call_impl is theirs
    assert called == [3]
    assert tally.answers == 3
    script = torch.jit.script(nn.Linear(4, 2))
    with counted(script) as tally:
        script(torch.rand(3, 4))
    assert tally.answers == 0
