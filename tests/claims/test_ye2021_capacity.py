from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from assay.claims import ye2021_capacity as study
from assay.methods.train.channel_capacity import mic_surrogate, output_trace
from assay.methods.train.ensemble import Stacked
from assay.methods.train.recorded import fit_recorded
from assay.run import Run


def test_both_forms_and_both_epochs_are_told_and_the_best_epoch_is_the_best(tiny: None, run: Run) -> None:
    names = [m.name for m in study.generalisation(run).measures]
    for form in study.FORMS:
        for epoch in ("last", "best"):
            assert any(f"as {form} less" in n and epoch in n for n in names)
    found = study._trained(run.seed, "cpu")
    assert (found.best.mean(-1) >= found.right.mean(-1)).all()
    assert_close(torch.from_numpy(found.test[-1]), torch.from_numpy(found.right.mean(-1)))
    assert_close(torch.from_numpy(found.test.max(0)), torch.from_numpy(found.best.mean(-1)))


def test_nets_of_one_seed_start_alike_and_the_baseline_pays_nothing(tiny: None) -> None:
    """An arm trained beside the others is the arm trained alone."""
    found, data = study._trained(0, "cpu"), study._data("cpu")["train"]
    torch.manual_seed(1)  # the baseline's second seed
    net = study._net(16)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))

    def loss(rows: torch.Tensor) -> torch.Tensor:
        x, y = data.rows(order[rows])
        return F.cross_entropy(net(x), y)

    fit_recorded(
        net, list(net.parameters()), loss, 40, epochs=2, lr=study.LR, batch=20, optimiser="adam", momentum=0.5, seed=0,
        device="cpu",
    )  # fmt: skip
    for p, q in zip(net.parameters(), found.nets[0][1].parameters(), strict=True):
        assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_what_is_paid_is_the_sum_over_layers_and_the_whole_one_net_at_a_time(tiny: None) -> None:
    torch.manual_seed(0)
    every = study.arms()
    nets = [study._net(16) for _ in range(len(every) * 2)]
    paid = study._prices(Stacked(copy.deepcopy(nets)), every, "cpu")(torch.Generator().manual_seed(3))
    rng, total = torch.Generator().manual_seed(3), torch.zeros(())
    drawn: dict[tuple[str, str], list[torch.Tensor]] = {}
    for i, arm in enumerate(every):
        if arm.penalty not in ("MIC", "EIC"):
            for net in nets[2 * i : 2 * i + 2] if arm.penalty == "weight decay" else ():
                total = total + arm.price * sum(p.square().sum() for p in net.parameters()) / 2
            continue
        if (arm.penalty, arm.form) not in drawn:
            drawn[arm.penalty, arm.form] = [
                study._fake(w, arm.penalty, arm.form, rng, hidden=j > 0) for j, w in enumerate((16, 8, 6))
            ]
        fake = drawn[arm.penalty, arm.form]
        for net in nets[2 * i : 2 * i + 2]:
            layers = [m for m in net if isinstance(m, nn.Linear)]  # type: ignore[union-attr,attr-defined]
            for j, (x, module) in enumerate([*zip(fake, layers, strict=True), (fake[0], net)]):
                y = module(x.flatten(0, 1)).reshape(*x.shape[:2], -1)
                if arm.form == "coded" and j < 2:
                    y = F.relu(y)
                if arm.penalty == "MIC":
                    total = total + arm.price * mic_surrogate(x, y, squared=arm.form == "coded")
                else:
                    trace = output_trace(y, as_published=True)
                    total = total + arm.price * (trace / y.shape[-1] if arm.form == "coded" else trace)
    assert_close(paid, total)


def test_a_form_is_not_stood_in_for_by_the_other_whatever_it_costs() -> None:
    every = study.arms()
    assert ("EIC", "printed", study.DECAY) in every  # the price that weight decay has too
    held = np.zeros((1, len(every), 3))
    held[0, [i for i, arm in enumerate(every) if arm.form == "printed"]] = 1.0
    found = study._Trained(held, held, np.zeros(0, bool), np.zeros(0, bool), ())
    for penalty, form in study.PRICES:
        assert every[study._chosen(found, penalty, form)][:2] == (penalty, form)
    for penalty in ("baseline", "weight decay"):
        assert every[study._chosen(found, penalty, "printed")].penalty == penalty  # type: ignore[arg-type]


def test_the_price_is_chosen_on_held_out_images_and_the_last_epoch_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    prices = {key: (1e-5, 1e-3) if key == ("EIC", "printed") else (0.01, 0.05, 0.2) for key in study.PRICES}
    monkeypatch.setattr(study, "PRICES", prices)
    every = study.arms()
    shape = (2, len(every), 3)
    held, right, best = np.zeros(shape), np.zeros((*shape[1:], 600), bool), np.zeros((*shape[1:], 600), bool)
    gains = {"baseline": (580, 590), "weight decay": (581, 590), "MIC": (598, 600), "EIC": (597, 600)}
    for i, arm in enumerate(every):
        held[-1, i] = -abs(arm.price - 0.05)  # 0.05 is best, of EIC as printed the largest
        last, peak = gains[arm.penalty]
        right[i, :, :last] = best[i, :, :peak] = True
    found = study._Trained(held, held, right, best, ())
    monkeypatch.setattr(study, "_found", lambda run: found)
    evidence = study.generalisation(None)  # type: ignore[arg-type]
    assert evidence.verdict == "holds"
    assert "MIC as coded (price 0.05)" in evidence.says
    assert "EIC as printed (price 0.001)" in evidence.says
    right[[i for i, arm in enumerate(every) if arm.penalty == "EIC"]] = False  # whatever its best epoch was
    assert study.generalisation(None).verdict == "fails"  # type: ignore[arg-type]
