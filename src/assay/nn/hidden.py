"""A classifier behind a manipulation that hides something of its inputs, and what was measured of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

COLUMNS = ("keep before", "hide before", "keep after", "hide after")


class FromShares(nn.Module):
    """Inputs in shares of their range, from 0 to 1, given to a model in natural units."""

    low: Tensor
    span: Tensor

    def __init__(self, model: nn.Module, low: Tensor, span: Tensor) -> None:  # each a number, or one for each feature
        super().__init__()
        self.model = model
        self.register_buffer("low", low)
        self.register_buffer("span", span)

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n k
        out: Tensor = self.model(self.low + self.span * x)
        return out


class Hidden(nn.Module):
    """keep(manipulation(x)): what is to be hidden is taken out of an input before the classifier sees it.

    `hits` are how many of `asked` test inputs two attackers read rightly, round by round, by COLUMNS: the label that is
    kept and the one that is hidden, before the attackers adapted and after. `other` is how many an attacker of another
    kind read in the end, `eps` what the noise has, where it is noise. They are buffers, so that weights that were kept
    still tell how they came about.
    """

    hits: Tensor
    asked: Tensor
    other: Tensor
    eps: Tensor

    def __init__(self, manipulation: nn.Module, keep: FromShares, rounds: int) -> None:
        super().__init__()
        self.manipulation, self.keep = manipulation, keep
        self.register_buffer("hits", torch.zeros(rounds, len(COLUMNS), dtype=torch.int64))
        self.register_buffer("asked", torch.zeros((), dtype=torch.int64))
        self.register_buffer("other", torch.zeros((), dtype=torch.int64))
        self.register_buffer("eps", torch.zeros(()))

    def shown(self, x: Tensor) -> Tensor:  # n *d -> n *d
        """The inputs as the classifier, and whoever looks over its shoulder, sees them: in shares of the range."""
        out: Tensor = self.manipulation((x - self.keep.low) / self.keep.span)
        return out

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n k
        out: Tensor = self.keep(self.shown(x))
        return out


class PixelNoise(nn.Module):
    """Laplace noise of a scale on every entry, drawn anew in each pass: n *d -> same."""

    scale: Tensor

    def __init__(self, scale: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(float(scale)))

    def forward(self, x: Tensor) -> Tensor:
        u = torch.rand_like(x, dtype=torch.float64) - 0.5
        noise = -u.sign() * torch.log1p(-2 * u.abs().clamp(max=0.5 - 1e-12))
        return (x + self.scale * noise).to(x.dtype)
