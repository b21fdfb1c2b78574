r"""Which words carry the class of a text: Greedy-AS over the rows of its embedding.

A text of L words is E in R^{L x m}. A set S of words frees the rows of S:

    g(f, E, S) = min ||D||_F   s.t.   f(E + D) != y,   rows of D outside S are 0

and Greedy-AS (greedy.py) picks words. No "missing word" token is needed. The norm depends on the architecture: where
rows are averaged before a linear layer, g(S) = L margin / (||w|| sqrt|S|) for every S, and words cannot be told apart.

Source: Liu, "Building Trustworthy Machine Learning Models", UCLA 2021 (dissertation), sec. 7.3 (a BiLSTM on Yahoo!
Answers). The thesis does not say what is perturbed; embeddings without bounds under the Frobenius norm is the plain
reading. A change of an embedding is no word: `nearest_words` reads it as one, as an aid and not as a claim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.explain import groups as grouping
from assay.methods.explain.greedy import PICKING, Criterion, Explained, Method, robust_features
from assay.methods.explain.subset_robustness import Search, masked_minimal, nearest_rivals

Classify = Callable[[Tensor], Tensor]  # n L m -> n c, from embedded texts
ROOM = 16.0  # bounds of an embedding, times its largest entry: far beyond where a search goes


class Keywords(NamedTuple):
    words: Tensor  # size: places in the text, the most important first
    explained: Explained  # its features are the words that are shown, in their order


def keywords(
    classify: Classify,
    embedded: Tensor,
    *,
    shown: Tensor | None = None,
    size: int = 5,
    criterion: Criterion = "s_r_bar",
    method: Method = "greedy-as",
    target: int | None = None,
    samples: int = 4096,
    search: Search | None = None,
    rng: torch.Generator | None = None,
) -> Keywords:
    """The `size` words that decide the class of one text (all, if it has fewer): L m -> Keywords.

    `shown` (L bool) is False for padding, which never changes and is never picked. Up to 12 words, `samples` are all
    subsets. Of the `search`, the bounds and the first stride are set by the size of the embedding: there is no box.
    """
    shown = _shown(embedded, shown)
    groups = grouping.words(shown, embedded.shape[1]).to(embedded.device)
    found = robust_features(
        classify,
        embedded,
        criterion=criterion,
        groups=groups,
        size=min(size, int(shown.sum())),
        method=method,
        target=target,
        samples=samples,
        search=unbounded(embedded, search or PICKING),
        rng=rng,
    )
    return Keywords(shown.nonzero()[:, 0].cpu()[found.order], found)


def unbounded(embedded: Tensor, search: Search | None = None) -> Search:
    """The search in a space without a box, whose first stride is the largest entry of the embedding."""
    top = float(embedded.abs().max())
    if not top > 0:
        raise AssayError("An embedding of zeros only has no scale; embed words first.")
    return replace(search or Search(), bounds=(-ROOM * top, ROOM * top), step=1 / (2 * ROOM))


def nearest_words(
    classify: Classify,
    embedded: Tensor,
    chosen: Tensor,
    table: Tensor,
    *,
    target: int | None = None,
    search: Search | None = None,
) -> Tensor:
    """What the smallest change of the `chosen` words reads as: the nearest row of the `table` for each: -> places.

    embedded L m, chosen k places, table v m -> k rows of the table. Where no change is found, the words themselves.
    """
    search = unbounded(embedded, search)
    rows = torch.zeros(len(embedded), dtype=torch.bool, device=embedded.device)
    rows[chosen.to(embedded.device)] = True
    free = rows[None, :, None].expand(1, *embedded.shape)
    groups = grouping.words(torch.ones_like(rows), embedded.shape[1])
    y, rivals = nearest_rivals(classify, embedded[None], rows[None, None], groups, target=target, search=search)
    found = masked_minimal(classify, embedded[None], y, free, rivals[:, 0], search=search)
    return torch.cdist(found.x[0, chosen.to(embedded.device)], table).argmin(1)


def _shown(embedded: Tensor, shown: Tensor | None) -> Tensor:
    if embedded.ndim != 2:
        raise ShapeError(f"One embedded text has shape (words, width), got {tuple(embedded.shape)}.")
    if shown is None:
        return torch.ones(len(embedded), dtype=torch.bool, device=embedded.device)
    if shown.shape != (len(embedded),):
        raise ShapeError(f"`shown` has shape {tuple(shown.shape)}; give one value per word, ({len(embedded)},).")
    if not bool(shown.any()):
        raise AssayError("The text has no word to explain: every place is padding.")
    return shown.bool()
