"""A bench of our own, and no publication's: explainers scored where it is known what decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.claim import Claim, Evidence, Held
from assay.data.whole import Whole
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.methods.explain.greedy import Criterion, Explained
    from assay.methods.explain.words import Change
    from assay.run import Run

SOURCE = (
    "Ours: no publication says this. After the checks that Liu, UCLA 2021 (dissertation), ch. 7 suggests, on data made "
    "by assay.data.known_truth and assay.data.topics"
)
TEXTS, PICTURES, DIGITS = 20, 16, 40  # inputs that are explained
TRAINED = 3000  # pictures or digits to learn from
EPOCHS = {"planted": 12, "segments": 6}
STEPS = 10  # of the attack behind Greedy-AS, towards each of two rivals
SETS = 128  # of features, that Greedy-AS draws a round
CRITERIA: tuple[Criterion, ...] = ("s-r-bar", "s-r")
MAPS = ("gradient", "integrated-gradients", "smoothgrad", "gradcam", "occlusion", "kernel-shap", "edges", "random")
FADE, MOVE = "greedy-as s-r, words fade", "greedy-as s-r-bar, embeddings move"
Array = NDArray[np.float64]
Scores = Mapping[str, Array]  # explainer -> precision at the known size, one for each input


class Bench(NamedTuple):
    scores: Scores
    capped: Mapping[str, float]  # of Greedy-AS: the share of the values behind its picks
    stable: Mapping[str, float]  # of Greedy-AS: the mean Jaccard index of the picks of two seeds
    accuracy: float


def precision(scores: Tensor, truth: NDArray[np.bool_], rng: np.random.Generator) -> float:
    """The part of the truth among as many top-ranked features; equals are ranked at random."""
    order = np.lexsort((rng.random(len(truth)), -scores.detach().double().cpu().numpy()))
    return float(truth[order[: int(truth.sum())]].mean())


class _Tally:
    """Precisions as they come in."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.scores: dict[str, list[float]] = {}
        self.capped: dict[str, list[float]] = {}
        self.stable: dict[str, list[float]] = {}

    def ranked(self, name: str, scores: Tensor, truth: NDArray[np.bool_]) -> None:
        self.scores.setdefault(name, []).append(precision(scores, truth, self.rng))

    def picked(self, name: str, found: Explained, truth: NDArray[np.bool_]) -> None:
        self.scores.setdefault(name, []).append(float(truth[found.order.numpy()].mean()))
        self.capped.setdefault(name, []).append(found.capped_share)
        self.stable.setdefault(name, []).append(1.0 if found.stable is None else found.stable)

    def missed(self, name: str) -> None:
        """No change leads there: it names nothing, and every value is capped."""
        self.scores.setdefault(name, []).append(0.0)
        self.capped.setdefault(name, []).append(1.0)
        self.stable.setdefault(name, []).append(1.0)

    def bench(self, accuracy: float) -> Bench:
        def mean(of: Mapping[str, list[float]]) -> dict[str, float]:
            return {name: float(np.mean(values)) for name, values in of.items()}

        return Bench({k: np.array(v) for k, v in self.scores.items()}, mean(self.capped), mean(self.stable), accuracy)


def _learnt(
    kind: str, x: NDArray[np.float32], y: NDArray[np.int64], net: Callable[[], nn.Module], seed: int
) -> nn.Module:
    from assay.methods.train.fit import fit

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = net()
    rows = Whole(torch.as_tensor(x), torch.as_tensor(y))
    rng = torch.Generator().manual_seed(seed)
    fit(model, rows, epochs=EPOCHS[kind], lr=3e-3, batch=64, optimiser="adam", rng=rng)
    return model.eval().requires_grad_(False)


