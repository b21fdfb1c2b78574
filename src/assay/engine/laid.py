"""A model's kernels channels-last while it is asked on a CPU whose vectors are wide: the same numbers but for rounding.

Where kernels lie channels-last so do the answers of convolutions, and what follows them (means over a square, batch
normalisation) runs along channels. Of its time in rows a pass of 64 images then takes 0.63, and one with its gradient
0.75, of the bundled network, 0.94 and 0.83 of a ResNet-18 (two cores of x86_64 with AVX-512). Elsewhere it was not
measured, or gained nothing; on aarch64 kernels are reordered where they are used (turned.py).
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def pays(device: str) -> bool:
    """Whether this was measured to be faster here."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512" and bool(torch.backends.mkldnn.enabled)
    return device == "cpu" and platform.machine() == "x86_64" and wide


def kernels(model: nn.Module) -> list[nn.Parameter]:
    """Those of convolutions that lie in rows."""
    return [p for p in model.parameters() if p.dim() == 4 and p.is_contiguous()]


@contextmanager
def laid(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Inside, its kernels lie channels-last, if that is wanted; afterwards as they lay, with the values they have."""
    turned: list[tuple[nn.Parameter, Tensor, Tensor]] = []
    for p in kernels(model) if wanted else ():
        rows = p.data
        p.data = rows.to(memory_format=torch.channels_last)
        turned.append((p, rows, p.data))
    try:
        yield
    finally:
        for p, rows, lay in turned:
            if p.data.data_ptr() == lay.data_ptr():  # nobody gave it others meanwhile
                if not torch.allclose(rows, lay, rtol=0, atol=0, equal_nan=True):  # they may lie where nobody can write
                    rows.copy_(lay)
                p.data = rows
