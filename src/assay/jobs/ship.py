"""Ship: make a model smaller, ask both the same questions, and say whether what that cost is within limits.

    runs/ship-<subject>+<form>-<key>/
      <subject>+<form>.onnx (or .pt2)  card.md  ship.html  ship.json

The smaller model is made and both are audited by `cure`, whose weights and runs lie beside; what a remedy that trains
did is told from the model as it was, for that is what would be replaced. Beside the questions stands what only a pair
can tell: which answers changed, which attacks work on one of the two alone, how alike their maps are, where their
numbers part, and what was gained: bytes and seconds, as measured here. The original stays as it was.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from assay import shelf, store
from assay.audit import Audit
from assay.errors import AssayError
from assay.finding import Measure, Witnesses, share
from assay.jobs.cure import Cure, How, cure
from assay.jobs.forms import FORMS, write
from assay.jobs.gap import Gap, between
from assay.jobs.limits import FORGET, Held, Limit, held, parsed, refuse_unasked, refuse_unknown
from assay.probe import Probe, configure, judge_witnesses, undisturbed
from assay.remedy import Remedy
from assay.report.card import card
from assay.report.ship import render_ship
from assay.run import Run

if TYPE_CHECKING:
    from assay.subject import Subject

QUESTIONS = ("accuracy", FORGET, "confidence", "everyday-change", "worst-case-accuracy", "certified-radius")
"""What is asked of both unless told: is it right, sure, steady, attacked, proved, and what did it forget."""
LIMITS = ("accuracy=1pt",)
"""Where nobody gives limits."""
BATCHES = (1, 64)  # inputs of a pass that is timed
EXPLAINED = 16  # inputs whose maps are compared
MAP = "occlusion"  # asks for no gradient, so that an integer graph has the same map as any network


class Speed(NamedTuple):
    """Seconds of one pass over a batch, the median of several, before and after, each with where it was measured."""

    batch: int
    before: float
    before_on: str
    after: float
    after_on: str


class Alone(NamedTuple):
    """Of the inputs that break one model by a question's attack, those that do not break the other."""

    probe: str
    small: tuple[int, int]
    """Of those that break the smaller: how many leave the original right, of how many."""
    original: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """The smaller model in its file, and what became of it."""

    cure: Cure
    form: str
    file: Path
    folder: Path
    sizes: tuple[int, int]
    """Bytes: of the original's weights, of the file."""
    speeds: tuple[Speed, ...]
    held: tuple[Held, ...]
    alone: tuple[Alone, ...]
    maps: Measure | None
    gap: Gap

    @property
    def page(self) -> Path:
        return self.folder / "ship.html"

    @property
    def outcome(self) -> str:
        if self.cure.status:  # a question broke: what limits say is of the others alone
            return "cannot tell"
        seen = [each.outcome for each in self.held]
        return next((word for word in ("exceeded", "cannot tell") if word in seen), "within")

    @property
    def status(self) -> int:
        """2 where a question broke; else 1 where a limit is exceeded, 3 where that cannot be told, 0 within all."""
        return self.cure.status or {"exceeded": 1, "cannot tell": 3, "within": 0}[self.outcome]

    def verdict(self) -> str:
        """Shipped or not, and why, in a sentence."""
        kinds: dict[str, list[str]] = {}
        for each in self.held:
            kinds.setdefault(each.outcome, []).append(f"{each.limit} ({each.why})")
        if self.cure.status:
            return "Not fit to ship: a question broke, so that nobody knows."
        if self.outcome == "exceeded":
            return f"Not fit to ship: over the limit {'; '.join(kinds['exceeded'])}."
        if self.outcome == "cannot tell":
            return f"It cannot be told whether it is fit to ship: {'; '.join(kinds['cannot tell'])}."
        return f"Fit to ship: within {'; '.join(kinds['within'])}."

    def told(self) -> tuple[str, ...]:
        """What only a pair can tell, in sentences."""
        said = [
            f"On disk it takes {self.sizes[1]:,} bytes, where the weights of the original take {self.sizes[0]:,} "
            f"({self.sizes[1] / max(1, self.sizes[0]):.2f} times as many)."
        ]
        said += [
            f"A pass over {each.batch} input{'' if each.batch == 1 else 's'} takes {_ms(each.after)} on "
            f"{each.after_on} of this machine, and took {_ms(each.before)} on {each.before_on} "
            f"({each.before / each.after:.2f} times as fast)."
            for each in self.speeds
        ]
        for each in self.alone:
            said.append(
                f"{each.probe}: of the changed inputs that break the smaller model {share(*each.small)} leave the "
                f"original right, of those that break the original {share(*each.original)} leave the smaller right; "
                "those are the smallest changes found, which barely break a model."
            )
        if self.maps is not None and self.maps.value is not None:
            said.append(
                f"Maps of both ({MAP}, {self.maps.n} inputs) have a mean rank correlation of {self.maps.value:.2f} "
                f"({self.maps.low:.2f} to {self.maps.high:.2f})."
            )
        return (*said, *self.gap.says())

    def to_json(self) -> dict[str, Any]:
        return {
            "format": store.FORMAT,
            "as": self.form,
            "file": self.file.name,
            "outcome": self.outcome,
            "verdict": self.verdict(),
            "status": self.status,
            "limits": [
                {
                    "limit": str(each.limit),
                    "probe": each.probe,
                    "measure": each.measure,
                    "harm": None
                    if each.harm is None
                    else {k: getattr(each.harm, k) for k in ("value", "low", "high", "n", "unit")},
                    "outcome": each.outcome,
                    "why": each.why,
                    "more": each.more,
                }
                for each in self.held
            ],
            "bytes": {"before": self.sizes[0], "after": self.sizes[1]},
            "seconds": [each._asdict() for each in self.speeds],
            "attacks": [each._asdict() for each in self.alone],
            "maps": None if self.maps is None else dataclasses.asdict(self.maps),
            "gap": self.gap.to_json(),
            "cure": self.cure.to_json(),
        }


