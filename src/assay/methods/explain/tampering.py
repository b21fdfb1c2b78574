"""Signs that a network was built to mislead its explanations. Each is a number with the limit above which it alarms.

Each stands alone: one that a network does not allow (no Linear behind the maps, answers that are probabilities, no
maps at all) says why, and the others are read all the same. The limits lie in the gap between untouched networks and
tampered ones; the tests hold several of either to them. No sign alone sees every kind: a constant map shows in the
maps, a sawtooth in the slopes, a trigger that sleeps only in a slope that all classes share or that a step does not
confirm.

Source: the attacks are those of Viering, Wang, Loog and Eisemann, BMVC workshops 2019 (surgery.py); the signs follow
from how they work and are not in print, but for the remark that constant maps are easily seen.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.explain.gradcam import CAM, gradcam, named, normalise
from assay.methods.explain.surgery import linear_after

CONSTANT = 1e-9  # a map whose values move by less than this part of its height is constant (float64)
PATHS, STEPS = 16, 32  # inputs of which completeness is asked, and steps on the way to each: what costs most here
NUDGE = 0.01  # of the usual height of a map: the step that should confirm a slope
ROUNDING = 1e3  # times the spacing of numbers at a score: a step below it is rounding and confirms nothing
LARGEST = 1e12  # scores end here: a ratio over nothing is as large as one likes


class Sign(NamedTuple):
    """One number that tampering raises, None where it cannot be had and then `why`. `channels` are the maps that it
    points at."""

    name: str
    score: float | None
    threshold: float
    means: str
    channels: tuple[int, ...] = ()
    why: str = ""

    @property
    def alarm(self) -> bool:
        return self.score is not None and self.score > self.threshold


class Look(NamedTuple):
    """What the signs read: the maps of a layer and their weights for the likeliest class, in float64."""

    maps: Tensor  # n k h w
    alpha: Tensor  # n k, slopes of the logit
    common: Tensor  # n k, slopes of the mean of all logits
    normal: bool = False  # the answers are probabilities, or their logarithms

    def cam(self) -> CAM:
        return CAM(self.alpha, self.maps)


def tampering(model: nn.Module, layer: str | None, x: Tensor, *, random: bool = False) -> tuple[Sign, ...]:
    """All signs, for the maps that the module `layer` gives for inputs `x` (at least two, different ones).

    `layer` is None where the network has no maps, `random` says that two passes differ. Works on a copy in float64, as
    far as the network allows: beside a map of height 1e6 the residue of a float32 slope looks like an explanation.
    """
    if len(x) < 2:
        raise AssayError(f"Signs of tampering compare inputs; got {len(x)}, give at least 2.")
    net, x = twin(model, x)

    @cache
    def seen() -> Look:
        return look(net, layer, x)

    def still(sign: Callable[[], Sign]) -> Sign:
        if random:
            raise AssayError("the answers are random, and it compares slopes with steps of one function")
        return sign()

    signs: dict[str, Callable[[], Sign]] = {
        "constant channels": lambda: constant_channels(seen()),
        "outlying columns": lambda: outlying_columns(net, layer or "", x, seen()),
        "channel scale": lambda: channel_scale(seen()),
        "maps that do not vary": lambda: unvarying_maps(seen()),
        "completeness": lambda: still(lambda: completeness(net, x[:PATHS])),
        "logit against probability": lambda: logit_against_probability(seen()),
        "slope against step": lambda: still(lambda: slope_against_step(net, layer or "", x, seen())),
    }
    return tuple(_alone(name, sign) for name, sign in signs.items())


def twin(model: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
    """A copy in float64 with its inputs, or in its own type where some part of it cannot do other."""
    net = copy.deepcopy(model).double()
    try:
        with torch.no_grad():
            net(x[:1].double())
    except RuntimeError:  # a constant in forward that is no buffer: two types meet
        return copy.deepcopy(model), x
    return net, x.double()


def _alone(name: str, find: Callable[[], Sign]) -> Sign:
    """A sign, or why there is none: what one of them cannot do takes nothing from the others."""
    try:
        sign = find()
    except (AssayError, RuntimeError) as e:  # ours, and torch's where no gradient leads through the network
        return Sign(name, None, math.inf, "", why=str(e).splitlines()[0].rstrip("."))
    if sign.score is None or math.isnan(sign.score):
        return Sign(name, None, math.inf, "", why="its score is not a number: the network gives NaN on the way to it")
    return sign._replace(score=min(sign.score, LARGEST))


def look(model: nn.Module, layer: str | None, x: Tensor) -> Look:
    if layer is None:
        raise AssayError("it is read off a convolution's maps, and no convolution (Conv2d) of the model gives any")
    logit, centred = (gradcam(model, x, layer, score=score) for score in ("logit", "centred"))
    with torch.no_grad():
        y: Tensor = model(x)
    normal = _probabilities(y) or _probabilities(y.exp())
    return Look(logit.maps, logit.alpha, logit.alpha - centred.alpha, normal)


def _probabilities(y: Tensor) -> bool:  # n c
    return bool((y >= 0).all() and ((y.sum(1) - 1).abs() < 1e-4).all())


def constant_channels(seen: Look) -> Sign:
    r"""The part of the heat map, sum_k |alpha_k A^k|, that comes from maps which no input changes.

    A map that is dead or that training has flattened adds little, so that it raises no alarm. T1 and T2 reach 1.
    """
    height = seen.maps.abs().amax((0, 2, 3))  # k
    moves = (seen.maps - seen.maps[:1]).abs().amax((0, 2, 3))
    exact = max(CONSTANT, 8 * torch.finfo(height.dtype).eps)
    constant = (moves <= exact * height) & (height > 0)
    mass = (seen.alpha[:, :, None, None] * seen.maps).abs().sum((2, 3))  # n k
    part = mass[:, constant].sum() / mass.sum().clamp_min(torch.finfo(mass.dtype).tiny)
    return Sign(
        "constant channels", float(part), 0.5,
        "Most of the heat map is painted by maps that are the same for every input.",
        tuple(constant.nonzero()[:, 0].tolist()),
    )  # fmt: skip


def outlying_columns(model: nn.Module, layer: str, x: Tensor, seen: Look) -> Sign:
    """The largest weight of a map in the first Linear, as a multiple of the median: the norm of its columns times the
    map's height, which a harmless rescaling of the map leaves alone."""
    linear = model.get_submodule(linear_after(model, layer, x))
    assert isinstance(linear, nn.Linear)
    height = seen.maps.abs().amax((0, 2, 3))  # k
    if linear.in_features % len(height):
        raise AssayError(
            f"the first Linear takes {linear.in_features} numbers, which are no whole number for each of "
            f"{len(height)} maps: its columns belong to none"
        )
    norms = linear.weight.detach().reshape(linear.out_features, len(height), -1).norm(dim=(0, 2))  # k
    return _largest(
        "outlying columns", norms * height, 20.0, "The first linear layer weighs one map as no training would."
    )


