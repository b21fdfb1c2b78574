r"""Train a model that compares: jointly with its decoder, alone, on targets without meaning, or on a frozen encoder.

    t(A, B) = (V_A - V_B) / (2 (high - low)) + 1/2
    L = k (t - c)^2 + |A - p(e_A)|^2 + |B - p(e_B)|^2,     c = tail(e_A, e_B),   e = encoder(.),   p = decoder

Pairs are drawn uniformly at random, anew for each step. The image terms are sums over pixels; L is the mean over pairs.

Source: 'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 3.2 (target), 4.7
    (joint loss), 5.2.2 (frozen autoencoders), 5.2.3 (mirroring), 5.2.4 (simultaneous training).
Departs from print: the thesis draws a file of pairs once. It gives no optimiser, rate, k or start: here Adam with a
    cosine schedule, k by `balance`, and the decoder's last bias at the mean grey level, as a clamp that starts outside
    [0, 1] passes no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError
from assay.methods.train.fit import Curve, Loss, fit, reset
from assay.nn.siamese import Siamese

Targets = Literal["true", "shuffled pairs", "shuffled images"]
Form = Literal["plain", "unit norm", "variational"]
Progress = Callable[[int, float], None]  # (steps done, loss of the last)


@dataclass(frozen=True)
class Course:
    """How long and how fast to train, where, and who is told."""

    steps: int = 3000
    batch: int = 64
    lr: float = 1e-3
    progress: Progress | None = None
    device: torch.device | str = "cpu"


COURSE = Course()


def fit_ranker(
    model: Siamese,
    x: Tensor,
    values: ArrayLike | Tensor,
    *,
    low: float,
    high: float,
    rng: torch.Generator,
    k: float | None = None,
    targets: Targets = "true",
    comparison_only: bool = False,
    course: Course = COURSE,
) -> Curve:  # x: n *d;  values: n
    """Train encoder, tail and decoder together, in place; `comparison_only` leaves the decoder out and as it is.

    `targets`: "true"; "shuffled pairs" gives each pair the target of another of its batch, so that no order exists;
    "shuffled images" deals the values to the images once, so that an arbitrary order exists and can be learnt by heart.
    """
    v = _values(values, x, low, high)
    if targets not in get_args(Targets):
        raise AssayError(f"fit_ranker got targets={targets!r}; it knows {', '.join(get_args(Targets))}.")
    if targets == "shuffled images":
        v = v[torch.randperm(len(v), generator=rng)]

    def target(rows: Tensor) -> Tensor:  # b 2 -> b
        first, second = v[rows].T
        t: Tensor = (first - second) / (2 * (high - low)) + 0.5
        return t.roll(1) if targets == "shuffled pairs" else t  # that of a pair which was drawn independently

    pairs = _Draws(x.to(course.device), target, (course.batch, 2), rng)
    if comparison_only:
        return _train(model, pairs, lambda c, t: (c - t).square().mean(), rng, course)
    weight = balance(x, v, low=low, high=high) if k is None else k

    def joint(out: Tensor, t: Tensor) -> Tensor:  # b 2, b -> scalar
        return (weight * (out[:, 0] - t).square() + out[:, 1]).mean()

    _start_grey(_decoder(model), x)
    return _train(_Joint(model), pairs, joint, rng, course)


def balance(x: Tensor, values: ArrayLike | Tensor, *, low: float, high: float) -> float:
    """The k for which both terms are equal where training starts: at c = 1/2 and pictures of the mean grey.

    It has E (t - 1/2)^2 = var(V) / (2 (high - low)^2) over pairs drawn uniformly.
    """
    spread = float(_values(values, x, low, high).var(correction=0)) / (2 * (high - low) ** 2)
    if spread == 0:
        raise AssayError("All values are equal, so there is no order to learn; give inputs whose values differ.")
    return 2 * x[0].numel() * float(x.var(correction=0)) / spread


def fit_tail(
    model: Siamese,
    x: Tensor,
    values: ArrayLike | Tensor,
    *,
    low: float,
    high: float,
    rng: torch.Generator,
    course: Course = COURSE,
) -> Curve:  # x: n *d;  values: n
    """Train the tail alone; encoder and decoder stay as they are to the bit (variant F, after `fit_autoencoder`)."""
    tail = Siamese(nn.Identity(), model.tail)
    e = embed(model.to(course.device).encoder, x)
    return fit_ranker(tail, e, values, low=low, high=high, rng=rng, comparison_only=True, course=course)


def fit_autoencoder(
    model: Siamese,
    x: Tensor,
    *,
    rng: torch.Generator,
    form: Form = "plain",
    weight: float = 1.0,
    course: Course = COURSE,
) -> Curve:  # x: n *d
    r"""Train encoder and decoder on pictures alone; the tail stays as it is. The first half of variant F.

        plain        |A - p(e)|^2
        unit norm    |A - p(e)|^2 + weight (1 - ||e||_2)^2                                            (E 33)
        variational  |A - p(e + s z)|^2 + weight sum_i (e_i^2 + s_i^2 - ln s_i^2 - 1) / 2,   z ~ N(0, I)

    The thesis gives no weights (E 33 has 1), nor says whether its MSE is a sum or a mean over pixels; if a mean, the
    weight beside the sum here is the number of pixels. The variational form is the negative evidence bound of Kingma
    and Welling, arXiv:1312.6114, for a pixel noise of variance weight / 2, times weight. Its ln s^2 comes from a second
    last layer of the encoder, which is thrown away: what is kept draws and compares the mean e.
    """
    decoder = _decoder(model.to(course.device))
    _start_grey(decoder, x)
    images = _Draws(x.to(course.device), lambda rows: rows, (course.batch,), rng)
    if form == "variational":
        bound = _Variational(model.encoder, decoder, rng)
        return _train(bound, images, lambda out, _: (out @ out.new_tensor([1, weight])).mean(), rng, course)
    if form not in get_args(Form):
        raise AssayError(f"fit_autoencoder got form={form!r}; it knows {', '.join(get_args(Form))}.")
    strength = weight if form == "unit norm" else 0.0

    def loss(out: Tensor, _: Tensor) -> Tensor:  # b 1+s -> scalar
        norm: Tensor = torch.linalg.vector_norm(out[:, 1:], dim=1)
        return (out[:, 0] + strength * (1 - norm).square()).mean()

    return _train(_Redraws(model.encoder, decoder), images, loss, rng, course)


def fit_mirror(
    ranker: Siamese,
    mirror: Siamese,
    x: Tensor,
    *,
    k: float | None = None,
    rng: torch.Generator,
    course: Course = COURSE,
) -> Curve:  # x: n *d
    """Train the encoder w_a and decoder p of `mirror` to see as `ranker` (w_s, left as it is) does. Variant M, E 36.

        |A - p(w_a(A))|^2 + k |w_s(A) - w_a(A)|^2

    The thesis gives no k: by default that for which both terms are equal at pictures and embeddings that are the mean.
    What explains the ranker is p(w_s(A)), which the loss never looks at: ask `likeness` of `mirror.decoder` on
    `embed(ranker.encoder, x)`, not on the mirror's own embeddings.
    """
    decoder = _decoder(mirror.to(course.device))
    _start_grey(decoder, x)
    seen = embed(ranker.to(course.device).encoder, x)  # n s
    images = _Draws(x.to(course.device), lambda rows: seen[rows], (course.batch,), rng)
    if k is None:
        spread = float(seen.var(0, correction=0).sum())
        if spread == 0:
            raise AssayError("The ranker sees all inputs alike, so there is nothing to mirror; train it first.")
        k = float(x.var(0, correction=0).sum()) / spread
    weight = k

    def loss(out: Tensor, e: Tensor) -> Tensor:  # b 1+s, b s -> scalar
        return (out[:, 0] + weight * (out[:, 1:] - e).square().sum(1)).mean()

    return _train(_Redraws(mirror.encoder, decoder), images, loss, rng, course)


def fit_decoder(
    model: Siamese,
    decoder: nn.Module,
    x: Tensor,
    *,
    rng: torch.Generator,
    course: Course = COURSE,
) -> Curve:  # x: n *d
    """Train `decoder` on what a finished model keeps of its inputs; the model stays as it is. Not in the thesis.

    Its pictures show what can be had from the embeddings, which may be little: a model that only compares has no reason
    to keep more. Ask `likeness` on inputs that it was not trained on before anyone looks at them.
    """
    e = embed(model.to(course.device).encoder, x)  # n s
    images = x.to(course.device)
    _start_grey(decoder, x)
    seen = _Draws(e, lambda rows: images[rows], (course.batch,), rng)
    return _train(decoder, seen, lambda out, a: (out - a).square().flatten(1).sum(1).mean(), rng, course)


@dataclass(frozen=True)
class Likeness:
    """How near a decoder's pictures come to the inputs."""

    error: float  # mean squared pixel error
    blank: float  # that of drawing the mean input every time: the variance of a pixel, averaged over the pixels

    @property
    def share(self) -> float:
        """The part of what differs between inputs that the pictures do not show: 0 perfect, 1 no better than blank."""
        return self.error / self.blank

    def good_enough(self, limit: float = 0.5) -> bool:
        """The gate: whether the pictures show at least half of what differs between inputs."""
        return self.share <= limit


