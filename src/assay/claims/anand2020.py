"""Anand, Wang, Loog & van Gemert 2020: how human skill impacts network training, with programs in place of people."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from assay.claim import Claim, Evidence, Held, Published
from assay.claims._elsewhere import elsewhere
from assay.finding import Measure, bootstrap

if TYPE_CHECKING:
    from assay.methods.study.training import Rows
    from assay.run import Run

SOURCE = "Anand, Wang, Loog & van Gemert, 'Black Magic in Deep Learning', BMVC 2020"
GROUPS = ("expert", "medium", "novice")
PEOPLE = 10  # of each group
TRIES = 12
RANDOM = 192  # configurations, so sixteen who try at random
SEEDS = 5  # of a final configuration; print ten
EPOCHS = 20  # at most
HELD_OUT = 260
RESAMPLES = 1000
PRINTED_LEVENE = {("novice", "medium"): (8.40, 0.01), ("novice", "expert"): (14.338, 0.001),
                  ("medium", "expert"): (5.52, 0.029)}  # fmt: skip
PRINTED_SIZES = {"novice": 8, "medium": 12, "expert": 11}
CASES, SIZE = 2000, 12  # simulated comparisons, and of each group
Array = NDArray[np.float64]
BENCH = (
    "a network of 64 - 32 - 32 - 10 on scikit-learn's digits (1,040 to learn from, 260 for validation, 497 to test; "
    f"print: SqueezeNet on ten classes of ImageNet), {PEOPLE} programs of each kind with {TRIES} tries in place of 31 "
    f"people with 120 minutes, {RANDOM} random configurations (print 320), {SEEDS} seeds at the end (print 10)"
)
PROGRAMS = f"{BENCH}; `cannot tell` whatever is found, as print has people and other data"


class Tuned(NamedTuple):
    """One tuner: months that it is said to have, validation accuracies of its tries, test accuracies at the end."""

    kind: str
    months: int
    defaults: bool
    tried: tuple[float, ...]
    test: tuple[float, ...]

    @property
    def final(self) -> float:
        return float(np.mean(self.test))


class Bench:
    """The training task; what trains alike is trained once."""

    def __init__(self, seed: int, device: str) -> None:
        from assay.data.digits import load_digits
        from assay.methods.study.training import Rows
        from assay.subjects.digits_mlp import network

        def rows(part: str) -> Rows:
            x, y = load_digits()[part].take(np.arange(len(load_digits()[part])))
            return Rows(torch.as_tensor(x, device=device), torch.as_tensor(y, device=device).long())

        self.both, self.test, self.network, self.seed = rows("train"), rows("test"), network(), seed
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(self.both.y))).to(device)
        self.validation, self.learnt = (
            Rows(self.both.x[part], self.both.y[part]) for part in (order[:HELD_OUT], order[HELD_OUT:])
        )
        self.known: dict[object, float] = {}

    def tried(self, configuration: dict[str, int | float | str]) -> float:
        return self._accuracy(configuration, 1000 * self.seed, self.learnt, self.validation)

    def tested(self, configuration: dict[str, int | float | str]) -> tuple[float, ...]:
        return tuple(
            self._accuracy(configuration, 1000 * self.seed + k + 1, self.both, self.test) for k in range(SEEDS)
        )

    def _accuracy(self, configuration: dict[str, int | float | str], seed: int, learnt: Rows, judged: Rows) -> float:
        from assay.methods.study.hyperparameters import effective
        from assay.methods.study.training import train

        key = seed, tuple(effective(configuration).items())
        if key not in self.known:
            found = train(self.network, learnt, judged, configuration, seed=seed).accuracy
            assert found is not None  # nobody stops it
            self.known[key] = found
        return self.known[key]


Tried = tuple[dict[str, int | float | str], float]


@cache
def _bench(seed: int, device: str) -> Bench:
    return Bench(seed, device)


@cache
def _drawn(seed: int) -> tuple[dict[str, int | float | str], ...]:
    from assay.methods.study.tuners import random

    draws = random(np.random.default_rng([seed, 99]), EPOCHS)
    return tuple(next(draws).configuration for _ in range(RANDOM))


@cache  # all claims are about the same tuners
def _tuned(name: str, index: int, seed: int, device: str) -> Tuned:
    from assay.methods.study.hyperparameters import from_defaults
    from assay.methods.study.tuners import kind

    bench, (choose, months) = _bench(seed, device), kind(name)
    if months is None:
        tries = [(each, bench.tried(each)) for each in _drawn(seed)[index * TRIES : (index + 1) * TRIES]]
        return _ended(name, 0, tries, bench, False)
    rng = np.random.default_rng([seed, GROUPS.index(name), index])
    skill = int(rng.integers(months[0], months[1] + 1))
    tuner = choose(rng, EPOCHS)
    chosen, tries = next(tuner), []
    for _ in range(TRIES):
        tries.append((chosen.configuration, bench.tried(chosen.configuration)))
        chosen = tuner.send(tries[-1][1])
    return _ended(name, skill, tries, bench, from_defaults(tries[0][0]))


def _study(run: Run) -> tuple[tuple[Tuned, ...], tuple[float, ...]]:
    """Every tuner, and the validation accuracies of all random configurations."""
    wanted = [(name, i) for name in GROUPS for i in range(PEOPLE)] + [("random", i) for i in range(RANDOM // TRIES)]
    tuned = []
    with run.progress("simulated tuners", len(wanted)) as tick:
        for name, index in wanted:
            tuned.append(_tuned(name, index, run.seed, run.device))
            tick(1)
    bench = _bench(run.seed, run.device)
    return tuple(tuned), tuple(bench.tried(each) for each in _drawn(run.seed))


def _ended(kind: str, months: int, tries: list[Tried], bench: Bench, defaults: bool) -> Tuned:
    best = max(tries, key=lambda each: each[1])[0]  # the first of several
    return Tuned(kind, months, defaults, tuple(height for _, height in tries), bench.tested(best))


def _of(tuned: tuple[Tuned, ...], kind: str) -> list[Tuned]:
    return [each for each in tuned if each.kind == kind]


def _mean(name: str, values: list[float], seed: int, unit: str = "%") -> Measure:
    return Measure.mean(name, values, better="higher", seed=seed, unit=unit)


def _gap(name: str, high: list[float], low: list[float], seed: int) -> Measure:
    """The difference of two means of different tuners, each resampled."""
    a, b = np.array(high), np.array(low)
    rng = np.random.default_rng(seed)
    drawn = rng.choice(a, (RESAMPLES, len(a))).mean(1) - rng.choice(b, (RESAMPLES, len(b))).mean(1)
    ends = np.quantile(drawn, (0.025, 0.975))
    return Measure(
        name=name, value=float(a.mean() - b.mean()), low=float(ends[0]), high=float(ends[1]), better="higher",
        n=len(a) + len(b), unit="%",
    )  # fmt: skip


def _correlation(name: str, x: list[float], y: list[float], seed: int) -> tuple[Measure, float]:
    """Spearman's, with a bootstrap over tuners, and its p value."""
    from scipy.stats import rankdata

    from assay.methods.study.comparisons import spearman

    found, a, b = spearman(x, y), np.array(x), np.array(y)

    def of_counts(counts: Array) -> Array:  # draws n -> draws
        out = []
        for row in counts.astype(int):
            p, q = rankdata(np.repeat(a, row)), rankdata(np.repeat(b, row))
            size = p.std() * q.std()
            out.append(((p - p.mean()) * (q - q.mean())).mean() / size if size else 0.0)
        return np.array(out)

    low, high = bootstrap(of_counts, len(a), seed=seed, draws=RESAMPLES)
    return Measure(name=name, value=found.effect, low=low, high=high, better="neither", n=len(a)), found.p or 1.0


