"""assay translate: networks that turn one image into another, and say how sure they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.flat import flat
from assay.cli.meter import metered
from assay.cli.options import Debug, Device, Guard, Seed, Work
from assay.cli.printing import console, say
from assay.jobs.translate import KNOBS, SAMPLE, WAYS, Settings, write_sample
from assay.jobs.translate import translate as train

USUAL = Settings()


def _help(name: str) -> str:
    knob = KNOBS[name]
    return f"{knob.about[0].upper()}{knob.about[1:]}; {knob.low:g} to {knob.high:g}."


@flat
def translate(
    *,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help=f"A folder or a .zip of pairs, or {SAMPLE!r} for data made here.")
    ] = SAMPLE,
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help="What the page is called.")] = "",
    epochs: Annotated[int, typer.Option("--epochs", metavar="N", help=_help("epochs"))] = USUAL.epochs,
    members: Annotated[int, typer.Option("--members", metavar="N", help=_help("members"))] = USUAL.members,
    batch: Annotated[int, typer.Option("--batch", metavar="N", help=_help("batch"))] = USUAL.batch,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", metavar="RATE", help=_help("learning_rate"))
    ] = USUAL.learning_rate,
    weight_decay: Annotated[
        float, typer.Option("--weight-decay", metavar="RATE", help=_help("weight_decay"))
    ] = USUAL.weight_decay,
    dropout: Annotated[float, typer.Option("--dropout", metavar="SHARE", help=_help("dropout"))] = USUAL.dropout,
    width: Annotated[int, typer.Option("--width", metavar="N", help=_help("width"))] = USUAL.width,
    levels: Annotated[int, typer.Option("--levels", metavar="N", help=_help("levels"))] = USUAL.levels,
    distance: Annotated[
        str, typer.Option("--distance", metavar="l1|l2", help="What it lowers: absolute or squared error.")
    ] = USUAL.distance,
    way: Annotated[
        str,
        typer.Option(
            "--way",
            metavar="NAME",
            help=f"To an uncertainty: {', '.join(WAYS)}. Of the last two --members are random draws of one network.",
        ),
    ] = USUAL.way,
    turned: Annotated[
        bool, typer.Option("--turned/--not-turned", help="Turn training pairs over and round at random.")
    ] = USUAL.turned,
    review: Annotated[float, typer.Option("--review", metavar="SHARE", help=_help("review"))] = USUAL.review,
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="ERROR", help=_help("tolerance"))
    ] = USUAL.tolerance,
    sample: Annotated[
        bool, typer.Option("--write-sample", help=f"Write the data made here as {SAMPLE}.zip into --out, and stop.")
    ] = False,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where page, archive and weights go.")] = Path(
        "translation"
    ),
    guard: Guard,
    debug: Debug = False,
) -> None:
    """Train networks that turn one image into another, such as a stain that is not there, and flag where to look twice.

    DATA holds input/train, input/test, output/train and output/test, in a folder or a .zip; the two images of a pair
    have one name. Without output/test there are answers and no errors. PNG, TIFF and JPEG, all of one size, all
    grey or all in colour. Grey ones may have 16 bits: one factor brings them to 8, and the page says which.

    Several networks are trained. Their mean is the answer, and how far they are apart says where to be careful: a
    slider on the page sets from where on a pixel is flagged. The page lies beside results.zip, which holds every test
    image with mean, spread and error.

    --way chooses how they come to be several: seven ways, each a remedy of `assay remedies`.

    A command that was stopped goes on where it was when it is given again (of other ways than ensemble, from its
    beginning). Afterwards the networks can be asked about:
    assay audit translation/translator.safetensors --data DATA

    Example: assay translate

    Example: assay translate --write-sample --out pairs

    Example: assay translate pairs/cells.zip --epochs 20 --members 3 --out stain
    """
    if sample:
        typer.echo(write_sample(out / f"{SAMPLE}.zip"))
        return
    settings = Settings(
        epochs=epochs, members=members, batch=batch, learning_rate=learning_rate, weight_decay=weight_decay,
        dropout=dropout, width=width, levels=levels, distance=distance, turned=turned, review=review,
        tolerance=tolerance, way=way,
    )  # fmt: skip
    with metered() as meter:
        ready = Work(seed=seed, device=device).run(meter, debug)
        done = train(data, settings=settings, run=ready, out=out, title=title, command=_again(data, settings, seed))
    say(console(), done.says)
    typer.echo(done.page)


def _again(data: str, settings: Settings, seed: int) -> tuple[str, ...]:
    """The command that makes the same again; what is as usual is left out."""
    words = ["assay", "translate", data]
    for name in KNOBS.keys() | {"distance", "way"}:
        value = getattr(settings, name)
        if value != getattr(USUAL, name):
            words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    words += [] if settings.turned else ["--not-turned"]
    return (*words, "--seed", str(seed))
