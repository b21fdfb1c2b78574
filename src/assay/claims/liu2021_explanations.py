"""Liu 2021, part III: explanations judged by how hard an attack is on the features that they name, or off them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Gate, Published
from assay.claims import _over_seeds as over
from assay.claims._kept import ROOMS, Tensors, kept
from assay.claims._queries import over_queries
from assay.data.whole import Whole, whole
from assay.finding import Better

if TYPE_CHECKING:
    from assay.methods.explain.greedy import Criterion
    from assay.methods.train.fit import Rows
    from assay.run import Run

SOURCE = (
    "Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021 (dissertation), ch. 7, with its public code, "
    "ChengYuHsieh/explanation_robustness"
)
SEEDS, EPOCHS, BATCH, LR = 5, 3, 128, 1e-3
IMAGES = 20  # test images that are explained, others of each network: 100 in all, as in print
LEAST = 0.985  # of accuracy, which print does not give
SAMPLES, INCLUDE, AT_ONCE, PICKED = 5000, 0.2, 39, 392  # of Greedy-AS, as in the public code
STEPS, JUDGE_STEPS = 10, 50  # of the attack towards each rival, while Greedy-AS picks and when all are judged
JUDGE_RIVALS = 0  # all
PATHS, REFERENCES, ORDERS = 50, 200, 40  # points of IG, images behind EG, orders in which SHAP adds pixels
METHODS = ("Grad", "IG", "EG", "SHAP", "LOO", "CFX", "Random", "Greedy-AS")
CRITERIA: tuple[Criterion, ...] = ("s-r-bar", "s-r")
REMOVALS: tuple[tuple[str, Better], ...] = (("insertion", "higher"), ("deletion", "lower"))
NAMES = {"s-r-bar": "S_r-bar", "s-r": "S_r"}
TABLE = {  # table 7.1, MNIST
    "Grad": (88.00, 91.72), "IG": (85.98, 91.97), "EG": (93.24, 91.05), "SHAP": (75.48, 101.49),
    "LOO": (74.14, 104.38), "CFX": (69.88, 102.81), "Random": (64.44, 193.75), "Greedy-AS": (98.01, 82.81),
}  # fmt: skip
Array = NDArray[np.float64]
Maps = dict[str, dict["Criterion", Tensor]]  # method -> criterion -> n 784, larger is more important


@cache
def _data(device: str) -> dict[str, Whole]:
    from assay.data.beyond import mnist

    return whole(mnist(), device)


def trained(data: Rows, seed: int, device: str) -> nn.Module:
    """The public code's network: convolutions of 20 and 50 kernels of 5 x 5, each with a maximum pool, then 500, 10."""
    from assay.methods.train.fit import fit

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net = nn.Sequential(
            *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),  # -> n 20 12 12
            *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),  # -> n 800
            *(nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
        )
    rng = torch.Generator(device).manual_seed(seed)
    fit(net, data, epochs=EPOCHS, lr=LR, batch=BATCH, optimiser="adam", device=device, rng=rng)
    return net.eval().requires_grad_(False)


class _Table(NamedTuple):
    areas: dict[str, dict[str, Array]]  # method -> curve -> areas of n images
    accuracy: float  # on all test images
    capped: float  # the share of judged attacks that were


@cache  # all claims are about the same table
def _areas(seed: int, device: str) -> _Table:
    """Of one network; a table takes minutes, and is kept."""
    data = _data(device)

    def make() -> Tensors:
        areas, right, capped = _measured(seed, device)
        told = {f"{method}/{kind}": torch.from_numpy(each) for method, of in areas.items() for kind, each in of.items()}
        return {**told, "accuracy": torch.tensor(right), "capped": torch.tensor(capped)}

    settings = (seed, IMAGES, SAMPLES, STEPS, JUDGE_STEPS, PICKED)
    found = kept(make, __name__, settings, device, data.values(), ("claims", *ROOMS))
    areas: dict[str, dict[str, Array]] = {method: {} for method in METHODS}
    for name in found:
        method, _, kind = name.partition("/")
        if kind:
            areas[method][kind] = found[name].double().numpy()
    return _Table(areas, float(found["accuracy"]), float(found["capped"]))


def _measured(seed: int, device: str) -> tuple[dict[str, dict[str, Array]], float, float]:
    from assay.methods.explain.faithfulness import removal_curve, robustness_curve
    from assay.methods.explain.subset_robustness import Search

    data = _data(device)
    net = trained(data["train"], seed, device)
    rows = torch.randperm(len(data["test"]), generator=torch.Generator().manual_seed(seed))[:IMAGES].to(device)
    x = data["test"].x[rows]
    maps = _maps(net, x, data["train"].x, seed)
    judge = Search(steps=JUDGE_STEPS, rivals=JUDGE_RIVALS, batch=8192)
    cap = torch.linalg.vector_norm(x.flatten(1).double(), dim=1)  # as in the public code
    areas: dict[str, dict[str, Array]] = {}
    capped = []
    for method, ranked in maps.items():
        areas[method] = {}
        for criterion in CRITERIA:
            curve = robustness_curve(net, x, ranked[criterion], criterion=criterion, cap=cap, search=judge)
            areas[method][criterion] = curve.area().cpu().numpy()
            capped.append(curve.capped.double().mean().item())
        for kind, best in (("insertion", "s-r-bar"), ("deletion", "s-r")):
            gone = removal_curve(net, x, ranked[best], kind=kind)  # type: ignore[arg-type, index]
            areas[method][kind] = gone.area().cpu().numpy() / 100
    test = data["test"]
    with torch.no_grad():
        right = torch.cat([net(part).argmax(1) for part in torch.split(test.x, 2000)]) == test.y
    return areas, right.double().mean().item(), float(np.mean(capped))


