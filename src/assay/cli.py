"""The command line. Nothing heavy is imported until a command needs it, so that `assay --help` answers at once.

What people wait for goes to stderr (progress, errors), what they keep to stdout. Status: 0 all pass, 1 something
fails, 3 nothing fails but something cannot be told, 2 bad input or something that broke, 130 stopped.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from assay.errors import AssayError, in_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from assay.audit import Audit, Change, Judged
    from assay.engine.child import Line
    from assay.engine.guarded import Limits
    from assay.jobs.audit.job import Job
    from assay.jobs.claims import Entry
    from assay.run import Run, Tick
    from assay.shelf import Shelf
    from assay.subject import Subject
    from assay.subjects import Source


class Guarded(TyperGroup):
    """Whatever goes wrong below a command ends in one line on stderr and a status that no gate takes for a verdict."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # click's own or typer's copy of it
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _complain("stopped; run the same command again to go on where it was")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush complains again
            raise typer.Exit(141) from None
        except BaseException as e:  # a subject's code that calls sys.exit(0) must not look like a pass
            if type(e).__module__.startswith(("typer.", "click.")):  # its own usage errors and exits
                raise
            _complain(_in_words(e), ctx)
            raise typer.Exit(2) from e


@dataclass(frozen=True)
class Parent:
    """This process guards: what opens a model runs in a child."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Inside:
    """This process is such a child."""

    line: Line


PLACE: ContextVar[Parent | Inside | None] = ContextVar("PLACE", default=None)
"""Where commands run; None: here, models too."""


class InChild(TyperCommand):
    """A command that opens a model, or a stranger's files, as a whole: in a child, whose word for its status counts."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # as above
        place, given = PLACE.get(), ctx.params
        if isinstance(place, Inside) and place.line.sandbox:
            from assay.jobs.audit.job import named_paths

            words = [str(w) for v in given.values() for w in (v if isinstance(v, tuple | list) else (v,)) if w]
            out = [given["out"]] if "out" in given else []
            for folder in out:
                _make(folder)
            place.line.confine(named_paths(words), out)
        if not isinstance(place, Parent):
            return super().invoke(ctx)
        from assay.engine.guarded import command_guarded

        limits = _limits(given.get("budget", "quick"), given["timeout"], given["memory"], given["sandbox"])
        job = {"words": place.words, "terminal": sys.stdout.isatty()}
        to = Path(given.get("out", "."))
        new = [folder for folder in (to, *to.parents) if not folder.exists()]
        try:
            status = command_guarded("assay.cli:child", job, limits, _print, _complain)
        finally:
            for folder in new:  # the child had to make them before it knew whether it has anything to write
                with suppress(OSError):  # there is something in it
                    folder.rmdir()
            if sys.stderr.isatty():
                typer.echo("\033[?25h", err=True, nl=False)  # a bar that was cut off had hidden the cursor
        raise typer.Exit(status)


