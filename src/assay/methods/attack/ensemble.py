r"""The worst case that several attacks find together: cheap ones first, and an input leaves as soon as it is broken.

    margin PGD from the input itself        all that the model gets right
    APGD on cross-entropy, a quarter        what is left
    targeted APGD on DLR, a quarter         what is left, its three likeliest wrong classes
    then in full, on what is *near*:        APGD-CE, targeted APGD-DLR to those three; if there are more `targets`, a
                                            quarter to each of them; minimal norm
    on what is at the *brink*:              APGD-CE and targeted APGD-DLR to all targets, in full, once more if it pays
    on what is near again:                  Square

An input is near where the lowest margin met is under a quarter of its clean margin, at the brink where it is under a
twentieth. What is far is not given up unseen: a random few of it get everything too, and if any of those breaks, so
does all of the rest: the margin misled. Each round goes over all inputs before the next begins, so that what is left of
many batches makes full ones. The targets of an input are led to one after the other, and side by side where so few
inputs are left that all of it is one batch (side_by_side.py).

Of a random model (`eot` > 1) an input leaves when all of TALLY fresh answers at its point are wrong; until then every
attack may find a point at which more of them are (chance.py). The two rounds of a quarter are left out, because to
judge what they find takes as many passes as they do, and so near is under a half, and nobody at the brink; `climb`
draws go to a gradient, `eot` to an answer.

Source: Croce & Hein, ICML 2020, arXiv:2003.01690 (AutoAttack: APGD-CE, targeted APGD-DLR, FAB, Square, in turn).
Departs from print: the order, the first three short rounds, the near, the brink and the far; a fast minimum-norm attack
    (Pintor et al., NeurIPS 2021) in FAB's place; Square goes on beyond a first tenth of its queries only if that broke
    something, or if all of them break one of the random few.
    Of 589 inputs of two networks, one adversarially trained, that the short rounds left at 8/255, all got everything:
    12 broke, of which eleven were at 0.00 to 0.02 of their clean margin and one at 0.22. AutoAttack's nine targets of
    100 steps broke three more, all under 0.03, and so the passes go to the brink. After short rounds of 5 steps, not
    25, 18 of 605 broke, at up to 0.17.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.attack.aim import Truth
from assay.methods.attack.apgd import apgd
from assay.methods.attack.attacked import Attacked, EotMode, Model, Precision, Slope, check
from assay.methods.attack.ball import Norm, distance
from assay.methods.attack.chance import TALLY
from assay.methods.attack.loss import Goal, LossName
from assay.methods.attack.minimal_norm import minimal_norm
from assay.methods.attack.pgd import pgd
from assay.methods.attack.side_by_side import side_by_side
from assay.methods.attack.square import square

NEAR, NEAR_RANDOM, BRINK = 0.25, 0.5, 0.05  # of the clean margin
AGAIN = 2  # rounds at the brink, at most
SPOT = (4, 16)  # at least and at most of the far ones that get everything; between them, one in eight
LIKELY = 3  # targets that get all steps
CPU_BATCH = 64  # two cores took 2.7 times as long an image in batches of 3,200; a GPU takes all at once
TOGETHER = 1024  # climbs to several targets that are made side by side, at most
LUCK = 4  # wrong answers more, of TALLY, that luck seldom adds
ATTACKS = ("none", "pgd", "apgd-ce", "apgd-dlr", "minimal-norm", "square")
"""What `by` counts in: 0 is an input that was wrong before anyone touched it."""


Hit = Callable[[Tensor], Attacked]  # k rows -> Attacked


class WorstCase(NamedTuple):
    """What the attacks found together. `by` says which broke an input: an index into ATTACKS, -1 where none did.

    Of a random model `by` says which attack found the point, and `success` that most of TALLY fresh answers are wrong.
    """

    x: Tensor  # n *d
    success: Tensor  # n bool
    distance: Tensor  # n
    by: Tensor  # n


def worst_case(
    model: Model,
    x: Tensor,
    y: Truth,
    *,
    norm: Norm = "linf",
    radius: float | Tensor,
    steps: int = 100,
    restarts: int = 1,
    targets: int = 9,
    queries: int = 1000,
    gradients: bool = True,
    shrunk: bool = False,
    mask: Tensor | None = None,
    eot: int = 1,
    climb: int | None = None,
    eot_mode: EotMode = "loss",
    bounds: tuple[float, float] = (0.0, 1.0),
    batch: int | None = None,
    precision: Precision = "float32",
    rng: torch.Generator | None = None,
) -> WorstCase:
    """Break as many inputs as can be broken inside the ball: n *d, n -> WorstCase.

    Without `gradients` only Square is run, on everything. `shrunk`: these inputs have withstood the minimal-norm attack
    of as many steps, which draws nothing and so would walk the same way again; it is left out. `steps`, `restarts`,
    `targets` and `queries` are what an input gets at the most from each attack, at the brink up to twice more. `batch`:
    how many inputs are attacked together, 64 on a CPU and all on a GPU unless given; a model that may only see few at a
    time wants it there too. `mask` is True where a feature may change: *d, or n *d where that differs. `radius` is a
    number, or one per input.

    An Aim has one wrong class, "not good enough", to lead to, so that it takes no more passes than a classifier does.
    """
    check(x, y, bounds=bounds)
    if mask is not None and mask.shape not in (x.shape, x.shape[1:]):
        raise ShapeError(f"The mask has shape {tuple(mask.shape)}; give it that of one input, {tuple(x.shape[1:])}.")
    rng = rng or torch.Generator().manual_seed(0)
    batch = batch or (CPU_BATCH if x.device.type == "cpu" else max(1, len(x)))
    field = _Field(model, x.detach(), y, norm, radius, eot, batch)
    if bool(torch.as_tensor(radius == 0).all()):
        return field.result()
    quarter = max(5, steps // 4)
    labels = y if isinstance(y, Tensor) and norm in ("linf", "l2") else None  # who has several classes to be led to

    def room(rows: Tensor) -> tuple[float | Tensor, Tensor | None]:
        """The radius and the mask of these inputs."""
        return (
            radius[rows] if isinstance(radius, Tensor) else radius,
            mask if mask is None or mask.ndim < x.ndim else mask[rows],
        )

    def ascend(loss: LossName, passes: int, leads: int, runs: int = 1) -> Hit:
        def hit(rows: Tensor) -> Attacked:
            reach, free = room(rows)
            few = leads > 1 and runs == eot == 1 and len(rows) * leads <= min(batch, TOGETHER)
            if few and labels is not None:
                return side_by_side(
                    model,
                    field.x[rows],
                    labels[rows],
                    norm=norm,
                    radius=reach,
                    steps=passes,
                    targets=leads,
                    mask=free,
                    bounds=bounds,
                    precision=precision,
                    rng=rng,
                )
            return apgd(
                model,
                field.x[rows],
                y[rows],
                norm=norm,
                radius=reach,
                steps=passes,
                restarts=runs,
                loss=loss,
                targets=leads,
                mask=free,
                eot=eot,
                climb=climb,
                eot_mode=eot_mode if loss == "ce" else "loss",
                bounds=bounds,
                precision=precision,
                rng=rng,
            )

        return hit

    def descend(rows: Tensor) -> Attacked:
        """Short margin steps from the input itself: what is easily broken leaves here."""
        reach, free = room(rows)
        return pgd(
            model,
            field.x[rows],
            y[rows],
            norm=norm,
            radius=reach,
            steps=min(10, steps),
            step=reach / 4,
            random_start=False,
            loss="margin",
            mask=free,
            eot=eot,
            climb=climb,
            bounds=bounds,
            precision=precision,
            rng=rng,
        )

    def shrink(rows: Tensor) -> Attacked:
        reach, free = room(rows)
        return minimal_norm(
            model,
            field.x[rows],
            y[rows],
            norm=norm,
            radius=reach,
            steps=steps,
            mask=free,
            eot=eot,
            climb=climb,
            bounds=bounds,
            precision=precision,
        )

    def search(asked: int) -> Hit:
        if norm not in ("linf", "l2"):
            raise AssayError(f"Square knows linf and l2, not {norm}; without gradients use hop_skip_jump.")
        way: Literal["linf", "l2"] = "linf" if norm == "linf" else "l2"

        def hit(rows: Tensor) -> Attacked:
            reach, free = room(rows)
            return square(
                model,
                field.x[rows],
                y[rows],
                norm=way,
                radius=reach,
                queries=asked,
                mask=free,
                eot=eot,
                bounds=bounds,
                rng=rng,
            )

        return hit

    if not gradients:
        field.attack("square", search(queries), field.alive())
        return field.result()
    field.attack("pgd", descend, field.alive())
    if eot == 1:
        field.attack("apgd-ce", ascend("ce", quarter, 0), field.alive())
        field.attack("apgd-dlr", ascend("dlr", quarter, min(LIKELY, targets)), field.alive())
    left = field.alive()
    close = field.nearness[left] < (NEAR if eot == 1 else NEAR_RANDOM)
    near, far = left[close], left[~close]
    few = min(max(len(far) // 8, SPOT[0]), SPOT[1])
    spot = far[torch.randperm(len(far), generator=rng, device=rng.device).to(far.device)[:few]]
    start = field.hits[spot]
    for rows in (torch.cat([near, spot]), far):
        rows = rows[field.hits[rows] < field.full]
        if len(rows) == 0:
            continue
        field.attack("apgd-ce", ascend("ce", steps, 0, restarts), rows)
        field.attack("apgd-dlr", ascend("dlr", steps, min(LIKELY, targets), restarts), rows)
        if targets > LIKELY:
            field.attack("apgd-dlr", ascend("dlr", quarter, targets, restarts), rows)
        if not shrunk:
            field.attack("minimal-norm", shrink, rows)
        for _ in range(AGAIN if eot == 1 else 0):
            brink = rows[field.nearness[rows] < BRINK]
            fell = field.attack("apgd-ce", ascend("ce", steps, 0), brink)
            if not fell + field.attack("apgd-dlr", ascend("dlr", steps, targets), brink):
                break
        if norm in ("linf", "l2") and queries:
            # of a random model a query takes many passes, and what it finds more: the few go first
            gained = 0 if eot > 1 else field.attack("square", search(max(2, queries // 10)), rows)
            if gained or field.attack("square", search(queries), spot if len(spot) or eot == 1 else rows[: SPOT[0]]):
                field.attack("square", search(queries), rows)
        if not bool((field.hits[spot] - start >= (LUCK if field.full > 1 else 1)).any()):
            break
    return field.result()


class _Field:
    """The inputs, what became of each, and how near the rest came."""

    def __init__(
        self, model: Model, x: Tensor, y: Truth, norm: Norm, radius: float | Tensor, eot: int, batch: int
    ) -> None:
        self.model, self.x, self.y, self.norm, self.eot, self.batch = model, x, y, norm, eot, batch
        self.radius = torch.as_tensor(radius, dtype=torch.float64, device=x.device).expand(len(x))
        self.worst = x.clone()
        self.full = TALLY if eot > 1 else 1  # fresh answers that judge a point
        looks = [self._look(rows, x[rows]) for rows in torch.split(torch.arange(len(x), device=x.device), batch)]
        self.clean, self.hits = -torch.cat([height for height, _ in looks]), torch.cat([hits for _, hits in looks])
        self.by = torch.where(self.success, 0, -1)
        self.nearness = torch.ones_like(self.clean)  # n: lowest margin met over the clean one

    @property
    def success(self) -> Tensor:
        """Most of the answers at the point kept are wrong: n bool."""
        return 2 * self.hits > self.full

    def _look(self, rows: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        return Slope(self.model, Goal(self.y[rows], None, "margin"), eot=self.eot).tally(at)

    def alive(self) -> Tensor:
        return (self.hits < self.full).nonzero()[:, 0]

    def attack(self, name: str, attack: Hit, rows: Tensor) -> int:
        """Attack those of `rows` that still hold; returns how many broke, of a random model beyond luck."""
        rows = rows[self.hits[rows] < self.full]
        return sum([self._hit(name, attack, part) for part in torch.split(rows, self.batch) if len(part)])

    def _hit(self, name: str, attack: Hit, rows: Tensor) -> int:
        found, before, gained = attack(rows), int(self.success.sum()), 0
        inside = found.distance <= self.radius[rows] * (1 + 1e-6)
        if self.full == 1:
            fell = found.success & inside
            self._keep(name, rows[fell], found.x[fell], self.hits.new_ones(int(fell.sum())))
            rows, inside, at = rows[~fell], inside[~fell], found.x[~fell]
            height = self._look(rows, at)[0] if len(rows) else self.clean[rows]
        else:
            slope = Slope(self.model, Goal(self.y[rows], None, "margin"), eot=self.eot)
            height, hits = slope.tally(found.x) if found.hits is None else (slope.look(found.x)[0], found.hits)
            more = inside & (hits > self.hits[rows])
            gained = int((inside & (hits - self.hits[rows] >= LUCK) & ~self.success[rows]).sum())
            self._keep(name, rows[more], found.x[more], hits[more])
        ratio = torch.where(inside, -height / self.clean[rows], self.nearness[rows])
        self.nearness[rows] = torch.minimum(self.nearness[rows], ratio)
        return gained if self.full > 1 else int(self.success.sum()) - before

    def _keep(self, name: str, rows: Tensor, x: Tensor, hits: Tensor) -> None:
        self.worst[rows], self.hits[rows] = x, hits
        self.by[rows] = ATTACKS.index(name)

    def result(self) -> WorstCase:
        return WorstCase(self.worst, self.success, distance(self.worst, self.x, self.norm), self.by)
