"""Evolve networks for error, individual and group unfairness at once, and choose among those that nothing beats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from assay.errors import AssayError
from assay.finding import Line, Scatter, View
from assay.inputs import Row
from assay.methods.fair.entropy import everyone_positive, gaming
from assay.methods.fair.evolve import Evolved, People, evolve, fronts, judged
from assay.methods.fair.front import NADIR, hypervolume, pure_diversity, spacing
from assay.methods.fair.population import Population, drawn
from assay.nn.front import OneOfFront
from assay.remedy import Cost, Remedy

if TYPE_CHECKING:
    from assay.run import Run
    from assay.subject import Subject

NAMES = ("squared error", "individual unfairness", "group unfairness", "mean error")
EXTREMES = {"best-mse": 0, "best-individual": 1, "best-group": 2}
LEAST = 30  # people of the part that judges, in every group
FEW = 0.02  # mean error beyond the plain network's that is told as gaming


class _Parts(NamedTuple):
    train: People
    judge: People


@dataclass(frozen=True)
class _OfTables(Remedy):
    """What the evolution and its control share: networks with one hidden layer on the rows of a table with people."""

    hidden: int = 64
    lr: float = 0.01
    batch: int = 500
    held: float = 0.25

    needs_train: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Zhang et al., 'Fairer Machine Learning Through Multi-objective Evolutionary Learning', ICANN 2021"
    )

    def __post_init__(self) -> None:
        if not 0 < self.held < 1:
            raise AssayError(f"held={self.held:g} is no part of the training data; give a share between 0 and 1.")
        for name in ("hidden", "batch"):
            if getattr(self, name) < 1:
                raise AssayError(f"{name}={getattr(self, name)} is too few; give a whole number of at least 1.")

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is not None:
            return reason
        classes = len(subject.task.classes)
        if classes != 2:
            return f"it tells two classes apart, one of them a benefit, and this task has {classes}"
        if len(subject.inputs.shape) != 1 or subject.tokens:
            return f"it trains networks on rows of a table, and an input here has shape {subject.inputs.shape}"
        if not any("train" in each.codes for each in subject.attributes.values()):
            return (
                "it needs to know something about the people behind the training inputs: --sensitive COLUMN of a "
                "table, or --groups NAME@train=PATH with one value for each row"
            )
        return None

    def model(self, subject: Subject, members: int) -> OneOfFront:
        columns = subject.kind.columns if isinstance(subject.kind, Row) else ()
        values = [len(c.categories) if c.type == "category" else 0 for c in columns]
        return OneOfFront(values or [0] * subject.inputs.shape[0], members, self.hidden).eval()

    def rows(self, subject: Subject, seed: int) -> tuple[Tensor, Tensor, Tensor]:  # n d, n, n
        """The training data in an order that the seed gives, the first of them held for judging, and that order."""
        data = subject.data["train"]
        order = np.random.default_rng(seed).permutation(len(data))
        x, y = data.take(order)
        return torch.as_tensor(x).float(), torch.as_tensor(y).long(), torch.from_numpy(order)

    def alone(self, x: Tensor, y: Tensor, epochs: int, run: Run) -> Population:  # 1 n d, 1 n
        """One network, trained plainly."""
        rng = run.rng()
        begun = drawn(1, 1, x.shape[2], self.hidden, rng)
        return begun.trained(x, y, epochs=epochs, lr=self.lr, batch=self.batch, rng=rng)


@dataclass(frozen=True)
class FairMoel(_OfTables):
    """Evolves 50 networks for error, individual and group unfairness at once; one of those that nothing beats is taken.

    Networks with one hidden layer, whatever the subject is, trained together on the training data but for the share
    `held`, by which they are judged and selected. `choose` takes one of the front: knee (nearest to the best of all
    objectives), best-mse, best-individual, best-group, or a number as in the figures, by squared error from 0.
    Groups are the combinations of `attributes`, all that the training data have unless some are named. `front` names
    the weights of an earlier cure with the same settings: another of its members is chosen and nothing is trained.
    """

    attributes: tuple[str, ...] = ()
    choose: str = "knee"
    generations: int = 60
    size: int = 50
    epochs: int = 1
    noise: float = 0.01
    front: str = ""

    mends: ClassVar[tuple[str, ...]] = ("is-it-fair",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.choose not in ("knee", *EXTREMES) and not self.choose.isdecimal():
            raise AssayError(f"choose={self.choose!r} is none of knee, {', '.join(EXTREMES)} or a number from 0.")
        if self.choose.isdecimal() and int(self.choose) >= self.size:
            raise AssayError(
                f"choose={self.choose} is no member of a front of at most {self.size}; give a number from 0 to "
                f"{self.size - 1}."
            )
        for name, least in (("generations", 0), ("size", 2), ("epochs", 1)):
            if getattr(self, name) < least:
                raise AssayError(f"{name}={getattr(self, name)} is too few; give a whole number of at least {least}.")

    def why_not(self, subject: Subject) -> str | None:
        known = [name for name, each in subject.attributes.items() if "train" in each.codes]
        strange = [name for name in self.attributes if name not in known]
        reason = super().why_not(subject)
        return reason or (f"its training data have no attribute {strange[0]!r}, only {known}" if strange else None)

    def settled(self, subject: Subject) -> Self:
        known = tuple(name for name, each in subject.attributes.items() if "train" in each.codes)
        return replace(self, attributes=self.attributes or known)

    def cost(self) -> Cost:
        """Of a plain network of its own kind, which is trained beside it."""
        return Cost(0 if self.front else self.size + 1, 1)

    def control(self) -> Remedy:
        return PlainNetwork(self.hidden, self.lr, self.batch, self.held, (self.generations + 1) * self.epochs)

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(self.model(subject, self.size), self.name())

    def apply(self, subject: Subject, run: Run) -> Subject:
        model = self.model(subject, self.size)
        parts = self.settled(subject)._parts(subject, model, run)
        if self.front:
            self._load(model, parts)
        else:
            self._evolve(model, parts, run)
        model.choose(self._chosen(model))
        return subject.cured(model.cpu(), self.name())

    def _parts(self, subject: Subject, model: OneOfFront, run: Run) -> _Parts:
        x, y, order = self.rows(subject, run.seed)
        held = round(self.held * len(x))
        model.encoded.fit(x[held:])
        codes = np.stack([subject.attributes[name].codes["train"] for name in self.attributes])[:, order.numpy()]
        known = np.flatnonzero((codes[:, :held] >= 0).all(0))  # who is in no group judges nobody
        kinds, groups = np.unique(codes[:, known], axis=1, return_inverse=True)
        groups = groups.reshape(-1)
        sizes = np.bincount(groups, minlength=kinds.shape[1])
        told = tuple(
            "-".join(subject.attributes[name].values[k] for name, k in zip(self.attributes, kind, strict=True))
            for kind in kinds.T
        )
        if len(told) < 2:
            raise AssayError(
                f"The {held:,} training inputs that are held for judging have {len(told)} group of "
                f"{', '.join(self.attributes)}; name other attributes, or hold more (--set held=0.4)."
            )
        if sizes.min() < LEAST:
            raise AssayError(
                f"The group {told[int(sizes.argmin())]!r} has {sizes.min()} of the {held:,} training inputs that are "
                f"held for judging, fewer than {LEAST}; hold more (--set held=0.4), or name fewer attributes."
            )
        rows, truth = model.encoded(x).to(run.device), y.to(run.device)
        who, of = (torch.from_numpy(each).to(run.device) for each in (known, groups))
        return _Parts(
            People(
                rows[None, held:], truth[None, held:], torch.zeros_like(truth[None, held:])
            ),  # no groups in training
            People(rows[None, who], truth[None, who], of[None]),
        )

    def _evolve(self, model: OneOfFront, parts: _Parts, run: Run) -> None:
        words = f"evolving {self.size} networks for {self.generations} generations"
        with run.progress(words, self.generations + 1) as tick:
            evolved = evolve(
                parts.train, parts.judge, hidden=self.hidden, generations=self.generations, size=self.size,
                noise=self.noise, epochs=self.epochs, lr=self.lr, batch=self.batch, rng=run.rng(),
                after=lambda generation, here: tick(1),
            )  # fmt: skip
        plain = self.alone(parts.train.x, parts.train.y, (self.generations + 1) * self.epochs, run)
        seen = _with_mean_error(evolved, parts.judge)
        dominated = fronts(seen[:, :3]) > 0
        order = torch.as_tensor(np.lexsort((seen[:, 0].cpu().numpy(), dominated.cpu().numpy()))).to(seen.device)
        _put(model, evolved.population.take(order[None]))
        model.objectives.copy_(seen[order])
        model.on_front.copy_(~dominated[order])
        model.plain.copy_(_with_mean_error(Evolved(plain, judged(plain, parts.judge)), parts.judge)[0])

    def _load(self, model: OneOfFront, parts: _Parts) -> None:
        """The front of an earlier cure, which must be of these data and settings."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        here = {name: each.clone() for name, each in model.encoded.state_dict(prefix="encoded.").items()}
        if not Path(self.front).is_file():
            raise AssayError(
                f"There is no file {self.front!r}; front= names the weights.safetensors of an earlier cure."
            )
        try:
            state = load_file(self.front)
            model.load_state_dict(state)
        except (OSError, SafetensorError, RuntimeError) as e:
            raise AssayError(
                f"{self.front!r} is no front of {self.size} networks with {self.hidden} hidden units for this table; "
                "give the settings that it was made with."
            ) from e
        if not all(torch.allclose(state[name], each) for name, each in here.items()):
            raise AssayError(
                f"The front in {self.front!r} was made from other data; leave front out, and it is evolved."
            )
        many = int(model.on_front.sum())
        if not many or not bool(model.on_front[:many].all()):
            raise AssayError(
                f"{self.front!r} has {many} networks on its front, not the first of them; evolve it again."
            )
        members = Population(*(w[None].to(parts.judge.x.device) for w in (model.inner, model.outer, model.shift)))
        seen = _with_mean_error(Evolved(members, judged(members, parts.judge)), parts.judge).cpu()
        if not torch.allclose(seen, model.objectives.to(seen), rtol=1e-3, atol=1e-5):
            raise AssayError(
                f"The front in {self.front!r} was judged by other people than those of {', '.join(self.attributes)} "
                f"with held={self.held:g}; give the settings and the seed that it was made with."
            )

    def _chosen(self, model: OneOfFront) -> int:
        at = model.objectives[model.on_front][:, :3]
        if self.choose.isdecimal():
            return int(self.choose)
        if self.choose in EXTREMES:
            return int(at[:, EXTREMES[self.choose]].argmin())
        span = (at.amax(0) - at.amin(0)).clamp_min(1e-12)
        return int(((at - at.amin(0)) / span).square().sum(1).argmin())

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        model = cured.model
        assert isinstance(model, OneOfFront)
        at, all_ = int(model.chosen), model.objectives.double()
        chosen, plain = all_[at], model.plain.double()
        front = all_[model.on_front].numpy()
        told = [
            f"The front has {len(front)} of {len(all_)} networks that nothing beats in all three objectives, judged on "
            f"training data that were held back; number {at} was chosen ({self.choose}): {_told(chosen)}. A plain "
            f"network of the same kind has {_told(plain)}.",
            "The front was selected by the same held data that judge it here, and the plain network was not: this "
            "comparison flatters the front. The questions of this page are asked of test data, which selected neither.",
            "To choose another without training: --set choose=NUMBER --set "
            f"front={self.front or 'PATH, the weights.safetensors beside this page'}.",
        ]
        if len(front) > 1 and bool((plain[:3] > 0).all()):
            share = front[:, :3] / (NADIR * plain[:3].numpy())
            told.append(
                f"Of the front: hypervolume {hypervolume(share, np.ones(3)):.4f} (objectives in shares of 1.1 times "
                f"those of the plain network, which has {(1 - 1 / NADIR) ** 3:.4f} by itself), pure diversity "
                f"{pure_diversity(share):,.0f}, spacing {spacing(share):.4f}."
            )
        more = float(chosen[3] - plain[3])
        if more > FEW:
            bought = 1 - gaming(1 + float(plain[3]), more)
            told.append(
                f"It predicts {more:.3f} more on average than the plain network. That alone, the same constant on "
                f"every score, would lower both kinds of unfairness by {100 * bought:.0f} % and change nobody's place."
            )
        rate = float((cured.data["train"].labels == 1).mean())
        told.append(
            "Unfairness here is tied to the error: both kinds add up to (squared error - m^2) / (2 (1 + m)^2) with "
            f"the mean error m. Saying {cured.task.classes[1]!r} of everybody would have {everyone_positive(rate):.4f}."
        )
        return tuple(told)

    def figures(self, cured: Subject, run: Run) -> tuple[View, ...]:
        model = cured.model
        assert isinstance(model, OneOfFront)
        on = model.on_front
        groups = {
            "the front": model.objectives[on],
            "other survivors": model.objectives[~on],
            f"chosen, number {int(model.chosen)}": model.objectives[model.chosen][None],
            "a plain network": model.plain[None],
        }

        def pair(a: int, b: int, says: str = "") -> Scatter:
            return Scatter(
                name=f"front-{a}-{b}",
                title=f"{NAMES[b].capitalize()} against {NAMES[a]}",
                x_label=NAMES[a],
                y_label=NAMES[b],
                lines=tuple(
                    Line(label=label, x=tuple(each[:, a].tolist()), y=tuple(each[:, b].tolist()))
                    for label, each in groups.items()
                    if len(each)
                ),
                says=says,
            )

        counting = f"choose counts the {int(on.sum())} of the front by rising squared error, from 0."
        return (
            pair(0, 1, f"To the left and below is better. {counting}"),
            pair(0, 2, f"To the left and below is better. {counting}"),
            pair(1, 2, f"To the left and below is better. {counting}"),
            pair(
                3, 1, "To the right, more is predicted than there is: unfairness that falls only there is not mended."
            ),
        )


