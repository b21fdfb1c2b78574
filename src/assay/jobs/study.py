"""A tuning study: one training task for everybody, tries, trainings at the end, simulated tuners, and the analysis.

The folder and its rules are `store/studies.py`. Here is what needs the model: `bench` opens the subject once, and a
`Trainer` trains it. A try is trained on the training inputs less those held out for validation, by the seed of the
study; the final configuration on both, by each of the study's other seeds, and only then are test inputs looked at.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.errors import AssayError
from assay.methods.study.analysis import Analysis, analyse
from assay.methods.study.hyperparameters import Value, effective
from assay.methods.study.people import Participant, Try
from assay.store.files import strict_json, write_atomically
from assay.store.studies import Study, StudyFolder

if TYPE_CHECKING:
    from torch import nn

    from assay.methods.study.training import Ended, Rows, Trained
    from assay.methods.study.tuners import Tuner
    from assay.run import Progress
    from assay.subject import Subject

HELD = 512 * 2**20  # bytes of inputs that a study holds in memory
SHOWN = 400  # batch losses of a running try that are told; of more, every other one is left out
EVERY = 0.5  # seconds between two tellings
KEPT = 20  # random tries between two savings of the reference
TRIED, AT_THE_END = "tried", "at the end"


@dataclass(frozen=True)
class Bench:
    """The task that all tuners share. Tries get `learnt` and `validation`; `test` is for the end alone."""

    network: nn.Module
    learnt: Rows
    validation: Rows
    both: Rows
    test: Rows
    classes: int

    def facts(self) -> dict[str, int]:
        parts = {"training inputs": self.learnt, "validation inputs": self.validation, "test inputs": self.test}
        return {"classes": self.classes} | {name: len(rows.y) for name, rows in parts.items()}


def bench(subject: Subject, study: Study) -> Bench:
    """The subject's architecture, to be trained anew, and its data in three parts, split by the study's seed alone."""
    import torch

    from assay.methods.study.training import Rows
    from assay.tasks import Classification

    if not isinstance(subject.task, Classification):
        raise AssayError(f"{subject.name} is no classifier ({type(subject.task).__name__}); a study needs one.")
    missing = [part for part in ("train", "test") if part not in subject.data]
    if missing:
        raise AssayError(f"{subject.name} has no {missing[0]} data; a study needs inputs to train and to test on.")
    size = 4 * math.prod(subject.inputs.shape) * sum(len(subject.data[part]) for part in ("train", "test"))
    if size > HELD:
        raise AssayError(f"{subject.name} has {size / 2**20:,.0f} MB of inputs; a study takes {HELD // 2**20} at most.")

    def rows(part: str) -> Rows:
        x, y = subject.data[part].take(np.arange(len(subject.data[part])))
        return Rows(torch.as_tensor(x, device=study.device), torch.as_tensor(y, device=study.device).long())

    train, test = rows("train"), rows("test")
    n = len(train.y)
    held = round(study.validation * n)
    if not 0 < held < n:
        raise AssayError(f"--validation {study.validation:g} of {n} training inputs leaves none for a part; change it.")
    order = torch.from_numpy(np.random.default_rng(study.seed).permutation(n)).to(study.device)
    parts = [Rows(train.x[rows], train.y[rows]) for rows in (order[held:], order[:held])]
    return Bench(subject.model, parts[0], parts[1], train, test, len(subject.task.classes))


@dataclass(frozen=True)
class Trainer:
    """Trains configurations on a bench. What trains alike is trained once: experts all begin with the defaults."""

    bench: Bench
    study: Study
    known: dict[tuple[str, int, tuple[tuple[str, Value], ...]], Trained] = field(default_factory=dict)

    def tried(self, configuration: Mapping[str, Value], **watch: Any) -> Trained:
        """A try: trained on the training inputs, judged by the validation inputs."""
        return self._train(TRIED, self.study.seed, self.bench.learnt, self.bench.validation, configuration, watch)

    def tested(self, configuration: Mapping[str, Value], seed: int) -> float:
        """The test accuracy of a final configuration, trained on training and validation inputs."""
        found = self._train(AT_THE_END, seed, self.bench.both, self.bench.test, configuration, {}).accuracy
        assert found is not None  # nobody can stop it
        return found

    def _train(
        self, what: str, seed: int, learnt: Rows, judged: Rows, configuration: Mapping[str, Value], watch: Any
    ) -> Trained:
        from assay.methods.study.training import train

        key = (what, seed, tuple(effective(configuration).items()))
        if key in self.known:
            return self.known[key]
        done = train(self.bench.network, learnt, judged, configuration, seed=seed, **watch)
        if done.ended in ("done", "diverged"):
            self.known[key] = done
        return done


def new_study(path: Path, study: Study, subject: Subject) -> StudyFolder:
    """Make the folder of a study, or open it where the very same one is there."""
    whole = replace(study, facts=bench(subject, study).facts())
    if not (path / "study.json").exists():
        return StudyFolder.make(path, whole)
    found = StudyFolder.open(path)
    if found.study != whole:
        raise AssayError(f"There is another study in {str(path)!r}; go on with that one, or choose another folder.")
    return found


def run_try(
    folder: StudyFolder,
    id: str,
    number: int,
    trainer: Trainer,
    *,
    clock: Callable[[], float] = time.time,
    told: Callable[[str], None] = lambda line: None,
) -> Try:
    """Train a try that was submitted, tell how it goes, and write what came of it.

    It ends early where somebody cancels it and where the participant's time is over; both stay in the log.
    """
    from assay.methods.study.training import Trained

    who = folder.participant(id)
    one = next((t for t in who.tries if t.number == number), None)
    if one is None:
        raise AssayError(f"There is no try {number} of this participant; submit it first.")
    if one.state != "running":
        return one
    began, live = clock(), _Live(folder, id, number)

    def stop() -> Ended | None:
        if folder.left(who, clock()) <= 0:
            return "out of time"
        return "cancelled" if live.due() and folder.cancelled(id, number) else None

    def after(epochs: int, loss: float) -> None:
        live.epoch(loss)
        told(f"training: {epochs} of {one.configuration['epochs']} epochs, loss {loss:.4f}")

    late = stop()  # a configuration that is known already is not handed out after the time either
    watch = {"on_batch": live.batch, "on_epoch": after, "stop": stop}
    found = Trained(late, (), ()) if late else trainer.tried(one.configuration, **watch)
    return folder.end(
        id,
        replace(
            one, state=found.ended, seconds=clock() - began, accuracy=found.accuracy, losses=found.losses,
            accuracies=found.accuracies,
        ),
    )  # fmt: skip


class _Live:
    """How a running try goes, told now and then."""

    def __init__(self, folder: StudyFolder, id: str, number: int) -> None:
        self.folder, self.id, self.number = folder, id, number
        self.batches: list[tuple[int, float]] = []
        self.epochs: list[float] = []
        self.steps, self.step, self.last, self.looked = 0, 1, 0.0, 0.0

    def due(self) -> bool:
        """Whether it is time to look whether somebody cancelled: a file is looked for twice a second, not each step."""
        now = time.monotonic()
        if now - self.looked < EVERY:
            return False
        self.looked = now
        return True

    def batch(self, epoch: int, batch: int, loss: float) -> None:
        self.steps += 1
        if self.steps % self.step == 0:
            self.batches.append((self.steps, loss))
            if len(self.batches) > SHOWN:
                self.batches, self.step = self.batches[::2], 2 * self.step
        if time.monotonic() - self.last > EVERY:
            self._tell()

    def epoch(self, loss: float) -> None:
        self.epochs.append(loss)

    def _tell(self) -> None:
        self.last = time.monotonic()
        self.folder.live(self.id, self.number, {"batches": self.batches, "epochs": self.epochs})


def finish(
    folder: StudyFolder, id: str, number: int, trainer: Trainer, progress: Progress, about: str = "training at the end"
) -> Participant:
    """Name the final try and train it with every seed of the study; only now are test inputs looked at."""
    one = folder.name_final(id, number)
    if not folder.participant(id).ended:
        seeds = folder.study.seeds
        with progress(about, len(seeds)) as tick:
            test = []
            for seed in seeds:
                test.append(trainer.tested(one.configuration, seed))
                tick(1)
        folder.end_participant(id, test)
    return folder.participant(id)


def simulate(
    folder: StudyFolder, trainer: Trainer, counts: Mapping[str, int], tries: int, progress: Progress
) -> list[Participant]:
    """Let simulated tuners take part, so many of each kind, at equal tries. One that was stopped is gone on with."""
    from assay.methods.study.tuners import TUNERS, kind

    kinds = {name: kind(name) for name in counts}
    if tries < 1 or any(count < 0 for count in counts.values()):
        raise AssayError(f"{tries} tries of {dict(counts)} tuners cannot be made; give at least 1 try and 0 of a kind.")
    people = {(p.simulated, p.background): p for p in folder.people() if p.simulated}
    done = []
    for name, (tuner, months) in kinds.items():
        for index in range(counts[name]):
            rng = np.random.default_rng([folder.study.seed, list(TUNERS).index(name), index])
            span = months or (0, 0)
            skill = int(rng.integers(span[0], span[1] + 1))
            who = people.get((name, f"simulated {index}"))
            if who is None:
                who = folder.join(skill, f"simulated {index}", now=time.time(), simulated=name)
            with progress(f"{name} {index + 1} of {counts[name]}", tries) as tick:
                _let_tune(folder, who, tuner(rng, folder.study.most_epochs), tries, trainer, tick)
            who = folder.participant(who.id)
            best = who.best()
            if best is not None:
                who = finish(
                    folder, who.id, who.final or best.number, trainer, progress, f"{name} {index + 1} at the end"
                )
            done.append(who)
    return done


def _let_tune(
    folder: StudyFolder, who: Participant, tuner: Tuner, tries: int, trainer: Trainer, tick: Callable[[int], None]
) -> None:
    """A tuner's tries; those that are in the log already are told to it and not made again."""
    chosen = next(tuner)
    for number in range(1, tries + 1):
        one = next((t for t in who.tries if t.number == number), None)
        if one is None and who.final is None:
            spent = sum(t.seconds for t in folder.participant(who.id).tries)
            one = folder.submit(who.id, chosen.configuration, chosen.reasons, now=who.began + spent)
        if one is None:
            return
        if one.state == "running":
            one = run_try(folder, who.id, number, trainer)
        tick(1)
        chosen = tuner.send(one.accuracy)


