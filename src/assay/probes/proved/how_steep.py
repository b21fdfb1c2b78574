"""How fast the answer can change around each input: Lipschitz constants, proved from above and seen from below."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError
from assay.finding import Alarm, Beside, Curve, Finding, Histogram, Line, Measure, Table, share
from assay.methods.attack.aim import truth_of
from assay.methods.attack.cells import masked, settled
from assay.methods.attack.jacobian import jacobian
from assay.methods.attack.minimal_norm import minimal_norm
from assay.methods.attack.swift import searching
from assay.methods.certify.demands import demanded, readable, unproved
from assay.methods.certify.layers import Affine, Conv, Dense, Part, Shape, layers
from assay.methods.certify.lipschitz import Lipschitz, certified_radius, lipschitz, norm_product
from assay.methods.certify.relax import Demand
from assay.methods.certify.steepest import steepest_secant
from assay.probe import Need, Probe
from assay.run import batch_of

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import InputSpace, Subject

Floats = NDArray[np.float64]
NEURONS = 512  # ReLUs up to which the constant is searched for: a cut asks a linear program about each of them
CUTS = 320  # nodes of one search times ReLUs, for each step of the budget: a node costs about as much as it has ReLUs
Norm = Literal["l2", "linf"]
NORMS: tuple[Norm, ...] = ("l2", "linf")
LETTERS = {"l2": "l2", "linf": "l∞"}
SLACK = 1e-3  # of a distance: float32 may break what is proved in exact arithmetic, by its rounding
LEAST = 1e-5  # of the range of the inputs, the same
STEEPER = 1e-6  # of a slope in float64, the same
SEEN = 5  # inputs for each step of the budget where only gradients are taken
FINE = 16  # frequencies for each degree of a kernel: its norm is at most 4 % above the largest one among them
HEADLINE = "median local constant"


@dataclass(frozen=True)
class HowSteep(Probe):
    """How fast can its answer change?

    The slope is the largest l2 change of the outputs (logits, labels, numbers) for an l2 change of 1, anywhere within
    `reach` of an input in each value. It is proved from above by a search over the pieces of the network, which ends
    after `nodes` nodes with an interval that holds all the same; a piece too thin for rounding to see is not called
    solved. From it follows a radius within which the answer stays. What is proved is held against what ascent and
    attacks find: where they find more, one of the two is wrong, and nothing here can pass.
    """

    reach: float = 8 / 255
    inputs: int | None = None
    nodes: int | None = None

    in_shares: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Bhowmick, D'Souza & Raghavan, ICANN 2021, arXiv:2105.05495; norms of convolutions from their symbol, Sedghi, "
        "Gupta & Long, ICLR 2019, arXiv:1805.10408; Pintor et al., NeurIPS 2021, arXiv:2102.12827 (the attack)"
    )
    needs: ClassVar[tuple[Need, ...]] = ("gradients",)

    def __post_init__(self) -> None:
        self.refuse_below(1e-9, "reach")
        self.refuse_beyond_the_range("reach")
        self.refuse_below(1, "inputs", "nodes")

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        reason = reason or unproved(subject.task, subject.model, subject.inputs.shape, draws=subject.draws)
        if reason is not None:
            return reason
        try:
            readable(subject.in_classes().model, subject.inputs.shape)
        except AssayError as e:
            return f"it reads the network layer by layer: {e}"
        return None

    def ask(self, subject: Subject, run: Run) -> Finding:
        chain = layers(subject.model, subject.inputs.shape)
        neurons = sum(math.prod(affine.out_shape) for affine in chain[:-1])
        return self._search(subject, run, neurons) if neurons <= NEURONS else self._glance(subject, run, chain, neurons)

    def _search(self, subject: Subject, run: Run, neurons: int) -> Finding:
        """The network is small enough to be searched around each input."""
        nodes, shape = self.nodes or max(1, CUTS * run.budget.steps // max(1, neurons)), subject.inputs.shape
        index = run.pick(subject.data["test"], self.inputs or run.budget.few(run.budget.steps))
        product = norm_product(subject.model, shape=shape)
        everywhere = lipschitz(subject.model, nodes=nodes, shape=shape)
        work = partial(self._around, subject, nodes, run.budget.steps)
        rows = run.map(work, subject, "test", index, "how steep it is")
        told = _told(subject, rows)
        right, thin = (np.asarray(rows[name], dtype=bool) for name in ("right", "thin"))
        col = {n: np.asarray(of, dtype=np.float64) for n, of in rows.items() if n not in ("label", "right", "thin")}
        what, nearest, wide = "logits", "the difference of the two highest logits", math.sqrt(2)
        if "classes" not in subject.task.gives:
            what, nearest, wide = "outputs", "what is nearest to spoiling the answer", 1.0
        # where the logits move by one unit of length, the difference of two moves by at most sqrt(2)
        width = subject.inputs.high - subject.inputs.low
        naive = np.where(right, np.minimum(_quotient(col["margin"], wide * product), width), 0.0)
        exact = col["upper"] <= col["lower"] * (1 + 1e-9)
        held = right & (col["radius linf"] >= self.reach)
        closed = np.where(exact, 1.0, col["lower"] / np.where(exact, 1.0, col["upper"]))
        tight = col["upper"] / product if product else np.ones(len(index))
        reach, whole = subject.inputs.size(self.reach), subject.inputs.size(1)
        about = f"within {reach} of each value"
        measures = (
            Measure.median(
                HEADLINE,
                col["upper"],
                seed=run.seed,
                better="lower",
                about=f"the most that the {what} (l2) change for an l2 change of {whole}, {about}: the proved upper "
                "end",
                beside=(
                    Beside("lower end", _mid(col["lower"])),
                    Beside("gradient at the input", _mid(col["gradient"])),
                    Beside("steepest secant found", _mid(col["secant"])),
                    Beside("before any cut", _mid(col["first"])),
                    Beside("everywhere, upper end", everywhere.upper),
                    Beside("product of norms", product),
                ),
            ),
            Measure.median(
                "median local constant of the margin",
                col["margin upper"],
                seed=run.seed,
                better="lower",
                about=f"the same for {nearest}, {about}",
                beside=(Beside("lower end", _mid(col["margin lower"])),),
            ),
            Measure.median(
                "median certified radius, l2",
                col["radius l2"],
                seed=run.seed,
                better="higher",
                about="the smallest margin / constant of that margin: searched within reach, or before any cut "
                "wherever inputs may lie; 0 where wrong",
                beside=(Beside("by the product of norms", _mid(naive)), *_broken(col["broken l2"])),
            ),
            Measure.median(
                "median certified radius, linf",
                col["radius linf"],
                seed=run.seed,
                better="higher",
                about=f"the same for the largest change of any value, within reach only: at most {reach}",
                beside=_broken(col["broken linf"]),
            ),
            Measure.proportion(
                "certified within reach",
                held,
                better="higher",
                column="certified",
                about=f"right, and no change of at most {reach} in each value alters it, by slope alone",
            ),
            Measure.median(
                "lower over upper end",
                closed,
                seed=run.seed,
                better="higher",
                about="1 says that the constant is known",
            ),
            Measure.median(
                "share of the product of norms",
                tight,
                seed=run.seed,
                better="neither",
                about="local constant, upper end, over the bound that needs no search; 1 says that searching gained "
                "nothing",
            ),
            Measure.proportion(
                "solved exactly", exact, better="neither", column="exact", about=f"of searches of at most {nodes} nodes"
            ),
        )
        steep = measures[0].value
        return Finding(
            says=f"Within {reach} of half of the inputs, the {what} change by at most {steep:.3g} for an l2 "
            f"change of {whole}, where the product of norms says {product:.3g}; "
            f"{share(int(held.sum()), len(held))} keep a right answer there.",
            measures=measures,
            samples=Table(
                "test",
                {
                    "index": index,
                    **told,
                    "right": right,
                    "certified": held,
                    "exact": exact,
                    "thin": thin,
                    **{name: np.where(np.isfinite(of), of, np.nan) for name, of in col.items()},
                },
            ),
            views=(
                _slopes(col, product),
                _certified(
                    subject.inputs, "l2", {"margin by margin": col["radius l2"], "by the product of norms": naive}
                ),
                _certified(subject.inputs, "linf", {"margin by margin": col["radius linf"]}),
            ),
            alarms=(
                *_contradicted(index, col, width, [m.name for m in measures]),
                *([Alarm(less)] if (less := "" if (may := subject.reach()) is None else may.of_proofs()) else []),
                *_too_thin(thin & ~exact),
                *_capped(exact | thin, nodes, neurons),
            ),
        )

    def _around(self, subject: Subject, nodes: int, steps: int, shard: Shard) -> Mapping[str, Tensor]:
        """The constants in the box around each input, how far they carry its answer, and what an attacker finds."""
        model, (low, high) = subject.model, (subject.inputs.low, subject.inputs.high)
        x = shard.x.clamp(low, high).double()
        twin = copy.deepcopy(model).double()
        z, of = twin(x), _two(twin)  # n k
        slope = jacobian(of, x).flatten(2)[:, : z.shape[1]]  # n k d
        keep = demanded(subject.task, shard.y)
        rows, margin = _nearest(z, keep)
        lean = torch.linalg.vector_norm(torch.einsum("nk,nkd->nd", rows, slope), dim=1)
        right = subject.task.right(subject.predict(shard.x), shard.y)
        told = {"gradient": _spectral(slope), "margin gradient": lean, "margin": margin}
        ends = ((x - self.reach).clamp_min(low), (x + self.reach).clamp_max(high))
        told["secant"] = steepest_secant(of, *ends, rng=shard.rng, steps=steps)
        for norm in NORMS:
            told[f"broken {norm}"] = _attack(subject, shard, right, norm, steps)
        given = {name: column.cpu().numpy() for name, column in told.items()}
        found = []
        for i, one in enumerate(x.cpu()):
            box = (ends[0][i].cpu().numpy(), ends[1][i].cpu().numpy())
            whole = lipschitz(model, box, nodes=nodes)
            apart = lipschitz(model, box, rows=rows[i : i + 1].cpu().numpy(), nodes=nodes)
            # far out few neurons are decided and cuts gain little: there the bound before any cut has to do
            demand = (keep.rows[i].cpu(), keep.offset[i].cpu()) if isinstance(keep, Demand) else None
            radius = [
                certified_radius(model, one, reach=reach, p=p, bounds=(low, high), demand=demand, nodes=most)
                if right[i]
                else 0.0
                for reach, p, most in ((self.reach, 2, nodes), (high - low, 2, 1), (self.reach, math.inf, nodes))
            ]
            found.append(
                {
                    "lower": max(_at_least(whole, given["gradient"][i]), min(given["secant"][i], whole.upper)),
                    "upper": whole.upper,
                    "first": whole.first,
                    "nodes": whole.nodes,
                    "thin": "thin" in (whole.stopped, apart.stopped),
                    "margin lower": _at_least(apart, given["margin gradient"][i]),
                    "margin upper": apart.upper,
                    "radius l2": max(radius[:2]),
                    "radius linf": radius[2],
                }
            )
        searched = {name: torch.tensor([one[name] for one in found], dtype=torch.float64) for name in found[0]}
        return {"label": shard.y, "right": right, **told, **searched}

    def _glance(self, subject: Subject, run: Run, chain: tuple[Affine, ...], neurons: int) -> Finding:
        """The network is too large to be searched: what was seen at some inputs, and what needs no search."""
        index = run.pick(subject.data["test"], self.inputs or run.budget.few(SEEN * run.budget.steps))
        rows = run.map(
            lambda s: {"label": s.y, "gradient": _steepest(subject, math.prod(chain[-1].out_shape), s.x)},
            subject,
            "test",
            index,
            "gradients",
        )
        gradient = np.asarray(rows["gradient"], dtype=np.float64)
        what = "logits" if "classes" in subject.task.gives else "outputs"
        steepest = float(gradient.max())
        seen = Measure(
            name="largest gradient seen",
            value=steepest,
            n=len(index),
            better="lower",
            about=f"the most that the {what} (l2) change for a tiny l2 change of 1, over the inputs asked: the slope "
            "is at least this" + subject.inputs.aside(1),
            beside=(Beside("median over the inputs", _mid(gradient)),),
        )
        product = math.prod(_norm(part, shape) for a in chain for part, shape in zip(a.parts, a.shapes, strict=False))
        proved = Measure(
            name="product of norms",
            value=product,
            better="lower",
            about="over all layers: the slope is nowhere more than this",
        )
        blocked = Alarm(
            f"The network has {neurons:,} ReLUs, and the search for the slope around an input is for at most "
            f"{NEURONS}: the truth is anywhere from {_short(steepest)} to {_short(product)}.",
            doubts=(seen.name,),
        )
        return Finding(
            says=f"For an l2 change of {subject.inputs.size(1)} the {what} change by {_short(steepest)} or more "
            f"somewhere, and by {_short(product)} or less everywhere; the network is too large to say more.",
            measures=(seen, proved),
            samples=Table("test", {"index": index, **_told(subject, rows), "gradient": gradient}),
            views=(_seen(gradient),),
            alarms=(blocked,),
        )


def _told(subject: Subject, rows: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.int64]]:
    """The labels, where they are classes."""
    return {"label": np.asarray(rows["label"], dtype=np.int64)} if "classes" in subject.task.gives else {}


def _nearest(z: Tensor, keep: Tensor | Demand) -> tuple[Tensor, Tensor]:  # n k -> n k, n
    """Which combination of the outputs is nearest to spoiling the answer, and by how much it holds.

    Of classes the two highest, whatever the label is.
    """
    if isinstance(keep, Demand):
        held = torch.einsum("nrk,nk->nr", keep.rows, z) + keep.offset
        at = held.argmin(1)
        each = torch.arange(len(z), device=z.device)
        return keep.rows[each, at], held[each, at]
    best = z.topk(2).indices
    rows = torch.zeros_like(z).scatter_(1, best, torch.tensor([1.0, -1.0], dtype=z.dtype).to(z).expand(len(z), 2))
    return rows, (rows * z).sum(1)


def _steepest(subject: Subject, outputs: int, x: Tensor) -> Tensor:  # n *d -> n
    """The largest singular value of each input's gradients, of as many inputs at once as a batch has room for."""
    some = torch.split(x, batch_of((outputs, *subject.inputs.shape)))
    return torch.cat([_spectral(jacobian(_two(subject.model), part).flatten(2).double()) for part in some])


