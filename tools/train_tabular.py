"""Train the weights of the reference subject `wine-mlp`.

    python tools/train_tabular.py                 train on the 118 training rows, write the weights
    python tools/train_tabular.py --holdout 30    to tune: keep 30 training rows back, write nothing

The test rows are looked at once, at the end, to print the accuracy. The shipped weights were made with one thread.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from assay.data.arrays import Arrays
from assay.methods.train.fit import fit
from assay.subjects.wine_mlp import WineMLP, load_wine

BUNDLED = Path(__file__).parents[1] / "src" / "assay" / "data" / "bundled"


@torch.no_grad()
def accuracy(model: nn.Module, data: Arrays) -> float:
    x, y = data.take(np.arange(len(data)))
    return float((model(x).argmax(1) == y).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--holdout", type=int, default=0, help="train on all but the first so many; score on those")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)  # the initial weights
    data, model = load_wine(), WineMLP()
    learn, score = data["train"], data["test"]
    if k := given.holdout:
        x, y = learn.take(np.arange(len(learn)))
        learn, score = Arrays(x[k:], y[k:]), Arrays(x[:k], y[:k])
    x, _ = learn.take(np.arange(len(learn)))
    model.mean.copy_(x.mean(0))
    model.std.copy_(x.std(0))
    fit(model, learn, epochs=60, lr=0.05, batch=32, weight_decay=1e-2, rng=torch.Generator().manual_seed(0))
    if not given.holdout:
        save_file(model.state_dict(), BUNDLED / "wine_mlp.safetensors")
    print(f"accuracy on {len(score)} rows that were not trained on: {accuracy(model.eval(), score):.4f}")


if __name__ == "__main__":
    main()
