"""Two codes of an image, what it looks like and how it is built, and a generator that draws from one of each.

    f = E_f(x)   n d         the look: a vector; it is what persons are told apart and found by
    s = E_s(x)   n k h' w'   the build: a map, of the grey image alone
    G(f, s)      n c h w     drawn from s, every channel scaled and shifted by f (adaptive instance normalisation)
    D(x)         n           whether an image is real, as a logit

Source: Su et al., "Joint Weights-Averaged and Feature-Separated Learning for Person Re-identification", ICANN 2021,
    sec. 3.1; its networks are those of Zheng et al. (DG-Net), CVPR 2019, arXiv:1904.07223. These are small ones of that
    kind, for images whose sides are multiples of 4.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from assay.nn.small_cnn import conv


class LookEncoder(nn.Module):
    """E_f, and what it says of the person."""

    def __init__(self, channels: int, width: int, size: int, persons: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(channels, width), nn.AvgPool2d(2), conv(width, 2 * width))
        self.code, self.head = nn.Linear(2 * width, size), nn.Linear(size, persons)

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n d
        code: Tensor = self.code(self.body(x).mean((2, 3)))
        return code

    def persons(self, f: Tensor) -> Tensor:  # n d -> n k
        logits: Tensor = self.head(f.relu())
        return logits


class BuildEncoder(nn.Module):
    """E_s."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(1, width), nn.AvgPool2d(2), nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n k h/2 w/2
        s: Tensor = self.body(x.mean(1, keepdim=True))
        return s


class Generator(nn.Module):
    """G: values in (0, 1)."""

    def __init__(self, channels: int, width: int, size: int) -> None:
        super().__init__()
        self.looks = nn.Linear(size, 2 * width)
        self.before = nn.Conv2d(width, width, 3, padding=1)
        self.after = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, channels, 3, padding=1), nn.Sigmoid()
        )

    def forward(self, f: Tensor, s: Tensor) -> Tensor:
        scale, shift = self.looks(f)[:, :, None, None].chunk(2, 1)
        z = F.instance_norm(self.before(s.relu())) * (1 + scale) + shift
        x: Tensor = self.after(F.interpolate(z.relu(), scale_factor=2.0, mode="bilinear", align_corners=False))
        return x


class Critic(nn.Module):
    """D."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(2 * width, 1, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n
        logit: Tensor = self.body(x).mean((1, 2, 3))
        return logit


class TwoCodes(nn.Module):
    """All four, and the teacher E_t, which has the form of E_f and no gradient."""

    def __init__(self, channels: int, persons: int, *, width: int = 16, size: int = 16) -> None:
        super().__init__()
        self.look, self.teacher = (LookEncoder(channels, width, size, persons) for _ in range(2))
        self.teacher.load_state_dict(self.look.state_dict())
        self.teacher.requires_grad_(False)
        self.build, self.draw = BuildEncoder(width), Generator(channels, width, size)
        self.critic = Critic(channels, width)
