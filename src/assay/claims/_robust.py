"""The adversarially trained network of CIFAR-10 that studies share: one for each seed, by methods/train/robust.py."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from torch import nn

from assay.claims._kept import Tensors, kept
from assay.claims._networks import images, started, vgg16
from assay.data.whole import Whole
from assay.methods.train.robust import ROBUST_CIFAR, robustly_trained

RECIPE = replace(ROBUST_CIFAR, epochs=50, rise=5, perturb=0.0)  # of 140: what a study with several seeds can wait for
WATCHED = 1000  # training images that the epoch is chosen by
TRAINED = (
    f"adversarial training at 8/255: {RECIPE.epochs} epochs of SGD with one cycle, {RECIPE.steps} steps "
    f"of the attacker, whose radius grows over the first {RECIPE.rise}, images moved and mirrored, labels smoothed by "
    f"{RECIPE.smoothing:g}, weights averaged, of the last third the last epoch that holds as much as the best, within "
    f"one standard error, by {WATCHED:,} held-out images"
)


@cache  # all studies of one process are about the same networks
def robust(seed: int, device: str) -> nn.Module:
    """VGG16 without input normalisation, in eval mode, its weights no longer trained.

    One and the same for all who ask: a study that changes it takes a copy.
    """
    data, net = images("CIFAR-10", device)["train"], started(vgg16, seed).to(device)
    few = min(WATCHED, len(data) // 3)
    watch, learn = (Whole(data.x[rows], data.y[rows]) for rows in (slice(few), slice(few, None)))

    def make() -> Tensors:
        swift = data.x.is_cuda
        return robustly_trained(started(vgg16, seed), learn, RECIPE, seed=seed, watch=watch, swift=swift).state_dict()

    told = (str(net), RECIPE, seed)
    weights = kept(make, "assay.methods.train.robust", told, device, (*net.state_dict().values(), learn, watch))
    net.load_state_dict(weights)
    return net.eval().requires_grad_(False)
