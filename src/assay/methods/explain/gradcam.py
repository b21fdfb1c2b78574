"""GradCAM: the maps of a convolutional layer, weighted by the slope of a class's score."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.explain.spoken import is_class, number, refuse_beyond
from assay.nn.inner import inner_points

Score = Literal["logit", "softmax", "centred"]
BATCH = 256  # inputs in one pass


class CAM(NamedTuple):
    """The parts of a GradCAM explanation, one row per input."""

    alpha: Tensor  # n k, the weight of each map
    maps: Tensor  # n k h w, A

    def heat(self, *, relu: bool = True, keep: Tensor | None = None) -> Tensor:  # -> n h w
        """sum_k alpha_k A^k over all maps or those that `keep` (k, bool) names, its negative part cut off by `relu`."""
        alpha = self.alpha if keep is None else self.alpha * keep
        total = torch.einsum("nk,nkhw->nhw", alpha, self.maps)
        return total.relu() if relu else total


def gradcam(
    model: nn.Module,
    x: Tensor,
    layer: str,
    *,
    target: Tensor | None = None,
    score: Score = "logit",
    batch: int = BATCH,
) -> CAM:
    r"""The maps A that the module `layer` gives out, and their weights for the class `target`: n *d, n -> CAM.

        alpha_k^c = (1/N_A) sum_ij  d s^c / d A^k_ij,        I^c = ReLU( sum_k alpha_k^c A^k )

    `target` is one class per input, by default the likeliest, or weights of the answers' entries, n *o (spoken.py), of
    which s is the weighted sum. `score` s^c is the `logit` y^c, the probability
    `softmax(y)_c`, or the `centred` logit y^c - mean_j y^j. The last two do not see what is added to all logits alike.
    It computes in the type that model and inputs have; give both in float64 where channels differ by many orders of
    magnitude. Parameters collect no gradients.

    Source: Selvaraju et al., ICCV 2017, arXiv:1610.02391, eq. 1 and 2; the centred score answers Viering, Wang, Loog
        and Eisemann, BMVC workshops 2019, whose tampering adds one number to every logit.
    """
    if score not in get_args(Score):
        raise AssayError(f"GradCAM got score={score!r}; choose one of {', '.join(get_args(Score))}.")
    if model.training:
        raise AssayError("The model is in training mode, where one input changes another's map; call model.eval().")
    if len(x) == 0:
        raise AssayError("GradCAM got no inputs; give at least one.")
    if target is not None and (target.shape != (len(x),) if is_class(target) else len(target) != len(x)):
        raise ShapeError(
            f"GradCAM got targets of shape {tuple(target.shape)} for {len(x)} inputs; give one class each."
        )
    pieces = torch.split(x, batch)
    wanted = [None] * len(pieces) if target is None else torch.split(target, batch)
    parts = [_part(model, rows, layer, t, score) for rows, t in zip(pieces, wanted, strict=True)]
    return CAM(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _part(model: nn.Module, x: Tensor, layer: str, target: Tensor | None, score: Score) -> tuple[Tensor, Tensor]:
    caught: list[Tensor] = []

    def cut(module: nn.Module, given: Any, out: Any) -> Tensor:
        if not isinstance(out, Tensor) or out.ndim != 4:
            what = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ShapeError(f"Module {layer!r} gave {what}; GradCAM wants maps n k h w: name a convolutional layer.")
        caught.append(out.detach().requires_grad_())
        return caught[-1].clone()  # the next module may write in place

    with torch.enable_grad():
        handle = named(model, layer).register_forward_hook(cut)
        try:
            y: Tensor = model(x)
        finally:
            handle.remove()
        if len(caught) != 1:
            raise AssayError(f"Module {layer!r} ran {len(caught)} times in a forward pass; name one that runs once.")
        if not y.requires_grad:
            raise SubjectError(
                f"No gradient leads from the answers to {layer!r}; GradCAM needs a differentiable model."
            )
        if target is None:
            target = y.argmax(1)
        of = y
        if is_class(target):
            refuse_beyond(int(target.min()), int(target.max()), y.shape[1])
            of = y.softmax(1) if score == "softmax" else y - y.mean(1, keepdim=True) if score == "centred" else y
        (slope,) = torch.autograd.grad(number(of, target).sum(), caught[0])
    return slope.mean((2, 3)), caught[0].detach()


def normalise(heat: Tensor) -> Tensor:  # n h w -> n h w
    """I / max |I|; a map that is zero everywhere stays so."""
    top = heat.abs().amax((1, 2), keepdim=True)
    return torch.where(top > 0, heat / torch.where(top > 0, top, 1), 0)


def named(model: nn.Module, layer: str) -> nn.Module:
    """The module of that name, or an error that tells what there is."""
    modules = {name: module for name, module in model.named_modules() if name}
    if layer not in modules:
        near = get_close_matches(layer, modules, 3, 0) or ["another"]
        raise AssayError(f"The model has no module {layer!r}; did you mean {' or '.join(near)}?")
    found: nn.Module = modules[layer]
    return found


def last_maps(model: nn.Module, x: Tensor) -> str:
    """The module whose output GradCAM explains: the last convolution's maps after batch normalisation, shortcut and
    non-linearity and before pooling, as far as these are modules.

    Of the modules that finish after the last convolution, it is the last before the shape of the output changes.
    """
    done: list[tuple[str, nn.Module, tuple[int, ...]]] = []

    def note(name: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, given: Any, out: Any) -> None:
            done.append((name, module, tuple(out.shape) if isinstance(out, Tensor) else ()))

        return module.register_forward_hook(hook)

    handles = [note(name, module) for name, module in inner_points(model) if name]
    try:
        with torch.no_grad():
            model(x[:1])
    finally:
        for handle in handles:
            handle.remove()
    convolutions = [i for i, (_, module, _) in enumerate(done) if isinstance(module, nn.Conv2d)]
    if not convolutions:
        raise AssayError("The model has no convolutional layer (Conv2d) that maps each input; GradCAM needs a CNN.")
    last = convolutions[-1]
    found, _, shape = done[last]
    for name, _, other in done[last:]:
        if other != shape:
            break
        found = name
    return found
