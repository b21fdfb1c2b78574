"""Square: random search with square windows, by scores alone. No gradient is asked for, so none can be masked."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from assay.errors import AssayError
from assay.methods.attack.aim import Aim, Truth
from assay.methods.attack.attacked import (
    Attacked,
    Head,
    Model,
    Slope,
    Standing,
    are_probabilities,
    check,
    checked,
    now_and_then,
    refuse_nan,
    stand,
)
from assay.methods.attack.ball import Ball, Region, wide
from assay.methods.attack.loss import Goal, Loss, LossName
from assay.nn.read_as import BeforeSquash

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of 10,000 queries: where p is halved
TILES = 5  # the l2 start is a grid of TILES x TILES windows
HEAD_ROWS = 32  # inputs that are enough to tell probabilities from logits


@torch.no_grad()
def square(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    norm: Literal["linf", "l2"] = "linf",
    radius: float | Tensor,
    queries: int = 5000,
    restarts: int = 1,
    p_init: float = 0.8,
    loss: LossName | Loss = "margin",
    target: Tensor | None = None,
    mask: Tensor | None = None,
    eot: int = 1,
    bounds: tuple[float, float] = (0.0, 1.0),
    leave: bool = True,
    rng: torch.Generator | None = None,
) -> Attacked:
    r"""Change one random window at a time and keep what raises the loss: n *d, n -> Attacked.

        x_{t+1} = trial if loss(trial) > loss(x_t) else x_t

    l_inf   start: each column of each channel at x -+ radius, the sign at random; trial: one window of h x h pixels,
            each channel of it at x -+ radius, the sign at random.
    l2      start: a 5 x 5 grid of windows of shape eta with random signs, at length radius; trial, with d = x_t - x,
            windows W1 and W2 and nu the length of d on both:
                d_W2 <- 0,   d_W1 <- ( rho eta + d_W1/||d_W1|| ) made as long as sqrt(nu^2 + (radius^2 - ||d||^2)/c)
            per channel, then d to length radius. eta is half a pyramid up and half a pyramid down, at length 1, with
            pyramid(m) = sum_{k >= m} 1/(k + 1)^2 at m pixels from its middle (largest coordinate difference).

    h^2 is p times the pixels; p falls from `p_init` by halves at 10, 50, 200, 500, 1000, 2000, 4000, 6000 and 8000 of
    10,000 queries, rescaled to `queries`. Each input has windows of its own, and the whole batch moves at once.
    Images are n c h w; n h w is one channel. Features without a grid (n f) are a strip of 1 x f with windows of p f
    features along it. A query is one look at one input (`eot` passes); the first of each run goes to the input itself.
    The test of the model's head and the confirmation of the answers come on top.

    Source: Andriushchenko et al., ECCV 2020, arXiv:1912.00049, Algorithms 1 to 3 and sec. 5 (schedule of p).
    Departs from print: p_init is 0.8 in both norms, as in Croce & Hein, ICML 2020, arXiv:2003.01690 (print: 0.05 in
        l_inf, 0.1 in l2); windows that would not fit keep their area on a longer side; cross-entropy is scale-free
        (loss.py); inputs leave only when a fresh pass confirms that they are broken.
    """
    check(x, y, bounds=bounds, target=target)
    if norm not in ("linf", "l2"):
        raise AssayError(f"square searches in linf or l2, got norm {norm!r}; for l1 use apgd, for l0 minimal_norm.")
    if queries < 2 or restarts < 1 or not 0 < p_init <= 1:
        raise AssayError(
            f"square needs queries >= 2, restarts >= 1 and 0 < p_init <= 1; got {queries=}, {restarts=}, {p_init=}."
        )
    x = x.detach()
    rng = rng or torch.Generator().manual_seed(0)
    goal = Goal(y, target, loss)
    slope = Slope(model, goal, eot=eot, head=head_of(model, x[:HEAD_ROWS], goal))
    standing = stand(Ball(norm, radius, *bounds, mask).around(x), slope, queries, leave=leave)
    start, move = (_stripes, _window_linf) if norm == "linf" else (_tiles, _window_l2)
    for _ in range(restarts):
        if not standing.again():
            break
        trial = at = standing.region.centre
        now = standing.height  # n, the loss at `at`
        for t in range(queries):
            height, reached = standing.slope.look(trial)
            standing.offer(trial, height, reached, t)
            if t < 2:  # the input, and then the start: it is taken whatever its loss
                at, now = trial, height
            else:
                higher = height > now
                at, now = torch.where(wide(higher, at), trial, at), torch.where(higher, height, now)
            if now_and_then(t):
                _refuse_nan(standing)
            stay = standing.let_go(t)
            if stay is not None:
                at, now = at[stay], now[stay]
                if len(at) == 0:
                    break
            region = standing.region
            trial = start(region, rng) if t == 0 else move(at, region, _share(t, queries, p_init), rng)
        _refuse_nan(standing)
        standing.finish(at)
    return standing.result()


def head_of(model: Model, x: Tensor, goal: Goal) -> Head:
    """What the model's rows are, found out without a graph."""
    if isinstance(goal.y, Aim):
        return "logits"
    with BeforeSquash() as seen:
        out = checked(model(x), x, goal)
    if seen.input_of(out) is not None:
        return "squashed"
    return "probabilities" if are_probabilities(out) else "logits"


