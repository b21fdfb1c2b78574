"""assay rank: a model trained to say which of two images has the higher number."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.flat import flat
from assay.cli.meter import metered
from assay.cli.options import Debug, Device, Guard, Seed, Work
from assay.cli.printing import console, say


@flat
def rank(
    *,
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
    guard: Guard,
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
    from assay.report.terminal import table

    with metered() as meter:
        ready = Work(seed=seed, device=device).run(meter, debug)
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
    worth, to, scores = done.worth, console(), table("on images held back", "the ranker", "without training")
    scores.add_row("mean error of the comparison, from 0 to 1", f"{worth.error:.4f}", f"{worth.constant:.4f} by 0.5")
    scores.add_row("pairs put in the right order", f"{100 * worth.order:.1f} %", "50 % by chance")
    scores.add_row("mean squared error of a pixel", f"{worth.redrawn:.4f}", f"{worth.blank:.4f} by the mean image")
    if done.mirrored is not None:
        scores.add_row("the same, of the mirror's own embeddings", f"{done.mirrored:.4f}", "they explain nothing")
    typer.echo(
        f"{done.architecture}, {done.embedding} numbers an image, for values from {done.low:g} to {done.high:g}: "
        f"trained on {done.images} images, tested on {worth.pairs} pairs of {worth.images} others"
    )
    to.print(scores)
    if worth.error >= worth.constant:
        say(to, "caution: it compares no better than the constant 0.5; give more --steps or more images")
    if worth.redrawn >= worth.blank:
        say(to, "caution: it draws no better than the mean image; give more --steps or more images")
    typer.echo(done.path)
