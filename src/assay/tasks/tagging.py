r"""A tag for each place of a sequence, or the spans that the tags mark.

    score   share of the places that count whose tag is right
    margin  the r-th largest lead m_p of a true tag, r = ceil(enough * places that count): above 0 exactly where r tags
            are right

With `spans`, tags are O, B-x and I-x: a span of kind x opens at a B-x, or at an I-x that continues none, and goes on
through the I-x after it. It is found where an answer has it with the same kind, opening and end.

    score   2 found / (spans of the answer + spans of the target), 1 where there are none           (F1)
    margin  score - enough, with the gradient of the mean over the places that count of log(1 + exp(m_p))

Source of spans: Tjong Kim Sang and De Meulder 2003, CoNLL shared task, aclanthology.org/W03-0419, for one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from assay.errors import AssayError
from assay.tasks.places import Places
from assay.tasks.task import Focus, Trivial, above, one_of, through


@dataclass(frozen=True)
class Tagging(Places):
    """The model returns logits for each tag at each place; targets (n, length) are tags, -1 where none counts."""

    classes: tuple[str, ...]
    spans: bool = False
    enough: float = 1.0

    good: ClassVar[str] = "has enough of the sequence right"
    output: ClassVar[str] = "(n, length, k) logits, one for each tag at each place"
    axes: ClassVar[int] = 3
    axis: ClassVar[int] = -1

    @property
    def headline(self) -> str:  # type: ignore[override]
        return "F1 of the spans" if self.spans else "tags right"

    def __post_init__(self) -> None:
        super().__post_init__()
        strange = [c for c in self.classes if c != "O" and c[:2] not in ("B-", "I-")]
        if self.spans and strange:
            raise AssayError(
                f"The tag {strange[0]!r} marks no span; name tags O, B-kind and I-kind, or leave out spans."
            )

    def counted(self, said: Tensor, true: Tensor, counts: Tensor) -> Tensor:
        if not self.spans:
            return ((said == true) & counts).sum(1) / counts.sum(1).clamp_min(1)
        order = (~counts).byte().argsort(dim=1, stable=True)  # pieces of words that do not count may lie in between
        said, true, counts = (each.gather(1, order) for each in (said, true, counts))
        (kind, opens, ends), (kind_t, opens_t, ends_t) = self._spans(said, counts), self._spans(true, counts)
        found = (opens & opens_t & (kind == kind_t) & (ends == ends_t)).sum(1)
        total = opens.sum(1) + opens_t.sum(1)
        return torch.where(total > 0, 2 * found / total.clamp_min(1), 1.0)

    def _spans(self, tags: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # n p, n p -> n p, n p, n p
        """The kind at each place (-1 for none), where spans open, and the next place from here on where one ends."""
        kinds = sorted({c[2:] for c in self.classes if c != "O"})
        of = torch.tensor([-1 if c == "O" else kinds.index(c[2:]) for c in self.classes], device=tags.device)
        begins = torch.tensor([c.startswith("B-") for c in self.classes], device=tags.device)[tags]
        kind = of[tags].masked_fill(~counts, -1)
        edge = kind.new_full((len(kind), 1), -1)
        opens = (kind >= 0) & (begins | (kind != torch.cat([edge, kind[:, :-1]], 1)))
        after = torch.cat([opens[:, 1:], edge == -1], 1) | (kind != torch.cat([kind[:, 1:], edge], 1))
        place = torch.arange(kind.shape[1], device=kind.device).expand_as(kind)
        last = torch.where((kind >= 0) & after, place, kind.shape[1])
        return kind, opens, last.flip(1).cummin(1).values.flip(1)

    def margin(self, out: Tensor, target: Tensor) -> Tensor:
        logits, true, counts = self.read(out, target)
        lead = self.lead(logits, true)
        if self.spans:
            slope = (softplus(lead) * counts).sum(1) / counts.sum(1).clamp_min(1)
            return through(above(self.score(out, target), self.enough), slope)
        # as a product of float64, so that 0.9 of 10 is 9
        needed = (counts.sum(1).double() * self.enough - 1e-9).ceil().long().clamp_min(1)
        ranked = lead.masked_fill(~counts, -torch.inf).sort(1, descending=True).values
        return ranked.gather(1, needed[:, None] - 1)[:, 0]

    def trivial(self, targets: NDArray[Any]) -> Trivial:
        return Trivial("always says the commonest tag of each place", self.shares(targets).T)

    def focus(self, out: Tensor, which: int | None = None) -> Focus:
        """The logit of the surest tag at its place, of tags other than the first where there are any."""
        logits, said = self.said_most(out, which)
        sure = logits.softmax(1).amax(1) if which is None else logits[:, which]
        counts = said != -1
        place = sure.masked_fill(~(counts | ~counts.any(1, keepdim=True)), -torch.inf).argmax(1)
        tag = said.gather(1, place[:, None])[:, 0] if which is None else torch.full_like(place, which)
        told = zip(tag.tolist(), place.tolist(), strict=True)
        says = tuple(f"the logit of {self.classes[c]} at place {p + 1}" for c, p in told)
        return Focus(one_of(out, place * len(self.classes) + tag), says)

    def words(self, out: Tensor) -> str:
        return self.told(out.argmax(1))

    def told(self, target: Tensor) -> str:
        return " ".join(self.classes[int(c)] for c in target if c >= 0)
