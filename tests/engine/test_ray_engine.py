"""The engine of many machines: the numbers of one process, whoever dies, and one line for what cannot be.

One small cluster serves all tests that need one. Those that start several machines, or wait for processes to be started
again and again, run where ASSAY_CLUSTER is set.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import assay
from assay.data.arrays import Arrays
from assay.data.held_out import Part
from assay.engine.local import ThisProcess
from assay.engine.opening import engine_named, refuse_confined
from assay.engine.turned import Order, order_now, turned
from assay.errors import AssayError, MissingExtra
from assay.finding import Finding, Measure
from assay.nn.tally import counted
from assay.probe import Probe
from assay.run import OutOfTime, Run, Shard, until

if TYPE_CHECKING:
    from assay.engine.ray import Ray
    from assay.subject import Subject

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
heavy = pytest.mark.skipif("ASSAY_CLUSTER" not in os.environ, reason="starts many processes; ASSAY_CLUSTER=1 runs it")
ASKED = ["accuracy", "worst-case-accuracy", "confidence"]
STARTED = {"include_dashboard": False, "no_monitor": True, "object_store_memory": 100 * 2**20}


@pytest.fixture(scope="module")
def two_workers() -> Iterator[None]:
    import ray
    from ray.cluster_utils import Cluster

    try:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **STARTED})
    except Exception as e:  # it waits for 30 s and no longer
        pytest.skip(f"Ray does not start on a machine that is this busy: {e}")
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def engine(two_workers: None) -> Ray:
    from assay.engine.ray import Ray

    return Ray(batch=50)


class Noisy(nn.Module):
    """Draws in eval mode, and has two layers with one weight that is large enough to be sent by itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.one, self.other = model, nn.Linear(200, 200), nn.Linear(200, 200)
        self.other.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(x)
        return logits + torch.randn_like(logits)


@dataclass(frozen=True)
class Ends(Probe):
    """Does an answer survive the process that it was asked in?"""

    source: ClassVar[str] = "none"
    marker: str = ""

    @classmethod
    def name(cls) -> str:
        return "ends"

    def ask(self, subject: Subject, run: Run) -> Finding:
        if not Path(self.marker).exists():
            Path(self.marker).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        right = run.predict(subject, "test", run.pick(subject.data["test"]), "answers")[0].argmax(1) > 4
        return Finding(says="so", measures=(Measure.proportion("high", right, better="higher"),))


def ends(folder: Path, there: bool) -> Ends:
    marker = folder / "ended"
    if there:
        marker.touch()
    return Ends(marker=str(marker))


def told(audit: assay.Audit) -> dict[str, Any]:
    """All that an audit found, but for when and how long."""
    found = {}
    for row in audit.rows:
        finding, spent = row.answer.finding, row.answer.spent
        assert finding is not None, row.answer.why
        assert spent is not None
        columns = {} if finding.samples is None else {k: v.tolist() for k, v in finding.samples.columns.items()}
        witnesses = None if finding.witnesses is None else finding.witnesses.changed.tobytes()
        found[row.answer.probe] = (
            finding.measures, finding.says, finding.alarms, columns, witnesses, spent.passes, spent.slopes, row.verdict
        )  # fmt: skip
    return found


# The same numbers.


def map_of(subject: Subject, engine: Any, n: int = 230) -> tuple[Any, ...]:
    torch.manual_seed(3)
    run = Run(engine=engine, seed=5)
    with counted(subject.model) as tally:
        rows = run.map(
            lambda s: {
                "said": subject.predict(s.x),
                "drawn": torch.rand(len(s.x), generator=s.rng),
                "changed": s.x + 1,
                "fell": s.y > 6,
            },
            subject, "test", np.arange(n), "all", few={"changed": "fell"}, room=40 * 4 * 64,
        )  # fmt: skip
        again = run.predict(subject, "test", np.arange(n), "again")[0]
    return *(rows[name] for name in sorted(rows)), again, torch.rand(1).numpy(), np.array([tally.answers, tally.slopes])


