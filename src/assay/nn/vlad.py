r"""One descriptor of an image from its local ones: residuals to cluster centres, weighted by attention.

With x_i (i = 1..N) the local descriptors at the places of a convolutional map, centres c_k, and the soft assignment
a_k(x) = softmax_k(w_k' x + b_k),

    V(j, k)     sum_i a_k(x_i) (x_i(j) - c_k(j))                                  "vlad"
    V_A1(j, k)  sum_i w_i a_k(x_i) (x_i(j) - c_k(j))                              "a1": residuals are weighted
    V_A2(j, k)  sum_i w_i a_k(w_i x_i) (w_i x_i(j) - c_k(j))                      descriptors are, before clustering too
    V_our       V_A1 + V_A2                                                       "ours"
    w_i         softplus(v' relu(x_i) + u)                                        the attention, one weight for a place

each brought to length 1 cluster by cluster, and then as a whole. A place with w_i = 0 is not there in any of them,
although a_k(0) (0 - c_k) is not 0; with w = 1 everywhere all three are the same. Attention has no labels of its own:
it is trained by whatever the descriptor is trained for.

Source: Arandjelovic et al., CVPR 2016, arXiv:1511.07247, sec. 3.1 (V and both normalisations); Wang, Li, Khademi & van
    Gemert, "Attention-Aware Age-Agnostic Visual Place Recognition", ICCV Workshops 2019 (the attention and V_our).
Read as: print does not say what is normalised where two streams are added; here their sum is.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError

Variant = Literal["vlad", "a1", "ours"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
LLOYD = 20  # rounds of k-means
SHARPER = 100.0  # as Arandjelovic et al. begin


class Vlad(nn.Module):
    """A map n d h w to one descriptor n k*d, cluster after cluster; `variant` says what is weighted by attention."""

    def __init__(self, channels: int, clusters: int, *, variant: Variant = "ours") -> None:
        super().__init__()
        if channels < 1 or clusters < 1:
            raise AssayError(f"Vlad got channels={channels}, clusters={clusters}; give at least 1 of each.")
        if variant not in VARIANTS:
            raise AssayError(f"There is no Vlad {variant!r}; choose from {', '.join(VARIANTS)}.")
        self.variant = variant
        self.assign = nn.Conv1d(channels, clusters, 1)
        self.centres = nn.Parameter(torch.randn(clusters, channels) / channels**0.5)
        self.score: nn.Conv2d | None = None
        if variant != "vlad":  # w = 1 everywhere to begin with: attention is learnt on top of plain VLAD
            self.score = nn.Conv2d(channels, 1, 1)
            nn.init.zeros_(self.score.weight)
            assert self.score.bias is not None
            nn.init.constant_(self.score.bias, math.log(math.e - 1))

    @torch.no_grad()
    def start(self, x: Tensor, rng: torch.Generator) -> None:  # n d h w
        """Begin with the centres of k-means over the descriptors of these maps, and nearly hard assignments to them.

        With w_k = 2 a c_k and b_k = -a |c_k|^2 the assignment is softmax_k(-a |x - c_k|^2); a is such that on average
        the nearest centre has SHARPER times the share of the next.
        """
        rows = x.transpose(0, 1).flatten(1).T  # n*h*w d
        clusters = len(self.centres)
        if clusters < 2 or len(rows) < clusters:
            raise AssayError(f"{clusters} clusters of {len(rows)} descriptors; give 2 or more, and as many of these.")
        centres = rows[torch.randperm(len(rows), generator=rng, device=rng.device)[:clusters].to(rows.device)]
        for _ in range(LLOYD):
            own = F.one_hot(torch.cdist(rows, centres).argmin(1), clusters).to(rows)  # m k
            count = own.sum(0)[:, None]
            centres = torch.where(count > 0, own.T @ rows / count.clamp_min(1), centres)
        near = torch.cdist(rows, centres).square().topk(2, dim=1, largest=False).values
        a = math.log(SHARPER) / float((near[:, 1] - near[:, 0]).mean().clamp_min(torch.finfo(rows.dtype).tiny))
        self.centres.copy_(centres)
        self.assign.weight.copy_(2 * a * centres[:, :, None])
        assert self.assign.bias is not None
        self.assign.bias.copy_(-a * centres.square().sum(1))

    def attention(self, x: Tensor) -> Tensor:  # n d h w -> n h w, at least 0
        """The weight of each place; 1 everywhere for "vlad", which has none."""
        if self.score is None:
            return torch.ones_like(x[:, 0])
        return F.softplus(self.score(x.relu()))[:, 0]

    def residuals(self, x: Tensor, w: Tensor) -> Tensor:  # n d p, n p -> n k d
        """sum_i w_i a_k(x_i) (x_i - c_k)."""
        share = self.assign(x).softmax(1) * w[:, None]  # n k p
        found: Tensor = share @ x.transpose(1, 2) - share.sum(2, keepdim=True) * self.centres
        return found

    def aggregate(self, x: Tensor, w: Tensor) -> Tensor:  # n d p, n p -> n k d
        """The sum of the variant's streams with these weights, before it is normalised."""
        first = self.residuals(x, w)
        return first + self.residuals(w[:, None] * x, w) if self.variant == "ours" else first

    def forward(self, x: Tensor) -> Tensor:  # n d h w -> n k*d
        if x.ndim != 4 or x.shape[1] != self.centres.shape[1]:
            raise ShapeError(
                f"Vlad got a map of shape {tuple(x.shape)}; give (n, {self.centres.shape[1]}, height, width)."
            )
        return normalised(self.aggregate(x.flatten(2), self.attention(x).flatten(1)))


def normalised(v: Tensor) -> Tensor:  # n k d -> n k*d
    """Length 1 for each cluster, then for all of them together; 0 stays 0."""
    return F.normalize(F.normalize(v, dim=2).flatten(1), dim=1)


class PlaceNet(nn.Module):
    """A small encoder of grey images of about 32 x 32, and one descriptor of what it sees, of length 1.

    A place of the map sees 17 x 17 pixels, and there is one every four. Inner points have names: `features` gives the
    map that is aggregated, before any ReLU, and that adaptation works on; `vlad` aggregates it.
    """

    def __init__(self, channels: int = 32, clusters: int = 8, *, variant: Variant = "ours") -> None:
        super().__init__()
        self.channels = channels
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, channels, 3, padding=1),
        )  # fmt: skip  # n 1 h w -> n d h/4 w/4
        self.vlad = Vlad(channels, clusters, variant=variant)

    def classifier(self, classes: int) -> nn.Sequential:
        """The same encoder, its largest answers over the image, and a linear layer: to teach it to see beforehand."""
        return nn.Sequential(
            self.features, nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(self.channels, classes)
        )

    def attention(self, x: Tensor) -> Tensor:  # n 1 h w -> n h/4 w/4
        return self.vlad.attention(self.features(x))

    def forward(self, x: Tensor) -> Tensor:  # n 1 h w -> n k*d
        v: Tensor = self.vlad(self.features(x))
        return v