def _make(folder: Path) -> None:
    """A folder to write into must be there before all others are shut."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise AssayError(f"Cannot write {str(folder)!r}: {e.strerror or e}; choose another folder with --out.") from e


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _in_words(e: BaseException) -> str:
    place = PLACE.get()
    says = place.line.in_words(e) if isinstance(place, Inside) else in_words(e)
    ours = isinstance(e, Exception) and not isinstance(e, AssayError)
    return says.replace("; --debug", "; this should not happen, --debug") if ours else says


def _complain(what: str, ctx: typer.Context | None = None) -> None:
    if ctx is not None and ctx.meta.get("debug"):
        traceback.print_exc()
    typer.echo(f"assay: {' '.join(_plain(what).split())}", err=True)


app = typer.Typer(
    cls=Guarded,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Start with: assay audit --budget quick",
    help="Find out whether a neural network can be trusted before anyone relies on it.",
)
claims_app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    help="Published statements, and whether they hold here.\n\nExample: assay claims",
)
app.add_typer(claims_app, name="claims")


def _debug(ctx: typer.Context, value: bool) -> bool:
    ctx.meta["debug"] = value
    return value


def _version(value: bool) -> None:
    if value:
        from assay import __version__

        typer.echo(f"assay {__version__}")
        raise typer.Exit


SubjectName = Annotated[
    str,
    typer.Argument(
        metavar="SUBJECT",
        help="A name of `assay subjects`, FILE.py:FUNCTION, a .pt2, an .onnx, or a file of `assay rank`.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Image folder with one sub-folder per class, .npz, or Parquet with image and label; for a ranker, images "
        "with numbers as `assay rank` takes them.",
    ),
]
Bounds = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--bounds",
        metavar="LOW HIGH",
        help="What input values lie between, if not 0 and 1; one number for all, or one for each column with commas "
        "between. 8-bit pixels are brought to it. Radii are shares of this range.",
    ),
]
Mean = Annotated[str | None, typer.Option("--mean", metavar="M[,M,M]", help="Subtracted from the input, per channel.")]
Std = Annotated[
    str | None, typer.Option("--std", metavar="S[,S,S]", help="What the input is then divided by, per channel.")
]
Size = Annotated[
    int | None, typer.Option("--size", metavar="N", help="Scale the images of --data to N by N, their centre.")
]
Draws = Annotated[
    int | None, typer.Option("--draws", metavar="N", help="The model is random: its answer is the mean of N passes.")
]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Read a pickled checkpoint, which can run any code.")]
BudgetName = Annotated[str, typer.Option("--budget", metavar="quick|standard|full", help="How hard to look.")]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same numbers.")]
Device = Annotated[str, typer.Option("--device", metavar="cpu|cuda|auto", help="Where to compute.")]
Out = Annotated[
    Path, typer.Option("--out", metavar="FOLDER", help="Where runs are kept, and looked for to go on with.")
]
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
Debug = Annotated[bool, typer.Option("--debug", callback=_debug, help="Show where an error came from.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="The most that one question may take, and opening the model; of other work, the most between two signs of "
        "progress. [default: 1800, 14400 for standard, 172800 for full]",
    ),
]
Memory = Annotated[
    float | None,
    typer.Option(
        "--memory",
        metavar="GB",
        help="The most that the model's process, and what it starts, may hold in main memory (not a GPU's); Linux "
        "only. [default: 90 % of what there is]",
    ),
]
Sandbox = Annotated[
    bool,
    typer.Option(
        "--sandbox/--no-sandbox",
        help="Run the model without network, without writing outside the run, without reading outside its folder, its "
        "data and the interpreter, as far as this system can.",
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `assay audit` named.")]


@app.callback()
def assay(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    pass


@app.command()
def audit(
    subject: SubjectName = "fashion-cnn",
    data: Data = None,
    bounds: Bounds = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    draws: Draws = None,
    allow_pickle: AllowPickle = False,
    budget: BudgetName = "quick",
    standards: StandardsFile = None,
    probe: ProbeNames = None,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out = Path("runs"),
    timeout: Timeout = None,
    memory: Memory = None,
    sandbox: Sandbox = True,
    debug: Debug = False,
) -> None:
    """Ask many questions, judge the answers, write a report.

    Ends with 0 if all pass, 1 if any fails, 3 if none fails but some cannot be told, 2 for bad input and where a
    question broke. A limit of yours on a question that was not asked cannot be told; one that can never apply to the
    subject is bad input. A run that was stopped goes on where it was.

    Example: assay audit model.pt2 --data images/ --standards assay.toml
    """
    from assay.jobs.audit.job import Job
    from assay.standard import Standards, read_standards

    limits = _limits(budget, timeout, memory, sandbox)
    job = Job(
        source=_source(subject, data, bounds, mean, std, size, allow_pickle, draws),
        probes=tuple(dict.fromkeys(probe)) if probe else None,
        standards=read_standards(standards) if standards is not None else Standards(),
        budget=budget,
        seed=seed,
        device=device,
        debug=debug,
    )
    done = _audit(job, limits, out)
    _show(done)
    raise typer.Exit(done.status)


@app.command()
def ask(
    probe: Annotated[str, typer.Argument(metavar="PROBE", help="The question: a name of `assay probes`.")],
    subject: SubjectName = "fashion-cnn",
    settings: Settings = None,
    data: Data = None,
    bounds: Bounds = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    draws: Draws = None,
    allow_pickle: AllowPickle = False,
    budget: BudgetName = "quick",
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out = Path("runs"),
    timeout: Timeout = None,
    memory: Memory = None,
    sandbox: Sandbox = True,
    debug: Debug = False,
) -> None:
    """Ask one question, with settings of your own.

    Example: assay ask worst-case-accuracy fashion-cnn --set radius=0.03
    """
    from assay.jobs.audit.job import Job
    from assay.report.words import in_full

    limits = _limits(budget, timeout, memory, sandbox)
    job = Job(
        source=_source(subject, data, bounds, mean, std, size, allow_pickle, draws),
        probes=(probe,),
        settings=_pairs(settings),
        budget=budget,
        seed=seed,
        device=device,
        debug=debug,
    )
    done = _audit(job, limits, out)
    out_to = _console()
    answer = done.rows[0].answer
    if answer.finding is not None:
        _say(out_to, answer.question)
        _say(out_to, answer.finding.says)
        table = _table("measure", "value", "of", "about")
        for m in answer.finding.measures:
            table.add_row(_plain(m.name), _plain(in_full(m)), "" if m.n is None else str(m.n), _plain(m.about))
        out_to.print(table)
    _show(done)
    raise typer.Exit(done.status)


@app.command("probes")
def list_probes() -> None:
    """List the questions that there are to ask.

    Example: assay probes
    """
    _list("probes", lambda found: (found.question(), found.source))


@app.command("remedies")
def list_remedies() -> None:
    """List what can be done about a model that fails.

    Example: assay remedies
    """
    _list("remedies", lambda found: (found.promise(), found.source))


@app.command("subjects")
def list_subjects() -> None:
    """List the models that come with Assay.

    Example: assay subjects
    """
    _list("subjects", lambda found: (found.says, found.source))


@app.command()
def report(run: RunFolder, debug: Debug = False) -> None:
    """Write the report of a stored run anew.

    Example: assay report runs/20260301-120000-fashion-cnn
    """
    from assay.audit import open_audit
    from assay.report import write
    from assay.store.chain import refuse_changed

    refuse_changed(run)
    write(open_audit(run), run)
    typer.echo(run / "report.html")


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(metavar="RUN", help="The run to compare with.")],
    after: Annotated[Path, typer.Argument(metavar="RUN", help="The run to compare; the page is written here.")],
    debug: Debug = False,
) -> None:
    """Compare two runs, paired where the inputs are the same.

    Example: assay diff runs/20260301-120000-fashion-cnn runs/20260302-120000-fashion-cnn
    """
    from assay.audit import open_audit
    from assay.jobs.compare import compare
    from assay.jobs.compare import page as render_diff
    from assay.store import write_atomically
    from assay.store.chain import refuse_changed

    for run in (before, after):
        refuse_changed(run)
    old, new = open_audit(before, whole=True), open_audit(after, whole=True)
    write_atomically(after / "diff.html", render_diff(old, new))
    _show_changes(old, new, compare(old, new))
    typer.echo(after / "diff.html")


@app.command(cls=InChild)
def verify(
    run: RunFolder,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="SUBJECT", help="What was audited, opened as `assay audit` does.")
    ] = None,
    data: Data = None,
    bounds: Bounds = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    draws: Draws = None,
    allow_pickle: AllowPickle = False,
    device: Device = "cpu",
    timeout: Timeout = None,
    memory: Memory = None,
    sandbox: Sandbox = True,
    debug: Debug = False,
) -> None:
    """Check that a run is what was found: its files, its numbers, and the inputs that broke the model.

    Every file is compared with the digest that vouches for it, measures are computed again from their samples, and
    verdicts judged again. No code and no consent is taken from the run: with --subject, and the options that opened it,
    fingerprints, inputs, labels and answers are compared too, and each input that broke the model is shown to it once
    more and checked against its box and ball; nothing is attacked. A model that comes with Assay is opened by its name.

    Ends with 0 if all holds, 1 if a link is broken or a witness lost, 3 if nothing is, but something could not be
    checked, as without --subject; 2 for bad input. Whoever made the run can make all its digests anew: `assay seal`
    says who did.

    Example: assay verify runs/20260301-120000-model --subject model.pt2 --data images/
    """
    from assay.jobs.verify import reference
    from assay.jobs.verify import verify as check

    name = subject
    if name is None:
        for given, option in ((data, "data"), (bounds, "bounds"), (mean, "mean"), (std, "std"), (size, "size")):
            if given is not None:
                raise AssayError(f"--{option} is about a subject; name that with --subject too.")
        name = reference(run)
    with _meter() as meter:
        if name is None:
            done = check(run, doing=meter.doing)
        else:
            from assay.door import admit
            from assay.subjects import open_subject

            source = _source(name, data, bounds, mean, std, size, allow_pickle, draws)
            done = check(run, lambda: admit(open_subject(source)), _run(device, meter, debug), doing=meter.doing)
    console, table = _console(), _table("question", "measures", "follow from samples", "witnesses", "hold")
    for q in (q for q in done.questions if q.measures):
        own = f", {q.own_intervals} with an interval of its own" if q.own_intervals else ""
        held = "" if q.held is None else str(q.held)
        kept = f"{q.witnesses} of {q.witnesses + q.left_out}" if q.left_out else str(q.witnesses or "none")
        table.add_row(_plain(q.probe), str(q.measures), f"{q.follow}{own}", kept, held)
    console.print(table)
    for kind, sentences in (("broken", done.broken), ("lost", done.lost), ("not checked", done.unchecked)):
        for each in sentences:
            _say(console, f"{kind}: {each}")
    typer.echo(_verified(len(done.broken), len(done.lost), len(done.unchecked)))
    raise typer.Exit(done.status)


def _verified(broken: int, lost: int, unchecked: int) -> str:
    if broken or lost:
        links = f"{broken} {'link is' if broken == 1 else 'links are'} broken"
        witnesses = f"{lost} {'witness no longer holds' if lost == 1 else 'witnesses no longer hold'}"
        return ", ".join([*([links] if broken else []), *([witnesses] if lost else [])])
    return "every link holds, and not everything could be checked" if unchecked else "every link and witness holds"


@app.command()
def seal(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="The run to seal.", show_default=False)] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="FILE", help="PEM: the private key to seal with, or the public one to check with."
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", metavar="PATH", help="The model's file or folder, byte by byte.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="PATH", help="The data's file or folder, byte by byte.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="BUNDLE", help="Judge this seal, or a model.sig, instead.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--run", metavar="RUN", help="With --check: the run, if the seal does not lie in its folder."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Sign a run with your own key, or check what somebody sealed. No network is used.

    The seal holds digests of every file of the run and, where they are given, of the model and the data. With --model,
    seal/model.sig is what `model_signing verify key` reads; seal/bom.cdx.json is a CycloneDX bill of materials.
    An encrypted key's passphrase is asked for, or taken from ASSAY_KEY_PASSPHRASE.

    With --check, ends with 0 if the seal is whole, 1 if something broke, 2 for bad input. Whether the numbers are
    right is another question: assay verify.

    Example: assay seal runs/20260301-120000-fashion-cnn --key key.pem --model model.pt2

    Example: assay seal --check runs/20260301-120000-fashion-cnn --key key.pub --model model.pt2
    """
    from assay.jobs.seal import check as judge
    from assay.jobs.seal import seal as sign
    from assay.store.envelope import NEW_KEY

    if key is None:
        raise AssayError(f"A seal needs --key; make one with: {NEW_KEY} (its public half: openssl pkey -pubout)")
    if check is None:
        if run is None or against is not None:
            raise AssayError("Say what to seal: assay seal RUN --key FILE; --run goes with --check.")
        with _meter() as meter:
            made = sign(run, key, model=model, data=data, passphrase=_passphrase, doing=meter.doing)
        _say(_console(), f"sealed {_counted(made.counts)} with the key {made.signer[:16]}")
        if "model" not in made.counts:
            _say(_console(), "the model's bytes are not sealed, only Assay's fingerprint of it: --model seals them")
        typer.echo(made.bundle)
        return
    if run is not None:
        raise AssayError(f"With --check, say --run {str(run)!r}: RUN alone is a run to seal.")
    with _meter() as meter:
        done = judge(check, key, run=against, model=model, data=data, doing=meter.doing)
    console = _console()
    for link in done.broken[:SHOWN]:
        _say(console, f"broken: {link}")
    if len(done.broken) > SHOWN:
        _say(console, f"and {len(done.broken) - SHOWN} more")
    for part in done.unseen:
        _say(console, f"the {part} is sealed too, and was not compared: give --{part}")
    when = f", sealed {done.when}" if done.when else ""
    what = f"the signature is of the key {done.signer[:16]}{when}; compared {_counted(done.counts)}"
    _say(console, f"broken: {len(done.broken)} of its links" if done.broken else f"whole: {what}")
    raise typer.Exit(1 if done.broken else 0)


