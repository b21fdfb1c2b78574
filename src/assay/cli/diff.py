"""assay diff: two runs compared, or two models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from assay.cli.flat import flat
from assay.cli.guard import InChild
from assay.cli.meter import metered
from assay.cli.options import Debug, Guard, Inputs, Opening, Work, bound
from assay.cli.printing import console, say
from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.audit import Audit, Change
    from assay.jobs.gap import Gap

LAYERS = 24  # that are printed; of more those around the first that parts


class Models(InChild):
    """In a child where it opens models; runs are read here."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # as InChild's
        if _models(ctx.params["before"], ctx.params["after"]):
            return super().invoke(ctx)
        return TyperCommand.invoke(self, ctx)


@flat
def diff(
    *,
    before: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="The run to compare with, or a model.")],
    after: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="The run to compare (the page is written here).")],
    opening: Opening,
    work: Work,
    inputs: Inputs = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", metavar="FILE", help="Of two runs: the page. [default: diff.html in the second run]"),
    ] = None,
    guard: Guard,
    debug: Debug = False,
) -> None:
    """Compare two runs, paired where the inputs are the same; or two models on the same inputs.

    A folder with an audit.json is a run. Of two models it tells how often they agree, the largest gap between their
    numbers, and the first layer whose outputs part; options about data and models are for these.

    Example: assay diff runs/20260301-120000-fashion-cnn runs/20260302-120000-fashion-cnn

    Example: assay diff fashion-cnn small.onnx
    """
    if _models(before, after):
        _models_compared((before, after), opening, work, inputs, debug)
        return
    from assay.audit import open_audit
    from assay.jobs.compare import compare
    from assay.jobs.compare import page as render_diff
    from assay.store import write_atomically
    from assay.store.chain import refuse_changed

    runs = Path(before), Path(after)
    for run in runs:
        refuse_changed(run)
    old, new = (open_audit(run, whole=True) for run in runs)
    to = page or runs[1] / "diff.html"
    write_atomically(to, render_diff(old, new))
    show_changes(old, new, compare(old, new))
    typer.echo(to)


def _models(before: str, after: str) -> bool:
    """Whether two models are meant; a run and a model are no pair."""
    kinds = [_is_model(word) for word in (before, after)]
    if any(kinds) and not all(kinds):
        run, model = (before, after) if kinds[1] else (after, before)
        if Path(run).is_dir():
            raise AssayError(f"{run!r} is a folder and {model!r} a model; give two runs, or two models.")
        return True  # the other is not there, which its door says
    return all(kinds)


def _is_model(word: str) -> bool:
    from assay import shelf

    path = Path(word)
    if path.is_dir():
        return (path / "config.json").is_file() and not (path / "audit.json").exists()
    return word in shelf.names("subjects") or ".py:" in word or path.is_file()


def _models_compared(words: tuple[str, str], opening: Opening, work: Work, inputs: str | None, debug: bool) -> None:
    from dataclasses import replace

    from assay.jobs.gap import compared
    from assay.subjects import beside, located

    first = opening.source(words[0])
    sources = (beside(first, words[0]) if first.data is None else first, beside(first, words[1]))
    for source in sources:
        located(source)
    with metered() as meter:
        run = work.run(meter, debug)
        run = replace(run, budget=run.budget.bounded(bound(inputs)))
        gap = compared(sources, run)
    show_gap(gap)


def show_gap(gap: Gap) -> None:
    """What lies between two models, and the layers around the first that parts."""
    from assay.report.terminal import table

    to = console()
    for line in gap.says():
        say(to, line)
    if not gap.layers:
        return
    first = next((i for i, layer in enumerate(gap.layers) if layer.parts()), 0)
    start = max(0, min(first - LAYERS // 2, len(gap.layers) - LAYERS))
    shown, made = gap.layers[start : start + LAYERS], table("layer", "in the other", "shape", "largest gap", "relative")
    for layer in shown:
        sides = " x ".join(map(str, layer.shape))
        made.add_row(layer.name, layer.other, sides, f"{layer.gap:.3g}", f"{100 * layer.relative:.2g} %")
    to.print(made)
    if len(shown) < len(gap.layers):
        say(to, f"{len(shown)} of {len(gap.layers)} layers are shown, around the first that parts.")


def show_changes(before: Audit, after: Audit, changes: Sequence[Change], since: Sequence[Change] = ()) -> None:
    """The measures of both audits beside each other; `since` are a cure's changes from before its control."""
    from assay.report.diff import CONTROL_COLUMNS, DIFF_COLUMNS, cautions, diff_text
    from assay.report.terminal import table

    to, measures = console(), table(*(CONTROL_COLUMNS if since else DIFF_COLUMNS))
    for row in diff_text(changes, since):
        measures.add_row(*row)
    to.print(measures)
    for caution in cautions(before, after):
        say(to, f"caution: {caution}")