@cache
def _planted(seed: int) -> Bench:
    from assay.data.known_truth import CELL, PATTERNS, SIDE, make_planted
    from assay.methods.explain.groups import patches

    rng = np.random.default_rng(seed)
    learn, test = make_planted(TRAINED, rng), make_planted(500, rng)

    def net() -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(1, 16, 4), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()),  # -> n 16 13 13
            *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, len(PATTERNS))),
        )

    model = _learnt("planted", learn.x, learn.label, net, seed)
    x = torch.from_numpy(test.x)
    right = (model(x).argmax(1).numpy() == test.label).nonzero()[0]
    groups, tally = patches((1, SIDE, SIDE), CELL), _Tally(seed)
    for k in right[:PICTURES]:
        truth = np.arange((SIDE // CELL) ** 2) == test.cell[k]
        _maps(tally, model, x[k : k + 1], int(test.label[k]), groups, truth, seed)
        for criterion in CRITERIA:
            _greedy(tally, f"greedy-as {criterion}", model, x[k], groups, truth, criterion, None, seed)
    return tally.bench(len(right) / len(x))


@cache
def _segments(seed: int) -> Bench:
    """The rival of each digit is drawn among the others; maps explain the score of the answer over the rival's."""
    from assay.data.known_truth import HEIGHT, WIDTH, bar_map, differing, make_segments

    rng = np.random.default_rng(seed)
    learn, test = make_segments(TRAINED, rng), make_segments(500, rng)

    def net() -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(8 * HEIGHT * WIDTH, 32), nn.ReLU(), nn.Linear(32, 10)),
        )

    model = _learnt("segments", learn.x, learn.label, net, seed)
    x = torch.from_numpy(test.x)
    right = (model(x).argmax(1).numpy() == test.label).nonzero()[0]
    groups, tally = torch.from_numpy(bar_map()), _Tally(seed)
    for k in right[:DIGITS]:
        digit = int(test.label[k])
        rival = int((digit + rng.integers(1, 10)) % 10)
        truth = differing(digit, rival)
        if truth.all():
            continue  # whatever is named would be right
        _maps(tally, _Versus(model, digit, rival).eval(), x[k : k + 1], 0, groups, truth, seed)
        for criterion in CRITERIA:
            _greedy(tally, f"greedy-as {criterion}", model, x[k], groups, truth, criterion, rival, seed)
    return tally.bench(len(right) / len(x))


class _Versus(nn.Module):
    """The score of one class over another's: n *d -> n 2."""

    def __init__(self, model: nn.Module, one: int, other: int) -> None:
        super().__init__()
        self.model, self.one, self.other = model, one, other

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.model(x)
        return (z[:, self.one] - z[:, self.other])[:, None] * z.new_tensor([0.5, -0.5])


@cache
def _topics(seed: int) -> Bench:
    from assay.data.topics import make_texts
    from assay.methods.explain.groups import words
    from assay.subjects.topics_text import TopicsText, build

    model = build().model
    assert isinstance(model, TopicsText)
    texts = make_texts(10 * TEXTS, np.random.default_rng([seed, 1]))
    tally = _Tally(seed)
    with torch.no_grad():
        embedded = model.text.embed(torch.from_numpy(texts.tokens))
        said = model(embedded).argmax(1).numpy()
    right = (said == texts.label).nonzero()[0]
    for k in right[:TEXTS]:
        length = int((texts.tokens[k] != 0).sum())
        x, truth = embedded[k, :length], texts.key[k, :length]
        _maps(tally, model, x[None], int(said[k]), words(torch.ones(length), x.shape[1]), truth, seed)
        ways: tuple[tuple[Change, str], ...] = (("fade", "words fade"), ("embedding", "embeddings move"))
        for criterion in CRITERIA:
            for change, called in ways:
                _keywords(tally, f"greedy-as {criterion}, {called}", model, x, truth, criterion, change, seed)
    return tally.bench(len(right) / len(said))


def _maps(
    tally: _Tally, model: nn.Module, x: Tensor, target: int, groups: Tensor, truth: NDArray[np.bool_], seed: int
) -> None:
    from assay.methods.explain.faithfulness import importance
    from assay.methods.explain.maps import explain, methods_for

    for name in (m for m in MAPS if m in methods_for(model, x)):
        rng = torch.Generator().manual_seed(seed + len(tally.scores.get(name, ())))
        coarse = groups if name in ("occlusion", "kernel-shap") else None
        found = explain(model, x, target, name, groups=coarse, rng=rng)
        tally.ranked(name, importance(found.values, groups)[0], truth)


def _greedy(
    tally: _Tally,
    name: str,
    model: nn.Module,
    x: Tensor,
    groups: Tensor,
    truth: NDArray[np.bool_],
    criterion: Criterion,
    target: int | None,
    seed: int,
) -> None:
    from assay.errors import AssayError
    from assay.methods.explain.greedy import robust_features
    from assay.methods.explain.subset_robustness import Search

    try:
        found = robust_features(
            model, x, criterion=criterion, groups=groups, size=int(truth.sum()), target=target, samples=SETS,
            search=Search(steps=STEPS, halvings=2), rng=torch.Generator().manual_seed(seed), seeds=2,
        )  # fmt: skip
    except AssayError:
        return tally.missed(name)
    tally.picked(name, found, truth)


