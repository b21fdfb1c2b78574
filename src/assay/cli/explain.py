"""assay explain: one answer, or one comparison, with its reasons on trial."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.flat import flat
from assay.cli.meter import metered
from assay.cli.options import (
    DEFAULT_SUBJECT,
    RUNS,
    Debug,
    Guard,
    Opening,
    Out,
    SubjectName,
    Work,
    opened,
    pairs,
)
from assay.cli.printing import console
from assay.errors import AssayError


@dataclass(frozen=True, kw_only=True)
class Input:
    """Which input is explained, and how."""

    given: Annotated[
        str,
        typer.Option(
            "--input",
            metavar="N|FILE|TEXT|ROW",
            help="The number of a test input, an image file, a sentence, or a row's values with commas between.",
        ),
    ] = "0"
    method: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="all|NAME", help="A map, such as integrated-gradients; may be given again."),
    ] = None
    why_not: Annotated[
        str | None, typer.Option("--why-not", metavar="CLASS", help="By number or name; else the second likeliest.")
    ] = None
    of: Annotated[
        str | None,
        typer.Option(
            "--of",
            metavar="NAME",
            help="Of an answer that is no class: which number, channel, label, class or item of it, by number or name.",
        ),
    ] = None
    units: Annotated[
        str | None,
        typer.Option(
            metavar="patches|superpixels|pixels|columns|words|stretches",
            help="What is ranked and picked; pixels take many minutes. [default: patches of an image, columns of a "
            "row, words of a text, stretches of a series]",
        ),
    ] = None
    criterion: Annotated[
        str | None,
        typer.Option(
            "--criterion",
            metavar="held|moved",
            help="What greedy-as picks: features that, held fast, make the answer hardest to change (held), or that "
            "change it by the smallest changes of their own (moved). [default: moved for words, else held]",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Which two, of a model that compares, and how the first is changed."""

    pair: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--pair",
            metavar="A B",
            help="Of a model that compares: two test inputs by number, or image files. A is changed.",
        ),
    ] = None
    to: Annotated[
        float | None,
        typer.Option("--to", metavar="T", help="With --pair: where its comparison is to go; else to a tie."),
    ] = None
    decoder: Annotated[
        bool, typer.Option("--decoder", help="With --pair: train a decoder for a model that has none.")
    ] = False
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="With --pair: a setting of the walk, see above."),
    ] = None


@flat
def explain(
    *,
    subject: SubjectName = DEFAULT_SUBJECT,
    of: Input,
    two: Pair,
    opening: Opening,
    work: Work,
    out: Out = RUNS,
    guard: Guard,
    debug: Debug = False,
) -> None:
    """Explain one answer by many maps, and put each map on trial.

    What is explained is the score of the class that a classifier says; of any other answer it is one number: a
    predicted value, the mean of a forecast, a label, a region, the surest box, tag or match (--of names another).

    A map is believable if it ranks features better than chance, changes when the model's weights are random (turning
    its signs over is no change), and adds up where it promises to. What cannot be made of this model is left out, and
    the page says why.

    Of a model that compares two inputs (--pair), the first is changed until the comparison reaches a target: the page
    shows where, and what the model believes it sees, with four audits of that; a moving picture lies beside it. The
    walk can be kept to a part of the image (--set region=TOP,LEFT,BOTTOM,RIGHT), charged for rough changes (tv), for
    many (sparse) or for long ones (close), each with a weight, and given momentum (damping, from 0 to 1).

    Example: assay explain fashion-cnn --input 17 --method all --why-not 3

    Example: assay explain diabetes-mlp --input 3

    Example: assay explain seasons-forecaster --of heat

    Example: assay explain topics-text --input "the doctor had a fever"

    Example: assay explain fashion-cnn --input 17 --method greedy-as --units superpixels --criterion moved

    Example: assay explain digits-ranker --pair 12 40 --to 0.5

    Example: assay explain digits-ranker --pair 12 40 --set region=0,0,4,8 --set tv=0.01
    """
    if two.pair is not None:
        if of.method or of.why_not is not None or of.units is not None or of.of is not None:
            raise AssayError("--method, --why-not, --of and --units are for one input; leave them out with --pair.")
        _explain_pair(subject, two, two.pair, opening, work, out, debug)
    elif two.to is not None or two.decoder or two.settings:
        raise AssayError("--to, --decoder and --set are for a pair; give --pair A B too.")
    else:
        _explain_input(subject, of, opening, work, out, debug)


def _explain_pair(
    subject: str, two: Pair, pair: tuple[str, str], opening: Opening, work: Work, out: Path, debug: bool
) -> None:
    from rich.text import Text

    from assay.jobs.explain_pair import explain_pair
    from assay.methods.rank.manner import Manner
    from assay.probe import configure
    from assay.report.terminal import COLOURS, plain, table

    manner = configure(Manner, pairs(two.settings))
    source = opening.source(subject)
    with metered() as meter:
        ready, found = work.run(meter, debug), opened(source, meter)
        done = explain_pair(
            found, *pair, target=two.to, decoder=two.decoder, manner=manner, run=ready, out=out,
            source=source.words(),
        )  # fmt: skip
    trials = table("verdict", "audit", "why")
    for t in done.trials:
        trials.add_row(Text(t.verdict, COLOURS.get(t.outcome, "")), t.question, t.says)
    typer.echo(plain(f"{done.subject}, {done.first.what} and {done.second.what}: {done.says}"))
    console().print(trials)
    typer.echo(done.page)


def _explain_input(subject: str, of: Input, opening: Opening, work: Work, out: Path, debug: bool) -> None:
    from rich.text import Text

    from assay.jobs.explain import UNITS, aimed, chosen, explain_input
    from assay.report.terminal import COLOURS, plain, table

    asked = of.method or ["all"]
    chosen(asked), aimed(of.criterion)  # an unknown name is told before the subject is opened
    if of.units is not None and of.units not in (known := [u for some in UNITS.values() for u in some]):
        raise AssayError(f"There are no units {of.units!r}; choose from {', '.join(known)}.")
    source = opening.source(subject)
    with metered() as meter:
        ready, found = work.run(meter, debug), opened(source, meter)
        if found.pairs:
            raise AssayError(f"{found.name!r} compares two inputs; say which with --pair, such as --pair 12 40.")
        done = explain_input(
            found,
            of.given,
            methods=asked,
            why_not=of.why_not,
            of=of.of,
            units=of.units,
            criterion=of.criterion,
            run=ready,
            out=out,
            source=source.words(),
        )
    colour = {"believable": COLOURS["pass"], "not believable": COLOURS["fail"], "cannot tell": COLOURS["cannot tell"]}
    maps = table("verdict", "map", "why")
    for m in done.maps:
        maps.add_row(Text(m.verdict, colour[m.verdict]), m.name, " ".join(check.says for check in m.checks))
    for name, why in done.left_out:
        maps.add_row("left out", name, why)
    said = f"{done.says}; explained is {done.number}, {done.score:.4g}"
    if done.answer is not None:
        said = f"{done.classes[done.answer]} ({100 * done.probabilities[done.answer]:.1f} %)"
    typer.echo(plain(f"{done.subject}, {done.input.what}: {said}"))
    console().print(maps)
    typer.echo(done.page)
