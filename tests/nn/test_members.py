from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.nn.members import Drawn, Ensemble, Members, log_mean


def nets(count: int, seed: int = 0) -> list[nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return [nn.Linear(4, 3) for _ in range(count)]


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def test_an_ensemble_answers_with_the_log_of_the_mean_probability() -> None:
    ensemble = Ensemble(nets(3))
    each = ensemble.members(X)
    assert each.shape == (3, 6, 3)
    for member, net in zip(each, ensemble.nets, strict=True):
        assert_close(member, net(X))
    assert_close(ensemble(X).softmax(1), each.softmax(-1).mean(0))
    assert_close(ensemble(X).exp().sum(1), torch.ones(6))
    assert_close(Ensemble(nets(3)[::-1])(X), ensemble(X))
    assert_close(Ensemble(nets(1))(X), nets(1)[0](X).log_softmax(1))


def test_it_holds_the_weights_of_every_net_and_reloads_them() -> None:
    ensemble, other = Ensemble(nets(2)), Ensemble(nets(2, seed=1))
    assert set(ensemble.state_dict()) == {f"nets.{i}.{name}" for i in range(2) for name in ("weight", "bias")}
    other.load_state_dict(ensemble.state_dict())
    assert torch.equal(other(X), ensemble(X))


def test_far_off_logits_do_not_vanish() -> None:
    far = torch.tensor([[[1000.0, 0.0]], [[0.0, 900.0]]])
    assert_close(log_mean(far), torch.tensor([[0.5, 0.5]]).log(), rtol=0, atol=1e-4)
    assert torch.isfinite(log_mean(torch.tensor([[[1e4, 0.0, -1e4]]]))).all()


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:  # n d -> n 2
        return torch.randn(len(x), 2)


def test_draws_are_passes_of_one_net() -> None:
    drawn = Drawn(Noisy(), 5)
    assert isinstance(drawn, Members)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        several = drawn.members(X)
        torch.manual_seed(0)
        assert torch.equal(drawn(X), several[0])
    assert several.shape == (5, 6, 2)
    assert len({tuple(member.flatten().tolist()) for member in several}) == 5


def test_no_opinion_is_refused() -> None:
    with pytest.raises(AssayError, match="at least one net"):
        Ensemble([])
    with pytest.raises(AssayError, match="draws >= 1, got 0"):
        Drawn(Noisy(), 0)


def test_logits_may_be_averaged_and_neither_mean_is_more_surprised_than_the_members():
    nets = [nn.Linear(4, 3) for _ in range(5)]
    with torch.no_grad():
        for i, net in enumerate(nets):
            net.weight.copy_(2 * torch.randn(3, 4, generator=torch.Generator().manual_seed(i)))
    x, y = torch.randn(200, 4, generator=torch.Generator().manual_seed(9)), torch.arange(200) % 3
    plain, other = Ensemble(nets), Ensemble(nets, average="logits")
    torch.testing.assert_close(other(x), torch.stack([net(x) for net in nets]).mean(0))
    each = torch.stack([nn.functional.cross_entropy(net(x), y, reduction="none") for net in nets]).mean(0)
    for ensemble in (plain, other):
        assert (nn.functional.cross_entropy(ensemble(x), y, reduction="none") <= each + 1e-5).all()
    assert not torch.allclose(plain(x).softmax(1), other(x).softmax(1), atol=1e-3)
    with pytest.raises(AssayError, match="averages probabilities or logits, got average='votes'"):
        Ensemble(nets, average="votes")
