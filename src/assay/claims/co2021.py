"""Co, Martinez Rego & Lupu 2021: Jacobian regularisation against universal perturbations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Held, Published
from assay.claims._student import of_seeds
from assay.data.whole import Whole, whole
from assay.finding import Measure
from assay.methods.train.recorded import fit_net

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = "Co, Martinez Rego & Lupu, 'Jacobian Regularization for Mitigating Universal Adversarial Perturbations', 2021"
Name = Literal["MNIST", "Fashion-MNIST"]
NAMES: tuple[Name, ...] = ("MNIST", "Fashion-MNIST")
RADIUS: dict[Name, float] = {"MNIST": 0.2, "Fashion-MNIST": 0.15}
ARMS = (0.0, 0.05)  # lambda: standard training, Jacobian regularisation
SEEDS, EPOCHS, BATCH, LR, DECAY = 5, 30, 100, 0.05, 5e-4
STEPS, MADE_ON, RESTARTS = 100, 200, 3  # of the attack: iterations, inputs in each, and tries
NO_COST = 0.005  # a test error that rises by less counts as no cost
Bounds = tuple[float, float]
BOX: Bounds = (0.0, 1.0)
UNCLIPPED: Bounds = (-1.0, 2.0)  # holds every image with every change
Arm = float | Literal["UAT"]  # lambda, or universal adversarial training
SWEPT: tuple[Arm, ...] = (0.0, 0.01, 0.05, 0.1, 0.5, "UAT")
RADII = (0.1, 0.15, 0.2, 0.25, 0.3)
UAT_EPOCHS = 12  # of universal adversarial training, whose steps are slower
NEAR, ALIKE = 0.1, 0.1  # of an error and of a similarity: how near print the standard network must come
LEAST: dict[Name, float] = {"MNIST": 0.985, "Fashion-MNIST": 0.895}  # of its accuracy
NO_MORE = 0.1  # the largest lambda that is said to cost nothing
PAIRED = 1000  # inputs whose Jacobians are compared, pair by pair


Look = Callable[[nn.Module, Mapping[str, Whole], Name, int], tuple[float, ...]]
"""What is measured of a trained network: model, data, name of the data, seed -> numbers."""


@lru_cache(maxsize=1)
def _data(name: Name, device: str) -> dict[str, Whole]:
    from assay.data.beyond import fashion_mnist, mnist

    splits = mnist() if name == "MNIST" else fashion_mnist()
    return whole(splits, device)


@cache  # all claims are about the same networks
def _trained(name: Name, lam: Arm, seed: int, device: str) -> nn.Module:
    return _fitted(_data(name, device)["train"], lam, name, seed, device)


def _fitted(train: Whole, arm: Arm, name: Name, seed: int, device: str) -> nn.Module:
    """A LeNet from the start, and in the order of batches, that the seed names, whatever the arm."""
    from assay.methods.train.fit import fit
    from assay.methods.train.jacobian_regularization import JacobianRegularizer
    from assay.methods.train.universal_adversarial_training import UniversalAdversary
    from assay.nn.lenet import LeNet

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = LeNet()
    if arm == "UAT":
        against = UniversalAdversary(model, RADIUS[name])
        fit(
            model, train, epochs=UAT_EPOCHS, lr=LR, batch=BATCH, weight_decay=DECAY, schedule="one-cycle",
            augment=against.augment, after_step=against.after_step, device=device,
            rng=torch.Generator(device).manual_seed(seed),
        )  # fmt: skip
    else:
        priced = JacobianRegularizer(arm)
        fit_net(
            model.to(device), train, epochs=EPOCHS, lr=LR, batch=BATCH, weight_decay=DECAY, augment=priced.augment,
            loss=priced.loss, seed=seed, device=device,
        )  # fmt: skip
    return model.eval().requires_grad_(False)


def _seen(names: Sequence[Name], run: Run, look: Look) -> NDArray[np.float64]:
    """What `look` sees in each pair of networks: data sets x seeds x arms x numbers."""
    seen = []
    count = len(names) * SEEDS * len(ARMS)
    with run.progress(f"training {count} networks", count) as tick:
        for name in names:
            for seed in range(run.seed, run.seed + SEEDS):
                for lam in ARMS:
                    seen.append(look(_trained(name, lam, seed, run.device), _data(name, run.device), name, seed))
                    tick(1)
    return np.array(seen).reshape(len(names), SEEDS, len(ARMS), -1)


def _attacked(model: nn.Module, data: Mapping[str, Whole], name: Name, seed: int) -> tuple[float, ...]:
    """Test error, universal error, mean targeted success, and the universal error of the attack as printed.

    The paper does not say that images are clipped to [0, 1] under a change. Where most pixels are 0, as on MNIST, it
    matters much: the last number is that of changes that are made and judged without.
    """
    from assay.methods.attack.universal import error_rate, success_rate, universal

    train, test = data["train"], data["test"]

    def change(
        target: int | None = None, restarts: int = 1, as_published: bool = False, bounds: Bounds = BOX
    ) -> Tensor:
        return universal(
            model,
            train.x,
            train.y,
            radius=RADIUS[name],
            target=target,
            steps=STEPS,
            batch=MADE_ON,
            restarts=restarts,
            rng=torch.Generator(train.x.device).manual_seed(seed),
            bounds=bounds,
            as_published=as_published,
        ).delta

    aimed = [success_rate(model, test.x, change(c), c) for c in range(10)]
    return (
        error_rate(model, test.x, test.y, torch.zeros_like(test.x[0])),
        error_rate(model, test.x, test.y, change(restarts=RESTARTS)),
        float(np.mean(aimed)),
        error_rate(model, test.x, test.y, change(as_published=True)),
        error_rate(model, test.x, test.y, change(as_published=True, bounds=UNCLIPPED), bounds=UNCLIPPED),
    )


def _aligned(model: nn.Module, data: Mapping[str, Whole], name: Name, seed: int) -> tuple[float, ...]:
    """The median similarity of the Jacobians of two test inputs, the paper's and by input directions alone."""
    from assay.methods.attack.jacobian import jacobian, right_similarity, similarity

    test = data["test"]
    rows = [torch.nonzero(test.y == c).flatten()[: PAIRED // 10] for c in range(10)]
    j = torch.cat([jacobian(model, part) for part in torch.split(test.x[torch.cat(rows)], 100)])  # n c *d
    return tuple(float(np.median(sim(j, j).cpu().numpy())) for sim in (similarity, right_similarity))


def lower_universal_error(name: Name, run: Run) -> Evidence:
    seen = _seen((name,), run, _attacked)[0]  # seeds arms numbers
    cost, gain = (
        of_seeds(f"change of the {what}", seen[:, 1, i] - seen[:, 0, i], better="lower", unit="%")
        for i, what in enumerate(("test error", "universal error"))
    )
    verdict: Held = "cannot tell"
    if _between(gain)[1] < 0 and _between(cost)[1] <= NO_COST:
        verdict = "holds"
    elif _between(gain)[0] >= 0 or _between(cost)[0] > NO_COST:
        verdict = "fails"
    return Evidence(
        verdict=verdict,
        gates=_gates(name, seen[:, 0, 0], seen[:, 0, 4]),
        seeds=len(seen),
        says=f"Over {len(seen)} paired seeds the penalty changed the universal error at {RADIUS[name]:g} by "
        f"{_points(gain)} and the test error by {_points(cost)}. Where images are not clipped to [0, 1], as the print "
        f"may be read, the universal error goes from {100 * seen[:, 0, 4].mean():.1f} to "
        f"{100 * seen[:, 1, 4].mean():.1f} %.",
        measures=(
            *_means(("test error", "universal error", "targeted success"), seen[..., :3]),
            gain,
            cost,
            *_means(("universal error as printed", "universal error as printed, unclipped"), seen[..., 3:]),
        ),
    )


def _gates(name: Name, wrong: NDArray[np.float64], broken: NDArray[np.float64]) -> tuple[Gate, Gate]:
    """Of the standard network: how often it is right, and how often one change for all images makes it wrong."""
    (_, clean, *_), (_, universal, *_), _ = TABLE_ONE[name]
    return (
        Gate(
            what="The accuracy of the standard network",
            values=tuple(1 - wrong),
            printed=round(1 - clean / 100, 4),
            low=LEAST[name],
        ),
        Gate(
            what=f"The universal error of the standard network at {RADIUS[name]:g}",
            values=tuple(broken),
            printed=round(universal / 100, 4),
            low=universal / 100 - NEAR,
        ),
    )


def less_alignment(run: Run) -> Evidence:
    seen = _seen(NAMES, run, _aligned)  # names seeds arms numbers
    falls = [
        of_seeds(f"change on {name}", pair[:, 1, 0] - pair[:, 0, 0], better="lower")
        for name, pair in zip(NAMES, seen, strict=True)
    ]
    verdict: Held = "cannot tell"
    if all(_between(fall)[1] < 0 for fall in falls):
        verdict = "holds"
    elif any(_between(fall)[0] >= 0 for fall in falls):
        verdict = "fails"
    printed, right = (
        [
            m
            for name, pair in zip(NAMES, seen, strict=True)
            for m in _means((f"{what} on {name}",), pair[..., i : i + 1], "")
        ]
        for i, what in enumerate(("median similarity", "median similarity of input directions"))
    )
    told = " and ".join(f"by {fall.value:+.2f} on {name}" for name, fall in zip(NAMES, falls, strict=True))
    return Evidence(
        verdict=verdict,
        gates=tuple(
            Gate(
                what=f"The median similarity of Jacobians of the standard network on {name}",
                values=tuple(pair[:, 0, 0]),
                printed=SIMILAR[name],
                low=SIMILAR[name] - ALIKE,
                high=SIMILAR[name] + ALIKE,
            )
            for name, pair in zip(NAMES, seen, strict=True)
        ),
        seeds=SEEDS,
        says=f"Over {SEEDS} paired seeds the penalty changed the median similarity of two Jacobians {told}.",
        measures=(*printed, *falls, *right),
    )


def over_weight_and_radius(name: Name, run: Run) -> Evidence:
    """Test error, and error under a universal change of each radius, for each arm: the gain judged up to RADIUS."""
    seen = _swept(name, run)  # seeds arms (1 + radii)
    plain = SWEPT.index(0.0)
    priced = [i for i, arm in enumerate(SWEPT) if arm != "UAT" and ARMS[1] <= arm <= NO_MORE]
    near = [j for j, radius in enumerate(RADII) if radius <= RADIUS[name]]
    costs = [_change(seen, i, plain, 0, f"change of the test error, {_called(SWEPT[i])}") for i in priced]
    gains = [
        _change(seen, i, plain, 1 + j, f"change of the universal error at {RADII[j]:g}, {_called(SWEPT[i])}")
        for i in priced
        for j in near
    ]
    verdict: Held = "cannot tell"
    if all(_between(gain)[1] < 0 for gain in gains) and all(_between(cost)[1] <= NO_COST for cost in costs):
        verdict = "holds"
    elif any(_between(gain)[0] >= 0 for gain in gains):  # what is negligible print does not say
        verdict = "fails"
    table = {
        (what, arm): Measure(
            name=f"{what}, {_called(arm)}",
            value=float(seen[:, i, k].mean()),
            better="lower",
            n=len(seen),
            unit="%",
        )
        for k, what in enumerate(("test error", *(f"universal error at {radius:g}" for radius in RADII)))
        for i, arm in enumerate(SWEPT)
    }
    printed = [(what, arm) for what, arm, _ in _printed(name)]
    at = RADII.index(RADIUS[name])
    rows = "; ".join(
        f"{_called(arm)} {100 * seen[:, i, 0].mean():.1f} and {100 * seen[:, i, 1 + at].mean():.1f}"
        for i, arm in enumerate(SWEPT)
    )
    return Evidence(
        verdict=verdict,
        gates=_gates(name, seen[:, plain, 0], seen[:, plain, 1 + RADII.index(RADIUS[name])]),
        seeds=len(seen),
        says=f"Test error and error under a universal change of {RADIUS[name]:g}, in %, means of {len(seen)} seeds: "
        f"{rows}.",
        measures=(
            *(table[key] for key in printed),
            *(m for key, m in table.items() if key not in printed),
            *gains,
            *costs,
        ),
    )


def _swept(name: Name, run: Run) -> NDArray[np.float64]:
    """seeds x arms x (test error, universal error at each radius)"""
    from assay.methods.attack.universal import error_rate, universal

    train, test = (_data(name, run.device)[part] for part in ("train", "test"))
    seen = np.empty((SEEDS, len(SWEPT), 1 + len(RADII)))
    with run.progress(f"training {SEEDS * len(SWEPT)} networks", SEEDS * len(SWEPT)) as tick:
        for s in range(SEEDS):
            for i, arm in enumerate(SWEPT):
                model = _trained(name, arm, run.seed + s, run.device)
                seen[s, i, 0] = error_rate(model, test.x, test.y, torch.zeros_like(test.x[0]))
                for j, radius in enumerate(RADII):
                    change = universal(
                        model,
                        train.x,
                        train.y,
                        radius=radius,
                        steps=STEPS,
                        batch=MADE_ON,
                        rng=torch.Generator(train.x.device).manual_seed(run.seed + s),
                    ).delta
                    seen[s, i, 1 + j] = error_rate(model, test.x, test.y, change)
                tick(1)
    return seen


def _called(arm: Arm) -> str:
    return arm if arm == "UAT" else f"lambda {arm:g}"


def _change(seen: NDArray[np.float64], arm: int, plain: int, number: int, what: str) -> Measure:
    return of_seeds(what, seen[:, arm, number] - seen[:, plain, number], better="lower", unit="%")


def the_expansion(run: Run) -> Evidence:
    from assay.methods.attack.jacobian import jacobian, published_bound, stacked_frobenius, stacked_spectral
    from assay.nn.lenet import LeNet

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(run.seed)
        model, x = LeNet().double().requires_grad_(False), torch.rand(20, 1, 28, 28).double()
    j = jacobian(model, x)
    exact, printed = stacked_frobenius(j), stacked_frobenius(j, as_published=True)
    longest = stacked_spectral(model, x).norm
    same = abs(exact - printed) <= 1e-9 * exact
    return Evidence(
        verdict="holds" if same else "fails",
        says=f"The stacked Jacobian has Frobenius norm {exact:.4g}; the printed expansion gives {printed:.4g}, the "
        f"norm of the sum of the Jacobians. The bound (9), {published_bound(j):.4g}, holds all the same, far above "
        f"what one change can do at all, {longest:.4g}.",
        measures=tuple(
            Measure(name=name, value=value, better="neither", n=len(x))
            for name, value in (
                ("Frobenius norm of the stacked Jacobian", exact),
                ("root of the printed expansion", printed),
                ("the bound (9)", published_bound(j)),
                ("spectral norm of the stacked Jacobian", longest),
            )
        ),
    )


def _means(what: Sequence[str], seen: NDArray[np.float64], unit: str = "%") -> list[Measure]:
    """For each number the mean over the seeds in either arm: seeds arms numbers -> numbers x arms."""
    return [
        Measure(name=f"{each}, {arm}", value=float(seen[:, a, i].mean()), better="lower", n=len(seen), unit=unit)
        for i, each in enumerate(what)
        for a, arm in enumerate(("standard", "JR"))
    ]


def _between(m: Measure) -> tuple[float, float]:
    assert m.low is not None  # of a mean over seeds
    assert m.high is not None
    return m.low, m.high


def _points(m: Measure) -> str:
    low, high = _between(m)
    return f"{100 * (m.value or 0):+.2f} points (95 % interval {100 * low:+.2f} to {100 * high:+.2f})"


TRAINED = (
    f"LeNet on all 60,000 training images, {EPOCHS} epochs of SGD (momentum 0.9, one cycle up to {LR}, weight decay "
    f"{DECAY:g}, batches of {BATCH}), lambda 0.05 with one projection, {SEEDS} paired seeds"
)


TABLE_ONE: dict[Name, tuple[tuple[str, float, float, float], ...]] = {  # %, columns Standard, UAT and JR
    "MNIST": (
        ("test error", 0.92, 1.81, 0.90),
        ("universal error", 85.88, 27.49, 20.47),
        ("targeted success", 85.94, 24.05, 21.57),
    ),
    "Fashion-MNIST": (
        ("test error", 9.16, 16.66, 9.15),
        ("universal error", 86.63, 34.10, 29.96),
        ("targeted success", 86.33, 26.64, 30.59),
    ),
}


SIMILAR: dict[Name, float] = {"MNIST": 0.58, "Fashion-MNIST": 0.46}


def _unless(name: Name) -> str:
    (_, clean, *_), (_, universal, *_), _ = TABLE_ONE[name]
    return (
        f"`cannot tell` unless the standard network is right on at least {100 * LEAST[name]:g} % (printed: "
        f"{100 - clean:g}) and wrong on {universal - 100 * NEAR:.0f} % under one change (printed: {universal:g}) in "
        "every seed"
    )


def _printed(name: Name) -> list[tuple[str, Arm, float]]:
    """What of table 1 the sweep meets again: what, arm, %."""
    arms: tuple[Arm, ...] = (0.0, "UAT", ARMS[1])
    clean, broken, _ = TABLE_ONE[name]
    return [
        (what, arm, value)
        for what, values in (("test error", clean[1:]), (f"universal error at {RADIUS[name]:g}", broken[1:]))
        for arm, value in zip(arms, values, strict=True)
    ]


def _sweep(name: Name) -> Claim:
    columns: dict[Arm, str] = {0.0: "Standard", "UAT": "UAT", ARMS[1]: "JR"}
    return Claim(
        name=f"sweep-{name.lower()}",
        source=SOURCE,
        says=f"Up to a radius of {RADIUS[name]:g} Jacobian regularisation with lambda from {ARMS[1]:g} to {NO_MORE:g} "
        f"lowers the error under universal perturbations on {name}, at a negligible cost in accuracy.",
        published=tuple(
            Published(f"{what}, {_called(arm)}", round(value / 100, 4), f"table 1, {name}, {columns[arm]}", "%")
            for what, arm, value in _printed(name)
        ),
        here=f"LeNet trained as for table 1 (universal-error-{name.lower()}) with each of "
        f"{', '.join(_called(arm) for arm in SWEPT)} (universal adversarial training at {RADIUS[name]:g}, "
        f"{UAT_EPOCHS} epochs), {SEEDS} paired seeds; changes of {', '.join(f'{radius:g}' for radius in RADII)} made "
        f"on training images in {STEPS} steps of {MADE_ON}, judged on all 10,000 test images, clipped to [0, 1]; "
        f"holds if the error falls at all these and the test error rises by less than {100 * NO_COST:g} points, fails "
        f"if it falls not: what is negligible, print does not say; {_unless(name)}",
        minutes=30,
        test=partial(over_weight_and_radius, name),
        seeds=SEEDS,
    )


def _table_one(name: Name) -> Claim:
    return Claim(
        name=f"universal-error-{name.lower()}",
        source=SOURCE,
        says=f"Jacobian regularisation greatly lowers the error under universal perturbations of {RADIUS[name]:g} on "
        f"{name}, at no cost in clean accuracy.",
        published=tuple(
            Published(f"{what}, {arm}", round(value / 100, 4), f"table 1, {name}, {column}", "%")
            for what, standard, _, jr in TABLE_ONE[name]
            for arm, column, value in (("standard", "Standard", standard), ("JR", "JR", jr))
        ),
        here=f"{TRAINED}; changes made on training images in {STEPS} steps of {MADE_ON} (untargeted: best of "
        f"{RESTARTS}), judged on all 10,000 test images, clipped to [0, 1]; no cost: the test error rises by less than "
        f"{100 * NO_COST:g} points; universal adversarial training, the table's third method, is in the sweep; "
        f"{_unless(name)}, there without clipping",
        minutes=45,
        test=partial(lower_universal_error, name),
        seeds=SEEDS,
    )


SHELVED = (
    _table_one("MNIST"),
    _table_one("Fashion-MNIST"),
    _sweep("MNIST"),
    _sweep("Fashion-MNIST"),
    Claim(
        name="jacobian-similarity",
        source=SOURCE,
        says="Jacobian regularisation lowers the similarity of the Jacobians of two inputs.",
        published=(
            Published("median similarity on MNIST, standard", SIMILAR["MNIST"], "figure 4, left"),
            Published("median similarity on MNIST, JR", 0.18, "figure 4, left"),
            Published("median similarity on Fashion-MNIST, standard", SIMILAR["Fashion-MNIST"], "figure 4, right"),
            Published("median similarity on Fashion-MNIST, JR", 0.11, "figure 4, right"),
        ),
        here=f"{TRAINED}; all pairs of {PAIRED} test images, every class equally often; `cannot tell` unless the "
        f"median of the standard network is within {ALIKE:g} of print's on both",
        minutes=60,
        test=less_alignment,
        seeds=SEEDS,
    ),
    Claim(
        name="frobenius-expansion",
        source=SOURCE,
        says="The squared Frobenius norm of the stacked Jacobian is the sum of the inner products of all pairs of "
        "Jacobians.",
        published=(),
        here="an untrained LeNet in float64 and 20 random images",
        minutes=0.1,
        test=the_expansion,
    ),
)
