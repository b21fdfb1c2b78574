"""Make the bundled sample of Fashion-MNIST and train the weights that Assay ships.

    ASSAY_DATA=... python tools/train_bundled.py --sample     draw the sample from the standard files, then train
    python tools/train_bundled.py                             train on the bundled 10,000 images
    python tools/train_bundled.py --holdout 2000              to tune: keep 2,000 training images back, write nothing

Only training images are trained on, and the architecture and the settings were chosen by four-fold validation inside
them; the bundled test images are looked at once, at the end, to print the accuracy. The shipped weights were made with
--threads 8 and torch 2.11; sums in another order give slightly other ones.
"""

from __future__ import annotations

import argparse
import math
import os
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from assay.data.fashion import load_fashion
from assay.data.idx import read_idx
from assay.errors import AssayError
from assay.nn.small_cnn import SmallCNN

BUNDLED = Path(__file__).parents[1] / "src" / "assay" / "data" / "bundled"
SEED = 20240917  # of the draw and of the training


def draw_sample(source: Path) -> dict[str, NDArray[np.generic]]:
    """1,000 training and 200 test images of each class, in an order in which every ten rows hold all ten classes."""
    rng = np.random.default_rng(SEED)
    members: dict[str, NDArray[np.generic]] = {}
    for part, prefix, each in (("train", "train", 1000), ("test", "t10k", 200)):
        x, y = (read_idx(source / f"{prefix}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
        picks = np.stack([rng.choice(np.flatnonzero(y == c), each, replace=False) for c in range(10)])  # 10 each
        rows = rng.permuted(picks.T, axis=1).ravel()
        members |= {f"x_{part}": x[rows], f"y_{part}": y[rows]}
    return members


def write_sample(members: dict[str, NDArray[np.generic]], target: Path) -> None:
    """An .npz with LZMA: 4.5 MB where the deflate of numpy.savez_compressed makes 5.3 MB; numpy.load reads both."""
    with zipfile.ZipFile(target, "w") as archive:
        for name, array in members.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))  # the same bytes every time
            entry.compress_type = zipfile.ZIP_LZMA
            with archive.open(entry, "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def augment(x: Tensor, rng: torch.Generator) -> Tensor:  # n 1 28 28 -> n 1 28 28
    """Flip half of the images, shift each by at most 1 pixel, and blank a random rectangle in a quarter of them."""
    n, _, height, width = x.shape
    x = torch.where((torch.rand(n, generator=rng) < 0.5).view(-1, 1, 1, 1), x.flip(-1), x)
    top, left = torch.randint(0, 3, (2, n, 1), generator=rng)
    rows, columns = top + torch.arange(height), left + torch.arange(width)  # n h, n w
    x = pad(x, (1, 1, 1, 1))[torch.arange(n).view(-1, 1, 1), 0, rows[:, :, None], columns[:, None, :]]  # n h w
    side = torch.randint(4, 13, (2, n, 1), generator=rng) * (torch.rand(n, 1, generator=rng) < 0.25)
    corner = torch.randint(-4, 25, (2, n, 1), generator=rng)
    inside = (torch.arange(28) >= corner) & (torch.arange(28) < corner + side)  # 2 n 28
    return x.masked_fill(inside[0, :, :, None] & inside[1, :, None, :], 0.0)[:, None]


def train(x: Tensor, y: Tensor, *, epochs: int, peak: float, batch: int = 128, seed: int) -> SmallCNN:
    """SGD with Nesterov momentum, weight decay on the weights alone, and a cosine schedule after two warm epochs."""
    torch.manual_seed(seed)  # the initial weights
    rng = torch.Generator().manual_seed(seed)
    model = SmallCNN(mean=x.mean().item(), std=x.std().item()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 1e-3},
        {"params": [p for p in model.parameters() if p.ndim <= 1]},
    ]
    optimiser = torch.optim.SGD(groups, lr=peak, momentum=0.9, nesterov=True)
    per_epoch = len(x) // batch
    total, warm = epochs * per_epoch, 2 * per_epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda t: (t + 1) / warm if t < warm else 0.5 * (1 + math.cos(math.pi * (t - warm) / max(1, total - warm))),
    )
    for epoch in range(epochs):
        start, seen = time.monotonic(), 0.0
        for rows in torch.randperm(len(x), generator=rng)[: per_epoch * batch].view(-1, batch):
            images = augment(x[rows], rng).contiguous(memory_format=torch.channels_last)
            loss = cross_entropy(model(images), y[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            seen += loss.item()
        print(f"epoch {epoch + 1}: loss {seen / per_epoch:.4f}, {time.monotonic() - start:.0f} s", flush=True)
    return model.eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload,no-any-return]


@torch.no_grad()
def accuracy(model: SmallCNN, x: Tensor, y: Tensor) -> float:
    hits = [(model(x[k : k + 500]).argmax(-1) == y[k : k + 500]).sum() for k in range(0, len(x), 500)]
    return int(sum(hits)) / len(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", action="store_true", help="draw the sample again from ASSAY_DATA/fashion-mnist")
    parser.add_argument("--holdout", type=int, default=0, help="train on all but the first so many; score on those")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--peak", type=float, default=0.1, help="the highest learning rate")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.sample:
        if "ASSAY_DATA" not in os.environ:
            raise AssayError("ASSAY_DATA is not set; set it to the folder that holds fashion-mnist/.")
        write_sample(draw_sample(Path(os.environ["ASSAY_DATA"]) / "fashion-mnist"), BUNDLED / "fashion.npz")
    data = load_fashion()
    x, y = data["train"].take(np.arange(len(data["train"])))
    if k := given.holdout:
        model = train(x[k:], y[k:], epochs=given.epochs, peak=given.peak, seed=SEED)
        print(f"accuracy on {k} held-out training images: {accuracy(model, x[:k], y[:k]):.4f}")
        return
    model = train(x, y, epochs=given.epochs, peak=given.peak, seed=SEED)
    save_file(model.state_dict(), BUNDLED / "fashion_cnn.safetensors")
    x, y = data["test"].take(np.arange(len(data["test"])))
    print(f"accuracy on the {len(x)} bundled test images: {accuracy(model, x, y):.4f}")


if __name__ == "__main__":
    main()