def _maps(net: nn.Module, x: Tensor, background: Tensor, seed: int) -> Maps:
    from assay.methods.attack import minimal_norm
    from assay.methods.explain.faithfulness import importance

    with torch.no_grad():
        y = net(x).argmax(1)
    slope = partial(_slope, net)
    rng = torch.Generator(x.device).manual_seed(seed)
    plain = {
        "Grad": slope(x, y),
        "IG": _path(slope, x, y, torch.zeros_like(x[:1]), rng),
        "EG": _path(slope, x, y, background, rng),
        "SHAP": _shapley(net, x, y, rng),
        "LOO": _leave_one_out(net, x, y),
        "CFX": minimal_norm(net, x, y, norm="l2").x - x,
        "Random": torch.rand(x.shape, generator=rng, device=x.device),
    }
    maps: Maps = {method: dict.fromkeys(CRITERIA, importance(each)) for method, each in plain.items()}
    maps["Greedy-AS"] = {criterion: _greedy_as(net, x, criterion, seed) for criterion in CRITERIA}
    return maps


def _greedy_as(net: nn.Module, x: Tensor, criterion: Criterion, seed: int) -> Tensor:
    from assay.methods.explain.greedy import robust_features
    from assay.methods.explain.subset_robustness import Search

    cap = torch.linalg.vector_norm(x.flatten(1), dim=1)
    rng = torch.Generator(x.device).manual_seed(seed)
    weight = [
        robust_features(
            net, each, criterion=criterion, size=PICKED, samples=SAMPLES, at_once=AT_ONCE, include=INCLUDE,
            cap=float(limit), search=Search(steps=STEPS, batch=SAMPLES), rng=rng,
        ).weight
        for each, limit in zip(x, cap, strict=True)
    ]  # fmt: skip
    return torch.stack(weight).to(x.device)


