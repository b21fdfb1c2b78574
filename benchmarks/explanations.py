"""How fast are explanations?

    python benchmarks/explanations.py subsets          g for 64 inputs x 16 subsets, beside loops over single attacks
    python benchmarks/explanations.py greedy           Greedy-AS with patches of 7 x 7 pixels on a 28 x 28 input
    python benchmarks/explanations.py pixels           Greedy-AS with single pixels on a network of MNIST's size
    python benchmarks/explanations.py maps             each standard map, over the passes that it cannot do without

All use a GPU if there is one. Run it on a quiet machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from named import named
from torch import Tensor, nn

from assay.methods.attack.pgd import pgd
from assay.methods.explain.faithfulness import FaithfulnessCurve, importance, random_areas, robustness_curve
from assay.methods.explain.greedy import PICKING, robust_features
from assay.methods.explain.groups import patches, pixels, spread
from assay.methods.explain.maps import LEAST_SAMPLES, SAMPLES_EACH, STEPS, explain, usual_groups
from assay.methods.explain.subset_robustness import Search, subset_robustness

Answer = TypeVar("Answer")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INPUTS, SUBSETS = 64, 16
PAIRS_ONE_BY_ONE, PAIRS_AS_PUBLISHED = 64, 8  # that the slow ways are measured on; all would take an hour
PUBLISHED_RADII, PUBLISHED_STEPS = 25, 100
MAPPED, TURNS = 8, 3  # inputs that get maps, and how often each is timed
SAMPLES, AT_ONCE, INCLUDE = 5000, 39, 0.2  # of Greedy-AS on pixels, as in the thesis's public code


def timed(work: Callable[[], Answer]) -> tuple[float, Answer]:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    answer = work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, answer


def bundled(n: int) -> tuple[nn.Module, Tensor]:
    from assay.data.fashion import fashion_weights, load_fashion
    from assay.nn.small_cnn import SmallCNN

    model = SmallCNN()
    model.load_state_dict(fashion_weights())
    x, _ = load_fashion()["test"].take(np.arange(n))
    return model.eval().requires_grad_(False).to(DEVICE), x.to(DEVICE)


def published(model: nn.Module, x: Tensor, free: Tensor) -> float:
    """The recipe of the thesis's public code for one input and one subset: a search over the radius around PGD.

    The logit of y goes down inside each ball; the radius starts at 10, goes up and down by factors of 10 until it is
    between two, and is halved from there.
    """
    y = model(x).argmax(1)
    low, high, radius = 0.0, np.inf, 10.0

    def seen(at: Tensor) -> Tensor:
        out: Tensor = model(torch.where(free, at, at.detach()))  # the gradient is masked before it is normalised
        return out

    for _ in range(PUBLISHED_RADII):
        found = pgd(
            seen, x, y, norm="l2", radius=radius, steps=PUBLISHED_STEPS, step=min(1.0, radius), random_start=False,
            loss=lambda z, label: -z.gather(1, label[:, None])[:, 0], mask=free, leave=False,
        )  # fmt: skip
        if bool(found.success):
            high = min(high, float(found.distance))
        else:
            low = radius
        if high - low < 1e-3:
            break
        radius = 10 * radius if high == np.inf else (radius / 10 if low == 0 else (low + high) / 2)
    return high


def subsets() -> None:
    model, x = bundled(INPUTS)
    groups = patches((1, 28, 28), 7)
    rng = torch.Generator().manual_seed(0)
    sets = torch.rand(INPUTS, SUBSETS, 16, generator=rng) < 0.5
    search = Search()
    subset_robustness(model, x[:2], sets[:2], groups=groups, search=search)
    taken, value = timed(lambda: subset_robustness(model, x, sets, groups=groups, search=search))
    pairs = value.numel()
    print(f"{pairs} pairs of the bundled network on {DEVICE}, {torch.get_num_threads()} threads")
    print(f"  one call                      {taken:8.2f} s   mean g {float(value.mean()):.4f}")
    some = torch.randperm(pairs, generator=rng)
    places = [divmod(int(p), SUBSETS) for p in some]

    def one_by_one() -> list[float]:
        return [
            float(subset_robustness(model, x[i : i + 1], sets[i, j : j + 1], groups=groups, search=search))
            for i, j in places[:PAIRS_ONE_BY_ONE]
        ]

    def as_published() -> list[float]:
        return [
            published(model, x[i : i + 1], spread(sets[i, j : j + 1], groups).to(DEVICE))
            for i, j in places[:PAIRS_AS_PUBLISHED]
        ]

    for name, loop in (("the same, pair by pair", one_by_one), ("radius search around PGD", as_published)):
        spent, found = timed(loop)
        ours = float(np.mean([float(value[i, j]) for i, j in places[: len(found)]]))
        whole = spent / len(found) * pairs
        print(
            f"  {name:28s}  {whole:8.2f} s   mean g {np.mean(found):.4f} against {ours:.4f}   {whole / taken:.1f} "
            f"times the one call (from {len(found)} pairs)"
        )


def greedy() -> None:
    model, x = bundled(1)
    groups = patches((1, 28, 28), 7)
    for criterion in ("s-r-bar", "s-r"):
        taken, found = timed(partial(robust_features, model, x[0], criterion=criterion, groups=groups))
        print(
            f"Greedy-AS, {criterion}, 16 patches, {len(found.order)} picked, {found.asked} sets ({found.capped} "
            f"capped) on {DEVICE}, {torch.get_num_threads()} threads: {taken:.1f} s; order {found.order.tolist()}"
        )


def mnist_network() -> tuple[nn.Module, Tensor]:
    """The thesis's network, trained on MNIST where ASSAY_DATA has it and else on the bundled images."""
    from assay.claims.liu2021_explanations import trained
    from assay.data.beyond import assay_data, mnist
    from assay.data.fashion import load_fashion

    data = mnist() if assay_data() is not None else load_fashion()
    model = trained(data["train"], 0, DEVICE)
    x, _ = data["test"].take(np.arange(8))
    return model, x.to(DEVICE)


