"""The loss with which a net of Gaussian weights is trained: stochastic variational inference."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from assay.errors import AssayError
from assay.methods.train.fit import Loss


def negative_elbo(kl: Callable[[], Tensor], n: int, *, beta: float = 1.0, loss: Loss = F.cross_entropy) -> Loss:
    r"""The loss of a step for `fit`: the data's mean loss under one draw of weights, and a price on leaving the prior.

        L = (1/B) sum_batch -log p(y | x, w)  +  (beta / n) KL(q || prior),    w ~ q

    `kl` is read at each step (nn/variational.py has it in closed form), `n` is the number of training inputs. With
    beta = 1 n L is an unbiased estimate of the negative evidence lower bound; less tempers it.

    Source: Blundell et al., ICML 2015, arXiv:1505.05424, eq. 8, with equal weight for every batch. The public benchmark
        xuanqing94/BNNBench multiplies the KL by 1e-6: beta = n / 10^6.
    """
    if n < 1 or not beta >= 0:
        raise AssayError(f"negative_elbo got n={n}, beta={beta}; it wants at least one training input and beta >= 0.")
    return lambda outputs, targets: loss(outputs, targets) + beta / n * kl()
