"""Trainings of studies: as plain steps of the optimisers are, and without a question to the host, which a GPU cannot
record."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_studies import made_small
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from assay.claims import liu2021_baselines, liu2021_random, liu2021_sde, ye2021_capacity, yin2021_localnorm
from assay.data.whole import Whole
from assay.methods.train import recorded
from assay.methods.train.fit import RISE, Diverged


def some(n: int = 50) -> Whole:
    x = torch.randn(n, 5, generator=torch.Generator().manual_seed(0))
    return Whole(x, (x[:, 0] > 0).long())


def small() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_the_steps_are_those_of_torchs_optimisers_in_one_cycle(optimiser: Any) -> None:
    data, ours, theirs = some(), small(), small()
    seen: list[Tensor] = []

    def loss(rows: Tensor) -> Tensor:
        seen.append(rows.clone())
        x, y = data.rows(rows)
        return F.cross_entropy(ours(x), y)

    weights: list[Tensor] = list(ours.parameters())
    recorded.fit_recorded(
        ours, weights, loss, 50, epochs=3, batch=12, lr=0.1, seed=0, device="cpu", weight_decay=0.01,
        optimiser=optimiser,
    )  # fmt: skip
    optim: torch.optim.Optimizer = (
        torch.optim.Adam(theirs.parameters(), weight_decay=0.01)
        if optimiser == "adam"
        else torch.optim.SGD(theirs.parameters(), momentum=0.9, nesterov=True, weight_decay=0.01)
    )
    assert len(seen) == 12  # four whole batches an epoch
    for t, rows in enumerate(seen):
        share = t / 12
        optim.param_groups[0]["lr"] = 0.1 * (share / RISE if share < RISE else (1 - share) / (1 - RISE))
        x, y = data.rows(rows)
        optim.zero_grad()
        F.cross_entropy(theirs(x), y).backward()
        optim.step()
    assert_close(list(ours.parameters()), list(theirs.parameters()))
    epochs = torch.cat(seen).view(3, 48).sort().values
    assert all(len(set(epoch.tolist())) == 48 for epoch in epochs)  # none twice
    assert not torch.equal(epochs[0], epochs[1])  # another two left out


def test_a_seed_gives_the_same_net_and_the_global_generator_is_as_it_was() -> None:
    noisy = nn.Sequential(nn.Dropout(0.3), small())
    nets = [copy.deepcopy(noisy) for _ in range(2)]
    before = torch.get_rng_state()
    for net in nets:
        recorded.fit_net(net, some(), seed=3, device="cpu", epochs=2, batch=20, lr=0.1)
    assert torch.equal(torch.get_rng_state(), before)
    assert_close(list(nets[0].parameters()), list(nets[1].parameters()), rtol=0, atol=0)
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_loss_that_is_no_number_ends_it() -> None:
    data = some()
    with pytest.raises(Diverged, match="became nan in epoch 1 of 2"):
        recorded.fit_net(small(), Whole(data.x / 0, data.y), seed=0, device="cpu", epochs=2, batch=20, lr=0.1)


class Unasked(TorchDispatchMode):
    """Refuses what makes the host wait for a GPU or sends it a number: neither can be recorded."""

    ASKS = ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "equal", "is_nonzero")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if by_mask or name in self.ASKS:
            pytest.fail(f"{name} asks the host")
        return func(*args, **(kwargs or {}))


def test_the_refusal_refuses() -> None:
    x = torch.ones(3)
    for question in (lambda: float(x.sum()), lambda: x[x > 0], lambda: torch.tensor(1.0)):
        with pytest.raises(pytest.fail.Exception, match="asks the host"), Unasked():
            question()


TRAININGS: list[tuple[ModuleType, Callable[..., Any], Any]] = [
    *((liu2021_random, liu2021_random._trained, arm) for arm in liu2021_random.EPOCHS),
    *((liu2021_baselines, liu2021_baselines._trained, arm) for arm in (*liu2021_baselines.ARMS, "plain retraining")),
    *((liu2021_sde, liu2021_sde._trained, arm) for arm in liu2021_sde.ARMS),
    *((yin2021_localnorm, yin2021_localnorm._net, local) for local in (False, True)),
    (ye2021_capacity, ye2021_capacity._trained, None),
]


@pytest.mark.parametrize(
    ("study", "train", "arm"), [pytest.param(*t, id=f"{t[0].__name__.rpartition('.')[2]}-{t[2]}") for t in TRAININGS]
)
def test_no_step_of_a_study_asks_the_host(
    study: ModuleType, train: Callable[..., Any], arm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, steps = recorded.fit_recorded, list[int]()

    def watched(model: nn.Module, weights: Any, loss: Callable[[Tensor], Tensor], n: int, **settings: Any) -> None:
        def asked(rows: Tensor) -> Tensor:
            steps.append(1)
            with Unasked():
                cost = loss(rows)
                torch.autograd.grad(cost, weights, retain_graph=True)
            return cost

        plain(model, weights, asked, n, **settings)

    for module in (recorded, liu2021_random, ye2021_capacity):
        monkeypatch.setattr(module, "fit_recorded", watched)
    with made_small(study):
        train(*(() if arm is None else (arm,)), 0, "cpu")
    assert steps
