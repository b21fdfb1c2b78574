"""Two normalisations in one network: each kind of images meets its own, and the first alone is the plain network."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.nn.two_norms import TwoNorms, ask_both, with_first_norms, with_two_norms


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


def batch(seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.rand(8, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def test_halves_of_a_batch_are_two_batches_of_two_networks() -> None:
    plain = net()
    two, other = with_two_norms(plain), copy.deepcopy(plain)
    one = copy.deepcopy(plain)
    ask_both(two, True)
    here, there = batch(0), batch(1, 5.0)
    for _ in range(3):
        out = two(torch.cat([here, there]))
        torch.testing.assert_close(out, torch.cat([one(here), other(there)]))
    pair = next(m for m in two.modules() if isinstance(m, TwoNorms))
    torch.testing.assert_close(pair.first.running_mean, one[1].running_mean)  # type: ignore[index]
    torch.testing.assert_close(pair.second.running_mean, other[1].running_mean)  # type: ignore[index]
    assert not torch.allclose(pair.first.running_mean, pair.second.running_mean)  # type: ignore[arg-type]
    two.eval()
    torch.testing.assert_close(two(torch.cat([here, there])), torch.cat([one.eval()(here), other.eval()(there)]))


def test_the_first_alone_is_the_network_as_it_was_built() -> None:
    plain = net()
    two = with_two_norms(plain)
    ask_both(two, True)
    two(torch.cat([batch(0), batch(1, 5.0)]))
    given = with_first_norms(two).eval()
    assert [type(m) for m in given.modules()] == [type(m) for m in plain.modules()]
    assert given.state_dict().keys() == plain.state_dict().keys()
    ask_both(two, False)
    torch.testing.assert_close(given(batch(2)), two.eval()(batch(2)))
    assert not torch.allclose(given(batch(2)), plain.eval()(batch(2)))
    assert plain[1].num_batches_tracked == 0  # type: ignore[index]


def test_a_network_without_batch_normalisation_is_refused() -> None:
    with pytest.raises(AssayError, match="has no batch normalisation"):
        with_two_norms(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
