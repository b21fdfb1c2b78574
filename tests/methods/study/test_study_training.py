"""A try depends on what was chosen and on nothing else; whoever chooses the same gets the same curve."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from assay.data.digits import load_digits
from assay.errors import AssayError
from assay.methods.study.hyperparameters import KNOBS, LOSSES, OPTIMISERS, checked
from assay.methods.study.training import STEPS, Rows, train

NEEDED = {"epochs": 3, "batch-size": 50, "loss": "cross-entropy", "optimiser": "adam", "learning-rate": 0.01}


def rows(part, few):
    x, y = load_digits()[part].take(np.arange(few))
    return Rows(torch.as_tensor(x), torch.as_tensor(y).long())


LEARNT, JUDGED = rows("train", 400), rows("test", 200)


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def tried(seed=0, model=None, **given):
    return train(model or network(), LEARNT, JUDGED, checked({**NEEDED, **given}, most_epochs=30), seed=seed)


def test_the_same_configuration_gives_the_same_curve_whatever_else_is_drawn():
    first = tried()
    torch.manual_seed(5)
    np.random.default_rng(5).random(3)
    second = tried(model=network())  # other weights to begin with are drawn anew
    assert first == second
    assert first.accuracy == first.accuracies[-1]
    assert first.accuracy > 0.6
    assert tried(seed=1) != first


def test_the_global_generator_and_the_network_are_left_as_found():
    model, before = network(), torch.random.get_rng_state()
    weights = {name: w.clone() for name, w in model.state_dict().items()}
    tried(model=model)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(w, weights[name]) for name, w in model.state_dict().items())


def test_no_hyper_parameter_reaches_the_weights_or_the_order(monkeypatch):
    """What is drawn is noted: first weights and orders, for every knob turned."""
    seen = []

    def noting(n, *, generator):
        order = real(n, generator=generator)
        seen[-1].append(tuple(order.tolist()))
        return order

    real = torch.randperm
    monkeypatch.setattr(torch, "randperm", noting)
    turned = [{}, {"batch-size": 7}, {"loss": "margin"}, {"optimiser": "sgd"}, {"epochs": 2}]
    turned += [{k.name: k.high / 2} for k in KNOBS if not k.choices and not k.whole]
    began = []
    for given in turned:
        seen.append([])
        few = Rows(LEARNT.x[:60], LEARNT.y[:60])
        chosen = checked({**NEEDED, **given}, most_epochs=30)
        first = []

        class Noted(nn.Sequential):
            def forward(self, x, first=first):
                if not first:
                    first.append(self[1].weight.detach().clone())
                return super().forward(x)

        train(Noted(*network()), few, JUDGED, chosen, seed=0)
        began.append(first[0])
    assert all(torch.equal(w, began[0]) for w in began)
    assert all(orders == seen[0][: len(orders)] for orders in seen)


def test_fewer_epochs_are_the_beginning_of_more():
    assert tried(epochs=5).losses[:3] == tried(epochs=3).losses


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_every_optimiser_learns_at_some_rate(optimiser):
    rate = {"sgd": 0.1, "asgd": 0.1, "rmsprop": 0.003, "adadelta": 1.0, "adagrad": 0.05, "adam": 0.01, "adamax": 0.02}
    found = tried(optimiser=optimiser, epochs=6, **{"learning-rate": rate[optimiser]})
    assert found.ended == "done"
    assert found.accuracy > 0.5
    assert len(found.losses) == len(found.accuracies) == 6


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_goes_down(loss):
    found = tried(loss=loss, epochs=6)
    assert found.losses[-1] < found.losses[0]


def test_every_knob_that_is_read_makes_a_difference():
    for optimiser in OPTIMISERS:
        base = tried(optimiser=optimiser, epochs=1)
        for knob in KNOBS:
            if not knob.choices and not knob.whole and optimiser in knob.read_by and knob.name != "lambda":
                assert tried(optimiser=optimiser, epochs=1, **{knob.name: 0.3}) != base, (optimiser, knob.name)
    # ASGD's step falls with that power of 1 + 1e-4 lr t: in so few steps seen at a large rate alone
    few = {"optimiser": "asgd", "epochs": 2, "learning-rate": 9.0, "loss": "squared"}
    assert tried(**few, **{"lambda": 0.0}) != tried(**few, **{"lambda": 1.0})


def test_what_becomes_no_number_is_told_and_scores_nothing():
    found = tried(optimiser="sgd", epochs=30, **{"learning-rate": 10.0, "weight-decay": 1.0})  # each step w -> -9 w
    assert found.ended == "diverged"
    assert found.accuracy == 0.0


def test_a_try_can_be_stopped_and_has_no_accuracy_then():
    asked, losses = [], []

    def stop():
        asked.append(1)
        return "cancelled" if len(asked) > 12 else None

    chosen = checked(NEEDED, most_epochs=30)
    found = train(
        network(), LEARNT, JUDGED, chosen, seed=0, stop=stop, on_batch=lambda epoch, batch, loss: losses.append(loss)
    )
    assert (found.ended, found.accuracy, len(found.losses)) == ("cancelled", None, 1)
    assert len(losses) == 12


def test_a_day_of_steps_is_refused():
    chosen = checked({**NEEDED, "epochs": 1000, "batch-size": 1}, most_epochs=1000)
    with pytest.raises(AssayError, match=f"400,000 steps, where at most {STEPS:,}"):
        train(network(), LEARNT, JUDGED, chosen, seed=0)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_one_vector_of_weights_takes_the_steps_of_torch_itself(optimiser):
    """The same loop, weight by weight, as anybody would write it."""
    from assay.methods.train.fit import reset

    chosen = checked({**NEEDED, "optimiser": optimiser, "momentum": 0.5, "weight-decay": 0.01}, most_epochs=30)
    model, order = reset(network(), torch.Generator().manual_seed(0)), torch.Generator().manual_seed(1)
    kinds = {
        "sgd": lambda w: torch.optim.SGD(w, 0.01, momentum=0.5, weight_decay=0.01),
        "adam": lambda w: torch.optim.Adam(w, 0.01, eps=1e-5, weight_decay=0.01),
    }
    step, losses = kinds[optimiser](model.parameters()), []
    for _ in range(3):
        total = 0.0
        for batch in torch.randperm(400, generator=order).split(50):
            cost = nn.functional.cross_entropy(model(LEARNT.x[batch]), LEARNT.y[batch])
            step.zero_grad()
            cost.backward()
            step.step()
            total += cost.item() * len(batch)
        losses.append(total / 400)
    assert train(network(), LEARNT, JUDGED, chosen, seed=0).losses == pytest.approx(losses, rel=1e-5)
