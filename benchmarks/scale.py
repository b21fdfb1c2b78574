"""Audits at scale: in a time that was given, of many rows, on many machines.

    python benchmarks/scale.py anytime [--seeds 0 200] [--spread 0.1]    audits of known truth, on a simulated clock
    python benchmarks/scale.py memory [--rows 10000000] [--budget 5m]    a table of ten million rows: peak memory
    python benchmarks/scale.py ray [--inputs 200] [--turns 3]            one worker, two, eight machines, a thousand

`anytime`: an audit asks every question of the shelf that has an effort of its own, of a model of a random speed and a
test set of a random size. The truth behind a question lies around its limit, normally with --spread; every fifth has a
mean of shares for its headline, the others a proportion. What a question takes is what the table of efforts says, times
a factor of its own that nobody knows before. The planning, the intervals and the verdicts are those of the audit itself
(`jobs/audit/rounds.py`); only the model and the clock are not. Beside it each of the three named budgets, which ask
once, in the order of the shelf, and are stopped when the same time is over. Then what a time limit settles in exactly
the time that a named budget takes to its end. Last, audits in which every truth is the limit itself: whatever they
settle is settled by chance, and that is the worst that can be. `--seeds` is the first of them, and how many: one for
each audit, and of the last kind no more than CHANCES. It ends with 1 where a limit was missed.

`memory`: `assay audit` of an .npz of so many rows; what its processes held at most, together.

`ray`: a CPU-bound audit of the bundled subject in one process with one thread, then on Ray with one worker of one
thread and with two, in turns; all must find the same. The cluster and its processes are started before the clock is.
Then a model that takes --latency for each batch, on one simulated machine and on eight (`ray.cluster_utils`). Last,
from what was measured of single tasks, what as many machines as one likes would do (`projected`).
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from clock import at_least, at_most
from numpy.typing import NDArray

from assay import shelf
from assay.audit import Audit, Judged, Question, judgements
from assay.finding import Finding, Measure, Table
from assay.jobs.audit import audit, rounds
from assay.jobs.audit.effort import EFFORTS, inputs_of, seconds_of
from assay.jobs.audit.rounds import Rounds, looked, timed
from assay.probe import Answer
from assay.run import BUDGETS, Budget, Drawn
from assay.standard import Standard, Standards

PACES = (1e-5, 1e-2)  # seconds an input
SIZES = (1_000, 50_000)  # of a test set
MISJUDGED = 0.4  # of the logarithm of what a question takes: the table is an estimate
TIMES = ("30s", "5m", "30m")
MEANS = 5  # every so many questions has a mean for its headline
CHANCES = 25  # audits in which every truth is the limit itself


@dataclass
class Simulated:
    """A model of which everything is known, and a clock."""

    seed: int
    spread: float
    now: float = 0.0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.pace = float(np.exp(rng.uniform(*np.log(PACES))))
        self.there = int(np.exp(rng.uniform(*np.log(SIZES))))
        probes = [shelf.load("probes", name) for name in EFFORTS]
        self.names = [probe.name() for probe in probes]
        self.quick = [probe.in_quick for probe in probes]
        limits = rng.uniform(0.1, 0.9, len(probes))
        self.truth = np.clip(limits + rng.normal(0, self.spread, len(probes)), 0.005, 0.995)
        self.factor = np.exp(rng.normal(0, MISJUDGED, len(probes)))
        self.limits = [
            (Standard(at_least=float(limit)),) if probe.standards else ()
            for probe, limit in zip(probes, limits, strict=True)
        ]

    def question(self, place: int) -> Question:
        return Question(probe=self.names[place], question="?", source="", settings={}, own=self.limits[place])

    def seconds(self, place: int, budget: Budget) -> float:
        return float(self.factor[place]) * seconds_of(self.names[place], budget, self.pace, self.there)

    def values(self, place: int, n: int) -> NDArray[np.float64]:
        """What the first n inputs answer: right or wrong, or a share of 0 to 1 whose law is skewed."""
        rng, truth = np.random.default_rng((self.seed, place)), self.truth[place]
        if place % MEANS:
            return (rng.random(self.there)[:n] < truth).astype(float)
        return rng.beta(2 * truth, 2 * (1 - truth), self.there)[:n]

    def answer(self, place: int, n: int, seconds: float) -> Answer:
        values = self.values(place, n)
        if place % MEANS:
            measure = Measure.proportion("share", values > 0.5, better="higher")
        else:  # the normal interval stands for the bootstrap's, which would take the time of this bench
            mean, half = float(values.mean()), 1.96 * float(values.std()) / math.sqrt(n)
            ends = max(0.0, mean - half), min(1.0, mean + half)
            measure = Measure(
                name="share", value=mean, low=ends[0], high=ends[1], n=n, unit="%", better="higher", column="share"
            )
        samples = Table("test", {"index": np.arange(n), "share": values})
        return Answer(
            probe=self.names[place], question="?", source="", settings={}, key="k", status="asked",
            finding=Finding(says="so", measures=(measure,), samples=samples), seconds=seconds,
        )  # fmt: skip

    def judged(self, place: int, answer: Answer) -> Judged:
        return Judged(answer=answer, judgements=judgements(answer, self.limits[place], ()))

    def wrong(self, place: int, verdict: str) -> bool:
        """Whether this verdict is not what the truth says."""
        limit = self.limits[place][0].limit if self.limits[place] else 0.0
        return verdict == ("fail" if self.truth[place] >= limit else "pass")


def fixed(model: Simulated, budget: Budget, seconds: float = math.inf) -> tuple[float, int]:
    """The seconds that a named budget takes, of these, and how many verdicts it settles."""
    spent, settled, writing = 0.0, 0, rounds.WRITING[0]
    for place, name in enumerate(model.names):
        if budget.name == "quick" and not model.quick[place]:
            continue
        took, n = model.seconds(place, budget), inputs_of(name, budget, model.there)
        if spent + took + writing + rounds.WRITING[1] > seconds:
            break
        spent, writing = spent + took, writing + rounds.WRITING[1]
        if model.limits[place]:
            settled += model.judged(place, model.answer(place, n, took)).verdict in ("pass", "fail")
    return spent + writing, settled


@dataclass
class Told:
    """What came of an audit with a time limit."""

    settled: int
    asked: set[int]
    ever: set[int]
    """Questions whose verdicts were settled at any look at all."""
    ever_wrong: int
    """How many of those were wrong at any look at all."""
    verdicts: int
    history: list[tuple[float, int, int]]
    """At each moment: the share of the time, verdicts settled, and how many of them are wrong."""
    over: float
    """Seconds beyond the time."""


def in_time(model: Simulated, seconds: float) -> Told:
    """The same questions in this time."""
    text = f"{seconds:.3f}s"
    budget = timed(text)
    assert budget is not None
    places = range(len(model.names))
    chosen = Rounds(
        budget, [model.question(place) for place in places], [True] * len(places), Standards(), pace=model.pace,
        there=model.there, clock=lambda: model.now,
    )  # fmt: skip
    rows: dict[int, Judged] = {}
    ever: set[int] = set()
    ever_wrong: set[int] = set()
    history = []
    while (turn := chosen.next(rows)) is not None:
        place = turn.place
        about = model.seconds(place, turn.budget)
        model.now += min(about, turn.most)
        if about > turn.most:
            chosen.leave(place)
            continue
        effort = EFFORTS[model.names[place]]
        wanted = max(1, round(effort.share * turn.budget.few(turn.budget.steps))) if effort.of == "steps" else None
        assert turn.budget.inputs is not None
        n = min(turn.budget.inputs, wanted or model.there, model.there)
        before = rows[place].answer.looks if place in rows else ()
        drawn = Drawn(turn.budget.inputs, wanted, model.there).grows
        answer = looked(model.answer(place, n, about), before, turn.budget, drawn, model.now, chosen.most)
        rows[place] = model.judged(place, answer)
        if rows[place].verdict in ("pass", "fail"):
            ever.add(place)
        if model.wrong(place, rows[place].verdict):
            ever_wrong.add(place)
        told = [(p, row.verdict) for p, row in rows.items() if row.verdict in ("pass", "fail")]
        history.append((model.now / seconds, len(told), sum(model.wrong(p, verdict) for p, verdict in told)))
    model.now += chosen.slow * (rounds.WRITING[0] + rounds.WRITING[1] * chosen.unwritten)
    return Told(
        settled=history[-1][1] if history else 0,
        asked=set(rows),
        ever=ever,
        ever_wrong=len(ever_wrong),
        verdicts=sum(1 for place in places if model.limits[place]),
        history=history,
        over=model.now - seconds,
    )


def anytime(seeds: range, spread: float) -> bool:
    """Print the tables and say whether all limits are kept."""
    rounds.contention = lambda spin=0.02: 1.0  # the clock is simulated
    kept = []
    moments = np.linspace(0.05, 1.0, 20)
    for text in TIMES:
        seconds = rounds.seconds_named(text) or 0.0
        named = dict.fromkeys(BUDGETS, 0)
        ours, ever, ever_wrong, verdicts, over, settled, wrong = 0, 0, 0, 0, -math.inf, np.zeros(20), np.zeros(20)
        for seed in seeds:
            for name, budget in BUDGETS.items():
                named[name] += fixed(Simulated(seed, spread), budget, seconds)[1]
            told = in_time(Simulated(seed, spread), seconds)
            ours, verdicts = ours + told.settled, verdicts + told.verdicts
            ever, ever_wrong = ever + len(told.ever), ever_wrong + told.ever_wrong
            over = max(over, told.over)
            for i, moment in enumerate(moments):
                last = max((h for h in told.history if h[0] <= moment), default=(0.0, 0, 0))
                settled[i], wrong[i] = settled[i] + last[1], wrong[i] + last[2]
        shares = ", ".join(f"{name} {count / verdicts:.0%}" for name, count in named.items())
        print(
            f"{text}: of {verdicts:,} verdicts in {len(seeds)} audits settled: {shares}; by time {ours / verdicts:.0%}"
        )
        worst = float((wrong / np.maximum(settled, 1)).max())
        best = max(named.values())
        print(f"  {text}: {ever:,} settled at any look at all, {ever_wrong:,} of them wrong at any")
        kept += [
            at_most(f"  {text}: wrong of those settled, at the worst of 20 moments to stop", 100 * worst, 5, "%"),
            at_most(f"  {text}: wrong of those settled, at any look at all", 100 * ever_wrong / max(ever, 1), 5, "%"),
            at_least(f"  {text}: settled, times the best of the named budgets", ours / max(best, 1), 1.5, "x"),
            at_most(f"  {text}: beyond the time, at the worst", over, 3, "s"),
        ]
    for name, budget in BUDGETS.items():
        ours = theirs = 0
        for seed in seeds:
            took, once = fixed(Simulated(seed, spread), budget)
            ours, theirs = ours + in_time(Simulated(seed, spread), took).settled, theirs + once
        print(f"in the time that {name} takes to its end: {ours / theirs:.2f} times what it settles")
    return by_chance(seeds[:CHANCES], TIMES[-1]) and all(kept)


def by_chance(seeds: range, text: str) -> bool:
    """Whether at most 5 % of verdicts are settled at any look where every truth is the limit itself."""
    rounds.contention = lambda spin=0.02: 1.0
    asked, settled = {"means": 0, "proportions": 0}, {"means": 0, "proportions": 0}
    for seed in seeds:
        model = Simulated(seed, spread=0.0)
        told = in_time(model, rounds.seconds_named(text) or 0.0)
        for place in sorted(told.asked):
            kind = "proportions" if place % MEANS else "means"
            asked[kind] += bool(model.limits[place])
            settled[kind] += place in told.ever
    kept = [
        at_most(f"{text}: settled of {n:,} {kind} whose truth is the limit", 100 * settled[kind] / max(n, 1), 5, "%")
        for kind, n in asked.items()
    ]
    return all(kept)


MODEL = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 2))
    with torch.no_grad():
        net[0].weight[0] = 1.0
        net[2].weight[:] = torch.tensor([[-1.0], [1.0]]) * (torch.arange(32) == 0)
        net[2].bias[:] = torch.tensor([1.0, -1.0]) * FEATURES / 2
    return net.eval()
"""
FEATURES = 8
LIMIT = 2_000  # megabytes