def _held(*gaps: Measure) -> Held:
    if all((gap.low or 0.0) > 0 for gap in gaps):
        return "holds"
    return "fails" if any((gap.high or 0.0) < 0 for gap in gaps) else "cannot tell"


def _points(m: Measure) -> str:
    return f"{100 * (m.value or 0):+.1f} points ({100 * (m.low or 0):+.1f} to {100 * (m.high or 0):+.1f})"


def experience(run: Run) -> Evidence:
    tuned, _ = _study(run)
    people = [each for each in tuned if each.kind in GROUPS]
    found, p = _correlation(
        "Spearman of months and test accuracy", [t.months for t in people], [t.final for t in people], run.seed
    )
    finals = [_mean(f"final test accuracy, {name}", [t.final for t in _of(tuned, name)], run.seed) for name in GROUPS]
    whole = _mean("final test accuracy of all", [t.final for t in people], run.seed)
    return elsewhere(
        _held(found),
        f"Spearman's correlation of simulated months and test accuracy is {found.value:.2f} ({found.low:.2f} to "
        f"{found.high:.2f}, p = {p:.2g}).",
        (found, whole, *finals),
    )


def fewer_tries(run: Run) -> Evidence:
    from assay.methods.study.effort import tries_to_reach

    tuned, _ = _study(run)
    measures, gaps, told = [], [], []
    for threshold in (0.25, 0.5):
        took = {}
        for name in GROUPS:
            found = [tries_to_reach(t.tried, threshold) for t in _of(tuned, name)]
            never = sum(n is None for n in found)
            # Who never does has taken one more than all: the least that it can have been.
            took[name] = [float(n or TRIES + 1) for n in found]
            measures.append(
                Measure.mean(
                    f"tries to reach {threshold:.0%}, {name}", took[name], better="lower", seed=run.seed,
                    about=f"{never} of {len(found)} never did, and count as {TRIES + 1}",
                )
            )  # fmt: skip
            told.append(f"{threshold:.0%}, {name}: {np.mean(took[name]):.1f} ({never} never)")
        gaps += [_gap("", took["novice"], took[name], run.seed) for name in ("medium", "expert")]
    return elsewhere(_held(*gaps), f"Mean tries to reach {'; '.join(told)}.", tuple(measures))


