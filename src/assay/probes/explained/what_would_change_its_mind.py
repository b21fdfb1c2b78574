"""What would change a ranker's mind, and whether it then sees what the change was meant to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import AssayError, MissingExtra
from assay.finding import Alarm, Beside, Boxes, Exhibit, Finding, Gallery, Measure, Panel, Table, share
from assay.methods.rank.agreement import rank_correlation
from assay.methods.rank.familiar import LEAST, STRANGE, Familiar, familiar
from assay.methods.rank.manner import Manner, Momentum
from assay.methods.rank.maps import blend, grey, overlay, tessellate
from assay.methods.rank.penalties import SparseForm
from assay.methods.rank.perception import KEPT, Reader, Reading, gate, nearest_reader, perceive, random_change
from assay.methods.rank.walk import degrees, relative_move, walk
from assay.probe import Need, Probe
from assay.standard import Standard
from assay.subject import PairModel

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

EACH = 5  # pairs for each step of the budget
STEPS = 10  # of a walk, for each step of the budget
READ = 2000  # training inputs that the reader knows, at most
HELD = 200  # test inputs that say how far an unchanged one is from what the decoder knows
ROOM = 20_000_000  # values of these inputs, at most: 160 MB
TIE = 0.5
REGIONS = 16  # superpixels of a picture, at least; as many as its side has pixels, if these are more
COHERENCE = "semantic coherence"
GAP = "perception moves further than the input"
NOWHERE = "pictures from nowhere"


@dataclass(frozen=True)
class WhatWouldChangeItsMind(Probe):
    """What would change its mind?

    The first input of a pair is walked along the gradient of the comparison, to the end of the range on the other side
    of the tie or to `target`. What the model sees, decoded from its embedding before and after, is read by the nearest
    training inputs, which know nothing of the model: does the value that is seen move where the comparison was sent,
    and further than the value of the input itself? A random change of the same length stands beside it. Pictures that
    are further from all that the decoder knows than held-out inputs are come from nowhere: where they are many,
    coherence proves nothing. With `clip` inputs stay within their bounds; the source lets them leave.

    `walks` is what is walked: the image, or the embedding itself (Algorithm 1), of which a picture is then decoded and
    the input stays. A walk of images can be kept to a `region` (top,left,bottom,right in pixels), charged for rough,
    many or long changes (`tv`, `sparse`, `close`), and given momentum (`damping`); all as `explain --pair` has them.
    """

    target: float | None = None
    pairs: int | None = None
    steps: int | None = None
    step: float = 0.5
    clip: bool = True
    walks: Literal["image", "embedding"] = "image"
    region: tuple[int, ...] = ()
    tv: float = 0.0
    sparse: float = 0.0
    sparse_form: SparseForm = "smooth"
    close: float = 0.0
    damping: float = 0.0
    momentum: Momentum = "printed"

    needs: ClassVar[tuple[Need, ...]] = ("order", "gradients")
    source: ClassVar[str] = (
        "'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, sec. 4.2, 4.8 and 5.3.3"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.5),)

    def __post_init__(self) -> None:
        self.refuse_below(1, "pairs", "steps")
        self.refuse_below(0, "target", "step")
        if self.target is not None and self.target > 1:
            raise AssayError(f"The setting target={self.target} of {self.name()!r} must lie between 0 and 1.")
        shaped = self._manner.changed()
        if self.walks == "embedding" and shaped:
            raise AssayError(
                f"The settings {', '.join(shaped)} of {self.name()!r} shape a change of images; leave "
                "them out with walks=embedding."
            )

    @property
    def _manner(self) -> Manner:
        return Manner(
            self.region, self.tv, self.sparse, self.sparse_form, self.close, self.damping, self.momentum
        )  # fmt: skip

    def why_not(self, subject: Subject) -> str | None:
        reason = super().why_not(subject)
        if reason is None and self.walks == "embedding" and getattr(subject.model, "decoder", None) is None:
            return "a walk of the embedding needs a decoder to be seen, and this model has none; fit_decoder trains one"
        return reason

    def ask(self, subject: Subject, run: Run) -> Finding:
        index = run.pick(subject.data["test"], self.pairs or run.budget.few(EACH * run.budget.steps))
        known = _known(subject, run)
        reader, knows = (None, None) if known is None else (nearest_reader(*known), _familiar(subject, known[0], run))
        steps = self.steps or STEPS * run.budget.steps
        work = partial(self._change, subject, reader, knows, steps)
        rows = run.map(work, subject, "test", index, "changing its mind")
        seen = _Seen(subject, index, rows, run.seed)
        measures = (*seen.coherence(), *seen.movements(), *seen.quality(), *seen.familiarity(), *seen.lengths())
        return Finding(
            says=seen.says("embeddings" if self.walks == "embedding" else "inputs", self.clip, self._manner.told()),
            measures=measures,
            samples=Table("test", {"index": index, **seen.columns()}),
            views=(*seen.boxes(), *seen.gallery(run.budget.shown)),
            alarms=seen.alarms(),
        )

    def _change(
        self, subject: Subject, reader: Reader | None, knows: Familiar | None, steps: int, shard: Shard
    ) -> Mapping[str, Tensor]:
        """Both inputs of a pair, the first one changed, and changed at random; what is seen and read of each."""
        model, box = subject.model, (subject.inputs.low, subject.inputs.high) if self.clip else None
        assert isinstance(model, PairModel)
        a, b = shard.x[:, 0], shard.x[:, 1]
        other = model.encode(b)

        def score(x: Tensor) -> Tensor:
            return model.compare(model.encode(x), other)

        c = score(a)
        target = (c < TIE).to(c) if self.target is None else torch.full_like(c, self.target)
        if self.walks == "embedding":
            return self._in_codes(model, reader, knows, steps, shard, target)
        end = walk(score, a, target=target, steps=steps, step=self.step, box=box, **self._manner.ways(a))
        length = (end.x - a).flatten(1).norm(dim=1)
        noise = random_change(a, length, rng=shard.rng, box=box, mask=self._manner.mask(a))
        pictures = {"a": a, "a'": end.x, "a random": noise}
        told = {"b": b, "map": grey(a, end.x), "length": length, "toward": (target - c).sign().double()}
        told |= {"c": c, "c'": end.c, "c random": score(noise)}
        codes = {name: model.encode(x) for name, x in pictures.items()}
        told |= _moves(codes["a"], codes["a'"], other)
        codes["line"] = _line(codes["a"], codes["a'"], other)
        if model.decoder is not None:
            shown, blind = perceive(model, a, end.x), perceive(model, a, noise)
            pictures |= {"p": shown.before, "p'": shown.after, "p random": blind.after}
            pictures["p line"] = model.decode(codes["line"])
            told |= {"error": shown.error, "p map": shown.map}
            told["likeness"] = rank_correlation(told["map"], shown.map)
        return told | _told_of(model, reader, knows, codes, pictures)

    def _in_codes(
        self,
        model: PairModel,
        reader: Reader | None,
        knows: Familiar | None,
        steps: int,
        shard: Shard,
        target: Tensor,
    ) -> Mapping[str, Tensor]:
        """The same where the embedding is walked: the input stays, and what is decoded of it changes."""
        a, b = shard.x[:, 0], shard.x[:, 1]
        e, other = model.encode(a), model.encode(b)
        end = walk(lambda code: model.compare(code, other), e, target=target, steps=steps, step=self.step)
        length = (end.x - e).norm(dim=1)
        codes = {"a": e, "a'": end.x, "a random": random_change(e, length, rng=shard.rng)}
        codes["line"] = _line(e, end.x, other)
        seen = {name: model.decode(code) for name, code in codes.items()}
        pictures = {"a": a, "a'": a, "a random": a, "p": seen["a"], "p'": seen["a'"], "p random": seen["a random"]}
        pictures["p line"] = seen["line"]
        c, blind = model.compare(e, other), model.compare(codes["a random"], other)
        told = {"b": b, "map": torch.zeros_like(grey(a, a)), "length": length, "toward": (target - c).sign().double()}
        told |= {"c": c, "c'": end.c, "c random": blind, "p map": grey(seen["a"], seen["a'"])}
        told["error"] = (seen["a"] - a).square().flatten(1).mean(1)
        told |= _moves(e, end.x, other)
        return told | _told_of(model, reader, knows, codes, pictures)


def _moves(e: Tensor, after: Tensor, other: Tensor) -> dict[str, Tensor]:  # n s each
    """How far an embedding went, in its own length, and how much that is the straight line to the other one."""
    return {"moved": relative_move(e, after), "turned away": degrees(after - e, other - e)}


def _line(e: Tensor, after: Tensor, other: Tensor) -> Tensor:  # n s each -> n s
    """As far as the walk went, but on the straight line to the other embedding, and not beyond it."""
    way = other - e
    share = (after - e).norm(dim=1) / way.norm(dim=1).clamp_min(torch.finfo(e.dtype).tiny)
    return torch.lerp(e, other, share.clamp(max=1)[:, None])


def _told_of(
    model: PairModel,
    reader: Reader | None,
    knows: Familiar | None,
    codes: Mapping[str, Tensor],
    pictures: dict[str, Tensor],
) -> dict[str, Tensor]:
    """The pictures, what is read of each, and how far embeddings are from what the decoder knows."""
    told = dict(pictures)
    if knows is not None:
        for name, code in codes.items():
            away = knows.away(model, code)
            told |= {f"strange {name}": away.strange, f"away {name}": away.furthest}
    if reader is not None:
        told |= {f"read {name}": reader(picture) for name, picture in pictures.items()}
    return told


class _Seen:
    """What was seen and read of every pair, and what follows; less of it without a decoder or without a reader."""

    def __init__(self, subject: Subject, index: NDArray[np.int64], rows: Mapping[str, NDArray[Any]], seed: int) -> None:
        self.subject, self.index, self.rows, self.seed = subject, index, rows, seed
        test = subject.pairs["test"]
        self.values = test.values[test.pairs[index]]  # n 2
        self.moved, self.blind = self._reading("'"), self._reading(" random")
        self.gate = gate(self._read("a"), self._read("p"), torch.from_numpy(self.values[:, 0])) if self.moved else None
        self.missing = [
            why
            for row, why in (
                ("p", "the model has no decoder, so that what it sees cannot be drawn; train one with fit_decoder"),
                ("read a", "there are no training inputs for a reader to know; give the subject a split 'train'"),
            )
            if row not in rows
        ]

    def _read(self, name: str) -> Tensor:  # n
        return torch.from_numpy(self.rows[f"read {name}"])

    def _reading(self, how: str) -> Reading | None:
        """What became of the values under the attack (') or a random change."""
        if "read p" not in self.rows:
            return None
        toward, read = torch.from_numpy(self.rows["toward"]), self._read
        return Reading(toward, (read("a"), read(f"a{how}")), (read("p"), read(f"p{how}")))

    def coherence(self) -> list[Measure]:
        about = "share of the pairs where the value that is read from what the model sees moves where it was sent"
        if self.moved is None or self.blind is None:
            return [Measure(name=COHERENCE, value=None, better="higher", about=about)]
        stay, blind = (float((r.perception_moved >= 0).double().mean()) for r in (self.moved, self.blind))
        return [
            Measure.proportion(
                COHERENCE,
                self.moved.coherent,
                better="higher",
                column="coherent",
                about=f"{about}; {stay:.0%} if those that stay count too ({blind:.0%} under a random change)",
                beside=(
                    Beside("a random change of the same length", float(self.blind.coherent.double().mean())),
                    Beside("read from the changed input", float((self.moved.image_moved > 0).double().mean())),
                    Beside("on the straight line to the second", self._on_the_line()),
                ),
            )
        ]

    def _on_the_line(self) -> float:
        """The same share where the embedding goes as far, but straight to that of the other input."""
        toward = torch.from_numpy(self.rows["toward"])
        return float((toward * (self._read("p line") - self._read("p")) > 0).double().mean())

    def movements(self) -> list[Measure]:
        """How far values move where they were sent, in their own units."""
        if self.moved is None or self.blind is None:
            return []
        told = {
            GAP: (self.moved.gap, self.blind.gap, "above 0: the model sees more change than there is to a reader"),
            "movement of what is seen": (self.moved.perception_moved, self.blind.perception_moved, "where it was sent"),
            "movement of the input": (self.moved.image_moved, self.blind.image_moved, "where it was sent"),
        }
        return [
            Measure.mean(
                name,
                values,
                better="neither",
                seed=self.seed,
                column=name,
                about=f"in units of the values; {about}",
                beside=(Beside("a random change of the same length", float(blind.mean())),),
            )
            for name, (values, blind, about) in told.items()
        ]

    def quality(self) -> list[Measure]:
        """Whether what is seen can be read at all, and how much of the input is in it."""
        found = []
        if self.gate is not None:
            found.append(
                Measure.mean(
                    "reader's error on what is seen",
                    (self._read("p") - torch.from_numpy(self.values[:, 0])).abs(),
                    better="lower",
                    seed=self.seed,
                    about="mean absolute error, before any change",
                    beside=(
                        Beside("on the inputs", self.gate.image),
                        Beside("always the median", self.gate.constant),
                    ),
                )
            )
        if "p" in self.rows:
            found += [
                Measure.mean(
                    "reconstruction error",
                    self.rows["error"] / max(float(self.rows["a"].var(0).mean()), 1e-12),
                    better="lower",
                    seed=self.seed,
                    column="reconstruction error",
                    about="mean squared, over the variance of a value",
                    beside=(Beside("the mean input", 1.0),),
                ),
            ]
        if "likeness" in self.rows:
            found.append(
                Measure.mean(
                    "likeness of the two maps",
                    self.rows["likeness"],
                    better="neither",
                    seed=self.seed,
                    column="likeness of the two maps",
                    about="rank correlation of where the input changed and where what is seen did; unless it is high, "
                    "neither map confirms the other",
                    beside=(Beside("a random map", 0.0),),
                )
            )
        return found

    def familiarity(self) -> list[Measure]:
        """Whether what is seen after the change is something that the decoder knows how to draw."""
        if "strange a'" not in self.rows:
            return []
        before, blind = (float(self.rows[f"strange {name}"].mean()) for name in ("a", "a random"))
        start, end = (float(np.median(self.rows[f"away {name}"])) for name in ("a", "a'"))
        return [
            Measure.proportion(
                NOWHERE,
                self.rows["strange a'"],
                better="lower",
                column="from nowhere",
                about="share of the pairs where what is seen after the change is further from every known picture or "
                f"embedding than {1 - STRANGE:.0%} of held-out inputs are; the median distance goes from "
                f"{start:.2g} to {end:.2g} times that of the known ones",
                beside=(Beside("unchanged", before), Beside("a random change of the same length", blind)),
            )
        ]

    def lengths(self) -> list[Measure]:
        turned, blind = ((self.rows["c"] > TIE) != (self.rows[c] > TIE) for c in ("c'", "c random"))
        codes = [
            Measure.median(name, told, better="neither", seed=self.seed, about=about, beside=beside)
            for name, row, about, beside in (
                (
                    "relative move of the embedding",
                    "moved",
                    "length of its change over its own; nothing limits it",
                    (),
                ),
                (
                    "angle with the straight line to the second",
                    "turned away",
                    "degrees, in the embedding; near 0 the walk only blends the first input into the second",
                    (Beside("by chance", 90.0),),
                ),
            )
            if len(told := self.rows[row][np.isfinite(self.rows[row])])  # an embedding of zeros has no length
        ]
        return [
            *codes,
            Measure.median(
                "length of the change",
                self.rows["length"],
                better="neither",
                seed=self.seed,
                about="L2, all the way to where it was sent; how-far-to-a-tie has the shortest that turns the answer",
            ),
            Measure.proportion(
                "answers that turned",
                turned,
                better="neither",
                column="turned",
                beside=(Beside("a random change of the same length", float(blind.mean())),),
            ),
        ]

    def columns(self) -> dict[str, NDArray[Any]]:
        names = ("c", "c'", "length", "moved", "turned away", "read a", "read a'", "read p", "read p'")
        told = {name: self.rows[name] for name in names if name in self.rows}
        if "strange a'" in self.rows:
            told |= {"from nowhere": self.rows["strange a'"], "distance from what is known": self.rows["away a'"]}
        told["turned"] = (self.rows["c"] > TIE) != (self.rows["c'"] > TIE)
        if self.moved is not None:
            told |= {"coherent": self.moved.coherent.numpy(), GAP: self.moved.gap.numpy()}
            told["movement of what is seen"] = self.moved.perception_moved.numpy()
            told["movement of the input"] = self.moved.image_moved.numpy()
        if "p" in self.rows:
            told["reconstruction error"] = self.rows["error"] / max(float(self.rows["a"].var(0).mean()), 1e-12)
        if "likeness" in self.rows:
            told["likeness of the two maps"] = self.rows["likeness"]
        return told

    def says(self, what: str, clip: bool, how: str) -> str:
        kept = "" if clip or what == "embeddings" else ", free to leave their bounds,"
        kept += f"{'' if kept else ','} {how}," if how else ""
        if self.moved is None:
            return (
                f"{what.capitalize()}{kept} were changed until the comparison turned. Left out: "
                f"{'; '.join(self.missing)}."
            )
        n, seen, image = len(self.index), self.moved.perception_moved.mean(), self.moved.image_moved.mean()
        stays = "stays" if what == "embeddings" else f"by {float(image):.2f}"
        return (
            f"When {what}{kept} are changed to turn the comparison, what the model sees moves as was meant for "
            f"{share(int(self.moved.coherent.sum()), n)} pairs: by {float(seen):.2f} in the mean, and the input "
            f"itself {stays}, to a reader who knows nothing of the model."
        )

    def alarms(self) -> tuple[Alarm, ...]:
        if self.moved is None or self.blind is None or self.gate is None:
            return tuple(Alarm(f"Perception, coherence and gap are left out: {why}.") for why in self.missing)
        alarms, doubts = [], (COHERENCE, GAP)
        if not self.gate.passes:
            why = (
                "the reader cannot even read the inputs"
                if self.gate.kept is None
                else f"of what the reader knows about inputs it keeps {self.gate.kept:.0%}, less than {KEPT:.0%}"
            )
            alarms.append(Alarm(f"What the model sees cannot be read as well as its inputs: {why}.", doubts))
        (far,) = self.familiarity() or (None,)
        if far is None:
            few = f"there are fewer than {LEAST} test inputs to tell what is far from what the decoder knows"
            alarms.append(Alarm(f"Pictures from nowhere cannot be told: {few}.", doubts))
        elif far.low is not None and far.value is not None and far.low > STRANGE:
            alarms.append(
                Alarm(
                    f"{far.value:.0%} of the pictures after the change come from nowhere: they are further from all "
                    "that the decoder knows than held-out inputs are, so that no reader's word on them counts. Changes "
                    f"that end at the tie (target={TIE:g}) stay nearer.",
                    doubts,
                )
            )
        blind, coherent = self.blind.coherent.double().mean(), self.coherence()[0]
        if coherent.low is not None and coherent.low <= float(blind):
            alarms.append(
                Alarm(f"A random change of the same length moves what is seen as well ({float(blind):.0%}).", doubts)
            )
        return tuple(alarms)

    def boxes(self) -> list[Boxes]:
        if self.moved is None or self.blind is None:
            return []
        values = (
            self.moved.perception_moved,
            self.moved.image_moved,
            self.blind.perception_moved,
            self.blind.image_moved,
        )
        return [
            Boxes(
                name="movement",
                title="How far the value that is read moves where it was sent",
                x_label="read from",
                y_label="movement, in units of the values",
                labels=("what is seen", "the input", "seen, random change", "input, random change"),
                values=tuple(tuple(map(float, v)) for v in values),
                marks=(Beside("stays", 0.0),),
                says="Above 0 it moves as was meant. Where what is seen moves further than the input, the model sees a "
                "change that a reader of the input does not.",
            )
        ]

    def gallery(self, shown: int) -> list[Gallery]:
        """Some pairs, from those that moved least as was meant to those that moved most."""
        if not self.subject.inputs.is_picture:
            return []
        moved = self.rows["length"] if self.moved is None else self.moved.perception_moved.numpy()
        order = np.argsort(moved, kind="stable")
        few = order[np.unique(np.linspace(0, len(order) - 1, num=min(shown, len(order)), dtype=int))]
        missing = f" Left out: {'; '.join(self.missing)}." if self.missing else ""
        return [
            Gallery(
                name="pairs",
                title="Pairs before and after, from where it moved least as was meant to where it moved most",
                exhibits=tuple(self._exhibit(row) for row in few),
                says="Green on red: where the input changed, and where what is seen did. A region shows the largest "
                f"value inside it, which a single pixel decides.{missing}",
            )
        ]

    def _exhibit(self, row: int) -> Exhibit:
        where, (low, high) = int(self.index[row]), (self.subject.inputs.low, self.subject.inputs.high)
        unit = {k: (torch.from_numpy(self.rows[k][[row]]) - low) / (high - low) for k in ("a", "p") if k in self.rows}
        heat = torch.from_numpy(self.rows["map"][[row]])
        plain = {"first": "a", "second": "b", "first, changed": "a'", "seen": "p", "seen, changed": "p'"}
        panels = [
            Panel.of(label, f"Pair {where}: {label}", self.rows[key][row], low=low, high=high)
            for label, key in plain.items()
            if key in self.rows
        ]
        drawn = {"where the input changed": overlay(unit["a"], heat)} if heat.any() else {}
        try:
            segments = max(REGIONS, *heat.shape[1:])
            if heat.any():
                drawn["by regions"] = blend(unit["a"], tessellate(unit["a"], heat, segments=segments))
        except MissingExtra:
            pass  # superpixels are an extra; the map by pixels stays
        if "p" in self.rows:
            drawn["where what is seen changed"] = overlay(unit["p"], torch.from_numpy(self.rows["p map"][[row]]))
        panels += [Panel.of(label, f"Pair {where}: {label}", image[0].numpy()) for label, image in drawn.items()]
        (first, second), after = self.values[row], self.rows["c'"][row]
        told = f"{first:g} against {second:g}: comparison {self.rows['c'][row]:.2f}, then {after:.2f}"
        if self.moved is not None:
            told += "; read from what is seen {:.1f}, then {:.1f}".format(
                *(float(v[row]) for v in self.moved.perception)
            )
        return Exhibit(index=where, caption=told, panels=tuple(panels))


def _known(subject: Subject, run: Run) -> tuple[Tensor, Tensor] | None:
    """Training inputs with their values, for the reader and as what the decoder knows; None where there are none."""
    train = subject.pairs.get("train")
    if train is None:
        return None
    most = min(READ, ROOM // int(np.prod(subject.inputs.shape[1:])))
    known = np.sort(np.random.default_rng(run.seed).permutation(len(train.singles))[:most])
    x, _ = train.singles.take(known)
    return x.to(run.device), torch.from_numpy(train.values[known]).to(run.device)


def _familiar(subject: Subject, known: Tensor, run: Run) -> Familiar | None:
    """What the decoder knows, and how far test inputs are from it; None without a decoder or with too few of them."""
    test, model = subject.pairs["test"].singles, subject.model
    assert isinstance(model, PairModel)
    if model.decoder is None or len(test) < LEAST:
        return None
    held = np.sort(np.random.default_rng(run.seed).permutation(len(test))[:HELD])
    return familiar(model, known, test.take(held)[0].to(known))


SHELVED = WhatWouldChangeItsMind