SHOWN = 20
"""Broken links that are told one by one."""


def _counted(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{n} {'file' if n == 1 else 'files'} of the {part}" for part, n in counts.items())


def _passphrase() -> str | None:
    if not sys.stdin.isatty():
        return None
    given: str = typer.prompt("Passphrase of the key", hide_input=True, err=True)
    return given


@app.command(cls=InChild)
def cure(
    remedy: Annotated[str, typer.Argument(metavar="REMEDY", help="A name of `assay remedies`.")],
    subject: SubjectName = "fashion-cnn",
    settings: Settings = None,
    data: Data = None,
    bounds: Bounds = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    draws: Draws = None,
    allow_pickle: AllowPickle = False,
    budget: BudgetName = "quick",
    standards: StandardsFile = None,
    probe: ProbeNames = None,
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="Train plainly too, to compare with, where it trains anew.")
    ] = True,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out = Path("runs"),
    timeout: Timeout = None,
    memory: Memory = None,
    sandbox: Sandbox = True,
    debug: Debug = False,
) -> None:
    """Audit, apply a remedy, audit again, and compare. The cured weights are kept beside the page.

    A remedy that trains anew is compared with a plain training of the same schedule, data and seed, shown beside.

    Example: assay cure weight-gradient-centralization fashion-cnn --set epochs=5
    """
    from assay.jobs.cure import cure as apply

    source = _source(subject, data, bounds, mean, std, size, allow_pickle, draws)
    with _meter() as meter:
        place, opened = _device(device), _open(source, meter)
        done = apply(
            remedy,
            opened,
            settings=_pairs(settings),
            probes=probe or None,
            budget=budget,
            standards=standards,
            control=control,
            seed=seed,
            device=place,
            out=out,
            progress=meter.progress,
            told=meter.told,
            source=source.words(),
            debug=debug,
        )
    _show_changes(done.before, done.after, done.changes, done.since_before if done.control else ())
    for note in done.notes:
        _say(_console(), note)
    typer.echo(done.price)
    typer.echo(done.weights)
    typer.echo(done.page)
    raise typer.Exit(done.status)


