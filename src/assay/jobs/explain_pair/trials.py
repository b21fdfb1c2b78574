"""The four audits of a pair's explanation: is the map local, does the model agree with itself, does the map need the
model, and does what is seen come to look as was asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from assay.errors import AssayError
from assay.finding import Bars, Beside, Curve, Line, Measure
from assay.jobs.explain_pair.scene import STEP, STEPS, Scene, ordered, score_of
from assay.pair_explanation import Check, Outcome, Trial

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from assay.methods.explain.sanity import Needs
    from assay.methods.rank.familiar import Away, Familiar
    from assay.methods.rank.pair_sanity import Stage, Start
    from assay.methods.rank.perception import Gate, Perception, Reader, Reading
    from assay.methods.rank.walk import Walk
    from assay.run import Run
    from assay.subject import PairModel, Subject

CHANCE = 39  # random changes; with fewer than 19 nothing can be clearly better than they are
CLEAR = 0.05
DRAWS = 8  # models with layers drawn anew, of each kind
KNOWN = 2000  # inputs that the reader has read before
READ = 200  # test inputs by which the reader's eyes are tested
LEAST = 20  # of either
NUMBERS = 2 * 10**7  # what the reader may remember at most; of large images, fewer


def check_of(trial: Trial) -> Check:
    return Check(trial.outcome, trial.verdict)


def changes(scene: Scene, change: Tensor, rng: torch.Generator) -> Tensor:  # 1 *d -> CHANCE *d
    """The first input after random changes as long as this one, in the same region."""
    from assay.methods.rank.perception import random_change

    many, mask = scene.a.expand(CHANCE, *scene.a.shape[1:]), scene.manner.mask(scene.a)
    return random_change(many, change.norm().expand(CHANCE), rng=rng, mask=mask)


def beaten(value: float, random: Sequence[float]) -> Outcome:
    """Clearly above what chance gets, not above its middle, or in between."""
    beaten = sum(value > other for other in random)
    p = (1 + len(random) - beaten) / (1 + len(random))
    return "pass" if p <= CLEAR else "fail" if p > 0.5 else "cannot tell"


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] + 0.0  # -0.0 is 0


def is_local(model: nn.Module, scene: Scene, walked: Walk, others: Tensor) -> Trial:
    """May the map be called local: does the walk keep to the line of the gradient at the input itself?"""
    from assay.methods.rank.agreement import LOCAL, PAIRS, agreement, angle, rank_correlation
    from assay.methods.rank.maps import grey
    from assay.methods.rank.walk import one_step

    score, change = score_of(model, scene.b), walked.x - scene.a
    length = float(change.norm())
    mask = scene.manner.mask(scene.a)
    once = one_step(score, scene.a, target=scene.target, length=length, mask=mask)
    step = once.x - scene.a
    inside = scene.manner.inside

    def likeness(x: Tensor, p: Tensor, q: Tensor) -> Tensor:  # n *d each -> n
        return rank_correlation(inside(grey(x, p)), inside(grey(x, q)))

    turn, alike = float(angle(change, step)), float(likeness(scene.a, walked.x, once.x))
    many, line = scene.a.expand_as(others), step.expand_as(others)
    by_chance = angle(others - many, line).tolist()
    alike_by_chance = likeness(many, others, many + line).tolist()
    straight = min(1.0, length / float(walked.length)) if float(walked.length) > 0 else 1.0
    beyond = scene.scale[int(scene.task.tie > scene.c)]
    goal = beyond if scene.target == scene.task.tie else scene.target
    step_size = STEP if scene.even else scene.step
    four = agreement(score, scene.a, target=goal, tie=scene.task.tie, steps=STEPS, step=step_size, mask=mask)
    angles = {pair: float(value) for pair, value in four.angle.items()}
    known = [pair for pair in PAIRS if angles[pair] == angles[pair]]
    local = turn <= LOCAL
    return Trial(
        name="agreement",
        question="May this map be called local?",
        outcome="pass" if local else "fail",
        verdict="local" if local else "not local",
        says=f"The change and a single step along the gradient at the input enclose {turn:.0f}°; up to {LOCAL:.0f}° "
        "it tells of this input, beyond that of inputs further away"
        + (", so that these maps must not be called local to it." if not local else "."),
        measures=(
            Measure(
                name="angle with one step",
                value=turn,
                unit="degrees",
                better="lower",
                about=f"at most {LOCAL:.0f}° to be local; one step as long as the change leads to {float(once.c):.3f}",
                beside=(Beside("a random change", _middle(by_chance)),),
            ),
            Measure(
                name="rank correlation with the map of one step",
                value=alike,
                better="higher",
                about="Spearman's, over the pixels; hard on the many that hardly change",
                beside=(Beside("a random change", _middle(alike_by_chance)),),
            ),
            Measure(
                name="straightness of the walk",
                value=straight,
                better="higher",
                about=f"its length as the crow flies over that of its steps; no step turns further than "
                f"{float(walked.turned):.0f}° from the first",
                beside=(Beside("a straight line", 1.0),),
            ),
        ),
        views=(
            Bars(
                name="angles",
                title="Angles between four attacks",
                y_label="degrees; lower is better",
                labels=tuple(f"{_WAYS[p]} / {_WAYS[q]}" for p, q in known),
                values=tuple(angles[pair] for pair in known),
                says=f"From this input to the tie and to an end ({goal:g}), in many steps and in one. Both in one step "
                f"lie on one line by nature. Local is up to {LOCAL:.0f}; chance gets about {_middle(by_chance):.0f}.",
            ),
        ),
    )


_WAYS = {"b": "end in many", "s": "end in one", "m": "tie in many", "m'": "tie in one"}


def agrees_with_itself(
    model: PairModel, scene: Scene, after: Tensor, seen: Perception | None, rng: torch.Generator
) -> Trial:
    """Does it agree with itself: put what it saw change back onto the input, and look again."""
    import torch

    from assay.methods.rank.perception import random_change
    from assay.methods.rank.recycling import recycle

    trial = partial(Trial, name="recycling", question="Does it agree with itself?")
    if seen is None:
        return trial(outcome="not asked", verdict="not asked", says="Not asked: it takes a decoder.")
    found = recycle(model, scene.a, after, scene.b)
    many = [t.expand(CHANCE, *t.shape[1:]) for t in (scene.a, after, scene.b)]
    noise = random_change(torch.zeros_like(many[0]), found.length[1].expand(CHANCE), rng=rng)
    chance = recycle(model, *many, instead=noise)
    follows, decides = float(found.perception), float(found.decision)
    if not math.isfinite(follows + decides):
        says = "Neither what the model sees nor its answer tells: one of them did not change at all."
        return trial(outcome="cannot tell", verdict="agrees with itself? cannot tell", says=says)
    by_chance = {  # where nothing changed, nothing followed
        name: values.nan_to_num(0.0).tolist()
        for name, values in (("seen", chance.perception), ("said", chance.decision))
    }
    c = [float(value) for value in found.c]
    seen_so, said_so = beaten(follows, by_chance["seen"]), beaten(decides, by_chance["said"])
    check = Check("cannot tell", "agrees with itself? cannot tell")
    if decides <= 0 or "fail" in (seen_so, said_so):
        check = Check("fail", "disagrees with itself")
    elif (seen_so, said_so) == ("pass", "pass"):
        check = Check("pass", "agrees with itself")
    return trial(
        outcome=check.outcome,
        verdict=check.says,
        says=f"What it saw change was put back onto the input. It said {c[0]:.3f}, after the walk {c[1]:.3f}, and now "
        f"{c[2]:.3f}: the answer goes the {'same' if decides > 0 else 'other'} way, {100 * abs(decides):.0f} % as "
        f"far. To agree, both the answer and what is seen must follow better than under {CHANCE} random changes.",
        measures=(
            Measure(
                name="what is seen follows",
                value=follows,
                better="higher",
                about="cosine of the change seen now with the change seen after the walk; 1: the same",
                beside=(Beside("a random change", _middle(by_chance["seen"])),),
            ),
            Measure(
                name="the answer follows",
                value=decides,
                unit="%",
                better="higher",
                about="of the way that the walk made; below 0, the other way",
                beside=(Beside("a random change", _middle(by_chance["said"])),),
            ),
            Measure(
                name="same pixels",
                value=float(found.spearman),
                better="higher",
                about="rank correlation of both maps: what was seen to change, and what was changed",
                beside=(Beside("a random change", _middle(chance.spearman.tolist())),),
            ),
        ),
    )


_NEEDS: dict[Needs, Check] = {
    "needs the model": Check("pass", "needs the model"),
    "does not need the model": Check("fail", "does not need the model"),
    "cannot tell": Check("cannot tell", "needs the model? cannot tell"),
}
_SANE = "Does the map need the model?"
_STARTS: dict[Start, str] = {"output": "tail, then branch", "branch": "branch alone"}


def needs_its_model(
    model: nn.Module, scene: Scene, walked: Walk, rng: torch.Generator
) -> tuple[Trial, tuple[Check, ...]]:
    """Does the map need the model: what is left of it while layers turn random, from the output and in the branch."""
    import torch

    from assay.methods.explain.sanity import HALF, likeness
    from assay.methods.rank.maps import grey
    from assay.methods.rank.pair_sanity import Seen, blind, cascade, compare
    from assay.methods.rank.perception import perceive
    from assay.subject import PairModel

    def see(net: nn.Module, end: Walk) -> dict[str, Seen]:
        assert isinstance(net, PairModel)
        moved = (end.c - end.trace[0]).abs()
        maps = {"change": Seen(scene.manner.inside(grey(scene.a, end.x)), moved)}
        if net.decoder is not None:
            maps["seen"] = Seen(perceive(net, scene.a, end.x).map, moved)
        return maps

    own, pair, length = see(model, walked), torch.stack([scene.a, scene.b], 1), float(walked.length)
    found: dict[tuple[str, Start], list[Stage]] = {}
    for start in _STARTS:
        tried: dict[str, list[dict[str, Seen]]] = {}
        try:
            for _ in range(DRAWS):
                for step in cascade(model, pair, start=start, rng=rng):
                    tried.setdefault(step.layer, []).append(see(step.model, scene.as_far(step.model, length)))
        except (AssayError, TypeError, RuntimeError) as e:  # no layers to draw anew, or none that can be copied
            why = f"Not asked: the weights of this model cannot be drawn anew ({str(e).splitlines()[0]})."
            unasked = Trial(name="sanity", question=_SANE, outcome="not asked", verdict="not asked", says=why)
            return unasked, ()
        for kind, map_ in own.items():
            found[kind, start] = [
                compare(layer, map_, [seen[kind] for seen in draws]) for layer, draws in tried.items()
            ]
    told = {kind: needs([found[kind, start] for start in _STARTS]) for kind in own}
    edge = {
        name: float(likeness(own["change"].map, scene.manner.inside(map_.abs().mean(1))).absolute)
        for name, map_ in blind(scene.a).items()
    }
    outcome, verdict = _NEEDS[told["change"]]
    most, where = max(
        ((stage, start) for (kind, start), stages in found.items() if kind == "change" for stage in stages),
        key=lambda one: float(one[0].absolute.mean()),
    )
    return Trial(
        name="sanity",
        question=_SANE,
        outcome=outcome,
        verdict=verdict,
        says=f"Layer by layer the weights were drawn anew, {DRAWS} times, and a walk as long was made on each model. A "
        f"map that tells about the model loses more than half of itself (a rank correlation below {HALF:g}) at every "
        f"stage; an edge detector, which never looks at a model, keeps 1. Most is left at {most.layer} "
        f"({_STARTS[where]}): {float(most.absolute.mean()):.2f}.",
        measures=(
            *(
                Measure(
                    name=f"likeness when all is random, {_STARTS[start]}",
                    value=float(stages[-1].absolute.mean()),
                    better="lower",
                    about=f"the walk moves the answer by {float(stages[-1].moved.mean()):.2g} then, and by "
                    f"{float(own['change'].moved):.2g} as it is",
                    beside=(Beside("a random map", 0.0), Beside("an edge detector", 1.0)),
                )
                for (kind, start), stages in found.items()
                if kind == "change"
            ),
            *(
                Measure(
                    name=f"likeness to the input's {'edges' if name == 'edges' else 'own values'}",
                    value=value,
                    better="lower",
                    about="how much of the map can be had without a model",
                    beside=(Beside("a random map", 0.0),),
                )
                for name, value in edge.items()
            ),
        ),
        views=(_cascades(found),),
    ), tuple(_NEEDS[told[kind]] for kind in own if kind == "seen")


def needs(cascades: Sequence[Sequence[Stage]]) -> Needs:
    """Whether a map needs the model: less than half of it may be left at each stage of each cascade.

    It does not if more than half is left when all is random. There is one pair, so that the interval of
    `needs_the_model` is taken over the draws. A walk as long as the own one has a map wherever there is a gradient;
    without one there is no map, and that proves nothing.
    """
    from assay.methods.explain.sanity import needs_the_model

    told = [[needs_the_model(stage.absolute[:, 0]).says for stage in stages] for stages in cascades]
    if any(says[-1] == "does not need the model" for says in told):
        return "does not need the model"
    moved = all(bool((stage.moved > 0).all()) for stages in cascades for stage in stages)
    every = {says for stages in told for says in stages}
    return "needs the model" if moved and every == {"needs the model"} else "cannot tell"


def _cascades(found: Mapping[tuple[str, Start], Sequence[Stage]]) -> Curve:
    names = {"change": "map of the change", "seen": "map of what is seen"}
    longest = max(len(stages) for stages in found.values())
    lines = [
        Line(
            label=f"{names[kind]}, {_STARTS[start]}",
            x=tuple(map(float, range(len(stages) + 1))),
            y=(1.0, *(float(s.absolute.mean()) for s in stages)),
            low=(1.0, *(float(s.absolute.min()) for s in stages)),
            high=(1.0, *(float(s.absolute.max()) for s in stages)),
        )
        for (kind, start), stages in found.items()
    ]
    return Curve(
        name="cascade",
        title="What is left of a map while layers turn random",
        x_label="layers drawn anew, from the deepest",
        y_label="likeness to the own map",
        lines=(*lines, level("an edge detector", (0.0, float(longest)), 1.0)),
        says="Lower is better; a random map is at 0. Bands go from the least to the most of all draws.",
    )


NOWHERE = Check("fail", "drawn from nowhere: no explanation")


def knows(subject: Subject, scene: Scene, run: Run) -> Familiar | None:
    """What the decoder has drawn before: of the reader's inputs; None where too few others say what is far."""
    from assay.methods.rank.familiar import familiar
    from assay.subject import PairModel

    assert isinstance(subject.model, PairModel)
    known = _known(subject, scene, run)
    if subject.model.decoder is None or known is None:
        return None
    asked, _ = rows_to_read(subject, scene, run)
    held = subject.pairs["test"].singles.take(asked)[0].float().to(run.device)
    return familiar(subject.model, known[0], held)


