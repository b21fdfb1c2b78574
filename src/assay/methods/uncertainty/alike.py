r"""How alike the members of an ensemble are: whether their mean is more than one of them.

    disagreement = mean over pairs m < m' and inputs of [ argmax p_m != argmax p_m' ]
    gain         = 1 - NLL(p) / ( (1/M) sum_m NLL(p_m) ),    p = (1/M) sum_m p_m,   NLL(q) = mean of -log q_y

The gain is at least 0 (Jensen) and 0 where all members give the truth the same probability: averaging then did nothing,
however good each of them is.

Source: disagreement as in Fort, Hu and Lakshminarayanan 2019, arXiv:1912.02757, sec. 4; the gain is the ambiguity of
    Krogh and Vedelsby, NIPS 1994, for the logarithmic score, as a share.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from assay.errors import ShapeError

CLONES = 0.02
"""Of a gain: five nets trained by themselves gained 0.05 to 0.18 on halves of the bundled subjects' test data (0.01 on
30 wines that all get right), and one net trained on five times from where it was 0.001 to 0.005 on digits-mlp."""


class Alike(NamedTuple):
    members: int
    disagreement: float
    gain: float

    @property
    def are_clones(self) -> bool:
        return self.gain < CLONES


def alike(logits: Tensor, y: Tensor) -> Alike:  # m n c, n
    """How far members differ on inputs whose labels are known."""
    if logits.ndim != 3 or 0 in logits.shape or y.shape != logits.shape[1:2]:
        raise ShapeError(
            f"alike got logits of shape {tuple(logits.shape)} and labels of shape {tuple(y.shape)}; it wants members x "
            "inputs x classes, and a label for each input."
        )
    members = len(logits)
    logp = logits.double().log_softmax(-1)  # m n c
    truth = logp.gather(-1, y.expand(members, -1)[..., None])[..., 0]  # m n: log p_m(y)
    mean = truth.logsumexp(0) - torch.tensor(float(members), dtype=torch.float64, device=truth.device).log()  # n
    single, together = float(-truth.mean()), float(-mean.mean())
    said = logits.argmax(-1)  # m n
    apart = [float((said[i] != said[j]).double().mean()) for i in range(members) for j in range(i)]
    return Alike(
        members,
        sum(apart) / len(apart) if apart else 0.0,
        max(0.0, 1 - together / single) if single > 0 else 0.0,
    )
