"""A network that turns one image into another of the same size."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from assay.nn.unet import UNet


class Translator(nn.Module):
    """A U-Net whose answers lie between 0 and 1: n c h w -> n k h w, for images of any size.

    Sides that the U-Net cannot halve often enough are drawn out by their last row and column, and what comes of it is
    cut off again.

    Source: Liu, "Building Trustworthy Machine Learning Models", UCLA 2021, sec. 6 (a U-Net, images in [0, 1]). Departs
        from the public code (xuanqing94/BNNBench), which scales to [-1, 1] and ends in a tanh: a sigmoid is the same
        function in other units.
    """

    def __init__(self, channels: int, answers: int, *, width: int = 16, levels: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = UNet(channels, answers, width=width, levels=levels, dropout=dropout)
        self.multiple = 2 ** (levels - 1)
        self.start: Tensor
        self.register_buffer("start", torch.zeros(answers))

    @torch.no_grad()
    def begin(self, targets: Tensor) -> None:  # n k h w
        """Answer about the mean of these before any training, and again wherever the weights are drawn anew.

        Most pixels of a stain are dark, and a sigmoid that begins at a half takes thousands of small steps down.
        """
        self.start.copy_(targets.mean((0, 2, 3)).clamp(0.001, 0.999).logit())

    def forward(self, x: Tensor) -> Tensor:  # n c h w -> n k h w
        height, width = x.shape[-2:]
        down, right = -height % self.multiple, -width % self.multiple
        out = self.net(pad(x, (0, right, 0, down), mode="replicate"))[..., :height, :width]
        return torch.sigmoid(out + self.start.view(-1, 1, 1))
