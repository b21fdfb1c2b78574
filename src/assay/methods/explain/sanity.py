r"""Does a map need the model? Where chance replaces weights or labels, a map that tells about the model must change.

    cascade        initialise the last layer anew, then the last two, ... down to the first
    independent    initialise one layer anew at a time, the others as trained
    labels         train the same network anew on shuffled labels: it can learn them by heart and nothing else

Each time the map is compared with the trained model's own. What the likeness means, two more maps tell: that of the
same network trained from another seed (equally good, so as alike as can be hoped for), and an edge detector, which
never sees a model and has to be found out by the same rule.

Source: Adebayo et al., NeurIPS 2018, arXiv:1810.03292, sec. 3 and 4 (both randomisations, Spearman's rank correlation
    with and without sign, SSIM, edge detectors). The seed and the rule of `needs_the_model` are not in print: there
    curves are looked at. The rule is about the likeness without signs: new weights turn the signs of a map over as they
    please, and a map that only does that still shows where the input is and nothing of the model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError
from assay.methods.explain.twins import map_distance
from assay.methods.train.fit import Rows, fit, reset

Explain = Callable[[nn.Module, Tensor], Tensor]  # (model, n *d) -> n *d; the same draws at every call
Train = Callable[[nn.Module, Rows], object]  # trains in place
Needs = Literal["needs the model", "does not need the model", "cannot tell"]
CONFIDENCE = 0.95
AT_ONCE = 128  # inputs, where their labels alone are wanted
HALF = 0.5  # of the likeness that a twin from another seed has: what a map must lose
ALIKE = 0.1  # a likeness to the other seed below it leaves nothing to lose


class Randomised(NamedTuple):
    """A model some of whose layers were initialised anew."""

    layer: str  # the last one to be so
    model: nn.Module


class Likeness(NamedTuple):
    """How alike two maps of each input are; 1 for equal ones."""

    signed: Tensor  # n, Spearman's rank correlation of the values, summed over channels
    absolute: Tensor  # n, the same of |values|
    ssim: Tensor | None  # n, structural similarity of |values|; None where inputs are no images


class Verdict(NamedTuple):
    """Whether a map needs the model, and the interval that says so."""

    says: Needs
    excess: float  # mean of likeness after randomising - HALF x likeness of the other seed
    low: float
    high: float
    n: int


def layers(model: nn.Module, x: Tensor) -> list[tuple[str, ...]]:
    """Names of the modules with weights in the order in which they run; a normalisation goes with the layer before it.

    A layer is a module with a weight of two dimensions or more; those with vectors alone (normalisations) join it.
    """
    if any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        raise AssayError("Layers of a TorchScript program cannot be taken apart, so none can be drawn anew.")
    ran: list[str] = []

    def note(name: str) -> Any:
        return lambda *_: ran.append(name) if name not in ran else None

    own = {name: m for name, m in model.named_modules() if next(m.parameters(recurse=False), None) is not None}
    handles = [module.register_forward_hook(note(name)) for name, module in own.items()]
    try:
        with torch.no_grad():
            model(x[:1])
    finally:
        for handle in handles:
            handle.remove()
    found: list[tuple[str, ...]] = []
    for name in ran:
        heavy = any(p.ndim > 1 for p in own[name].parameters(recurse=False))
        if heavy or not found:
            found.append((name,))
        else:
            found[-1] += (name,)
    if not found:
        raise AssayError("The model has no module with weights that runs, so there is nothing to randomise.")
    return found


def randomised(model: nn.Module, x: Tensor, *, rng: torch.Generator, independent: bool = False) -> Iterator[Randomised]:
    """Copies whose layers are initialised anew, from the last one down; with `independent`, one layer in each.

    A cascade keeps what it has drawn: each copy has one more new layer than the one before, and the last has no other.
    """
    changed = copy.deepcopy(model)
    for names in reversed(layers(model, x)):
        if independent:
            changed = copy.deepcopy(model)
        for name in names:
            fresh = reset(changed.get_submodule(name), rng)
            if not name:
                changed = fresh  # the model is one layer
            else:
                changed.set_submodule(name, fresh)
        yield Randomised(names[0], copy.deepcopy(changed).eval())


class Shuffled:
    """A data set whose labels have changed places."""

    def __init__(self, data: Rows, rng: torch.Generator) -> None:
        self.data = data
        parts = [data.take(np.arange(at, min(at + AT_ONCE, len(data))))[1] for at in range(0, len(data), AT_ONCE)]
        order = torch.randperm(len(data), generator=rng, device=rng.device).cpu()
        self.labels = torch.cat([torch.as_tensor(y) for y in parts])[order]

    def __len__(self) -> int:
        return len(self.data)

    def take(self, index: NDArray[Any], /) -> tuple[Tensor | NDArray[Any], Tensor]:
        return self.data.take(index)[0], self.labels[torch.as_tensor(index)]


def retrained(
    model: nn.Module,
    data: Rows,
    *,
    labels: Literal["true", "shuffled"],
    rng: torch.Generator,
    train: Train | None = None,
    epochs: int = 5,
    lr: float = 0.05,
) -> nn.Module:
    """The same network from new weights: on true labels the baseline of another seed, on shuffled ones the test.

    `train` does it in place; without one, `fit` with these epochs and this rate on the device of the model.
    """
    fresh = reset(model, rng)
    rows = data if labels == "true" else Shuffled(data, rng)
    if train is not None:
        train(fresh, rows)
    else:
        device = next((p.device for p in fresh.parameters()), torch.device("cpu"))
        fit(fresh, rows, epochs=epochs, lr=lr, rng=rng, device=device)
    return fresh.eval()


def likeness(a: Tensor, b: Tensor) -> Likeness:
    """How alike two maps of each input are: n *d, n *d -> Likeness. A constant map is like nothing but another one."""
    if a.shape != b.shape or a.ndim < 2:
        raise ShapeError(f"Maps of shape {tuple(a.shape)} and {tuple(b.shape)} cannot be compared; give n *d twice.")
    plain = (_flat(a), _flat(b))
    heat = (_flat(a.abs()), _flat(b.abs()))
    signed, absolute = (1 - map_distance(p[:, None], q[:, None], "spearman") for p, q in (plain, heat))
    ssim = 1 - map_distance(a.abs().sum(1), b.abs().sum(1), "ssim") if a.ndim == 4 else None
    return Likeness(signed, absolute, ssim)


def _flat(values: Tensor) -> Tensor:  # n *d -> n f, channels of an image added up
    return (values.sum(1) if values.ndim == 4 else values).flatten(1)


def curve(
    model: nn.Module, x: Tensor, explain: Explain, *, rng: torch.Generator, independent: bool = False
) -> list[tuple[str, Likeness]]:
    """How alike the maps stay while one layer after the other is randomised: the layer, and the likeness."""
    own = explain(model, x)
    return [
        (step.layer, likeness(own, explain(step.model, x)))
        for step in randomised(model, x, rng=rng, independent=independent)
    ]


def needs_the_model(after: Tensor, seed: Tensor | None = None, *, confidence: float = CONFIDENCE) -> Verdict:
    r"""Whether a map needs the model, from likenesses to the trained model's map: n, n -> Verdict.

    `after` is that of the randomised model's map, `seed` that of the same network trained from another seed (1 where
    there is none: the map itself). With e_i = after_i - seed_i / 2 and Student's interval of its mean,

        needs the model           e < 0:  chance in the model costs more than half of what another seed keeps
        does not need the model   e > 0
        cannot tell               the interval holds 0, or another seed keeps no more than 0.1 either (the interval of
                                  seed is not above it), so that there is nothing to lose
    """
    n = len(after)
    other = torch.ones_like(after) if seed is None else seed
    if after.ndim != 1 or n < 2 or other.shape != after.shape:
        raise ShapeError(
            f"needs_the_model takes one likeness per input, two inputs at least, got {tuple(after.shape)} and "
            f"{tuple(other.shape)}."
        )
    if not 0 < confidence < 1:
        raise AssayError(f"A confidence lies between 0 and 1, got {confidence}.")
    excess, low, high = _interval(after - HALF * other, confidence)
    if _interval(other, confidence)[1] <= ALIKE or low <= 0 <= high:
        return Verdict("cannot tell", excess, low, high, n)
    return Verdict("needs the model" if high < 0 else "does not need the model", excess, low, high, n)


def map_needs_the_model(after: Likeness, seed: Likeness | None = None, *, confidence: float = CONFIDENCE) -> Verdict:
    """`needs_the_model` of maps, signs left out: the one rule of the probe and of the page of an explained input."""
    return needs_the_model(after.absolute, None if seed is None else seed.absolute, confidence=confidence)


def by_word(values: Tensor) -> Tensor:
    """A map of embedded texts as a reader has it, a word's entries added up; any other as it is: n L m -> n L."""
    return values.sum(2) if values.ndim == 3 else values


def _interval(values: Tensor, confidence: float) -> tuple[float, float, float]:
    """Mean, and Student's interval of it."""

    from scipy.stats import t as student

    v = values.double()
    mean, error = float(v.mean()), float(v.std()) / len(v) ** 0.5
    reach = float(student.ppf((1 + confidence) / 2, len(v) - 1)) * error
    return mean, mean - reach, mean + reach