@app.command(cls=InChild)
def explain(
    subject: SubjectName = "fashion-cnn",
    given: Annotated[
        str,
        typer.Option(
            "--input",
            metavar="N|FILE|TEXT|ROW",
            help="The number of a test input, an image file, a sentence, or a row's values with commas between.",
        ),
    ] = "0",
    method: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="all|NAME", help="A map, such as integrated-gradients; may be given again."),
    ] = None,
    why_not: Annotated[
        str | None, typer.Option("--why-not", metavar="CLASS", help="By number or name; else the second likeliest.")
    ] = None,
    units: Annotated[
        str | None,
        typer.Option(
            metavar="patches|superpixels|pixels|columns|words",
            help="What is ranked and picked; pixels take many minutes. [default: patches of an image, columns of a "
            "row, words of a text]",
        ),
    ] = None,
    criterion: Annotated[
        str | None,
        typer.Option(
            "--criterion",
            metavar="held|moved",
            help="What greedy-as picks: features that, held fast, make the answer hardest to change (held), or that "
            "change it by the smallest changes of their own (moved). [default: moved for words, else held]",
        ),
    ] = None,
    pair: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--pair",
            metavar="A B",
            help="Of a model that compares: two test inputs by number, or image files. A is changed.",
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option("--target", metavar="T", help="With --pair: where its comparison is to go; else to a tie."),
    ] = None,
    decoder: Annotated[
        bool, typer.Option("--decoder", help="With --pair: train a decoder for a model that has none.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="With --pair: a setting of the walk, see above."),
    ] = None,
    data: Data = None,
    bounds: Bounds = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    draws: Draws = None,
    allow_pickle: AllowPickle = False,
    budget: BudgetName = "quick",
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out = Path("runs"),
    timeout: Timeout = None,
    memory: Memory = None,
    sandbox: Sandbox = True,
    debug: Debug = False,
) -> None:
    """Explain one answer by many maps, and put each map on trial.

    A map is believable if it ranks features better than chance, changes when the model's weights are random (turning
    its signs over is no change), and adds up where it promises to. What cannot be made of this model is left out, and
    the page says why.

    Of a model that compares two inputs (--pair), the first is changed until the comparison reaches a target: the page
    shows where, and what the model believes it sees, with four audits of that; a moving picture lies beside it. The
    walk can be kept to a part of the image (--set region=TOP,LEFT,BOTTOM,RIGHT), charged for rough changes (tv), for
    many (sparse) or for long ones (close), each with a weight, and given momentum (damping, from 0 to 1).

    Example: assay explain fashion-cnn --input 17 --method all --why-not 3

    Example: assay explain topics-text --input "the doctor had a fever"

    Example: assay explain fashion-cnn --input 17 --method greedy-as --units superpixels --criterion moved

    Example: assay explain digits-ranker --pair 12 40 --target 0.5

    Example: assay explain digits-ranker --pair 12 40 --set region=0,0,4,8 --set tv=0.01
    """
    from rich.text import Text

    from assay.jobs.explain import UNITS, aimed, chosen, explain_input

    if pair is not None:
        if method or why_not is not None or units is not None:
            raise AssayError("--method, --why-not and --units are for one input; leave them out with --pair.")
        from assay.jobs.explain_pair import explain_pair
        from assay.methods.rank.manner import Manner
        from assay.probe import configure

        manner = configure(Manner, _pairs(settings))
        source = _source(subject, data, bounds, mean, std, size, allow_pickle, draws)
        with _meter() as meter:
            ready, opened = _run(device, meter, debug, budget, seed), _open(source, meter)
            told = explain_pair(
                opened, *pair, target=target, decoder=decoder, manner=manner, run=ready, out=out,
                source=source.words(),
            )  # fmt: skip
        table = _table("verdict", "audit", "why")
        for t in told.trials:
            table.add_row(Text(t.verdict, COLOURS.get(t.outcome, "")), t.question, _plain(t.says))
        typer.echo(_plain(f"{told.subject}, {told.first.what} and {told.second.what}: {told.says}"))
        _console().print(table)
        typer.echo(told.page)
        return
    if target is not None or decoder or settings:
        raise AssayError("--target, --decoder and --set are for a pair; give --pair A B too.")
    asked = method or ["all"]
    chosen(asked), aimed(criterion)  # an unknown name is told before the subject is opened
    if units is not None and units not in (known := [u for some in UNITS.values() for u in some]):
        raise AssayError(f"There are no units {units!r}; choose from {', '.join(known)}.")
    source = _source(subject, data, bounds, mean, std, size, allow_pickle, draws)
    with _meter() as meter:
        ready, opened = _run(device, meter, debug, budget, seed), _open(source, meter)
        if opened.pairs:
            raise AssayError(f"{opened.name!r} compares two inputs; say which with --pair, such as --pair 12 40.")
        done = explain_input(
            opened,
            given,
            methods=asked,
            why_not=why_not,
            units=units,
            criterion=criterion,
            run=ready,
            out=out,
            source=source.words(),
        )
    console, table = _console(), _table("verdict", "map", "why")
    colour = {"believable": COLOURS["pass"], "not believable": COLOURS["fail"], "cannot tell": COLOURS["cannot tell"]}
    for m in done.maps:
        why = " ".join(check.says for check in m.checks)
        table.add_row(Text(m.verdict, colour[m.verdict]), _plain(m.name), _plain(why))
    for name, why in done.left_out:
        table.add_row("left out", name, _plain(why))
    sure = f"{100 * done.probabilities[done.answer]:.1f} %"
    typer.echo(_plain(f"{done.subject}, {done.input.what}: {done.classes[done.answer]} ({sure})"))
    console.print(table)
    typer.echo(done.page)