@needs_ray
@pytest.mark.parametrize("noisy", [False, True])
def test_shards_elsewhere_give_the_bits_of_one_process(digits: Subject, engine: Ray, noisy: bool) -> None:
    subject = replace(digits, model=Noisy(digits.model).eval()) if noisy else digits
    here, there = map_of(subject, ThisProcess(50)), map_of(subject, engine)
    assert len(here) == len(there) == 8
    for one, other in zip(here, there, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert noisy == (not np.array_equal(here[-4], here[-3]))  # the second map draws anew


def test_what_a_random_model_draws_does_not_hang_on_other_shards(digits: Subject) -> None:
    subject = replace(digits, model=Noisy(digits.model).eval())

    def said(indices: np.ndarray) -> np.ndarray:
        torch.manual_seed(3)
        return Run(engine=ThisProcess(50)).predict(subject, "test", indices, "some")[0]

    whole, half = said(np.arange(200)), said(np.concatenate([np.arange(150, 200), np.arange(50, 100)]))
    np.testing.assert_array_equal(whole[50:100], half[50:])
    assert not np.array_equal(whole[:50], whole[50:100])


@needs_ray
def test_an_audit_loses_no_question_to_a_worker_that_dies(digits: Subject, engine: Ray, tmp_path: Path) -> None:
    asked = partial(assay.audit, digits, inputs=60)
    here = asked(probes=[*ASKED, ends(tmp_path, there=True)], engine=ThisProcess(50))
    Path(tmp_path / "ended").unlink()
    there = asked(probes=[*ASKED, ends(tmp_path, there=False)], engine=engine)
    assert int((tmp_path / "ended").read_text()) != os.getpid()  # one worker's end
    assert told(here) == told(there)


@needs_ray
def test_a_random_model_is_found_the_same_though_the_longest_question_comes_first(digits: Subject, engine: Ray) -> None:
    subject, found = replace(digits, model=Noisy(digits.model).eval()), []
    for asker in (ThisProcess(50), engine):
        torch.manual_seed(3)
        found.append(str(told(assay.audit(subject, probes=["accuracy", "confidence"], inputs=60, engine=asker))))
    assert found[0] == found[1]


@needs_ray
def test_whoever_stops_an_audit_has_what_is_known(digits: Subject, engine: Ray, tmp_path: Path) -> None:
    def stop(row: Any, asked: bool) -> None:
        heard.append(row.answer.probe)
        raise KeyboardInterrupt

    heard: list[str] = []
    asked = partial(assay.audit, digits, probes=ASKED, inputs=60, out=tmp_path, engine=engine)
    with pytest.raises(KeyboardInterrupt):
        asked(told=stop)
    again: dict[str, bool] = {}
    asked(told=lambda row, now: again.update({row.answer.probe: now}))
    assert again == {name: name not in heard for name in ASKED}


@needs_ray
def test_a_time_limit_ends_shards_that_are_elsewhere(digits: Subject, engine: Ray) -> None:
    run = Run(engine=engine, progress=until(0.5, Run(engine=engine).progress))
    start = time.monotonic()
    with pytest.raises(OutOfTime):
        run.map(lambda s: time.sleep(3) or {"y": s.y}, digits, "test", np.arange(200), "slow")  # type: ignore[func-returns-value]
    assert time.monotonic() - start < 2.5


@needs_ray
def test_what_goes_wrong_elsewhere_is_told_as_here(digits: Subject, engine: Ray) -> None:
    def wrong(shard: Any) -> dict[str, torch.Tensor]:
        raise ZeroDivisionError("by 0")

    for one in (ThisProcess(50), engine):
        with pytest.raises(AssayError, match="ZeroDivisionError while working on inputs 0 to 49: by 0"):
            Run(engine=one).map(wrong, digits, "test", np.arange(200), "x")
    found = dict(engine.each(lambda n: 1 // n, [0, 1]))
    assert found[1]() == 1
    with pytest.raises(ZeroDivisionError):
        found[0]()


@needs_ray
def test_members_of_an_ensemble_are_trained_side_by_side_to_the_same_weights(digits: Subject, engine: Ray) -> None:
    from assay.remedies.ensemble import NaiveEnsemble

    conv, last = nn.Conv2d(1, 160, 5, padding=2), nn.Linear(160 * 64, 10)  # too large to be trained in one pass
    wide = nn.Sequential(conv, nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), last)
    few = {name: assay.data.held_out.Part(data, np.arange(64)) for name, data in digits.data.items()}
    subject = replace(digits, model=wide, data=few, layers={})
    remedy = NaiveEnsemble(members=2, epochs=1)
    here, there = (remedy.apply(subject, Run(engine=one)) for one in (ThisProcess(), engine))
    for one, other in zip(here.model.parameters(), there.model.parameters(), strict=True):
        assert torch.equal(one, other)


@needs_ray
def test_studies_of_claims_are_run_side_by_side(engine: Ray, tmp_path: Path) -> None:
    from assay.jobs import claims

    name = "wang2021-glunet/f1-below-iou"
    run = Run(engine=engine)
    entries = [made() for _, made in engine.each(partial(claims.measured, run), [name, name])]
    here = claims.measured(Run(engine=ThisProcess()), name)
    assert [e.evidence for e in entries] == [here.evidence] * 2
    claims.keep(entries[0], tmp_path)
    assert list(claims.read(tmp_path)) == [name]


# What is sent.


@needs_ray
def test_what_is_large_goes_once_and_by_its_content(two_workers: None) -> None:
    from assay.engine import ray as engine

    engine._SENT.forget()
    net = nn.Linear(300, 300)
    first = engine._pack(net)
    assert len(first.text) < engine.LARGE
    assert engine._pack(net).apart == first.apart
    with torch.no_grad():
        net.weight.data[0, 0] += 1  # of which no version counts
    assert engine._pack(net).apart != first.apart
    back = engine._unpacked(engine._pack(Noisy(net)))
    assert back.one.weight is back.other.weight
    assert torch.equal(back.model.weight, net.weight)


@needs_ray
def test_data_that_were_changed_in_place_are_sent_anew(engine: Ray) -> None:
    from assay.engine.ray import _SENT

    x = np.arange(120 * 200, dtype=np.float32).reshape(120, 200)  # large enough to be sent by itself
    whole = Arrays(x, np.zeros(120, np.int64))
    whole.weight, whole.names = torch.ones(1), ["one"]  # type: ignore[attr-defined]
    part = Part(whole, np.arange(110))

    def weighed(shard: Shard) -> dict[str, torch.Tensor]:
        return {"sum": shard.x.sum(1) * part.whole.weight}  # type: ignore[attr-defined]

    def agrees() -> bool:
        here, there = (
            one.map(weighed, part, np.arange(110), seed=0, device="cpu", tick=lambda count: None)["sum"]
            for one in (ThisProcess(50), engine)
        )
        return np.array_equal(here, there)

    def sent() -> str:
        at = _SENT.data_set(part)
        assert at is not None
        return at[0]

    assert agrees()
    first = sent()
    assert agrees()
    assert sent() == first  # what is as it was goes once
    np.negative(x, out=x)
    assert agrees()
    assert sent() != first
    whole.weight += 1  # type: ignore[attr-defined]
    assert agrees()
    part.rows[:] = part.rows[::-1].copy()
    assert agrees()
    whole.x = x[::-1]
    assert agrees()
    whole.names[0] = "two"  # type: ignore[attr-defined]
    ((_, name),) = engine.each(lambda item: part.whole.names[item], [0])  # type: ignore[attr-defined]
    assert name() == "two"


@needs_ray
def test_what_lies_in_a_file_is_read_there(tmp_path: Path) -> None:
    from assay.engine import ray as engine

    np.save(tmp_path / "rows.npy", np.arange(300_000, dtype=np.float32).reshape(-1, 3))
    rows = np.asarray(np.load(tmp_path / "rows.npy", mmap_mode="r"))[1000:]
    packed = engine._pack({"rows": rows, "data": assay.data.arrays.Arrays(rows, np.zeros(len(rows), int)).x})
    assert len(packed.text) < 1000
    assert not packed.apart
    np.testing.assert_array_equal(engine._unpacked(packed)["data"], rows)
    changed = np.asarray(np.load(tmp_path / "rows.npy", mmap_mode="c"))
    changed += 1  # which the file does not hear of
    assert engine._pack(changed).apart


@needs_ray
def test_the_attribute_that_cannot_be_sent_is_named(digits: Subject) -> None:
    from assay.engine import ray as engine

    digits.model[0].guard = threading.Lock()  # type: ignore[index]
    try:
        with pytest.raises(AssayError, match=r"What digits\.model\.0\.guard holds cannot be sent .* a lock "):
            engine._pack(lambda shard: digits.model(shard))
    finally:
        del digits.model[0].guard  # type: ignore[index]


# What cannot be, in one line.


@needs_ray
def test_a_cluster_that_is_not_there() -> None:
    from assay.engine import ray as engine

    with pytest.raises(AssayError, match=r"There is no cluster at 'ray://127.0.0.1:9': .*; start one with `ray start"):
        engine._knock("ray://127.0.0.1:9")


@needs_ray
@pytest.mark.parametrize("address", ["ray://", "ray://127.0.0.1", "ray://127.0.0.1:", "ray://:10001", "head", "head:x"])
def test_an_address_without_machine_or_port_is_refused_at_once(address: str) -> None:
    from assay.engine import ray as engine

    with pytest.raises(AssayError, match=rf"'{address}' is no address of a cluster; write HOST:PORT, or ray://HOST"):
        engine._knock(address)


@needs_ray
def test_a_name_that_no_machine_can_have_is_told_in_one_line() -> None:
    from assay.engine import ray as engine

    with pytest.raises(AssayError, match="There is no cluster at 'ray://a+:1': that is no name of a machine; start"):
        engine._knock(f"ray://{'a' * 70}:1")
    for address in ("auto", "anyscale://mine"):  # which Ray knows how to find
        engine._knock(address)


@needs_ray
def test_a_cluster_that_is_not_the_one_that_is_connected(engine: Ray) -> None:
    """Nothing is computed elsewhere, or with other workers, than whoever asks for it believes."""
    import ray

    here = ray.get_runtime_context().gcs_address
    port = here.rpartition(":")[2]
    for address in (None, "auto", here, f"localhost:{port}"):
        assert replace(engine, address=address, workers=2).at_once == 2
    with pytest.raises(AssayError, match=rf"Ray\('127.0.0.1:1'\) .* to the cluster {here}; call ray.shutdown\(\)"):
        replace(engine, address="127.0.0.1:1")
    with pytest.raises(AssayError, match=r"Ray\(workers=3\) .* a cluster of 2; call ray.shutdown\(\) first"):
        replace(engine, workers=3)


@needs_ray
@pytest.mark.parametrize(
    ("expected", "says"),
    [
        ({"assay": "9.9"}, "of the cluster has Assay .*, and here it is 9.9; install the same there"),
        ({"code": "abc"}, "of the cluster has another copy of Assay; install the same there"),
        ({"python": "3.99.0"}, "of the cluster has python 3.*, and here it is 3.99.0; install the same there"),
    ],
)
def test_a_machine_with_other_versions(expected: dict[str, str], says: str) -> None:
    from assay.engine import ray as engine

    with pytest.raises(AssayError, match=says):
        engine._refuse_another(expected)
    engine._refuse_another(engine._surroundings())


def test_without_ray_the_line_to_type_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "assay.engine.ray", raising=False)
    with pytest.raises(MissingExtra, match=r"--engine ray needs Ray: pip install 'assay\[ray\]'"):
        engine_named("ray")


def test_an_engine_that_is_none_and_what_a_cluster_cannot_do() -> None:
    with pytest.raises(AssayError, match="There is no engine 'spark'; choose here, ray or ray://HOST:PORT"):
        engine_named("spark")
    with pytest.raises(AssayError, match="--engine ray has other processes compute, which the sandbox does not"):
        refuse_confined("ray", sandbox=True)
    with pytest.raises(AssayError, match="--profile tells of one process, and --engine ray has many"):
        refuse_confined("ray", sandbox=False, profile=True)
    refuse_confined("here", sandbox=True, profile=True)


def test_nothing_loads_ray_that_was_not_asked_to() -> None:
    loads = [m for m in ("assay", "assay.jobs.audit", "assay.cli", "assay.engine.local") if importlib.import_module(m)]
    lines = "; ".join(f"import {m}" for m in loads)
    status = os.spawnl(
        os.P_WAIT, sys.executable, sys.executable, "-c", f"import sys; {lines}; sys.exit('ray' in sys.modules)"
    )
    assert status == 0


# Several machines, and processes that end again and again.


class Slow(nn.Module):
    """Answers each batch after a fixed time."""

    def __init__(self, model: nn.Module, seconds: float) -> None:
        super().__init__()
        self.model, self.seconds = model, seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        answers: torch.Tensor = self.model(x)
        return answers


@pytest.fixture
def alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """No cluster but the test's own."""
    import ray

    ray.shutdown()
    yield
    ray.shutdown()


@needs_ray
@heavy
def test_a_machine_that_dies_takes_no_question_along(digits: Subject, alone: None) -> None:
    import ray
    from ray.cluster_utils import Cluster

    from assay.engine.ray import Ray

    subject = replace(digits, model=Slow(digits.model, 0.05))
    asked = partial(assay.audit, subject, probes=ASKED, inputs=60)
    here = asked(engine=ThisProcess(20))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **STARTED})
    try:
        others = [cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        engine = Ray(batch=20)
        assert engine.at_once == 3
        end = threading.Timer(3.0, lambda: cluster.remove_node(others[0], allow_graceful=False))
        end.start()
        there = asked(engine=engine)
        end.join()
        assert told(here) == told(there)
        assert Ray().at_once == 2
    finally:
        ray.shutdown()
        cluster.shutdown()


@needs_ray
def test_a_package_whose_loading_was_called_off_is_loaded_whole_by_the_next_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its child was loaded to the end, and a second parent would not have it."""
    from assay.engine.ray import _do, _Worker

    whole = tmp_path / "halfway"
    whole.mkdir()
    (whole / "child.py").write_text("x = 1")
    (whole / "__init__.py").write_text(
        "import os\nimport halfway.child\nif 'STOPS' in os.environ:\n    raise KeyboardInterrupt\n"
        "found = halfway.child.x"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_Worker, "inside", True)
    monkeypatch.setitem(_Worker.opened, "loads", importlib.import_module)
    task = partial(_do._function, "loads", [], {})
    monkeypatch.setenv("STOPS", "1")
    with pytest.raises(KeyboardInterrupt):
        task("halfway")
    monkeypatch.delenv("STOPS")
    assert task("halfway").found == 1
    for name in ("halfway.child", "halfway"):
        del sys.modules[name]


@needs_ray
@pytest.mark.parametrize("order", [None, "rows", "channels-last"])
def test_a_shard_is_asked_in_the_order_of_whoever_sent_it(order: Order | None, engine: Ray) -> None:
    """A worker has its own process: what stands around the sender does not stand around it."""

    def asked(shard: Shard) -> dict[str, torch.Tensor]:
        return {"so": torch.full((len(shard.x),), order_now() == order), "by": torch.full((len(shard.x),), os.getpid())}

    rows = np.zeros((120, 1), np.float32)
    with turned(order):
        found = engine.map(
            asked, Arrays(rows, np.zeros(120, np.int64)), np.arange(120), seed=0, device="cpu", tick=lambda count: None
        )
    assert found["so"].all()
    assert os.getpid() not in found["by"]


@needs_ray
@heavy
def test_a_question_that_ends_every_process_is_the_only_one_without_an_answer(
    digits: Subject, engine: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.engine.ray.RETRIES", 1)
    always = Ends(marker=str(tmp_path / "no" / "such"))
    monkeypatch.setattr(Ends, "ask", lambda self, subject, run: os.kill(os.getpid(), signal.SIGKILL))
    found = assay.audit(digits, probes=["accuracy", always], inputs=60, engine=engine)
    assert found.row("accuracy").answer.finding is not None
    assert "ended 2 times" in found.row("ends").answer.why