def defaults_above_half(run: Run) -> Evidence:
    tuned, _ = _study(run)
    began = [t for t in tuned if t.defaults]
    above = [t.final > 0.5 for t in began]
    share = Measure.proportion("began with defaults and ended above 50 %", above, better="higher")
    held: Held = "holds" if all(above) else "fails"
    return elsewhere(
        held,
        f"{sum(above)} of {len(began)} programs that began with all defaults ended above 50 %; the lowest at "
        f"{100 * min(t.final for t in began):.1f} %.",
        (share,),
    )


def experts_differ(run: Run) -> Evidence:
    tuned, _ = _study(run)
    from assay.methods.study.person import person_share

    finals = [t.final for t in _of(tuned, "expert")]
    between = float(max(finals) - min(finals))
    share = person_share([t.test for t in _of(tuned, "expert")])
    measure = Measure(name="best less worst expert", value=between, better="neither", n=len(finals), unit="%")
    icc = Measure(
        name="share of an expert's result that is the expert's", value=share.value, low=share.low, high=share.high,
        better="neither", n=len(finals), unit="%",
    )  # fmt: skip
    return elsewhere(
        "holds" if between >= 0.05 else "fails",
        f"Test accuracies of {len(finals)} expert-like programs lie {100 * between:.1f} points apart.",
        (measure, icc),
    )


def random_settings(run: Run) -> Evidence:
    _, pool = _study(run)
    mean = _mean("validation accuracy of random configurations", list(pool), run.seed)
    values = np.array(pool)

    def spread(counts: Array) -> Array:  # draws n -> draws
        first, second = counts @ values / len(values), counts @ values**2 / len(values)
        found: Array = np.sqrt(np.maximum(second - first**2, 0.0))
        return found

    low, high = bootstrap(spread, len(values), seed=run.seed)
    sd = Measure(
        name="standard deviation of random configurations", value=float(values.std(ddof=1)), low=low, high=high,
        better="neither", n=len(values), unit="%",
    )  # fmt: skip
    held: Held = "holds" if low > 0.1 else "fails" if high < 0.1 else "cannot tell"
    return elsewhere(
        held,
        f"{len(pool)} random configurations reach {100 * values.mean():.1f} ± {100 * values.std(ddof=1):.1f} % "
        "validation accuracy; ample is taken as a standard deviation above 10 points.",
        (mean, sd),
    )


