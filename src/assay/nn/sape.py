r"""SAPE: attention by relations between places, stripes of what is attended to, and key points, in three branches.

With a map A of c channels, N = h w places, u = ReLU(BN(W3 A)), v = ReLU(BN(W4 A)) of c / r channels each,

    M_ij   =  u_i . v_j                                               how place i relates to place j
    S_i    =  [ M(i, :), M(:, i) ]                                    2 N numbers of each place
    F_s    =  sigmoid( W [ mean over channels of ReLU(BN(W1 A)),  ReLU(BN(W2 S)) ] )       one channel, in (0, 1)

    spatial   f_s  =  ReLU(BN(W5 mean(A F_s)))                        a descriptor of the whole
    stripes   D_p  =  mean of stripe p of  A F_s,     p = 1 ... P     one for each horizontal stripe
    pose      mean of  W7 [ W6(F_pose A F_s),  A F_s ]                F_pose: the sum of heat maps of points, at most 1;
                                                                      W6, W7 by channel, then by place

Each branch has a classifier in training (the stripes one each); a descriptor is all features one after the other.

Source: Yang et al., "Improved Occluded Person Re-Identification with Multi-feature Fusion", ICANN 2021, sec. 3; the
    relations after Zhang et al., CVPR 2020, arXiv:1904.02998, from which the last W and the sigmoid are: print has F_s
    both as one map and as several, and multiplies by it. Print fuses F_pose with F_s alone, which is one channel; here
    with A F_s, so that the branch has something to tell persons apart by.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError


def relations(u: Tensor, v: Tensor) -> Tensor:  # n k N, n k N -> n N N
    """M: of each pair of places the product of what the first gives and the second takes."""
    return u.transpose(1, 2) @ v


def stacked(m: Tensor) -> Tensor:  # n N N -> n 2N N
    """S: at each place i its row of M and then its column."""
    return torch.cat([m.transpose(1, 2), m], 1)


def stripes(x: Tensor, count: int) -> tuple[Tensor, ...]:  # n c h w -> count of n c h' w
    """The map in horizontal stripes, each row in one of them, as equal as can be."""
    if not 1 <= count <= x.shape[2]:
        raise AssayError(f"{count} stripes of a map of {x.shape[2]} rows; give 1 to {x.shape[2]}.")
    return x.tensor_split(count, 2)


class RelationAttention(nn.Module):
    """n c h w -> n 1 h w, for maps of one size: the relations of a place are numbers for every other."""

    def __init__(self, channels: int, size: tuple[int, int], reduction: int = 8) -> None:
        super().__init__()
        if channels < reduction or reduction < 1:
            raise AssayError(f"{channels} channels cannot be reduced {reduction} times; give a smaller reduction.")
        inner, self.size = channels // reduction, size
        places = size[0] * size[1]
        self.own, self.gives, self.takes = (_pointwise(channels, inner) for _ in range(3))  # W1, W3, W4
        self.related = _pointwise(2 * places, inner)  # W2
        self.joined = nn.Conv2d(1 + inner, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[2:]) != self.size:
            raise ShapeError(f"RelationAttention was made for maps of {self.size}, and got {tuple(x.shape[2:])}.")
        m = relations(self.gives(x).flatten(2), self.takes(x).flatten(2))
        related = self.related(stacked(m).reshape(x.shape[0], -1, *self.size))
        gate: Tensor = self.joined(torch.cat([self.own(x).mean(1, keepdim=True), related], 1)).sigmoid()
        return gate


class PoseFusion(nn.Module):
    """n c h w and n 1 h w, where the body is -> n c h w."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.seen = _separable(channels, channels)  # W6
        self.fused = _separable(2 * channels, channels)  # W7

    def forward(self, x: Tensor, pose: Tensor) -> Tensor:
        out: Tensor = self.fused(torch.cat([self.seen(x * pose), x], 1))
        return out


class Branches(NamedTuple):
    """What the three branches see of an input."""

    spatial: Tensor  # n k
    stripes: tuple[Tensor, ...]  # P of n c
    pose: Tensor  # n c

    def descriptor(self) -> Tensor:  # -> n k + P c + c
        """Each branch at length 1, so that none outweighs the others."""
        parts = (self.spatial, torch.cat(self.stripes, 1), self.pose)
        return torch.cat([nn.functional.normalize(part, dim=1) for part in parts], 1)


class Sape(nn.Module):
    """Images and heat maps of key points -> what the branches see. `backbone`: n ... -> n c h w."""

    def __init__(
        self, backbone: nn.Module, channels: int, size: tuple[int, int], *, count: int = 3, reduction: int = 8
    ) -> None:
        super().__init__()
        self.backbone, self.channels, self.count = backbone, channels, count
        self.attention = RelationAttention(channels, size, reduction)
        self.whole = _pointwise(channels, channels)  # W5
        self.fusion = PoseFusion(channels)

    def forward(self, x: Tensor, heat: Tensor) -> Branches:  # n ..., n q h w
        attended = self.attend(self.backbone(x))
        pose = heat.sum(1, keepdim=True).clamp_max(1)
        whole = self.whole(attended.mean((2, 3), keepdim=True)).flatten(1)
        parts = tuple(part.mean((2, 3)) for part in stripes(attended, self.count))
        return Branches(whole, parts, self.fusion(attended, pose).mean((2, 3)))

    def attend(self, a: Tensor) -> Tensor:  # n c h w -> n c h w
        attended: Tensor = a * self.attention(a)
        return attended


def _pointwise(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


def _separable(before: int, after: int) -> nn.Sequential:
    """By channel, without a bias, so that of nothing nothing comes; then by place."""
    return nn.Sequential(
        nn.Conv2d(before, before, 3, padding=1, groups=before, bias=False), nn.Conv2d(before, after, 1, bias=False)
    )
