"""Shipping: the file opens again, both are asked the same, limits decide, and the original stays as it was."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from assay import shelf
from assay.errors import AssayError
from assay.finding import Finding, Measure, Witnesses
from assay.jobs.cure import _price
from assay.jobs.forms import FORMS, Form
from assay.jobs.ship import Shipped, Speed, _spared, _speeds, ship
from assay.methods.compress import weighed
from assay.nn.onnx_net import OnnxNet
from assay.probe import Probe
from assay.remedy import Remedy
from assay.run import Run
from assay.subject import Subject
from assay.subjects import Source, with_data_of

if TYPE_CHECKING:
    from conftest import Command

pytest.importorskip("onnx")
N = 600


@dataclass(frozen=True)
class Blunt(Remedy):
    """Forgets what it knew of the last class."""

    by: float = 3.0
    source: ClassVar[str] = "nowhere"

    def apply(self, subject: Subject, run: Run) -> Subject:
        model = copy.deepcopy(subject.model)
        with torch.no_grad():
            model[1].bias[2] -= self.by  # type: ignore[index, operator, union-attr]
        return subject.cured(model, "blunt")


@dataclass(frozen=True)
class Plain(Probe):
    """What is its number?"""

    source: ClassVar[str] = "nowhere"

    def ask(self, subject: Subject, run: Run) -> Finding:
        return Finding(says="It has one.", measures=(Measure(name="plain number", value=1.0, better="higher"),))


def subject() -> Subject:
    """The class is which of three pixels is brightest, and the model says so; each is as frequent as the others."""
    x = torch.rand(N, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 3))
    with torch.no_grad():
        model[1].weight.copy_(10 * torch.eye(9)[:3])  # type: ignore[operator]
        model[1].bias.zero_()  # type: ignore[operator]
    return Subject.classifier(model.eval(), (x, x.flatten(1)[:, :3].argmax(1)), name="three")


@pytest.fixture(scope="module", autouse=True)
def forms() -> object:
    """A form that forgets, and reports without drawings."""
    with pytest.MonkeyPatch.context() as patch:
        real, own = shelf.load, {("remedies", "blunt"): Blunt, ("probes", Plain.name()): Plain}
        patch.setattr(shelf, "load", lambda w, name: own.get((w, name)) or real(w, name))
        form = Form(name="blunt", says="", remedy="blunt", suffix=".onnx")
        patch.setattr("assay.jobs.ship.FORMS", {**FORMS, "blunt": form})
        patch.setattr("assay.report.page.draw", lambda view, key: f"<svg><!-- {view.name} --></svg>")
        yield


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    return ship(
        subject(), "onnx", probes=["accuracy"], limits=["accuracy=1pt"], inputs=N,
        out=tmp_path_factory.mktemp("exported"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def blunted(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    return ship(
        subject(), "blunt", probes=["accuracy"], limits=["accuracy=1pt,worst-class-loss=5pt,confidence-gained=90pt"],
        inputs=N, out=tmp_path_factory.mktemp("blunted"),
    )  # fmt: skip


def test_the_same_model_in_another_form_is_fit_to_ship(exported: Shipped) -> None:
    assert (exported.outcome, exported.status) == ("within", 0)
    assert exported.verdict().startswith("Fit to ship: within accuracy=1pt")
    assert exported.gap.largest < 1e-4
    assert exported.maps is not None
    assert exported.maps.value == pytest.approx(1, abs=0.02)


def test_each_time_is_told_with_the_device_it_was_measured_on(
    exported: Shipped, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ONNX graph answers on the CPU: beside its time stands the original's on the run's device, and there."""
    there = {"cuda": 0.001, "cpu": 0.004}

    def seconds(model: nn.Module, x: torch.Tensor, device: str, **_: object) -> float:
        return 0.002 if isinstance(model, OnnxNet) else there[str(device)]

    for module in ("price", "weighed"):
        monkeypatch.setattr(f"assay.methods.compress.{module}.latency", seconds)
    one, small = subject(), exported.cure.cured
    on_gpu = _speeds(one, small, replace(run, device="cuda"))
    assert set(on_gpu) == {
        Speed(n, there[device], device, 0.002, "cpu") for n in (1, 64) for device in ("cuda", "cpu")
    }  # fmt: skip
    said = " ".join(replace(exported, speeds=on_gpu).told())
    assert "over 64 inputs takes 2 ms on cpu of this machine, and took 1 ms on cuda (0.50 times as fast)" in said
    assert "over 64 inputs takes 2 ms on cpu of this machine, and took 4 ms on cpu (2.00 times as fast)" in said
    assert {each.before_on for each in _speeds(one, one, run)} == {"cpu"}
    there["meta"] = 0.001
    monkeypatch.setattr(
        "assay.jobs.cure._pass_seconds", lambda each, run: seconds(each.model, torch.empty(0), run.device)
    )
    price = _price(FORMS["onnx"].made_by(), one, small, 1.0, replace(run, device="cuda"))
    assert price.endswith("an answer takes 2.00 times as long on cpu as it took on cuda.")
    told = weighed.told(one.model, small.model, (10, 20), torch.empty(8, 1, 3, 3, device="meta"))
    assert "8 inputs take 2 ms on cpu, and took 1 ms on meta (2.00 times as long)" in told


