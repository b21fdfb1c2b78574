"""Add Gaussian noise on a GPU in one pass over memory: drawn in registers, four neighbours from each block of Philox.

What torch offers writes the noise, reads it again, and adds. This file needs Triton, which comes with torch for CUDA:
`noisy.py` imports it where values are on such a device.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256
ROUNDS = 7  # of Philox 4x32: as few as pass every test of Salmon et al., SC 2011, where 10 leave a margin
STRIDE = 4  # what the offset of a generator moves by
WORD = 1 << 64


@triton.jit  # type: ignore[untyped-decorator]
def add_noise(x, out, seed, std, n, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):  # type: ignore[no-untyped-def]
    first = tl.program_id(0) * BLOCK
    a, b, c, d = tl.randn4x(seed, first + tl.arange(0, BLOCK), ROUNDS)
    noise = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (4 * BLOCK,))  # a b c d a b c d ...
    place = 4 * first + tl.arange(0, 4 * BLOCK)
    values = tl.load(x + place, mask=place < n).to(tl.float32)
    tl.store(out + place, values + tl.load(std) * noise, mask=place < n)


def fresh_seed(device: torch.device) -> int:
    """A seed from torch's generator of the device, which moves on: no kernel is started for it."""
    generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    offset = int(generator.get_offset())
    generator.set_offset(offset + STRIDE)
    # as splitmix64 mixes, so that neighbouring seeds and offsets have nothing to do with each other
    z = (generator.initial_seed() + (offset // STRIDE + 1) * 0x9E3779B97F4A7C15) % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return (z ^ (z >> 31)) >> 2 | 1 << 61  # always of 64 bits for Triton, which compiles once


class Added(torch.autograd.Function):
    """x + std e, e ~ N(0, 1) for each value of x, which lies in memory without gaps.

    The seed comes from torch's own generator of the device, so that `torch.manual_seed` repeats the noise.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, std: Tensor) -> Tensor:  # n *d, () -> n *d
        out, n = torch.empty_like(x), x.numel()
        with torch.cuda.device(x.device):
            add_noise[(-(-n // (4 * BLOCK)),)](x, out, fresh_seed(x.device), std, n, BLOCK=BLOCK, ROUNDS=ROUNDS)
        return out

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return slopes[0], None
