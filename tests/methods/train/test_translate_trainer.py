"""The trainer of translators: every setting reaches it, members are their own, and one that was stopped goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from assay.data.arrays import Targets
from assay.errors import AssayError
from assay.methods.train import translate as module
from assay.methods.train.fit import fit, reset
from assay.methods.train.translate import fit_translators, turned_over
from assay.nn.translator import Translator

RNG = np.random.default_rng(0)
X = RNG.random((6, 1, 10, 14), dtype=np.float32)
DATA = Targets(X, 1 - X)


def net(dropout: float = 0.0) -> Translator:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Translator(1, 1, width=2, levels=3, dropout=dropout)


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().ravel() for p in model.parameters()])


def test_members_differ_and_each_is_the_same_whatever_their_number() -> None:
    two = fit_translators(net(), DATA, members=2, epochs=2, lr=1e-3, seed=3)
    one, again = (fit_translators(net(), DATA, members=1, epochs=2, lr=1e-3, seed=3) for _ in range(2))
    assert_close(weights(two[0].net), weights(one[0].net), rtol=0, atol=0)
    assert_close(weights(again[0].net), weights(one[0].net), rtol=0, atol=0)
    assert not torch.equal(weights(two[0].net), weights(two[1].net))
    assert len(two[0].losses) == 2
    other = fit_translators(net(), DATA, members=1, epochs=2, lr=1e-3, seed=4)
    assert not torch.equal(weights(other[0].net), weights(one[0].net))


def test_every_setting_reaches_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        module, "fit", lambda model, data, **told: seen.append((model, told)) or fit(model, data, **told)
    )
    fit_translators(
        net(0.3), DATA, members=2, epochs=3, lr=0.004, seed=0, batch=2, weight_decay=2e-4, distance="l2", turned=False
    )  # fmt: skip
    for model, told in seen:
        assert (told["epochs"], told["lr"], told["batch"], told["weight_decay"]) == (3, 0.004, 2, 2e-4)
        assert (told["optimiser"], told["schedule"], told["momentum"]) == ("adamw", "late-fall", 0.5)
        assert told["loss"] is torch.nn.functional.mse_loss
        assert told["augment"] is None
        assert model.net.drop.p == 0.3
    assert len(seen) == 2


def test_dropout_drops_while_it_trains_and_not_when_it_answers() -> None:
    x, y = (torch.from_numpy(each) for each in (X, 1 - X))
    model = net(0.9)
    model.begin(y)
    model.train()
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert_close(model(x), model(x), rtol=0, atol=0)
    with pytest.raises(AssayError, match="dropout=1"):
        net(1.0)


def test_a_pair_is_turned_alike_and_a_field_that_is_not_square_keeps_its_shape() -> None:
    rng = torch.Generator().manual_seed(0)
    for size in ((5, 5), (4, 6)):
        x = torch.rand(40, 2, *size, generator=rng)
        a, b = turned_over(x, x[:, :1] + 1, rng)
        assert a.shape == x.shape
        assert_close(b, a[:, :1] + 1)
        assert_close(a.sum((2, 3)), x.sum((2, 3)))
        kept = [bool(torch.equal(p, q)) for p, q in zip(a, x, strict=True)]
        assert 0 < sum(kept) < 20


def test_answers_lie_between_0_and_1_at_the_size_of_the_image_and_begin_at_the_mean() -> None:
    model = net().eval()
    target = torch.full((2, 1, 10, 14), 0.02)
    model.begin(target)
    with torch.no_grad():
        out = model(torch.rand(2, 1, 10, 14))  # neither side can be halved twice
    assert out.shape == (2, 1, 10, 14)
    assert float(out.min()) > 0
    assert float(out.max()) < 1
    assert float(model.start) == pytest.approx(np.log(0.02 / 0.98), rel=1e-3)
    assert float(reset(model, torch.Generator()).start) == float(model.start)  # type: ignore[arg-type]


def test_a_training_that_was_stopped_ends_at_the_same_weights(tmp_path: Path) -> None:
    def stopped(member: int, epoch: int, loss: float) -> None:
        if (member, epoch) == (1, 2):
            raise KeyboardInterrupt

    told = {"members": 2, "epochs": 3, "lr": 1e-3, "seed": 0, "keep_key": "this"}
    whole = fit_translators(net(0.5), DATA, **told)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        fit_translators(net(0.5), DATA, keep=tmp_path, on_epoch=stopped, **told)  # type: ignore[arg-type]
    seen: list[tuple[int, int]] = []
    on = fit_translators(
        net(0.5), DATA, keep=tmp_path, on_epoch=lambda m, e, _: seen.append((m, e)), **told  # type: ignore[arg-type]
    )  # fmt: skip
    assert seen == [(1, 3)]
    for a, b in zip(whole, on, strict=True):
        assert_close(weights(a.net), weights(b.net), rtol=0, atol=0)
        assert a.losses == b.losses


def test_the_rate_stays_and_then_falls_and_weights_decay_apart_from_the_gradient() -> None:
    rates: list[float] = []
    line = torch.nn.Linear(1, 1, bias=False)
    start, lr, decay = float(line.weight.detach()), 0.1, 0.5
    optim: list[torch.optim.Optimizer] = []
    real = torch.optim.AdamW.step

    def watched(self: torch.optim.AdamW, *a: object) -> None:
        rates.append(self.param_groups[0]["lr"])
        optim.append(self)
        real(self, *a)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", watched)
        fit(
            line, Targets(np.zeros((4, 1), np.float32), np.zeros((4, 1), np.float32)), epochs=8, lr=lr, batch=4,
            rng=torch.Generator(), weight_decay=decay, optimiser="adamw", schedule="late-fall",
            loss=torch.nn.functional.mse_loss,
        )  # fmt: skip
    assert rates == pytest.approx([lr * min(1.0, 2 - t / 4) for t in range(8)])
    # inputs of 0 have no gradient: what is left is the decay, (1 - lr_t decay) a step
    assert float(line.weight.detach()) == pytest.approx(start * np.prod([1 - r * decay for r in rates]), rel=1e-5)
