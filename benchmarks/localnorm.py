"""What does LocalNorm cost beside batch normalisation?

    python benchmarks/localnorm.py

A forward pass of the same network with LocalNorm and with batch normalisation, in turns in one run: in training mode,
where both take statistics of the batch, and in eval mode, where batch normalisation has its running ones and LocalNorm
(mode batch, one pass as well) still takes its own. On two cores and, where there is one, on a GPU.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor, nn

from assay.nn.local_norm import with_local_norm
from assay.nn.resnet import ResNet18
from assay.nn.small_cnn import SmallCNN
from assay.nn.vgg import Vgg16

GROUPS, BATCH, ROUNDS = 8, 128, 15
MOST = 1.15  # times the plain one


def seconds(net: nn.Module, x: Tensor, times: int) -> float:
    if x.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        net(x)
    if x.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(2)
    cases: list[tuple[str, nn.Module, tuple[int, ...], str]] = [("SmallCNN", SmallCNN(), (1, 28, 28), "cpu")]
    if torch.cuda.is_available():
        cases += [("VGG16", Vgg16(), (3, 32, 32), "cuda"), ("ResNet-18", ResNet18(), (3, 32, 32), "cuda")]
    for name, net, shape, device in cases:
        x = torch.rand(BATCH, *shape, generator=torch.Generator().manual_seed(0)).to(device)
        plain, local = net.to(device), with_local_norm(net.to(device), GROUPS, "batch")
        times = 20 if device == "cuda" else 1
        for training in (True, False):
            plain.train(training)
            local.train(training)
            ratios = []
            for turn in range(ROUNDS + 1):
                one, other = seconds(plain, x, times), seconds(local, x, times)
                if turn:  # the first is to warm up
                    ratios.append((one, other))
            mid = [statistics.median(column) for column in zip(*ratios, strict=True)]
            ratio = statistics.median(other / one for one, other in ratios)
            told = "" if not training else f", {'at most' if ratio <= MOST else 'ABOVE'} {MOST:g}"
            print(
                f"{name} on {device}, {'training' if training else 'eval'} mode: batch normalisation "
                f"{1000 * mid[0]:.2f} ms, LocalNorm in {GROUPS} groups {1000 * mid[1]:.2f} ms, {ratio:.3f} times{told}",
                flush=True,
            )


if __name__ == "__main__":
    main()
