"""Train the weights of the reference subject `digits-ranker`, or any variant of it, on digits or on MNIST.

    python tools/train_ranker.py                          train on the 1,300 digits, write the bundled weights
    python tools/train_ranker.py --holdout 300            to tune: keep 300 training images back, write nothing
    python tools/train_ranker.py --variant frozen --out F train a variant, write it to the file F
    ASSAY_DATA=... python tools/train_ranker.py --data mnist --device cuda --steps 20000 --out F

Variants: joint; comparison (no decoder trained); shuffled-pairs, shuffled-images (targets without meaning); frozen,
frozen-unit, frozen-variational (autoencoder first, then the tail); mirror (comparison, then an autoencoder beside it,
whose decoder is written); posthoc (comparison, then a decoder for it).

k = 1000 was chosen on 300 held-out training images with 3,000 steps: k = 356, at which both terms of the loss start
equal, draws a little better (an error of 0.0117 where it has 0.0130) and compares a little worse (0.0586 where it has
0.0559). The test images are looked at once, at the end. The shipped weights were made with one thread and torch 2.13.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import cast

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from assay.data.arrays import Arrays
from assay.data.beyond import mnist
from assay.data.digits import load_digits
from assay.errors import AssayError
from assay.methods.train.fit import reset
from assay.methods.train.ranker import (
    Course,
    Form,
    Targets,
    embed,
    fit_autoencoder,
    fit_decoder,
    fit_mirror,
    fit_ranker,
    fit_tail,
    likeness,
)
from assay.nn.siamese import ARCHITECTURES, Siamese, pooled_encoder

BUNDLED = Path(__file__).parents[1] / "src" / "assay" / "data" / "bundled" / "digits_ranker.safetensors"
FROZEN: dict[str, Form] = {"frozen": "plain", "frozen-unit": "unit norm", "frozen-variational": "variational"}
SHUFFLED: dict[str, Targets] = {"shuffled-pairs": "shuffled pairs", "shuffled-images": "shuffled images"}
VARIANTS = ("joint", "comparison", *SHUFFLED, *FROZEN, "mirror", "posthoc")
NORM, DIVERGENCE, MIRROR = 1.0, 0.05, 10.0  # weights beside a squared error that is summed over pixels


def train(given: argparse.Namespace, x: Tensor, values: Tensor) -> Siamese:
    build = ARCHITECTURES["digits" if given.data == "digits" else "grey"]
    rng = torch.Generator().manual_seed(given.seed)
    frame = build(given.size)
    if given.variant == "mirror" and given.data == "mnist":
        frame.encoder = pooled_encoder(given.size)  # the published branch of this variant
    model, spare = (cast("Siamese", reset(frame, rng)) for _ in range(2))
    assert spare.decoder is not None

    def show(done: int, loss: float) -> None:
        if done % 500 == 0:
            print(f"{done} steps, loss {loss:.3f}", flush=True)

    course = Course(steps=given.steps, batch=given.batch, progress=show, device=given.device)
    if form := FROZEN.get(given.variant):
        weight = DIVERGENCE if form == "variational" else NORM
        fit_autoencoder(model, x, form=form, weight=weight, rng=rng, course=course)
        fit_tail(model, x, values, low=0, high=9, rng=rng, course=course)
        return model
    targets, alone = SHUFFLED.get(given.variant, "true"), given.variant in ("comparison", "mirror", "posthoc")
    fit_ranker(
        model, x, values, low=0, high=9, k=given.k, targets=targets, comparison_only=alone, rng=rng, course=course
    )
    if given.variant == "mirror":
        fit_mirror(model, spare, x, k=MIRROR, rng=rng, course=course)
    if given.variant == "posthoc":
        fit_decoder(model, spare.decoder, x, rng=rng, course=course)
    if alone:
        model.decoder = None if given.variant == "comparison" else spare.decoder
    return model


@torch.no_grad()
def score(model: Siamese, x: Tensor, values: Tensor) -> str:
    """Errors over 10,000 pairs drawn anew, beside those of a constant."""
    rows = torch.as_tensor(np.random.default_rng(1).integers(0, len(x), (10_000, 2)))
    e = embed(model.encoder, x)
    c = model.compare(e[rows[:, 0]], e[rows[:, 1]]).cpu()
    gap = (values[rows[:, 0]] - values[rows[:, 1]]).double()
    t = gap / 18 + 0.5
    right = ((c >= 0.5) == (gap > 0))[gap != 0].double().mean()
    said = f"mean absolute error {(c - t).abs().mean():.4f} (constant {(t - 0.5).abs().mean():.4f}), order {right:.4f}"
    if model.decoder is None:
        return said
    drawn = likeness(model.decoder, e, x)
    return f"{said}, picture error {drawn.error:.4f} ({drawn.share:.3f} of the variance)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("digits", "mnist"), default="digits")
    parser.add_argument("--variant", choices=VARIANTS, default="joint")
    parser.add_argument("--holdout", type=int, default=0, help="train on all but the first so many; score on those")
    parser.add_argument("--size", type=int, default=10, help="of the embedding")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=64, help="pairs in a step")
    parser.add_argument("--k", type=float, default=None, help="weight of the comparison; digits 1000, else balanced")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None, help="where the weights go; the joint digits are bundled")
    given = parser.parse_args()
    plain = given.data == "digits" and given.variant == "joint"
    if not plain and not given.out and not given.holdout:
        raise AssayError("Only the joint model of the digits is bundled; name a file for this one with --out.")
    if given.k is None and given.data == "digits":
        given.k = 1000.0
    torch.set_num_threads(1)
    data = load_digits() if given.data == "digits" else mnist()
    learn, judge = (all_of(data[part]) for part in ("train", "test"))
    if h := given.holdout:
        learn, judge = (learn[0][h:], learn[1][h:]), (learn[0][:h], learn[1][:h])
    start = time.monotonic()
    model = train(given, *learn).eval()
    print(f"trained in {time.monotonic() - start:.0f} s")
    if not given.holdout:
        state = {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}
        save_file(state, given.out or BUNDLED)
    print(f"on {len(judge[0])} images that were not trained on: {score(model, *judge)}")


def all_of(data: Arrays) -> tuple[Tensor, Tensor]:  # -> n 1 h w, n
    return data.take(np.arange(len(data)))


if __name__ == "__main__":
    main()