@dataclass(frozen=True)
class PlainNetwork(_OfTables):
    """Trains one network with one hidden layer and does nothing else: what the evolution is compared with."""

    epochs: int = 61

    @classmethod
    def name(cls) -> str:
        return "plain-network"

    def cost(self) -> Cost:
        return Cost(1, 1)

    def frame(self, subject: Subject) -> Subject:
        return subject.cured(self.model(subject, 1), self.name())

    def apply(self, subject: Subject, run: Run) -> Subject:
        model = self.model(subject, 1)
        x, y, _ = self.rows(subject, run.seed)
        held = round(self.held * len(x))
        model.encoded.fit(x[held:])
        rows = model.encoded(x[held:]).to(run.device)
        with run.progress("training plainly, to compare", 1) as tick:
            _put(model, self.alone(rows[None], y[None, held:].to(run.device), self.epochs, run))
            tick(1)
        model.on_front.fill_(True)
        model.choose(0)
        return subject.cured(model, self.name())


def _put(model: OneOfFront, members: Population) -> None:
    model.inner.copy_(members.inner[0])
    model.outer.copy_(members.outer[0])
    model.shift.copy_(members.shift[0])


def _with_mean_error(evolved: Evolved, people: People) -> Tensor:  # -> p 4
    error = (evolved.population.scores(people.x).double() - people.y[:, None]).mean(-1)
    return torch.cat([evolved.objectives, error[..., None]], -1)[0]


def _told(at: Tensor) -> str:
    return ", ".join(f"{name} {float(value):.4f}" for name, value in zip(NAMES, at, strict=True))


SHELVED = FairMoel
