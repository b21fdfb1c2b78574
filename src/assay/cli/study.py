"""assay study: how much a result depends on the person who tunes it."""

from __future__ import annotations

import time
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.flat import flat
from assay.cli.guard import InChild
from assay.cli.meter import Meter, metered
from assay.cli.options import Debug, Guard, pairs
from assay.cli.printing import console, say
from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.jobs.study import Trainer
    from assay.methods.study.analysis import Analysis
    from assay.store.studies import Study, StudyFolder
    from assay.subject import Subject

study_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure how much a result depends on the person who tunes it.\n\nEverybody gets the same network, data, seed "
    "and time, and chooses fifteen hyper-parameters. With simulated tuners, in one line: assay study run\n\nWith "
    "people: new, then for each of them join, try as often as they like, and finish; analyse at the end. On a page "
    "in the browser: assay serve.\n\nExample: assay study run",
)
Folder = Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of the study.")]
Who = Annotated[str, typer.Argument(metavar="ID", help="The id that `assay study join` printed.")]
Trusted = Annotated[
    str | None,
    typer.Option(
        "--subject",
        metavar="SUBJECT",
        help="The study's subject again, where it is a file: what a folder names is not run unless you name it too.",
    ),
]
SIMULATED = "expert=8,medium=8,novice=8"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What is the same for everybody; each may stand in the settings file instead."""

    settings_file: Annotated[
        Path | None,
        typer.Option(
            "--settings",
            metavar="FILE",
            help="A TOML file with any of these, spelled as below without dashes in front; options win over it.",
        ),
    ] = None
    title: Annotated[str | None, typer.Option("--title", help="What the page calls it.")] = None
    minutes: Annotated[
        float | None, typer.Option("--minutes", metavar="N", help="How long a participant has. [default: 120]")
    ] = None
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", metavar="N", help="Trainings of a final configuration, by seeds 1 to N. [default: 10]"),
    ] = None
    most_epochs: Annotated[
        int | None, typer.Option("--most-epochs", metavar="N", help="The most epochs of a try. [default: 30]")
    ] = None
    validation: Annotated[
        float | None,
        typer.Option(
            "--validation", metavar="SHARE", help="Of the training inputs, what tries are judged by. [default: 0.2]"
        ),
    ] = None
    thresholds: Annotated[
        str | None,
        typer.Option("--thresholds", metavar="A,A", help="Accuracies whose tries are counted. [default: 0.25,0.5]"),
    ] = None
    cut: Annotated[
        float | None,
        typer.Option("--cut", metavar="MONTHS", help="From so many months one is an expert. [default: 9]"),
    ] = None
    as_published: Annotated[
        bool,
        typer.Option(
            "--as-published",
            help="As in print: exactly the cut is in no group, and means are over those who made so many tries.",
        ),
    ] = False
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of the split and of every try. It is none of --seeds. [default: 0]")
    ] = None
    device: Annotated[
        str | None, typer.Option("--device", metavar="cpu|cuda|auto", help="Where all train. [default: cpu]")
    ] = None

    def study(self, subject: str) -> Study:
        """The study that the file and the options define."""
        from assay.engine.opening import device_named
        from assay.store.studies import Study

        own: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "settings_file"}
        own["as_published"] = own["as_published"] or None
        if self.thresholds is not None:
            own["thresholds"] = _shares(self.thresholds)
        told = _read_settings(self.settings_file) | {k: v for k, v in own.items() if v is not None}
        if isinstance(told.get("seeds"), int):
            told["seeds"] = tuple(range(1, told["seeds"] + 1))
        told["device"] = device_named(str(told.get("device", "cpu")))
        return Study(**{"subject": subject, **told})


@flat
def run(
    *,
    subject: Annotated[
        str, typer.Argument(metavar="SUBJECT", help="A classifier with training data, as `assay subjects` lists them.")
    ] = "digits-mlp",
    tuners: Annotated[
        str,
        typer.Option(
            "--tuners", metavar="KIND=N,...", help="How many of each: expert, medium, novice, random, tpe (optuna's)."
        ),
    ] = SIMULATED,
    tries: Annotated[int, typer.Option("--tries", metavar="N", help="Of each tuner, the same for all.")] = 15,
    random: Annotated[int, typer.Option("--random", metavar="N", help="Random configurations, for reference.")] = 320,
    definition: Definition,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The folder of the study.")] = Path("study"),
    guard: Guard,
    debug: Debug = False,
) -> None:
    """Run a study with simulated tuners, at equal tries, and write its page.

    Expert: all defaults first, then learning rate and epochs one at a time. Medium: defaults first, then any of the
    fifteen at random. Novice: all fifteen at once, drawn evenly. Random: the same on each one's own scale. A study that
    was stopped goes on where it was.

    Example: assay study run digits-mlp --tuners expert=5,novice=5 --tries 10 --random 60 --out study
    """
    from assay.jobs.study import draw_reference, new_study, simulate

    counts = counted(tuners)
    made = definition.study(subject)
    with metered() as meter:
        opened = _opened(made, meter, subject)
        folder = new_study(out, made, opened)
        trainer = _trainer(folder, opened)
        draw_reference(folder, trainer, random, meter.progress)
        simulate(folder, trainer, counts, tries, meter.progress)
    _conclude(folder)


@flat
def new(
    *,
    out: Folder,
    subject: Annotated[
        str, typer.Argument(metavar="SUBJECT", help="A classifier with training data, as `assay subjects` lists them.")
    ] = "digits-mlp",
    random: Annotated[int, typer.Option("--random", metavar="N", help="Random configurations, for reference.")] = 0,
    definition: Definition,
    guard: Guard,
    debug: Debug = False,
) -> None:
    """Define a study that people will take part in.

    Participants are told what kind of task it is and how many inputs there are, never which data or network.

    Example: assay study new study --minutes 120 --random 320
    """
    from assay.jobs.study import draw_reference, new_study

    made = definition.study(subject)
    with metered() as meter:
        opened = _opened(made, meter, subject)
        folder = new_study(out, made, opened)
        draw_reference(folder, _trainer(folder, opened), random, meter.progress)
    typer.echo(out)


def join(
    out: Folder,
    months: Annotated[float, typer.Option("--months", metavar="N", help="Of experience with deep learning.")],
    background: Annotated[
        str, typer.Option("--background", metavar="WORDS", help="What you studied or do; no name. It is not exported.")
    ] = "",
    debug: Debug = False,
) -> None:
    """Take part: prints the id that tries are made with. The time begins now.

    Example: assay study join study --months 12
    """
    from assay.store.studies import StudyFolder

    folder = StudyFolder.open(out)
    who = folder.join(months, background, now=time.time())
    to = console(stderr=True)
    told = ", ".join(f"{n:,} {name}" for name, n in folder.study.facts.items())
    say(to, f"You have {folder.study.minutes:g} minutes to find what classifies best. The data: {told}.")
    typer.echo(who.id)


@flat
def take_try(
    *,
    out: Folder,
    id: Who,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A hyper-parameter; may be given again. Needed: epochs, batch-size, loss, optimiser; `assay study "
            "knobs` lists all.",
        ),
    ] = None,
    why: Annotated[
        list[str] | None,
        typer.Option(
            "--why",
            metavar="NAME=1..5",
            help="Why this value: 1 a guess, 2 the default, 3 worked before this study, 4 learnt here, 5 other.",
        ),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option("--number", metavar="N", help="Train the try that was submitted under this number; no --set."),
    ] = None,
    subject: Trusted = None,
    guard: Guard,
    debug: Debug = False,
) -> None:
    """Train with your choice, and print the validation accuracy.

    Example: assay study try study ID --set epochs=10 --set batch-size=32 --set loss=cross-entropy --set optimiser=adam
    """
    from assay.jobs.study import run_try
    from assay.store.studies import StudyFolder

    folder = StudyFolder.open(out)
    if number is not None and (settings or why):
        raise AssayError("--number trains what was submitted; leave out --set and --why.")
    if number is None:
        number = folder.submit(id, pairs(settings), pairs(why), now=time.time()).number
    with metered() as meter:
        done = run_try(folder, id, number, _trainer(folder, _opened(folder.study, meter, subject)), told=typer.echo)
    left = max(0.0, folder.left(folder.participant(id), time.time()))
    found = "no accuracy" if done.accuracy is None else f"validation accuracy {100 * done.accuracy:.1f} %"
    typer.echo(f"try {done.number}: {done.state}, {found}; {left / 60:.0f} minutes left")


@flat
def finish(
    *,
    out: Folder,
    id: Who,
    number: Annotated[int, typer.Option("--try", metavar="N", help="The try whose configuration is your final one.")],
    subject: Trusted = None,
    guard: Guard,
    debug: Debug = False,
) -> None:
    """Name a final configuration; it is trained with every seed of the study, and tested.

    Example: assay study finish study ID --try 4
    """
    import numpy as np

    from assay.jobs.study import finish as end
    from assay.store.studies import StudyFolder

    folder = StudyFolder.open(out)
    with metered() as meter:
        who = end(folder, id, number, _trainer(folder, _opened(folder.study, meter, subject)), meter.progress)
    typer.echo(f"test accuracy {100 * float(np.mean(who.test)):.1f} % over {len(who.test)} seeds")


def show(out: Folder, id: Who, debug: Debug = False) -> None:
    """List the tries of a participant.

    Example: assay study show study ID
    """
    from assay.report.terminal import table
    from assay.store.studies import StudyFolder

    who = StudyFolder.open(out).participant(id)
    rows = table("try", "state", "validation accuracy", "seconds", "configuration")
    for t in who.tries:
        found = "" if t.accuracy is None else f"{100 * t.accuracy:.1f} %"
        told = ", ".join(f"{name} {value}" for name, value in t.configuration.items())
        rows.add_row(str(t.number), t.state, found, f"{t.seconds:.1f}", told)
    console().print(rows)


def cancel(
    out: Folder,
    id: Who,
    number: Annotated[int, typer.Option("--try", metavar="N", help="The try that is running.")],
    debug: Debug = False,
) -> None:
    """Stop a try that is training; it stays in the log, and its time is spent.

    Example: assay study cancel study ID --try 3
    """
    from assay.store.studies import StudyFolder

    StudyFolder.open(out).cancel(id, number)


def knobs(debug: Debug = False) -> None:
    """List the fifteen hyper-parameters, their defaults, and which optimisers read each.

    Example: assay study knobs
    """
    from assay.methods.study.hyperparameters import KNOBS, OPTIMISERS
    from assay.report.terminal import table

    rows = table("name", "what it is", "default", "values", "read by")
    for k in KNOBS:
        values = ", ".join(k.choices) if k.choices else f"{k.low:g} to {k.high:g}"
        default = "must be chosen" if k.default is None else f"{k.default:g}"
        rows.add_row(k.name, k.says, default, values, "all" if k.read_by == OPTIMISERS else ", ".join(k.read_by))
    console().print(rows)


def analyse(out: Folder, debug: Debug = False) -> None:
    """Analyse a study: a page, the numbers, and two tables without anything that leads back to a person.

    Example: assay study analyse study
    """
    from assay.store.studies import StudyFolder

    _conclude(StudyFolder.open(out))


study_app.command(cls=InChild)(run)
study_app.command(cls=InChild)(new)
study_app.command()(join)
study_app.command(name="try", cls=InChild)(take_try)
study_app.command()(cancel)
study_app.command()(show)
study_app.command(cls=InChild)(finish)
study_app.command()(analyse)
study_app.command()(knobs)


def counted(text: str) -> dict[str, int]:
    """What was given with --tuners."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = (word.strip() for word in part.partition("="))
        if not name or not number.isascii() or not number.isdigit() or int(number) > 1000:
            raise AssayError(f"--tuners {part!r} is not KIND=N with N up to 1000; write for example {SIMULATED}.")
        if name in found:
            raise AssayError(f"--tuners names {name} twice; give each kind once.")
        from assay.methods.study.tuners import kind

        kind(name)
        found[name] = int(number)
    return found


