r"""Batch normalisation folded into the layer before it: fewer kernels, the same answers.

    BN(W x + b) = W' x + b',     s = gamma / sqrt(var + eps),     W' = s W,     b' = s (b - mean) + beta

in eval mode, where mean and variance stand still. torch.fx reads which layer feeds which; of a model that it cannot
read as a whole it reads the parts. A copy is folded, and answers for itself: where it does not say what the model says,
it is left as it was.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
CLOSE = 1e-3  # of the largest answer: what rounding in another order may change


def folded(model: nn.Module, x: Tensor) -> nn.Module:  # n *d
    """A copy of a model in eval mode, folded where it answers to `x` as the model does, and else as it is.

    A model that is in training, or random, must not come here. One that cannot be copied raises what copying raises.
    """
    try:
        found = list(pairs(copy.deepcopy(model)))  # of another copy: a model may keep what a tracer shows it
        twin = _fold(copy.deepcopy(model), found)
        with torch.no_grad(), whole_float32():
            if _alike(model(x), twin(x)):
                return twin
    except Exception:  # whatever a stranger's model does when it is traced or taken apart
        pass
    return copy.deepcopy(model)


@contextmanager
def whole_float32() -> Iterator[None]:
    """Inside, no factor of a convolution or a product is rounded on a GPU, and no autocast is on."""
    kernels: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    rounded = [kernel.allow_tf32 for kernel in kernels]
    try:
        for kernel in kernels:
            kernel.allow_tf32 = False
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for kernel, was in zip(kernels, rounded, strict=True):
            kernel.allow_tf32 = was


def pairs(model: nn.Module, within: str = "") -> Iterator[tuple[str, str]]:
    """Names of modules that are called once each, the second with nothing but what the first gives, which nobody else
    takes."""
    try:
        graph = fx.Tracer().trace(model)
    except Exception:
        for name, child in model.named_children():
            yield from pairs(child, f"{within}{name}.")
        return
    called = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    for node in graph.nodes:
        before = node.args[0] if node.op == "call_module" and len(node.args) == 1 and not node.kwargs else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        if called[str(node.target)] == called[str(before.target)] == 1:
            yield f"{within}{before.target}", f"{within}{node.target}"


def _fold(model: nn.Module, found: list[tuple[str, str]]) -> nn.Module:
    for first, second in found:
        layer, norm = model.get_submodule(first), model.get_submodule(second)
        if not _foldable(layer, norm):
            continue
        assert isinstance(norm, NORMS)
        fused = fuse_linear_bn_eval(layer, norm) if isinstance(layer, nn.Linear) else fuse_conv_bn_eval(layer, norm)  # type: ignore[type-var]
        model.set_submodule(first, fused)
        model.set_submodule(second, nn.Identity())
    return model


def _foldable(layer: nn.Module, norm: nn.Module) -> bool:
    """Of torch's own kinds and no kind made of them, with running moments and without hooks."""
    if type(norm) not in NORMS or norm.training or norm.running_mean is None or norm.running_var is None:
        return False
    if hooked(layer) or hooked(norm):
        return False
    if type(layer) is nn.Linear:
        return layer.out_features == norm.num_features
    return type(layer) in CONVOLUTIONS


def hooked(module: nn.Module) -> bool:
    """Whether somebody hangs on to this module, who would see or change what passes."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind, None) for kind in kinds)


def _alike(said: object, wanted: object) -> bool:
    if not isinstance(said, Tensor) or not isinstance(wanted, Tensor) or said.shape != wanted.shape:
        return False
    return bool(((said - wanted).abs() <= CLOSE * wanted.abs().max()).all())