def _refuse_nan(standing: Standing) -> None:
    refuse_nan(torch.zeros_like(standing.found_height).index_fill(0, standing.rows[standing.sick], torch.nan), "output")


def _share(t: int, queries: int, p_init: float) -> float:
    """p, the share of the pixels in a window."""
    return p_init / 2.0 ** sum(t * 10_000 // queries > mark for mark in HALVINGS)


def _grid(x: Tensor) -> Tensor:
    """Any input as an image: n *d -> n c h w."""
    channels = x.shape[1] if x.ndim > 3 else 1
    return x.reshape(len(x), channels, -1, x.shape[-1])


def _sides(p: float, h: int, w: int) -> tuple[int, int]:
    """Height and width of a window that covers a share p of h x w: square, unless that does not fit."""
    side = max(1, round(math.sqrt(p * h * w)))
    if side > h:
        return h, max(1, round(p * w))
    if side > w:
        return max(1, round(p * h)), w
    return side, side


def _below(limit: int, n: int, rng: torch.Generator, like: Tensor) -> Tensor:
    return torch.randint(limit, (n,), generator=rng, device=rng.device).to(like.device)  # n


def _signs(shape: tuple[int, ...], rng: torch.Generator, like: Tensor) -> Tensor:
    coins = torch.randint(2, shape, generator=rng, device=rng.device).to(like.device, like.dtype)
    return 2 * coins - 1


# l_inf: region.low and region.high hold the ball, the box and the mask, so -+ radius after projection is one of them


def _stripes(region: Region, rng: torch.Generator) -> Tensor:
    low, high = _grid(region.low), _grid(region.high)
    n, c, _, w = low.shape
    return torch.where(_signs((n, c, 1, w), rng, low) > 0, high, low).reshape(region.centre.shape)


def _window_linf(at: Tensor, region: Region, p: float, rng: torch.Generator) -> Tensor:
    low, high, image = _grid(region.low), _grid(region.high), _grid(at)
    n, c, h, w = image.shape
    tall, broad = _sides(p, h, w)
    top = _below(h - tall + 1, n, rng, at).reshape(n, 1, 1, 1)
    left = _below(w - broad + 1, n, rng, at).reshape(n, 1, 1, 1)
    row = torch.arange(h, device=at.device)[:, None]  # h 1
    column = torch.arange(w, device=at.device)  # w
    inside = (row >= top) & (row < top + tall) & (column >= left) & (column < left + broad)  # n 1 h w
    side = torch.where(_signs((n, c, 1, 1), rng, at) > 0, high, low)
    return torch.where(inside, side, image).reshape(at.shape)


# l2


def _pyramid(tall: int, broad: int) -> Tensor:
    """sum_{k=m}^{M} 1/(k+1)^2 at m pixels from the middle, at length 1: tall broad."""
    away = torch.maximum(
        (torch.arange(tall) - tall // 2).abs()[:, None], (torch.arange(broad) - broad // 2).abs()[None, :]
    )
    stones = 1 / (1 + torch.arange(max(tall, broad) // 2 + 1, dtype=torch.float64)).square()
    height = stones.flip(0).cumsum(0).flip(0)[away]
    size: Tensor = torch.linalg.vector_norm(height)
    return height / size


@lru_cache(maxsize=32)  # the windows of one schedule
def _eta(tall: int, broad: int) -> Tensor:
    """A pyramid up beside a pyramid down, at length 1; one above the other, and side by side: 2 tall broad."""

    def halves(a: int, b: int) -> Tensor:
        parts = [sign * _pyramid(size, b) for size, sign in ((a // 2, 1), (a - a // 2, -1)) if size]
        return torch.cat(parts) / math.sqrt(len(parts))

    across = halves(broad, tall).T
    # in a strip, one above the other has no room
    return torch.stack([halves(tall, broad) if tall > 1 else across, across if broad > 1 else halves(tall, broad)])


def _at_length(change: Tensor, region: Region) -> Tensor:
    """centre + change on the features that may change, at length radius, in the ball and the box: n c h w -> n *d."""
    free = _grid(region.high) > _grid(region.low)
    change = torch.where(free, change, 0)
    size = torch.linalg.vector_norm(change, dim=(1, 2, 3), keepdim=True).clamp_min(1e-30)
    change = change * (wide(region.radius, change) / size)
    return region.project(region.centre + change.reshape(region.centre.shape))


def _tiles(region: Region, rng: torch.Generator) -> Tensor:
    image = _grid(region.centre)
    n, c, h, w = image.shape
    tall, broad = max(1, h // TILES), max(1, w // TILES)
    rows, columns = min(TILES, h // tall), min(TILES, w // broad)
    up, across = _eta(tall, broad).to(image).repeat(1, rows, columns)  # each rows*tall columns*broad

    def enlarge(tiles: Tensor) -> Tensor:  # n c rows columns -> n c rows*tall columns*broad
        return tiles.repeat_interleave(tall, 2).repeat_interleave(broad, 3)

    turned = enlarge(_signs((n, 1, rows, columns), rng, image)) > 0
    change = enlarge(_signs((n, c, rows, columns), rng, image)) * torch.where(turned, up, across)
    above, before = (h - rows * tall) // 2, (w - columns * broad) // 2
    edges = (before, w - columns * broad - before, above, h - rows * tall - above)
    return _at_length(torch.nn.functional.pad(change, edges), region)


def _window_l2(at: Tensor, region: Region, p: float, rng: torch.Generator) -> Tensor:
    change = _grid(at - region.centre)
    n, c, h, w = change.shape
    tall, broad = (min(max(side, 3) | 1, most) for side, most in zip(_sides(p, h, w), (h, w), strict=True))  # odd
    first, second = (_pixels(change, tall, broad, rng) for _ in range(2))  # n c k
    flat = change.flatten(2)  # n c h*w
    old = flat.gather(2, first)
    room = (region.radius.square() - flat.square().sum((1, 2))).clamp_min(0) / c  # n, per channel
    flat = flat.scatter(2, first, 0)
    taken = old.square().sum(2) + flat.gather(2, second).square().sum(2)  # n c, on both windows; no pixel twice
    flat = flat.scatter(2, second, 0)
    eta = _eta(tall, broad).to(at).flatten(1)[_below(2, n, rng, at)][:, None]  # n 1 k
    size = torch.linalg.vector_norm(old, dim=2, keepdim=True)
    new = _signs((n, c, 1), rng, at) * eta + old / (size + 1e-10)
    new = new / torch.linalg.vector_norm(new, dim=2, keepdim=True).clamp_min(1e-10)
    length = (taken + room[:, None]).sqrt()[:, :, None]  # n c 1
    return _at_length(flat.scatter(2, first, length * new).reshape(change.shape), region)


def _pixels(image: Tensor, tall: int, broad: int, rng: torch.Generator) -> Tensor:
    """Where a random window of each input lies in its flattened image: n c h w -> n c tall*broad."""
    n, c, h, w = image.shape
    row = _below(h - tall + 1, n, rng, image)[:, None] + torch.arange(tall, device=image.device)  # n tall
    column = _below(w - broad + 1, n, rng, image)[:, None] + torch.arange(broad, device=image.device)  # n broad
    return (row[:, :, None] * w + column[:, None, :]).reshape(n, 1, -1).expand(n, c, tall * broad)
