"""Ye and Lin 2021: less channel capacity in training, at the last epoch and at the one that does best on the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Held, Published
from assay.claims import _over_seeds as over
from assay.data.whole import Whole, whole
from assay.finding import Measure
from assay.methods.train.recorded import fit_recorded, generator

if TYPE_CHECKING:
    from assay.methods.train.ensemble import Stacked
    from assay.run import Run

SOURCE = "Ye & Lin, 'Channel Capacity of Neural Networks', ICANN 2021, doi:10.1007/978-3-030-86380-7_21"
Penalty = Literal["baseline", "weight decay", "MIC", "EIC"]
Form = Literal["printed", "coded"]
FORMS: tuple[Form, ...] = ("coded", "printed")
SEEDS, EPOCHS, BATCH, LR = 5, 12, 100, 1e-3
WIDTHS = (1024, 1024)
HELD_OUT = 5000  # of the training images, by which a price is chosen
PRICES: dict[tuple[Penalty, Form], tuple[float, ...]] = {
    ("MIC", "coded"): (0.01, 0.05, 0.2),
    ("EIC", "coded"): (0.01, 0.05, 0.2),
    ("MIC", "printed"): (0.01, 0.05, 0.2),
    ("EIC", "printed"): (1e-5, 1e-4, 1e-3),
}
DECAY = 1e-4  # of the loss, as |w|^2 / 2
FAKE = 32  # inputs of a penalty
RADIUS, STEPS, ATTACKED = 0.1, 20, 1000  # of the attack, which print does not have
Array = NDArray[np.float64]


class Arm(NamedTuple):
    """One way to train, at one price."""

    penalty: Penalty
    form: Form = "coded"
    price: float = 0.0


def arms() -> list[Arm]:
    found = [Arm("baseline"), Arm("weight decay", price=DECAY)]
    return found + [Arm(penalty, form, price) for (penalty, form), prices in PRICES.items() for price in prices]


@cache
def _data(device: str) -> dict[str, Whole]:
    from assay.data.beyond import mnist

    splits = whole(mnist(), device)
    train, test = splits["train"], splits["test"]
    return {
        "train": Whole(train.x[:-HELD_OUT].flatten(1), train.y[:-HELD_OUT]),
        "held out": Whole(train.x[-HELD_OUT:].flatten(1), train.y[-HELD_OUT:]),
        "test": Whole(test.x.flatten(1), test.y),
    }


def _net(inputs: int) -> nn.Sequential:
    """784-1024-1024-10 with ReLU, Xavier's start and biases of 0, as in the public code."""
    widths = (inputs, *WIDTHS, 10)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layer = nn.Linear(before, after)
        nn.init.xavier_uniform_(layer.weight, gain=nn.init.calculate_gain("relu"))
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class _Trained(NamedTuple):
    """Of each net, arms x seeds: how often it is right, by epoch, and the net at the end."""

    held_out: Array  # epochs arms seeds
    test: Array  # epochs arms seeds
    right: NDArray[np.bool_]  # arms seeds n: at the last epoch
    best: NDArray[np.bool_]  # arms seeds n: at the epoch that does best on the test
    nets: tuple[tuple[nn.Module, ...], ...]  # arms seeds