def made_by(name: str, settings: Mapping[str, Any]) -> tuple[Remedy, str]:
    """The remedy behind a form, or the remedy of that name, with these settings; and the suffix of the file."""
    if name in FORMS:
        return FORMS[name].made_by(settings), FORMS[name].suffix
    if name not in shelf.names("remedies"):
        raise AssayError(
            f"There is no form {name!r} to ship in; give one of {', '.join(FORMS)}, or a remedy that shrinks "
            "(`assay remedies`)."
        )
    return configure(shelf.load("remedies", name), settings), ".pt2"


class Plan(NamedTuple):
    """What is made, asked and held, as far as that can be told before a model is opened."""

    remedy: Remedy
    suffix: str
    probes: tuple[str | Probe, ...]
    limits: tuple[Limit, ...]


def planned(
    form: str,
    *,
    limits: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    probes: Sequence[str | Probe] | None = None,
) -> Plan:
    """Read what was asked for; a slip of the pen is told here."""
    bounds = parsed(limits or LIMITS)
    remedy, suffix = made_by(form, settings or {})
    asked = dict.fromkeys(probes if probes is not None else _questions())
    names = [each.name() if isinstance(each, Probe) else each for each in asked]
    for name in names:
        shelf.load("probes", name)  # an unknown name is an error that says what is near
    extra = () if FORGET in names else (FORGET,)
    refuse_unasked(bounds, (*names, *extra))
    return Plan(remedy, suffix, (*asked, *extra), bounds)


def _questions() -> list[str | Probe]:
    """QUESTIONS, of which the proof is by smoothing: bounds through layers are not to be had of every form."""
    smoothed = configure(shelf.load("probes", "certified-radius"), {"by": "smoothing"})
    return [smoothed if name == smoothed.name() else name for name in QUESTIONS]


def ship(
    subject: Subject,
    form: str,
    *,
    limits: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    probes: Sequence[str | Probe] | None = None,
    out: str | Path = "runs",
    source: tuple[str, ...] = (),
    **how: Unpack[How],
) -> Shipped:
    """Make the subject smaller by a form or a remedy, audit both, and hold what that cost against the limits.

    `probes` are QUESTIONS unless given; what-did-it-forget is asked in any case. `how` is as of `audit`.
    """
    from assay.door import admit

    plan = planned(form, limits=limits, settings=settings, probes=probes)
    subject = admit(subject).subject
    reason = plan.remedy.why_not(subject)
    if reason is not None:
        raise AssayError(f"{subject.name!r} cannot be shipped as {form}: {reason}.")
    _refuse_random(subject, form)
    if "draws" in plan.remedy.settings():
        _refuse_random(plan.remedy.frame(subject), form)

    def heard(before: Audit) -> None:  # only an audit knows measures' names and units
        refuse_unknown(plan.limits, before, subject.task.headline)

    done = cure(plan.remedy, subject, probes=plan.probes, control=False, heard=heard, out=out, source=source, **how)
    return _concluded(done, subject, form, plan)


def _refuse_random(small: Subject, form: str) -> None:
    """A file gives one pass, which is not the model that the audit asks where answers are means of several."""
    if small.draws > 1:
        raise AssayError(
            f"{small.name!r} cannot be shipped as {form}: its answers are means of {small.draws} random ones, and a "
            "file gives one; ship a model that is not random."
        )


