"""Cure: audit a subject, apply a remedy, audit what came of it, and compare.

    runs/cure-<subject>+<remedy>-<key>/
      cure.html  cure.json  weights.safetensors
    runs/control-<subject>+<remedy>-<key>/
      weights.safetensors

A remedy that trains anew is compared with its control: a training with the same schedule, data and seed and without the
remedy, so that what more or less training does is not put down to the remedy. Where the control has a control of its
own (a training with as many updates, beside a plain one) a note says what lies between those two. One that keeps part
of the test data for itself is compared on what it leaves, before and after. The weights of all are kept under a key of
subject, remedy, settings, seed and budget: a cure that was killed goes on without training again, and remedies with the
same control train it once. They are believed only if the subject they make has the fingerprint that was stored with
them. A long training that is killed goes on at its last epoch (training-*.safetensors, deleted once the weights are
there). Of one that diverges the weights of the last epoch that ended well are kept (last-good.safetensors).

One training cannot tell a remedy from luck: two with other seeds differ by more than test inputs vary. Of several, with
the seeds that follow, the differences are means with intervals over trainings and inputs. All are asked about the same
inputs; the page and the weights are of the first.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from assay import code, shelf, store
from assay.audit import Audit, Change, Judged, open_audit
from assay.errors import AssayError
from assay.finding import paired_difference
from assay.jobs.audit import audit
from assay.jobs.compare import FEWEST_TRAININGS, compare, over_trainings
from assay.methods.train.checkpoint import PREFIX
from assay.methods.train.fit import Diverged
from assay.probe import Probe, configure, spelled, torch_as_it_comes, undisturbed
from assay.remedy import Remedy
from assay.report.diff import outcome, render_diff
from assay.run import Engine, Progress, Run, silent
from assay.run import budget as budget_named
from assay.standard import Standards, read_standards
from assay.tuning import Tuning

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from assay.subject import Subject


class How(TypedDict, total=False):
    """How each audit is made, in the words of `audit`."""

    budget: str
    inputs: int | None
    standards: str | Path | Standards | None
    seed: int
    device: str
    engine: Engine | None
    progress: Progress
    told: Callable[[Judged, bool], None]
    debug: bool


@dataclass(frozen=True, kw_only=True)
class Cure:
    """The same questions asked before and after, what changed, and where the page and the cured weights are.

    `changes` are what the remedy did: from its control, where it has one, else from before, to after. `since_before`
    goes from before to after in any case. `notes` say what a reader must know to believe them, the outcome first. Of
    several trainings both are means, `control` and `after` are of the first, and `further` of the others.
    """

    before: Audit
    control: Audit | None
    after: Audit
    changes: tuple[Change, ...]
    since_before: tuple[Change, ...]
    notes: tuple[str, ...]
    price: str
    folder: Path
    cured: Subject
    run: Run
    further: tuple[tuple[Audit | None, Audit], ...] = ()

    @property
    def page(self) -> Path:
        return self.folder / "cure.html"

    @property
    def weights(self) -> Path:
        return self.folder / "weights.safetensors"

    @property
    def status(self) -> int:
        """2 where a question broke, else 0: a cure judges no subject."""
        asked = (self.before, self.control, self.after, *(each for further in self.further for each in further))
        return 2 if 2 in [each.status for each in asked if each] else 0

    def to_json(self) -> dict[str, Any]:
        def named(audit: Audit | None) -> dict[str, Any] | None:
            return None if audit is None else {"subject": audit.subject.name, "run": audit.folder and audit.folder.name}

        return {
            "format": store.FORMAT,
            "audits": {"before": named(self.before), "control": named(self.control), "after": named(self.after)},
            "further_trainings": [{"control": named(plain), "after": named(after)} for plain, after in self.further],
            "compared_with": "control" if self.control else "before",
            "notes": list(self.notes),
            "price": self.price,
            "changes": [dataclasses.asdict(c) for c in self.changes],
            "since_before": [dataclasses.asdict(c) for c in self.since_before],
        }


def cure(
    remedy: str | Remedy,
    subject: Subject,
    *,
    settings: Mapping[str, Any] | None = None,
    probes: Sequence[str | Probe] | None = None,
    control: bool = True,
    trainings: int = 1,
    heard: Callable[[Audit], None] = lambda before: None,
    out: str | Path = "runs",
    source: tuple[str, ...] = (),
    tuned: Tuning | None = None,
    **how: Unpack[How],
) -> Cure:
    """Audit `subject`, apply the remedy, audit again; `settings` are those of a remedy that is given by name.

    `control=False` spares the plain training that a remedy which trains anew is compared with. `trainings` is how often
    both are trained, with the run's seed and those that follow. `heard` is given the audit before while nothing is made
    yet: what it raises ends the cure. `tuned` is what went into the remedy's settings. `how` is as of `audit`.
    """
    from assay.door import admit
    from assay.engine.in_rows import in_rows, wants_rows
    from assay.engine.turned import fastest, turned

    subject = admit(subject).subject  # what is cured is what is audited
    how["standards"] = _standards(how.get("standards"))  # read once
    run = _run(**how)
    kind: type[Remedy] = type(remedy) if isinstance(remedy, Remedy) else shelf.load("remedies", remedy)
    chosen = remedy if isinstance(remedy, Remedy) else configure(kind, settings or {})
    reason = chosen.why_not(subject)
    if reason is not None:
        raise AssayError(f"The remedy {chosen.name()!r} cannot be applied to {subject.name!r}: {reason}.")
    # padding that is exchanged without a training takes 0 epochs, and is the same with any seed
    trains = chosen.control() is not None or (chosen.needs_train and chosen.settings().get("epochs") != 0)
    if trainings != 1 and trainings < FEWEST_TRAININGS:
        raise AssayError(
            f"trainings={trainings} cannot tell a remedy from luck; give 1, or {FEWEST_TRAININGS} or more to have an "
            "interval over them."
        )
    if trainings > 1 and not trains:
        raise AssayError(f"trainings={trainings}, and {chosen.name()} trains nothing; leave the trainings out.")

    def asked(of: Subject, named: tuple[str, ...], effort: Tuning | None = None) -> Audit:
        done = audit(of, probes=probes, out=out, source=named, tuned=effort, **how)
        assert done.folder is not None  # it has an `out`
        return open_audit(done.folder, whole=True)  # a paired comparison needs the samples of resumed answers too

    def made(by: Remedy, kind: str, run: Run) -> tuple[Subject, float]:
        key, folder = _key(by, prints, run), place(by, kind, run)
        kept = _stored(folder / "weights.safetensors", key, subject, by)
        if kept is not None:
            return kept
        start = time.perf_counter()
        try:
            needed = wants_rows(subject)
            with in_rows(needed), turned(fastest(run.device, rows=needed)), torch_as_it_comes():
                cured = by.apply(subject, replace(run, keep=folder))
        except Diverged as e:
            raise AssayError(f"{e}{_kept_of(e, folder)}") from e
        seconds = time.perf_counter() - start
        _keep(folder / "weights.safetensors", key, cured, seconds)
        for done in folder.glob(f"{PREFIX}*"):
            done.unlink()
        return cured, seconds

    def place(by: Remedy, kind: str, run: Run) -> Path:
        return Path(out) / f"{kind}-{store.slug(subject.name)}+{by.name()}-{_key(by, prints, run)[:8]}"

    prints = f"{subject.fingerprint()} {subject.behaviour()}"
    chosen = chosen.settled(subject)
    given, notes = _on_the_same_inputs(subject, chosen.frame(subject))
    before = asked(given, source if given is subject else ())
    heard(before)
    runs = [replace(run, seed=run.seed + k) for k in range(trainings)]
    cured, seconds = made(chosen, "cure", run)
    plain = chosen.control()
    beside: list[Audit] = []
    undertrained = ""
    if plain is not None and control:
        retrained = [
            replace(made(plain, "control", each)[0], data=given.data, unlabelled=given.unlabelled) for each in runs
        ]
        beside = [asked(each, ()) for each in retrained]
        undertrained = _undertrained(given, retrained, run)
        notes += (_schedule(plain, chosen),)
        if undertrained:
            notes += (
                f"The schedule undertrains: the control is {undertrained}. The remedy may look better than it is, or "
                f"worse; train longer ({_longer(plain)}).",
            )
        plainer = plain.control()
        if plainer is not None:
            least, _ = made(plainer, "control", run)
            notes += (_between(plainer, least, plain, retrained[0], given, run),)
    elif plain is not None:
        notes += (
            f"No control was made: {chosen.name()} trains anew, and what that alone does is part of the difference.",
        )
    price = _price(chosen, subject, cured, seconds, run)
    after = [asked(cured, (), tuned), *(asked(made(chosen, "cure", each)[0], (), tuned) for each in runs[1:])]
    since_before = over_trainings([compare(before, each) for each in after])
    changes = over_trainings([compare(*each) for each in zip(beside, after, strict=True)]) if beside else since_before
    told = outcome(
        chosen.name(),
        changes,
        since_before if beside else (),
        undertrained=undertrained,
        trainings=trainings if trains else None,
    )
    controls: list[Audit | None] = [*beside] or [None] * trainings
    folder = place(chosen, "cure", run)
    done = Cure(
        before=before,
        control=controls[0],
        after=after[0],
        changes=changes,
        since_before=since_before,
        notes=(
            *(told, *((_seeds(runs),) if trains else ()), *notes),
            *(*chosen.remarks(cured, run), *chosen.beside(subject, cured, run)),
        ),
        price=price,
        folder=folder,
        cured=cured,
        run=run,
        further=tuple(zip(controls[1:], after[1:], strict=True)),
    )
    page = render_diff(
        before, done.after, changes, control=done.control, since_before=since_before, price=price, notes=done.notes,
        views=chosen.figures(cured, run),
    )  # fmt: skip
    store.write_atomically(folder / "cure.json", json.dumps(done.to_json(), indent=1, allow_nan=False))
    store.write_atomically(folder / "cure.html", page)
    return done


def _run(
    *,
    budget: str = "quick",
    inputs: int | None = None,
    standards: str | Path | Standards | None = None,
    seed: int = 0,
    device: str = "cpu",
    engine: Engine | None = None,
    progress: Progress = silent,
    debug: bool = False,
    **_: object,
) -> Run:
    """What the remedy works with: as the audits do."""
    from assay.engine.local import ThisProcess

    return Run(
        engine=engine or ThisProcess(),
        budget=budget_named(budget, _standards(standards).inputs if inputs is None else inputs),
        seed=seed,
        device=device,
        progress=progress,
        debug=debug,
    )


def _standards(given: str | Path | Standards | None) -> Standards:
    if isinstance(given, Standards):
        return given
    return Standards() if given is None else read_standards(Path(given))


def _seeds(runs: Sequence[Run]) -> str:
    """What the intervals cover."""
    if len(runs) == 1:
        return (
            f"Trained once, with seed {runs[0].seed}: the intervals cover test inputs only, and not how far a training "
            "with another seed would lie."
        )
    return (
        f"Trained {len(runs)} times, with seeds {runs[0].seed} to {runs[-1].seed}: differences are means, and their "
        "intervals cover trainings and test inputs. The weights, the figures and what is said of each question are of "
        "the first."
    )


def _on_the_same_inputs(subject: Subject, frame: Subject) -> tuple[Subject, tuple[str, ...]]:
    """The subject with the data that the cured one will be asked about, and a note where those are not its own."""
    prints = [
        {name: split.fingerprint() for name, split in {**each.data, **each.unlabelled}.items()}
        for each in (subject, frame)
    ]
    if prints[0] == prints[1]:
        return subject, ()
    left = len(frame.data["test"])
    parts = [name for name in prints[1] if prints[0].get(name) != prints[1][name]]
    note = "The remedy keeps a split of the data for itself; before and after are asked without it."
    if parts:
        note = (
            f"The remedy keeps part of {', '.join(map(repr, parts))} for itself; before and after are both asked about "
            "the rest, so that they pair."
        )
    if prints[0]["test"] != prints[1]["test"]:
        note = (
            f"The remedy keeps {len(subject.data['test']) - left:,} of the {len(subject.data['test']):,} test inputs "
            f"for itself; before and after are both asked about the {left:,} others, so that they pair."
        )
    return replace(subject, data=frame.data, unlabelled=frame.unlabelled), (note,)


def _schedule(plain: Remedy, chosen: Remedy) -> str:
    with_ = ", ".join(
        f"{spelled(name)}={value:g}" if isinstance(value, float) else f"{spelled(name)}={value}"
        for name, value in plain.settings().items()
        if value not in ("", ())  # nobody was named
    )
    return (
        f"The control is a {plain.name().replace('-', ' ')} with the same data, seed and schedule ({with_}); what "
        f"{chosen.name()} did is the difference from it, not from before."
    )


def _right(each: Subject, run: Run) -> NDArray[np.float64]:  # -> n
    """Whether it is right, for each input that it is asked about."""
    import torch

    with undisturbed(each.model, run):
        said, y = run.predict(each, "test", run.pick(each.data["test"]), "answers of the control")
    right: NDArray[np.float64] = each.task.right(torch.from_numpy(said), torch.from_numpy(y)).numpy().astype(float)
    return right


def _between(plainer: Remedy, least: Subject, plain: Remedy, retrained: Subject, subject: Subject, run: Run) -> str:
    """What lies between the control and its own: no merit of the remedy."""
    right = [_right(replace(each, data=subject.data), run) for each in (least, retrained)]
    difference, low, high = paired_difference(*right)
    return (
        f"A {plainer.name().replace('-', ' ')} is right on {100 * right[0].mean():.1f} % of {len(right[0]):,} inputs, "
        f"the control on {100 * right[1].mean():.1f} % ({100 * difference:+.1f} points, 95 % interval {100 * low:+.1f} "
        f"to {100 * high:+.1f}): what a {plain.name().replace('-', ' ')} does by itself, and no merit of the remedy."
    )


def _undertrained(subject: Subject, retrained: Sequence[Subject], run: Run) -> str:
    """How much less often the control is right than the subject it was made of; '' where that is not clear."""
    import numpy as np

    before = _right(subject, run)
    after = np.mean([_right(each, run) for each in retrained], axis=0)
    difference, _, high = paired_difference(before, after)
    if high >= 0:
        return ""
    return (
        f"right on {100 * after.mean():.1f} % of {len(before):,} inputs, before on {100 * before.mean():.1f} %, "
        f"{100 * difference:+.1f} points"
    )


def _kept_of(e: Diverged, folder: Path) -> str:
    """Keep the weights of the last epoch that ended well; says where."""
    from safetensors.torch import save

    if not e.epochs:
        return ""
    path = folder / "last-good.safetensors"
    state = {name: t.detach().cpu().clone().contiguous() for name, t in e.model.state_dict().items()}
    store.write_atomically(path, save(state))
    return f" They are kept in {str(path)!r}."


def _longer(plain: Remedy) -> str:
    epochs = plain.settings().get("epochs")
    return f"--set epochs={3 * epochs}" if isinstance(epochs, int) else "more epochs"


def _price(remedy: Remedy, subject: Subject, cured: Subject, seconds: float, run: Run) -> str:
    """What the cure costs: by its settings, and as measured here."""
    from assay.methods.compress.weighed import answers_on

    passes = [_pass_seconds(each, run) for each in (subject, cured)]
    stated = remedy.cost()
    words = (
        ""
        if stated is None
        else f"By its settings {remedy.name()} takes {stated.training:.3g} times the plain training and "
        f"{stated.inference:.3g} times the plain answer. "
    )
    before, after = (answers_on(each.model, run.device) for each in (subject, cured))
    where = "" if before == after else f" on {after} as it took on {before}"
    return (
        f"{words}Measured here: cured in {seconds:.1f} s; an answer takes {passes[1] / passes[0]:.2f} times as long"
        f"{where}."
    )


def _pass_seconds(subject: Subject, run: Run) -> float:
    """Seconds of one answer to a batch: the median of five, after one that does not count."""
    import numpy as np
    import torch

    subject.model.to(run.device)
    x, _ = subject.data["test"].take(np.arange(min(256, len(subject.data["test"]))))
    x = x.to(run.device)
    taken = []
    for _ in range(6):
        start = time.perf_counter()
        subject.predict(x)
        if torch.device(run.device).type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def _key(remedy: Remedy, prints: str, run: Run) -> str:
    """What makes two cures the same, in the way of `Probe.key`; `prints` are the subject's."""
    made_by = code.behind(type(remedy), type(run), type(run.engine))
    kind = run.device.partition(":")[0]
    parts = [prints, remedy.name(), made_by, remedy.settings(), run.seed, kind, dataclasses.asdict(run.budget)]
    return sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _keep(path: Path, key: str, cured: Subject, seconds: float) -> None:
    from safetensors.torch import save

    state = {name: t.detach().cpu().clone().contiguous() for name, t in cured.model.state_dict().items()}
    about = {"key": key, "fingerprint": cured.fingerprint(), "seconds": repr(seconds)}
    store.write_atomically(path, save(state, metadata=about))


def _stored(path: Path, key: str, subject: Subject, remedy: Remedy) -> tuple[Subject, float] | None:
    """The cured subject of an earlier run and how long it took, or None where it must be made anew.

    The weights go into what the remedy has `framed` for them; the fingerprint, which covers code and layers too, says
    whether it is the subject that was stored.
    """
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as f:
            about = f.metadata() or {}
            state = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118  (not a mapping)
    except (OSError, SafetensorError) as e:
        raise AssayError(f"Cannot read the cured weights {str(path)!r}: {e}; delete that file and cure again.") from e
    if about.get("key") != key:
        return None
    cured = remedy.framed(subject, state)
    try:
        cured.model.load_state_dict(state)
    except RuntimeError:
        return None
    return (cured, float(about.get("seconds", "nan"))) if cured.fingerprint() == about.get("fingerprint") else None