def made(folder: Path, rows: int) -> None:
    """A table of numbers between 0 and 1, whose label is whether their sum is above its middle, nine times in ten."""
    rng = np.random.default_rng(0)
    x = rng.random((rows, FEATURES), dtype=np.float32)
    y = (x.sum(1) > FEATURES / 2) ^ (rng.random(rows, dtype=np.float32) < 0.1)
    np.savez(folder / "rows.npz", x=x, y=y.astype(np.int64))
    (folder / "net.py").write_text(MODEL.replace("FEATURES", str(FEATURES)))


def held(of: int) -> int:
    """Bytes of main memory that a process and all that it started hold, each by its own count."""
    parents, sizes = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            told = (path / "stat").read_text().rpartition(")")[2].split()
            parents[int(path.name)], sizes[int(path.name)] = int(told[1]), int(told[21]) * resource.getpagesize()
        except (OSError, IndexError):
            continue  # it is gone
    total = 0
    for each in sizes:
        above = each
        while above and above != of:
            above = parents.get(above, 0)
        total += sizes[each] if above == of else 0
    return total


def memory(rows: int, budget: str) -> bool:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with multiprocessing.get_context("fork").Pool(1) as pool:  # what it takes to make them is given back
            pool.apply(made, (folder, rows))
        words = [sys.executable, "-m", "assay", "audit", "net.py:model", "--data", "rows.npz", "--budget", budget]
        begun, peak = time.monotonic(), 0
        with subprocess.Popen(words, cwd=folder) as audit:
            while audit.poll() is None:
                peak = max(peak, held(audit.pid))
                time.sleep(0.1)
        took = time.monotonic() - begun
        size = rows * (4 * FEATURES + 8) / 1e6
        print(f"{rows:,} rows, {size:,.0f} MB of them; ended with {audit.returncode} after {took:.1f} s")
        small = at_most("  memory of all its processes together", peak / 1e6, LIMIT, "MB")
        over = took - (rounds.seconds_named(budget) or 0.0)
        return at_most("  beyond the time", over, max(3.0, 0.05 * (took - over)), "s") and small


