"""Masks over the features of an autoencoder's bottleneck: which of them are switched off before the image is decoded.

    I' = decode( encode(I) * m ),   m in {0, 1}^f

m = 1 everywhere is the plain autoencoder, m = 0 everywhere one image for all inputs.

Source: Fuhl, Bozkir and Kasneci, "Reinforcement Learning for the Privacy Preservation and Manipulation of Eye Tracking
    Data", ICANN 2021, sec. 2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from assay.errors import AssayError

Decode = Callable[[Tensor], Tensor]  # n f -> n *d


def manipulated(decode: Decode, code: Tensor, mask: Tensor) -> Tensor:  # n f, n f or f -> n *d
    """Images decoded from codes of which the features are set to 0 where the mask is."""
    if mask.shape not in (code.shape, code.shape[1:]):
        raise AssayError(
            f"A mask of shape {tuple(mask.shape)} does not fit codes of shape {tuple(code.shape)}; give one number for "
            "each feature, for all codes or for each."
        )
    return decode(code * mask)


def deactivations(
    features: int, count: int, rng: Generator, *, singles: float = 0.3, most: int = 100
) -> Tensor:  # -> count f
    """Masks to begin with: one feature off, or k of them at random with k as likely to be any of 2 to `most`.

    Print has every single one and a hundred for each k from 2 to 100, of every image: 14,000 masks an image of 4096
    features. Here it is a draw of `count` of these, a share of `singles` with one feature off.
    """
    if features < 1 or count < 1 or most < 1 or not 0 <= singles <= 1:
        raise AssayError(
            f"deactivations got features={features}, count={count}, most={most}, singles={singles}; it wants at "
            "least 1 of each and a share from 0 to 1."
        )
    most = min(most, features)
    k = torch.randint(min(2, most), most + 1, (count,), generator=rng, device=rng.device)
    k[torch.rand(count, generator=rng, device=rng.device) < singles] = 1
    return with_zeros(k, features, rng)


def with_zeros(zeros: Tensor, features: int, rng: Generator) -> Tensor:  # n -> n f
    """Random masks with as many zeros in each row as is said: what a learned mask is compared with."""
    if len(zeros) and (int(zeros.min()) < 0 or int(zeros.max()) > features):
        raise AssayError(f"{int(zeros.max())} of {features} features cannot be switched off; give 0 to {features}.")
    place = torch.rand(len(zeros), features, generator=rng, device=rng.device).argsort(1).argsort(1)
    return (place >= zeros.to(place.device)[:, None]).float()