def _keywords(
    tally: _Tally,
    name: str,
    model: nn.Module,
    x: Tensor,
    truth: NDArray[np.bool_],
    criterion: Criterion,
    change: Change,
    seed: int,
) -> None:
    from assay.errors import AssayError
    from assay.methods.explain.subset_robustness import Search
    from assay.methods.explain.words import keywords

    try:
        found = keywords(
            model, x, size=int(truth.sum()), change=change, criterion=criterion, samples=SETS,
            search=Search(steps=STEPS, halvings=2), rng=torch.Generator().manual_seed(seed), seeds=2,
        )  # fmt: skip
    except AssayError:
        return tally.missed(name)
    tally.picked(name, found.explained, truth)


def _judged(gaps: list[Measure]) -> Held:
    """holds: every interval lies above 0. fails: one lies below."""
    if all((gap.low or 0) > 0 for gap in gaps):
        return "holds"
    return "fails" if any((gap.high or 0) < 0 for gap in gaps) else "cannot tell"


def _evidence(run: Run, made: Callable[[int], Bench], pairs: tuple[tuple[str, str], ...]) -> Evidence:
    """Precision of every explainer, caps and seeds of those that pick, and by how much the first of each pair leads."""
    bench = made(run.seed)
    order = sorted(bench.scores, key=lambda name: -bench.scores[name].mean())
    n = len(bench.scores["random"])
    table = [Measure.mean(f"precision, {m}", bench.scores[m], better="higher", seed=run.seed) for m in order]
    gaps = [
        Measure.mean(f"{a} over {b}", bench.scores[a] - bench.scores[b], better="higher", seed=run.seed)
        for a, b in pairs
    ]
    picks = [
        *(Measure(name=f"capped, {m}", value=v, n=n, better="lower") for m, v in bench.capped.items()),
        *(Measure(name=f"stable, {m}", value=v, n=n, better="higher") for m, v in bench.stable.items()),
    ]
    least = min(gaps, key=lambda gap: gap.low or 0)
    told = ", ".join(f"{m.name.removeprefix('precision, ')} {m.value:.2f} ({m.low:.2f} to {m.high:.2f})" for m in table)
    doubts = "; ".join(
        f"{m}: {100 * bench.capped[m]:.0f} % capped, seeds agree {bench.stable[m]:.2f}" for m in bench.capped
    )
    return Evidence(
        verdict=_judged(gaps),
        says=f"Precision at the known size over {n} inputs, best first: {told}. {doubts}. The narrowest comparison "
        f"asked for is {least.name}: {least.value:+.2f} (95 % interval {least.low:+.2f} to {least.high:+.2f}). The "
        f"network is right on {100 * bench.accuracy:.1f} %.",
        measures=(*table, *gaps, *picks),
    )


def _claim(name: str, says: str, here: str, made: Callable[[int], Bench], *pairs: tuple[str, str]) -> Claim:
    return Claim(
        name=name,
        source=SOURCE,
        says=says,
        published=(),
        here=f"{here} Precision: of as many top-ranked features as the truth has, the part that is in it; inputs that "
        f"are answered rightly. Greedy-AS draws {SETS} sets a round, twice with different seeds.",
        minutes=3,
        test=partial(_evidence, made=made, pairs=pairs),
        ours=True,
    )


SHELVED = (
    _claim(
        "topic-words",
        "Ours: Greedy-AS by s-r over words that fade finds the topic words of a text, better than chance, than the "
        "gradient and than Greedy-AS over embeddings that move.",
        f"topics-text, {TEXTS} texts of 6 to 12 words, 2 to 4 of which are of the topic.",
        _topics,
        (FADE, "random"),
        (FADE, "gradient"),
        (FADE, MOVE),
    ),
    _claim(
        "planted-patches",
        "Ours: KernelSHAP, integrated gradients and Greedy-AS by s-r find the patch that alone decides, better than "
        "chance and than an edge detector.",
        f"{PICTURES} pictures of 16 x 16 pixels in 16 cells, one of which holds the pattern; a small CNN.",
        _planted,
        *((m, b) for m in ("kernel-shap", "integrated-gradients", "greedy-as s-r") for b in ("random", "edges")),
    ),
    _claim(
        "seven-segments",
        "Ours: asked why one digit and not another, Greedy-AS by either criterion names the bars in which the two "
        "differ, lit or dark, better than chance and than occlusion, to which a dark bar cannot matter.",
        f"{DIGITS} digits of seven bars, each with a rival drawn at random; maps explain the answer's score over the "
        "rival's, Greedy-AS has the rival as its target.",
        _segments,
        *((f"greedy-as {c}", b) for c in CRITERIA for b in ("random", "occlusion")),
    ),
)