def looks_as_asked(
    subject: Subject,
    scene: Scene,
    after: Tensor,
    seen: Perception | None,
    others: Tensor,
    known: Familiar | None,
    run: Run,
) -> tuple[Trial, tuple[Check, ...]]:
    """Does what it sees come to look as was meant, to a reader who never met the model; and how far is the tie?

    The check that comes with it is the gate of every picture and map of what is seen: the reader must be able to read
    what the model draws of unchanged inputs, and what it draws after the walk must lie near something that it knows.
    """
    from assay.methods.rank.perception import KEPT

    trial = partial(Trial, name="coherence", question="Does it come to look like what was asked for?")
    far = "Along the gradient no tie was met."
    if bool(scene.tied.found):
        far = f"The tie is {float(scene.tied.distance):.3g} away (L2) along the gradient."
    tie, reader = _tie(subject.model, scene, run), _reader(subject, scene, run) if seen is not None else None
    away = _away(subject.model, known, after) if seen is not None and known is not None else None
    near = _near(known, away, subject.model, scene)
    lost = away is not None and bool(away.strange)
    if seen is None or reader is None or not ordered(scene.task):
        why = "classes have no order that a reader could see it move along"
        if seen is None:
            why = "it takes a decoder"
        elif ordered(scene.task):
            why = f"a reader needs {LEAST} inputs with values besides the pair"
        says = f"Not asked: {why}. {far}"
        gates = () if away is None else (NOWHERE if lost else Check("pass", "drawn as it knows"),)
        return trial(outcome="not asked", verdict="not asked", says=says, measures=(*near, *tie)), gates
    door = _gate(subject, scene, reader, run)
    found, chance = (_moved(reader, subject.model, scene, x) for x in (after, others))
    toward, by_chance = float(found.perception_moved), chance.perception_moved.tolist()
    readable = Check("pass", "can be read") if door.passes else Check("fail", "cannot be read: no explanation")
    if lost:
        readable = NOWHERE
    check = Check("cannot tell", "looks as asked? cannot tell")
    if toward < 0 and not lost:
        check = Check("fail", "looks like the opposite")
    elif readable.outcome == "pass" and beaten(toward, by_chance) == "pass":
        check = Check("pass", "looks as asked")
    way = "higher" if scene.up else "lower"
    (image, image_after), (picture, picture_after) = ([float(v) for v in pair] for pair in found[1:])
    doubts = "" if door.passes else " But it cannot read what this model draws, so that its word counts for little."
    if lost:
        doubts += (
            " But what the model sees after the walk is like nothing that its decoder knows how to draw: the reader "
            "must name a value, and there is none to name."
        )
    return trial(
        outcome=check.outcome,
        verdict=check.says,
        says=f"A reader who never met the model (the nearest of known inputs) reads {picture:.2f} from what the model "
        f"sees before the walk and {picture_after:.2f} after it, where {way} was asked for; from the input itself "
        f"{image:.2f} and {image_after:.2f}. {far}{doubts}",
        measures=(
            Measure(
                name="what is seen moves as asked",
                value=toward + 0.0,  # -0.0 is 0
                better="higher",
                about=f"in the unit of the values, towards {way}; below 0, away",
                beside=(Beside("a random change", _middle(by_chance)),),
            ),
            Measure(
                name="the input itself moves as asked",
                value=float(found.image_moved) + 0.0,
                better="neither",
                about="little, where people would see no change in it",
                beside=(Beside("a random change", _middle(chance.image_moved.tolist())),),
            ),
            Measure(
                name="knowledge that the reader keeps",
                value=door.kept,
                unit="%",
                better="higher",
                about="of what it knows about other inputs, when it reads what the model sees of them; below "
                f"{100 * KEPT:.0f} % that is no explanation",
                beside=(Beside("always the median", 0.0), Beside("the inputs themselves", 1.0)),
            ),
            *near,
            *tie,
        ),
    ), (readable,)


