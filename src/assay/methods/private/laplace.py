"""Laplace noise as a control: on the coordinates of a recording, or on the pixels of its picture.

    x + Laplace(0, df / eps)

df is the sensitivity as print takes it: of recordings the mean Manhattan distance between two of them, of pictures the
mean over pairs of the largest distance of a pixel, summed over channels. An attacker sees `copies` of an input with
noise of their own and takes the class that most of them are read as.

Source: Fuhl, Bozkir and Kasneci, ICANN 2021, sec. 2.
Note: a mean distance is no bound on the distance, and votes over copies undo noise, so that this is no differential
    privacy of that eps, nor of any: eps is print's scale of the noise, kept to compare with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from assay.errors import AssayError

MOST = 256  # recordings or pictures whose pairs are looked at


def recording_sensitivity(points: Tensor) -> float:  # n t 2 -> mean over pairs of the sum over points
    few = _few(points).flatten(1)
    return _mean_of_pairs(torch.cdist(few, few, p=1))


def picture_sensitivity(images: Tensor) -> float:  # n c h w -> mean over pairs of the largest pixel distance
    few = _few(images)
    far = torch.stack([(few - one).abs().sum(1).flatten(1).amax(1) for one in few])
    return _mean_of_pairs(far)


def _few(x: Tensor) -> Tensor:
    if len(x) < 2:
        raise AssayError(f"A sensitivity is a mean over pairs, and there is {len(x)} recording; give at least 2.")
    return x[torch.linspace(0, len(x) - 1, min(MOST, len(x))).round().long()].float()


def _mean_of_pairs(far: Tensor) -> float:  # n n -> over two different ones
    return float(far.sum() / (len(far) * (len(far) - 1)))


def with_noise(x: Tensor, sensitivity: float, eps: float, rng: Generator) -> Tensor:
    """x with noise of scale sensitivity / eps on every entry; an infinite eps leaves it as it is."""
    if not eps > 0:
        raise AssayError(f"eps={eps:g} is no scale of noise; give one above 0, such as 1.")
    u = torch.rand(x.shape, generator=rng, device=x.device, dtype=torch.float64) - 0.5
    noise = -u.sign() * torch.log1p(-2 * u.abs().clamp(max=0.5 - 1e-12))
    return (x + sensitivity / eps * noise).to(x.dtype)


def voted(ask: Callable[[Tensor], Tensor], copies: Callable[[], Tensor], count: int) -> Tensor:  # -> n
    """The class that most of `count` noisy copies of each input are read as; of several the first."""
    if count < 1:
        raise AssayError(f"{count} copies cast no vote; give at least 1.")
    votes = [torch.nn.functional.one_hot(out.argmax(1), out.shape[1]) for out in (ask(copies()) for _ in range(count))]
    return torch.stack(votes).sum(0).argmax(1)
