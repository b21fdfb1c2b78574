"""What an explanation may speak of: parts of one input, by name, and where they lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.errors import AssayError

NEVER = -1


@dataclass(frozen=True, eq=False)
class Features:
    """Names of parts, and a label map in the shape of the input: entry i belongs to part `groups[i]`.

    Labels run from 0 to k - 1; NEVER marks what belongs to no part (padding, spaces). This is the grouping that
    methods which explain take. Of a text the entries are its characters.
    """

    names: tuple[str, ...]  # k
    groups: Tensor  # *d int64

    def __post_init__(self) -> None:
        labels = torch.unique(self.groups)
        wanted = list(range(len(self.names)))
        if labels[labels >= 0].tolist() != wanted:
            raise AssayError(
                f"Features have {len(self.names)} names and the labels {labels.tolist()}; give one name for each label."
            )

    def __len__(self) -> int:
        return len(self.names)

    def positions(self, k: int) -> Tensor:  # -> m: places in the flattened input
        """Where part k lies."""
        if not 0 <= k < len(self.names):
            raise AssayError(f"There is no feature {k}; there are {len(self.names)}, counted from 0.")
        return (self.groups.flatten() == k).nonzero()[:, 0]

    @classmethod
    def beside(cls, first: Features, second: Features, *, stacked: bool) -> Features:
        """The parts of two inputs; their label maps stacked where they have one shape, else one after the other."""
        names = tuple(f"{which}: {name}" for which, f in (("first", first), ("second", second)) for name in f.names)
        later = torch.where(second.groups >= 0, second.groups + len(first), NEVER)
        if stacked:
            return cls(names, torch.stack([first.groups, later]))
        return cls(names, torch.cat([first.groups.flatten(), later.flatten()]))
