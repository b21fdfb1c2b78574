"""Explain a pair: what would change a comparison, where, what the model believes it sees, and the trial of all that.

    runs/explain-<subject>-<first>-<second>-to-<target>/explanation.html   walk.gif

The first of the two inputs is changed until the comparison reaches the target, the second stays; an input is the number
of a test input (`Pairs.singles`) or an image file. Sister of `explain.py`, which explains one input.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from assay import store
from assay.errors import AssayError, MissingExtra
from assay.finding import Curve, Line, Panel
from assay.jobs.explain_pair.scene import NEAR, Scene, ordered
from assay.jobs.explain_pair.trials import (
    LEAST,
    NUMBERS,
    agrees_with_itself,
    changes,
    check_of,
    is_local,
    knows,
    level,
    looks_as_asked,
    needs_its_model,
    rows_to_read,
)
from assay.pair_explanation import Check, Drawn, Frame, PairExplanation, Shown, Side, Strip

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.methods.rank.familiar import Familiar
    from assay.methods.rank.manner import Manner
    from assay.methods.rank.perception import Perception
    from assay.methods.rank.walk import Walk
    from assay.run import Run
    from assay.subject import PairModel, Subject
    from assay.tasks import Ranking, Similarity

FRAMES = 10
EMBEDDED, LINE = 60, 6  # steps of a walk of the embedding, pictures on the straight line
DECODER_STEPS = 3000  # of training one
METHOD = "'Perception visualizations for Siamese networks', MSc thesis, Politecnico di Milano, ch. 4 and sec. 5.3"
UNSEEN = (
    "this model has no decoder, so that nothing can draw what it believes it sees. With --decoder one is trained on "
    "its encoder as it is, and the page says what its pictures are worth."
)


def explain_pair(
    subject: Subject,
    first: int | str | Path,
    second: int | str | Path,
    *,
    target: float | None = None,
    decoder: bool = False,
    manner: Manner | None = None,
    run: Run,
    out: str | Path = "runs",
    source: tuple[str, ...] = (),
) -> PairExplanation:
    """Explain what the subject says of a pair by what would change it, put that on trial, and write the page.

    `first` and `second` are numbers of test inputs or image files; the first is changed. `target` is where its
    comparison is to go, by default to a tie. `decoder` trains one for a model that has none; the model stays as it is.
    `manner` is how the walk is made: in a region, with penalties, with momentum.
    """
    from assay.probe import undisturbed
    from assay.report.pair_explanation import animate, render

    start = time.perf_counter()
    scene = Scene.of(subject, first, second, target, run, manner)
    trained = _decoder(subject, scene, run) if decoder else None
    if trained is not None:
        subject = replace(subject, model=trained.model)
    with undisturbed(subject.model, run), run.progress("the pair", 6) as tick:
        walked = scene.walk(subject.model, frames=scene.steps + 1)
        tick(1)
        told = _told(subject, scene, walked, trained, run, tick)
    folder = f"explain-{store.slug(subject.name)}-{store.slug(scene.given[0])}-{store.slug(scene.given[1])}"
    made = replace(
        told,
        seconds=time.perf_counter() - start,
        source=source,
        page=Path(out) / "-".join([folder, f"to-{scene.target:g}", *map(store.slug, told.manner)]) / "explanation.html",
    )
    moving = animate(made.frames, scale=made.scale, target=made.target)
    store.write_atomically(made.page.with_name(made.moving), moving)
    store.write_atomically(made.page, render(made, moving))
    return made


class _Trained(NamedTuple):
    """A model with a decoder that it came without, and what that decoder is worth."""

    model: nn.Module
    says: str
    good_enough: bool


def _decoder(subject: Subject, scene: Scene, run: Run) -> _Trained | None:
    """A decoder for a model that has none, trained on what its encoder makes of the training inputs; else None."""
    import copy

    import numpy as np

    from assay.methods.train.fit import reset
    from assay.methods.train.ranker import Course, embed, fit_decoder, likeness
    from assay.nn.siamese import Siamese, dense_decoder
    from assay.subject import PairModel

    model = subject.model
    if isinstance(model, PairModel) and model.decoder is not None:
        return None
    if not isinstance(model, Siamese) or "train" not in subject.pairs or scene.bounds != (0.0, 1.0):
        raise AssayError(
            f"No decoder can be trained for {subject.name!r}: that takes an assay.nn.siamese.Siamese, a split 'train' "
            f"and inputs from 0 to 1; leave --decoder out."
        )
    train, rng = subject.pairs["train"].singles, np.random.default_rng(run.seed)
    rows = np.sort(rng.permutation(len(train))[: max(LEAST, NUMBERS // scene.a.numel())])
    asked, _ = rows_to_read(subject, scene, run)
    x, held = train.take(rows)[0].float(), subject.pairs["test"].singles.take(asked)[0].float()
    whole = copy.deepcopy(model).requires_grad_(False).eval()
    drawn = reset(dense_decoder(int(whole.encode(x[:1]).shape[1]), tuple(scene.a.shape[1:])), run.rng())
    with run.progress("a decoder", DECODER_STEPS) as tick:
        course = Course(steps=DECODER_STEPS, progress=lambda done, loss: tick(1), device=run.device)
        fit_decoder(whole, drawn, x, rng=run.rng(), course=course)
    worth = likeness(drawn, embed(whole.encoder, held), held)
    whole.decoder = drawn.eval().requires_grad_(False)
    return _Trained(
        whole,
        f" The model came without a decoder; this one was trained afterwards, on {len(x):,} inputs. Of what differs "
        f"between {len(held)} others its pictures miss {100 * worth.share:.0f} % (lower is better; a blank picture "
        f"misses 100 %), and " + ("that is good enough." if worth.good_enough() else "that is too much to go by."),
        worth.good_enough(),
    )


def _told(
    subject: Subject, scene: Scene, walked: Walk, trained: _Trained | None, run: Run, tick: Callable[[int], None]
) -> PairExplanation:
    """Everything that the page tells, as data."""
    import numpy as np

    from assay.methods.rank.perception import perceive
    from assay.subject import PairModel
    from assay.tasks import Ranking

    model, task, rng = subject.model, scene.task, run.rng()
    assert isinstance(model, PairModel)
    after, c = walked.x, float(walked.c)
    seen = perceive(model, scene.a, after) if model.decoder is not None else None
    others = changes(scene, after - scene.a, rng)
    local = is_local(model, scene, walked, others)
    tick(1)
    recycled = agrees_with_itself(model, scene, after, seen, rng)
    tick(1)
    sanity, seen_sanity = needs_its_model(model, scene, walked, rng)
    tick(1)
    known = knows(subject, scene, run)
    coherence, readable = looks_as_asked(subject, scene, after, seen, others, known, run)
    if trained is not None and not trained.good_enough:
        readable = (Check("fail", "cannot be read: no explanation"),)
    tick(1)
    frames = tuple(_frames(model, scene, walked, known))
    maps = tuple(_maps(scene, after))
    tick(1)
    right = None
    if isinstance(task, Ranking) and scene.values[0] is not None and scene.values[1] is not None:
        right = float(task.target(np.array(scene.values[0] - scene.values[1])))
    return PairExplanation(
        subject=subject.name,
        about=subject.about,
        first=_side(scene, 0),
        second=_side(scene, 1),
        ordered=ordered(task),
        scale=scene.scale,
        ends=("the first is lower", "the first is higher") if ordered(task) else ("the same", "different"),
        c=scene.c,
        right=right,
        target=scene.target,
        swapped_target=1 - scene.target if ordered(task) else scene.target,
        reached_c=c,
        says=_says(scene, right),
        walk_says=_walk_says(scene, walked),
        change_says=_change_says(scene, after),
        seen_says=_seen_says(scene, seen) + (trained.says if trained is not None else ""),
        unseen="" if seen is not None else UNSEEN,
        walked=_trace(scene, walked, right),
        frames=frames,
        pictures=_pictures(scene, scene.a, after, "the first input"),
        maps=maps,
        checks=(check_of(local), check_of(sanity)),
        seen=_pictures(scene, seen.before, seen.after, "what the model sees") if seen is not None else (),
        seen_maps=tuple(_seen_maps(scene, seen)) if seen is not None else (),
        seen_checks=(*readable, *seen_sanity, check_of(recycled)) if seen is not None else (),
        strips=tuple(_strips(model, scene, known)) if seen is not None else (),
        trials=(local, recycled, sanity, coherence),
        decoder=trained is not None,
        settings=_settings(scene),
        manner=tuple(f"{name}={value}" for name, value in scene.manner.changed().items()),
        method=METHOD,
        budget=run.budget.name,
        seed=run.seed,
        device=run.device,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        source=(),
        page=Path(),
        moving="walk.gif",
    )


# What is said and shown of the walk.


def _side(scene: Scene, k: int) -> Side:
    x, role = (scene.a, scene.b)[k], ("first", "second")[k]
    panel = Panel.of(scene.what[k], f"The {role} of the pair, {scene.what[k]}", scene.unit(x[0]).numpy())
    return Side(what=scene.what[k], given=scene.given[k], value=scene.values[k], panel=panel)


def _answer(task: Ranking | Similarity, c: float) -> str:
    """The answer in words."""
    if c == task.tie:
        return "the two are tied"
    if ordered(task):
        return f"the first is {task.classes[int(c > task.tie)]}"
    return f"the two are {'the same' if c < task.tie else 'different'}"


def _says(scene: Scene, right: float | None) -> str:
    said, known = _answer(scene.task, scene.c), [v for v in scene.values if v is not None]
    head = f"It says {scene.c:.3f}: {said}"
    if len(known) < 2:
        return f"{head}."
    if right is None:
        truth = "the two are the same" if known[0] == known[1] else "the two are different"
        return f"{head}, which is right." if truth == said else f"{head}; in truth {truth}."
    told = f"by their values, {known[0]:g} and {known[1]:g}, {right:.3f} would be"
    truth = _answer(scene.task, right)
    if truth == said:
        return f"{head}, which is right ({told} exact)."
    return f"{head}; in truth {truth} ({told} right)."


def _walk_says(scene: Scene, walked: Walk) -> str:
    low, high = scene.scale
    c, steps = float(walked.c), int(walked.steps)
    towards = "the tie" if scene.target == scene.task.tie else _answer(scene.task, scene.target)
    head = (
        f"{scene.what[0][:1].upper()}{scene.what[0][1:]} is changed a little at a time, downhill on the squared "
        f"distance of the answer from {scene.target:g} ({towards}), while {scene.what[1]} stays as it is"
        f"{(how := scene.manner.told()) and ', '}{how}. "
    )
    if abs(c - scene.target) <= NEAR * (high - low):
        return f"{head}It gets there in {steps} step{'' if steps == 1 else 's'}."
    return f"{head}After {steps} steps it says {c:.3f} and comes no nearer."


def _settings(scene: Scene) -> str:
    size = f"length {scene.step:.3g} along" if scene.even else f"{scene.step:.3g} times"
    how = scene.manner.told()
    return f"{scene.steps} steps of {size} the gradient of (c − {scene.target:g})², not clipped{how and ', '}{how}"


def _change_says(scene: Scene, after: Tensor) -> str:
    change = after - scene.a
    low, high = scene.bounds
    out = float(((after < low) | (after > high)).double().mean())
    head = (
        f"The change has length {float(change.norm()):.3g} (L2), and no value moves by more than "
        f"{float(change.abs().max()):.3g}, where the range is {low:g} to {high:g}."
    )
    if not out:
        return head
    return (
        f"{head} Of all values {100 * out:.0f} % leave that range: nothing is clipped, because that would bend the "
        "change away from the gradient."
    )


def _seen_says(scene: Scene, seen: Perception | None) -> str:
    if seen is None:
        return ""
    return (
        "A decoder draws what is left of an input in the model's embedding, before the walk and after it. What differs "
        "matters to the comparison, what stays does not. It may invent: of the unchanged input it misses "
        f"{float(seen.error):.3g} (mean squared difference), where one grey all over would miss "
        f"{float(scene.a.var(correction=0)):.3g}."
    )


def _trace(scene: Scene, walked: Walk, right: float | None) -> Curve:
    trace = walked.trace[: int(walked.steps) + 1, 0].tolist()
    along = tuple(map(float, range(len(trace))))
    ends = (along[0], along[-1])
    lines = [Line(label="what it says", x=along, y=tuple(trace)), level("target", ends, scene.target)]
    if right is not None:
        lines.append(level("right for the unchanged pair", ends, right))
    return Curve(
        name="walk",
        title="The answer on the way",
        x_label="step",
        y_label="comparison" if ordered(scene.task) else "distance",
        lines=tuple(lines),
    )


def _frames(model: PairModel, scene: Scene, walked: Walk, known: Familiar | None) -> Iterator[Frame]:
    """Steps of the walk between which the answer changes by about as much each time, its first and last among them."""
    import torch

    trace = walked.trace[:, 0]
    for step in _even(trace):
        x, c = walked.frames[step], float(trace[step])
        with torch.no_grad():
            e = model.encode(x) if model.decoder is not None else None
        panel = Panel.of("input", f"The first input after {step} steps: {c:.2f}", scene.unit(x[0]).numpy())
        if e is None:
            yield Frame(step=step, c=c, panel=panel, seen=None)
            continue
        one = _draw(model, scene, known, f"What the model sees after {step} steps", c, e)
        yield Frame(step=step, c=c, panel=panel, seen=one.panel, strange=one.strange)


def _even(trace: Tensor) -> list[int]:  # steps -> places
    import torch

    levels = torch.linspace(float(trace[0]), float(trace[-1]), FRAMES).to(trace)
    near = (trace[None] - levels[:, None]).abs().argmin(1)  # the first where several are as near
    return sorted({0, *near.tolist(), len(trace) - 1})


def _draw(model: PairModel, scene: Scene, known: Familiar | None, label: str, c: float, e: Tensor) -> Drawn:  # 1 s
    import torch

    with torch.no_grad():
        picture = model.decode(e)[0]
    panel = Panel.of("seen", f"{label}: {c:.2f}", scene.unit(picture).numpy())
    strange = known is not None and bool(known.away(model, e).strange)
    return Drawn(label=label, c=c, panel=panel, strange=strange)


def _strips(model: PairModel, scene: Scene, known: Familiar | None) -> Iterator[Strip]:
    """What is decoded when the embedding itself is walked (Algorithm 1), and on the line to that of the second."""
    import torch

    from assay.methods.rank.walk import degrees, interpolate, relative_move, to_tie, walk

    with torch.no_grad():
        e, other = model.encode(scene.a), model.encode(scene.b)

    def score(code: Tensor) -> Tensor:  # n s -> n
        return model.compare(code, other.expand(len(code), -1))

    straight = to_tie(score, e, at=scene.target)
    length = float(straight.distance) if bool(straight.found) else float((other - e).norm())
    if length > 0:
        low, high = scene.scale
        end = walk(
            score, e, target=scene.target, steps=EMBEDDED, step=length / (EMBEDDED // 2), unit=True,
            tolerance=NEAR * (high - low), frames=EMBEDDED + 1,
        )  # fmt: skip
        best = int((end.trace[:, 0] - scene.target).abs().argmin())
        trace, after = end.trace[: best + 1, 0], end.frames[best]
        turn = float(degrees(after - e, other - e))
        yield Strip(
            title="If the embedding itself is walked",
            says=f"Nothing is done to the input: its embedding goes to {float(trace[-1]):.3f} in {best} steps, by "
            f"{100 * float(relative_move(e, after)):.0f} % of its length and {turn:.0f}° off the line to that of the "
            "second, and is drawn on its way.",
            drawn=tuple(_draw(model, scene, known, f"step {k}", float(trace[k]), end.frames[k]) for k in _even(trace)),
        )
    line = interpolate(e, other, LINE)
    yield Strip(
        title="On the straight line to the second",
        says="To compare: the first embedding turns into the second, which blends the two and needs no gradient.",
        drawn=tuple(
            _draw(model, scene, known, f"{100 * k / (LINE - 1):.0f} %", float(score(code).detach()), code)
            for k, code in enumerate(line)
        ),
    )


def _pictures(scene: Scene, before: Tensor, after: Tensor, of: str) -> tuple[Panel, ...]:  # 1 c h w, 1 c h w
    gap = (after - before)[0].detach().cpu().numpy()
    size = float(abs(gap).max()) or 1.0
    return (
        Panel.of("before", f"Before the walk: {of}", scene.unit(before[0]).numpy()),
        Panel.of("after", f"After the walk: {of}", scene.unit(after[0]).numpy()),
        Panel.of(
            f"the change, from −{size:.2g} (black) to {size:.2g} (white)",
            f"The change of {of}, grey where there is none",
            gap,
            low=-size,
            high=size,
        ),
    )


def _maps(scene: Scene, after: Tensor) -> Iterator[Shown]:
    """The grey map, both overlays, and the regions by their maximum and mean."""
    from assay.methods.rank.maps import blend, grey, overlay, ramp, sizes, tessellate

    image, heat = scene.unit(scene.a), grey(scene.a, after).cpu()
    low, high = (float(end) for end in sizes(scene.a, after).aminmax())

    def shown(label: str, says: str, pixels: Tensor, *colours: str) -> Shown:  # 1 c h w
        alt = f"Map of the change, {label}: {says}"
        panel = Panel.of(label, alt, pixels[0].numpy())
        return Shown(panel=panel, says=says, colours=colours, low=low, high=high)

    yield shown("grey", "white where the change is largest", heat[:, None], "#000", "#fff")
    yield shown(
        "green on red", "the change in green over the input in red", overlay(image, heat, "green-red"), "#000", "#0f0"
    )
    yield shown(
        "red on blue",
        "the change in red over the input in blue, for readers who cannot tell green from red",
        overlay(image, heat, "red-blue"),
        "#000",
        "#f00",
    )
    segments = max(12, min(100, round(0.85 * max(image.shape[2:]))))  # 24 of 28 x 28, 95 of 112 x 112
    try:
        regions = {r: tessellate(image, heat, segments=segments, reduce=r) for r in ("max", "mean")}
    except MissingExtra:
        return
    yield shown(
        "regions, largest",
        "each SLIC region at its largest change, over the grey input: one pixel decides",
        blend(image, regions["max"]),
        *ramp("jet"),
    )
    yield shown(
        "regions, mean",
        "the same regions at their mean change, over the grey input",
        blend(image, regions["mean"]),
        *ramp("jet"),
    )


def _seen_maps(scene: Scene, seen: Perception) -> Iterator[Shown]:
    from assay.methods.rank.maps import overlay, sizes

    heat, image = seen.map.cpu(), scene.unit(seen.before)
    low, high = (float(end) for end in sizes(seen.before, seen.after).aminmax())
    for label, says, pixels, colour in (
        ("what is seen, grey", "white where what the model sees changes most", heat[:, None], "#fff"),
        (
            "what is seen, red on blue",
            "the same in red over what it sees, in blue",
            overlay(image, heat, "red-blue"),
            "#f00",
        ),
    ):
        panel = Panel.of(label, f"Map of the change, {label}: {says}", pixels[0].numpy())
        yield Shown(panel=panel, says=says, colours=("#000", colour), low=low, high=high)
