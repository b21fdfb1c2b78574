"""Take what tells an attribute of people out of images, and leave what the task needs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from assay.attribute import LEAST
from assay.data.held_out import Part
from assay.data.scan_paths import ScanPaths, draw
from assay.errors import AssayError
from assay.finding import Curve, Exhibit, Gallery, Line, View, share, wilson
from assay.methods.private.adaptive_attack import (
    Lesson,
    Make,
    Memory,
    Played,
    Round,
    answers,
    hits,
    play,
    reported,
    retrained,
)
from assay.methods.private.attacker import leakage
from assay.methods.private.gan import train_gan
from assay.methods.private.laplace import picture_sensitivity, recording_sensitivity, voted, with_noise
from assay.methods.private.mask_agent import MaskAgent, Training, correctness, reward
from assay.methods.private.masks import with_zeros
from assay.methods.train.fit import fit
from assay.nn.hidden import FromShares, Hidden, PixelNoise
from assay.nn.masked import KERNELS, Autoencoder, FixedMask, Masked, MaskNet, StackClassifier
from assay.probe import undisturbed
from assay.remedies._retraining import anew
from assay.remedy import Cost, Remedy

if TYPE_CHECKING:
    from assay.attribute import Attribute
    from assay.run import Run
    from assay.subject import Data, Subject

Way = Literal["agent", "gan", "laplace-raw", "laplace-image", "random-masks", "nothing"]
SMALL = (3, 3, 3, 3)  # kernels for a CPU: a fifth of the time of print's
GROWS = (1, 2, 4, 8)  # widths, as print's
MOST = 4000  # training images that are held
SHOWN = 8
HIDDEN_UNITS = 128  # of an attacker; print's 512 by the size that print has
EPS = {
    "laplace-image": (0.3, 1.0, 3.0, 10.0),
    "laplace-raw": (30.0, 100.0, 300.0, 1000.0),
}  # searched where none is told
NOISY = 4  # copies of each recording with noise of its own that an attacker learns from


class _Rows(NamedTuple):
    """Images in shares of their range with the label to keep and the one to hide: n *d, n, n."""

    x: Tensor
    y: Tensor
    a: Tensor
    places: NDArray[np.int64]

    @property
    def labels(self) -> tuple[Tensor, Tensor]:
        return self.y, self.a


@dataclass(frozen=True)
class HideAttribute(Remedy):
    """Takes what tells who it is out of its images, before it sees them, against an attacker who retrains each time.

    An autoencoder is trained and frozen; an agent learns by reward which of its inner features to switch off for an
    image, so that the task's label stays readable and the `attribute` does not. After each of the `iterations` both
    attackers are trained from scratch on all that was manipulated so far, others on the newest alone for as long as it
    helps them, and only what the best then reads counts. The other ways are controls: `gan` trains the autoencoder by
    gradients against both attackers, `laplace-image` and `laplace-raw` put noise on pixels or on the coordinates of
    scan paths (of print's scale `eps`; left out, it is searched in favour of the noise), `random-masks` switches off a
    share of `zeros`, `nothing` decodes and no more. The classifier that is left is the subject's own architecture,
    trained anew on what it will be shown.

    The defaults are for two cores; print has `width` 32, `kernels` print, `iterations` 20, `runs` 1000, images of 64 x
    64. Whatever is hidden is hidden from these attackers: there is no guarantee.
    """

    attribute: str = ""
    iterations: int = 5
    way: Way = "agent"
    runs: int = field(default=120, kw_only=True)
    steps: int = field(default=250, kw_only=True)
    epochs: int = field(default=30, kw_only=True)
    width: int = field(default=8, kw_only=True)
    kernels: Literal["small", "print"] = field(default="small", kw_only=True)
    eps: float | None = field(default=None, kw_only=True)
    copies: int = field(default=20, kw_only=True)
    zeros: float = field(default=0.5, kw_only=True)
    discount: float = field(default=0.0, kw_only=True)
    as_published: bool = field(default=False, kw_only=True)

    needs_train: ClassVar[bool] = True
    source: ClassVar[str] = "Fuhl, Bozkir & Kasneci, ICANN 2021, sec. 2"
    mends: ClassVar[tuple[str, ...]] = ("what-do-its-features-tell",)

    def __post_init__(self) -> None:
        for name in ("iterations", "runs", "steps", "epochs", "width", "copies"):
            if getattr(self, name) < 1:
                raise AssayError(f"{name}={getattr(self, name)} of {self.name()!r} must be at least 1.")
        if not 0 < self.zeros < 1:
            raise AssayError(f"zeros={self.zeros:g} is a share of the features above 0 and below 1, such as 0.5.")
        if self.eps is not None and not self.eps > 0:
            raise AssayError(f"eps={self.eps:g} is no scale of noise; give one above 0, or leave it out.")
        if self.way not in get_args(Way):
            raise AssayError(
                f"There is no way {self.way!r} of {self.name()!r}; it is one of {', '.join(get_args(Way))}."
            )

    def cost(self) -> Cost | None:
        return None

    def control(self) -> Remedy | None:
        return PlainAutoencoder(
            self.attribute, 1, "nothing", steps=self.steps, epochs=self.epochs, width=self.width, kernels=self.kernels,
            as_published=self.as_published,
        )  # fmt: skip

    def why_not(self, subject: Subject) -> str | None:
        if (lacks := super().why_not(subject)) is not None:
            return lacks
        if not subject.inputs.is_picture or len(subject.inputs.shape) != 3:
            return f"it is for images, and an input here has shape {subject.inputs.shape}"
        known = [name for name, each in subject.attributes.items() if {"train", "test"} <= each.codes.keys()]
        if not known:
            return (
                "it needs an attribute of the people behind train and test, and the subject has none of both (--groups "
                "NAME=PATH for test, NAME@train=PATH for train)"
            )
        if self.attribute and self.attribute not in known:
            return f"no attribute of train and test is named {self.attribute!r}, only {', '.join(known)}"
        if not self.attribute and len(known) > 1:
            return f"it hides one of {', '.join(known)}; say which with --set attribute={known[0]}"
        found = subject.attributes[self.attribute or known[0]]
        for split in ("train", "test"):
            each = np.bincount(found.codes[split][found.codes[split] >= 0], minlength=len(found.values))
            if (each >= LEAST).sum() < 2:
                most = found.values[int(each.argmax())]
                return (
                    f"it needs two values of {found.name} with at least {LEAST} inputs in {split}, too few to tell "
                    f"otherwise; {most!r} has most, {int(each.max())} of {int(each.sum())} that are known"
                )
        if self.way == "laplace-raw" and not all(isinstance(subject.data[s], ScanPaths) for s in ("train", "test")):
            return "laplace-raw puts noise on the coordinates of scan paths, and these are images; use laplace-image"
        return None

    def frame(self, subject: Subject) -> Subject:
        shape = tuple(subject.inputs.shape)
        return subject.cured(
            Hidden(self._manipulation(shape), self._keep(subject, copy.deepcopy(subject.model)), self._rounds).eval(),
            self.name(),
            draws=self.copies if self.way == "laplace-image" else None,
        )

    def apply(self, subject: Subject, run: Run) -> Subject:
        rng = run.rng()
        subject.model.to(run.device)
        train, test = (self._rows(subject, split, run) for split in ("train", "test"))
        values = len(self._hidden(subject).values)
        shape = tuple(subject.inputs.shape)
        widths, kernels = self._sizes
        attacker = StackClassifier(shape, values, widths, kernels, hidden=HIDDEN_UNITS).to(run.device)
        make: tuple[Make, Make] = (
            lambda g: self._keep(subject, anew(subject.model, g)).to(run.device),
            lambda g: anew(attacker, g),
        )
        cured = self.frame(subject)
        model = cured.model.to(run.device)
        assert isinstance(model, Hidden)
        if self.way in ("laplace-image", "laplace-raw"):
            played, eps = self._noise(subject, train, test, make, model, run, rng)
            model.eps.copy_(torch.tensor(eps))
            if isinstance(model.manipulation, PixelNoise):
                model.manipulation.scale.copy_(torch.tensor(picture_sensitivity(train.x) / eps))
        else:
            _train_autoencoder(model.manipulation, train.x, self.epochs, run, rng)
            played = self._game(model.manipulation, train, test, make, run, rng)
            seen, new = (answers(model.manipulation, part.x) for part in (train, test))
            other = leakage(seen, train.a, new, test.a, seed=run.seed, kind="mlp", values=values)
            model.other.copy_(torch.as_tensor(int(other.hits.sum())))
        assert isinstance(played.keep, FromShares)
        model.keep.load_state_dict(played.keep.state_dict())
        model.hits.copy_(torch.stack([torch.stack([h.sum() for h in each]) for each in played.rounds]))
        model.asked.copy_(torch.as_tensor(len(test.x)))
        model.requires_grad_(False).eval()
        return (
            replace(cured, **self._as_recorded(subject, float(model.eps), rng)) if self.way == "laplace-raw" else cured
        )

    def remarks(self, cured: Subject, run: Run) -> tuple[str, ...]:
        model = cured.model
        assert isinstance(model, Hidden)
        hits, n, hidden = model.hits.cpu(), int(model.asked), self._hidden(cured)
        chance = _commonest(hidden.codes["test"])
        what = cured.task.name() if not cured.task.gives else "the label"
        first, last = hits[0], hits[-1]
        said = [
            f"Of {n:,} test inputs an attacker who retrains reads {hidden.name} off {_with_interval(int(last[3]), n)}; "
            f"of the images as they are {_with_interval(int(first[3]), n)}, by chance {100 * chance:.0f} %.",
            f"An attacker who does not retrain reads it off {_with_interval(int(last[1]), n)}: that much privacy is "
            "apparent only where the first number is higher.",
            f"With both retrained {what} is read off {_with_interval(int(last[2]), n)}, before "
            f"{_with_interval(int(first[2]), n)}.",
        ]
        if len(hits) > 2:
            said.append(
                f"Through the autoencoder alone, with nothing switched off, {hidden.name} is read off "
                f"{_with_interval(int(hits[1, 3]), n)}: what is lost there no mask has hidden."
            )
        if int(model.other):
            said.append(
                f"An attacker of another kind, one hidden layer on the pixels, reads {hidden.name} off "
                f"{_with_interval(int(model.other), n)}. What is hidden is hidden from attackers such as these; there "
                "is no guarantee."
            )
        if self.way == "laplace-image":
            said.append(
                f"The noise has print's scale eps {float(model.eps):g}, which is no privacy budget: its sensitivity is "
                "a mean and no bound. Answers are votes."
            )
        if self.way == "laplace-raw":
            said.append(
                f"The noise has print's scale eps {float(model.eps):g}, which is no privacy budget: its sensitivity is "
                "a mean and no bound."
            )
            said.append("The noise is put on recordings, so that the questions after are asked about other pictures.")
        return tuple(said)

    def figures(self, cured: Subject, run: Run) -> tuple[View, ...]:
        model = cured.model
        assert isinstance(model, Hidden)
        hits, n, hidden = model.hits.cpu().tolist(), int(model.asked), self._hidden(cured)
        rounds = range(len(hits))
        names = (
            "the label, before they retrain", f"{hidden.name}, before they retrain",
            "the label, after", f"{hidden.name}, after",
        )  # fmt: skip
        lines = [Line.shares(name, rounds, [row[i] for row in hits], n) for i, name in enumerate(names)]
        chance = _commonest(hidden.codes["test"])
        lines.append(Line(label=f"{hidden.name}, by chance", x=(0.0, float(len(hits) - 1)), y=(chance, chance)))
        told = "Round 0 is the images as they are" + (
            ", round 1 the autoencoder with nothing switched off; then the agent plays against them."
            if len(hits) > 2
            else ", round 1 the manipulated ones."
        )
        curve = Curve(
            name="attackers", title="What attackers read, round by round", x_label="round", y_label="read rightly",
            lines=tuple(lines), says=told, unit_y=True,
        )  # fmt: skip
        return (curve, self._gallery(cured, run))

    def _gallery(self, cured: Subject, run: Run) -> Gallery:
        """Test inputs before and after, of different people."""
        model, hidden, data = cured.model, self._hidden(cured), cured.data["test"]
        assert isinstance(model, Hidden)
        codes = hidden.codes["test"]
        order = np.random.default_rng(run.seed).permutation(len(codes))
        _, first = np.unique(codes[order], return_index=True)
        index = np.sort([i for i in order[first] if codes[i] >= 0][:SHOWN])
        x, y = data.take(index)
        with undisturbed(model, run), torch.no_grad():
            x = x.to(run.device)
            before = ((x - model.keep.low) / model.keep.span).cpu().numpy()
            after, said = model.shown(x).float().cpu().numpy(), cured.predict(x).argmax(1).tolist()
        names = cured.task.classes
        exhibits = [
            Exhibit.of(
                int(i),
                f"{hidden.values[codes[i]]}, {names[int(y[k])]}; read as {names[said[k]]}",
                before[k],
                after[k].clip(0, 1),
            )
            for k, i in enumerate(index)
        ]
        n, last = int(model.asked), model.hits[-1].tolist()
        return Gallery(
            name="shown",
            title="Inputs before and after",
            exhibits=tuple(exhibits),
            says=f"Attackers who retrained read {hidden.name} off {share(last[3], n)} of the right-hand ones, and the "
            f"label off {share(last[2], n)}.",
        )

    @property
    def _rounds(self) -> int:
        return 2 + self.iterations if self.way == "agent" else 2

    @property
    def _sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(self.width * g for g in GROWS), KERNELS if self.kernels == "print" else SMALL

    def _hidden(self, subject: Subject) -> Attribute:
        known = [name for name, each in subject.attributes.items() if {"train", "test"} <= each.codes.keys()]
        return subject.attributes[self.attribute or known[0]]

    def _manipulation(self, shape: tuple[int, ...]) -> nn.Module:
        if self.way == "laplace-image":
            return PixelNoise()
        if self.way == "laplace-raw":
            return nn.Identity()
        widths, kernels = self._sizes
        autoencoder = Autoencoder(shape, widths, kernels, as_published=self.as_published)
        if self.way in ("gan", "nothing"):
            return autoencoder
        if self.way == "random-masks":
            return FixedMask(autoencoder, torch.ones(autoencoder.features))
        chooser = MaskNet(shape, autoencoder.features, widths, kernels, as_published=self.as_published)
        return Masked(autoencoder, chooser)

    def _keep(self, subject: Subject, model: nn.Module) -> FromShares:
        low, span = subject.inputs.edges()
        return FromShares(model, torch.as_tensor(low).float(), torch.as_tensor(span).float())

    def _rows(self, subject: Subject, split: str, run: Run) -> _Rows:
        """Of a split, those whose attribute is known, in shares of the range."""
        data, codes = subject.data[split], self._hidden(subject).codes[split]
        known = np.flatnonzero(codes >= 0)
        count = MOST if split == "train" else None
        index = known[run.pick(Part(data, known), count, bounded=split != "train")]
        x, y = data.take(index)
        low, span = (torch.as_tensor(edge).float() for edge in subject.inputs.edges())
        return _Rows(
            ((x - low) / span).to(run.device), y.to(run.device), torch.from_numpy(codes[index]).to(run.device), index
        )

    def _lesson(self) -> Lesson:
        return Lesson(steps=self.steps)

    def _game(
        self, manipulation: nn.Module, train: _Rows, test: _Rows, make: tuple[Make, Make], run: Run, rng: Generator
    ) -> Played:
        """The rounds of the ways that go through an autoencoder."""
        agent: MaskAgent | None = None

        def nothing(keep: nn.Module, hide: nn.Module) -> Callable[[Tensor], Tensor]:
            return manipulation.autoencoder if isinstance(manipulation, Masked) else manipulation

        def by_masks(keep: nn.Module, hide: nn.Module) -> Callable[[Tensor], Tensor]:
            assert isinstance(manipulation, FixedMask)
            zeros = torch.tensor([round(self.zeros * len(manipulation.mask))])
            manipulation.mask.copy_(with_zeros(zeros, len(manipulation.mask), rng)[0])
            return manipulation

        def by_gan(keep: nn.Module, hide: nn.Module) -> Callable[[Tensor], Tensor]:
            with run.progress("training the generator", self.runs * self.iterations) as tick:
                train_gan(
                    manipulation.requires_grad_(True), copy.deepcopy(keep), copy.deepcopy(hide), train.x, train.labels,
                    steps=self.runs * self.iterations, rng=rng, tick=tick,
                )  # fmt: skip
            return manipulation

        def by_agent(keep: nn.Module, hide: nn.Module) -> Callable[[Tensor], Tensor]:
            nonlocal agent
            assert isinstance(manipulation, Masked)
            coder = manipulation.autoencoder

            def judge(codes: Tensor, rows: Tensor) -> Tensor:
                image = coder.decode(codes)
                return reward(correctness(keep(image), train.y[rows]), correctness(hide(image), train.a[rows]))

            if agent is None:
                if started.pop():
                    return coder
                plan = Training(runs=self.runs, discount=self.discount)
                agent = MaskAgent(
                    manipulation.chooser, train.x, answers(coder.encode, train.x), judge, rng, plan,
                    as_published=self.as_published,
                )  # fmt: skip
            else:
                agent.against(judge)
            with run.progress("the agent tries what to switch off", self.runs) as tick:
                agent.learn(tick)
            return manipulation

        started = [False, True]  # the first answer of the agent is the autoencoder alone
        ways = {"agent": by_agent, "gan": by_gan, "random-masks": by_masks, "nothing": nothing}
        with run.progress("attackers are trained anew", self._rounds) as tick:
            return play(
                make, train.x, train.labels, test.x, test.labels, self._rounds - 1, ways[self.way], self._lesson(), rng,
                tick,
            )  # fmt: skip

    def _noise(
        self, subject: Subject, train: _Rows, test: _Rows, make: tuple[Make, Make], model: Hidden, run: Run,
        rng: Generator,
    ) -> tuple[Played, float]:  # fmt: skip
        """Two rounds with noise, and the eps: the one that was told, or of a few the one that serves the noise best.

        That is print's rule: the largest distance between what is kept and what is hidden, by attackers who adapted.
        """
        noisy = self._noisy(subject, train, test, rng)
        tried = (self.eps,) if self.eps is not None else EPS[self.way]
        memory = Memory(train.x, train.labels)
        lesson = self._lesson()
        with run.progress("attackers are trained anew", 1 + len(tried)) as tick:
            plain = [retrained(each, memory, which, lesson, rng) for which, each in enumerate(make)]
            tick(1)
            _, *first = reported(
                make, [train.x], train.labels, plain[1], lambda net, which: hits(net, test.x, test.labels[which]),
                lesson, rng,
            )  # fmt: skip
            best: tuple[float, Played, float] | None = None
            for eps in tried:

                def read(net: nn.Module, which: int, eps: float = eps) -> Tensor:
                    return (
                        voted(lambda x: answers(net, x), lambda: noisy("test", eps), self.copies) == test.labels[which]
                    )

                seen = Memory(train.x, train.labels)
                for _ in range(NOISY):
                    seen.see(noisy("train", eps))
                hide = retrained(make[1], seen, 1, lesson, rng)
                before = [read(net, which) for which, net in enumerate(plain)]
                keep, *after = reported(make, seen.seen[1:], train.labels, hide, read, lesson, rng)
                apart = float(after[0].float().mean() - after[1].float().mean())
                played = Played((Round(*first, *first), Round(*before, *after)), keep, hide, seen)
                if best is None or apart > best[0]:
                    best = (apart, played, eps)
                tick(1)
        assert best is not None
        return best[1], best[2]

    def _noisy(self, subject: Subject, train: _Rows, test: _Rows, rng: Generator) -> Callable[[str, float], Tensor]:
        """Training or test images with fresh noise of an eps."""
        rows = {"train": train, "test": test}
        if self.way == "laplace-image":
            wide = picture_sensitivity(train.x)
            return lambda split, eps: with_noise(rows[split].x, wide, eps, rng)
        points = {split: _points(subject, split)[torch.from_numpy(each.places)] for split, each in rows.items()}
        far = recording_sensitivity(points["train"])

        def drawn(split: str, eps: float) -> Tensor:
            moved = with_noise(points[split].to(rng.device), far, eps, rng).cpu().numpy()
            return torch.from_numpy(draw(moved, subject.inputs.shape[-1])).to(rng.device)

        return drawn

    def _as_recorded(self, subject: Subject, eps: float, rng: Generator) -> dict[str, Any]:
        """The subject's splits with noise on their recordings; people and labels stay."""
        far = recording_sensitivity(_points(subject, "train"))
        made: dict[str, Data] = dict(subject.data)
        for split, data in subject.data.items():
            if isinstance(data, ScanPaths):
                moved = with_noise(_points(subject, split).to(rng.device), far, eps, rng).cpu().numpy()
                made[split] = ScanPaths(data.paths._replace(points=moved), data.size)
        return {"data": made, "attributes": dict(subject.attributes)}


def _points(subject: Subject, split: str) -> Tensor:  # -> n t 2
    data = subject.data[split]
    assert isinstance(data, ScanPaths)
    return torch.from_numpy(data.paths.points)


def _train_autoencoder(manipulation: nn.Module, x: Tensor, epochs: int, run: Run, rng: Generator) -> None:
    """Least squares, once; it is frozen after."""
    coder = manipulation if isinstance(manipulation, Autoencoder) else manipulation.autoencoder
    assert isinstance(coder, Autoencoder)
    with run.progress("training the autoencoder", epochs) as tick:
        fit(
            coder, _Itself(x), epochs=epochs, lr=2e-3, batch=32, weight_decay=0.0, optimiser="adam", rng=rng,
            loss=F.mse_loss, device=run.device, on_epoch=lambda epoch, mean: tick(1),
        )  # fmt: skip
    coder.requires_grad_(False).eval()


class _Itself:
    """Images as their own targets."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        x = self.x[torch.from_numpy(index).to(self.x.device)]
        return x, x


def _commonest(codes: NDArray[np.int64]) -> float:
    """How often one is right who has seen nothing."""
    known = codes[codes >= 0]
    return float(np.bincount(known).max() / len(known))


def _with_interval(hits: int, n: int) -> str:
    low, high = wilson(hits, n)
    return f"{100 * hits / n:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


@dataclass(frozen=True)
class PlainAutoencoder(HideAttribute):
    """The same training behind the autoencoder with nothing switched off: what hiding is compared with."""

    @classmethod
    def name(cls) -> str:
        return "plain-autoencoder"

    def control(self) -> Remedy | None:
        return None


SHELVED = HideAttribute