def test_attacks_of_one_model_are_judged_on_the_other(run: Run) -> None:
    """Ten inputs of the second class by 0.05, moved by 0.1 towards the first: the one falls, the one with a bias not.

    Inputs that are wrong as they are were not changed, and are no attack.
    """
    clean = np.zeros((12, 1, 3, 3), dtype=np.float32)
    clean[:, 0, 0, 1] = 0.5
    clean[:, 0, 0, 0] = 0.45
    changed = clean.copy()
    changed[:10, 0, 0, 0] += 0.1
    witnesses = Witnesses(
        split="test", index=np.arange(12), clean=clean, changed=changed, label=np.ones(12, dtype=np.int64),
        said=np.zeros(12, dtype=np.int64), norm=("linf",) * 10 + ("none",) * 2, radius=np.full(12, 0.1),
        how=("by hand",) * 12,
    )  # fmt: skip
    one, other = subject(), subject()
    with torch.no_grad():
        other.model[1].bias[1] += 2.0  # type: ignore[index, operator, union-attr]
    assert _spared(witnesses, one, run) == (0, 10)
    assert _spared(witnesses, other, run) == (10, 10)


def test_the_file_stands_alone_and_answers_alike(exported: Shipped) -> None:
    assert exported.file.parent == exported.folder
    assert exported.sizes[1] == exported.file.stat().st_size
    own = subject()
    again = with_data_of(own, Source(str(exported.file)))
    x = own.data["test"].take(np.arange(50))[0]
    torch.testing.assert_close(again.predict(x), own.predict(x), rtol=1e-4, atol=1e-4)
    assert {each.name for each in exported.folder.iterdir()} == {
        exported.file.name, "card.md", "ship.html", "ship.json",
    }  # fmt: skip


def test_what_was_forgotten_is_counted_and_over_the_limit(blunted: Shipped) -> None:
    model = subject()
    x = model.data["test"].take(np.arange(N))[0].flatten(1)[:, :3]
    lost = (x.argmax(1) == 2) & ((10 * x - torch.tensor([0.0, 0.0, 3.0])).argmax(1) != 2)
    accuracy, worst, sure = blunted.held
    assert accuracy.harm is not None
    assert accuracy.harm.value == pytest.approx(float(lost.double().mean()))
    assert worst.harm is not None
    assert worst.harm.value == pytest.approx(float(lost[x.argmax(1) == 2].double().mean()))
    assert [each.outcome for each in blunted.held] == ["exceeded", "exceeded", "within"]
    assert (sure.measure, blunted.status) == ("confidence gained", 1)
    assert blunted.verdict().startswith("Not fit to ship: over the limit accuracy=1pt (none of the interval")


def test_the_record_and_the_page_say_so_first(blunted: Shipped) -> None:
    told = json.loads((blunted.folder / "ship.json").read_text())
    assert (told["outcome"], told["status"], told["as"]) == ("exceeded", 1, "blunt")
    assert [each["outcome"] for each in told["limits"]] == ["exceeded", "exceeded", "within"]
    assert told["bytes"]["after"] == blunted.file.stat().st_size
    assert {each["batch"] for each in told["seconds"]} == {1, 64}
    page = blunted.page.read_text()
    places = [page.index(words) for words in ("Not fit to ship", "Speed, size", "What it forgot", "measures in both")]
    assert places == sorted(places)
    assert "<img" in page[places[2] : places[3]]  # the forgotten are shown
    assert "now says " in page


def test_where_a_question_broke_no_outcome_says_within(exported: Shipped) -> None:
    after = exported.cure.after
    first = after.rows[0]
    broke = replace(first, answer=replace(first.answer, status="failed", finding=None, why="it raised"))
    broken = replace(exported, cure=replace(exported.cure, after=replace(after, rows=(broke, *after.rows[1:]))))
    assert [each.outcome for each in broken.held] == ["within"]
    assert (broken.outcome, broken.status) == ("cannot tell", 2)
    assert broken.to_json()["outcome"] == "cannot tell"
    assert broken.verdict().startswith("Not fit to ship: a question broke")


def test_two_seeds_alike_make_the_same_file(exported: Shipped, tmp_path: Path) -> None:
    again = ship(subject(), "onnx", probes=["accuracy"], inputs=50, out=tmp_path)
    assert again.file.read_bytes() == exported.file.read_bytes()


