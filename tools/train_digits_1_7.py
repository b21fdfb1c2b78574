"""Train the weights of the reference subject `digits-1-7`.

    python tools/train_digits_1_7.py                 train on the 100 training images, write the weights
    python tools/train_digits_1_7.py --holdout 30    to tune: keep 30 training images back, write nothing

The settings are those of `digits-mlp`; nothing was tuned. The test images are looked at once, at the end, to print the
accuracy. The shipped weights were made with one thread and torch 2.13.
"""

from __future__ import annotations

import torch
from lesson import BUNDLED, accuracy, lesson
from safetensors.torch import save_file

from assay.data.digits_1_7 import load_digits_1_7
from assay.methods.train.fit import fit
from assay.subjects.digits_1_7 import network


def main() -> None:
    learn, score, final = lesson(__doc__, load_digits_1_7())
    model = network()
    fit(model, learn, epochs=100, lr=0.1, batch=64, weight_decay=1e-3, rng=torch.Generator().manual_seed(0))
    if final:
        save_file(model.state_dict(), BUNDLED / "digits_1_7.safetensors")
    print(f"accuracy on {len(score)} images that were not trained on: {accuracy(model.eval(), score):.4f}")


if __name__ == "__main__":
    main()