def channel_scale(seen: Look) -> Sign:
    """The largest value of a map as a multiple of the median map's; T1 and T2 need not be that high."""
    return _largest(
        "channel scale", seen.maps.abs().amax((0, 2, 3)), 1e3, "One map is thousands of times as high as the others."
    )


def _largest(name: str, sizes: Tensor, threshold: float, means: str) -> Sign:
    """The largest of k sizes over the median of those that are not zero."""
    if len(sizes) < 2:
        raise AssayError("there is one map, and no other to compare it with")
    alive = sizes[sizes > 0]
    ratio = sizes / (alive.median() if len(alive) else 1.0)
    return Sign(name, float(ratio.max()), threshold, means, tuple((ratio > threshold).nonzero()[:, 0].tolist()))


def unvarying_maps(seen: Look) -> Sign:
    """The mean cosine between the heat maps of two inputs; a pair of maps that are zero everywhere counts as equal."""
    if seen.maps[0, 0].numel() == 1:
        raise AssayError("a map is a single number here, and a picture of one pixel cannot vary")
    heat = normalise(seen.cam().heat()).flatten(1)  # n m
    size = heat.norm(dim=1, keepdim=True)
    unit = heat / torch.where(size > 0, size, 1)
    zero = size[:, 0] == 0
    alike = unit @ unit.T + (zero[:, None] & zero).to(unit)
    n = len(alike)
    mean = (alike.sum() - alike.diagonal().sum()) / (n * (n - 1))
    return Sign("maps that do not vary", float(mean), 0.99, "Whatever the input, the heat map is the same picture.")


