"""Train the weights of the reference subject `rotated-digits`.

    python tools/train_rotated.py                  train on the 1,000 training images, write the weights
    python tools/train_rotated.py --holdout 200    to tune: keep 200 training images back, write nothing

The test images and the domains are looked at once, at the end, to print the accuracies. The shipped weights were made
with one thread and torch 2.13.
"""

from __future__ import annotations

import torch
from lesson import BUNDLED, accuracy, lesson
from safetensors.torch import save_file

from assay.methods.train.fit import fit
from assay.subjects.rotated_digits import load_rotated, network


def main() -> None:
    data = load_rotated()
    learn, score, final = lesson(__doc__, data)
    model = network()
    fit(model, learn, epochs=150, lr=0.1, batch=64, weight_decay=5e-4, rng=torch.Generator().manual_seed(0))
    print(f"accuracy on {len(score)} images that were not trained on: {accuracy(model.eval(), score):.4f}")
    if final:
        save_file(model.state_dict(), BUNDLED / "rotated_digits.safetensors")
        for name in ("rotated-0", "rotated-75"):
            print(f"accuracy on {name}: {accuracy(model, data[name]):.4f}")


if __name__ == "__main__":
    main()
