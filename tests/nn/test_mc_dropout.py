from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.nn.mc_dropout import AlwaysDropout, with_dropout
from assay.nn.members import Drawn, log_mean


def cnn() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
        net(torch.randn(30, 1, 4, 4))  # running statistics of its own
    return net.eval()


def inputs(n: int = 6) -> Tensor:
    return torch.rand(n, 1, 4, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def test_rate_zero_is_the_net_itself_and_has_no_spread() -> None:
    net, x = cnn(), inputs()
    drawn = with_dropout(net, rate=0.0, draws=4).eval().requires_grad_(False)
    assert_close(drawn(x), net(x), rtol=0, atol=0)
    members = drawn.members(x)
    assert members.shape == (4, 6, 5)
    assert float(members.std(0).max()) == 0
    assert_close(log_mean(members).softmax(-1), net(x).softmax(-1))


def test_it_drops_before_every_weight_layer_in_eval_mode() -> None:
    net, x = cnn(), inputs()
    drawn = with_dropout(net, rate=0.4, draws=2).eval()
    torch.manual_seed(3)
    got = drawn(x)
    torch.manual_seed(3)
    conv, norm, _, _, head = net
    hidden = F.relu(norm(conv(F.dropout(x, 0.4, True)))).flatten(1)
    assert_close(got, head(F.dropout(hidden, 0.4, True)))
    assert not torch.equal(drawn(x), drawn(x))
    torch.manual_seed(3)
    assert_close(drawn.members(x)[0], got)  # a member is a pass, and the seed decides it


def test_its_moments_are_those_of_bernoulli_masks() -> None:
    layer = nn.Linear(8, 3)
    x, rate = torch.rand(8), 0.3
    drawn = with_dropout(layer, rate=rate, draws=1).eval()
    with torch.no_grad():
        y = drawn(x.expand(200_000, 8))  # each row has a mask of its own
        variance = rate / (1 - rate) * layer.weight.square() @ x.square()
        assert_close(y.mean(0), layer(x), rtol=0, atol=float(5 * (variance / len(y)).sqrt().max()))
    assert_close(y.var(0), variance, rtol=0.02, atol=0)


def test_batch_normalisation_stays_in_eval_mode() -> None:
    drawn = with_dropout(cnn(), rate=0.5, draws=3).eval()
    before = copy.deepcopy(drawn.state_dict())
    drawn.members(inputs())
    assert all(torch.equal(t, before[name]) for name, t in drawn.state_dict().items())
    still = with_dropout(cnn(), rate=0.0, draws=1).eval()
    crowd = torch.cat([inputs()[:1], 100 * inputs()[1:]])
    assert_close(still(crowd)[:1], still(inputs()[:1]))  # the others in a batch do not matter


def test_the_nets_own_dropout_layers_keep_places_kinds_and_rates() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(32, 5), nn.Dropout(0.25)).eval()
    drawn = with_dropout(net, rate=0.9, draws=2).eval()
    kept = [(m.rate, m.drop) for m in drawn.modules() if isinstance(m, AlwaysDropout)]
    assert kept == [(0.5, F.dropout2d), (0.25, F.dropout)]
    maps = drawn.net[1](drawn.net[0](1 + inputs(50)))  # type: ignore[index]
    dropped = (maps == 0).flatten(2)
    assert torch.equal(dropped.all(2), dropped.any(2))  # whole channels
    assert 0.3 < float(dropped.float().mean()) < 0.7


def test_the_given_net_stays_as_it_was_and_a_layer_used_twice_stays_one() -> None:
    shared = nn.Linear(5, 5)
    net = nn.Sequential(nn.Linear(3, 5), shared, nn.ReLU(), shared)
    before, text = copy.deepcopy(net.state_dict()), str(net)
    drawn = with_dropout(net, rate=0.2, draws=2)
    assert isinstance(drawn, Drawn)
    assert str(net) == text
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert drawn.net[1] is drawn.net[3]  # type: ignore[index]
    assert len(list(drawn.parameters())) == len(list(net.parameters()))
    assert isinstance(drawn.net[1][0], AlwaysDropout)  # type: ignore[index]


def test_attention_whose_output_layer_is_only_read_still_runs() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.attention(x, x, x)[0].mean(1))
            return out

    drawn = with_dropout(Attends(), rate=0.5, draws=2).eval()
    members = drawn.members(torch.rand(4, 6, 8))
    assert not torch.equal(members[0], members[1])


def test_one_draw_has_no_spread() -> None:
    assert float(with_dropout(cnn(), rate=0.5, draws=1).eval().members(inputs()).std(0, correction=0).max()) == 0


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_outside_0_1_is_refused(rate: float) -> None:
    with pytest.raises(AssayError, match="the share that is dropped"):
        with_dropout(cnn(), rate=rate, draws=2)


def test_no_draws_and_nets_without_weights_are_refused() -> None:
    with pytest.raises(AssayError, match="draws >= 1, got 0"):
        with_dropout(cnn(), rate=0.1, draws=0)
    with pytest.raises(AssayError, match="Sequential has no dropout, fully connected layer or convolution"):
        with_dropout(nn.Sequential(nn.ReLU()), rate=0.1, draws=2)
