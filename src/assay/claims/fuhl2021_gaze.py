"""Fuhl et al. 2021: hiding who looked and keeping what was looked at, against an attacker who retrains."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Held, Published
from assay.claims._elsewhere import RULE, elsewhere
from assay.claims._kept import ROOMS, Tensors, kept
from assay.claims._student import of_seeds
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = (
    "Fuhl, Bozkir & Kasneci, 'Reinforcement Learning for the Privacy Preservation and Manipulation of Eye Tracking "
    "Data', ICANN 2021"
)
CHANCE_WHO, CHANCE_WHAT = 1 / 8, 1 / 4
APPARENT = 0.5  # of what the attackers lose before they adapt: so much comes back where privacy was apparent only


@dataclass(frozen=True)
class Size:
    """How large the study is."""

    seeds: int = 5
    side: int = 32
    each: int = 60
    widths: tuple[int, ...] = (8, 16, 32, 64)
    kernels: tuple[int, ...] = (3, 3, 3, 3)
    iterations: int = 4
    epochs: int = 30
    steps: int = 250
    lessons: int = 4
    runs: int = 120
    pixel_eps: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0)
    raw_eps: tuple[float, ...] = (30.0, 100.0, 300.0, 1000.0)
    copies: int = 20


SIZE = Size()
CONTROLS = ("GAN", "random masks", "noise on pixels", "noise on coordinates")
Rates = NDArray[np.float64]


@dataclass(frozen=True)
class Study:
    """Shares read rightly; columns: what before, who before, what after, who after the attackers adapted."""

    agent: Rates  # s rounds 4: images as they are, the autoencoder alone, then each iteration
    others: dict[str, Rates]  # of each control s 4


def _studied(run: Run) -> Study:
    made = []
    with run.progress("games against attackers who adapt", SIZE.seeds) as tick:
        for seed in range(run.seed, run.seed + SIZE.seeds):
            made.append(_one(seed, run.device))
            tick(1)
    agent, *others = (np.stack([of[name].double().numpy() for of in made]) for name in ("agent", *CONTROLS))
    return Study(agent, dict(zip(CONTROLS, others, strict=True)))


@cache  # all claims are about the same games
def _one(seed: int, device: str) -> Tensors:
    """One game, which takes minutes and is kept."""
    told = (seed, *astuple(SIZE))
    return kept(lambda: _played(seed, device), __name__, told, device, (), ("claims", *ROOMS))


def _played(seed: int, device: str) -> Tensors:
    """One seed: paths, autoencoder, agent and all controls."""
    from assay.data.scan_paths import PEOPLE, STIMULI, draw, load_scan_paths
    from assay.methods.private.adaptive_attack import Lesson, Memory, answers, play, reported, retrained
    from assay.methods.private.gan import train_gan
    from assay.methods.private.laplace import picture_sensitivity, recording_sensitivity, voted, with_noise
    from assay.methods.private.mask_agent import MaskAgent, Training, correctness, reward
    from assay.methods.private.masks import with_zeros
    from assay.methods.train.fit import anew, fit
    from assay.nn.masked import Autoencoder, Masked, MaskNet, StackClassifier

    rng = torch.Generator(device).manual_seed(seed)
    data = load_scan_paths(each=SIZE.each, size=SIZE.side, seed=seed)
    shape = (3, SIZE.side, SIZE.side)
    x, new = (torch.as_tensor(data[split].take(np.arange(len(data[split])))[0]).to(device) for split in data)
    labels, truth = (
        tuple(torch.from_numpy(part).to(device) for part in (each.paths.what, each.paths.who))
        for each in (data["train"], data["test"])
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        coder = Autoencoder(shape, SIZE.widths, SIZE.kernels).to(device)
        protos = [
            StackClassifier(shape, k, SIZE.widths, SIZE.kernels, hidden=128).to(device) for k in (STIMULI, PEOPLE)
        ]
        chooser = MaskNet(shape, coder.features, SIZE.widths, SIZE.kernels).to(device)
    make = (lambda g: anew(protos[0], g), lambda g: anew(protos[1], g))
    lesson = Lesson(steps=SIZE.steps, most=SIZE.lessons)

    class Itself:
        def __len__(self) -> int:
            return len(x)

        def take(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
            part = x[torch.from_numpy(index).to(x.device)]
            return part, part

    fit(
        coder, Itself(), epochs=SIZE.epochs, lr=2e-3, batch=32, weight_decay=0.0, optimiser="adam", rng=rng,
        loss=F.mse_loss, device=device,
    )  # fmt: skip
    coder.requires_grad_(False).eval()
    codes = answers(coder.encode, x)
    agents: list[MaskAgent] = []

    def improve(keep: nn.Module, hide: nn.Module) -> Callable[[Tensor], Tensor]:
        def judge(z: Tensor, rows: Tensor) -> Tensor:
            image = coder.decode(z)
            return reward(correctness(keep(image), labels[0][rows]), correctness(hide(image), labels[1][rows]))

        if not alone:
            alone.append(True)
            return coder
        if agents:
            agents[0].against(judge)
        else:
            agents.append(MaskAgent(chooser, x, codes, judge, rng, Training(runs=SIZE.runs)))
        agents[0].learn()
        return Masked(coder, chooser)

    alone: list[bool] = []
    play_with = (make, x, (labels[0], labels[1]), new, (truth[0], truth[1]))
    game = play(*play_with, SIZE.iterations + 1, improve, lesson, rng)

    def rates(hits: tuple[Tensor, ...]) -> Rates:
        return np.array([float(h.double().mean()) for h in hits])

    def once(manipulation: Callable[[nn.Module, nn.Module], Callable[[Tensor], Tensor]]) -> Rates:
        return rates(play(*play_with, 1, manipulation, lesson, rng).rounds[-1])

    def by_gan(keep: nn.Module, hide: nn.Module) -> nn.Module:
        return train_gan(
            copy.deepcopy(coder).requires_grad_(True), copy.deepcopy(keep), copy.deepcopy(hide), x,
            (labels[0], labels[1]), steps=SIZE.runs * SIZE.iterations, rng=rng,
        )  # fmt: skip

    learned = Masked(coder, chooser)

    def by_chance(image: Tensor) -> Tensor:
        """As many features off in each image as the agent switches off in it, any of them."""
        zeros = (learned.mask(image) == 0).sum(1)
        return coder.decode(coder.encode(image) * with_zeros(zeros, coder.features, rng))

    def by_noise(noisy: Callable[[int, float], Tensor], tried: tuple[float, ...]) -> Rates:
        """At the eps with the largest distance between what is kept and what is hidden, in favour of the noise."""
        plain = [retrained(each, Memory(x, (labels[0], labels[1])), i, lesson, rng) for i, each in enumerate(make)]
        found = []
        for eps in tried:
            seen = Memory(x, (labels[0], labels[1]))
            for _ in range(3):
                seen.see(noisy(0, eps))

            def read(net: nn.Module, which: int, eps: float = eps) -> Tensor:
                return voted(lambda z: answers(net, z), lambda: noisy(1, eps), SIZE.copies) == truth[which]

            hide = retrained(make[1], seen, 1, lesson, rng)
            before = [read(net, which) for which, net in enumerate(plain)]
            _, *after = reported(make, seen.seen[1:], (labels[0], labels[1]), hide, read, lesson, rng)
            found.append(rates((*before, *after)))
        return max(found, key=lambda each: float(each[2] - each[3]))

    images, wide = (x, new), picture_sensitivity(x)
    points = [torch.from_numpy(data[split].paths.points).to(device) for split in ("train", "test")]
    far = recording_sensitivity(points[0])

    def recorded(which: int, eps: float) -> Tensor:
        moved = with_noise(points[which], far, eps, rng).cpu().numpy()
        return torch.from_numpy(draw(moved, SIZE.side)).to(device)

    others = (
        once(by_gan),
        once(lambda keep, hide: by_chance),
        by_noise(lambda which, eps: with_noise(images[which], wide, eps, rng), SIZE.pixel_eps),
        by_noise(recorded, SIZE.raw_eps),
    )
    agent = np.stack([rates(each) for each in game.rounds])
    return {"agent": torch.from_numpy(agent), **dict(zip(CONTROLS, map(torch.from_numpy, others), strict=True))}


_percent = partial(of_seeds, unit="%")


def _told(measure: Measure) -> str:
    return f"{100 * (measure.value or 0):.0f} % ({100 * (measure.low or 0):.0f} to {100 * (measure.high or 0):.0f})"


def _sign(measure: Measure) -> Held:
    if (measure.low or 0) > 0:
        return "holds"
    return "fails" if (measure.high or 0) < 0 else "cannot tell"


def apparent(run: Run) -> Evidence:
    rounds = _studied(run).agent
    before, after, start = (_percent(name, rounds[:, at, col]) for name, at, col in (
        ("who, iteration 1, before the attackers adapt", 2, 1),
        ("who, iteration 1, after", 2, 3),
        ("who, the autoencoder alone", 1, 3),
    ))  # fmt: skip
    lost = rounds[:, 1, 3] - rounds[:, 2, 1]
    back = _percent(
        "comes back by retraining, less half of what was lost", rounds[:, 2, 3] - rounds[:, 2, 1] - APPARENT * lost
    )
    hid = _percent("who, lost to attackers who have not adapted", lost)
    return elsewhere(
        _sign(back) if _sign(hid) == "holds" else "cannot tell",  # where nothing was hidden nothing comes back
        says=f"After one iteration who looked is read off {_told(before)} by attackers who have not adapted and off "
        f"{_told(after)} by those who have; through the autoencoder alone off {_told(start)}, by chance 12 %.",
        measures=(before, after, start, back, hid),
        seeds=SIZE.seeds,
    )


def hides(run: Run) -> Evidence:
    rounds = _studied(run).agent
    who, what = (_percent(f"{name}, last iteration, after the attackers adapt", rounds[:, -1, col])
                 for name, col in (("who", 3), ("what", 2)))  # fmt: skip
    start = _percent("who, the autoencoder alone", rounds[:, 1, 3])
    fallen = _percent("who, fallen since the autoencoder alone", rounds[:, 1, 3] - rounds[:, -1, 3])
    trend = rounds[:, 2:, 3]
    at = np.arange(trend.shape[1]) - (trend.shape[1] - 1) / 2
    slope = _percent("who, change in an iteration", trend @ at / max(float(at @ at), 1e-12))
    spare = _percent("what, above twice chance", rounds[:, -1, 2] - 2 * CHANCE_WHAT)
    signs = {_sign(fallen), _sign(spare)}
    held: Held = "fails" if "fails" in signs else "cannot tell" if "cannot tell" in signs else "holds"
    return elsewhere(
        held,
        says=f"Against attackers who adapted, who looked is read off {_told(who)} after {SIZE.iterations} iterations, "
        f"through the autoencoder alone off {_told(start)}, and what was looked at off {_told(what)}; a change of "
        f"{100 * (slope.value or 0):+.1f} points in an iteration.",
        measures=(what, who, start, fallen, slope, spare),
        seeds=SIZE.seeds,
    )


def ahead(run: Run) -> Evidence:
    study = _studied(run)
    ours = study.agent[:, -1, 2] - study.agent[:, -1, 3]
    gaps = [
        _percent(f"kept less hidden, ahead of {name}", ours - (each[:, 2] - each[:, 3]))
        for name, each in study.others.items()
    ]
    signs = [_sign(gap) for gap in gaps]
    held: Held = "fails" if "fails" in signs else "holds" if set(signs) == {"holds"} else "cannot tell"
    told = "; ".join(
        f"{name} what {100 * each[:, 2].mean():.0f} %, who {100 * each[:, 3].mean():.0f} %"
        for name, each in {"agent": study.agent[:, -1], **study.others}.items()
    )
    return elsewhere(held, says=f"Read by attackers who adapted: {told}.", measures=tuple(gaps), seeds=SIZE.seeds)


HERE = (
    f"scan paths made by code ({SIZE.each * 16} to train on, as many to test, 8 people, 4 stimuli, {SIZE.side} x "
    f"{SIZE.side}), widths {SIZE.widths}, kernels 3 x 3, {SIZE.iterations} iterations, {SIZE.seeds} seeds, Adam; the "
    "recordings of ETRA, Gaze, WherePeopleLook and DOVES are not at hand, so that the shape is compared and no digit: "
    f"{RULE}"
)
TABLE = "table 2, ETRA"
SHELVED = (
    Claim(
        name="apparent-privacy",
        source=SOURCE,
        says="A manipulation that hides who looked from the attackers at hand is undone by retraining them.",
        published=(
            Published(
                "who, RL iteration 1, no adaption", 0.13, TABLE, "%", "who, iteration 1, before the attackers adapt"
            ),
            Published("who, RL iteration 1, adaption", 0.93, TABLE, "%", "who, iteration 1, after"),
            Published("who, at the start", 0.93, TABLE, "%", "who, the autoencoder alone"),
        ),
        here=f"{HERE}; holds if something was lost since the autoencoder alone and retraining brings back more than "
        "half of it",
        minutes=30,
        test=apparent,
        seeds=SIZE.seeds,
    ),
    Claim(
        name="hides-over-iterations",
        source=SOURCE,
        says="Over the iterations who looked becomes unreadable even after retraining; the stimulus stays readable.",
        published=(
            Published(
                "stimulus, RL iteration 20, adaption",
                0.83,
                TABLE,
                "%",
                "what, last iteration, after the attackers adapt",
            ),
            Published(
                "who, RL iteration 20, adaption", 0.15, TABLE, "%", "who, last iteration, after the attackers adapt"
            ),
            Published("who, at the start", 0.93, TABLE, "%", "who, the autoencoder alone"),
        ),
        here=f"{HERE}; holds if who falls since the autoencoder alone and what stays above twice its chance",
        minutes=30,
        test=hides,
        seeds=SIZE.seeds,
    ),
    Claim(
        name="ahead-of-controls",
        source=SOURCE,
        says="The agent keeps more and hides more than a GAN of the same networks and than differential privacy.",
        published=(
            Published(
                "stimulus less who, RL 20, less that of the GAN",
                0.02,
                f"{TABLE}, difference of four",
                "%",
                "kept less hidden, ahead of GAN",
            ),
        ),
        here=f"{HERE}; kept less hidden, paired by seed, against a GAN, random masks with as many zeros, and Laplace "
        "noise of the eps that serves it best; holds if ahead of all",
        minutes=30,
        test=ahead,
        seeds=SIZE.seeds,
    ),
)
