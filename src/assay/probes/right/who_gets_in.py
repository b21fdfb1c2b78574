"""Genuine against impostors: how often each is taken for the other, and who the impostors are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.attribute import LEAST
from assay.finding import Alarm, Beside, Curve, Finding, Histogram, Line, Measure, Table, View, Witnesses, share
from assay.methods.attack.aim import Aim
from assay.methods.attack.cells import masked, settled
from assay.methods.attack.ensemble import worst_case
from assay.methods.attack.swift import searching
from assay.methods.verify.rates import equal_error_interval, equal_error_rate, exact_interval, rates, rule_of_three
from assay.probe import Probe
from assay.standard import Standard
from assay.tasks import Classification, admitted

if TYPE_CHECKING:
    from assay.run import Run, Shard
    from assay.subject import Subject

FAR, FRR = "false acceptance", "false rejection"
WHO = "identity"
POINTS = 41  # of a curve
BINS = 24
LEAST_SPAN = 1e-9  # of a feature that never varies


@dataclass(frozen=True)
class WhoGetsIn(Probe):
    """Who gets in that should not, and who is kept out that should get in?

    `genuine` names the class that is let in (genuine, accept or same, where there is one). The rates are those of the
    model's own answers, with exact intervals; the curves show what another threshold would do. An attribute `identity`
    tells impostors who were seen in training from strangers, by whom it is then judged. Under attack,
    impostors are moved by at most `radius`, a share of the range, until they are let in; every day, genuine inputs go
    bad as their kind does.
    """

    genuine: str | None = None
    radius: float = 8 / 255
    steps: int | None = None

    in_shares: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Yoshida & Kitamura, ICANN 2021, sec. 3 (impostors who never appear in training); Clopper & Pearson 1934; "
        "Hanley & Lippman-Hand, JAMA 1983 (the rule of three)"
    )
    standards: ClassVar[tuple[Standard, ...]] = (
        Standard(measure=FAR, at_most=0.05),
        Standard(measure=FRR, at_most=0.3),
    )

    def __post_init__(self) -> None:
        self.refuse_below(0, "radius")
        self.refuse_beyond_the_range("radius")
        self.refuse_below(1, "steps")

    def why_not(self, subject: Subject) -> str | None:
        task = subject.in_classes().task
        if not isinstance(task, Classification):
            return "it is about who is let in and who is not, and the answer here is no such choice"
        if isinstance(why := admitted(task.classes, self.genuine, "genuine"), str):
            return why
        labels = np.asarray(subject.in_classes().data["test"].labels)
        let = int((labels == admitted(task.classes, self.genuine, "genuine")).sum())
        if let in (0, len(labels)):
            return f"it compares genuine inputs with impostors, and of {len(labels)} test inputs {let} are genuine"
        return super().why_not(subject)

    def ask(self, subject: Subject, run: Run) -> Finding:
        own = admitted(subject.task.classes, self.genuine, "genuine")
        assert isinstance(own, int)  # why_not
        index = run.pick(subject.data["test"])
        score, accepted, label = self._scores(subject, run, "test", index, own)
        genuine = label == own
        alarms: list[Alarm] = []
        equal, why = _equal(score[genuine], score[~genuine])
        told_apart, apart, kinds = self._who(subject, run, index, label, accepted, own, alarms)
        strangers, about = (~genuine if told_apart is None else told_apart), "test impostors who are let in"
        n = int(strangers.sum())
        if not np.array_equal(strangers, ~genuine):
            apart.append(_rate(f"{FAR}, all test impostors", accepted[~genuine], about))
        if told_apart is not None:
            about = "test impostors of whom nothing is in the training data, who are let in"
        columns = {"stranger let in": np.where(strangers, accepted, np.nan)}
        columns["genuine kept out"] = np.where(genuine, ~accepted, np.nan)
        if n >= LEAST or told_apart is None:
            far = _rate(FAR, accepted[strangers], about, column="stranger let in")
        else:
            far = Measure(name=FAR, value=None, n=n, unit="%", better="lower", about=about)
        frr = _rate(FRR, ~accepted[genuine], "genuine test inputs that are kept out", column="genuine kept out")
        attacked, hit, witnesses = self._attacked(subject, run, index[~genuine], accepted[~genuine], own)
        everyday, out = self._everyday(subject, run, index[genuine], own)
        for name, values in (("let in under attack", hit), ("kept out every day", out)):
            if values:
                columns[name] = np.array([values.get(int(i), np.nan) for i in index])
        measures = [far, frr, equal, *apart, *attacked, *everyday]
        if why:
            alarms.append(Alarm(why, doubts=(equal.name,)))
        if n and not accepted[strangers].any():
            alarms.append(
                Alarm(
                    f"None of {n} impostors got in, which leaves room for a rate of {100 * rule_of_three(n):.2g} % "
                    f"(with 95 % confidence; about 3 in {n}, the rule of three)."
                )
            )
        told = f"{share(int(accepted[~genuine].sum()), int((~genuine).sum()))} of the impostors get in, and "
        told += f"{share(int((~accepted[genuine]).sum()), int(genuine.sum()))} of the genuine are kept out"
        hurt = next((m for m in attacked if m.value is not None), None)
        if hurt is not None and hurt.value is not None:
            told += (
                f"; moved by at most {subject.inputs.size(self.radius)}, {100 * hurt.value:.0f} % of impostors get in"
            )
        return Finding(
            says=told + ".",
            measures=tuple(measures),
            samples=Table(
                "test",
                {"index": index, "genuine": genuine, "score": score, "accepted": accepted, "kind": kinds, **columns},
            ),
            views=_views(score, genuine, kinds),
            alarms=tuple(alarms),
            witnesses=witnesses,
        )

    def _scores(
        self, subject: Subject, run: Run, split: str, index: NDArray[np.int64], own: int
    ) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.int64]]:
        """How far the genuine class's logit is above the others', whether it is the answer, and the labels."""
        logits, label = run.predict(subject, split, index, f"who gets in, {split}")
        z = torch.from_numpy(logits)
        return (_above(z, own).numpy(), (z.argmax(1) == own).numpy(), np.asarray(label, dtype=np.int64))

    def _who(
        self, subject: Subject, run: Run, index: NDArray[np.int64], label: NDArray[np.int64],
        accepted: NDArray[np.bool_], own: int, alarms: list[Alarm],
    ) -> tuple[NDArray[np.bool_] | None, list[Measure], NDArray[np.str_]]:  # fmt: skip
        """Which test impostors are strangers (None: nobody says), the rates of the others, and what each input is."""
        impostor = label != own
        kinds = np.where(impostor, "impostor", "genuine").astype("<U32")
        measures: list[Measure] = []
        trained: NDArray[np.bool_] | None = None
        if "train" in subject.data:
            rows = run.pick(subject.data["train"])
            _, let, truth = self._scores(subject, run, "train", rows, own)
            if (truth != own).any():
                trained = let[truth != own]
                measures.append(
                    _rate(f"{FAR}, training impostors", trained, "impostors it was trained on who are let in")
                )
        codes = subject.attributes[WHO].codes if WHO in subject.attributes else {}
        if "test" not in codes or "train" not in codes:
            alarms.append(
                Alarm(
                    "Nobody says who the inputs are of, so that impostors seen in training and others cannot be told "
                    "apart; give an attribute 'identity' for test and train (--groups identity=PATH --groups "
                    "identity@train=PATH).",
                    doubts=(FAR,),
                )
            )
            return None, measures, kinds
        known, who = np.unique(codes["train"][codes["train"] >= 0]), codes["test"][index]
        seen, unknown = impostor & (who >= 0) & np.isin(who, known), impostor & (who < 0)
        unseen = impostor & ~seen & ~unknown
        kinds[seen], kinds[unseen] = "impostor, seen in training", "impostor, unseen"
        kinds[unknown] = "impostor, nobody says who"
        for rows_, name, about in (
            (seen, "identities seen in training", "new inputs of impostors in the training data, who are let in"),
            (unknown, "identities unknown", "test impostors of whom nobody says who they are, who are let in"),
        ):
            if rows_.any():
                measures.append(_rate(f"{FAR}, {name}", accepted[rows_], about))
        apart = f"{int(seen.sum())} were seen in training, and of {int(unknown.sum())} nobody says who they are"
        if not unseen.any() and not unknown.any():
            alarms.append(
                Alarm("Every test impostor was seen in training: nothing is known of strangers.", doubts=(FAR,))
            )
        elif unseen.sum() < LEAST:
            alarms.append(
                Alarm(
                    f"Of {int(impostor.sum())} test impostors {int(unseen.sum())} are known to be strangers, fewer "
                    f"than {LEAST}; {apart}.",
                    doubts=(FAR,),
                )
            )
        elif unknown.any():
            alarms.append(Alarm(f"Of {int(impostor.sum())} test impostors {apart}: {FAR} is that of the others."))
        if trained is not None and not trained.any() and accepted[unseen].any():
            alarms.append(
                Alarm(
                    f"No training impostor gets in, and {share(int(accepted[unseen].sum()), int(unseen.sum()))} of "
                    "those whom it never saw do: a rate of 0 in training is no promise."
                )
            )
        return unseen, measures, kinds

    def _attacked(
        self, subject: Subject, run: Run, index: NDArray[np.int64], before: NDArray[np.bool_], own: int
    ) -> tuple[list[Measure], dict[int, float], Witnesses | None]:
        """Impostors, moved until they are let in; and whether each was."""
        if self.radius == 0 or subject.tokens:
            return [], {}, None
        few = _few(len(index), run)
        index, before = index[few], before[few]

        def work(shard: Shard) -> Mapping[str, Tensor]:
            rows, reach = torch.arange(len(shard.x), device=shard.x.device), subject.reach(shard.x)
            aim = Aim(lambda z, _: -_above(z, own), shard.y)
            steps = self.steps or run.budget.steps
            model, precision = searching(subject.model, shard.x, draws=subject.draws)
            found = worst_case(
                model, shard.x, aim, radius=self.radius, steps=steps, restarts=run.budget.restarts, targets=1,
                queries=10 * steps if subject.differentiable else 25 * steps, gradients=subject.differentiable,
                mask=masked(reach, rows), eot=subject.draws, bounds=(subject.inputs.low, subject.inputs.high),
                precision=precision, rng=shard.rng,
            )  # fmt: skip
            at, _ = settled(reach, rows, found, shard.x, "linf")
            already = subject.predict(shard.x).argmax(1) == own
            let = (subject.predict(at).argmax(1) == own) & ~already
            return {"let": let | already, "moved": let, "at": at, "y": shard.y}

        got = run.map(work, subject, "test", index, "impostors who try to get in", few={"at": "moved"})
        let, kept = got["let"].astype(bool), got["at at"]
        about = f"impostors who are let in when each value may be moved by {subject.inputs.size(self.radius, 4)}"
        measure = _rate(
            f"{FAR} under attack", let, about, (Beside("as they are", float(before.mean())),), "let in under attack"
        )
        hit = dict(zip(index.tolist(), let.astype(float).tolist(), strict=True))
        if not len(kept):
            return [measure], hit, None
        clean = subject.data["test"].take(index[kept])[0].numpy()
        return [measure], hit, Witnesses(
            split="test", index=index[kept], clean=clean, changed=got["at"],
            label=np.asarray(got["y"], dtype=np.int64)[kept], said=np.full(len(kept), own),
            norm=("linf",) * len(kept), radius=np.full(len(kept), self.radius), how=("moved to be let in",) * len(kept),
            left_out=int(got["moved"].sum()) - len(kept),
        )  # fmt: skip

    def _everyday(
        self, subject: Subject, run: Run, index: NDArray[np.int64], own: int
    ) -> tuple[list[Measure], dict[int, float]]:
        """Genuine inputs that go bad as they do every day, at the middle severity; and how often each is kept out."""
        known = {} if subject.tokens else subject.everyday()
        if not known:
            return [], {}
        index = index[_few(len(index), run)]
        natural = subject.inputs.natural if subject.kind is not None else None  # a kind speaks of natural units

        def work(shard: Shard) -> Mapping[str, Tensor]:
            low, span = torch.zeros(()), torch.ones(())
            if natural is not None:
                low, span = natural.edges()
            low, span = low.to(shard.x), span.to(shard.x)
            x, out = low + shard.x * span, []
            for change in known.values():
                spoilt = (change(x, 3, shard.rng) - low) / span.clamp_min(LEAST_SPAN)
                out.append(subject.predict(spoilt).argmax(1) != own)
            return {"out": torch.stack(out, 1)}

        out = run.map(work, subject, "test", index, "genuine inputs every day")["out"].astype(bool)  # n c
        names, worst = [name.replace("-", " ") for name in known], int(out.mean(0).argmax())
        measure = Measure.mean(
            f"{FRR} under everyday change", out.mean(1), better="lower", seed=run.seed, unit="%",
            about=f"genuine inputs that are kept out, mean over {len(names)} changes of severity 3; {names[worst]} "
            f"keeps out most, {100 * out[:, worst].mean():.0f} %", column="kept out every day",
        )  # fmt: skip
        return [measure], dict(zip(index.tolist(), out.mean(1).tolist(), strict=True))


def _few(n: int, run: Run) -> NDArray[np.int64]:
    """The places of as many of n inputs as a dear question looks at, drawn by seed: rows may lie in an order."""
    return np.sort(np.random.default_rng(run.seed).permutation(n)[: run.budget.dear or n])


def _above(z: Tensor, own: int) -> Tensor:  # n k -> n
    """By how much the logit of a class is above the largest of the others."""
    others = torch.arange(z.shape[1], device=z.device) != own
    return z[:, own] - z[:, others].amax(1)


def _rate(
    name: str, hits: NDArray[np.bool_], about: str, beside: tuple[Beside, ...] = (), column: str | None = None
) -> Measure:
    low, high = exact_interval(int(hits.sum()), hits.size)
    return Measure(
        name=name, value=float(hits.mean()), low=float(low), high=float(high), n=hits.size, unit="%", better="lower",
        about=f"{about}; exact interval", beside=beside, column=column,
    )  # fmt: skip


def _equal(genuine: NDArray[Any], impostor: NDArray[Any]) -> tuple[Measure, str]:
    """The equal error rate; or why it cannot be told."""
    about, n = "where the threshold is such that both rates are the same", len(genuine) + len(impostor)
    if min(len(genuine), len(impostor)) < LEAST:
        why = f"{len(genuine)} genuine and {len(impostor)} impostors: with fewer than {LEAST} of either no equal error "
        return (
            Measure(name="equal error rate", value=None, n=n, unit="%", better="lower", about=about),
            why + "rate can be told.",
        )
    value = equal_error_rate(genuine, impostor)
    low, high = equal_error_interval(genuine, impostor)
    return Measure(
        name="equal error rate", value=value, low=min(low, value), high=max(high, value), n=n, unit="%",
        better="lower", about=about, beside=(Beside("chance", 0.5),),
    ), ""  # fmt: skip


def _views(score: NDArray[Any], genuine: NDArray[np.bool_], kinds: NDArray[np.str_]) -> tuple[View, ...]:
    ends = np.unique(np.quantile(score, np.linspace(0, 1, POINTS)))
    r = rates(score[genuine], score[~genuine], ends)
    sizes = {FAR: int((~genuine).sum()), FRR: int(genuine.sum())}
    bands = {
        name: exact_interval(np.rint(each * sizes[name]).astype(np.int64), sizes[name])
        for name, each in ((FAR, r.far), (FRR, r.frr))
    }
    lines = tuple(
        Line(label=name, x=tuple(r.threshold.tolist()), y=tuple(each.tolist()),
             low=tuple(bands[name][0].tolist()), high=tuple(bands[name][1].tolist()))
        for name, each in ((FAR, r.far), (FRR, r.frr))
    )  # fmt: skip
    order = np.argsort(r.far, kind="stable")
    roc = Line(
        label="genuine let in", x=tuple(r.far[order].tolist()), y=tuple((1 - r.frr)[order].tolist()),
        low=tuple((1 - bands[FRR][1])[order].tolist()), high=tuple((1 - bands[FRR][0])[order].tolist()),
    )  # fmt: skip
    edges = np.linspace(score.min(), score.max() + 1e-9, BINS + 1)
    return (
        Curve(
            name="thresholds", title="Both errors against the threshold", x_label="threshold on the score",
            y_label="share", lines=lines, unit_y=True, marks=(Beside("the model's own", 0.0),),
            says="A higher threshold lets fewer impostors in and keeps more of the genuine out.",
        ),
        Curve(
            name="roc", title="Genuine let in against impostors let in", x_label="impostors let in",
            y_label="genuine let in", lines=(roc,), unit_y=True, diagonal=True,
        ),
        Histogram(
            name="scores", title="Scores by kind", x_label="score (above 0: let in)", edges=tuple(edges.tolist()),
            counts=tuple(
                (str(kind), tuple(np.histogram(score[kinds == kind], edges)[0].astype(float).tolist()))
                for kind in np.unique(kinds)
            ),
        ),
    )  # fmt: skip


SHELVED = WhoGetsIn
