"""A small network that describes an image by the mean of its last map, with feature excitation and IRR."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from assay.errors import AssayError
from assay.nn.feature_excitation import FeatureExcitation
from assay.nn.irr import blended, interesting
from assay.nn.small_cnn import conv


class PartsNet(nn.Module):
    """n c h w -> n d: stages of a 3 x 3 convolution and feature excitation, each but the last halved by its means.

    `gathers` is how many gathering convolutions each stage has: 0, no excitation. With `alpha` above 0, in training,
    the band that IRR finds in the first stage's map is blended in; asked for a descriptor it is left out.
    """

    def __init__(
        self,
        channels: int,
        widths: Sequence[int],
        gathers: Sequence[int],
        *,
        alpha: float = 0.0,
        additive: bool = False,
    ) -> None:
        super().__init__()
        if len(widths) != len(gathers) or not widths:
            raise AssayError(
                f"PartsNet got {len(widths)} widths and {len(gathers)} numbers of gathering convolutions; give one of "
                "each for every stage."
            )
        self.alpha, self.describes = alpha, widths[-1]
        self.stages = nn.ModuleList(
            nn.Sequential(conv(before, after), FeatureExcitation(after, n, additive=additive))
            for (before, after), n in zip(pairwise((channels, *widths)), gathers, strict=True)
        )
        self.halve = nn.AvgPool2d(2)

    def maps(self, x: Tensor) -> tuple[Tensor, Tensor]:  # n c h w -> n w1 h w, n d h' w'
        """The first and the last map."""
        first = z = self.stages[0](x)
        for stage in self.stages[1:]:
            z = stage(self.halve(z))
        return first, z

    def forward(self, x: Tensor) -> Tensor:
        return self.descriptor(*self.maps(x))

    def descriptor(self, first: Tensor, last: Tensor) -> Tensor:  # n w1 h w, n d h' w' -> n d
        if self.training and self.alpha:
            return blended(last, interesting(first), self.alpha)
        return last.mean((2, 3))