def _concluded(done: Cure, subject: Subject, form: str, plan: Plan) -> Shipped:
    small, run = done.cured, done.run
    _refuse_random(small, form)  # where only its making told
    original = replace(subject, data=small.data, unlabelled=small.unlabelled)
    against = tuple(held(limit, done.since_before, done.before, done.after) for limit in plan.limits)
    folder = done.folder.parent / f"ship-{done.folder.name.removeprefix('cure-')}"
    file = folder / f"{store.slug(small.name)}{plan.suffix}"
    with run.progress("writing the file", 1) as tick:
        size = write(small, file)
        tick(1)
    with undisturbed(original.model, run), undisturbed(small.model, run):
        speeds, sizes = _speeds(original, small, run), (_stored(original), size)
        alone, maps = _attacks(done, original, small, run), _maps(original, small, run)
    shipped = Shipped(
        cure=done,
        form=form,
        file=file,
        folder=folder,
        sizes=sizes,
        speeds=speeds,
        held=against,
        alone=alone,
        maps=maps,
        gap=between(original, small, run),
    )
    forgot = next((row.answer.finding for row in done.after.rows if row.answer.probe == FORGET), None)
    page = render_ship(
        done.before, done.after, done.since_before, form=form, held=shipped.held, outcome=shipped.outcome,
        verdict=shipped.verdict(), told=shipped.told(), forgot=forgot, layers=shipped.gap.layers, file=file.name,
        price=done.price, notes=done.notes[1:],
    )  # fmt: skip
    store.write_atomically(folder / "card.md", card(done.after))
    store.write_atomically(folder / "ship.json", json.dumps(shipped.to_json(), indent=1, allow_nan=False))
    store.write_atomically(folder / "ship.html", page)
    return shipped


def _stored(subject: Subject) -> int:
    from assay.methods.compress.weighed import stored

    return stored(subject.model)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1000 * seconds:.3g} ms"


def _speeds(original: Subject, small: Subject, run: Run) -> tuple[Speed, ...]:
    """Seconds of a pass over each batch, one model right after the other; where the smaller answers on another device
    than the run's, on that one too."""
    import numpy as np

    from assay.methods.compress.price import latency
    from assay.methods.compress.weighed import answers_on

    data, made = small.data["test"], []
    devices = dict.fromkeys((run.device, answers_on(small.model, run.device)))
    with run.progress("seconds of a pass", len(BATCHES) * len(devices)) as tick:
        for batch in BATCHES:
            x = data.take(np.arange(min(batch, len(data))))[0]
            for device in devices:
                before, after = (
                    (latency(each.model, x, device), answers_on(each.model, device)) for each in (original, small)
                )
                made.append(Speed(len(x), *before, *after))
                tick(1)
    return tuple(dict.fromkeys(made))


def _attacks(done: Cure, original: Subject, small: Subject, run: Run) -> tuple[Alone, ...]:
    """The changed inputs that break one model, judged on the other."""
    found = []
    rows = {row.answer.probe: row.answer.finding for row in done.before.rows if row.answer.finding}
    for row in done.after.rows:
        probe, after = row.answer.probe, row.answer.finding
        before = rows.get(probe)
        if before is None or after is None or before.witnesses is None or after.witnesses is None:
            continue
        counts = [
            _spared(witnesses, other, run)
            for witnesses, other in ((after.witnesses, original), (before.witnesses, small))
        ]
        if counts[0][1] or counts[1][1]:
            found.append(Alone(probe, counts[0], counts[1]))
    return tuple(found)


def _spared(witnesses: Witnesses, other: Subject, run: Run) -> tuple[int, int]:
    """How many of the inputs that were changed to break one model leave the other right, and how many there are."""
    import numpy as np

    changed = witnesses.keep(np.array([norm != "none" for norm in witnesses.norm], dtype=bool))
    if not len(changed):
        return 0, 0
    broken, _ = judge_witnesses(changed, other, run)
    return int((~broken).sum()), len(changed)


def _maps(original: Subject, small: Subject, run: Run) -> Measure | None:
    """How alike the maps of both are that say what speaks for the original's answer: the mean rank correlation."""
    import numpy as np

    from assay.methods.explain.maps import explain
    from assay.methods.rank.agreement import rank_correlation

    random = max(original.draws, small.draws) > 1
    if "classes" not in small.task.gives or small.tokens or random:
        return None
    data = small.data["test"]
    index = run.pick(data, min(EXPLAINED, len(data)))
    x = data.take(index)[0].to(run.device)
    if x.ndim < 2 or math.prod(x.shape[1:]) < 2:
        return None
    with run.progress("maps of both", 2) as tick:
        chosen, made = original.predict(x).argmax(1), []
        for each in (original, small):
            made.append(explain(each.model, x, chosen, MAP).values)
            tick(1)
    alike = rank_correlation(*made).double().cpu().numpy()
    known = alike[np.isfinite(alike)]
    if not len(known):
        return None
    return Measure.mean(
        "rank correlation of maps", known, better="higher", seed=run.seed, about=f"{MAP}, for the original's answer"
    )