def _opened(study: Study, meter: Meter, named: str | None) -> Subject:
    """The study's subject. A file runs its code, so that only whoever types its name has it opened."""
    from assay import shelf
    from assay.engine.opening import opened
    from assay.subjects import Source

    if study.subject != (named or study.subject):
        raise AssayError(f"--subject {named!r} is not that of the study, {study.subject!r}.")
    if named is None and study.subject not in shelf.names("subjects"):
        raise AssayError(f"This study runs the file {study.subject!r}; say --subject {study.subject} if you trust it.")
    meter.doing(f"opening {study.subject}")
    return opened(Source(subject=study.subject))


def _trainer(folder: StudyFolder, subject: Subject) -> Trainer:
    from assay.jobs.study import Trainer, bench

    return Trainer(bench(subject, folder.study), folder.study)


def _conclude(folder: StudyFolder) -> None:
    from assay.jobs.study import conclude
    from assay.report.study import cautions, headline, tests
    from assay.report.terminal import table

    found, page = conclude(folder)
    to = console()
    _show_groups(found)
    rows = table("test", "of", "statistic", "p", "Holm, Bonferroni", "reads")
    for t in tests(found):
        rows.add_row(t.name, t.compared, t.statistic, t.p, t.corrected, t.reads)
    to.print(rows)
    for line in cautions(found):
        say(to, f"caution: {line}")
    say(to, headline(found))
    typer.echo(page)


def _show_groups(found: Analysis) -> None:
    from assay.report.study import groups
    from assay.report.terminal import table

    rows = table("group", "ended", "mean test accuracy", "from, to", "tries to reach", "defaults first", "above random")
    for g in groups(found):
        rows.add_row(*g)
    console().print(rows)


def _shares(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found:
        raise AssayError(f"--thresholds {text!r} is no list of shares; write for example 0.25,0.5.")
    return found


def _read_settings(path: Path | None) -> dict[str, Any]:
    """A TOML file with the fields of a study."""
    from assay.store.studies import Study

    if path is None:
        return {}
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise AssayError(f"Cannot read the settings {str(path)!r}: {e}") from e
    told = {name.replace("-", "_"): tuple(v) if isinstance(v, list) else v for name, v in told.items()}
    known = {f.name for f in fields(Study)} - {"facts", "subject"}
    for name in told:
        if name not in known:
            raise AssayError(f"{str(path)!r} sets {name!r}, which no study has; it has {', '.join(sorted(known))}.")
    return told