def _slope(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the logit of y: n *d -> n *d."""
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        return torch.autograd.grad(net(at).gather(1, y[:, None]).sum(), at)[0]


def _path(
    slope: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, references: Tensor, rng: torch.Generator
) -> Tensor:
    """(x - x') times the gradient between x' and x: integrated gradients from one x', expected ones from many."""
    many = len(references) > 1
    total = torch.zeros_like(x)
    count = REFERENCES if many else PATHS
    for k in range(count):
        if many:
            pick = torch.randint(len(references), (len(x),), generator=rng, device=rng.device)
            start, share = references[pick], torch.rand(len(x), 1, 1, 1, generator=rng, device=rng.device)
        else:
            start, share = references, torch.full((len(x), 1, 1, 1), (k + 0.5) / count, device=x.device)
        total += (x - start) * slope(start + share * (x - start), y)
    return total / count


def _leave_one_out(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """How far the logit of y falls where one pixel is set to 0: n *d -> n *d."""
    d = x[0].numel()
    all_but_one = 1 - torch.eye(d, dtype=x.dtype, device=x.device).view(d, *x.shape[1:])
    return (_logit(net, x[:, None], y) - _logit(net, x[:, None] * all_but_one, y)).view_as(x)


def _shapley(net: nn.Module, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
    """Shapley values of the pixels for the logit of y, 0 where absent, over random orders: n *d -> n *d."""
    d = x[0].numel()
    total = x.new_zeros(len(x), d)
    for _ in range(ORDERS):
        order = torch.randperm(d, generator=rng, device=rng.device)
        shown = (order.argsort() < torch.arange(d + 1, device=x.device)[:, None]).to(x.dtype)  # d+1 d, one more a row
        z = _logit(net, x[:, None] * shown.view(-1, *x.shape[1:]), y).flatten(1)
        total[:, order] += z.diff(dim=1)
    return (total / ORDERS).view_as(x)


def _logit(net: nn.Module, variants: Tensor, y: Tensor) -> Tensor:
    """The logit of y for each variant of each input: n m *d -> n m."""
    n, m = variants.shape[:2]
    label = y.repeat_interleave(m)
    parts = zip(torch.split(variants.flatten(0, 1), 20_000), torch.split(label, 20_000), strict=True)
    with torch.no_grad():
        z = torch.cat([net(part).gather(1, each[:, None])[:, 0] for part, each in parts])
    return z.view(n, m)


def _stacked(tables: Sequence[_Table], method: str, kind: str) -> Array:  # -> seeds n
    return np.stack([each.areas[method][kind] for each in tables])


def _better(tables: Sequence[_Table], one: str, other: str, criterion: Criterion) -> over.Gap:
    """By how much the area of `one` is better than that of `other`, image by image."""
    sign = 1 if criterion == "s-r-bar" else -1
    gap = sign * (_stacked(tables, one, criterion) - _stacked(tables, other, criterion))
    return over.Gap(over_queries(f"{one} over {other}, {NAMES[criterion]}", gap, unit=""), gap.mean(1))


def _evidence(run: Run, pairs: tuple[tuple[str, str, Criterion], ...]) -> Evidence:
    """The table, and by how much the first of each pair is better than the second."""
    with run.progress(f"explaining for {SEEDS} networks", SEEDS) as tick:
        tables = []
        for seed in range(run.seed, run.seed + SEEDS):
            tables.append(_areas(seed, run.device))
            tick(1)
    kinds: list[tuple[str, str, Better]] = [
        (criterion, NAMES[criterion], "higher" if criterion == "s-r-bar" else "lower") for criterion in CRITERIA
    ]
    removal: list[tuple[str, str, Better]] = [(kind, kind, better) for kind, better in REMOVALS]
    table = [
        replace(over_queries(f"{method}, {name}", _stacked(tables, method, kind), unit=""), better=better)
        for rows in (kinds, removal)
        for method in METHODS
        for kind, name, better in rows
    ]
    gaps = [_better(tables, *pair) for pair in pairs]
    means = {(m, c): float(_stacked(tables, m, c).mean()) for m in METHODS for c in CRITERIA}
    told = "; ".join(
        f"{NAMES[c]}: "
        + ", ".join(
            f"{m} {means[m, c]:.1f}"
            for m in sorted(METHODS, key=lambda m, c=c: means[m, c], reverse=c == "s-r-bar")  # type: ignore[misc]
        )
        for c in CRITERIA
    )
    least = min(gaps, key=lambda gap: gap.low).measure
    capped = np.mean([each.capped for each in tables])
    return Evidence(
        verdict=over.above(0.0, *gaps),
        gates=(
            Gate(
                what="The accuracy of the network",
                values=tuple(each.accuracy for each in tables),
                printed=None,
                low=LEAST,
            ),
        ),
        seeds=len(tables),
        says=f"Areas over {SEEDS} networks and {IMAGES} images of each, best first: {told}. The narrowest of the "
        f"comparisons asked for is {least.name}: {least.value:+.2f} (95 % interval {least.low:+.2f} to "
        f"{least.high:+.2f}). {100 * capped:.1f} % of the values are capped.",
        measures=(*table, *(gap.measure for gap in gaps)),
    )


def _against(one: str, *others: str) -> tuple[tuple[str, str, Criterion], ...]:
    return tuple((one, other, criterion) for other in others for criterion in CRITERIA)


OTHERS = METHODS[:-1]
PRINTED = tuple(
    Published(f"{method}, {NAMES[criterion]}", TABLE[method][i], f"table 7.1, MNIST, {method}")
    for method in METHODS
    for i, criterion in enumerate(CRITERIA)
)
HERE = (
    f"MNIST, the public code's network ({EPOCHS} epochs of Adam) from {SEEDS} seeds, {IMAGES} random test images of "
    f"each; areas over 5, 10, ..., 45 % of the pixels, ranked by absolute attribution; l2 attacks of {JUDGE_STEPS} "
    "steps towards every rival class where the print has PGD on the logit of y, values above ||x||_2 capped there. "
    f"Greedy-AS is picked for the criterion that it is judged by, {SAMPLES} subsets a round, {AT_ONCE} pixels at once "
    f"up to {PICKED}. SHAP is sampled over {ORDERS} orders, EG over {REFERENCES} training images; BBMP is not run. "
    "Insertion and deletion are shares of the answer's probability with reference 0. The table's scale (shares, cap) "
    "is not printed: compare orders, not values; better: the 95 % interval of the paired difference, over networks "
    "and images, and every network's mean lie above 0"
)


def _claim(name: str, says: str, pairs: tuple[tuple[str, str, Criterion], ...]) -> Claim:
    return Claim(
        name=name,
        source=SOURCE,
        says=says,
        published=PRINTED,
        here=HERE,
        minutes=240,
        test=partial(_evidence, pairs=pairs),
        seeds=SEEDS,
    )


SHELVED = (
    _claim(
        "greedy-as-first",
        "Greedy-AS has the best area of all explanations under Robustness-S_r-bar and under Robustness-S_r.",
        _against("Greedy-AS", *OTHERS),
    ),
    _claim(
        "gradient-strong",
        "The plain gradient is better than SHAP, leave-one-out and counterfactual explanations under both criteria.",
        _against("Grad", "SHAP", "LOO", "CFX"),
    ),
    _claim(
        "random-last",
        "Under Robustness-S_r-bar a random ranking is the worst of all.",
        tuple((method, "Random", "s-r-bar") for method in METHODS if method != "Random"),
    ),
)
