"""One default exchanged at a time: heads that learn alike, a prior that is taken off, and what is told of each."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.testing import assert_close

from assay.data.arrays import Arrays
from assay.engine.local import ThisProcess
from assay.errors import AssayError
from assay.methods.shift.defaults import DECAY, exchanged, is_last, learnt
from assay.probe import configure, put
from assay.probes.steady.what_do_its_defaults_cost import WhatDoItsDefaultsCost
from assay.run import BUDGETS, Run
from assay.subject import Subject


def rows(n: int, seed: int, rare: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < rare).astype(np.int64)
    x = (0.5 + 0.08 * rng.normal(size=(n, 6)) + 0.1 * (2 * y[:, None] - 1) * (np.arange(6) < 2)).clip(0, 1)
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    x, y = (torch.from_numpy(a) for a in rows(400, 0))
    rule = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(120):
        rule.zero_grad()
        torch.autograd.backward(F.cross_entropy(net(x), y))
        rule.step()
    return net.eval().requires_grad_(False)


def test_the_layer_is_the_one_that_scikit_learn_finds() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 4)) * 3 + 1
    y = (z[:, 0] + rng.normal(size=300) > 1).astype(np.int64) + (z[:, 1] > 3)
    layer = learnt(torch.from_numpy(z), torch.from_numpy(y), 3, nn.Identity())
    u = (z - z.mean(0)) / np.sqrt(((z - z.mean(0)) ** 2).sum(1).mean()) * 4**0.5 / 4
    wanted = LogisticRegression(C=1 / (2 * DECAY * len(z)), max_iter=2000, tol=1e-9).fit(u, y).predict_proba(u)
    assert_close(layer(torch.from_numpy(z)).softmax(1), torch.from_numpy(wanted), atol=2e-3, rtol=0)


def test_what_is_learnt_does_not_hang_on_the_units_of_features() -> None:
    rng = np.random.default_rng(1)
    z, y = torch.from_numpy(rng.normal(size=(200, 5))), torch.from_numpy(rng.integers(0, 3, 200))
    plain, large = (learnt(k * z + k, y, 3, nn.Identity()) for k in (1.0, 1000.0))
    assert_close(plain(z + 1), large(1000 * z + 1000), atol=1e-4, rtol=1e-3)


def test_a_prior_is_taken_off_and_the_rest_stays(net: nn.Module) -> None:
    x, y = (torch.from_numpy(a) for a in rows(300, 1, rare=0.1))
    made = exchanged(net, "2", "prior", x, y)
    share = (torch.bincount(y, minlength=2) + 1) / (len(y) + 2)
    assert_close(made(x), net(x) - share.log())
    assert float((made(x).argmax(1) == 1).float().mean()) > float((net(x).argmax(1) == 1).float().mean())


def test_another_head_leaves_the_model_and_its_features_alone(net: nn.Module) -> None:
    before = copy.deepcopy(net.state_dict())
    x, y = (torch.from_numpy(a) for a in rows(200, 2))
    made = exchanged(net, "2", "softRmax", x, y)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert_close(made[0].weight, net[0].weight)
    assert_close(made(x).logsumexp(1), torch.zeros(len(x)), atol=1e-5, rtol=0)  # log-probabilities


def test_a_head_that_is_not_last_is_seen() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return 2 * self.last(x)

    x = torch.from_numpy(rows(8, 0)[0])
    assert not is_last(Scaled().eval(), "last", x)
    assert is_last(nn.Sequential(nn.ReLU(), nn.Linear(6, 2)).eval(), "1", x)
    data = {"train": Arrays(*rows(60, 3)), "test": Arrays(*rows(40, 4))}
    found = put(WhatDoItsDefaultsCost(), Subject.classifier(Scaled(), data), Run(engine=ThisProcess(), debug=True))
    assert "no other head fits" in found.finding.says
    assert found.finding.measure().value is None


def test_softrmax_is_unsure_far_away_where_softmax_is_sure_and_both_are_as_right(net: nn.Module) -> None:
    data = {"train": Arrays(*rows(400, 5)), "test": Arrays(*rows(120, 6))}
    run = Run(engine=ThisProcess(), budget=BUDGETS["quick"].bounded(60), debug=True)
    answer = put(configure(WhatDoItsDefaultsCost, {"steps": 5}), Subject.classifier(net, data), run)
    told = {m.name: m for m in answer.finding.measures}
    assert told["confidence far away, softRmax less softmax"].high < -0.2
    assert told["confidence far away, t less softmax"].high < -0.1
    assert abs(told["accuracy, softRmax less softmax"].value) < 0.1
    assert set(answer.finding.views[0].rows) == {"as it is", "softmax", "softRmax", "t", "prior"}


def test_settings_and_models_that_do_not_fit_say_so(net: nn.Module) -> None:
    with pytest.raises(AssayError, match="share of the range"):
        configure(WhatDoItsDefaultsCost, {"radius": "8"})
    data = {"train": Arrays(*rows(60, 3)), "test": Arrays(*rows(40, 4))}
    random = Subject.classifier(net, data, draws=3)
    assert "this one is random" in put(WhatDoItsDefaultsCost(), random, Run(engine=ThisProcess())).why
    with pytest.raises(AssayError, match=r"ReLU; another head needs an nn\.Linear"):
        exchanged(net, "1", "softRmax", *(torch.from_numpy(a) for a in rows(8, 0)))