def test_the_original_stays_as_it_was(tmp_path: Path) -> None:
    model = subject()
    before = model.fingerprint()
    small = ship(model, "blunt", probes=["what-did-it-forget"], inputs=50, out=tmp_path, settings={"by": "0"})
    assert model.fingerprint() == before
    assert small.gap.largest == 0
    assert small.outcome == "cannot tell"  # nothing changed, and 50 inputs do not tell a point
    assert small.status == 3
    assert "more inputs would settle it" in small.verdict()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"form": "onx"}, "There is no form 'onx' to ship in; give one of onnx"),
        ({"limits": ["everyday=1pt"]}, "is on everyday-change, which is not asked"),
        ({"limits": ["apples=1pt"]}, "--limit apples=1pt is on a question that is not asked"),
        ({"limits": ["acc=1"]}, "--limit acc=1 has no unit, and accuracy gained is a share; write acc=1pt"),
        ({"limits": ["accuracy=1kg"]}, "has the unit 'kg', which is none"),
        ({"settings": {"colour": "red"}}, "'onnx' has no setting 'colour'"),
        ({"probes": ["acuracy"]}, "acuracy"),
        (
            {"form": "onnx-int8", "settings": {"calibrate_on": "held"}},
            "cannot be shipped as onnx-int8: it calibrates activations on inputs of 'held'",
        ),
    ],
)
def test_what_cannot_be_shipped_is_told_in_one_line_and_nothing_is_made(
    given: dict[str, object], says: str, tmp_path: Path
) -> None:
    with pytest.raises(AssayError, match=says) as told:
        ship(subject(), **{"form": "onnx", "probes": ["accuracy"], "inputs": 50, "out": tmp_path, **given})  # type: ignore[arg-type]
    assert "\n" not in str(told.value)
    assert not list(tmp_path.glob("ship-*"))
    assert not list(tmp_path.glob("cure-*"))


def test_calibrated_on_half_of_test_both_are_asked_about_the_other_half(tmp_path: Path) -> None:
    given = subject()
    done = ship(given, "onnx-int8", probes=["accuracy"], out=tmp_path)
    kept = done.cure.cured.data["test"]
    assert len(kept) == len(given.data["test"]) // 2
    counted = [audit.rows[0].answer.finding for audit in (done.cure.before, done.cure.after)]
    assert [each.measures[0].n for each in counted if each is not None] == [len(kept)] * 2


def test_a_unit_that_only_an_audit_knows_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Blunt, "apply", lambda *a: pytest.fail("it was made"))
    with pytest.raises(AssayError, match="is in points of a share, and plain number is a plain number"):
        ship(subject(), "blunt", probes=[Plain()], limits=[f"{Plain.name()}=2pt"], inputs=50, out=tmp_path)


@pytest.mark.parametrize(("draws", "form"), [(5, "int8"), (5, "float16"), (5, "compiled"), (1, "mc-dropout")])
def test_what_is_random_is_refused_before_any_audit_for_a_file_gives_one_pass(
    draws: int, form: str, tmp_path: Path
) -> None:
    x = (torch.rand(40, 9), torch.arange(40) % 3)
    net = nn.Sequential(nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 3))
    model = Subject.classifier(net, {"train": x, "test": x}, name="random", draws=draws)
    with pytest.raises(AssayError, match="its answers are means of (5|15) random ones, and a file gives one") as told:
        ship(model, form, probes=["accuracy"], inputs=20, out=tmp_path)
    assert "\n" not in str(told.value)
    assert not list(tmp_path.iterdir())


BUILT = """
import torch
from torch import nn
from assay import Subject
def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(9, 3))
    x = torch.rand(300, 1, 3, 3)
    return Subject.classifier(net, (x, net(x).argmax(1)), name='three')
"""


def test_the_command_prints_the_table_the_verdict_and_where_the_files_are(assay: Command) -> None:
    Path("it.py").write_text(BUILT)
    ended = assay("ship", "it.py:build", "--as", "onnx", "--probe", "accuracy", "--limit", "accuracy=5pt")
    assert ended.status == 0, ended.err
    *_, file, page = ended.out.split()
    assert Path(file).suffix == ".onnx"
    assert Path(file).exists()
    assert Path(page).name == "ship.html"
    assert "Fit to ship: within accuracy=5pt" in ended.out
    assert "times as fast" in ended.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--as", "onnx", "--limit", "accuracy"), "is not NAME=AMOUNT"),
        (("--as", "onnx", "--price", "flops=0.5"), "'onnx' has no setting 'price'"),
        (("--as", "jpeg"), "There is no form 'jpeg' to ship in"),
        (("--as", "onnx", "--limit", "acc=1"), "has no unit, and accuracy gained is a share"),
        (
            ("--as", "onnx", "--probe", "accuracy", "--limit", "worst-case=1pt"),
            "worst-case-accuracy, which is not asked",
        ),
    ],
)
def test_a_slip_of_the_pen_is_told_before_the_model_is_opened(
    assay: Command, words: tuple[str, ...], says: str
) -> None:
    ended = assay("ship", "gone.py:build", *words)
    assert ended.status == 2
    assert len(ended.complaints) == 1
    assert says in ended.complaints[0]
