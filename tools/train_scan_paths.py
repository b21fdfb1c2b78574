"""Train the weights of the reference subject on scan paths: half a minute of one core, from one seed.

    python tools/train_scan_paths.py

The test paths are looked at once, at the end. The shipped weights were made with torch 2.13.
"""

from __future__ import annotations

import numpy as np
import torch
from lesson import BUNDLED
from safetensors.torch import save_file

from assay.data.scan_paths import load_scan_paths
from assay.methods.train.fit import fit
from assay.subjects.scan_paths import network

EPOCHS, LR, BATCH, SEED = 15, 2e-3, 64, 0


def main() -> None:
    torch.set_num_threads(1)
    data = load_scan_paths()
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = network()
    rng = torch.Generator().manual_seed(SEED)
    fit(model, data["train"], epochs=EPOCHS, lr=LR, batch=BATCH, weight_decay=5e-4, optimiser="adam", rng=rng)
    model.eval()
    with torch.no_grad():
        x, y = data["test"].take(np.arange(len(data["test"])))
        print(f"right on {float((model(x).argmax(1) == y).float().mean()):.4f} of {len(y)} test paths")
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()}, BUNDLED / "scan_paths.safetensors"
    )


if __name__ == "__main__":
    main()