@cache
def _trained(first: int, device: str) -> _Trained:
    """All nets at once: those of one seed have the same start and the same order of batches, whatever their arm."""
    from assay.methods.train.ensemble import Stacked

    data, every, seeds = _data(device), arms(), range(first, first + SEEDS)
    inputs = data["train"].x.shape[1]
    nets: list[nn.Module] = []
    for _ in every:
        for seed in seeds:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                nets.append(_net(inputs))
    stacked = Stacked([net.to(device) for net in nets]).to(device)
    orders = torch.stack(_orders(len(data["train"]), seeds) * len(every), 1).to(device)  # n m
    paid = _prices(stacked, every, device)
    shape = (len(every), SEEDS)
    kept: dict[str, list[Array]] = {"held out": [], "test": []}
    best = np.zeros((*shape, len(data["test"])), dtype=bool)

    def looked(epoch: int) -> None:
        now = {split: _right(stacked, data[split]).reshape(*shape, -1) for split in kept}
        for split, told in kept.items():
            told.append(now[split].mean(-1))
        better = now["test"].mean(-1) > best.mean(-1)
        best[better] = now["test"][better]

    def loss(rows: Tensor) -> Tensor:  # k -> (): the sum of the nets' means, and of what they pay
        x, y = data["train"].rows(orders[rows])
        out: Tensor = stacked(x)  # k m c
        return F.cross_entropy(out.flatten(0, 1), y.flatten()) * len(nets) + paid(generator(device))

    fit_recorded(
        stacked, list(stacked.parameters()), loss, len(orders), epochs=EPOCHS, batch=BATCH, lr=LR, optimiser="adam",
        momentum=0.5, seed=first, device=device, on_epoch=looked,
    )  # fmt: skip
    stacked.give_back(nets)
    last = _right(stacked, data["test"]).reshape(*shape, -1)
    held, test = (np.stack(kept[split]) for split in ("held out", "test"))
    by_arm = tuple(tuple(nets[a * SEEDS : (a + 1) * SEEDS]) for a in range(len(every)))
    return _Trained(held, test, last, best, by_arm)


def _orders(n: int, seeds: Iterable[int]) -> list[Tensor]:
    """In which order the nets of each seed see the n inputs; every epoch shuffles all of them in the same way."""
    return [torch.randperm(n, generator=torch.Generator().manual_seed(seed)) for seed in seeds]


def _prices(stacked: Stacked, every: list[Arm], device: str) -> Callable[[torch.Generator], Tensor]:
    """The sum of what each net pays, for the whole of it and for each layer; those of one form are asked together."""
    from torch.func import vmap

    weights = dict(stacked.net.named_parameters())
    count = len(weights) // 2
    places: dict[tuple[Penalty, Form], list[int]] = {}
    for i, arm in enumerate(every):
        places.setdefault((arm.penalty, arm.form), []).append(i)
    prices = {
        of: torch.tensor([every[i].price for i in some for _ in range(SEEDS)], device=device)
        for of, some in places.items()
    }

    def paid(rng: torch.Generator) -> Tensor:  # -> ()
        total = torch.zeros((), device=device)
        for (penalty, form), some in places.items():
            rows = slice(some[0] * SEEDS, (some[-1] + 1) * SEEDS)  # arms of one form are neighbours
            mine = [(weights[f"{2 * i}.weight"][rows], weights[f"{2 * i}.bias"][rows]) for i in range(count)]
            price = prices[penalty, form]
            if penalty == "weight decay":
                total = total + (price * sum(w.square().sum((1, 2)) + b.square().sum(1) for w, b in mine)).sum() / 2
            elif penalty != "baseline":
                fake = [_fake(w.shape[-1], penalty, form, rng, hidden=i > 0) for i, (w, _) in enumerate(mine)]
                each = vmap(lambda *layers: _paid(penalty, form, fake, layers))(*mine)  # noqa: B023
                total = total + (price * each).sum()
        return total

    return paid


def _fake(width: int, penalty: Penalty, form: Form, rng: torch.Generator, *, hidden: bool) -> Tensor:  # -> v k d
    from assay.methods.train.channel_capacity import fake_inputs

    if form == "printed":
        several = 4 if penalty == "EIC" else 1
        return fake_inputs(
            (width,), "eic" if penalty == "EIC" else "mic", rng, densities=several, inputs=FAKE // several
        )
    x = fake_inputs((width,), "coded", rng, densities=1, inputs=FAKE)
    return x.abs() if hidden and penalty == "EIC" else x  # what a hidden layer sees is not negative


