r"""Is a decoded picture one that the decoder knows how to draw, or one from nowhere?

A decoder draws something of any embedding. Where a walk has led away from every embedding that it was trained on, its
picture is an extrapolation, however well it draws elsewhere. With e_i and P_i the embeddings and pictures of known
inputs (those trained on), an embedding e and its picture P are away by

    d = max( min_i ||P - P_i|| / u_P,  min_i ||e - e_i|| / u_e )

where u is the median of the same distance among the known ones, each left out in its turn: both spaces in their own
unit, the further one counts. Inputs that were held out say how large d is without any change:

    p = (1 + #{held out j : d_j >= d}) / (1 + m),         from nowhere where p <= STRANGE

so that an unchanged new input is called so with a probability of at most STRANGE, whatever the model (a conformal
p-value: what is known is fixed before anyone looks at the held-out ones).

Source: not in print, where one looks; p as in Vovk et al., 'Algorithmic Learning in a Random World', 2005, sec. 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.rank.perception import Sees

STRANGE = 0.05
LEAST = 19  # held-out inputs: with fewer, p is above STRANGE whatever happens
BLOCK = 256  # rows whose distances are taken at once


class Away(NamedTuple):
    """How far embeddings and their pictures are from all that is known."""

    picture: Tensor  # n, in medians of the known ones
    code: Tensor  # n, likewise
    p: Tensor  # n

    @property
    def furthest(self) -> Tensor:  # n
        return torch.maximum(self.picture, self.code)

    @property
    def strange(self) -> Tensor:  # n
        return self.p <= STRANGE


@dataclass(frozen=True)
class Familiar:
    """What a decoder knows: embeddings and pictures of known inputs, and how far held-out ones are from them."""

    codes: Tensor  # k s
    pictures: Tensor  # k d
    units: tuple[float, float]  # u_P, u_e
    held: Tensor  # m: d of the held-out ones, in order

    @property
    def limit(self) -> float:
        """The largest d that is not from nowhere."""
        place = len(self.held) - int(STRANGE * (len(self.held) + 1) + 1e-9)
        return float(self.held[place]) if place < len(self.held) else float("inf")

    @torch.no_grad()
    def away(self, model: Sees, e: Tensor) -> Away:  # n s
        """How far these embeddings and what is decoded of them are from all that is known."""
        picture, code = self._distances(model, e)
        d = torch.maximum(picture, code)
        as_far = len(self.held) - torch.searchsorted(self.held, d)  # those with d_j >= d
        return Away(picture, code, (1 + as_far).double() / (1 + len(self.held)))

    def _distances(self, model: Sees, e: Tensor) -> tuple[Tensor, Tensor]:  # n s -> n, n
        picture = _nearest(model.decode(e).flatten(1).double(), self.pictures) / self.units[0]
        return picture, _nearest(e.double(), self.codes) / self.units[1]


@torch.no_grad()
def familiar(model: Sees, known: Tensor, held: Tensor) -> Familiar:  # k *d, m *d
    """What the decoder of `model` knows, from inputs it was trained on and others that it was not."""
    if len(known) < 2 or len(held) < LEAST:
        raise AssayError(
            f"What is strange takes 2 known inputs and {LEAST} that were held out, got {len(known)} and {len(held)}."
        )
    codes = torch.cat([model.encode(part) for part in torch.split(known, BLOCK)])
    pictures = torch.cat([model.decode(part).flatten(1) for part in torch.split(codes, BLOCK)]).double()
    codes = codes.double()
    units = (_typical(pictures), _typical(codes))
    made = Familiar(codes, pictures, units, codes.new_zeros(0))
    parts = [made._distances(model, model.encode(part)) for part in torch.split(held, BLOCK)]
    d = torch.cat([torch.maximum(*part) for part in parts])
    return Familiar(codes, pictures, units, d.sort().values)


def _nearest(x: Tensor, known: Tensor) -> Tensor:  # n d, k d -> n
    return torch.cat([torch.cdist(part, known).amin(1) for part in torch.split(x, BLOCK)])


def _typical(known: Tensor) -> float:  # k d
    """The median distance of a known one to its nearest other; where most are copies, of any two, and 1 if all are."""
    nearest = []
    for start in range(0, len(known), BLOCK):
        gap = torch.cdist(known[start : start + BLOCK], known)
        gap[torch.arange(len(gap)), torch.arange(start, start + len(gap))] = torch.inf
        nearest.append(gap.amin(1))
    middle = float(torch.cat(nearest).median())
    return middle or float((known - known.mean(0)).norm(dim=1).mean()) or 1.0
