"""The options of the command line, each declared once, and what the values that were typed stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.cli.meter import Meter
    from assay.engine.guarded import Limits
    from assay.run import Run
    from assay.standard import Standards
    from assay.subject import Subject
    from assay.subjects import Source

DEFAULT_SUBJECT = "fashion-cnn"
SubjectName = Annotated[
    str,
    typer.Argument(
        metavar="SUBJECT",
        help="A name of `assay subjects`, FILE.py:FUNCTION, a .pt2, an .onnx, or a file of `assay rank`.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same numbers.")]
Device = Annotated[str, typer.Option("--device", metavar="cpu|cuda|auto", help="Where to compute.")]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="here|ray|ray://HOST:PORT",
        help="Who computes: this process; the cluster that RAY_ADDRESS names, or one worker for each core of this "
        "machine; the cluster there. With a model from a file, beside --no-sandbox.",
    ),
]
Budget = Annotated[
    str,
    typer.Option(
        "--budget",
        metavar="quick|standard|full|TIME",
        help="How hard to look; of audit, ask and check also for how long: 90s, 10m, 2h.",
    ),
]
Inputs = Annotated[
    str | None,
    typer.Option("--inputs", metavar="N", help="The most inputs that any question looks at, whatever the budget has."),
]
Out = Annotated[
    Path, typer.Option("--out", metavar="FOLDER", help="Where runs are kept, and looked for to go on with.")
]
RUNS = Path("runs")
StandardsFile = Annotated[
    Path | None,
    typer.Option(
        "--standards", metavar="FILE", help="Settings and limits, as TOML; without it each question has its own limit."
    ),
]
ProbeNames = Annotated[
    list[str] | None,
    typer.Option("--probe", metavar="NAME", help="Ask only this; may be given again. `assay probes` lists them."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, for example radius=8/255; may be given again."),
]
Tuned = Annotated[
    str | None,
    typer.Option(
        "--tuned",
        metavar="tries=N,budget=TIME,by=WHO",
        help="What went into tuning the model, for the section 'tuning effort' of report and card; also "
        "baseline=equal|less|none, how what it is compared with was tuned.",
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `assay audit` named.")]


def _debug(ctx: typer.Context, value: bool) -> bool:
    ctx.meta["debug"] = value
    return value


Debug = Annotated[bool, typer.Option("--debug", callback=_debug, help="Show where an error came from.")]


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How a subject is opened."""

    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="Image folder with one sub-folder per class, .npz, Parquet with image and label, or a table with "
            "--target; for a ranker, images with numbers as `assay rank` takes them.",
        ),
    ] = None
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="COLUMN", help="Of a table (.csv, .parquet, .jsonl): what it predicts."),
    ] = None
    text: Annotated[
        str | None, typer.Option("--text", metavar="COLUMN", help="Of a table: the texts that the model reads.")
    ] = None
    train: Annotated[
        str | None,
        typer.Option("--train", metavar="PATH", help="The table that it was trained on, whose columns are taken."),
    ] = None
    domain: Annotated[
        list[str] | None,
        typer.Option(
            "--domain",
            metavar="NAME[@NUMBER]=PATH",
            help="Data from elsewhere, as --data takes them, or inputs alone: images without class folders, an .npz "
            "without y, a table without its target; may be given again. The number says where it lies along what "
            "changes, an angle or a year: night@30=PATH.",
        ),
    ] = None
    domains: Annotated[
        str | None,
        typer.Option("--domains", metavar="FOLDER", help="A folder that holds a folder or a file for each domain."),
    ] = None
    domain_column: Annotated[
        str | None,
        typer.Option(
            "--domain-column", metavar="COLUMN", help="Of a table: says which domain a row is of, and is no input."
        ),
    ] = None
    sensitive: Annotated[
        list[str] | None,
        typer.Option(
            "--sensitive",
            metavar="COLUMN[,COLUMN]",
            help="Of a table: what is known of the people behind the rows, such as sex; numbers with a cut, age<25.",
        ),
    ] = None
    groups: Annotated[
        list[str] | None,
        typer.Option(
            "--groups",
            metavar="NAME[@SPLIT]=PATH",
            help="The same for any data: a .npy or a CSV of one column with a value for each row of the test data, or "
            "of that split: sex@train=PATH; may be given again.",
        ),
    ] = None
    fixed: Annotated[
        list[str] | None,
        typer.Option(
            "--fixed", metavar="COLUMN", help="Of a table: what nobody can change, such as age; may be given again."
        ),
    ] = None
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME",
            help="Where the targets could be those of several: segmentation, tagging, forecast, image-to-image, "
            "labels, detection, retrieval; of a table classification or regression; of a policy control.",
        ),
    ] = None
    gallery: Annotated[
        str | None,
        typer.Option(
            "--gallery",
            metavar="PATH",
            help="What a model that returns vectors searches for the queries of --data: the same label answers. "
            "Geo-tags and pairs are given in Python, Subject.retrieval.",
        ),
    ] = None
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="cosine|euclidean",
            help="How the vectors of --gallery are compared. [default: cosine]",
        ),
    ] = None
    bounds: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--bounds",
            metavar="LOW HIGH",
            help="What input values lie between, if not 0 and 1; one number for all, or one for each column with "
            "commas between. 8-bit pixels are brought to it. Radii are shares of this range.",
        ),
    ] = None
    mean: Annotated[
        str | None, typer.Option("--mean", metavar="M[,M,M]", help="Subtracted from the input, per channel.")
    ] = None
    std: Annotated[
        str | None, typer.Option("--std", metavar="S[,S,S]", help="What the input is then divided by, per channel.")
    ] = None
    size: Annotated[
        int | None, typer.Option("--size", metavar="N", help="Scale the images of --data to N by N, their centre.")
    ] = None
    draws: Annotated[
        int | None,
        typer.Option("--draws", metavar="N", help="The model is random: its answer is the mean of N passes."),
    ] = None
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="NAME", help="Of a model with several outputs, the one to read."),
    ] = None
    layout: Annotated[
        str | None,
        typer.Option("--layout", metavar="nchw|nhwc", help="Where an ONNX model has the channels of images."),
    ] = None
    feed: Annotated[
        list[str] | None,
        typer.Option("--feed", metavar="NAME=NUMBER", help="Fills an input of an ONNX file that the data do not."),
    ] = None
    builder: Annotated[
        str | None,
        typer.Option(
            "--builder", metavar="FILE.py:FUNCTION", help="Builds the network that a file of weights is put into."
        ),
    ] = None
    environment: Annotated[
        str | None,
        typer.Option(
            "--environment",
            metavar="FILE.py:FUNCTION|ID",
            help="What a policy acts in: what makes a fresh one with gymnasium's interface, or its id. It runs.",
        ),
    ] = None
    trust: Annotated[
        list[str] | None,
        typer.Option("--trust", metavar="TYPE", help="A type that a .skops file may be made of, beside those known."),
    ] = None
    original: Annotated[
        str | None,
        typer.Option(
            "--original",
            metavar="MODEL",
            help="What the model was made from, pruned, quantised, exported: named as a subject is. what-did-it-forget "
            "then asks what that changed.",
        ),
    ] = None
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read a pickled checkpoint, which can run any code.")
    ] = False

    def source(self, subject: str) -> Source:
        from assay.subjects import Source

        return Source(
            subject=subject,
            data=self.data,
            bounds=None if self.bounds is None else (_bound(self.bounds[0]), _bound(self.bounds[1])),
            mean=None if self.mean is None else _numbers("--mean", self.mean),
            std=None if self.std is None else _numbers("--std", self.std),
            size=self.size,
            allow_pickle=self.allow_pickle,
            draws=self.draws,
            target=self.target,
            text=self.text,
            train=self.train,
            fixed=tuple(self.fixed or ()),
            task=None if self.task is None else self.task.lower(),
            output=self.output,
            layout=self.layout,
            feed=tuple(self.feed or ()),
            builder=self.builder,
            environment=self.environment,
            trust=tuple(self.trust or ()),
            gallery=self.gallery,
            metric=self.metric,
            domain=tuple(self.domain or ()),
            domains=self.domains,
            domain_column=self.domain_column,
            sensitive=tuple(word for each in self.sensitive or () for word in each.split(",") if word.strip()),
            groups=tuple(self.groups or ()),
            original=self.original,
        )


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much is done, and where."""

    budget: Budget = "quick"
    seed: Seed = 0
    device: Device = "cpu"
    engine: Engine = "here"

    def run(self, meter: Meter, debug: bool) -> Run:
        from assay.engine.opening import device_named, engine_named
        from assay.run import Run, budget

        device = device_named(self.device)
        return Run(
            engine=engine_named(self.engine, device),
            budget=budget(self.budget),
            seed=self.seed,
            device=device,
            progress=meter.progress,
            debug=debug,
        )


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Which questions, held to what, of how many inputs, and where the answers are kept."""

    standards: StandardsFile = None
    probe: ProbeNames = None
    inputs: Inputs = None
    out: Out = RUNS

    def how(self, source: Source, work: Work, meter: Meter, debug: bool) -> dict[str, Any]:
        """The words that a job takes which audits before and after."""
        from assay.engine.opening import device_named, engine_named

        device = device_named(work.device)
        return {
            "probes": self.probe or None,
            "budget": work.budget,
            "inputs": bound(self.inputs),
            "standards": self.standards,
            "seed": work.seed,
            "device": device,
            "engine": engine_named(work.engine, device),
            "out": self.out,
            "progress": meter.progress,
            "told": meter.told,
            "source": source.words(),
            "debug": debug,
        }


