"""Words: a text is changed word by word until the answer breaks. No gradient is asked for, no embedding is moved."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError

Margins = Callable[[list[str], Tensor], Tensor]
"""k texts, and which input each was made of -> k margins: at most 0 where the answer is wrong, infinite where the model
cannot read the text."""
Neighbours = Callable[[str, int], Sequence[str]]
"""A text and the place of a word -> the texts that differ in this word and that a reader would not stumble over."""
LOOKING = 2  # at most one query in so many goes to finding out which words matter


class Reworded(NamedTuple):
    """What became of each of n texts."""

    texts: list[str]
    margin: Tensor  # n: of the text that was kept
    words: Tensor  # n: how many words of it changed
    queries: Tensor  # n: texts that the model was shown
    tried: Tensor  # n: those of them that were changed as a reader would not notice, and that the model could read
    unread: Tensor  # n: those that it could not
    edits: list[list[tuple[int, int]]]  # n lists of (word, which of its neighbours), in order: `replay` does them again


def allowed(text: str, share: float) -> int:
    """How many words of this text may change: the share of them, rounded down, and at least one."""
    return max(1, math.floor(share * len(text.split()) + 1e-9))


def without(text: str, word: int) -> str:
    """The text without this word and the space after it."""
    parts = re.split(r"(\s+)", text)
    at = [k for k in range(0, len(parts), 2) if parts[k]][word]
    return "".join(parts[:at] + parts[at + 2 :])


def replay(text: str, edits: Sequence[tuple[int, int]], neighbours: Neighbours) -> str:
    """The text after these edits."""
    for word, choice in edits:
        text = neighbours(text, word)[choice]
    return text


@torch.no_grad()
def reword(
    margins: Margins,
    texts: Sequence[str],
    neighbours: Neighbours,
    *,
    share: float = 0.15,
    queries: int = 500,
    rng: torch.Generator | None = None,
) -> Reworded:
    r"""Change the words that matter most, one after the other, until the margin m is 0 or below.

        importance  I_w = m(t) - m(t without word w)
        step        t <- argmin_{t' in neighbours(t, w)} m(t'),  if that is below m(t);  w by falling I_w

    Of several neighbours that break the answer the first is taken, so that whoever lists the mildest first gets it. A
    text leaves when it is broken, when the share of its words has changed, or before a step that would show the model
    more than `queries` texts. All candidates of a step, of all texts, are asked about in one call of `margins`; texts
    that are wrong as they are stay as they are.

    Source: Jin et al., AAAI 2020, arXiv:1907.11932, algorithm 1 (importance by deletion, then substitution); Gao et
        al. 2018, arXiv:1801.04354 (the same order with slips of single characters).
    Departs from print: importance is that of the margin alone, where TextFooler adds a term for words whose deletion
        changes the answer, and DeepWordBug scores by what stands before and after. A neighbour is whatever the caller
        lists, where TextFooler asks word vectors and a sentence encoder, which let a text come to mean something else.
        Of a text with more words than half of the `queries` that many, drawn by `rng`, are looked at. The bound on the
        share of words is ours.
    """
    if not 0 < share <= 1 or queries < 1:
        raise AssayError(f"reword needs a share above 0 and up to 1 and at least 1 query; got {share=}, {queries=}.")
    now, n = list(texts), len(texts)
    place = torch.arange(n)
    margin = margins(now, place).cpu() if n else torch.zeros(0)
    asked = torch.ones(n, dtype=torch.long)
    changed, tried, unread = (torch.zeros(n, dtype=torch.long) for _ in range(3))
    edits: list[list[tuple[int, int]]] = [[] for _ in now]
    order = _order(margins, now, margin, asked, queries, rng)
    most = [allowed(text, share) for text in now]
    for step in range(max(map(len, order), default=0)):
        live = [i for i in range(n) if step < len(order[i]) and margin[i] > 0 and len(edits[i]) < most[i]]
        found = {i: list(neighbours(now[i], order[i][step])) for i in live}
        found = {i: some for i, some in found.items() if some and int(asked[i]) + len(some) <= queries}
        if not found:
            continue
        rows = torch.tensor([i for i, some in found.items() for _ in some])
        got = margins([text for some in found.values() for text in some], rows).cpu()
        for (i, some), m in zip(found.items(), torch.split(got, [len(some) for some in found.values()]), strict=True):
            asked[i] += len(some)
            unread[i] += int(m.isposinf().sum())
            tried[i] += len(some) - int(m.isposinf().sum())
            best = int((m <= 0).int().argmax() if bool((m <= 0).any()) else m.argmin())
            if m[best] < margin[i]:
                now[i], margin[i] = some[best], m[best]
                edits[i].append((order[i][step], best))
                changed[i] += 1
    return Reworded(now, margin, changed, asked, tried, unread, edits)


def _order(
    margins: Margins, texts: list[str], margin: Tensor, asked: Tensor, queries: int, rng: torch.Generator | None
) -> list[list[int]]:
    """The words of each text, those first whose deletion costs most; counts what it asks into `asked`."""
    looked: list[list[int]] = []
    for text, m in zip(texts, margin.tolist(), strict=True):
        words = len(text.split()) if m > 0 else 0
        room = max(1, queries // LOOKING)
        looked.append(
            list(range(words)) if words <= room else sorted(torch.randperm(words, generator=rng)[:room].tolist())
        )
    pairs = [(i, w) for i, words in enumerate(looked) for w in words if len(words) > 1]
    if not pairs:
        return looked
    rows = torch.tensor([i for i, _ in pairs])
    left = margins([without(texts[i], w) for i, w in pairs], rows).cpu()
    asked += torch.bincount(rows, minlength=len(texts))
    cost: list[dict[int, float]] = [{} for _ in texts]  # margins of one text: the lowest is the largest importance
    for (i, w), lead in zip(pairs, left.tolist(), strict=True):
        cost[i][w] = lead
    return [sorted(words, key=lambda w: of.get(w, 0.0)) for words, of in zip(looked, cost, strict=True)]