AUDITED = (
    "worst-case-accuracy", "distance-to-failure", "everyday-change", "is-the-number-real", "does-the-map-survive",
    "is-the-map-faithful", "how-steep", "one-change-for-all",
)  # fmt: skip
NODES = 8
SHARDS = 160  # of the model of fixed latency
LARGER = {"work": 24 * 3600.0, "shard": 2.0, "questions": 60, "maps": 400, "bytes": 400e6}
"""An audit that takes one core a day, for the projection."""


@dataclass(frozen=True)
class Constants:
    """What Ray takes, as measured here, in seconds."""

    task: float
    """Of whoever sends a task and takes what came of it."""
    pack: float
    """To pack the work of one map, its weights by content, and open it once."""
    rate: float
    """Bytes a second from one machine to another, as the object store takes and gives them."""


def projected(
    nodes: int, by: Constants, *, work: float, shard: float, questions: int, maps: int, bytes: float
) -> float:
    """The seconds that an audit takes on so many machines of one worker each.

        T(n) = B/r log2(n + 1) + (M / q) p + max( ceil(S / n) s,  S t / q ),      S = W/s,  q = min(Q, n)

    Weights and data (B bytes) go from machine to machine, twice as many having them each time. Q questions are asked
    side by side, each of which packs its own maps (p, of M in all) and sends its own shards (t each, S in all); a shard
    (s seconds) is not cut further. Every question is taken to be as long as any other.
    """
    shards, side_by_side = math.ceil(work / shard), min(questions, nodes)
    sent = bytes / by.rate * math.log2(nodes + 1)
    packed = maps / side_by_side * by.pack
    return sent + packed + max(math.ceil(shards / nodes) * shard, shards * by.task / side_by_side)