def _paid(penalty: Penalty, form: Form, fake: list[Tensor], layers: tuple[tuple[Tensor, Tensor], ...]) -> Tensor:
    """What one net pays: for each layer (in the code with its ReLU) and for the whole."""
    from assay.methods.train.channel_capacity import mic_surrogate, output_trace

    def price(x: Tensor, y: Tensor) -> Tensor:
        if penalty == "MIC":
            return mic_surrogate(x, y, squared=form == "coded")
        trace = output_trace(y, as_published=True)
        return trace / y.shape[-1] if form == "coded" else trace

    through, total = fake[0], torch.zeros((), device=fake[0].device)
    for i, (weight, bias) in enumerate(layers):
        last = i == len(layers) - 1
        alone, through = F.linear(fake[i], weight, bias), F.linear(through, weight, bias)
        through = through if last else through.relu()
        total = total + price(fake[i], alone.relu() if form == "coded" and not last else alone)
    return total + price(fake[0], through)


@torch.no_grad()
def _right(stacked: Stacked, rows: Whole) -> NDArray[np.bool_]:  # -> m n
    count = next(iter(stacked.parameters())).shape[0]
    parts = [stacked(x[:, None].expand(-1, count, -1)).argmax(-1) for x in torch.split(rows.x, 1000)]
    right: NDArray[np.bool_] = (torch.cat(parts) == rows.y[:, None]).T.cpu().numpy()
    return right


def _chosen(found: _Trained, penalty: Penalty, form: Form) -> int:
    """The arm of the price that is best on held-out images at the last epoch, mean over the seeds."""
    has_forms = penalty in ("MIC", "EIC")
    some = [i for i, arm in enumerate(arms()) if arm.penalty == penalty and (arm.form == form or not has_forms)]
    return max(some, key=lambda i: float(found.held_out[-1, i].mean()))


class _Compared(NamedTuple):
    arm: Arm
    last: over.Gap
    best: over.Gap


def _against(found: _Trained, penalty: Penalty, form: Form) -> _Compared:
    place, base = _chosen(found, penalty, form), _chosen(found, "baseline", "coded")
    what = f"{penalty} as {form} less that of the baseline"
    return _Compared(
        arms()[place],
        over.gap(f"accuracy of {what}, last epoch", list(_float(found.right[place])), list(_float(found.right[base]))),
        over.gap(f"accuracy of {what}, best epoch", list(_float(found.best[place])), list(_float(found.best[base]))),
    )


def _float(right: NDArray[np.bool_]) -> Array:
    return right.astype(np.float64)


def _found(run: Run) -> _Trained:
    with run.progress(f"training {len(arms()) * SEEDS} networks at once", 1) as tick:
        found = _trained(run.seed, run.device)
        tick(1)
    return found


def _gate(found: _Trained) -> Gate:
    """At the epoch that does best on the test, as print has it."""
    best = list(_float(found.best[_chosen(found, "baseline", "coded")]))
    return over.gate("The accuracy of the baseline", best, 0.9856, 0.98)


def generalisation(run: Run) -> Evidence:
    found = _found(run)
    base = _chosen(found, "baseline", "coded")
    decay = _chosen(found, "weight decay", "coded")
    compared = {(penalty, form): _against(found, penalty, form) for penalty, form in PRICES}
    told = "; ".join(
        f"{penalty} as {form} (price {each.arm.price:g}) {over.points(each.last)} at the last epoch and "
        f"{over.points(each.best)} at the best"
        for (penalty, form), each in compared.items()
    )

    def accuracy(name: str, place: int, best: bool) -> Measure:
        which = found.best if best else found.right
        return over.accuracy(f"accuracy, {name}, {'best' if best else 'last'} epoch", list(_float(which[place])))

    rows = [("baseline", base), ("MIC, as coded", _chosen(found, "MIC", "coded")),
            ("EIC, as coded", _chosen(found, "EIC", "coded")), ("weight decay", decay),
            ("MIC, as printed", _chosen(found, "MIC", "printed")),
            ("EIC, as printed", _chosen(found, "EIC", "printed"))]  # fmt: skip
    return over.evidence(
        over.above(0.0, compared["MIC", "coded"].last, compared["EIC", "coded"].last),
        f"Points of accuracy over the baseline: {told}. The best epoch is that of the test images themselves, the "
        f"price that of {HELD_OUT:,} held-out ones.",
        (_gate(found),),
        *(accuracy(name, place, best) for best in (True, False) for name, place in rows),
        *(gap.measure for each in compared.values() for gap in (each.last, each.best)),
    )


