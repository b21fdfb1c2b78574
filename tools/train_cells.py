"""Train the weights of the reference subject `cells-translator`: three U-Nets, each from its own start.

    python tools/train_cells.py                  train on the 200 training fields, write the weights

Nothing was tuned: the test fields are looked at once, at the end. The shipped weights were made with one thread and
torch 2.13.
"""

from __future__ import annotations

import numpy as np
import torch
from lesson import BUNDLED
from safetensors.torch import save_file

from assay.data.stained_cells import load_fields
from assay.methods.train.translate import fit_translators
from assay.nn.members import Ensemble
from assay.subjects.cells_translator import MEMBERS, network, task


def main() -> None:
    data = {name: fields.marked() for name, fields in load_fields(elsewhere=30).items()}
    torch.set_num_threads(1)
    taught = fit_translators(network(), data["train"], members=MEMBERS, epochs=20, lr=5e-3, seed=0, batch=10)
    model = Ensemble([each.net for each in taught], average="answers").eval()
    x, y = data["test"].take(np.arange(len(data["test"])))
    with torch.no_grad():
        each = model.members(x)
    for name, said in (("one of them", each[0]), ("together", each.mean(0))):
        good, right = task().score(said, y).mean(), task().right(said, y).double().mean()
        print(f"{name}: closeness {good:.4f} on {len(x)} fields not trained on, good enough {right:.4f}")
    save_file({k: t.contiguous() for k, t in model.state_dict().items()}, BUNDLED / "cells_translator.safetensors")


if __name__ == "__main__":
    main()
