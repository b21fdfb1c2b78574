r"""Border against centre: the same picture put in several places, the influence of each pixel, and what a map knows of
its place.

Zeros that are padded at every layer of a network weaken what stands at the border, and tell every layer above how far
away the border is. Three ways to see it:

    put        the picture, made smaller, at any place of its frame; its edge is drawn out to fill the rest, and the
               pixels of the picture itself are the same at every place
    influence  sqrt( mean_x sum_o ( d f_o / d x_p )^2 ) of pixel p, by random signs v: E_v ( d (v f) / d x_p )^2 is
               that sum
    leak       how much of the distance to the border a linear layer reads off one place of a map, as R^2 on pictures
               that it was not fitted to

The last two are asked of pictures that are rolled round by a random amount: what stands where is then the same
everywhere, so that a difference between places is the network's own, and a place cannot be learnt from the picture.

Source: Li, Poon and Yang, "RIAP: A Method for Effective Receptive Field Rectification", ICANN 2021, sec. 3 (influence),
    5.2 (a target at the centre that only a leak makes learnable) and 5.3 (shifted windows). Print differentiates toy
    networks of ones; a linear reading of a map stands for its training to that target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError

RIDGE = 1e-3  # of the mean square of the channels, so that silent ones do no harm


class Frame(NamedTuple):
    """How a picture is made smaller and where it is put: `margin` pixels are free on every side at the centre."""

    height: int
    width: int
    margin: tuple[int, int]  # up and down, left and right

    @classmethod
    def of(cls, height: int, width: int, scale: float) -> Frame:
        if not 0 < scale < 1:
            raise AssayError(f"scale={scale:g} leaves no room to move in; give a share between 0 and 1, such as 0.8.")
        up, left = (max(1, round(side * (1 - scale) / 2)) for side in (height, width))
        if min(height - 2 * up, width - 2 * left) < 1:
            raise AssayError(
                f"A picture of {height} x {width} pixels is too small to be moved by {scale:g} of its side."
            )
        return cls(height, width, (up, left))

    @property
    def size(self) -> tuple[int, int]:
        """Of the smaller picture."""
        return self.height - 2 * self.margin[0], self.width - 2 * self.margin[1]

    def offsets(self, count: int = 5) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offsets from the centre, up and down and left and right, from border to border."""
        up, left = (np.unique(np.linspace(-m, m, count).round()).astype(np.int64) for m in self.margin)
        return up, left

    def smaller(self, x: Tensor) -> Tensor:  # n *c h w -> n *c s t
        flat = x.reshape(len(x), -1, *x.shape[-2:])
        out = F.interpolate(flat, self.size, mode="bilinear", antialias=True, align_corners=False)
        return out.reshape(*x.shape[:-2], *self.size)

    def smaller_classes(self, y: Tensor) -> Tensor:  # n h w -> n s t
        rows, columns = (
            (torch.arange(s, device=y.device) + 0.5).mul(whole / s).long()
            for s, whole in zip(self.size, (self.height, self.width), strict=True)
        )
        return y[:, rows[:, None], columns]

    def put(self, small: Tensor, down: int, right: int) -> Tensor:  # n *c s t -> n *c h w
        """The smaller picture so far off the centre, its edge drawn out."""
        rows, columns = self._places(down, right, small.device)
        return small[..., rows[:, None], columns]

    def put_alone(self, small: Tensor, down: int, right: int, fill: int) -> Tensor:  # n s t -> n h w
        """The same of classes, with `fill` around them."""
        top, left = self.margin[0] + down, self.margin[1] + right
        whole = small.new_full((*small.shape[:-2], self.height, self.width), fill)
        whole[..., top : top + self.size[0], left : left + self.size[1]] = small
        return whole

    def _places(self, down: int, right: int, device: torch.device) -> list[Tensor]:
        return [
            (torch.arange(whole, device=device) - m - off).clamp(0, s - 1)
            for whole, m, off, s in zip((self.height, self.width), self.margin, (down, right), self.size, strict=True)
        ]


def rolled(x: Tensor, rng: torch.Generator) -> Tensor:  # n *c h w -> n *c h w
    """Each picture rolled round by a random amount along both axes."""
    n, h, w = len(x), *x.shape[-2:]
    rows, columns = (
        (
            torch.arange(side, device=x.device)
            + torch.randint(side, (n, 1), generator=rng, device=rng.device).to(x.device)
        )
        % side
        for side in (h, w)
    )
    flat = x.reshape(n, -1, h, w)
    channels = torch.arange(flat.shape[1], device=x.device)[:, None, None]
    which = torch.arange(n, device=x.device)[:, None, None, None]
    return flat[which, channels, rows[:, None, :, None], columns[:, None, None, :]].reshape(x.shape)


def rings(height: int, width: int) -> Tensor:  # -> h w
    """How far each pixel is from the border: 0 at it."""
    down, right = (torch.minimum(torch.arange(s), s - 1 - torch.arange(s)) for s in (height, width))
    return torch.minimum(down[:, None], right)


def influence(
    model: Callable[[Tensor], Tensor], x: Tensor, *, draws: int = 4, rng: torch.Generator
) -> Tensor:  # n *c h w -> n rings
    """The mean square influence of a pixel in each ring around the picture, for each input."""
    total = torch.zeros(len(x), *x.shape[-2:], device=x.device)
    for _ in range(draws):
        moving = x.detach().clone().requires_grad_(True)
        with torch.enable_grad():
            out = model(moving)
            signs = 2 * torch.randint(2, out.shape, generator=rng, device=rng.device).to(out) - 1
            (slope,) = torch.autograd.grad((signs * out).sum(), moving)
        total += slope.square().reshape(len(x), -1, *x.shape[-2:]).sum(1)
    ring = rings(*x.shape[-2:]).to(x.device).flatten()
    share = F.one_hot(ring).to(total)  # p rings
    return (total / draws).flatten(1) @ (share / share.sum(0))


class Leak(NamedTuple):
    """Of each picture that was held back: what a linear reading leaves of the squared distances, and all of them."""

    left: Tensor  # n
    whole: Tensor  # n

    @property
    def r2(self) -> float:
        return 1 - float(self.left.sum() / self.whole.sum())


def position_leak(maps: Tensor) -> Leak:  # n c h w
    """Fit a linear reading of the distance to the border on every second picture, and try it on the others."""
    n, c, h, w = maps.shape
    if n < 2 or min(h, w) < 3:
        raise AssayError(f"position_leak got maps of shape {tuple(maps.shape)}; it wants 2 pictures of 3 x 3 places.")
    aim = rings(h, w).to(maps.device).double().flatten()
    aim = aim - aim.mean()
    seen = maps.double().flatten(2).transpose(1, 2)  # n p c
    seen = torch.cat([seen, torch.ones_like(seen[..., :1])], 2)
    fitted, tried = seen[::2].flatten(0, 1), seen[1::2]
    gram = fitted.T @ fitted / len(fitted)
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(c + 1, device=maps.device, dtype=torch.float64)
    weight = torch.linalg.solve(gram + ridge, fitted.T @ aim.repeat(len(seen[::2])) / len(fitted))
    left = (tried @ weight - aim).square().sum(1)
    return Leak(left, aim.square().sum().expand_as(left))
