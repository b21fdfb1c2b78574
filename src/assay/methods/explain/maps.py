r"""Standard maps: how much each entry of an input speaks for an answer, by twelve methods behind one function.

f is the logit of a class, or another number of the answer (spoken.py), x0 the baseline, b in {0, 1}^k says which
features are shown (the others are set to x0):

    gradient               df/dx                                               Simonyan et al. 2013, arXiv:1312.6034
    gradient-input         (x - x0) df/dx                                      Shrikumar et al. 2016, arXiv:1605.01713
    integrated-gradients   (x - x0) int_0^1 df/dx (x0 + a (x - x0)) da         Sundararajan et al. 2017, 1703.01365
    expected-gradients     E (x - x') df/dx (x' + a (x - x')),                 Erion et al. 2021, arXiv:1906.10670
                           x' from a background, a from [0, 1]
    smoothgrad             E df/dx (x + noise (max x - min x) N(0, 1))         Smilkov et al. 2017, arXiv:1706.03825
    gradcam                gradcam.py, bilinear from the layer to the input    Selvaraju et al. 2017, arXiv:1610.02391
    occlusion              f(x) - f(x without the feature)                     Zeiler and Fergus 2014, arXiv:1311.2901
    lime                   ridge regression of f on b, most weight near b = 1  Ribeiro et al. 2016, arXiv:1602.04938
    kernel-shap            least squares of f on b with Shapley's weights,     Lundberg and Lee 2017, arXiv:1705.07874
                           where the values add up to f(x) - f(x0)
    rise                   E[ softmax(f) | the entry is shown ]                Petsiuk et al. 2018, arXiv:1806.07421
    random, edges          noise; Sobel's filter on the input. Neither looks at the model: what every map must beat.

Where a feature has many entries its value is shared evenly among them, so that the sum over a feature is its value.

Departs from print: all explain the logit but RISE, which averages what cannot be negative; of a number that is no logit
of a class, RISE averages the number, less its mean over all masks: it has a sign. The integral is Gauss and
Legendre's; draws of a in expected gradients are stratified; LIME keeps all features and scales its weights to a mean
of 1; KernelSHAP draws each set with its complement and takes all sets where they are few; RISE divides by how often an
entry was shown, not by the expectation. All inputs of a call see the same masks and the same background.

These lines need torch alone, draw from the given generator only, and cut their own batches; captum, which has most of
these maps, is the reference that the tests hold them to. On CUDA sums over draws have no fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.attack.attacked import Model
from assay.methods.attack.ball import wide
from assay.methods.explain import groups as grouping
from assay.methods.explain.gradcam import gradcam, last_maps
from assay.methods.explain.spoken import is_class, number, refuse_beyond, targets
from assay.nn.inner import inner_points

if TYPE_CHECKING:
    from assay.inputs import Bounded
    from assay.tasks import Task

METHODS: dict[str, str] = {
    "gradient": "how steeply the score rises with each entry",
    "gradient-input": "the gradient times how far the input is from the baseline",
    "integrated-gradients": "the same with the mean gradient on the way from the baseline; adds up to the score",
    "expected-gradients": "integrated gradients from many examples in place of one baseline",
    "smoothgrad": "the mean gradient of noisy copies",
    "gradcam": "the last convolution's maps, weighted by the score's slope",
    "occlusion": "what the score loses when a feature goes",
    "lime": "a linear model of the score where features come and go at random",
    "kernel-shap": "Shapley values of the features, by regression; add up to the score",
    "rise": "the mean probability, or number, while an entry is shown and others come and go",
    "random": "noise: a map that knows nothing",
    "edges": "an edge detector: a map that knows the input and not the model",
}
STEPS = {"integrated-gradients": 50, "expected-gradients": 100, "smoothgrad": 50, "rise": 500}
SAMPLES_EACH, LEAST_SAMPLES = 8, 128  # sets of features, for LIME and KernelSHAP
ROWS_CPU, ROWS_GPU = 64, 2048  # of one pass; a CPU is at its best with few, and slows down by half and more with 3,000
ENTRIES_CPU, ENTRIES = 2**20, 2**24  # of one pass on a CPU and on a GPU
ONE_PASS = (
    "gradient",
    "gradient-input",
    "gradcam",
    "random",
    "edges",
)  # find the likeliest class on the way, if at all
NEAR = 0.1  # of the values of a map: a smaller sum of them is near 0
CELLS = 7  # of RISE's grid on either side, and of a picture cut into patches
LIME_WIDTH, LIME_RIDGE = 0.25, 1.0  # as in its public code


class Attribution(NamedTuple):
    """A map of each input. Where `complete`, its values should add up to f(x) - f(x0), and `gap` is what they miss."""

    values: Tensor  # n *d
    signed: bool  # whether a value below zero speaks against the class
    complete: bool
    gap: Tensor | None  # n: sum(values) - (f(x) - f(x0)); None where nothing is promised


class Missed(NamedTuple):
    """How far the values of a map are from adding up, one row per input, in units of the score.

    A share of f(x) - f(x0) means nothing where that is near 0: the values for and against a class then cancel, and what
    they miss is compared with a tenth of all of them together, `scale = max(|promised|, NEAR sum |values|)`.
    """

    gap: Tensor  # n float64: |sum(values) - promised|
    promised: Tensor  # n float64: f(x) - f(x0)
    scale: Tensor  # n float64

    @property
    def share(self) -> Tensor:
        """The gap in parts of the scale; 0 where there is nothing to miss: n."""
        return torch.where(self.gap > 0, self.gap / self.scale, 0.0)

    @property
    def near_zero(self) -> Tensor:
        """Where f(x) - f(x0) is no scale: n bool."""
        return self.promised.abs() < self.scale

    def says(self, row: int = 0) -> str:
        """In words, with units: what was promised, what is missed, and its share where a share means something."""
        gap, whole = float(self.gap[row]), float(self.promised[row])
        told = f"its values miss the score's difference of {whole:.3g} by {gap:.2g}"
        if bool(self.near_zero[row]):
            return (
                f"{told}; a share of a difference near 0 would mean nothing, of the values it is {self._percent(row)}"
            )
        return f"{told}, {self._percent(row)}"

    def _percent(self, row: int) -> str:
        share = 100 * float(self.share[row] * (NEAR if bool(self.near_zero[row]) else 1.0))
        return f"{share:.2g} %"


def missed(found: Attribution) -> Missed | None:
    """What a map that should add up misses; None where nothing is promised."""
    if found.gap is None:
        return None
    flat = found.values.double().flatten(1)
    promised = flat.sum(1) - found.gap
    return Missed(found.gap.abs(), promised, torch.maximum(promised.abs(), NEAR * flat.abs().sum(1)))


def explain(
    model: Model,
    x: Tensor,
    target: int | Tensor | None,
    method: str,
    *,
    layer: str | None = None,
    baseline: float | Tensor = 0.0,
    background: Tensor | None = None,
    groups: Tensor | None = None,
    samples: int | None = None,
    noise: float = 0.15,
    rng: torch.Generator | None = None,
    batch: int | None = None,
) -> Attribution:
    """What speaks for the class `target` in each input, by one of METHODS: n *d -> Attribution.

    `target` is one class, one for each input, None for the likeliest, or weights of the answers' entries, n *o, whose
    weighted sum is explained. `x` may be images (n c h w), tables (n d),
    embedded texts (n L m, with a model of embeddings) or anything else. `layer` is GradCAM's, by default the last maps;
    `background` (m *d) is what expected gradients start from. `groups` says what one feature is for occlusion, LIME,
    KernelSHAP and RISE (groups.py); by default `usual_groups`, and RISE on images has its own soft masks. `samples` is
    how many points or sets of features each input gets; `noise` is SmoothGrad's. `rng=None` is a generator seeded with
    0. A `batch` is the rows of one pass. Parameters collect no gradients.
    """
    if method not in METHODS:
        near = get_close_matches(method, METHODS, 1, 0.4)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(METHODS)}."
        raise AssayError(f"There is no map {method!r}; {hint}")
    if x.ndim < 2 or len(x) == 0:
        raise ShapeError(f"explain takes a batch of at least one input, n *d, got shape {tuple(x.shape)}.")
    if not x.dtype.is_floating_point:
        raise AssayError(f"explain wants float inputs, got {x.dtype}; give word numbers as embeddings.")
    if isinstance(model, nn.Module) and model.training:
        raise AssayError("The model is in training mode, where one input changes another's map; call model.eval().")
    if (samples is not None and samples < 1) or (batch is not None and batch < 1) or noise < 0:
        raise AssayError(f"explain needs samples and batch >= 1 and noise >= 0, got {samples}, {batch} and {noise}.")
    x = x.detach()
    batch = batch or _rows(x)
    wanted = targets(target, x)
    if wanted is None and method not in ONE_PASS:
        wanted = _likeliest(model, x, batch)
    asked = _Asked(
        x=x,
        base=_baseline(baseline, x),
        score=Score(model, wanted, batch),
        layer=layer,
        background=background,
        groups=groups,
        samples=samples or STEPS.get(method, 0),
        noise=noise,
        rng=rng or torch.Generator(x.device).manual_seed(0),
    )
    found = _MAPS[method](asked)
    if not bool(found.values.isfinite().all()):
        raise SubjectError(f"The map {method} holds NaN or inf; look for them in the model's answers and the input.")
    return found


def methods_for(model: Model, x: Tensor) -> tuple[str, ...]:
    """Those of METHODS that such a model and such inputs admit: GradCAM wants a CNN, edges want images."""
    left_out = set() if x.ndim == 4 else {"gradcam", "edges"}
    if not (isinstance(model, nn.Module) and any(isinstance(m, nn.Conv2d) for _, m in inner_points(model))):
        left_out.add("gradcam")
    return tuple(name for name in METHODS if name not in left_out)


def usual_groups(shape: Sequence[int], cells: int = CELLS) -> Tensor:
    """What one feature is where nobody says so: a patch of an image (`cells` on either side), a word, a column."""
    shape = torch.Size(shape)
    if len(shape) == 3:
        return grouping.patches(shape, max(1, round(max(shape[1:]) / cells)))
    if len(shape) == 2:
        return grouping.words(torch.ones(shape[0]), shape[1])
    return grouping.checked(None, shape)


def parts_of(
    kind: Bounded | None, task: Task, x: Tensor, cells: int = CELLS
) -> tuple[Tensor, tuple[str, ...]]:  # *d -> *d, k
    """What one feature of such inputs is, and what each is called: by the kind of input where somebody said what it is.

    Parts of an image are patches, and a classifier's inputs are cut as they always were: a word or a column each.
    """
    groups = usual_groups(x.shape, cells)
    if kind is not None and x.ndim < 3:
        found = kind.features(x.cpu())
        if "classes" not in task.gives or torch.equal(found.groups, groups):
            return found.groups, found.names
    return groups, tuple(str(k) for k in range(grouping.count(groups)))


@dataclass(frozen=True, eq=False)
class Score:
    """The number that is explained, the logit (or probability) of each input's class, and its slope in the input."""

    model: Model
    target: Tensor | None  # n, or n *o; None is the likeliest class, where points are the inputs themselves
    batch: int
    probability: bool = False

    @cached_property
    def ends(self) -> tuple[int, int]:
        """The lowest and the highest class asked for."""
        return (0, 0) if self.target is None else (int(self.target.min()), int(self.target.max()))

    def at(self, points: Tensor, rows: Tensor) -> Tensor:  # b *d, b -> b: points made from the inputs `rows`
        y = self.model(points)
        if self.target is not None and not is_class(self.target):
            return number(y, self.target[rows])
        if y.ndim != 2 or len(y) != len(points):
            raise SubjectError(
                f"The model answered {tuple(y.shape)} to {len(points)} inputs; explain wants (n, classes)."
            )
        label = y.argmax(1) if self.target is None else self.target[rows]
        refuse_beyond(*self.ends, y.shape[1])
        return number(y.softmax(1) if self.probability else y, label)

    def slope(self, points: Tensor, rows: Tensor) -> Tensor:  # b *d, b -> b *d
        with torch.enable_grad():
            points = points.detach().requires_grad_()
            total = self.at(points, rows).sum()
            found = torch.autograd.grad(total, points, allow_unused=True)[0] if total.requires_grad else None
        if found is None:
            raise SubjectError(
                "No gradient leads from the answers to the inputs; take a map that needs none: occlusion, lime, "
                "kernel-shap or rise."
            )
        return found

    def pairs(self, x: Tensor, draws: int) -> list[tuple[Tensor, Tensor]]:
        """All inputs x draws, a batch at a time: (input, draw)."""
        parts = torch.split(torch.arange(len(x) * draws, device=x.device), self.batch)
        return [(part // draws, part % draws) for part in parts]

    def mean_slope(self, x: Tensor, draws: int, point: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """The sum over draws of slope x factor; `point(input, draw)` gives (b *d, factor): n *d -> n *d."""
        total = torch.zeros_like(x)
        for rows, draw in self.pairs(x, draws):
            points, factor = point(rows, draw)
            total.index_add_(0, rows, self.slope(points, rows) * factor)
        return total

    @torch.no_grad()
    def values(self, x: Tensor, draws: int, point: Callable[[Tensor, Tensor], Tensor]) -> Tensor:  # -> n draws float64
        return torch.cat([self.at(point(*pair), pair[0]).double() for pair in self.pairs(x, draws)]).view(-1, draws)

    def plain(self, x: Tensor) -> Tensor:  # n *d -> n float64
        return self.values(x, 1, lambda rows, _: x[rows])[:, 0]


@dataclass(frozen=True, eq=False)
class _Asked:
    """What a map is made from."""

    x: Tensor
    base: Tensor  # n *d
    score: Score
    layer: str | None
    background: Tensor | None
    groups: Tensor | None
    samples: int  # 0 where the number of features decides
    noise: float
    rng: torch.Generator

    def grouped(self) -> Tensor:
        shape = self.x.shape[1:]
        return usual_groups(shape) if self.groups is None else grouping.checked(self.groups, shape)

    def draw(self, *shape: int) -> Tensor:
        """Uniform in [0, 1]."""
        return torch.rand(shape, generator=self.rng, device=self.rng.device, dtype=self.x.dtype).to(self.x.device)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.rng, device=self.rng.device, dtype=self.x.dtype).to(self.x.device)


def _rows(x: Tensor) -> int:
    rows, entries = (ROWS_CPU, ENTRIES_CPU) if x.device.type == "cpu" else (ROWS_GPU, ENTRIES)
    return max(1, min(rows, entries // x[0].numel()))


def _baseline(baseline: float | Tensor, x: Tensor) -> Tensor:
    base = torch.as_tensor(baseline, dtype=x.dtype, device=x.device)
    try:
        return base.expand_as(x)
    except RuntimeError:
        raise ShapeError(
            f"A baseline of shape {tuple(base.shape)} does not fit inputs of shape {tuple(x.shape)}; give one number, "
            "one input or one for each."
        ) from None


@torch.no_grad()
def _likeliest(model: Model, x: Tensor, batch: int) -> Tensor:
    return torch.cat([model(part).argmax(1) for part in torch.split(x, batch)])


def _gradient(asked: _Asked) -> Attribution:
    one = asked.x.new_ones(())
    slope = asked.score.mean_slope(asked.x, 1, lambda rows, _: (asked.x[rows], one))
    return Attribution(slope, True, False, None)


def _gradient_input(asked: _Asked) -> Attribution:
    return Attribution(_gradient(asked).values * (asked.x - asked.base), True, False, None)


def _integrated_gradients(asked: _Asked) -> Attribution:
    node, weight = (torch.from_numpy(a).to(asked.x) for a in np.polynomial.legendre.leggauss(asked.samples))
    x, way = asked.x, asked.x - asked.base

    def point(rows: Tensor, draw: Tensor) -> tuple[Tensor, Tensor]:
        return asked.base[rows] + wide((1 + node[draw]) / 2, x) * way[rows], wide(weight[draw] / 2, x)

    values = way * asked.score.mean_slope(x, asked.samples, point)
    return _complete(values, asked.score.plain(x) - asked.score.plain(asked.base))


def _expected_gradients(asked: _Asked) -> Attribution:
    x, k, start = asked.x, asked.samples, asked.background
    if start is None or start.shape[1:] != x.shape[1:] or len(start) == 0:
        got = None if start is None else tuple(start.shape)
        raise ShapeError(f"expected-gradients needs a background of examples, (m, *{tuple(x.shape[1:])}), got {got}.")
    # Every example in turn, in random order, and one a in each k-th of [0, 1].
    order = torch.cat([asked.draw(len(start)).argsort() for _ in range(-(-k // len(start)))])[:k]
    used = start.to(x)[order]
    depth = (torch.arange(k, device=x.device) + asked.draw(len(x), k)) / k  # n k

    def point(rows: Tensor, draw: Tensor) -> tuple[Tensor, Tensor]:
        way = x[rows] - used[draw]
        return used[draw] + wide(depth[rows, draw], x) * way, way / k

    values = asked.score.mean_slope(x, k, point)
    with torch.no_grad():
        outs = [asked.score.model(part).double() for part in torch.split(used, asked.score.batch)]
        whence = torch.cat(outs).mean(0, keepdim=True)  # 1 *o
    assert asked.score.target is not None  # more than one pass: explain has found the likeliest
    return _complete(
        values, asked.score.plain(x) - number(whence.expand(len(x), *whence.shape[1:]), asked.score.target)
    )


def _complete(values: Tensor, promised: Tensor) -> Attribution:
    return Attribution(values, True, True, values.double().flatten(1).sum(1) - promised)


def _smoothgrad(asked: _Asked) -> Attribution:
    x, k = asked.x, asked.samples
    sigma = asked.noise * (x.flatten(1).amax(1) - x.flatten(1).amin(1))  # n
    share = x.new_tensor(1 / k)

    def point(rows: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        return x[rows] + wide(sigma[rows], x) * asked.normal(len(rows), *x.shape[1:]), share

    return Attribution(asked.score.mean_slope(x, k, point), True, False, None)


def _gradcam(asked: _Asked) -> Attribution:
    x, model = asked.x, asked.score.model
    if not isinstance(model, nn.Module) or x.ndim != 4:
        raise AssayError(f"gradcam needs a CNN (an nn.Module) and images n c h w, got inputs {tuple(x.shape)}.")
    layer = asked.layer or last_maps(model, x)
    heat = gradcam(model, x, layer, target=asked.score.target, batch=asked.score.batch).heat()
    large = F.interpolate(heat[:, None], x.shape[2:], mode="bilinear", align_corners=False)
    return Attribution(large.expand_as(x).clone(), False, False, None)


def _shown(asked: _Asked, groups: Tensor, sets: Tensor) -> Tensor:
    """f with only the features of each set shown: m k bool -> n m float64."""
    x, never = asked.x, groups.to(asked.x.device) == grouping.NEVER

    def point(rows: Tensor, draw: Tensor) -> Tensor:
        return torch.where(grouping.spread(sets[draw], groups) | never, x[rows], asked.base[rows])

    return asked.score.values(x, len(sets), point)


def _shared(values: Tensor, groups: Tensor, like: Tensor) -> Tensor:
    """The value of each feature, in equal parts on its entries: n k -> n *d."""
    size = grouping.gather(torch.ones_like(groups, dtype=torch.float64)[None], groups).to(values.device)  # 1 k
    return grouping.spread(values / size, groups).to(like.dtype)


def _occlusion(asked: _Asked) -> Attribution:
    groups = asked.grouped()
    k = grouping.count(groups)
    value = _shown(asked, groups, ~torch.eye(k + 1, k, dtype=torch.bool, device=asked.x.device))  # the last has all
    return Attribution(_shared(value[:, -1:] - value[:, :-1], groups, asked.x), True, False, None)


def _lime(asked: _Asked) -> Attribution:
    groups = asked.grouped()
    k = grouping.count(groups)
    sets = asked.draw(asked.samples or max(LEAST_SAMPLES, SAMPLES_EACH * k), k) < 0.5
    sets[0] = True  # the input itself
    value = _shown(asked, groups, sets)  # n m
    b = sets.double()
    apart = 1 - (b.sum(1) / k).sqrt()  # the cosine distance to all ones
    near = (-apart.square() / (2 * LIME_WIDTH**2)).exp()  # m: the root of exp(-d^2 / width^2)
    near = near / near.sum()
    b, value = b - near @ b, value - (value @ near)[:, None]  # takes the intercept out
    gram = b.T @ (near[:, None] * b) * len(sets) + LIME_RIDGE * torch.eye(k, dtype=b.dtype, device=b.device)
    weight = torch.linalg.solve(gram, b.T @ (near[:, None] * value.T) * len(sets)).T
    return Attribution(_shared(weight, groups, asked.x), True, False, None)


def _kernel_shap(asked: _Asked) -> Attribution:
    groups = asked.grouped()
    k = grouping.count(groups)
    sets, weight = shapley_sets(k, asked.samples or max(LEAST_SAMPLES, SAMPLES_EACH * k), asked.draw)
    ends = torch.tensor([[False], [True]], device=asked.x.device).expand(2, k)
    value = _shown(asked, groups, torch.cat([ends, sets]))  # n 2+m
    nothing, everything, value = value[:, :1], value[:, 1:2], value[:, 2:]
    phi = shapley_regression(sets, weight, value - nothing, (everything - nothing)[:, 0])
    return _complete(_shared(phi, groups, asked.x), (everything - nothing)[:, 0])


def shapley_sets(k: int, samples: int, draw: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """Sets of k features, neither empty nor all, and their weights in the regression: -> m k bool, m float64.

    All 2^k - 2 with weight (k - 1) / (C(k, s) s (k - s)) where they are no more than `samples`; else `samples` of them
    drawn with these chances, each with its complement, and weighing the same.
    """
    if k < 2:
        return torch.zeros(0, k, dtype=torch.bool, device=draw(1).device), torch.zeros(0, dtype=torch.float64)
    size = torch.arange(1, k, dtype=torch.float64)
    if k < 30 and 2**k - 2 <= samples:
        number = torch.arange(1, 2**k - 1)
        sets = (number[:, None] >> torch.arange(k)) & 1 == 1
        each = torch.tensor([(k - 1) / (math.comb(k, s) * s * (k - s)) for s in range(1, k)], dtype=torch.float64)
        device = draw(1).device
        return sets.to(device), each[sets.sum(1) - 1].to(device)
    chance = 1 / (size * (k - size))
    pairs = -(-samples // 2)
    steps = (chance / chance.sum()).cumsum(0).to(draw(1).device)
    drawn = torch.searchsorted(steps, draw(pairs).double()).clamp_max(k - 2) + 1  # the sizes
    half = draw(pairs, k).argsort(1).argsort(1) < drawn[:, None]
    sets = torch.cat([half, ~half])
    return sets, torch.ones(len(sets), dtype=torch.float64, device=sets.device)


def shapley_regression(sets: Tensor, weight: Tensor, value: Tensor, total: Tensor) -> Tensor:
    """argmin_phi sum_S weight (phi . b(S) - value(S))^2 with sum phi = total: m k, m, n m, n -> n k float64."""
    k = sets.shape[1]
    if k == 1:
        return total[:, None]
    b = sets.double()
    # The last feature takes what the others leave of the total: least squares without a constraint.
    rest = b[:, :-1] - b[:, -1:]  # m k-1
    right = value - b[:, -1] * total[:, None]  # n m
    gram = rest.T @ (weight[:, None] * rest)
    first = (torch.linalg.pinv(gram, hermitian=True) @ (rest.T @ (weight[:, None] * right.T))).T
    return torch.cat([first, total[:, None] - first.sum(1, keepdim=True)], 1)


def _rise(asked: _Asked) -> Attribution:
    x, m = asked.x, asked.samples
    score = Score(asked.score.model, asked.score.target, asked.score.batch, probability=True)
    if x.ndim == 4 and asked.groups is None:
        seen = soft_masks(m, x.shape[2], x.shape[3], asked.draw)[:, None]  # m 1 h w
    else:
        groups = asked.grouped()
        shown = asked.draw(m, grouping.count(groups)) < 0.5
        seen = (grouping.spread(shown, groups) | (groups.to(x.device) == grouping.NEVER)).to(x.dtype)  # m *d

    def point(rows: Tensor, draw: Tensor) -> Tensor:
        return asked.base[rows] + seen[draw] * (x[rows] - asked.base[rows])

    value = score.values(x, m, point)  # n m
    flat = seen.flatten(1).double()
    mean = (value @ flat) / flat.sum(0).clamp_min(torch.finfo(torch.float64).tiny)
    values = mean.view(len(x), *seen.shape[1:]).expand_as(x).to(x.dtype)
    signed = score.target is not None and not is_class(score.target)
    if signed:
        values = values - wide(value.mean(1), x).to(x.dtype)
    if asked.groups is not None:
        values = values * (asked.groups.to(x.device) != grouping.NEVER)
    return Attribution(values.clone(), signed, False, None)


def soft_masks(count: int, h: int, w: int, draw: Callable[..., Tensor]) -> Tensor:
    """RISE's masks: a coarse grid of zeros and ones, made larger bilinearly and shifted by up to a cell: -> m h w."""
    side, across = -(-h // CELLS), -(-w // CELLS)  # of a cell
    coarse = (draw(count, 1, CELLS + 1, CELLS + 1) < 0.5).to(draw(1))
    large = F.interpolate(coarse, ((CELLS + 1) * side, (CELLS + 1) * across), mode="bilinear", align_corners=False)[
        :, 0
    ]
    down, right = (draw(2, count) * torch.tensor([[side], [across]], device=large.device)).long()
    rows = down[:, None] + torch.arange(h, device=large.device)  # m h
    columns = right[:, None] + torch.arange(w, device=large.device)  # m w
    return large[torch.arange(count, device=large.device)[:, None, None], rows[:, :, None], columns[:, None, :]]


def _random(asked: _Asked) -> Attribution:
    return Attribution(asked.normal(*asked.x.shape), True, False, None)


def _edges(asked: _Asked) -> Attribution:
    return Attribution(edges(asked.x), False, False, None)


def edges(x: Tensor) -> Tensor:
    """The length of Sobel's gradient of the brightness, on every channel: n c h w -> n c h w."""
    if x.ndim != 4:
        raise ShapeError(f"Edges are found in images n c h w, got shape {tuple(x.shape)}.")
    smooth, step = x.new_tensor([1.0, 2.0, 1.0]), x.new_tensor([-1.0, 0.0, 1.0])
    kernels = torch.stack([torch.outer(smooth, step), torch.outer(step, smooth)])[:, None]  # 2 1 3 3
    slope = F.conv2d(F.pad(x.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate"), kernels)
    length: Tensor = torch.linalg.vector_norm(slope, dim=1, keepdim=True)
    return length.expand_as(x).clone()


_MAPS: dict[str, Callable[[_Asked], Attribution]] = {
    "gradient": _gradient,
    "gradient-input": _gradient_input,
    "integrated-gradients": _integrated_gradients,
    "expected-gradients": _expected_gradients,
    "smoothgrad": _smoothgrad,
    "gradcam": _gradcam,
    "occlusion": _occlusion,
    "lime": _lime,
    "kernel-shap": _kernel_shap,
    "rise": _rise,
    "random": _random,
    "edges": _edges,
}
