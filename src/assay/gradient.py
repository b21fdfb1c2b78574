"""Whether a gradient leads from what a model says to what it was shown: read off the way back, none is taken."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn

Gradient = Literal["leads", "none", "refused"]
"""It leads, there is none, or the model fails where one is asked for: on its way there or on its way back."""


def _comes_from(out: Tensor, at: Tensor) -> bool:
    """Whether the way back from one value to the other has a derivative at each step, and what each step kept for it.

    None is taken: a process that took one cannot be forked into processes that do. What was written over meanwhile is
    an error where it is read, which is what taking one would end in.
    """
    ahead: list[Any] = [out.grad_fn]
    seen: set[Any] = set()
    start = None
    after: dict[Any, list[Any]] = {}
    while ahead:
        node = ahead.pop()
        if node is None or node in seen or node.name() == "NotImplemented":
            continue
        if getattr(node, "variable", None) is at:
            start = node
        seen.add(node)
        for before, _ in node.next_functions:
            after.setdefault(before, []).append(node)
            ahead.append(before)
    if start is None:
        return False
    ahead, seen = [start], set()
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += after.get(node, [])
            for kept in dir(node):
                if kept.startswith("_saved_") or kept == "saved_tensors":
                    getattr(node, kept)
    return True


def gradient_of(model: nn.Module, x: Tensor) -> Gradient:  # 1 *d
    """Asked of a copy, as what a pass leaves in the model would carry a gradient too.

    What fails without gradients as well ails of something else, and is told where it is asked.
    """
    if not x.is_floating_point():
        return "leads"
    try:
        model = copy.deepcopy(model)
    except Exception:  # whatever cannot be copied is asked itself
        modes = [(m, m.training) for m in model.modules()]
    else:
        modes = []
    x = x.to(next((t.device for t in model.state_dict().values()), torch.device("cpu")))
    at = x.clone().requires_grad_()
    try:
        for m in model.modules():
            m.training = False
        with torch.random.fork_rng(devices=[]):
            try:
                with torch.enable_grad():
                    out = model(at.clone())  # what it is given may be changed in place
                    return "leads" if not isinstance(out, Tensor) or _comes_from(out, at) else "none"
            except Exception:
                with torch.no_grad():
                    model(x.clone())
                return "refused"
    except Exception:
        return "leads"
    finally:
        for m, mode in modes:
            m.training = mode
