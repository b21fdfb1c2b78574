r"""Which source domain an input looks like: P(i | z) by logistic regression on kernels at landmarks.

    log P(i | z) = b_i + w_i . k(L, z) + const,     L at most LANDMARKS rows of the sources, k the kernel of mk_mmd.py

A kernel rather than z itself, because a domain of several classes lies in several places, and one that surrounds
another cannot be cut off by a plane. Penalised by |w|^2 / 2 C, so that posteriors of few inputs are not surer than they
may be.

Source: Zhu & Hastie, JCGS 2005 (kernel logistic regression with few points); for mixture_weights.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.shift.mk_mmd import kernel, median_distance, some

LANDMARKS = 100
PENALTY = 10.0  # C of scikit-learn


def domain_posteriors(sources: Sequence[Tensor], target: Tensor) -> tuple[Tensor, Tensor]:  # each n *d, m *d -> m s, s
    """The posterior of every source for each target input, and the shares that the sources were taught in."""
    from sklearn.linear_model import LogisticRegression

    if len(sources) < 2:
        raise AssayError(
            f"domain_posteriors got {len(sources)} source; with fewer than two there is nothing to tell apart."
        )
    sizes = torch.tensor([len(part) for part in sources])
    taught, asked = (part.detach().flatten(1).double() for part in (torch.cat(list(sources)), target))
    middle = taught.mean(0)
    taught, asked = taught - middle, asked - middle
    scale = median_distance(taught)
    marks = taught[some(len(taught), LANDMARKS)]
    near, far = (kernel(part, marks, scale).numpy() for part in (taught, asked))
    model = LogisticRegression(C=PENALTY, max_iter=1000).fit(near, np.repeat(np.arange(len(sources)), sizes.numpy()))
    return torch.as_tensor(model.predict_proba(far)), sizes / sizes.sum()
