"""What a training cannot do is told before anything is asked of the subject: its settings, its network, its inputs."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn.utils import prune, spectral_norm, weight_norm

from assay import shelf
from assay.errors import AssayError
from assay.probe import configure
from assay.remedies._retraining import PlainRetraining, Retraining, anew, why_not_anew
from assay.remedies.fgsm_training import FgsmTraining
from assay.remedies.neural_sde import NeuralSde
from assay.remedies.pgd_training import PgdTraining
from assay.remedies.riap_padding import RiapPadding
from assay.remedies.typicality_curriculum import TypicalityCurriculum
from assay.run import Run
from assay.subject import Subject

ATTACKED = ("pgd-training", "fgsm-training", "trades", "mart", "adv-bnn", "universal-adversarial-training")
NOISY = ("gaussian-training", "bounded-relu", "rse")


def rows(n: int = 40) -> dict[str, tuple[Tensor, Tensor]]:
    x = torch.rand(2 * n, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0, 0, 0] > 0.5).long()
    return {"train": (x[:n], y[:n]), "test": (x[n:], y[n:])}


def subject_of(model: nn.Module, n: int = 40) -> Subject:
    return Subject.classifier(model.eval(), rows(n), name="few")


def convolved() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class Forgets(nn.Linear):
    """Its reset_parameters draws all but one of its parameters."""

    def __init__(self) -> None:
        super().__init__(16, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


def pruned(layer: nn.Module) -> nn.Module:
    return prune.l1_unstructured(layer, "weight", 0.5)  # type: ignore[no-untyped-call,no-any-return]


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: weight_norm(nn.Linear(16, 2)), "1.weight_g, 1.weight_v"),
        (lambda: spectral_norm(nn.Linear(16, 2)), "1.weight_orig"),
        (lambda: pruned(nn.Linear(16, 2)), "1.weight_orig"),
        (Forgets, "1.scale"),
    ],
    ids=("weight_norm", "spectral_norm", "prune", "forgets"),
)
def test_what_a_layer_does_not_draw_anew_is_refused_by_name(
    make: Callable[[], nn.Module], named: str, run: Run
) -> None:
    model = nn.Sequential(nn.Flatten(), make()).eval()
    with torch.no_grad():
        subject = subject_of(model)
        model(subject.data["test"].take(np.arange(1))[0])
    for name in ("pgd-training", "mart", "universal-adversarial-training", "typicality-curriculum", "ensemble"):
        why = shelf.load("remedies", name)().why_not(subject)
        assert why.startswith(f"Cannot re-initialise {named}: the reset_parameters() of its module leaves it")
        assert "\n" not in why
    with pytest.raises(AssayError, match=f"Cannot re-initialise {named}"):
        PlainRetraining(epochs=1).apply(subject, run)
    assert PgdTraining(start="weights").why_not(subject) is None


def test_a_fresh_start_is_what_it_was_and_keeps_what_is_frozen() -> None:
    from assay.methods.train import fit

    model = convolved()
    model[4].weight.requires_grad_(False)  # type: ignore[union-attr]
    ours, theirs = anew(model, rng()).state_dict(), fit.anew(model, rng()).state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert torch.equal(ours["4.weight"], model[4].weight)  # type: ignore[arg-type]
    assert not torch.equal(ours["0.weight"], model[0].weight)  # type: ignore[arg-type]


def test_torchs_own_attention_is_drawn_anew() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    fresh = anew(layer, rng())
    assert not torch.equal(fresh.self_attn.in_proj_weight, layer.self_attn.in_proj_weight)  # type: ignore[union-attr,arg-type]
    assert not hasattr(fresh.self_attn, "reset_parameters")
    largest = float(fresh.self_attn.in_proj_weight.detach().abs().max())  # type: ignore[union-attr,arg-type,operator]
    assert largest <= (6 / 16) ** 0.5  # Xavier's, of 4 in and 12 out


def test_a_network_is_looked_at_once_whatever_ails_it() -> None:
    class Locked(nn.Linear):
        tries = 0

        def __deepcopy__(self, memo: Any) -> Any:
            Locked.tries += 1
            raise TypeError("cannot pickle 'lock' object")

    model = Locked(2, 2)
    for _ in range(2):
        assert why_not_anew(model) == "its weights cannot be drawn anew: TypeError: cannot pickle 'lock' object"
    assert Locked.tries == 1


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("pgd-training", {"steps": 0}, "steps=0 search nothing"),
        ("pgd-training", {"step": 0.0}, "step=0.0 does not move"),
        ("trades", {"beta": -1.0}, "beta=-1.0 is no weight"),
        ("mart", {"lam": -1.0}, "lam=-1.0 is no weight"),
        ("mart", {"steps": 0}, "steps=0 search nothing"),
        ("fgsm-training", {"clean": 7.0}, "clean=7.0 is no share"),
        ("fgsm-training", {"least": 0.4}, "least=0.4 is above radius=0.3"),
        ("adv-bnn", {"radius": float("nan")}, "radius=nan is no share"),
        ("adv-bnn", {"eot": 0}, "eot=0 draws"),
        ("universal-adversarial-training", {"radius": -1.0}, "radius=-1.0 is no share"),
        ("universal-adversarial-training", {"step": 0.0}, "step=0.0 does not move"),
        ("pgd-training", {"momentum": 2.0}, "momentum=2.0"),
        ("pgd-training", {"weight_decay": -1.0}, "weight_decay=-1.0"),
        ("mixup", {"epochs": 0}, "epochs=0 train nothing"),
        ("localnorm", {"lr": -1.0}, "lr=-1.0 is no length"),
        ("neural-sde", {"batch": 0}, "batch=0 holds no input"),
        ("robust-loss", {"lr": float("inf")}, "lr=inf is no length"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_as_it_is_given(name: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(AssayError, match=says) as told:
        configure(shelf.load("remedies", name), settings)
    assert "\n" not in str(told.value)


def test_the_shortest_step_left_out_is_no_longer_than_the_longest(run: Run) -> None:
    subject = subject_of(convolved())
    assert FgsmTraining().settled(subject).least == 0.1
    small = configure(FgsmTraining, {"radius": "8/255", "epochs": "1"})
    assert small.settled(subject).least == small.radius
    assert small.settled(subject).apply(subject, run).name == "few+fgsm-training"
    assert RiapPadding(epochs=0).epochs == 0  # which pads and does not train
    with pytest.raises(AssayError, match="epochs=-1"):
        RiapPadding(epochs=-1)


def test_what_has_no_weights_or_layers_of_its_own_is_told_so() -> None:
    x = torch.rand(60, 16, generator=rng()).numpy()
    y = (x[:, 0] > 0.5).astype(int)
    trees = Subject.of(LogisticRegression().fit(x, y), {"train": (x, y), "test": (x, y)})
    traced = subject_of(torch.jit.trace(convolved().eval(), torch.rand(2, 1, 4, 4)))  # type: ignore[no-untyped-call]
    for name in (*ATTACKED, *NOISY, "localnorm", "typicality-curriculum", "mixup", "channel-capacity"):
        remedy = shelf.load("remedies", name)
        assert remedy().why_not(trees) == "it trains weights, and EstimatorModel has none"
        if name != "fgsm-training":  # which goes on from the weights that are there
            assert "TorchScript, which cannot be changed or drawn anew" in remedy().why_not(traced)
    assert "TorchScript" in str(RiapPadding(epochs=0).why_not(traced))
    assert PgdTraining(start="weights").why_not(traced) is None
    assert NeuralSde().why_not(traced) is None  # it puts a small net of its own in its place


def test_words_by_number_are_neither_attacked_nor_blurred() -> None:
    words = replace(subject_of(convolved()), tokens=True)
    for name in ATTACKED:
        assert shelf.load("remedies", name)().why_not(words).endswith("an input here is a row of words by number")
    for name in NOISY:
        why = shelf.load("remedies", name)().why_not(words)
        assert why == "it adds noise to inputs, and an input here is a row of words by number"
    assert PgdTraining(radius=0).why_not(words) is None


def test_a_net_that_no_gradient_leads_through_is_not_attacked() -> None:
    class Cut(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.detach().flatten(1))

    for name in ATTACKED:
        why = shelf.load("remedies", name)().why_not(subject_of(Cut(16, 2)))
        assert why == "it climbs along gradients, and none leads from the model's answers to its inputs"


def test_batch_normalisation_of_rows_is_not_trained_on_one_input() -> None:
    def net(norm: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), norm, nn.Linear(4, 2))

    normed = subject_of(net(nn.BatchNorm1d(4)), 31)
    for kind in (PgdTraining, TypicalityCurriculum):
        why = kind(batch=2).why_not(normed)  # 16 batches of 31 inputs
        assert why == (
            "its batch normalisation cannot train on one input, and with batch=2 of 31 training inputs a batch holds "
            "one; set another batch"
        )
        assert kind(batch=3).why_not(normed) is None
    growing = TypicalityCurriculum(batch=2, scheduler="repeat-until-remember")
    assert growing.why_not(normed) is None  # of 2, of 6, of 10 ...
    one = replace(normed, data=normed.data | {"train": subject_of(nn.Flatten(), 1).data["train"]})
    assert str(PgdTraining().why_not(one)).endswith("there is one training input; give it more")
    assert PgdTraining(batch=2).why_not(subject_of(net(nn.LayerNorm(4)), 31)) is None
    assert PgdTraining(batch=1).why_not(subject_of(convolved(), 31)) is None  # a map has places enough
    frozen = copy.deepcopy(normed.model)
    frozen[2].requires_grad_(False)  # type: ignore[index]
    assert PgdTraining(batch=2).why_not(replace(normed, model=frozen)) is None


def test_every_training_still_takes_an_ordinary_network() -> None:
    subject = subject_of(convolved(), 200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reasons = {
            name: remedy().why_not(subject)
            for name in shelf.names("remedies")
            if issubclass(remedy := shelf.load("remedies", name), Retraining)
        }
    for name in (*ATTACKED, *NOISY, "localnorm", "typicality-curriculum", "mixup", "channel-capacity", "ensemble"):
        assert reasons[name] is None