@dataclass(frozen=True, kw_only=True)
class Guard:
    """What the process with the model in it may take and touch."""

    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="The most that one question may take, and opening the model; of other work, the most between two "
            "signs of progress. [default: 1800, 14400 for standard, 172800 for full]",
        ),
    ] = None
    memory: Annotated[
        float | None,
        typer.Option(
            "--memory",
            metavar="GB",
            help="The most that the model's process, and what it starts, may hold in main memory (not a GPU's); Linux "
            "only. [default: 90 % of what there is]",
        ),
    ] = None
    sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox/--no-sandbox",
            help="Run the model without network, without writing outside the run, without reading outside its folder, "
            "its data and the interpreter, as far as this system can.",
        ),
    ] = True

    def limits(self, budget: str) -> Limits:
        from assay.engine.guarded import SECONDS, Limits
        from assay.jobs.audit.rounds import seconds_named
        from assay.run import budget as budget_named

        seconds = seconds_named(budget)
        if seconds is not None:  # which ends every question by itself; here is only what opening may take
            name = "quick" if seconds <= SECONDS["quick"] else "full"
        else:
            name = budget_named(budget).name
        return Limits.of(name, self.timeout, self.memory, self.sandbox)


def opened(source: Source, meter: Meter) -> Subject:
    from assay.engine.opening import opened

    meter.doing(f"opening {source.subject}")
    return opened(source)


def bound(inputs: str | None, standards: Standards | None = None) -> int | None:
    """What was given with --inputs, else what the standards say; whatever is no number of inputs is refused."""
    if inputs is None:
        return None if standards is None else standards.inputs
    if not inputs.isascii() or not inputs.isdigit() or len(inputs) > 18 or int(inputs) < 1:
        raise AssayError(f"--inputs {inputs!r} is no number of inputs; give a whole number of at least 1.")
    return int(inputs)


def pairs(settings: Sequence[str] | None) -> dict[str, str]:
    """What was given with --set."""
    found = {}
    for given in settings or ():
        name, equals, value = given.partition("=")
        if not equals or not name:
            raise AssayError(f"--set {given!r} is not NAME=VALUE; write for example --set radius=8/255.")
        found[name.strip()] = value.strip()
    return found


def _bound(text: str) -> float | tuple[float, ...]:
    numbers = _numbers("--bounds", text)
    return numbers[0] if len(numbers) == 1 else numbers


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.replace(",", " ").split())
    except ValueError:
        numbers = ()
    if not numbers:
        raise AssayError(f"{option} {text!r} is not a list of numbers; write it like {option} 0.5,0.5,0.5.")
    return numbers