def whole_pixels() -> None:
    model, x = mnist_network()
    search = replace(PICKING, batch=SAMPLES if DEVICE == "cuda" else 500)
    taken, found = timed(
        lambda: robust_features(
            model,
            x[0],
            groups=pixels((1, 28, 28)),
            size=392,
            at_once=AT_ONCE,
            samples=SAMPLES,
            include=INCLUDE,
            search=search,
        )
    )
    print(
        f"Greedy-AS, 784 pixels, {len(found.order)} picked, {found.asked} sets ({found.capped} capped) on {DEVICE}: "
        f"{taken:.1f} s"
    )
    at = x[:1].clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(at).amax(), at)

    def curve(scores: Tensor) -> FaithfulnessCurve:
        return robustness_curve(model, x[:1], scores, criterion="s-r-bar", search=replace(search, rivals=0, steps=100))

    chance = random_areas(curve, 1, 784, draws=3, rng=torch.Generator(DEVICE).manual_seed(0))
    print(
        f"  area of Robustness-S_r-bar, higher is better: Greedy-AS {float(curve(found.weight[None]).area()):.1f}, "
        f"gradient {float(curve(importance(slope)).area()):.1f}, random {float(chance.mean()):.1f}"
    )


def bare(model: nn.Module, x: Tensor, backward: int, forward: int) -> None:
    """So many passes with and without a gradient, in the batches that suit the machine, and nothing else."""
    rows = 64 if DEVICE == "cpu" else 2048
    for count, steep in ((backward, True), (forward, False)):
        for start in range(0, count, rows):
            at = x[:1].expand(min(rows, count - start), -1, -1, -1).contiguous().requires_grad_(steep)
            with torch.set_grad_enabled(steep):
                y = model(at)
                if steep:
                    torch.autograd.grad(y[:, 0].sum(), at)


def worked(work: Callable[[], object]) -> float:
    """Seconds on a GPU, else seconds of CPU time, which other programs do not lengthen."""
    start = time.process_time()
    taken, _ = timed(work)
    return taken if DEVICE == "cuda" else time.process_time() - start


def standard_maps() -> None:
    """Maps and bare passes are timed in turn, and the median of each counts."""
    model, x = bundled(MAPPED)
    background = x.flip(0)
    patches_each = int(usual_groups(x.shape[1:]).max()) + 1
    sets = max(LEAST_SAMPLES, SAMPLES_EACH * patches_each)
    passes = {  # (with gradient, without) for each input
        **dict.fromkeys(("gradient", "gradient-input", "gradcam"), (1, 0)),
        **{name: (STEPS[name], 0) for name in ("integrated-gradients", "expected-gradients", "smoothgrad")},
        "occlusion": (0, patches_each), "lime": (0, sets), "kernel-shap": (0, sets), "rise": (0, STEPS["rise"]),
    }  # fmt: skip
    print(f"{MAPPED} inputs of the bundled network on {DEVICE}, {torch.get_num_threads()} threads")
    for name, (backward, forward) in passes.items():
        both = [
            (
                worked(partial(bare, model, x, MAPPED * backward, MAPPED * forward)),
                worked(partial(explain, model, x, None, name, background=background)),
            )
            for _ in range(TURNS if backward + forward > 1 else 20 * TURNS)
        ]
        limit, taken = np.median(both, axis=0)
        print(
            f"  {name:22s} {taken:8.3f} s, {taken / limit:.2f} times the {limit:.3f} s of its passes (for each input "
            f"{backward} with a gradient, {forward} without)",
            flush=True,
        )
    for name, work in captums(model, x).items():
        print(f"  captum's {name:35s} {min(worked(work) for _ in range(TURNS)):8.3f} s", flush=True)


def captums(model: nn.Module, x: Tensor) -> dict[str, Callable[[], object]]:
    """The same from captum where it is installed, in one batch and in small ones."""
    try:
        from captum.attr import IntegratedGradients, Occlusion
    except ImportError:
        return {}
    y = model(x).argmax(1)
    steps = STEPS["integrated-gradients"]
    along, hidden = IntegratedGradients(model), Occlusion(model)
    return {
        "integrated gradients, one batch": lambda: along.attribute(x, target=y, n_steps=steps),
        "integrated gradients, batches of 64": lambda: along.attribute(
            x, target=y, n_steps=steps, internal_batch_size=64
        ),
        "occlusion, one patch a pass": lambda: hidden.attribute(x, (1, 4, 4), strides=(1, 4, 4), target=y),
        "occlusion, eight patches a pass": lambda: hidden.attribute(
            x, (1, 4, 4), strides=(1, 4, 4), target=y, perturbations_per_eval=8
        ),
    }


COMMANDS: dict[str, Callable[[], None]] = {
    "subsets": subsets, "greedy": greedy, "pixels": whole_pixels, "maps": standard_maps
}  # fmt: skip

if __name__ == "__main__":
    named(__doc__, COMMANDS)()
