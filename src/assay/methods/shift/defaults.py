"""Defaults that nobody chose, each beside one alternative: the same network with one part of its last step exchanged.

    softmax   the last layer learns again under softmax: the control of the next two, which learn in the same way
    softRmax  under a polynomial head, unsure far from the data (nn/softrmax.py)
    t         under a head of Student-t densities, nu = 1 (nn/student_head.py)
    prior     the layer as it is, with classes taken to be equally common: z_c - log p(c), p(c) of the training data

A head learns on what enters the last layer, all inputs at once, by L-BFGS with a weight decay that is the same for all.

Source: Wang, TU Delft 2024, ch. 8 (assumptions that are sound in one field become defaults in another; softmax and
softRmax is its example); the prior: Menon et al., ICLR 2021, arXiv:2007.07314.
"""

from __future__ import annotations

import copy
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.uncertainty.activations import look
from assay.nn.softrmax import SoftRmax
from assay.nn.student_head import StudentHead

Default = Literal["softmax", "softRmax", "t", "prior"]
DEFAULTS: tuple[Default, ...] = get_args(Default)
DECAY = 1e-3
STEPS = 100
NU = 1.0


class LessPrior(nn.Module):
    """Logits less the logarithm of how common each class was."""

    prior: Tensor  # k

    def __init__(self, prior: Tensor) -> None:
        super().__init__()
        self.register_buffer("prior", prior)

    def forward(self, z: Tensor) -> Tensor:  # n k -> n k
        return z - self.prior


def is_last(model: nn.Module, head: str, x: Tensor) -> bool:
    """Whether what the module called `head` gives out is the model's answer: n *d."""
    seen = look(model, x, head)
    return seen.logits.shape == seen.features.shape and bool(torch.equal(seen.logits, seen.features))


def exchanged(model: nn.Module, head: str, default: Default, x: Tensor, y: Tensor) -> nn.Module:  # n *d, n
    """A copy of the model with this in the place of its last layer, learnt on these inputs."""
    last = model.get_submodule(head)
    if not isinstance(last, nn.Linear):
        raise AssayError(f"The last layer {head!r} is a {type(last).__name__}; another head needs an nn.Linear.")
    made = copy.deepcopy(model).eval()
    if default == "prior":
        counts = torch.bincount(y, minlength=last.out_features).double() + 1  # a class that is not seen is rare
        new: nn.Module = nn.Sequential(copy.deepcopy(last), LessPrior((counts / counts.sum()).log().to(last.weight)))
    else:
        z = look(model, x, head, entering=True).features
        tails: dict[Default, nn.Module] = {"softmax": nn.Identity(), "softRmax": SoftRmax(), "t": StudentHead(NU)}
        new = nn.Sequential(learnt(z, y.to(z.device), last.out_features, tails[default]), tails[default])
    if not head:
        return new.eval()
    made.set_submodule(head, new)
    return made.eval()


def learnt(z: Tensor, y: Tensor, classes: int, tail: nn.Module) -> nn.Linear:  # n f, n
    """The linear layer under `tail` with the least cross-entropy and weight decay on these features.

    Features are brought to mean 0 and a common length for it, and the scaling goes into the layer after: what is found
    does not hang on their units. It starts at 0 but for a little noise, where a posterior is flat.
    """
    mean = z.mean(0)
    scale = (z - mean).square().sum(1).mean().sqrt().clamp_min(1e-12)
    u = (z - mean) / scale * z.shape[1] ** 0.5 / 4
    layer = nn.Linear(z.shape[1], classes).to(z)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        layer.weight.copy_(1e-3 * torch.randn(layer.weight.shape, generator=draw))
        layer.bias.zero_()
    rule = torch.optim.LBFGS(layer.parameters(), max_iter=STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        rule.zero_grad()
        loss = F.cross_entropy(tail(layer(u)), y) + DECAY * layer.weight.square().sum()
        torch.autograd.backward(loss)
        return loss

    with torch.enable_grad():
        rule.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        factor = z.shape[1] ** 0.5 / 4 / scale
        layer.weight.mul_(factor)
        layer.bias.sub_(layer.weight @ mean)
    return layer.requires_grad_(False)
