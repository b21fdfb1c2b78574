"""The control that is trained by gradients: the autoencoder as a generator against both attackers.

    D = 1/2 p_keep(right | G(I)) + 1/2 (1 - p_hide(right | G(I))),     G minimises log(1 - D)

The two discriminators are classifiers: they are trained to name both labels rightly, of images and of generated ones.

Source: Fuhl, Bozkir and Kasneci, ICANN 2021, sec. 2; Goodfellow et al., NeurIPS 2014, for log(1 - D(G)).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from assay.errors import AssayError
from assay.methods.private.mask_agent import correctness

LEAST = 1e-6  # 1 - D is kept above it


def discriminator(keep: Tensor, hide: Tensor) -> Tensor:  # p of the right class, n, n -> n in [0, 1]
    """1 where what is to be kept is read rightly and what is to be hidden is not."""
    return 0.5 * keep + 0.5 * (1 - hide)


def train_gan(
    generator: nn.Module,
    keep: nn.Module,
    hide: nn.Module,
    images: Tensor,  # n *d
    labels: tuple[Tensor, Tensor],
    *,
    steps: int,
    rng: Generator,
    batch: int = 64,
    lr: float = 3e-4,
    tick: Callable[[int], None] = lambda n: None,
) -> nn.Module:
    """Train the three in place, one step of the discriminators and one of the generator at a time; returns it."""
    if steps < 1 or batch < 1 or not lr > 0:
        raise AssayError(f"train_gan got steps={steps}, batch={batch}, lr={lr}; it wants at least 1, 1 and above 0.")
    makes = torch.optim.Adam(generator.parameters(), lr)
    reads = torch.optim.Adam([*keep.parameters(), *hide.parameters()], lr)
    for net in (generator, keep, hide):
        net.train()
    for _ in range(steps):
        pick = torch.randint(len(images), (batch,), generator=rng, device=rng.device)
        x, y, a = images[pick], labels[0][pick], labels[1][pick]
        made = generator(x)
        both = torch.cat([x, made.detach()])
        cost = F.cross_entropy(keep(both), y.repeat(2)) + F.cross_entropy(hide(both), a.repeat(2))
        reads.zero_grad()
        torch.autograd.backward(cost)
        reads.step()
        d = discriminator(correctness(keep(made), y), correctness(hide(made), a))
        makes.zero_grad()
        torch.autograd.backward((1 - d).clamp(min=LEAST).log().mean())
        makes.step()
        tick(1)
    for net in (generator, keep, hide):
        net.eval()
        net.zero_grad()
    return generator
