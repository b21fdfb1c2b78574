"""Train the same architecture so that its features lie alike in every domain, by MK-MMD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.methods.shift.mk_mmd import mk_mmd
from assay.remedies._across_domains import Aligning

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class MkMmdAdaptation(Aligning):
    """Trains it so that its features lie alike in all domains, also in those without labels, by five kernels.

    `weight` is that of the distance in the loss; 0 is the plain training. `target` names domains of which the inputs
    alone are seen, by default those without labels; `hold_out` one that is not seen at all. Where classes have other
    shares in another domain, features that lie alike mix classes.
    """

    weight: float = 0.99

    source: ClassVar[str] = "Long et al., ICML 2015, arXiv:1502.02791; Wang, dissertation, TU Delft 2024, sec. 2.3.3"
    mends: ClassVar[tuple[str, ...]] = ("does-it-extrapolate", "how-far-is-it-from-home", "confidence-under-shift")

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        return mk_mmd(a, b)


SHELVED = MkMmdAdaptation
