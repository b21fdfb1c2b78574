r"""What every attack shares: its result, the checks at the door, and the one place where a model is asked.

For a random model f_e, the gradient is averaged over `eot` fresh draws of e, one after the other, or several of them in
one batch where each row draws apart (nn/members.py):

    loss        (1/k) sum_j grad_x loss(f_{e_j}(x))
    mean_prob   grad_x -log( (1/k) sum_j softmax f_{e_j}(x)_y )  =  sum_j w_j grad_x CE(f_{e_j}(x)),  w_j ~ softmax(.)_y

Source: Athalye et al., ICML 2018, arXiv:1707.07397 (expectation over transformations). Both are running means of the
form m <- m + w (g - m): where all draws are equal the mean is any one of them to the bit, so that a deterministic
model is attacked along the same path for every k, with the same step.

Departs from print: the gradient is that of the loss up to one positive factor per input and step, chosen so that the
gradient with respect to the logits, computed in float64, has size 1 there. Steps that use the direction only do not see
the factor, and confident models no longer send a gradient of 0 through the network; a goal `as_published` stays in
float32 and has no factor. Where the model ends in a softmax or a sigmoid the loss reads the logits that went into it;
where its rows are probabilities by another road, their logarithm. Both keep the order of the classes, hence every
decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.attack.aim import Aim, Truth
from assay.methods.attack.ball import Norm, Region, distance, wide
from assay.methods.attack.chance import SURE, TALLY
from assay.methods.attack.loss import Goal, own
from assay.nn.members import at_once, draws_apart, in_rounds, repeated
from assay.nn.read_as import BeforeSquash

Model = Callable[[Tensor], Tensor]  # n *d -> n c
EotMode = Literal["loss", "mean_prob"]
Precision = Literal["float32", "bf16"]
Head = Literal["logits", "squashed", "probabilities"]
Result = TypeVar("Result")

FLOOR = 1e-30  # of the per-input factor: keeps the gradient of any draw within float32


class Attacked(NamedTuple):
    """What an attack leaves. `success` is the answer of a fresh float32 forward pass at `x`, never a search's hope; of
    a random model, what most of TALLY fresh answers say (chance.py)."""

    x: Tensor  # n *d, the best point met, inside bounds and ball
    success: Tensor  # n bool
    distance: Tensor  # n float64, in the attack's norm
    loss: Tensor  # steps n, the height met at each step; an input that has left repeats its last
    hits: Tensor | None = None  # n, of a random model: how many of TALLY fresh answers at `x` reach the goal


class Seen(NamedTuple):
    """One look at the model."""

    gradient: Tensor  # n *d
    height: Tensor  # n float64, NaN where the output or the gradient is
    reached: Tensor  # n bool


class Slope:
    """Asks a model for the height of a goal's loss and its gradient with respect to the input, and nothing else.

    The parameters collect no gradient. `head` is found out at the first look and is shared by all that `take` gives.
    """

    def __init__(
        self,
        model: Model,
        goal: Goal,
        *,
        eot: int = 1,
        eot_mode: EotMode = "loss",
        precision: Precision = "float32",
        head: Head | None = None,
        random: bool | None = None,
        climb: int | None = None,
    ) -> None:
        if eot < 1 or (climb is not None and climb < 1):
            what, got = ("eot", eot) if eot < 1 else ("climb", climb)
            raise AssayError(f"{what} counts the draws to average and must be at least 1, got {got}.")
        if eot_mode not in get_args(EotMode):
            raise AssayError(f"Unknown eot_mode {eot_mode!r}; choose one of {', '.join(get_args(EotMode))}.")
        if eot_mode == "mean_prob" and goal.loss != "ce":
            raise AssayError(
                "eot_mode='mean_prob' is the cross-entropy of the averaged softmax; use it with loss='ce'."
            )
        if precision not in get_args(Precision):
            raise AssayError(f"Unknown precision {precision!r}; choose one of {', '.join(get_args(Precision))}.")
        self.model, self.goal, self.eot, self.eot_mode, self.precision = model, goal, eot, eot_mode, precision
        # an Aim's margin reads the output as it is
        self.head: Head | None = "logits" if isinstance(goal.y, Aim) else head
        self.random = eot > 1 if random is None else random
        self.climb = eot if climb is None else climb  # draws to a gradient, where they are not those to an answer
        self.in_one_batch = self.random and draws_apart(model)

    def take(self, rows: Tensor) -> Slope:
        return self.towards(self.goal.take(rows))

    def towards(self, goal: Goal) -> Slope:
        """The same model with another goal."""
        return Slope(
            self.model,
            goal,
            eot=self.eot,
            eot_mode=self.eot_mode,
            precision=self.precision,
            head=self.head,
            random=self.random,
            climb=self.climb,
        )

    def at(self, x: Tensor) -> Seen:
        """Height and gradient at x from `climb` forward and backward passes: n *d -> n *d, n, n."""
        if self.in_one_batch and self.climb > 1:
            return self._at_once(x)
        gradient, height, z, factor = self._draw(x, None)
        if self.climb == 1:
            return Seen(gradient, height, self.goal.reached(z))
        chance, weight = z.softmax(1), self._weight(z)
        for draw in range(2, self.climb + 1):
            g, h, z, _ = self._draw(x, factor)
            height, chance = torch.lerp(height, h, 1 / draw), torch.lerp(chance, z.softmax(1), 1 / draw)
            if self.eot_mode == "loss":
                gradient = torch.lerp(gradient, g, 1 / draw)
            else:
                new = self._weight(z)
                weight = torch.logaddexp(weight, new)
                gradient = torch.lerp(gradient, g, wide((new - weight).exp(), g).to(g.dtype))
        return Seen(gradient, height, self.goal.reached(chance))

    def _at_once(self, x: Tensor) -> Seen:
        """The same, of a model whose rows draw apart: each input stands in the batch as often as it is drawn."""
        if self.goal.scale is None:
            self._glance(x)  # head and scale, from one pass as ever
        gradient = height = chance = weight = factor = torch.zeros(())
        done = 0
        for k in at_once(self.climb, x):
            tiled, first = self.take(repeated(torch.arange(len(x), device=x.device), k)), done == 0
            g, h, z, factor = tiled._draw(repeated(x, k), None if first else factor[: len(x)].repeat(k, 1), k)
            g, z = in_rounds(g, k), in_rounds(z, k)
            done += k
            share = torch.full((), k / done, device=x.device)
            h, p = in_rounds(h, k).mean(0), z.softmax(-1).mean(0)
            if self.eot_mode == "loss":
                mean, part = g.mean(0), share
            else:
                each = in_rounds(self._weight(z.flatten(0, 1), tiled.goal), k)  # k n
                new = each.logsumexp(0)
                mean = (g * in_rounds(wide((each - new).exp().flatten(), g.flatten(0, 1)), k).to(g)).sum(0)
                weight = new if first else torch.logaddexp(weight, new)
                part = wide((new - weight).exp(), mean).to(mean)
            gradient = mean if first else torch.lerp(gradient, mean, part.to(mean))
            height = h if first else torch.lerp(height, h, share.to(h))
            chance = p if first else torch.lerp(chance, p, share.to(p))
        return Seen(gradient, height, self.goal.reached(chance))

    def gradient(self, x: Tensor) -> Tensor:
        """The gradient of one pass and nothing else, without a factor: n *d -> n *d. For a goal `as_published`."""
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            z, _ = self._logits(at, self.precision)
            return self._pull_back(self.goal.height(z).sum(), at)

    def look(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Height and whether the goal is reached, by fresh float32 forward passes: n *d -> n, n.

        With eot = k draws the answer is that of the mean softmax, or what an Aim makes of them, else that of the one
        output.
        """
        if self.in_one_batch:
            height, reached = self._answers(x, 1)
            return height[0], reached[0]
        height, out, z = self._glance(x)
        aim = self.goal.y if isinstance(self.goal.y, Aim) else None
        if self.eot == 1:
            return height, self.goal.reached(out if aim is None else z)
        chance, outs = z.softmax(1), [out]
        for draw in range(2, self.eot + 1):
            h, out, z = self._glance(x)
            height, chance = torch.lerp(height, h, 1 / draw), torch.lerp(chance, z.softmax(1), 1 / draw)
            outs += [out] if aim is not None else []
        whole = aim.together(outs) if aim is not None else None
        return height, self.goal.reached(chance if whole is None else whole)

    def sure(self, x: Tensor, hopes: Tensor, times: int = SURE) -> Tensor:
        """Which of the `hopes` reach the goal by so many fresh answers in a row: n *d, n bool -> n bool.

        Who fails once is not asked again. A model that is not random is taken at its word.
        """
        if not self.random:
            return hopes
        hopes = hopes.clone()
        for _ in range(times):
            rows = hopes.nonzero()[:, 0]
            if len(rows) == 0:
                break
            hopes[rows] = self.take(rows).look(x[rows])[1]
        return hopes

    def tally(self, x: Tensor, times: int = TALLY) -> tuple[Tensor, Tensor]:
        """The mean height, and how many of so many fresh answers reach the goal; one answer of a model that is not
        random: n *d -> n, n."""
        if self.in_one_batch:
            each, so = self._answers(x, times)
            return each.mean(0), so.sum(0)
        height, reached = self.look(x)
        hits = reached.long()
        for k in range(2, times + 1 if self.random else 2):
            h, reached = self.look(x)
            height, hits = torch.lerp(height, h, 1 / k), hits + reached
        return height, hits

    def scores(self, x: Tensor) -> Tensor:
        """The logits of one fresh float32 pass, or the log of the mean softmax over eot passes: n *d -> n c."""
        if self.in_one_batch:
            chance = self._glances(x, self.eot)[2].softmax(-1).mean(0)
            return chance.clamp_min(torch.finfo(chance.dtype).tiny).log()
        _, _, z = self._glance(x)
        if self.eot == 1:
            return z
        chance = z.softmax(1)
        for draw in range(2, self.eot + 1):
            chance = torch.lerp(chance, self._glance(x)[2].softmax(1), 1 / draw)
        return chance.clamp_min(torch.finfo(chance.dtype).tiny).log()

    def _answers(self, x: Tensor, times: int) -> tuple[Tensor, Tensor]:
        """Height and reached of so many fresh answers, of a model whose rows draw apart: n *d -> times n, times n."""
        heights, outs, z = (in_rounds(of, times) for of in self._glances(x, times * self.eot))
        aim = self.goal.y if isinstance(self.goal.y, Aim) else None
        answers = []
        for out, each in zip(outs, z, strict=True):
            whole = aim.together(list(out)) if aim is not None and self.eot > 1 else None
            if self.eot == 1:
                whole = out[0] if aim is None else each[0]
            answers.append(self.goal.reached(each.softmax(-1).mean(0) if whole is None else whole))
        return heights.mean(1), torch.stack(answers)

    def _glances(self, x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Height, output and logits of so many draws, in few batches: n *d -> count n, count n c, count n c."""
        if self.head is None or self.goal.scale is None:
            self._glance(x)  # one pass settles both
        rows, parts = torch.arange(len(x), device=x.device), []
        for k in at_once(count, x):
            told = self.take(repeated(rows, k))._glance(repeated(x, k))
            parts.append([in_rounds(of, k) for of in told])
        height, out, z = (torch.cat(of) for of in zip(*parts, strict=True))
        return height, out, z

    def _draw(self, x: Tensor, factor: Tensor | None, draws: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradient, height, logits and the gradient's factor from one pass: n *d -> n *d, n, n c, n 1.

        Where the rows are several `draws` of the same inputs, these share a factor, so that their mean is one.
        """
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            z, _ = self._logits(at, self.precision)
            printed = self.goal.as_published
            base = z.detach() if printed else z.detach().double()
            self.goal = self.goal.started(base)
            height, v = self.goal.slope(base)
            if factor is None:
                factor = torch.ones_like(v[:, :1]) if printed else v.abs().amax(1, keepdim=True).clamp_min(FLOOR)
                if draws > 1:
                    factor = in_rounds(factor, draws).amax(0).repeat(draws, 1)
            gradient = self._pull_back(z, at, (v / factor).to(z.dtype))
        # sign(NaN) is 0: without this a NaN gradient would pass for a flat one
        sick = gradient.amax(tuple(range(1, gradient.ndim))).isnan()  # flatten would copy what is channels-last
        return gradient, height.double().masked_fill(sick, torch.nan), base.double(), factor

    def _glance(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Height, output and logits from one pass without gradient: n *d -> n, n c, n c."""
        # The first pass through a model keeps the graph: its last node tells the head.
        with torch.set_grad_enabled(self.head is None):
            z, out = self._logits(x.detach().requires_grad_(self.head is None), "float32")
        z = z.detach().double()
        self.goal = self.goal.started(z)
        with torch.no_grad():
            return self.goal.height(z), out.detach(), z

    def _weight(self, z: Tensor, goal: Goal | None = None) -> Tensor:
        goal = goal or self.goal
        return own(z.log_softmax(1), goal.label if goal.target is None else goal.target)

    def _logits(self, x: Tensor, precision: Precision) -> tuple[Tensor, Tensor]:
        """The logits and the output itself: n *d -> n c, n c; what an Aim reads in it, and n *o."""
        with torch.autocast(x.device.type, torch.bfloat16) if precision == "bf16" else nullcontext():
            if isinstance(self.goal.y, Aim):
                out = self.model(x)
                return self.goal.y.read(out), out
            if self.head is None:
                out = checked(self.model(x), x, self.goal)
                if type(out.grad_fn).__name__ in ("SoftmaxBackward0", "SigmoidBackward0"):
                    self.head = "squashed"
                else:
                    self.head = "probabilities" if are_probabilities(out.detach()) else "logits"
                    return read(out, self.head), out
            if self.head == "squashed":
                with BeforeSquash() as seen:
                    out = checked(self.model(x), x)
                before = seen.input_of(out)
                if before is not None:
                    return read(before, "logits"), out
                # a softmax or sigmoid that Python does not see, as in a scripted model
                self.head = "probabilities" if are_probabilities(out.detach()) else "logits"
            else:
                out = checked(self.model(x), x)
            return read(out, self.head), out

    def _pull_back(self, z: Tensor, x: Tensor, v: Tensor | None = None) -> Tensor:
        try:
            return torch.autograd.grad(z, x, v)[0]
        except RuntimeError as error:
            if "does not require grad" in str(error) or "not have been used" in str(error):
                raise AssayError(
                    "The model's output carries no gradient to its input (detached, quantised, or not torch); "
                    "use the gradient-free attacks square or hop_skip_jump."
                ) from error
            raise


def read(out: Tensor, head: Head) -> Tensor:
    """The model's output as logits, up to a shift: n c -> n c."""
    out = out.float() if out.dtype in (torch.float16, torch.bfloat16) else out
    return out if head == "logits" else out.clamp_min(torch.finfo(out.dtype).tiny).log()


def are_probabilities(out: Tensor) -> bool:
    return bool((out >= 0).all() and ((out.sum(1) - 1).abs() < 1e-3).all())


def checked(out: Tensor, x: Tensor, goal: Goal | None = None) -> Tensor:
    """The output, if it is one row of at least two scores per input; with a goal, if its classes are among them."""
    if not isinstance(out, Tensor):
        raise ShapeError(f"The model returned {type(out).__name__}; an attack wants a tensor of logits, shape (n, c).")
    if out.ndim != 2 or len(out) != len(x) or out.shape[1] < 2:
        hint = " Stack a single score z as (0, z)." if out.ndim == 1 or out.shape[-1] == 1 else ""
        raise ShapeError(
            f"The model returned shape {tuple(out.shape)} for {len(x)} inputs; an attack wants one row of at least "
            f"two logits per input, shape ({len(x)}, c).{hint}"
        )
    if goal is not None:
        for what, classes in (("label", goal.label), ("target", goal.target)):
            if classes is not None and int(classes.max()) >= out.shape[1]:
                raise AssayError(
                    f"Found {what} {int(classes.max())} but the model has {out.shape[1]} classes, "
                    f"0 to {out.shape[1] - 1}."
                )
    return out


def check(x: Tensor, y: Truth, *, bounds: tuple[float, float], target: Tensor | None = None) -> None:
    """Refuse inputs and labels that no attack can take, in words that say how to mend them."""
    low, high = bounds
    if not x.dtype.is_floating_point:
        raise AssayError(
            f"Inputs are {x.dtype}; attacks need float inputs in [{low:g}, {high:g}]. For 8-bit images pass x / 255."
        )
    if x.dtype not in (torch.float32, torch.float64):
        raise AssayError(f"Inputs are {x.dtype}; pass x.float(): results are verified in float32.")
    if x.ndim < 2 or len(x) == 0:
        raise ShapeError(f"Inputs have shape {tuple(x.shape)}; attacks want a batch of at least one, shape (n, ...).")
    if isinstance(y, Aim):
        if len(y) != len(x):
            raise ShapeError(f"The Aim has {len(y)} rows of targets for {len(x)} inputs; want one row per input.")
        if target is not None:
            raise AssayError("An Aim is good or bad and has no class to lead to; leave out target.")
    else:
        _check_labels(y, len(x))
    lowest, highest = torch.stack(x.aminmax()).tolist()  # together: a GPU waits for every question
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        bad = int((~torch.isfinite(x)).flatten(1).any(1).nonzero()[0, 0])
        raise AssayError(f"Input {bad} has NaN or infinite features; remove or repair it before the attack.")
    if lowest < low or highest > high:
        raise AssayError(
            f"Inputs span [{lowest:g}, {highest:g}] but the bounds are [{low:g}, {high:g}]; scale the inputs "
            "(normalisation belongs inside the model) or pass bounds=(low, high)."
        )
    if target is not None and not isinstance(y, Aim):
        if target.shape != y.shape:
            raise ShapeError(f"Targets have shape {tuple(target.shape)}; want one class per input, ({len(x)},).")
        same = (target == y).nonzero()
        if len(same):
            i = int(same[0, 0])
            raise AssayError(f"Input {i} has target {int(target[i])} equal to its label; pick another class.")


def _check_labels(y: Tensor, n: int) -> None:
    if y.shape != (n,):
        hint = " If these rows are one-hot, pass y.argmax(-1)." if y.ndim == 2 else ""
        raise ShapeError(f"Labels have shape {tuple(y.shape)} for {n} inputs; want shape ({n},).{hint}")
    if y.dtype.is_floating_point or y.dtype == torch.bool:
        raise AssayError(f"Labels are {y.dtype}; want class indices, such as y.long().")
    if bool((y < 0).any()):
        raise AssayError(f"Labels must be at least 0, got {int(y.min())}.")


class Nearest:
    """The nearest point met that reaches the goal, per input; where there is none, the one of lowest cost."""

    def __init__(self, x: Tensor, norm: Norm, bounds: tuple[float, float]) -> None:
        n, device = len(x), x.device
        self.start, self.norm, self.bounds, self.found_x = x, norm, bounds, x.clone()
        self.hoped = torch.zeros(n, dtype=torch.bool, device=device)
        self.rows = torch.arange(n, device=device)
        self.x = x
        self.size = torch.full((n,), torch.inf, dtype=x.dtype, device=device)
        self.cost = torch.full((n,), torch.inf, dtype=torch.float64, device=device)
        self.reached = torch.zeros(n, dtype=torch.bool, device=device)

    def offer(self, at: Tensor, size: Tensor, cost: Tensor, reached: Tensor) -> Tensor:
        """Keep `at` where it is better; returns where it was: n *d, n, n, n -> n."""
        better = torch.where(reached, size < self.size, ~self.reached & (cost < self.cost))
        self.x = torch.where(wide(better, at), at, self.x)
        self.size = torch.where(better & reached, size, self.size)
        self.cost = torch.where(better, cost, self.cost)
        self.reached = self.reached | reached
        return better

    def believed(self, slope: Slope, at: Tensor, size: Tensor, reached: Tensor) -> Tensor:
        """What to believe of `reached` before a point is offered: of a random model, what ROW fresh answers in a row
        confirm, where the point would be the nearest. The least of many lucky points is no distance: n *d, n, n -> n.
        """
        return slope.sure(at, reached & (size < self.size), ROW) if slope.random else reached

    def let_go(self, step: int, within: Tensor) -> Tensor | None:
        """Let inputs leave that are broken within this size, now and then; returns the positions that stay, or None."""
        if not now_and_then(step):
            return None
        done = self.size <= within[self.rows]
        if not bool(done.any()):
            return None
        self._store(done.nonzero()[:, 0])
        stay = (~done).nonzero()[:, 0]
        self.rows, self.x, self.size = self.rows[stay], self.x[stay], self.size[stay]
        self.cost, self.reached = self.cost[stay], self.reached[stay]
        return stay

    def result(self, slope: Slope, trace: Tensor) -> Attacked:
        """Verify by fresh passes. A point on the boundary to the last bit may fall back when asked again: it is pushed
        outwards by 0.1 %, twice at most. Of a random model most of TALLY fresh answers decide, and it is pushed by 5 %,
        eight times at most."""
        self._store(torch.arange(len(self.rows), device=self.rows.device))
        x = self.found_x
        most, tries, push = (TALLY // 2, 8, 1.05) if slope.random else (0, 2, 1.001)
        success = slope.tally(x)[1] > most
        for _ in range(tries):
            denied = (self.hoped & ~success).nonzero()[:, 0]
            if len(denied) == 0:
                break
            x0 = self.start[denied]
            x[denied] = torch.clamp(x0 + push * (x[denied] - x0), *self.bounds)
            success[denied] = slope.take(denied).tally(x[denied])[1] > most
        return Attacked(x, success, distance(x, self.start, self.norm), trace)

    def _store(self, here: Tensor) -> None:
        self.found_x[self.rows[here]], self.hoped[self.rows[here]] = self.x[here], self.reached[here]


def now_and_then(step: int) -> bool:
    """When to ask whether inputs can leave: asking makes a GPU wait, so not at every step."""
    return step & (step - 1) == 0 or step % 5 == 0


def refuse_nan(height: Tensor, what: str = "output or gradient") -> None:
    """Name the first input whose height is NaN: n."""
    sick = height.isnan()
    if bool(sick.any()):
        raise SubjectError(
            f"The model's {what} is NaN for input {int(sick.nonzero()[0, 0])}; look for a division by zero, a square "
            "root or logarithm at 0, or an overflow in its forward pass."
        )


ROW = 2  # fresh answers in a row before a point counts as the nearest that breaks a random model
FEW = 64  # fewer than one in so many that could leave are not worth a pass to make sure


class Standing:
    """The inputs still under attack, the best point met for each, and the way out for those that are broken.

    The best point is one that reaches the goal, and among equals the highest. An input leaves once a fresh float32
    forward pass confirms its best point; what the search believed and the pass denies goes on.
    """

    def __init__(self, region: Region, slope: Slope, steps: int, *, leave: bool = True, last: bool = False) -> None:
        n, device = len(region.centre), region.centre.device
        self.whole, self.whole_slope, self.leave, self.last = region, slope, leave, last
        self.region, self.slope, self.rows = region, slope, torch.arange(n, device=device)
        self.found_x = region.centre.clone()
        self.found_height = torch.full((n,), -torch.inf, dtype=torch.float64, device=device)
        self.success = self.gone = torch.zeros(n, dtype=torch.bool, device=device)
        self.trace = torch.zeros(steps, n, dtype=torch.float64, device=device)
        self._load()

    def _load(self) -> None:
        self.x, self.height = self.found_x[self.rows], self.found_height[self.rows]
        self.reached = self.success[self.rows]
        self.sick = torch.zeros_like(self.reached)

    def again(self) -> bool:
        """Take up the inputs that still hold for another restart; False when none is left."""
        self.rows = (~self.gone).nonzero()[:, 0]
        if len(self.rows) == 0:
            return False
        if len(self.rows) == len(self.gone):  # the first look sets head and scale on the slope itself
            self.region, self.slope = self.whole, self.whole_slope
        else:
            self.region, self.slope = self.whole.take(self.rows), self.whole_slope.take(self.rows)
        self._load()
        return True

    def offer(self, at: Tensor, height: Tensor, reached: Tensor, step: int) -> Tensor:
        """Keep `at` where it beats the best so far; returns where it did: n *d, n, n -> n."""
        self.sick |= height.isnan() & ~reached  # an output that is NaN reaches the goal, a gradient leads nowhere
        better = (reached & ~self.reached) | ((reached == self.reached) & (height > self.height))
        better = ~self.sick if self.last else better
        self.x = torch.where(wide(better, at), at, self.x)
        self.height = torch.where(better, height, self.height)
        self.reached = torch.where(better, reached, self.reached)
        if step < len(self.trace):
            self.trace[step, self.rows] = height
        return better

    def let_go(self, step: int) -> Tensor | None:
        """Let confirmed inputs leave, now and then; returns the positions that stay, or None if all do."""
        if not self.leave or not now_and_then(step):
            return None
        self._refuse_sick()
        hopes = self.reached.nonzero()[:, 0]
        if len(hopes) * FEW < len(self.rows) or len(hopes) == 0:
            return None
        slope = self.slope.take(hopes)
        height, sure = slope.look(self.x[hopes])
        sure = slope.sure(self.x[hopes], sure, SURE - 1)
        self.height[hopes], self.reached[hopes] = height, sure
        if not bool(sure.any()):
            return None
        self._store(hopes[sure])
        gone = self.rows[hopes[sure]]
        self.trace[step + 1 :, gone] = self.trace[step, gone]
        stay = (~self.reached).nonzero()[:, 0]
        self.rows, self.x, self.height = self.rows[stay], self.x[stay], self.height[stay]
        self.reached, self.sick = self.reached[stay], self.sick[stay]
        self.region, self.slope = self.region.take(stay), self.slope.take(stay)
        return stay

    def finish(self, at: Tensor) -> None:
        """End a run at its last points, which nobody has looked at yet; verify all that is still here: n *d."""
        if len(self.rows) == 0:
            return
        # A best point that the search believes to reach the goal needs no rival, only a pass that has the last word.
        hopes = torch.zeros_like(self.reached) if self.last else self.reached
        height, reached = self.slope.look(torch.where(wide(hopes, at), self.x, at))
        self.offer(at, height.masked_fill(hopes, -torch.inf), reached & ~hopes, len(self.trace))
        self.sick |= height.isnan() & ~reached
        self.height, self.reached = torch.where(hopes, height, self.height), torch.where(hopes, reached, self.reached)
        self.sick |= self.x.isnan().flatten(1).any(1)
        self._refuse_sick()
        self._store(torch.arange(len(self.rows), device=self.rows.device))

    def result(self) -> Attacked:
        x = self.found_x
        return Attacked(x, self.success, self.whole.distance(x), self.trace.to(x.dtype))

    def _store(self, here: Tensor) -> None:
        self._refuse_lost(here)
        there = self.rows[here]
        self.found_x[there], self.found_height[there] = self.x[here], self.height[here]
        self.success[there] = self.reached[here]

    def _refuse_lost(self, here: Tensor) -> None:
        """NaN under attack is an answer that is not right; NaN for the input itself is a broken model."""
        lost = here[(self.height.isnan() & self.reached)[here]]
        if len(lost):
            clean, _ = self.slope.take(lost).look(self.region.centre[lost])
            refuse_nan(torch.zeros_like(self.found_height).index_copy(0, self.rows[lost], clean), "output")

    def _refuse_sick(self) -> None:
        if bool(self.sick.any()):
            i = int(self.sick.nonzero()[0, 0])
            clean, _ = self.slope.take(self.rows.new_tensor([i])).look(self.region.centre[i : i + 1])
            sick = torch.zeros_like(self.found_height).index_fill(0, self.rows[self.sick], torch.nan)
            refuse_nan(sick, "output" if bool(clean.isnan().any()) else "gradient")


class Wavering(Standing):
    """The same for a random model: the point that most fresh answers call broken, by the protocol of chance.py.

    An input leaves when SURE fresh answers in a row confirm it; one lucky answer only makes it a candidate, until it is
    asked again. At the end of a run the best and the last point are told apart by TALLY fresh answers each, and they
    replace what an earlier run found only where they do no worse. Where all draws are equal, so is the path.
    """

    def __init__(self, region: Region, slope: Slope, steps: int, *, leave: bool = True, last: bool = False) -> None:
        super().__init__(region, slope, steps, leave=leave, last=last)
        self.hits = torch.full_like(self.rows, -1)  # n: of TALLY fresh answers at the point kept
        self.gone = torch.zeros_like(self.success)

    def let_go(self, step: int) -> Tensor | None:
        """To make sure takes as many passes as several steps do, so it is asked at 4, 8, 16, ... steps alone."""
        return super().let_go(step) if step > 2 and step & (step + 1) == 0 else None

    def finish(self, at: Tensor) -> None:
        if len(self.rows) == 0:
            return
        half = TALLY // 2
        height, hits = self.slope.tally(at, TALLY if self.last else half)
        if not self.last:
            # half of the answers tell the two points apart, and the other half go to the one that is kept
            kept, best = self.slope.tally(self.x, half)
            later = (hits > best) | ((hits == best) & (height > kept) & ~self.reached)
            at = torch.where(wide(later, at), at, self.x)
            height, hits = torch.where(later, height, kept), torch.where(later, hits, best)
            again, more = self.slope.tally(at, TALLY - half)
            height, hits = torch.lerp(height, again, 0.5), hits + more
        self._refuse_sick()
        better = (hits >= self.hits[self.rows]) | self.last
        self.x, self.height, self.reached = at, height, 2 * hits > TALLY
        here = better.nonzero()[:, 0]
        super()._store(here)
        self.hits[self.rows[here]] = hits[here]

    def result(self) -> Attacked:
        return super().result()._replace(hits=self.hits.clamp_min(0))

    def _store(self, here: Tensor) -> None:
        super()._store(here)
        self.hits[self.rows[here]], self.gone[self.rows[here]] = TALLY, True


def stand(region: Region, slope: Slope, steps: int, *, leave: bool = True, last: bool = False) -> Standing:
    """The inputs under attack, for a model as it is: random or not."""
    return (Wavering if slope.random else Standing)(region, slope, steps, leave=leave, last=last)


def sparing(
    attack: Callable[[Tensor], Result], rows: Tensor, sick: Tensor
) -> Iterator[tuple[Tensor, Result]]:  # (k -> Result), k, n bool
    """Attack these inputs, each part with its result; one whose NaN stops the attack is marked in `sick` and left out.

    The others are attacked as if it were not there: in halves, until what is at fault stands alone.
    """
    if len(rows) == 0:
        return
    try:
        result = attack(rows)
    except SubjectError:  # in an attack: NaN where the search needs a number, see refuse_nan
        if len(rows) == 1:
            sick[rows] = True
            return
        for half in rows.tensor_split(2):
            yield from sparing(attack, half, sick)
        return
    yield rows, result