@app.command(cls=InChild)
def rank(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Images with a number each: see above.")],
    architecture: Annotated[
        str | None,
        typer.Option(
            "--architecture",
            metavar="digits|grey|colour",
            help="For 8x8, 28x28 or colour 112x112; else as the images are.",
        ),
    ] = None,
    embedding: Annotated[
        int | None,
        typer.Option("--embedding", metavar="N", help="Numbers that an image is reduced to; 10, or 64 in colour."),
    ] = None,
    values: Annotated[
        tuple[float, float] | None,
        typer.Option(
            "--values", metavar="LOW HIGH", help="What the numbers lie between, if not their own least and greatest."
        ),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Training steps of 64 pairs.")] = 3000,
    decoder: Annotated[
        str,
        typer.Option(
            "--decoder",
            metavar="joint|mirror|afterwards",
            help="How what draws is trained: with the ranker or after it.",
        ),
    ] = "joint",
    held_back: Annotated[
        float, typer.Option("--held-back", metavar="SHARE", help="Of the images, to be tested on and not trained on.")
    ] = 0.2,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where ranker.safetensors is written.")] = Path(
        "ranker"
    ),
    timeout: Timeout = None,
    memory: Memory = None,
    sandbox: Sandbox = True,
    debug: Debug = False,
) -> None:
    """Train a model that says which of two images has the higher number, and draws what it sees.

    The numbers stand in a CSV file in the folder (a column with the images' names, one with the numbers), or without
    one at the beginning of the names, before an underscore: 25_0_1_20170109.jpg has 25. Images are scaled and cropped
    to what the architecture takes.

    What draws is trained together with what compares (joint). To see why, train it on the finished ranker
    (afterwards), or as half of an autoencoder that learns to see as the ranker does (mirror), and compare the last row.

    Afterwards, on images that were not trained on: assay audit ranker/ranker.safetensors --data FOLDER

    Example: assay rank faces/ --architecture colour --values 0 116 --steps 20000 --device cuda
    """
    from assay.jobs.rank import train_on_folder

    with _meter() as meter:
        ready = _run(device, meter, debug, seed=seed)
        done = train_on_folder(
            folder,
            architecture=architecture,
            embedding=embedding,
            values=values,
            steps=steps,
            held_back=held_back,
            decoder=decoder,  # type: ignore[arg-type]  # checked there
            run=ready,
            out=out,
        )
    worth, console, table = done.worth, _console(), _table("on images held back", "the ranker", "without training")
    table.add_row("mean error of the comparison, from 0 to 1", f"{worth.error:.4f}", f"{worth.constant:.4f} by 0.5")
    table.add_row("pairs put in the right order", f"{100 * worth.order:.1f} %", "50 % by chance")
    table.add_row("mean squared error of a pixel", f"{worth.redrawn:.4f}", f"{worth.blank:.4f} by the mean image")
    if done.mirrored is not None:
        table.add_row("the same, of the mirror's own embeddings", f"{done.mirrored:.4f}", "they explain nothing")
    typer.echo(
        f"{done.architecture}, {done.embedding} numbers an image, for values from {done.low:g} to {done.high:g}: "
        f"trained on {done.images} images, tested on {worth.pairs} pairs of {worth.images} others"
    )
    console.print(table)
    if worth.error >= worth.constant:
        _say(console, "caution: it compares no better than the constant 0.5; give more --steps or more images")
    if worth.redrawn >= worth.blank:
        _say(console, "caution: it draws no better than the mean image; give more --steps or more images")
    typer.echo(done.path)


