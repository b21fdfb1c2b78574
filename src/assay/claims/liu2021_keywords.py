"""Liu 2021, sec. 7.3: which words carry the answer to a text, where it is known which do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.claim import Claim, Evidence, Held
from assay.claims import known_truth
from assay.claims._elsewhere import RULE, elsewhere
from assay.finding import Measure

if TYPE_CHECKING:
    from assay.run import Run

SOURCE = "Liu, 'Building Trustworthy Machine Learning Models', UCLA 2021 (dissertation), sec. 7.3, with its example"
OURS = tuple(f"greedy-as {criterion}, embeddings move" for criterion in known_truth.CRITERIA)
OTHERS = ("gradient", "integrated-gradients", "occlusion", "kernel-shap", "random")


def topical(run: Run) -> Evidence:
    bench = known_truth._topics(run.seed)
    there = [name for name in OTHERS if name in bench.scores]
    means = {
        name: Measure.mean(f"precision, {name}", bench.scores[name], better="higher", seed=run.seed)
        for name in (*OURS, *there)
    }
    gaps = [
        Measure.mean(f"{one} over {other}", bench.scores[one] - bench.scores[other], better="higher", seed=run.seed)
        for one in OURS
        for other in there
    ]
    held: Held = "cannot tell"
    if all((gap.low or 0) > 0 for gap in gaps):
        held = "holds"
    elif any((gap.high or 0) < 0 for gap in gaps):
        held = "fails"
    told = ", ".join(f"{name} {m.value:.2f} ({m.low:.2f} to {m.high:.2f})" for name, m in means.items())
    return elsewhere(
        held,
        f"Of as many words as a text has of its topic, the share that are of it: {told}. The network is right on "
        f"{100 * bench.accuracy:.1f} % of the texts.",
        (*means.values(), *gaps),
        seeds=1,
    )


SHELVED = (
    Claim(
        name="words-of-the-topic",
        source=SOURCE,
        says="The keywords of Greedy-AS concern the topic, where those of other explanations include words of no "
        "topic.",
        published=(),
        here=f"topics-text, {known_truth.TEXTS} texts of 6 to 12 words made by code, 2 to 4 of which are of the "
        f"topic; Greedy-AS in the space of embeddings as in print, by both criteria, {known_truth.SETS} sets a round; "
        "precision at the known count of topic words; holds if both are ahead of every other explanation; print has "
        f"one example of Yahoo! Answers and no numbers of words: {RULE}",
        minutes=8,
        test=topical,
    ),
)