def told(audit: Audit) -> list[object]:
    return [(r.answer.probe, r.answer.finding and r.answer.finding.measures, r.answer.why) for r in audit.rows]


def on_ray(workers: int, inputs: int, turns: int) -> tuple[list[float], list[object]]:
    """The seconds of an audit on so many workers, 0 for none: this process. Started anew for each number of them."""
    import torch

    torch.set_num_threads(1)
    from assay.engine.local import ThisProcess
    from assay.subjects import Source, open_subject

    subject, engine = open_subject(Source("fashion-cnn")), ThisProcess()
    if workers:
        from assay.engine.ray import Ray

        engine = Ray(workers=workers)  # type: ignore[assignment]
        for _ in range(3):  # until every worker has loaded what it needs
            for _, done in engine.each(lambda n: time.sleep(0.2), range(4 * workers)):
                done()
    spent, found = [], []
    for _ in range(turns):
        begun = time.perf_counter()
        found = told(audit(subject, probes=AUDITED, inputs=inputs, engine=engine))
        spent.append(time.perf_counter() - begun)
    return spent, found


def apart(task: Callable[..., object], *given: object) -> Any:
    """In a process of its own, so that no cluster is there from before."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(task, given)


def constants() -> Constants:
    """Of tasks that do nothing, of work with a ResNet-18's weights, and of an array that is put and taken."""
    import ray
    import torch
    from torch import nn

    from assay.engine import ray as engine
    from assay.nn.resnet import ResNet18

    one, job = engine.Ray(workers=1), engine._packed(str)
    ray.get([one._task(job, n) for n in range(20)])
    count = 500
    begun = time.perf_counter()
    ray.get([one._task(job, n) for n in range(count)])
    task = (time.perf_counter() - begun) / count
    net: nn.Module = ResNet18(width=64)
    engine._packed(net)
    begun = time.perf_counter()
    engine._unpacked(ray.get(engine._packed(net).ref))
    pack = time.perf_counter() - begun
    size = 200e6
    begun = time.perf_counter()
    torch.from_numpy(ray.get(ray.put(np.ones(int(size), np.uint8))).copy())
    rate = size / (time.perf_counter() - begun)
    return Constants(task, pack, rate)