Ledger = Annotated[Path, typer.Option("--ledger", metavar="FOLDER", help="Where the records are kept.")]


@claims_app.callback()
def list_claims(ctx: typer.Context, ledger: Ledger = Path("claims/ledger")) -> None:
    ctx.obj = ledger
    if ctx.invoked_subcommand is not None:
        return
    from assay.jobs.claims import claims, read

    known, table = read(ledger), _table("claim", "verdict", "statement", "source")
    for name, claim in claims().items():
        table.add_row(name, known[name].evidence.verdict if name in known else "not run", claim.says, claim.source)
    _console().print(table)


@claims_app.command("test")
def try_claims(
    ctx: typer.Context,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="As `assay claims` lists them.")],
    budget: BudgetName = "quick",
    seed: Seed = 0,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Run the studies behind claims and record what came out.

    Example: assay claims test weight-gradient-centralization/same-weights
    """
    from assay.jobs.claims import claim, record
    from assay.report.words import in_full

    for name in ids:
        claim(name)  # an unknown one is told before an hour of work on the others
    entries: list[Entry] = []
    with _meter() as meter:
        ready = _run(device, meter, debug, budget, seed)
        for name in ids:
            meter.doing(name)
            entries.append(record(name, ready, ctx.obj))
            meter.line(f"{name}: {entries[-1].evidence.verdict}")
    out_to = _console()
    for entry in entries:
        _say(out_to, f"{entry.evidence.verdict}: {entry.id}. {entry.evidence.says}")
        for m in entry.evidence.measures:
            _say(out_to, f"  {m.name}: {in_full(m)}")
    verdicts = {entry.evidence.verdict for entry in entries}
    raise typer.Exit(1 if "fails" in verdicts else 3 if verdicts - {"holds"} else 0)


@claims_app.command("page")
def page_of_claims(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page; .md for Markdown.")] = Path(
        "claims/page.html"
    ),
) -> None:
    """Render the ledger to one page: published and measured numbers side by side.

    Example: assay claims page --out claims.html
    """
    from assay.jobs.claims import page, page_markdown
    from assay.store import write_atomically

    write_atomically(out, page_markdown(ctx.obj) if out.suffix == ".md" else page(ctx.obj))
    typer.echo(out)


# What the commands share.


def _source(
    subject: str,
    data: str | None,
    bounds: tuple[str, str] | None,
    mean: str | None,
    std: str | None,
    size: int | None,
    allow_pickle: bool,
    draws: int | None,
) -> Source:
    from assay.subjects import Source

    return Source(
        subject=subject,
        data=data,
        bounds=None if bounds is None else (_bound(bounds[0]), _bound(bounds[1])),
        mean=_numbers("--mean", mean),
        std=_numbers("--std", std),
        size=size,
        allow_pickle=allow_pickle,
        draws=draws,
    )


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    return None if text is None else _listed(option, text)


def _bound(text: str) -> float | tuple[float, ...]:
    numbers = _listed("--bounds", text)
    return numbers[0] if len(numbers) == 1 else numbers


def _listed(option: str, text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.replace(",", " ").split())
    except ValueError:
        numbers = ()
    if not numbers:
        raise AssayError(f"{option} {text!r} is not a list of numbers; write it like {option} 0.5,0.5,0.5.")
    return numbers


def _pairs(settings: Sequence[str] | None) -> dict[str, str]:
    pairs = {}
    for given in settings or ():
        name, equals, value = given.partition("=")
        if not equals or not name:
            raise AssayError(f"--set {given!r} is not NAME=VALUE; write for example --set radius=8/255.")
        pairs[name.strip()] = value.strip()
    return pairs


def _device(name: str) -> str:
    from assay.engine.opening import device_named

    return device_named(name)


def _open(source: Source, meter: Meter) -> Subject:
    from assay.engine.opening import opened

    meter.doing(f"opening {source.subject}")
    return opened(source)


def _run(device: str, meter: Meter, debug: bool, budget: str = "quick", seed: int = 0) -> Run:
    from assay.engine.local import ThisProcess
    from assay.run import Run
    from assay.run import budget as budget_named

    return Run(
        engine=ThisProcess(),
        budget=budget_named(budget),
        seed=seed,
        device=_device(device),
        progress=meter.progress,
        debug=debug,
    )


def _limits(budget: str, timeout: float | None, memory: float | None, sandbox: bool) -> Limits:
    from assay.engine.guarded import Limits
    from assay.run import budget as budget_named

    return Limits.of(budget_named(budget).name, timeout, memory, sandbox)


def _audit(job: Job, limits: Limits, out: Path) -> Audit:
    """Ask what the job wants: in a child where this process guards, else here."""
    from assay.jobs.audit import audit

    if isinstance(PLACE.get(), Parent):
        from assay.jobs.audit.guarded import audit_guarded

        with _meter() as meter:
            return audit_guarded(job, limits, out, meter)
    count = len(job.plan())  # a name that nobody knows is told before the subject is opened
    with _meter(count) as meter:
        place, opened = _device(job.device), _open(job.source, meter)
        return audit(
            opened,
            probes=job.asked(),
            budget=job.budget,
            standards=job.standards,
            seed=job.seed,
            device=place,
            out=out,
            progress=meter.progress,
            told=meter.told,
            source=job.source.words(),
            debug=job.debug,
            open=job.further(lambda source: _open(source, meter)),
        )


# What the commands print. No text of the user's is read as markup: consoles are made with markup off.


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end with status 1, which is a verdict

    console = Plain(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 160  # a log has no width; 80 would fold most cells of a table
    return console


def _plain(text: str) -> str:
    """Text for a terminal: nothing that steers it, and spaces that can be searched for."""
    from assay.report.words import NBSP, printable

    return printable(text).replace(NBSP, " ")


def _say(console: Console, text: str) -> None:
    """One line of a log, however long; on a terminal wrapped between words."""
    console.print(_plain(text), soft_wrap=not console.is_terminal)


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    class PlainTable(Table):
        def add_row(self, *cells: Any, **how: Any) -> None:
            super().add_row(*(_plain(cell) if isinstance(cell, str) else cell for cell in cells), **how)

    table = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


COLOURS = {"pass": "green", "fail": "red", "error": "red", "cannot tell": "yellow"}


def _show(audit: Audit) -> None:
    """The verdicts as a table, then the alarms, what broke, and last the report's path."""
    from rich.text import Text

    from assay.report.words import in_full, limit, outcome

    console, table = _console(), _table("verdict", "question", "measured", "limit")
    for row in audit.answered_first:
        finding, name = row.answer.finding, row.answer.probe
        what = outcome(row)
        if finding is None:
            limits = ", ".join(limit(j.standard, "") for j in row.judgements)
            table.add_row(Text(what, COLOURS.get(what, "")), name, _plain(row.answer.why), _plain(limits))
            continue
        if not row.judgements:
            table.add_row(what, name, _plain(f"{finding.measures[0].name} {in_full(finding.measures[0])}"), "")
        for j in row.judgements:
            measure = next((m for m in finding.measures if m.name == j.measure), None)
            found = f"{measure.name} {in_full(measure)}" if measure else j.why
            table.add_row(
                Text(j.verdict, COLOURS.get(j.verdict, "")),
                name,
                _plain(found),
                _plain(limit(j.standard, measure.unit if measure else "")),
            )
    console.print(table)
    for alarm in audit.alarms:
        _say(console, f"alarm: {alarm.says}")
    broken: dict[str, list[str]] = {}
    for row in audit.rows:
        for alarm in row.answer.finding.alarms if row.answer.finding else ():
            _say(console, f"alarm: {row.answer.probe}: {alarm.says}")
        if row.answer.status == "failed":
            broken.setdefault(row.answer.why, []).append(row.answer.probe)
    for row in audit.rows:
        if row.answer.status == "does not apply" and row.judgements:
            _complain(f"the limit on {row.answer.probe} was not put to the test: {row.answer.why}")
    for why, names in broken.items():  # what breaks one question often breaks them all, and is told once
        _complain(f"{' and '.join(names)} {'was' if len(names) == 1 else 'were'} not answered: {why}")
    assert audit.folder is not None  # every audit of the command line is kept
    typer.echo(audit.folder / "report.html")