def _away(model: nn.Module, known: Familiar, x: Tensor) -> Away:  # n *d
    import torch

    from assay.subject import PairModel

    assert isinstance(model, PairModel)
    with torch.no_grad():
        return known.away(model, model.encode(x))


def _near(known: Familiar | None, away: Away | None, model: nn.Module, scene: Scene) -> tuple[Measure, ...]:
    """How far what is seen after the walk lies from all that the decoder knows, and how far it may."""
    from assay.methods.rank.familiar import STRANGE

    if known is None or away is None:
        return ()
    before = _away(model, known, scene.a)
    return (
        Measure(
            name="distance from what the decoder knows",
            value=float(away.furthest),
            better="lower",
            about=f"to the nearest of {len(known.codes):,} known inputs, in medians of their own distances: "
            f"{float(away.picture):.2g} as a picture, {float(away.code):.2g} as an embedding. Of {len(known.held)} "
            f"others, unchanged, {100 * (1 - STRANGE):.0f} % are within {known.limit:.2g}; beyond that it is drawn "
            "from nowhere",
            beside=(
                Beside("before the walk", float(before.furthest)),
                Beside("others, the median", float(known.held.median())),
            ),
        ),
    )


def _moved(reader: Reader, model: nn.Module, scene: Scene, after: Tensor) -> Reading:  # n *d
    """How far the values that are read move, of changed inputs."""
    from assay.methods.rank.perception import perceive, read
    from assay.subject import PairModel

    assert isinstance(model, PairModel)
    before, toward = scene.a.expand_as(after), after.new_full((len(after),), 1.0 if scene.up else -1.0)
    return read(reader, before, after, perceive(model, before, after), toward=toward)