@torch.no_grad()
def likeness(decoder: nn.Module, e: Tensor, x: Tensor) -> Likeness:  # e: n s;  x: n *d
    """Compare decoder(e) with `x`. The embeddings may come from any encoder: see `fit_mirror`."""
    x = x.to(e.device)
    drawn = _in_parts(decoder, e)
    if drawn.shape != x.shape:
        raise ShapeError(f"The decoder draws {tuple(drawn.shape[1:])} and inputs are {tuple(x.shape[1:])}; match them.")
    blank = float((x - x.mean(0)).double().square().mean())
    if blank == 0:
        raise AssayError(f"The {len(x)} inputs are all alike, so no picture of them can be judged; give several.")
    return Likeness(float((drawn - x).double().square().mean()), blank)


def embed(encoder: nn.Module, x: Tensor) -> Tensor:  # n *d -> n s
    """What `encoder` makes of `x` in eval mode, without gradients, on the encoder's device."""
    home = next((p.device for p in encoder.parameters()), x.device)
    return _in_parts(encoder, x.to(home)).flatten(1)


class _Joint(nn.Module):
    """n 2 *d -> n 2: the comparison, and the squared error of both pictures."""

    def __init__(self, model: Siamese) -> None:
        super().__init__()
        self.model = model

    def forward(self, pair: Tensor) -> Tensor:
        images = pair.flatten(0, 1)
        e = self.model.encode(images)
        halves = e.view(len(pair), 2, -1)
        wrong = (self.model.decode(e) - images).square().flatten(1).sum(1).view(-1, 2).sum(1)
        return torch.stack([self.model.compare(halves[:, 0], halves[:, 1]), wrong], 1)


