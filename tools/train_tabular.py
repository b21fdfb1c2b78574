"""Train the weights of the reference subject `wine-mlp`.

    python tools/train_tabular.py                 train on the 118 training rows, write the weights
    python tools/train_tabular.py --holdout 30    to tune: keep 30 training rows back, write nothing

The test rows are looked at once, at the end, to print the accuracy. The shipped weights were made with one thread.
"""

from __future__ import annotations

import numpy as np
import torch
from lesson import BUNDLED, accuracy, lesson
from safetensors.torch import save_file

from assay.methods.train.fit import fit
from assay.subjects.wine_mlp import WineMLP, load_wine


def main() -> None:
    learn, score, final = lesson(__doc__, load_wine())
    model = WineMLP()
    x, _ = learn.take(np.arange(len(learn)))
    model.mean.copy_(x.mean(0))
    model.std.copy_(x.std(0))
    fit(model, learn, epochs=60, lr=0.05, batch=32, weight_decay=1e-2, rng=torch.Generator().manual_seed(0))
    if final:
        save_file(model.state_dict(), BUNDLED / "wine_mlp.safetensors")
    print(f"accuracy on {len(score)} rows that were not trained on: {accuracy(model.eval(), score):.4f}")


if __name__ == "__main__":
    main()
