"""What a network shows of its inputs: the answers, and what named modules inside it give out."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from assay.errors import AssayError, SubjectError

BATCH = 256  # inputs in one forward pass


class Seen(NamedTuple):
    """Inputs with what a network makes of them; one forward pass serves all scores of outliers.py."""

    inputs: Tensor  # n *d
    logits: Tensor  # n c
    features: Tensor  # n f


def look(model: nn.Module, x: Tensor, layer: str, *, entering: bool = False, batch: int = BATCH) -> Seen:
    """Logits, and the flattened output of the module called `layer`, or what enters it: n *d -> Seen."""
    seen = (shown(model, part, (layer,), entering=entering) for part in torch.split(x, batch))
    answers, inner = zip(*seen, strict=True)
    return Seen(x, torch.cat(answers), torch.cat([of[layer].flatten(1) for of in inner]))


def features(model: nn.Module, x: Tensor, layer: str, *, entering: bool = False, batch: int = BATCH) -> Tensor:
    """The output of the module called `layer`, or what enters it, in its own shape: n *d -> n *f."""
    parts = [shown(model, part, (layer,), entering=entering)[1][layer] for part in torch.split(x, batch)]
    return torch.cat(parts)


def shown(
    model: nn.Module, x: Tensor, layers: Sequence[str], *, entering: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """One forward pass without gradients: the answers n c, and per named module its output (or input) n *f."""
    if model.training:
        raise AssayError("The model is in training mode, where looking at it can change it; call model.eval() first.")
    if len(x) == 0:
        raise AssayError("Got no inputs to look at; give at least one.")
    modules = dict(model.named_modules())
    caught: dict[str, list[Any]] = {name: [] for name in layers}

    def catch(name: str, module: nn.Module, given: Any, output: Any) -> None:
        out = given[0] if entering and given else output
        # a copy, since a later module may write in place (ReLU(inplace=True) after a convolution)
        caught[name].append(out.detach().clone() if isinstance(out, Tensor) else out)

    handles = []
    try:
        for name in caught:
            if name not in modules:
                near = get_close_matches(name, [m for m in modules if m], 3, 0) or [m for m in modules if m][:3]
                raise AssayError(f"The model has no module {name!r}; did you mean {' or '.join(near) or 'another'}?")
            handles.append(modules[name].register_forward_hook(partial(catch, name)))
        with torch.no_grad():
            logits = model(x)
    finally:
        for handle in handles:
            handle.remove()
    for name, outputs in caught.items():
        if len(outputs) != 1:
            raise AssayError(f"Module {name!r} ran {len(outputs)} times in a forward pass; name one that runs once.")
        out = outputs[0]
        if not isinstance(out, Tensor) or out.ndim < 2 or len(out) != len(x):
            what = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise SubjectError(f"Module {name!r} gave {what} for {len(x)} inputs; it must give a tensor, a row each.")
    return logits, {name: outputs[0] for name, outputs in caught.items()}