def rows_to_read(subject: Subject, scene: Scene, run: Run) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Test inputs that the reader's eyes are tested by, and those that it knows where there are no training inputs."""
    import numpy as np

    free = np.setdiff1d(np.arange(len(subject.pairs["test"].singles)), [int(g) for g in scene.given if g.isdigit()])
    free = np.random.default_rng(run.seed).permutation(free)
    count = min(READ, len(free) if "train" in subject.pairs else len(free) // 2)
    return np.sort(free[:count]), free[count:]


def _known(subject: Subject, scene: Scene, run: Run) -> tuple[Tensor, Tensor] | None:
    """Other inputs than the pair, with their values, that the reader has read; None where there are too few."""
    import numpy as np
    import torch

    asked, rows = rows_to_read(subject, scene, run)
    known = subject.pairs.get("train", subject.pairs["test"])
    if "train" in subject.pairs:
        rows = np.random.default_rng(run.seed).permutation(len(known.singles))
    rows = np.sort(rows[: min(KNOWN, max(LEAST, NUMBERS // scene.a.numel()))])
    if min(len(rows), len(asked)) < LEAST:
        return None
    x = known.singles.take(rows)[0].float().to(run.device)
    return x, torch.from_numpy(known.values[rows]).to(run.device)


def _reader(subject: Subject, scene: Scene, run: Run) -> Reader | None:
    """Someone who has read other inputs than the pair; None where there are too few."""
    from assay.methods.rank.perception import nearest_reader

    known = _known(subject, scene, run)
    return None if known is None else nearest_reader(*known)


def _gate(subject: Subject, scene: Scene, reader: Reader, run: Run) -> Gate:
    """What the reader can read of what the model sees, on inputs that neither the pair nor the reader is made of."""
    import torch

    from assay.methods.rank.perception import gate
    from assay.subject import PairModel

    assert isinstance(subject.model, PairModel)
    asked, _ = rows_to_read(subject, scene, run)
    test = subject.pairs["test"]
    images = test.singles.take(asked)[0].float().to(run.device)
    with torch.no_grad():
        pictures = subject.model.decode(subject.model.encode(images))
    return gate(reader(images), reader(pictures), torch.from_numpy(test.values[asked]).to(run.device))


def _tie(model: nn.Module, scene: Scene, run: Run) -> tuple[Measure, ...]:
    """How far it is to where the answer turns, and whether chance of that length would turn it too."""
    import torch

    if not bool(scene.tied.found):
        return ()
    distance = float(scene.tied.distance)
    with torch.no_grad():
        c = score_of(model, scene.b)(changes(scene, scene.tied.x - scene.a, run.rng()))
    turned = float((((c - scene.task.tie) * (scene.c - scene.task.tie)) <= 0).double().mean())
    return (
        Measure(
            name="distance to a tie",
            value=distance,
            better="higher",
            about=f"L2, along the gradient; of {CHANCE} random changes as long, {100 * turned:.0f} % turn the answer",
            beside=(Beside("to first order", abs(scene.c - scene.task.tie) / float(scene.tied.slope)),),
        ),
    )


def level(label: str, x: tuple[float, float], y: float) -> Line:
    return Line(label=label, x=x, y=(y, y))
