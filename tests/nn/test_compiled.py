"""A compiled pass: the network's own hooks are in it, and a layer that is watched is asked without it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.methods.compress.quantise import quantise, seen_ranges
from assay.nn.compiled import Compiled

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def rounded() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    return quantise(net, 8, ranges=seen_ranges(net, [X]))


def normed() -> nn.Module:
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 2))).eval()


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("make", [rounded, normed])
def test_hooks_of_the_networks_own_are_compiled_and_later_ones_are_heard(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **k: lambda x: 2 * model(x))  # the compiler takes seconds
    model = make()
    made = Compiled(model)
    with torch.no_grad():
        was = model(X)
        for each in (made, copy.deepcopy(made)):
            assert_close(each(X), 2 * was)
            seen: list[Tensor] = []
            handle = each.model[0].register_forward_hook(lambda m, a, out, seen=seen: seen.append(out))
            assert_close(each(X), was)
            assert len(seen) == 1
            handle.remove()
            assert_close(each(X), 2 * was)
