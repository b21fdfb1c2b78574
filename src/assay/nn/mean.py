"""A random net with its noise at its mean: every Gaussian at its centre, every coin at its chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

AT_MEAN: dict[str, float] = {"randn": 0.0, "randn_like": 0.0, "rand": 0.5, "rand_like": 0.5}
"""Fresh tensors of noise, and what their values are on average."""


class AtMean(TorchFunctionMode):
    """Inside, torch's random functions give the mean of what they draw: normal noise 0, uniform 1/2, a coin its chance.

    Dropout hands on what it gets. What draws whole numbers or an order (randint, randperm, multinomial) has no mean
    that could stand in, and draws as ever.
    """

    def __torch_function__(  # type: ignore[override]
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        if name in AT_MEAN:
            return torch.zeros_like(func(*args, **kwargs)) + AT_MEAN[name]
        if name == "normal" and (args or "mean" in kwargs):
            mean, drawn = args[0] if args else kwargs["mean"], func(*args, **kwargs)
            return mean + 0 * drawn if isinstance(mean, Tensor) else drawn.fill_(mean)
        given = [*args[:1], *(kwargs[word] for word in ("input", "tensor", "self") if word in kwargs)]
        if not given or not isinstance(given[0], Tensor):
            return func(*args, **kwargs)
        x, rest = given[0], args[1:]  # nn.init calls by keyword
        if name == "normal_":
            return x.fill_(rest[0] if rest else kwargs.get("mean", 0.0))
        if name == "uniform_":
            low = rest[0] if rest else kwargs.get("from", kwargs.get("a", 0.0))
            high = rest[1] if len(rest) > 1 else kwargs.get("to", kwargs.get("b", 1.0))
            return x.fill_((low + high) / 2)
        if name == "bernoulli":
            chance = rest[0] if rest else kwargs.get("p")
            return x.clone() if chance is None else torch.full_like(x, chance)
        if name == "bernoulli_":
            chance = rest[0] if rest else kwargs.get("p", 0.5)
            return x.copy_(chance) if isinstance(chance, Tensor) else x.fill_(chance)
        if "dropout" in name and not name.startswith("native"):  # those also give a mask
            return x
        return func(*args, **kwargs)


class MeanNet(nn.Module):
    """A random net as the one net in the middle of those that it draws: weights at their means, noise at 0.

    That is no mean of its answers, and no bound on them: it is a net without noise whose gradients point where the
    random one's do on average, for an attack that is then judged on the random one.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.training = net.training

    def forward(self, x: Tensor) -> Tensor:  # n *d -> n *o
        with AtMean():
            out: Tensor = self.net(x)
        return out


@torch.no_grad()
def is_steady(net: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether two passes over the same inputs say the same, up to rounding; one that breaks does not: n *d."""
    try:
        first, second = net(x), net(x)
    except Exception:  # a stranger's code, which draws in some way that has no mean
        return False
    return bool(((first - second).abs() <= 1e-4 * first.std()).all())