def _two(model: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The outputs, and a 0 beside a single one: no length changes, and slopes are taken of several outputs."""

    def of(x: Tensor) -> Tensor:  # n *d -> n k, k >= 2
        z = model(x)
        return z if z.shape[1] > 1 else torch.cat([z, torch.zeros_like(z)], 1)

    return of


def _short(value: float) -> str:
    return f"{float(f'{value:.3g}'):,g}"


def _spectral(j: Tensor) -> Tensor:
    """The largest singular value of each matrix: n k d -> n."""
    squares: Tensor = torch.linalg.eigvalsh(j @ j.mT)  # n k, ascending
    return squares[:, -1].clamp_min(0).sqrt()


def _at_least(found: Lipschitz, gradient: float) -> float:
    """A gradient is a lower bound too, unless the input lies on a kink, where autograd's may be that of no piece."""
    return max(found.lower, min(float(gradient), found.upper)) if gradient <= found.upper * (1 + 1e-9) else found.lower


def _quotient(top: Floats, bottom: Floats | float) -> Floats:
    """top / bottom, infinite over 0: n, n -> n."""
    below = np.broadcast_to(np.asarray(bottom, dtype=np.float64), top.shape)
    out: Floats = np.divide(top, below, out=np.full(top.shape, np.inf), where=below > 0)
    return out


def _norm(part: Part, shape: Shape) -> float:
    r"""An upper bound of ||W||_2 that costs little; loose by the edges of a picture, by strides, by 4 % a convolution.

    Dense: the norm itself. A convolution with zeros around is a window of one on the infinite grid, whose norm is
    sup_w ||C(w)||_2, C(w) = sum_u c_u e^{iuw}. A trigonometric polynomial of degree m is at most 1 / cos(pi m / N)
    times the largest of N even samples (M. Riesz), once for each axis. A stride only leaves rows out. All else, by
    Schur's test: sqrt(||W||_1 ||W||_inf), which is the norm for scalings, reshapes and averages that do not overlap.
    """
    if isinstance(part, Dense):
        return float(torch.linalg.matrix_norm(part.weight, ord=2))
    if isinstance(part, Conv):
        degree = [side // 2 for side in part.weight.shape[2:]]
        grid = [max(1, FINE * m) for m in degree]
        symbol = torch.fft.rfft2(part.weight.reshape(part.groups, -1, *part.weight.shape[1:]), s=grid).permute(
            0, 3, 4, 1, 2
        )
        gram = symbol @ symbol.mH if symbol.shape[-2] <= symbol.shape[-1] else symbol.mH @ symbol
        slack = math.prod(math.cos(math.pi * m / n) for m, n in zip(degree, grid, strict=True))
        return float(torch.linalg.eigvalsh(gram).amax().clamp_min(0).sqrt()) / slack
    size = part.magnitude()
    one = torch.ones(1, *shape, dtype=torch.float64, device=None if part.bias is None else part.bias.device)
    across = size.linear(one)
    return math.sqrt(float(across.amax()) * float(size.transpose(torch.ones_like(across), shape).amax()))


def _mid(values: Floats) -> float:
    """The median, the lower of two: n -> scalar."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def _attack(subject: Subject, shard: Shard, right: Tensor, norm: Norm, steps: int) -> Tensor:  # n -> n
    """The smallest change found that alters a right answer; infinite where none was found."""
    size = torch.full(right.shape, torch.inf, dtype=torch.float64, device=right.device)
    rows = right.nonzero()[:, 0]
    if len(rows):
        x, y, bounds = shard.x[rows], shard.y[rows], (subject.inputs.low, subject.inputs.high)
        reach, everyone = subject.reach(x), torch.arange(len(x), device=x.device)
        through = searching(subject.model, x, draws=subject.draws)
        got = minimal_norm(
            through.model, x, truth_of(subject.task, y), norm=norm, steps=steps, mask=masked(reach, everyone),
            bounds=bounds, precision=through.boundary,
        )  # fmt: skip
        at, far = settled(reach, everyone, got, x, norm)
        fell = ~subject.task.right(subject.predict(at), y)  # what a fresh look confirms, and nothing else
        size[rows[fell]] = far[fell].double()
    return size


def _broken(size: Floats) -> tuple[Beside, ...]:
    mid = _mid(size)
    return (Beside("an attack breaks at", mid),) if math.isfinite(mid) else ()


def _contradicted(
    index: NDArray[np.int64], col: Mapping[str, Floats], width: float, names: list[str]
) -> tuple[Alarm, ...]:
    """What is proved may not be less steep than what was seen, nor reach farther than an attack."""
    checks = [("a slope of at most", "upper", "a secant has", "secant", col["secant"] > col["upper"] * (1 + STEEPER))]
    for norm in NORMS:
        proved, broken = col[f"radius {norm}"], col[f"broken {norm}"]
        false = proved > broken * (1 + SLACK / 2) + LEAST * width
        checks.append((f"{norm} radius of", f"radius {norm}", "an attack breaks it at", f"broken {norm}", false))
    alarms = []
    for what, mine, how, theirs, false in checks:
        if false.any():
            i = int(np.argmax(false))
            says = (
                f"Proof and search contradict each other for {share(int(false.sum()), len(index))}: input {index[i]} "
                f"is proved to have {what} {col[mine][i]:.6g}, and {how} {col[theirs][i]:.6g}. One of the two is a "
                "bug, so nothing here can be believed; please report it."
            )
            alarms.append(Alarm(says, doubts=tuple(names)))
    return tuple(alarms)


def _too_thin(thin: NDArray[np.bool_]) -> tuple[Alarm, ...]:
    if not thin.any():
        return ()
    return (
        Alarm(
            f"Around {share(int(thin.sum()), len(thin))} of the inputs the network may have pieces thinner than "
            "rounding can see: the bound before any cut stands for them, so the upper end holds and may be too high."
        ),
    )


def _capped(exact: NDArray[np.bool_], nodes: int, neurons: int) -> tuple[Alarm, ...]:
    left = int((~exact).sum())
    if not left:
        return ()
    return (
        Alarm(
            f"For {share(left, len(exact))} of the inputs the search among {neurons} ReLUs ended at its {nodes} nodes: "
            "the constant lies in the interval given, which holds, but may be well below its upper end. More nodes, or "
            "a smaller reach, would say."
        ),
    )


def _slopes(col: Mapping[str, Floats], product: float) -> Curve:
    order = np.lexsort((col["lower"], col["upper"]))
    place = tuple(float(i) for i in range(1, len(order) + 1))

    def line(label: str, name: str) -> Line:
        return Line(label=label, x=place, y=tuple(map(float, col[name][order])))

    return Curve(
        name="slopes",
        title="How steep it is around each input, from the flattest to the steepest",
        x_label="inputs, in order",
        y_label="slope (l2)",
        lines=(
            line("before any cut", "first"),
            line("proved: at most", "upper"),
            line("proved: at least", "lower"),
            line("gradient at the input", "gradient"),
        ),
        says=f"The constant lies between the two proved lines; where they meet it is known. The product of norms, "
        f"which needs no search, is {product:.3g}.",
    )


def _certified(space: InputSpace, norm: str, radii: Mapping[str, Floats]) -> Curve:
    top = max(float(r.max()) for r in radii.values()) or 1.0
    grid = np.linspace(0, top, 41)
    lines = []
    for label, radius in radii.items():
        # at 0 the right ones; a radius counts up to and with itself
        hits = [(radius >= r).sum() if r else (radius > 0).sum() for r in grid]
        lines.append(Line.shares(label, grid, hits, len(radius)))
    return Curve(
        name=f"certified-{norm}",
        title=f"Inputs whose right answer is certain to stay, against the size of the change ({LETTERS[norm]})",
        x_label=space.axis(f"{LETTERS[norm]} size"),
        y_label="certified accuracy",
        unit_y=True,
        lines=tuple(lines),
        says="The truth can only be higher: a slope that is large somewhere near need not lead to another answer.",
    )


def _seen(gradient: Floats) -> Histogram:
    counts, edges = np.histogram(gradient, bins=20)
    return Histogram(
        name="gradients",
        title="The slope at each input",
        x_label="slope (l2)",
        edges=tuple(map(float, edges)),
        counts=(("inputs", tuple(map(float, counts))),),
        says="At the inputs themselves; a step away it may be steeper.",
    )


SHELVED = HowSteep