def groups_differ_in_spread(run: Run) -> Evidence:
    from assay.methods.study.comparisons import bonferroni, holm, p_of_levene

    sizes = {pair: tuple(PRINTED_SIZES[name] for name in pair) for pair in PRINTED_LEVENE}
    p = [p_of_levene(w, sizes[pair]) for pair, (w, _) in PRINTED_LEVENE.items()]
    by_holm, by_bonferroni = ([each or 0.0 for each in correct(p)] for correct in (holm, bonferroni))
    names = [" and ".join(pair) for pair in PRINTED_LEVENE]
    agree = all(abs(found - said) < 0.0006 for found, (_, said) in zip(p, PRINTED_LEVENE.values(), strict=True))
    ordered = p[1] < p[0] < p[2]
    measures = [
        Measure(name=f"p of Levene, {name}{how}", value=value, better="neither", n=sum(sizes[pair]))
        for how, some in (("", p), (", Holm", by_holm), (", Bonferroni", by_bonferroni))
        for name, pair, value in zip(names, PRINTED_LEVENE, some, strict=True)
    ]
    held: Held = "holds" if agree and ordered and max(by_holm) < 0.05 else "fails"
    return Evidence(
        verdict=held,
        says=f"The printed statistics belong to p = {', '.join(f'{each:.4f}' for each in p)}, as printed. Of three "
        f"tests at once they are {', '.join(f'{each:.3f}' for each in by_holm)} by Holm, all below 0.05, and "
        f"{', '.join(f'{each:.3f}' for each in by_bonferroni)} by Bonferroni, of which that of medium and expert is "
        "not. It is a test of spread: that experts score higher does not follow from it.",
        measures=tuple(measures),
    )


def levene_is_not_of_level(run: Run) -> Evidence:
    """How often each test speaks at 0.05 where groups differ in level alone, in spread alone, in neither."""
    from assay.methods.study.comparisons import levene, mann_whitney

    rng = np.random.default_rng(run.seed)
    found = {}
    cases = {"level alone": (1.5, 1.0), "spread alone": (0.0, 4.0), "nothing": (0.0, 1.0)}
    with run.progress("simulated comparisons", len(cases) * CASES) as tick:
        for name, (shift, scale) in cases.items():
            first, second = rng.normal(size=(CASES, SIZE)), shift + scale * rng.normal(size=(CASES, SIZE))
            for test in (levene, mann_whitney):
                spoke = [(test(a, b).p or 1.0) < 0.05 for a, b in zip(first, second, strict=True)]
                label = f"{'Levene' if test is levene else 'Mann-Whitney'} speaks where groups differ in {name}"
                found[test.__name__, name] = Measure.proportion(label, spoke, better="neither")
            tick(CASES)

    def share(test: str, name: str) -> float:
        return found[test, name].value or 0.0

    wrong = found["mann_whitney", "spread alone"].high or 1.0
    blind = (found["levene", "level alone"].high or 1.0) < 0.1 and wrong < 0.2
    sees = all((found[key].low or 0.0) > 0.8 for key in (("mann_whitney", "level alone"), ("levene", "spread alone")))
    held: Held = "holds" if blind and sees else "fails"
    return Evidence(
        verdict=held,
        says=f"Of {CASES} comparisons of two groups of {SIZE}, 1.5 standard deviations apart, Levene's test speaks in "
        f"{100 * share('levene', 'level alone'):.1f} % and Mann and Whitney's in "
        f"{100 * share('mann_whitney', 'level alone'):.1f} %; with four times the spread and the same middle in "
        f"{100 * share('levene', 'spread alone'):.1f} and {100 * share('mann_whitney', 'spread alone'):.1f} %.",
        measures=tuple(found.values()),
    )


