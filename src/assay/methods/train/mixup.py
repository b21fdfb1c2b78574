r"""Mixup: train on mixtures of two inputs, with the same mixture of their labels.

    x' = t x_i + (1 - t) x_j,     y' = t e_{y_i} + (1 - t) e_{y_j},     t ~ Beta(a, a)

with j a random order of the batch and one t for the batch. Between classes the net is asked to be unsure, which it then
is elsewhere too.

Source: Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018, arXiv:1710.09412, eq. 1-2 (a = 0.1 to 0.4
    on pictures; one t a batch as in their code); for calibration Thulasidasan et al., NeurIPS 2019, arXiv:1905.11001.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError
from assay.methods.train.fit import Augment


def mixup(classes: int, *, a: float = 0.2) -> Augment:
    """For `fit(augment=..., loss=cross_entropy)`: a batch of inputs and classes to mixtures and label rows."""
    if not a > 0 or classes < 2:
        raise AssayError(f"mixup got a={a} for {classes} classes; it wants a above 0, such as 0.2, and two classes.")

    def mixed(x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:  # n *d, n -> n *d, n k
        seed = int(torch.randint(2**31, (), generator=rng, device=rng.device))
        t = float(np.random.default_rng(seed).beta(a, a))  # torch has no Beta that takes a generator
        other = torch.randperm(len(x), generator=rng, device=rng.device).to(x.device)
        hot = F.one_hot(y, classes).to(x)
        return t * x + (1 - t) * x[other], t * hot + (1 - t) * hot[other]

    return mixed
