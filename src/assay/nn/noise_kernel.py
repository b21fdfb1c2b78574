"""Add Gaussian noise on a GPU in one pass over memory: drawn in registers, four values from each block of Philox.

What torch offers writes the noise, reads it again, and adds. This file needs Triton, which comes with torch for CUDA:
`noisy.py` imports it where values are on such a device.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512
MOST = 1 << 31  # values, which are counted in 32 bits


@triton.jit  # type: ignore[untyped-decorator]
def add_noise(x, out, seed, std, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton reads annotations
    place = tl.program_id(0) * 4 * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = tl.randn4x(tl.load(seed), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    size = tl.load(std)
    one, two, three = place + BLOCK, place + 2 * BLOCK, place + 3 * BLOCK
    tl.store(out + place, tl.load(x + place, mask=place < n).to(tl.float32) + size * a, mask=place < n)
    tl.store(out + one, tl.load(x + one, mask=one < n).to(tl.float32) + size * b, mask=one < n)
    tl.store(out + two, tl.load(x + two, mask=two < n).to(tl.float32) + size * c, mask=two < n)
    tl.store(out + three, tl.load(x + three, mask=three < n).to(tl.float32) + size * d, mask=three < n)


class Added(torch.autograd.Function):
    """x + std e, e ~ N(0, 1) for each value of x, which lies in memory without gaps.

    The seed comes from torch's own generator of the device, so that `torch.manual_seed` repeats the noise.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, std: Tensor) -> Tensor:  # n *d, () -> n *d
        out, seed = torch.empty_like(x), torch.randint(MOST, (1,), device=x.device)
        with torch.cuda.device(x.device):
            add_noise[(-(-x.numel() // (4 * BLOCK)),)](x, out, seed, std, x.numel(), BLOCK=BLOCK)
        return out

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return slopes[0], None
