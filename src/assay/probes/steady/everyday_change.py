"""What happens to an input without anyone attacking it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.texts import Texts
from assay.errors import AssayError
from assay.finding import (
    Alarm,
    Beside,
    Curve,
    Exhibit,
    Finding,
    Gallery,
    Line,
    Matrix,
    Measure,
    Table,
    Witnesses,
    share,
    wilson,
)
from assay.inputs import Change, Text
from assay.methods.attack.aim import truth_of
from assay.methods.attack.chance import answers, chance
from assay.probe import Probe
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

SEVERITIES = (1, 2, 3, 4, 5)
FEW = 0.05  # texts that a change leaves as they are: more of them put a number in doubt
LONGEST = 300  # characters of a text that are shown


@dataclass(frozen=True)
class EverydayChange(Probe):
    """Does it stay right when inputs go bad as they do every day: noisy, blurred, mistyped, with gaps, adrift?

    What happens to an input is what its kind says (`assay.inputs`): pictures get noisy, foggy, shifted or badly
    compressed, cells of a row are swapped, missing or mistyped, sensors drift and drop out. A text is mistyped, recased
    and reworded as a string, and read anew by the model's own tokenizer.

    A random model gives one fresh answer to each picture, the mean of which has no bias; what is shown as broken is
    wrong in most answers. Nobody here chooses the change or asks until an answer is wrong, so there is no number for an
    attacker who may try again: that is worst-case-accuracy's.
    """

    corruptions: tuple[str, ...] = ()
    """By name; all that the kind of input has, unless given."""

    takes_missing: ClassVar[bool] = True
    source: ClassVar[str] = "Hendrycks & Dietterich, ICLR 2019, arXiv:1903.12261"
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.7),)

    def why_not(self, subject: Subject) -> str | None:
        if (data := _texts(subject)) is not None:
            if data.tokenizer is None:
                return "it mistypes and rewords texts, and these come without the tokenizer that reads them; give one"
            if np.asarray(data.labels).ndim > 1:
                return "it mistypes, moves and drops words, and here a target stands at each of them"
        elif subject.tokens:
            return (
                "an input here is a row of words by number, and the strings that they stand for are not at hand; give "
                "texts with the tokenizer that the model reads them through (assay.data.texts.Texts)"
            )
        elif not subject.everyday():
            return (
                "nobody says what happens to such inputs every day: it knows images, and rows, series, clouds and "
                f"observations where the subject names its kind, and an input here has shape {subject.inputs.shape}"
            )
        return super().why_not(subject)

    def ask(self, subject: Subject, run: Run) -> Finding:
        data = _texts(subject)
        known: Mapping[str, object] = subject.everyday() if data is None else Text().everyday()
        strange = [name for name in self.corruptions if name not in known]
        if strange:
            raise AssayError(f"corruptions={','.join(strange)!r} are not known; choose from {', '.join(known)}.")
        if not self.corruptions:
            return replace(self, corruptions=tuple(known)).ask(subject, run)
        index = run.pick(subject.data["test"], run.budget.dear)
        rows = run.map(
            lambda shard: self._break(subject, run.seed, shard),
            subject,
            "test",
            index,
            "everyday change",
            few={"changed": "broke"},
        )
        classes = "classes" in subject.task.gives
        label = np.asarray(rows["label"], dtype=np.int64) if classes else np.zeros(0, dtype=np.int64)
        clean, kept = rows["clean"].astype(bool), rows["kept"].astype(bool)  # n, n c s
        each, mean = kept.mean(0), kept.mean((1, 2))  # c s, n
        worst = int(each.mean(1).argmin())
        lost = clean - mean
        by_severity = kept.mean(1)  # n s
        broke = rows["changed at"]
        spelled = tuple(name.replace("-", " ") for name in self.corruptions)
        how = [(spelled[h // 5], SEVERITIES[h % 5]) for h in rows["how"][broke]]
        unspoilt, target = (part.numpy() for part in subject.data["test"].take(index[broke]))
        witnesses = Witnesses(
            split="test",
            index=index[broke],
            clean=unspoilt,
            changed=rows["changed"],
            label=label[broke] if classes else target,
            said=np.asarray(rows["said"], dtype=np.int64)[broke]
            if classes
            else subject.said(rows["changed"], run.device),
            norm=("none",) * len(broke),
            radius=np.zeros(len(broke)),
            how=tuple(f"{name} {severity}" for name, severity in how),
            left_out=int(rows["broke"].sum()) - len(broke),
        )
        if classes:
            trivial = Beside("always says the commonest class", float(np.bincount(label).max() / len(label)))
        else:
            trivial = Beside(*subject.trivially_right("test", index))
        return Finding(
            says=f"Everyday changes cost it {100 * lost.mean():.0f} points of accuracy on average; {spelled[worst]} "
            f"hurts most and leaves {100 * each[worst].mean():.0f} %.",
            measures=(
                Measure.mean(
                    "accuracy under everyday change",
                    mean,
                    better="higher",
                    seed=run.seed,
                    unit="%",
                    column="kept",
                    beside=(trivial,),
                    about=f"mean over {len(self.corruptions)} corruptions at {len(SEVERITIES)} severities",
                ),
                Measure.mean(
                    "mean corruption error",
                    1 - mean,
                    better="lower",
                    seed=run.seed,
                    unit="%",
                    column="error",
                    about="mean error over corruptions and severities, not normalised by another network's",
                ),
                Measure.mean(
                    "accuracy lost",
                    lost,
                    better="lower",
                    seed=run.seed,
                    unit="%",
                    column="lost",
                    about="clean accuracy minus accuracy under everyday change",
                ),
                Measure.mean(
                    "worst corruption",
                    kept[:, worst].mean(1),
                    better="higher",
                    seed=run.seed,
                    unit="%",
                    about=f"accuracy under {spelled[worst]}, all severities",
                ),
            ),
            samples=Table(
                "test",
                {
                    "index": index,
                    **({"label": label} if classes else {}),
                    "clean": clean,
                    "kept": mean,
                    "error": 1 - mean,
                    "lost": lost,
                    "broken by": _names(rows["how"], spelled),
                },
            ),
            views=(
                _against_severity(by_severity, clean, run.seed),
                Matrix(
                    name="corruptions",
                    title="Accuracy per corruption and severity",
                    row_label="corruption",
                    column_label="severity",
                    rows=spelled,
                    columns=tuple(map(str, SEVERITIES)),
                    values=tuple(tuple(row) for row in each.tolist()),
                ),
                *_pictures(subject, witnesses, how, run.budget.shown),
                *self._written(subject, witnesses, rows["how"][broke], run),
            ),
            alarms=() if data is None else _unchanged(rows["same"], rows["unread"], spelled),
            witnesses=witnesses if len(witnesses) else None,
        )

    def _break(self, subject: Subject, seed: int, shard: Shard) -> Mapping[str, Tensor]:
        """Every corruption at every severity; keep the mildest change that turned a right answer into a wrong one."""
        known, texts = subject.everyday(), _texts(subject)
        same = torch.zeros(len(shard.x), len(self.corruptions), dtype=torch.bool, device=shard.x.device)
        unread = torch.zeros_like(same)
        clean = subject.task.right(subject.predict(shard.x), shard.y)
        kept = torch.zeros(
            len(shard.x), len(self.corruptions), len(SEVERITIES), dtype=torch.bool, device=shard.x.device
        )
        how = torch.full((len(shard.x),), -1, device=shard.x.device)
        classes, changed, said = "classes" in subject.task.gives, shard.x.clone(), shard.y.clone()
        for s, severity in enumerate(SEVERITIES):
            for c, name in enumerate(self.corruptions):
                if texts is None:
                    spoilt = known[name](shard.x, severity, shard.rng)
                else:
                    written = _rewritten(texts, shard.index, name, severity, seed)
                    spoilt, fits = (part.to(shard.x.device) for part in texts.encode(written))
                    spoilt = torch.where(fits[:, None], spoilt, shard.x)  # no model reads it as it is
                    as_was = [a == b for a, b in zip(written, texts.strings(shard.index), strict=True)]
                    same[:, c] |= torch.tensor(as_was, device=shard.x.device)
                    unread[:, c] |= ~fits
                answer = subject.predict(spoilt)
                kept[:, c, s] = subject.task.right(answer, shard.y)
                first = clean & ~kept[:, c, s] & (how < 0)
                changed[first] = spoilt[first]
                if classes:
                    said[first] = answer.argmax(1)[first]
                how[first] = 5 * c + s
        if subject.draws > 1:  # one unlucky answer breaks nothing
            fresh = chance(subject.single, changed, truth_of(subject.task, shard.y), draws=subject.draws)
            mostly = 2 * fresh.wrong > answers(subject.draws)
            how = torch.where(mostly, how, -1)
            said = torch.where(mostly, fresh.said, said) if classes else said
        told = {"label": shard.y, "said": said} if classes else {}
        if texts is not None:
            told |= {"same": same, "unread": unread}
        return {**told, "clean": clean, "kept": kept, "changed": changed, "broke": how >= 0, "how": how}

    def _written(self, subject: Subject, w: Witnesses, how: NDArray[np.generic], run: Run) -> tuple[Gallery, ...]:
        """Texts as they were written when they broke it, the mildest of each change first."""
        data = _texts(subject)
        firsts: dict[int, int] = {}
        for i in sorted(range(len(w)), key=lambda i: int(how[i]) % 5):
            firsts.setdefault(int(how[i]) // 5, i)
        if data is None or not firsts:
            return ()
        exhibits = []
        for c, i in list(firsts.items())[: run.budget.shown]:
            name, severity = self.corruptions[c], SEVERITIES[int(how[i]) % 5]
            (text,) = _rewritten(data, w.index[i : i + 1], name, severity, run.seed)
            told, said = subject.in_words(w.label[i], w.said[i])
            short = text if len(text) <= LONGEST else text[:LONGEST] + " ..."
            after = f"{name.replace('_', ' ')} at severity {severity}"
            exhibits.append(
                Exhibit(index=int(w.index[i]), caption=f"{told} after {after}: said {said}. {short}", panels=())
            )
        return (Gallery(name="broken", title="The mildest changes that broke it", exhibits=tuple(exhibits)),)


def _texts(subject: Subject) -> Texts | None:
    data = subject.data["test"]
    return data if isinstance(data, Texts) else None


def _rewritten(data: Texts, index: NDArray[np.integer], name: str, severity: int, seed: int) -> list[str]:
    """These texts after a change; each is drawn by its own place, so that it can be written again."""
    change: Change[Sequence[str]] = Text().everyday()[name]
    return [
        change([text], severity, torch.Generator().manual_seed(seed + int(i)))[0]
        for i, text in zip(index, data.strings(index), strict=True)
    ]


def _unchanged(
    same: NDArray[np.bool_], unread: NDArray[np.bool_], spelled: tuple[str, ...]
) -> tuple[Alarm, ...]:  # n c, n c
    """Texts that a change could not touch, or whose tokens have no room: what is said of them is as they were."""
    alarms = []
    for rows, what in (
        (same, "leave {} of the texts as they are, at some severity: nothing in them is of that kind"),
        (unread, "make {} of the texts too long for the model at some severity; these were left as they are"),
    ):
        for c, name in enumerate(spelled):
            count = int(np.asarray(rows)[:, c].sum())
            if count:
                doubts = ("accuracy under everyday change",) if count > FEW * len(rows) and rows is unread else ()
                alarms.append(Alarm(f"Changes by {name} {what.format(share(count, len(rows)))}.", doubts=doubts))
    return tuple(alarms)


def _names(how: NDArray[np.generic], corruptions: tuple[str, ...]) -> NDArray[np.str_]:
    return np.array([f"{corruptions[h // 5]} {SEVERITIES[h % 5]}" if h >= 0 else "" for h in np.asarray(how).tolist()])


def _against_severity(by_severity: NDArray[np.float64], clean: NDArray[np.bool_], seed: int) -> Curve:
    bands = [wilson(int(clean.sum()), len(clean))]
    for kept in by_severity.T:
        mean = Measure.mean("kept", kept, better="higher", seed=seed)
        bands.append((mean.low or 0.0, mean.high or 0.0))
    means = [float(clean.mean()), *by_severity.mean(0).tolist()]
    accuracy = Line(
        label="accuracy",
        x=(0.0, *map(float, SEVERITIES)),
        y=tuple(means),
        low=tuple(b[0] for b in bands),
        high=tuple(b[1] for b in bands),
    )
    error = Line(
        label="mean corruption error",
        x=accuracy.x,
        y=tuple(1 - m for m in means),
        low=tuple(1 - b[1] for b in bands),
        high=tuple(1 - b[0] for b in bands),
    )
    return Curve(
        name="severity",
        title="Accuracy and mean corruption error against severity",
        x_label="severity (0: clean)",
        y_label="share of inputs",
        unit_y=True,
        lines=(accuracy, error),
    )


def _pictures(subject: Subject, w: Witnesses, how: list[tuple[str, int]], shown: int) -> tuple[Gallery, ...]:
    """One exhibit per corruption that broke something, mildest first; of pictures alone."""
    if not subject.inputs.is_picture:
        return ()
    firsts: dict[str, int] = {}
    for i in sorted(range(len(w)), key=lambda i: how[i][1]):
        firsts.setdefault(how[i][0], i)
    few = list(firsts.values())[:shown]
    words = {i: subject.in_words(w.label[i], w.said[i]) for i in few}
    exhibits = tuple(
        Exhibit.of(
            int(w.index[i]),
            f"{words[i][0]} after {how[i][0]} at severity {how[i][1]}: said {words[i][1]}",
            w.clean[i],
            w.changed[i],
            low=subject.inputs.low,
            high=subject.inputs.high,
        )
        for i in few
    )
    return (Gallery(name="broken", title="The mildest changes that broke it", exhibits=exhibits),) if exhibits else ()


SHELVED = EverydayChange
