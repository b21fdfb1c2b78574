"""How fast is an explanation of many pairs?

    python benchmarks/ranking.py explain        200 pairs against 20: walk, map and perception

The limit stands beside the number: ten times the pairs at most three times the time, because all pairs take each step
together and those that have arrived leave. Run it on a quiet machine; both are measured in the same run, in turns, as
the median of seven. The peer is the same explanation pair by pair.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from clock import seconds
from named import named
from torch import Tensor

from assay.methods.rank import walk
from assay.methods.rank.maps import grey
from assay.methods.rank.perception import perceive
from assay.methods.rank.walk import Against
from assay.subject import PairModel
from assay.subjects.digits_ranker import build

RUNS = 7
MOST = 3.0
STEPS, NEAR = 200, 1e-3  # a pair within 0.001 of the tie leaves


def explanation(model: PairModel, pairs: Tensor) -> tuple[Tensor, Tensor]:  # n 2 *d -> n h w, n h w
    """What changes in the first input on the way to a tie, and what changes in how the model sees it."""
    first, second = pairs.unbind(1)
    with torch.no_grad():
        partner = model.encode(second)
    score = Against(lambda a, e2: model.compare(model.encode(a), e2), partner)
    end = walk(score, first, target=0.5, steps=STEPS, tolerance=NEAR)
    return grey(first, end.x), perceive(model, first, end.x).map


def explain() -> None:
    subject = build()
    model = subject.model.eval().requires_grad_(False)
    assert isinstance(model, PairModel)
    pairs, _ = subject.pairs["test"].take(np.arange(200))
    taken = seconds(
        RUNS,
        few=partial(explanation, model, pairs[:20]),
        many=partial(explanation, model, pairs),
        one=partial(explanation, model, pairs[:1]),
    )
    ratio = taken["many"] / taken["few"]
    verdict = "kept" if ratio <= MOST else "MISSED"
    print(f"{torch.get_num_threads()} threads, 20 pairs {taken['few']:.3f} s, 200 pairs {taken['many']:.3f} s")
    print(f"200 pairs against 20 {ratio:6.2f} times, limit {MOST:g}: {verdict}")
    print(
        f"  one by one, at the pace of the first, 200 pairs take {200 * taken['one'] / taken['many']:.0f} times as long"
    )


if __name__ == "__main__":
    named(__doc__, {"explain": explain})()