def completeness(model: nn.Module, x: Tensor, *, steps: int = STEPS) -> Sign:
    r"""How far integrated gradients miss what they must add up to, as a multiple of it (the median input's).

        | sum_i x_i (1/m) sum_t d y^c/d x_i (t x / m)  -  ( y^c(x) - y^c(0) ) |,      t = 1/2, 3/2, ..., m - 1/2

    The gap closes as the steps grow, unless slopes do not belong to the heights, as on a sawtooth: there each
    gradient is huge and leads nowhere. T1 and T2 keep completeness, and T4 does while its sticker is away. Of
    probabilities the logarithm is taken, for they may rise within one step.

    Source: Sundararajan, Taly and Yan, ICML 2017, arXiv:1703.01365 (the axiom).
    """
    with torch.no_grad():
        y: Tensor = model(x)
        start: Tensor = model(torch.zeros_like(x[:1]))
    log = _probabilities(y)
    y, start = (_logarithm(part) if log else part for part in (y, start))
    if not bool(start.isfinite().all()):
        raise AssayError("the path to an input begins at zeros, where the network gives NaN or infinity")
    top = y.argmax(1, keepdim=True)
    rise = (y - start).gather(1, top)[:, 0]
    total = torch.zeros_like(rise)
    for step in range(steps):
        at = (x * ((step + 0.5) / steps)).requires_grad_()
        with torch.enable_grad():
            answers = model(at)
            score = (_logarithm(answers) if log else answers).gather(1, top).sum()
            if not score.requires_grad:
                raise AssayError("no gradient leads from the answers to the inputs")
            (slope,) = torch.autograd.grad(score, at)
        total += (slope * x).flatten(1).sum(1) / steps
    typical = rise.abs().mean().clamp_min(torch.finfo(rise.dtype).tiny)
    return Sign(
        "completeness", float((total - rise).abs().median() / typical), 1.0,
        "Gradients along a path do not add up to the change of the score: slopes and heights are not of one function.",
    )  # fmt: skip


def _logarithm(p: Tensor) -> Tensor:  # n c -> n c
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()


def logit_against_probability(seen: Look) -> Sign:
    r"""The slope that all logits share, as a multiple of what tells the class from the others: the median over inputs.

        max_k | mean_j alpha_k^j |  /  max_k | alpha_k^c - mean_j alpha_k^j |

    A slope common to all classes moves no probability, yet enters a GradCAM of logits. T3 and T4 add nothing but such
    a slope, so do T1 and T2 with their sign mended or in a net with one Linear.
    """
    common, own = seen.common.abs().amax(1), (seen.alpha - seen.common).abs().amax(1)  # n
    if seen.normal:
        raise AssayError(
            "the answers are probabilities or their logarithms: what is added to all logits alike does not reach them"
        )
    ratio = (common / own.clamp_min(torch.finfo(own.dtype).tiny)).median()
    threshold = 20.0
    many = seen.common.abs().median(0).values > threshold * own.median()
    return Sign(
        "logit against probability", float(ratio), threshold,
        "A map raises all logits alike: it paints GradCAM's map and has no say in any probability.",
        tuple(many.nonzero()[:, 0].tolist()),
    )  # fmt: skip


def slope_against_step(model: nn.Module, layer: str, x: Tensor, seen: Look) -> Sign:
    r"""Whether the steepest map's slope is borne out when the map is raised: the median input's relative miss.

        | N_A alpha_k h  -  ( y^c(A^k + h) - y^c(A^k) ) |  /  | N_A alpha_k h |,     k the map with the largest |alpha|

    h is a hundredth of a map's usual height: small for a layer of ReLUs, many periods of a sawtooth.
    """
    steepest = int(seen.alpha.abs().median(0).values.argmax())
    heights = seen.maps.abs().amax((0, 2, 3))
    alive = heights[heights > 0]
    h = NUDGE * float(alive.median()) if len(alive) else NUDGE

    def lift(module: nn.Module, given: Any, out: Tensor) -> Tensor:
        lifted = out.clone()
        lifted[:, steepest] += h
        return lifted

    with torch.no_grad():
        before: Tensor = model(x)
        handle = named(model, layer).register_forward_hook(lift)
        try:
            after: Tensor = model(x)
        finally:
            handle.remove()
    top = before.argmax(1, keepdim=True)
    found = (after - before).gather(1, top)[:, 0]
    promised = seen.alpha[:, steepest] * seen.maps[0, 0].numel() * h
    rounding = torch.finfo(before.dtype).eps * before.abs().amax(1).clamp_min(1)
    clear = promised.abs() > ROUNDING * rounding  # n: what a step can confirm
    if int(clear.sum()) * 2 < len(clear):
        raise AssayError("the slopes are so small that a step shows rounding: the score is flat, or saturated")
    miss = (promised - found)[clear].abs() / promised[clear].abs()
    return Sign(
        "slope against step", float(miss.median()), 0.5,
        "The score does not rise as its gradient says: the gradient is a decoration.", (steepest,),
    )  # fmt: skip
