"""How bad its mistakes are: whether it takes a class for one that is like it, or for any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from assay.data.label_tree import LabelTree, tree_texts
from assay.data.plain_file import some
from assay.errors import AssayError
from assay.finding import Alarm, Bars, Beside, Finding, Matrix, Measure, Table, View, bootstrap, share, wilson
from assay.methods.right.tree_measures import TreeMeasures, random_mistakes, tree_measures
from assay.methods.right.visual_tree import FOUND, trees_from
from assay.probe import Need, Probe
from assay.probes._mistakes import mistakes
from assay.standard import Standard

if TYPE_CHECKING:
    from torch import Tensor

    from assay.run import Run
    from assay.subject import Subject

INPUTS = 2000  # at most that a tree is found from, drawn by seed and by class
FEW = 30  # mistakes below which none are judged
SLACK = 1e-9  # of 1, which a model has that always says one class, up to rounding
SHOWN = 20  # groups of a tree that a matrix is drawn of
SEVERITY, OUTSIDE = "severity of a mistake, of one at random", "mistakes outside the group"
SHUFFLED = "severity of a mistake, of its own answers shuffled"
HEIGHT, STEPS, PATHS = "height of the common ancestor", "steps in the tree", "F of the paths"
ONE_NUMBER = (
    "On a tree of three levels the measures in print are one number: the steps in the tree are twice the height, and F "
    "is 1 less a third of it."
)


@dataclass(frozen=True)
class HowBadAreItsMistakes(Probe):
    """When it is wrong, does it take a class for one that is like it?

    `trees` say which classes are alike: JSON files, {"group": ["class", ...], ...} with groups in one another as one
    likes, or `inputs`: found from the inputs by the means of the classes and spectral clustering, with `groups` groups
    (0.3 to a class unless given), or `features`: found likewise from what enters the model's own last linear
    layer, under which its mistakes look mild whatever they are. Several trees are averaged.

    A mistake is as severe as the lowest common ancestor of the two classes is high. It is compared with a wrong class
    drawn evenly from all others: below 1 its mistakes are milder than that. A model that always says a class of a large
    group would be too, so that its mistakes must also be milder than its own answers shuffled over the inputs.
    """

    trees: tuple[str, ...] = ("inputs",)
    groups: int | None = None

    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    source: ClassVar[str] = "Li, Zhou, Zhou & Wang, ICANN 2021, sec. 3.3-3.4"
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_most=1.0),)

    def __post_init__(self) -> None:
        self.refuse_below(2, "groups")
        if not self.trees:
            raise AssayError(f"{self.name()!r} wants a label tree; give trees=FILE, trees=inputs or trees=features.")
        # a file is read once and kept as its text, so that the answer tells what it was
        object.__setattr__(self, "trees", tree_texts(self.trees, FOUND))

    def why_not(self, subject: Subject) -> str | None:
        if (lacks := super().why_not(subject)) is not None:
            return lacks
        if len(subject.task.classes) < 3:
            return "with two classes every mistake is as bad as any other"
        if "features" in self.trees and "head" not in subject.layers:
            return "trees=features compares what enters the last linear layer, and the model has none; name a file"
        if "inputs" in self.trees and subject.tokens:
            return "an input here is a row of words by number, which have no mean; give trees=FILE or trees=features"
        seen = np.unique(subject.data.get("train", subject.data["test"]).labels)
        lacking = [name for c, name in enumerate(subject.task.classes) if c not in seen]
        if lacking and set(self.trees) & set(FOUND):
            return f"a tree is found from inputs of each class, and there is none of {some(lacking)}; give trees=FILE"
        return None

    def ask(self, subject: Subject, run: Run) -> Finding:
        trees = self._trees(subject, run)
        index = run.pick(subject.data["test"])
        logits, label = run.predict(subject, "test", index, "mistakes")
        said, sure = logits.argmax(1), softmax(logits, axis=1).max(1)
        cost, wrong = tree_measures(trees, said, label), said != label
        chance = random_mistakes(trees, label)
        one_number = all(tree.is_three_levels for tree in trees)
        samples = Table(
            "test",
            {
                "index": index, "label": label, "said": said, "confidence": sure, "height": cost.lca,
                "steps": cost.tie, "outside": cost.group,
            },
        )  # fmt: skip
        told = f"under {_called(self.trees, trees)}"
        top = float(np.mean([tree.heights().max() for tree in trees]))
        severity = _severity(cost, chance, wrong, top, run.seed, told)
        shuffled = _severity(cost, random_mistakes(trees, label, said), wrong, top, run.seed, told, SHUFFLED)
        severe = wrong & (cost.lca == cost.lca.max())
        views: list[View] = [_heights(trees, cost, chance, wrong)]
        views += [_between(tree, said, label) for tree in trees[:1] if len(tree.groups) <= SHOWN]
        views += mistakes(subject, samples, severe, run.budget.shown, "Its worst mistakes, the surest first")
        return Finding(
            says=_says(severity, int(wrong.sum()), len(wrong), trees) + (f" {ONE_NUMBER}" if one_number else ""),
            measures=(
                severity,
                *_outside(cost, chance, wrong, run.seed),
                *(() if shuffled.value is None else (shuffled,)),
                Measure.mean(
                    HEIGHT, cost.lca, better="lower", seed=run.seed, column="height",
                    about=f"of the class said and the true one, 0 where it is right, {told}",
                ),
                *(() if one_number else (_steps(cost, run.seed), _paths(cost, run.seed))),
            ),
            samples=samples,
            views=tuple(views),
            alarms=(*_few(int(wrong.sum()), len(wrong)), *_own(self.trees), *_always(severity, shuffled)),
        )  # fmt: skip

    def _trees(self, subject: Subject, run: Run) -> list[LabelTree]:
        """On training inputs where there are any, the same at each look."""
        data, head = subject.data.get("train", subject.data["test"]), subject.layers.get("head")

        def inputs() -> tuple[Tensor, Tensor]:
            x, y = data.take(run.pick(data, INPUTS, bounded=False))
            return x.to(run.device), y.to(run.device)

        _, span = subject.inputs.edges()
        return trees_from(
            self.trees, subject.task.classes, subject.model, head, inputs, span=span, groups=self.groups
        )  # fmt: skip


def _severity(
    cost: TreeMeasures,
    chance: TreeMeasures,
    wrong: NDArray[np.bool_],
    top: float,
    seed: int,
    told: str,
    name: str = SEVERITY,
) -> Measure:
    """The height of a mistake's common ancestor over that of a mistake at random, with an interval over mistakes.

    Resamples of a few mistakes that are alike have no width. So the interval of a few has room for a share of mistakes
    of which none was seen, with a chance of one in forty: with an ancestor just above, or with the root alone.
    """
    drawn = "a wrong class at random" if name == SEVERITY else "one of its own answers at random"
    beside = (Beside(drawn, 1.0),)
    about = f"mean height of the common ancestor of a mistake over that of {drawn}, {told}"
    ours, theirs, n = cost.lca[wrong], chance.lca[wrong], int(wrong.sum())
    if not n:
        return Measure(name=name, value=None, better="lower", n=0, beside=beside, about=about)
    low, high = bootstrap(lambda counts: (counts @ ours) / (counts @ theirs), n, seed=seed)
    value = float(ours.sum() / theirs.sum())
    if n < FEW:
        unseen = 1 - 0.025 ** (1 / n)
        mildest, worst = 1 / float(theirs.mean()), top / float(theirs.mean())
        low, high = (f(e, value + unseen * (to - value)) for f, e, to in ((min, low, mildest), (max, high, worst)))
    return Measure(
        name=name, value=value, low=min(low, value), high=max(high, value), n=n, better="lower", beside=beside,
        about=about,
    )  # fmt: skip


def _outside(cost: TreeMeasures, chance: TreeMeasures, wrong: NDArray[np.bool_], seed: int) -> tuple[Measure, ...]:
    if not wrong.any():
        return ()
    return (
        Measure.chance(
            OUTSIDE, cost.group[wrong], better="lower", seed=seed,
            beside=(Beside("a wrong class at random", float(chance.group[wrong].mean())),),
            about="share of mistakes for a class that stands under another group just below the root",
        ),
    )  # fmt: skip


def _steps(cost: TreeMeasures, seed: int) -> Measure:
    return Measure.mean(
        STEPS,
        cost.tie,
        better="lower",
        seed=seed,
        column="steps",
        about="edges between the class said and the true one",
    )


def _paths(cost: TreeMeasures, seed: int) -> Measure:
    """F of precision and recall, which are means over the inputs."""
    p, r, n = cost.precision, cost.recall, len(cost.precision)

    def f(counts: NDArray[np.float64]) -> NDArray[np.float64]:  # draws n -> draws
        a, b = counts @ p, counts @ r
        return 2 * a * b / (a + b) / n

    low, high = bootstrap(f, n, seed=seed)
    about = "of the nodes on the way from the root to the class said and to the true one, the root with them"
    return Measure(
        name=PATHS, value=cost.f, low=min(low, cost.f), high=max(high, cost.f), n=n, better="higher", about=about
    )


def _heights(trees: list[LabelTree], cost: TreeMeasures, chance: TreeMeasures, wrong: NDArray[np.bool_]) -> Bars:
    """Mistakes by how high the common ancestor stands, of the first tree where there are several."""
    heights = sorted({int(h) for tree in trees for h in tree.heights().ravel()} - {0})
    n, bins = max(1, int(wrong.sum())), np.floor(cost.lca[wrong] + 0.5)
    counts = [int((bins == h).sum()) for h in heights]
    bands = [wilson(c, n) for c in counts]
    return Bars(
        name="heights",
        title="How high the common ancestor of a mistake stands",
        y_label="share of mistakes",
        labels=tuple("the root" if h == heights[-1] else "its own group" if h == 1 else f"{h} above" for h in heights),
        values=tuple(c / n for c in counts),
        low=tuple(b[0] for b in bands),
        high=tuple(b[1] for b in bands),
        unit_y=True,
        says="Further right is worse: the two classes have less in common."
        + (" Heights under several trees are averaged and rounded." if len(trees) > 1 else ""),
    )


def _between(tree: LabelTree, said: NDArray[np.int64], label: NDArray[np.int64]) -> Matrix:
    group, k = tree.group_of(), len(tree.groups)
    wrong = said != label
    counts = np.bincount(group[label[wrong]] * k + group[said[wrong]], minlength=k * k).reshape(k, k)
    return Matrix(
        name="groups",
        title="Mistakes between groups",
        row_label="label is in",
        column_label="model says one of",
        rows=tree.groups,
        columns=tree.groups,
        values=tuple(tuple(float(v) for v in row) for row in counts),
        says="Counts of mistakes alone; on the diagonal lie those within a group.",
    )


def _says(severity: Measure, wrong: int, n: int, trees: list[LabelTree]) -> str:
    if severity.value is None:
        return f"It made no mistake on {n:,} inputs."
    how = "milder than" if (severity.high or 0) < 1 else "worse than" if (severity.low or 0) > 1 else "about as bad as"
    many = "" if len(trees) == 1 else f", averaged over {len(trees)} trees"
    return (
        f"It is wrong on {share(wrong, n)} of the inputs, and its mistakes are {how} wrong classes at random: "
        f"{severity.value:.2f} times as severe{many}."
    )


def _called(sources: tuple[str, ...], trees: list[LabelTree]) -> str:
    words = {"inputs": "found from the inputs", "features": "found from the model's own features"}
    told = [
        f"a tree {words.get(source, 'that was given')} with {len(tree.groups)} groups"
        for source, tree in zip(sources, trees, strict=True)
    ]
    return " and ".join(told)


def _few(wrong: int, n: int) -> tuple[Alarm, ...]:
    if not wrong:
        return (Alarm(f"It made no mistake on {n:,} inputs, so that there is none to measure.", doubts=(SEVERITY,)),)
    if wrong >= FEW:
        return ()
    made = "1 mistake" if wrong == 1 else f"{wrong} mistakes"
    return (Alarm(f"It made only {made}, too few to judge them by: {FEW} or more would do.", doubts=(SEVERITY,)),)


def _always(severity: Measure, shuffled: Measure) -> tuple[Alarm, ...]:
    """A pass that some answers given everywhere would have too."""
    if severity.high is None or severity.high > 1 or shuffled.high is None or shuffled.high < 1 - SLACK:
        return ()
    return (
        Alarm(
            f"Its own answers, shuffled over the inputs, make mistakes that are about as mild ({shuffled.value:.2f} of "
            "them): it says classes of large groups more often, rather than classes that are like the true one.",
            doubts=(SEVERITY,),
        ),
    )


def _own(sources: tuple[str, ...]) -> tuple[Alarm, ...]:
    if "features" not in sources:
        return ()
    return (
        Alarm(
            "The tree was found from the model's own features: it groups what the model finds alike, so that its "
            "mistakes look mild; give a tree with trees=FILE, or take trees=inputs.",
            doubts=(SEVERITY, OUTSIDE),
        ),
    )


SHELVED = HowBadAreItsMistakes
