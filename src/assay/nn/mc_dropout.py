"""MC-dropout: a net whose dropout stays on when it answers, so that several passes are several opinions."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from assay.errors import AssayError
from assay.nn.members import Drawn
from assay.nn.replaced import replaced

Drop = Callable[[Tensor, float, bool], Tensor]  # input, rate, whether to drop

DROPS: dict[type[nn.Module], Drop] = {
    nn.Dropout: F.dropout,
    nn.Dropout1d: F.dropout1d,
    nn.Dropout2d: F.dropout2d,
    nn.Dropout3d: F.dropout3d,
    nn.AlphaDropout: F.alpha_dropout,
    nn.FeatureAlphaDropout: F.feature_alpha_dropout,
}


def with_dropout(net: nn.Module, *, rate: float, draws: int) -> Drawn:
    r"""A copy of `net` with dropout before every weight layer, on in training and in eval mode alike.

        y = W (x * z / (1 - rate)) + b,   z_j ~ Bernoulli(1 - rate), anew for each input and pass;
        p(c | x)  ~  mean of `draws` softmaxes

    Source: Gal and Ghahramani, ICML 2016, arXiv:1506.02142, sec. 3 and 4. Weight layers are fully connected ones and
        convolutions of any kind; before a convolution single values are dropped, not channels.

    A net that has dropout layers of its own keeps their places, kinds and rates, and `rate` is not used. Everything
    else follows the mode as ever: in eval mode batch normalisation uses its running statistics, and an answer does not
    depend on the other inputs of its batch, but for the random numbers. Those come from torch's global generator, as in
    any dropout: seed it for the same draws again. Dropout that a `forward` calls as a function is not seen.
    """
    if not 0 <= rate < 1:
        raise AssayError(f"with_dropout got rate={rate}; it is the share that is dropped, at least 0 and below 1.")
    own = any(isinstance(module, _DropoutNd) and module.p > 0 for module in net.modules())

    def make(module: nn.Module) -> nn.Module | None:
        if own:
            drop = next((drop for kind, drop in DROPS.items() if isinstance(module, kind)), None)
            return AlwaysDropout(module.p, drop) if isinstance(module, _DropoutNd) and drop is not None else None
        # an attention's output layer is never called: its weights are read
        weighted = isinstance(module, nn.Linear | _ConvNd) and not isinstance(module, NonDynamicallyQuantizableLinear)
        return nn.Sequential(AlwaysDropout(rate), module) if weighted else None

    return Drawn(replaced(net, make, "dropout, fully connected layer or convolution"), draws)


class AlwaysDropout(nn.Module):
    """Dropout in eval mode too."""

    def __init__(self, rate: float, drop: Drop = F.dropout) -> None:
        super().__init__()
        self.rate, self.drop = rate, drop

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *d
        return self.drop(x, self.rate, True)

    def extra_repr(self) -> str:
        return f"{self.drop.__name__}, rate={self.rate:g}"  # type: ignore[attr-defined]