def expert_over_random(run: Run) -> Evidence:
    from assay.methods.study.effort import expected_best

    tuned, pool = _study(run)
    expected = expected_best(pool, TRIES)
    ahead = {
        name: _mean(
            f"best of {TRIES} tries less that of as many random ones, {name}",
            [max(t.tried) - expected for t in _of(tuned, name)],
            run.seed,
        )
        for name in GROUPS
    }
    at_random = [t.final for t in _of(tuned, "random")]
    tested = {
        name: _gap(f"test accuracy less that of random tuners, {name}", [t.final for t in _of(tuned, name)], at_random,
                   run.seed)
        for name in GROUPS
    }  # fmt: skip
    best = Measure(
        name=f"expected best of {TRIES} random tries", value=expected, better="higher", n=len(pool), unit="%"
    )
    return Evidence(
        verdict=_held(ahead["expert"], tested["expert"]),
        says=f"After {TRIES} tries expert-like programs are {_points(ahead['expert'])} of validation accuracy ahead of "
        f"as many random tries, and {_points(tested['expert'])} of test accuracy over {SEEDS} seeds; those with some "
        f"experience {_points(tested['medium'])}, novice-like ones {_points(tested['novice'])}.",
        measures=(best, *ahead.values(), *tested.values()),
    )


SHELVED = (
    Claim(
        name="expert-over-random",
        source=SOURCE,
        says="A tuner that begins with all defaults and turns learning rate and epochs one at a time ends above random "
        "search at equal tries.",
        published=(),
        here=f"{BENCH}; holds where the intervals over tuners of both differences, in the best validation accuracy and "
        "in the final test accuracy, lie above 0",
        minutes=6,
        test=expert_over_random,
        ours=True,
    ),
    Claim(
        name="levene-is-not-of-level",
        source=SOURCE,
        says="Levene's test cannot show that one group scores higher than another: it compares spread, not level.",
        published=(),
        here=f"{CASES} pairs of normal samples of {SIZE}; holds where Levene's test speaks below one time in ten of "
        "level and above eight in ten of spread, and Mann and Whitney's the other way round (below two in ten)",
        minutes=0.3,
        test=levene_is_not_of_level,
        ours=True,
    ),
    Claim(
        name="groups-differ",
        source=SOURCE,
        says="By Levene's test all three groups differ from each other (p < 0.05), medium and expert the least, novice "
        "and expert the most.",
        published=tuple(
            Published(f"p of Levene, {' and '.join(pair)}", p, "table 7.2") for pair, (_, p) in PRINTED_LEVENE.items()
        ),
        here="the printed statistics and sizes of groups; holds where they give the printed p values in the printed "
        "order and all are below 0.05 by Holm's correction for three tests",
        minutes=0.01,
        test=groups_differ_in_spread,
    ),
    Claim(
        name="experience",
        source=SOURCE,
        says="Final accuracy goes up with months of experience.",
        published=(
            Published("Spearman of months and test accuracy", 0.60, "sec. 7.3.1"),
            Published("final test accuracy of all", 0.559, "sec. 7.3", "%"),
        ),
        here=PROGRAMS,
        minutes=6,
        test=experience,
    ),
    Claim(
        name="fewer-tries",
        source=SOURCE,
        says="Those with more experience reach an accuracy of 25 and 50 % in fewer tries.",
        published=(),
        here=PROGRAMS,
        minutes=6,
        test=fewer_tries,
    ),
    Claim(
        name="defaults-above-half",
        source=SOURCE,
        says="Everyone who starts with all defaults ends above 50 %.",
        published=(Published("began with defaults and ended above 50 %", 1.0, "sec. 7.3.2", "%"),),
        here=PROGRAMS,
        minutes=6,
        test=defaults_above_half,
    ),
    Claim(
        name="experts-differ",
        source=SOURCE,
        says="Even among experts accuracy differs by 5 points.",
        published=(Published("best less worst expert", 0.05, "sec. 7.4.2", "%"),),
        here=PROGRAMS,
        minutes=6,
        test=experts_differ,
    ),
    Claim(
        name="random-settings",
        source=SOURCE,
        says="Hyper-parameters are responsible for ample variance: random settings reach 41.8 ± 24.3 %.",
        published=(
            Published("validation accuracy of random configurations", 0.418, "sec. 7.2.1", "%"),
            Published("standard deviation of random configurations", 0.243, "sec. 7.2.1", "%"),
        ),
        here=PROGRAMS,
        minutes=6,
        test=random_settings,
    ),
)