def with_latency(nodes: int, seconds: float) -> float:
    """How long the answers of a model take that needs so many seconds for a batch, on as many machines."""
    import ray
    import torch
    from ray.cluster_utils import Cluster
    from torch import nn

    from assay.engine.ray import Ray
    from assay.run import Run
    from assay.subject import Subject

    class Late(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(seconds)
            return x[:, :2]

    little = {"object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **little})
    for _ in range(nodes - 1):
        cluster.add_node(num_cpus=1, **little)
    ray.init(address=cluster.address, log_to_driver=False)
    engine = Ray(batch=4)
    for _, done in engine.each(lambda n: time.sleep(1.0), range(4 * nodes)):
        done()
    x = np.random.default_rng(0).random((4 * SHARDS, 8)).astype(np.float32)
    subject = Subject.classifier(Late(), (x, (x[:, 0] < x[:, 1]).astype(np.int64)), name="late")
    run = Run(engine=engine)
    run.predict(subject, "test", np.arange(8 * nodes), "the way there")
    begun = time.perf_counter()
    run.predict(subject, "test", np.arange(len(x)), "answers")
    spent = time.perf_counter() - begun
    ray.shutdown()
    cluster.shutdown()
    return spent


def ray_bench(inputs: int, turns: int, latency: float) -> bool:
    taken: dict[int, list[float]] = {0: [], 1: [], 2: []}
    found: dict[int, object] = {}
    for _ in range(turns):
        for workers in taken:
            spent, found[workers] = apart(on_ray, workers, inputs, 1)
            taken[workers] += spent
    kept = [found[0] == found[1] == found[2]]
    print("the same found:", kept[0])
    here, one, two = (statistics.median(taken[workers]) for workers in taken)
    print(f"{len(AUDITED)} questions, {inputs} inputs: {here:.1f} s in one process, on Ray {one:.1f} s and {two:.1f} s")
    kept.append(at_most("  one worker, over one process", 100 * (one / here - 1), 5, "%"))
    kept.append(at_least("  two workers, times as fast as one", one / two, 1.7, "x"))
    single, eight = apart(with_latency, 1, latency), apart(with_latency, NODES, latency)
    print(
        f"{SHARDS} batches of a model that takes {latency:g} s: {single:.1f} s on one machine, {eight:.1f} s on {NODES}"
    )
    kept.append(at_least(f"  {NODES} machines, times as fast as one", single / eight, 7, "x"))
    by = apart(constants)
    print(f"a task {1e3 * by.task:.2f} ms, a map {1e3 * by.pack:.0f} ms, {by.rate / 1e6:,.0f} MB/s")
    first, before = projected(1, by, **LARGER), math.inf
    print(f"{'machines':>10} {'seconds':>12} {'times':>8} {'used':>6}    (projected: {LARGER})")
    for nodes in (1, 2, 8, 64, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 64000):
        seconds = projected(nodes, by, **LARGER)
        print(f"{nodes:10,} {seconds:12,.1f} {first / seconds:8,.0f} {first / seconds / nodes:6.0%}")
        if seconds > 0.9 * before:
            print(f"{'':10} from here on twice the machines save less than a tenth")
            break
        before = seconds
    return all(kept)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["anytime", "memory", "ray"])
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 200), metavar=("FIRST", "COUNT"))
    parser.add_argument("--spread", type=float, default=0.1)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--inputs", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--latency", type=float, default=0.1)
    options = parser.parse_args(words)
    if options.what == "anytime":
        first, count = options.seeds
        kept = anytime(range(first, first + count), options.spread)
    elif options.what == "ray":
        kept = ray_bench(options.inputs, options.turns, options.latency)
    else:
        kept = memory(options.rows, options.budget)
    sys.exit(not kept)


if __name__ == "__main__":
    main()
