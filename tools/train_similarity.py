"""Train the weights of the reference subject `digits-similarity`, with a loss of pytorch-metric-learning.

    python tools/train_similarity.py                  train on the 1,300 training images, write the weights
    python tools/train_similarity.py --holdout 300    to tune: keep 300 training images back, write nothing

The loss is contrastive (Hadsell et al. 2006) over all pairs of a batch: |e1 - e2| for two of a class, max(0, 1 - |e1 -
e2|) for others. The threshold is the one that is right most often on pairs of training images, and is kept beside the
weights. The test images are looked at once, at the end. The shipped weights were made with one thread, torch 2.13 and
pytorch-metric-learning 2.9.
"""

from __future__ import annotations

import numpy as np
import torch
from lesson import BUNDLED, lesson
from numpy.typing import NDArray
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import ContrastiveLoss
from safetensors.torch import save_file
from torch import nn

from assay.data.digits import load_digits
from assay.data.pairs import Pairs
from assay.methods.train.fit import fit
from assay.nn.siamese import Siamese
from assay.subjects.digits_similarity import network

PAIRS = 20000


@torch.no_grad()
def distances(model: Siamese, pairs: Pairs) -> NDArray[np.float64]:  # -> m
    x, _ = pairs.take(np.arange(len(pairs)))
    return np.asarray(model(x).double().numpy())


def best_threshold(distance: NDArray[np.float64], same: NDArray[np.int64]) -> float:
    """Half-way between the two neighbouring distances between which a threshold is right most often."""
    order = np.argsort(distance)
    right = np.cumsum(2 * same[order] - 1)  # with the first k+1 called the same, less a constant
    k = int(right[:-1].argmax())
    return float(distance[order[k : k + 2]].mean())


def main() -> None:
    learn, score, final = lesson(__doc__, load_digits())
    model = network()
    loss = ContrastiveLoss(pos_margin=0, neg_margin=1, distance=LpDistance(normalize_embeddings=False, p=2))
    encoder = nn.Sequential(model.encoder, nn.Flatten())
    rng = torch.Generator().manual_seed(0)
    fit(encoder, learn, epochs=50, lr=2e-3, batch=64, optimiser="adam", loss=loss, rng=rng)
    model.eval()
    pairs = Pairs.alike(learn, learn.labels, PAIRS, seed=1)
    threshold = best_threshold(distances(model, pairs), pairs.labels)
    if final:
        save_file(
            {**model.state_dict(), "threshold": torch.tensor(threshold)}, BUNDLED / "digits_similarity.safetensors"
        )
    for name, part in (("trained on", learn), ("not trained on", score)):
        pairs = Pairs.alike(part, part.labels, PAIRS, seed=2)
        right = (distances(model, pairs) < threshold) == pairs.labels
        print(f"right on {right.mean():.4f} of {PAIRS} pairs of {len(part)} images that were {name}")


if __name__ == "__main__":
    main()
