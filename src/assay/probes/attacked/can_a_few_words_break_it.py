"""How many texts survive an attacker who rewords them as a reader would not mind?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.data.texts import Texts
from assay.errors import AssayError
from assay.finding import Alarm, Bars, Beside, Exhibit, Finding, Gallery, Measure, Table, Witnesses, share
from assay.inputs import Text
from assay.methods.attack.aim import truth_of
from assay.methods.attack.chance import answers, chance, threats
from assay.methods.attack.words import allowed, replay, reword
from assay.probe import Probe
from assay.run import batch_of
from assay.standard import Standard

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

Norm = Literal["words", "characters"]
NORMS: tuple[Norm, ...] = ("words", "characters")
TOLD = {"words": "synonyms", "characters": "slips, case and lookalikes"}
MEASURES = {norm: f"accuracy under changed {norm}" for norm in NORMS}
HEADLINE = "accuracy under changed text"
FEW = 0.05  # texts that nothing could be tried on: more of them put a number in doubt
LONGEST = 400  # characters of a text that are shown
QUERIES = 25  # for each step of the budget, as for images where there are no gradients


@dataclass(frozen=True)
class CanAFewWordsBreakIt(Probe):
    """Does it stay right when someone rewords a text on purpose, so that no reader would stumble?

    At most a `share` of the words changes, at least one. One attacker has synonyms, from a short list in English; the
    other has slips of the keyboard, capitals, and letters that look the same. Both see the answers and no gradient, and
    what the model is shown is always the tokens of a text that someone could have typed, never a shifted embedding. The
    text that a finding shows is the text that broke it.
    """

    share: float = 0.15

    source: ClassVar[str] = (
        "Jin et al., AAAI 2020, arXiv:1907.11932 (words by importance, then substitution); Gao et al. 2018, "
        "arXiv:1801.04354 (characters); the list of synonyms is Assay's own"
    )
    standards: ClassVar[tuple[Standard, ...]] = (Standard(at_least=0.4),)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise AssayError(f"The setting share={self.share} of {self.name()!r} must lie above 0 and be at most 1.")

    def why_not(self, subject: Subject) -> str | None:
        data = subject.data["test"]
        if not isinstance(data, Texts):
            return (
                "it changes words of a text, and needs texts with the tokenizer that the model reads them through "
                f"(assay.data.texts.Texts); the test data here are {type(data).__name__}"
            )
        if data.tokenizer is None:
            return "it changes words of a text, and these texts come without the tokenizer that reads them; give one"
        return super().why_not(subject)

    def ask(self, subject: Subject, run: Run) -> Finding:
        data = _texts(subject)
        index = run.pick(data, run.budget.dear)
        before = data.strings(index)
        most = max(allowed(text, self.share) for text in before)
        queries = QUERIES * run.budget.steps
        rows = run.map(partial(self._reword, subject, most, queries), subject, "test", index, "changed words")
        count = answers(subject.draws)
        clean = _right(rows["clean wrong"], count)
        wrong = {norm: np.asarray(rows[f"{norm} wrong"], dtype=np.int64) for norm in NORMS}
        # by the search's own answers: to take the larger count would choose by the draws that are counted
        worst = np.where(rows["words margin"] <= rows["characters margin"], wrong["words"], wrong["characters"])
        after = {norm: _replayed(before, rows[f"{norm} edits"], norm) for norm in NORMS}
        broke = {norm: (2 * wrong[norm] > count) & (2 * rows["clean wrong"] <= count) for norm in NORMS}
        sizes = np.array([max(1, len(text.split())) for text in before])
        shares = {norm: np.asarray(rows[f"{norm} words"]) / sizes for norm in NORMS}
        smallest = np.minimum(*(np.where(broke[norm], shares[norm], np.inf) for norm in NORMS))
        trivial = Beside(*subject.trivially_right("test", index))
        beside = (trivial, Beside("clean accuracy", float(clean.mean())))
        witnesses = self._witnesses(subject, run, index, after, broke)
        held = {norm: _right(wrong[norm], count) for norm in NORMS}
        both = _right(worst, count)
        bound = f"of at most {100 * self.share:g} % of the words, and at least one"
        fell = np.isfinite(smallest)
        some = Measure.median(
            "median share of words changed",
            smallest[fell] if fell.any() else smallest,
            better="higher",
            seed=run.seed,
            about="of the texts that broke, whichever attacker needed fewer",
        )
        return Finding(
            says=f"An attacker who may change {100 * self.share:g} % of the words leaves {100 * both.mean():.0f} % of "
            f"the texts right, of {100 * clean.mean():.0f} % as they were written.",
            measures=(
                Measure.chance(
                    HEADLINE,
                    both,
                    better="higher",
                    seed=run.seed,
                    column="held",
                    about=f"right under both kinds of change {bound}; {queries} questions for each",
                    beside=beside,
                ),
                *(
                    Measure.chance(
                        MEASURES[norm],
                        held[norm],
                        better="higher",
                        seed=run.seed,
                        column=f"held {norm}",
                        about=f"right under changes {bound}: {TOLD[norm]}",
                        beside=beside,
                    )
                    for norm in NORMS
                ),
                *_again(worst, rows["clean wrong"], count, run.seed),
                some,
            ),
            samples=Table(
                "test",
                {
                    "index": index,
                    "clean": clean,
                    "held": both,
                    **{f"held {norm}": held[norm] for norm in NORMS},
                    **({"held again": threats(worst, count)[1].right} if count > 1 else {}),
                    **{f"{norm} changed": np.asarray(rows[f"{norm} words"]) for norm in NORMS},
                    **{f"{norm} queries": np.asarray(rows[f"{norm} queries"]) for norm in NORMS},
                    **{f"broken by {norm}": np.array(_where(broke[norm], after[norm])) for norm in NORMS},
                },
            ),
            views=(
                Bars(
                    name="accuracy",
                    title="Accuracy as written, and after each attacker",
                    y_label="share of texts",
                    labels=("as written", *(TOLD[norm] for norm in NORMS), "either"),
                    values=tuple(float(v.mean()) for v in (clean, *held.values(), both)),
                    unit_y=True,
                    marks=(trivial,),
                ),
                *self._shown(subject, witnesses, before, after, broke, index, run.budget.shown),
            ),
            alarms=_alarms(rows, clean > 0.5, broke, some),
            witnesses=witnesses if len(witnesses) else None,
        )

    def _reword(self, subject: Subject, most: int, queries: int, shard: Shard) -> Mapping[str, Tensor]:
        """Both attackers on some texts: what they changed, and how often fresh answers to that are wrong."""
        data, device = _texts(subject), shard.x.device
        texts = data.strings(shard.index)
        truth = truth_of(subject.task, shard.y)
        told = {"clean wrong": chance(subject.single, shard.x, truth, draws=subject.draws).wrong}

        def margins(changed: list[str], rows: Tensor) -> Tensor:
            found, size = [], min(128, batch_of(subject.inputs.shape))
            for part in (slice(start, start + size) for start in range(0, len(changed), size)):
                x, fits = data.encode(changed[part])
                m = torch.full((len(x),), torch.inf)
                if fits.any():
                    out, y = subject.predict(x[fits].to(device)), shard.y[rows[part][fits].to(device)]
                    m[fits] = _signed(subject, out, y).cpu()
                found.append(m)
            return torch.cat(found)

        for norm in NORMS:
            near = partial(Text().neighbours, norm=norm)
            done = reword(margins, texts, near, share=self.share, queries=queries, rng=_on_cpu(shard))
            x, _ = data.encode(done.texts)
            same = (done.words == 0)[:, None]
            x = torch.where(same, shard.x.cpu(), x).to(device)
            edits = torch.full((len(texts), most, 2), -1, dtype=torch.long)
            for i, some in enumerate(done.edits):
                if some:
                    edits[i, : len(some)] = torch.tensor(some)
            told |= {
                f"{norm} wrong": chance(subject.single, x, truth, draws=subject.draws).wrong,
                f"{norm} margin": done.margin,
                f"{norm} words": done.words,
                f"{norm} queries": done.queries,
                f"{norm} tried": done.tried,
                f"{norm} unread": done.unread,
                f"{norm} edits": edits,
            }
        return told

    def _witnesses(
        self,
        subject: Subject,
        run: Run,
        index: NDArray[np.int64],
        after: Mapping[Norm, list[str]],
        broke: Mapping[Norm, NDArray[np.bool_]],
    ) -> Witnesses:
        """The tokens of every text that broke, by words first; a token is a name, so there is no ball around it."""
        data = _texts(subject)
        at = np.concatenate([np.flatnonzero(broke[norm]) for norm in NORMS])
        texts = [after[norm][i] for norm in NORMS for i in np.flatnonzero(broke[norm])]
        clean, target = (part.numpy() for part in data.take(index[at]))
        changed = data.encode(texts)[0].numpy()
        said = subject.said(changed, run.device)
        classes = "classes" in subject.task.gives
        return Witnesses(
            split="test",
            index=index[at],
            clean=clean,
            changed=changed,
            label=target,
            said=said.argmax(1) if classes and len(said) else said if len(said) else np.zeros(0, dtype=np.int64),
            norm=("none",) * len(at),
            radius=np.zeros(len(at)),
            how=tuple(norm for norm in NORMS for _ in range(int(broke[norm].sum()))),
        )

    def _shown(
        self,
        subject: Subject,
        witnesses: Witnesses,
        before: list[str],
        after: Mapping[Norm, list[str]],
        broke: Mapping[Norm, NDArray[np.bool_]],
        index: NDArray[np.int64],
        shown: int,
    ) -> tuple[Gallery, ...]:
        """Texts before and after, in turn of both attackers, those with the fewest changed words first."""
        places = [(norm, int(i)) for norm in NORMS for i in np.flatnonzero(broke[norm])]
        pairs = [(before[i], after[norm][i]) for norm, i in places]
        order = sorted(range(len(places)), key=lambda k: sum(a != b for a, b in _words(*pairs[k])))
        turns = [[k for k in order if places[k][0] == norm] for norm in NORMS]
        few = [k for pair in zip_longest(*turns) for k in pair if k is not None][:shown]
        exhibits = tuple(
            Exhibit(
                index=int(index[places[k][1]]),
                caption="{}: said {} after {}. {}".format(
                    *subject.in_words(witnesses.label[k], witnesses.said[k]), TOLD[places[k][0]], marked(*pairs[k])
                ),
                panels=(),
            )
            for k in few
        )
        title = "Texts that broke it: [what was written -> what it became]"
        return (Gallery(name="broken", title=title, exhibits=exhibits),) if exhibits else ()


def _texts(subject: Subject) -> Texts:
    data = subject.data["test"]
    assert isinstance(data, Texts)  # why_not saw to it
    return data


def _on_cpu(shard: Shard) -> torch.Generator:
    return torch.Generator().manual_seed(shard.rng.initial_seed())


def _signed(subject: Subject, out: Tensor, y: Tensor) -> Tensor:  # n *o, n *t -> n
    """The margin, above 0 exactly where the answer is right, ties and answers that are no numbers included."""
    m = subject.task.margin(out, y).float()
    wrong = m.nan_to_num(-torch.inf).clamp_max(0)
    return torch.where(subject.task.right(out, y), m.clamp_min(torch.finfo(m.dtype).tiny), wrong)


def _right(wrong: NDArray[Any], count: int) -> NDArray[Any]:
    """The chance of a right answer; a bool where one answer says it all."""
    return np.asarray(wrong) == 0 if count == 1 else 1 - np.asarray(wrong) / count


def _replayed(before: list[str], edits: NDArray[Any], norm: Norm) -> list[str]:  # n, n most 2
    near = partial(Text().neighbours, norm=norm)
    done = np.asarray(edits, dtype=np.int64)
    return [replay(t, [(w, c) for w, c in each.tolist() if w >= 0], near) for t, each in zip(before, done, strict=True)]


def _where(broke: NDArray[np.bool_], texts: list[str]) -> list[str]:
    return [text if fell else "" for fell, text in zip(broke, texts, strict=True)]


def _words(before: str, after: str) -> list[tuple[str, str]]:
    return list(zip(before.split(), after.split(), strict=True))


def marked(before: str, after: str) -> str:
    """The text with each changed word beside what it became; a long one from shortly before the first change."""
    told = [a if a == b else f"[{a} -> {b}]" for a, b in _words(before, after)]
    text = " ".join(told)
    if len(text) <= LONGEST:
        return text
    first = next((k for k, (a, b) in enumerate(_words(before, after)) if a != b), 0)
    text = " ".join(told[max(0, first - 10) :])
    return ("... " if first > 10 else "") + (text if len(text) <= LONGEST else text[:LONGEST] + " ...")


def _again(worst: NDArray[np.int64], clean: NDArray[Any], count: int, seed: int) -> tuple[Measure, ...]:
    """Against a random model, an attacker who may ask again."""
    if count == 1:
        return ()
    again, plain = threats(worst, count)[1], threats(np.asarray(clean, dtype=np.int64), count)[1]
    return (
        Measure.chance(
            f"{HEADLINE}{again.name}",
            again.right,
            better="higher",
            seed=seed,
            column="held again",
            about=f"the same texts, right {again.times}",
            beside=(Beside(f"texts as written{again.name}", float(plain.right.mean())),),
        ),
    )


def _alarms(
    rows: Mapping[str, NDArray[Any]],
    clean: NDArray[np.bool_],
    broke: Mapping[Norm, NDArray[np.bool_]],
    some: Measure,
) -> tuple[Alarm, ...]:
    """Texts that look robust because little or nothing could be tried on them."""
    found = []
    for norm in NORMS:
        alive = clean & ~broke[norm]
        bare = int((alive & (rows[f"{norm} tried"] == 0)).sum())
        cut = int((alive & (rows[f"{norm} unread"] > 0)).sum())
        doubted = (MEASURES[norm],) if norm == "words" else (MEASURES[norm], HEADLINE)
        if bare:
            found.append(
                Alarm(
                    f"On {share(bare, len(clean))} of the texts nothing could be tried by {TOLD[norm]}: they count as "
                    "right, and nothing is known of them.",
                    doubts=doubted if bare > FEW * len(clean) else (),
                )
            )
        if cut:
            found.append(
                Alarm(
                    f"{share(cut, len(clean))} of the texts have no room for some changes by {TOLD[norm]}: these have "
                    "more tokens than the longest text, and were left out. Give Texts a larger length.",
                    doubts=doubted if cut > FEW * len(clean) else (),
                )
            )
    if some.value is None:
        found.append(Alarm("No text broke, so nothing is known of how many words that takes."))
    return tuple(found)


SHELVED = CanAFewWordsBreakIt