def draw_reference(folder: StudyFolder, trainer: Trainer, count: int, progress: Progress) -> list[float]:
    """Train `count` random configurations as tries are; those that are kept already are not trained again."""
    from assay.methods.study.tuners import random

    if not 0 <= count <= 100_000:
        raise AssayError(f"--random {count} is out of its range; give 0 to 100000 configurations.")
    kept = folder.reference()[:count]
    tuner = random(np.random.default_rng([folder.study.seed, 320]), folder.study.most_epochs)
    with progress("random configurations", count) as tick:
        tick(len(kept))
        for number, chosen in zip(range(count), tuner, strict=False):
            if number < len(kept):
                continue
            found = trainer.tried(chosen.configuration)
            kept.append({"configuration": chosen.configuration, "accuracy": found.accuracy, "state": found.ended})
            tick(1)
            if len(kept) % KEPT == 0 and len(kept) < count:
                folder.keep_reference(kept)
    if count:
        folder.keep_reference(kept)
    return [each["accuracy"] for each in kept]


def conclude(folder: StudyFolder) -> tuple[Analysis, Path]:
    """Analyse all that is there and write the page, the numbers and two anonymised tables."""
    from assay.report.study import render_study

    study = folder.study
    people = folder.people()
    if not people:
        raise AssayError(f"Nobody has joined the study in {str(folder.path)!r} yet; there is nothing to analyse.")
    found = analyse(
        people,
        [each["accuracy"] for each in folder.reference()],
        thresholds=study.thresholds,
        cut=study.cut,
        as_published=study.as_published,
        seed=study.seed,
    )
    folder.export()
    write_atomically(folder.path / "analysis.json", strict_json(_plain(summary(found))))
    page = folder.path / "report.html"
    write_atomically(page, render_study(found, study))
    return found, page


def summary(found: Analysis) -> dict[str, Any]:
    """The numbers of an analysis, without anything that leads back to a person."""
    told = {f.name: getattr(found, f.name) for f in dataclasses.fields(found) if f.name not in ("people", "groups")}
    told["groups"] = {name: [float(np.mean(p.test)) for p in some] for name, some in found.groups.items()}
    told["against"] = [{k: v for k, v in dataclasses.asdict(each).items() if k != "id"} for each in found.against]
    return told


def _plain(value: Any) -> Any:
    """Records, arrays and tuples as JSON takes them; what is no number is null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return {k: _plain(v) for k, v in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