def sturdier(run: Run) -> Evidence:
    """What print does not measure: how steep the nets are, and how they hold under an attack."""
    from assay.methods.attack import pgd

    found = _found(run)
    test = _data(run.device)["test"]
    x, y = test.x[:ATTACKED], test.y[:ATTACKED]
    measures: list[Measure] = []
    held: dict[str, list[Array]] = {}
    steep: dict[str, float] = {}
    rows: list[tuple[str, Penalty]] = [("baseline", "baseline"), ("weight decay", "weight decay"),
                                       ("MIC, as coded", "MIC"), ("EIC, as coded", "EIC")]  # fmt: skip
    for name, penalty in rows:
        nets = found.nets[_chosen(found, penalty, "coded")]
        bounds = []
        held[name] = []
        for seed, net in enumerate(nets):
            net.eval().requires_grad_(False)
            layers = [module for module in net.modules() if isinstance(module, nn.Linear)]
            bounds.append(float(np.prod([float(torch.linalg.matrix_norm(m.weight, 2)) for m in layers])))
            rng = torch.Generator(run.device).manual_seed(seed)
            fell = pgd(net, x, y, radius=RADIUS, steps=STEPS, rng=rng).success
            held[name].append(1 - fell.double().cpu().numpy())
        steep[name] = float(np.mean(bounds))
        measures.append(
            Measure(
                name=f"Lipschitz bound, {name}",
                value=steep[name],
                better="lower",
                n=len(nets),
                about="product of spectral norms",
            )
        )
        measures.append(over.accuracy(f"accuracy under attack, {name}", held[name]))
    gaps = [
        over.gap(f"accuracy under attack of {name} less that of the baseline", held[name], held["baseline"])
        for name in ("MIC, as coded", "EIC, as coded")
    ]
    verdict: Held = over.above(0.0, *gaps)
    return Evidence(
        verdict=verdict,
        says=f"At a radius of {RADIUS:g} MIC is {over.points(gaps[0])} points ahead of the baseline and EIC "
        f"{over.points(gaps[1])}; the product of the spectral norms is "
        + ", ".join(f"{value:.3g} ({name})" for name, value in steep.items())
        + ".",
        measures=(*measures, *(gap.measure for gap in gaps)),
        gates=(_gate(found),),
        seeds=SEEDS,
    )


HERE = (
    f"the network of print (784-1024-1024-10) on MNIST less {HELD_OUT:,} held-out images, {EPOCHS} epochs of Adam with "
    f"one cycle (printed: 200, x 0.97 every second), in TF32, batches of {BATCH}, {SEEDS} seeds with the same start "
    "and order for all arms; the price of each penalty is the best of three on held-out images; as coded: deviations "
    "of fake inputs from U[0, 1], means over outputs, squared norms, layers with their ReLU; as printed: as the "
    "equations say"
)


SHELVED = (
    Claim(
        name="mnist",
        source=SOURCE,
        says="A price on MIC or on EIC makes a network generalise better on MNIST.",
        published=(
            Published("accuracy, baseline, best epoch", 0.9856, "table 1, MNIST, MLP", "%"),
            Published("accuracy, MIC, as coded, best epoch", 0.9887, "table 1, MNIST, MLP", "%"),
            Published("accuracy, EIC, as coded, best epoch", 0.9886, "table 1, MNIST, MLP", "%"),
            Published("accuracy, weight decay, best epoch", 0.9869, "table 1, MNIST, MLP +WD, baseline", "%"),
        ),
        here=HERE + ". The public code keeps the best test accuracy over the epochs, so print's numbers stand beside "
        "those of the best epoch; judged is the last",
        minutes=80,
        test=generalisation,
        seeds=SEEDS,
    ),
    Claim(
        name="sturdier",
        source=SOURCE,
        says="A network of less capacity holds better under attack; print does not say so, and does not measure it.",
        published=(),
        here=f"{HERE}; {ATTACKED:,} test images, PGD of {STEPS} steps at l_inf {RADIUS:g}",
        minutes=80,
        test=sturdier,
        seeds=SEEDS,
        ours=True,
    ),
)