def _show_changes(before: Audit, after: Audit, changes: Sequence[Change], since: Sequence[Change] = ()) -> None:
    from assay.report.diff import CONTROL_COLUMNS, DIFF_COLUMNS, cautions, diff_text

    console, table = _console(), _table(*(CONTROL_COLUMNS if since else DIFF_COLUMNS))
    for row in diff_text(changes, since):
        table.add_row(*map(_plain, row))
    console.print(table)
    for caution in cautions(before, after):
        _say(console, f"caution: {caution}")


def _list(name: Shelf, about: Callable[[Any], tuple[str, str]]) -> None:
    from assay import shelf

    table = _table("name", "what it is", "source")
    with _meter() as meter:
        for each in shelf.names(name):
            meter.doing(f"loading {each}")
            try:
                table.add_row(each, *about(shelf.load(name, each)))
            except AssayError as e:  # a third party's that does not load must not hide the others
                table.add_row(each, _plain(str(e)), "")
    _console().print(table)


class Meter:
    """What is going on, on stderr: a bar per question on a terminal, else a line now and then.

    The first line comes after two seconds, and another every ten: a log is read later, and by the line.
    """

    def __init__(self, console: Console, bars: Progress | None, questions: int | None) -> None:
        self.console, self.bars, self.left = console, bars, questions
        self.bar: TaskID | None = None
        self.due = time.monotonic() + 2
        self.last = ""
        place = PLACE.get()
        self.beat: Callable[[], None] = place.line.beat if isinstance(place, Inside) else lambda: None

    def expect(self, questions: int) -> None:
        """So many are to be answered, and the waiting begins now."""
        self.left, self.due = questions, time.monotonic() + 2

    def line(self, text: str) -> None:
        _say(self.console, text)
        self.due = time.monotonic() + 10

    def doing(self, what: str, total: int | None = None) -> None:
        """Say what the work is now; without a total, that it goes on."""
        what = self.last = _plain(what)
        self.beat()
        if self.bars is None:
            if time.monotonic() > self.due:
                self.line(what)
        elif self.bar is None:
            self.bar = self.bars.add_task(what, total=total)
        else:
            self.bars.update(self.bar, description=what, total=total, completed=0)  # its clock runs on

    @contextmanager
    def progress(self, about: str, total: int) -> Iterator[Tick]:
        self.doing(about, total)
        done = 0

        def tick(n: int) -> None:
            nonlocal done
            done += n
            self.last = f"{about}: {done} of {total}"
            self.beat()
            if self.bars is not None and self.bar is not None:
                self.bars.advance(self.bar, n)
            elif time.monotonic() > self.due:
                self.line(self.last)

        yield tick

    def alive(self, seconds: float) -> None:
        """Nothing new, but the work goes on; a bar shows that by itself."""
        from assay.report.words import duration

        if self.bars is None and time.monotonic() > self.due:
            self.line(f"{self.last} ({duration(seconds)} so far)")

    def told(self, row: Judged, asked: bool) -> None:
        """A question was answered: close its bar and begin the next."""
        from assay.report.words import duration, outcome

        took = duration(row.answer.seconds) if asked else "known from before"
        said = _plain(f"{row.answer.probe}: {outcome(row)} ({took})")
        if self.bars is None:
            self.line(said)
        else:
            self.doing(said, total=1)
            assert self.bar is not None  # doing saw to it
            self.bars.advance(self.bar)
            self.bar = None
        if self.left is not None:
            self.left -= 1
        self.doing("the next question" if self.left != 0 else "writing the report")


@contextmanager
def _meter(questions: int | None = None) -> Iterator[Meter]:
    console = _console(stderr=True)
    if not console.is_terminal:
        yield Meter(console, None, questions)
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        yield Meter(console, bars, questions)


def main(guarded: bool = True) -> None:
    """The console script. Models run in a child process; a test that knows its model may have them run here."""
    _forgive_streams()
    PLACE.set(Parent(tuple(sys.argv[1:])) if guarded else None)
    app()


def child() -> NoReturn:
    """A whole command in a child process: what it prints, and its status, go to the parent."""
    from assay.engine.child import Line, Spoken

    _forgive_streams()
    line = Line()
    sys.stdout = Spoken(line, line.job["terminal"])
    PLACE.set(Inside(line))
    try:
        app(args=list(line.job["words"]), prog_name="assay")
    except SystemExit as e:
        line.send(status=e.code if isinstance(e.code, int) else 2)
    line.leave(0)


def _forgive_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # where there is no minus sign, a question mark and no traceback