class _Redraws(nn.Module):
    """n *d -> n 1+s: the squared error of the picture, and the embedding."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, x: Tensor) -> Tensor:
        e = self.encoder(x).flatten(1)
        wrong = (self.decoder(e) - x).square().flatten(1).sum(1, keepdim=True)
        return torch.cat([wrong, e], 1)


class _Variational(nn.Module):
    """n *d -> n 2: the squared error of a picture of a random embedding, and the divergence from N(0, I)."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, rng: torch.Generator) -> None:
        super().__init__()
        if not isinstance(encoder, nn.Sequential):
            raise AssayError(
                f"A variational encoder splits at its last layer; give nn.Sequential, not {type(encoder).__name__}."
            )
        self.below, self.mean, self.decoder, self.rng = encoder[:-1], encoder[-1], decoder, rng
        self.log_variance = reset(encoder[-1], rng)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.below(x)
        e, log_var = self.mean(seen).flatten(1), self.log_variance(seen).flatten(1)
        z = torch.randn(e.shape, generator=self.rng).to(e)
        wrong = (self.decoder(e + z * (log_var / 2).exp()) - x).square().flatten(1).sum(1)
        return torch.stack([wrong, (e.square() + log_var.exp() - log_var - 1).sum(1) / 2], 1)


@dataclass(frozen=True)
class _Draws:
    """Inputs drawn uniformly at random, others each time: one batch is all there is, and an epoch is one step."""

    x: Tensor  # n *d
    label: Callable[[Tensor], Tensor]  # numbers of the drawn -> their targets
    size: tuple[int, ...]  # b for single inputs, b 2 for pairs
    rng: torch.Generator

    def __len__(self) -> int:
        return self.size[0]

    def take(self, index: NDArray[Any], /) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(self.x), self.size, generator=self.rng)
        return self.x[rows], self.label(rows)


def _train(model: nn.Module, data: _Draws, loss: Loss, rng: torch.Generator, course: Course) -> Curve:
    return fit(
        model, data, epochs=course.steps, lr=course.lr, rng=rng, batch=len(data), optimiser="adam", loss=loss,
        on_epoch=course.progress, device=course.device,
    )  # fmt: skip


@torch.no_grad()
def _in_parts(module: nn.Module, x: Tensor) -> Tensor:  # n ... -> n ...
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        return torch.cat([module(part) for part in torch.split(x, 1000)])
    finally:
        for part, training in modes:
            part.training = training


def _decoder(model: Siamese) -> nn.Module:
    if model.decoder is None:
        raise AssayError("This model has no decoder to train; give it one, or train with comparison_only=True.")
    return model.decoder


def _start_grey(decoder: nn.Module, x: Tensor) -> None:
    """Set the last bias to the mean of `x`."""
    biases = [p for name, p in decoder.named_parameters() if name.endswith("bias")]
    if biases:
        nn.init.constant_(biases[-1], float(x.mean()))


def _values(values: ArrayLike | Tensor, x: Tensor, low: float, high: float) -> Tensor:
    v = torch.as_tensor(values, dtype=torch.float32).cpu()
    if v.shape != (len(x),):
        raise ShapeError(f"There are {len(x)} inputs and values of shape {tuple(v.shape)}; give one each.")
    if not low < high:
        raise AssayError(f"The range of values is {low:g} to {high:g}; give low below high.")
    if outside := [float(a) for a in v[(v < low) | (v > high) | ~v.isfinite()][:1]]:
        raise AssayError(
            f"The value {outside[0]:g} lies outside {low:g} to {high:g}; give a range that holds them all."
        )
    return v
