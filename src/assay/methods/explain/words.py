r"""Which words carry the class of a text: Greedy-AS over its words, which fade or move.

A text of L words is E in R^{L x m}. A set S of words frees the words of S, in one of two ways:

    fade        g(f, E, S) = min ||a||_2   s.t.   f((1 - a) E) != y,   0 <= a <= 1,   a = 0 outside S
    embedding   g(f, E, S) = min ||D||_F   s.t.   f(E + D) != y,       rows of D outside S are 0

and Greedy-AS (greedy.py) picks words. `fade` takes words away by degrees, up to a row of zeros, which must be no word
to the model; `embedding` needs no such row, and lets any word become any other: then a stop word that may turn into a
word of another topic is as good as a topic word, and where rows are averaged before a linear layer,
g(S) = L margin / (||w|| sqrt|S|) for every S, and words cannot be told apart.

Source: Liu, "Building Trustworthy Machine Learning Models", UCLA 2021 (dissertation), sec. 7.3 (a BiLSTM on Yahoo!
Answers). The thesis does not say what is perturbed; embeddings without bounds under the Frobenius norm is the plain
reading, which `change="embedding"` gives. A change of an embedding is no word: `nearest_words` reads it as one, as an
aid and not as a claim.
Departs from print: `fade` with the criterion s_r is the default. On 20 texts of topics-text whose topic words are known
it finds 0.91 of them, where `embedding` finds 0.57 by s_r_bar and 0.59 by s_r, KernelSHAP 0.98 and chance 0.38
(claims/known_truth.py). `fade` with s_r_bar finds 0.45: 87 % of its values are capped, as few sets of words that leave
the rest in place change the class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.explain import groups as grouping
from assay.methods.explain.greedy import PICKING, Criterion, Explained, Method, robust_features
from assay.methods.explain.subset_robustness import Search, masked_minimal, nearest_rivals

Classify = Callable[[Tensor], Tensor]  # n L m -> n c, from embedded texts
Change = Literal["fade", "embedding"]
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
    change: Change = "fade",
    criterion: Criterion = "s-r",
    method: Method = "greedy-as",
    target: int | None = None,
    samples: int | None = None,
    search: Search | None = None,
    rng: torch.Generator | None = None,
    seeds: int = 2,
) -> Keywords:
    """The `size` words that decide the class of one text (all, if it has fewer): L m -> Keywords.

    `shown` (L bool) is False for padding, which never changes and is never picked. With a `target`, the words behind
    the class and not that one; by fading, not every class can be reached, which is told as an error. `samples` are
    those of `robust_features`: 4096 are all subsets of 12 words. Of the `search`, the bounds and the first stride are
    set here.
    """
    if change not in get_args(Change):
        raise AssayError(f"Words change by {' or '.join(get_args(Change))}, got {change!r}.")
    shown = _shown(embedded, shown)
    search = search or PICKING
    if change == "fade":
        model, x = faded(classify, embedded), embedded.new_zeros(len(embedded))
        groups, search = grouping.words(shown, 1)[:, 0], replace(search, bounds=(0.0, 1.0), step=1.0)
    else:
        model, x = classify, embedded
        groups, search = grouping.words(shown, embedded.shape[1]), unbounded(embedded, search)
    found = robust_features(
        model,
        x,
        criterion=criterion,
        groups=groups.to(embedded.device),
        size=min(size, int(shown.sum())),
        method=method,
        target=target,
        samples=samples,
        search=search,
        rng=rng,
        seeds=seeds,
    )
    return Keywords(shown.nonzero()[:, 0].cpu()[found.order], found)


def faded(classify: Classify, embedded: Tensor) -> Classify:
    """The model as a function of how far each word has faded, 0 not at all and 1 away: L m -> (n L -> n c)."""

    def of(away: Tensor) -> Tensor:
        return classify(embedded * (1 - away)[:, :, None])

    return of


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
