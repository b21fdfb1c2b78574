"""What questions about image translators share: the answers of the members, and where nothing can be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from assay.nn.members import Members, passes
from assay.tasks import ImageToImage

if TYPE_CHECKING:
    from torch import Tensor

    from assay.subject import Subject


def has_members(subject: Subject) -> bool:
    """Whether an answer of the model is the mean of several."""
    return subject.draws > 1 or isinstance(subject.model, Members)


def members_of(subject: Subject, x: Tensor) -> Tensor:  # n *d -> m n *o
    """What each of its members, or each of its draws, says."""
    with torch.no_grad():
        if isinstance(subject.model, Members):
            return subject.model.members(x)
        return passes(subject.model, x, subject.draws)


def no_translator(subject: Subject) -> str | None:
    """Why this gives no images that pixels of a truth can be laid beside, or None."""
    if isinstance(subject.task, ImageToImage):
        return None
    return f"it is for models that answer an image with an image, and the subject's task is {subject.task.name()}"
