"""One input explained: whatever it is, every map has its verdict, and what cannot be done is told in one line."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import assay.jobs.explain as explain
from assay.errors import AssayError
from assay.explanation import Explanation, Map
from assay.jobs.explain import explain_input
from assay.methods.explain.maps import METHODS
from assay.probe import put
from assay.probes.explained.does_the_map_need_the_model import DoesTheMapNeedTheModel
from assay.report.explanation import render
from assay.run import Run
from assay.subject import Subject
from assay.subjects import Source, open_subject

FEW = ("integrated-gradients", "occlusion", "random")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("HEADS", 4), ("DRAWS", 5)):
        monkeypatch.setattr(explain, name, dict.fromkeys(explain.UNITS, count))


@pytest.fixture(scope="module")
def wine() -> Subject:
    return open_subject(Source("wine-mlp"))


@pytest.fixture(scope="module")
def topics() -> Subject:
    return open_subject(Source("topics-text"))


def by_name(told: Explanation) -> dict[str, Map]:
    return {m.name: m for m in told.maps}


def test_an_image_with_all_maps(digits: Subject, run: Run, tmp_path: Path) -> None:
    before = digits.fingerprint()
    told = explain_input(digits, 7, run=run, out=tmp_path)
    rival = told.classes[told.rival]
    assert list(by_name(told)) == [*METHODS, "greedy-as", f"greedy-as, not {rival}"]
    assert told.left_out == ()
    for m in told.maps:
        assert m.shown.shape == (8, 8)
        assert m.verdict in ("believable", "not believable", "cannot tell")
        assert [s.name for s in m.scores] == ["s-r-bar", "s-r", "insertion", "deletion"]
        assert all(len(s.random) == 5 for s in m.scores)
    for name in ("random", "edges"):  # neither looks at the model
        assert by_name(told)[name].likeness == pytest.approx(1.0)
        assert by_name(told)[name].verdict == "not believable"
    assert {m.name for m in told.maps if m.gap is not None} == {
        "integrated-gradients", "expected-gradients", "kernel-shap"
    }  # fmt: skip
    assert sum(told.probabilities) == pytest.approx(1)
    assert told.probabilities[told.answer] == max(told.probabilities)
    assert told.page == tmp_path / "explain-digits-input-7" / "explanation.html"
    assert told.page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert digits.fingerprint() == before


def straight(weight: Tensor, shape: tuple[int, ...]) -> Subject:
    """Two classes whose logits are w . x and -w . x, of inputs around the boundary."""
    linear = nn.Linear(weight.numel(), 2, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.stack([weight, -weight]))
    x = torch.rand(30, *shape, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Flatten(), linear).eval()
    return Subject.classifier(model, (x, model(x).argmax(1)), name="straight", bounds=(-50.0, 50.0))


@pytest.mark.parametrize("criterion", ["held", "moved"])
def test_either_criterion_picks_the_largest_weights_of_a_linear_model(criterion: str, run: Run, tmp_path: Path) -> None:
    weight = torch.tensor([0.1, -0.7, 0.4, -0.2, 1.0, 0.05])
    told = explain_input(straight(weight, (6,)), 4, methods=["greedy-as"], criterion=criterion, run=run, out=tmp_path)
    found = told.maps[0]
    assert found.picks == (4, 1, 2)
    assert (
        "held fast, make that hardest" if criterion == "held" else "moved alone, make that easiest"
    ) in found.decided
    assert re.search(r"Of \d+ sets tried, \d+ led nowhere", found.decided)
    assert "Picks of two seeds share 100 % (Jaccard)." in found.decided  # all sets were asked for
    assert f'--criterion</span> <span class="word">{criterion}' in render(dataclasses.replace(told, source=("toy",)))


def test_an_image_is_cut_as_asked(run: Run, tmp_path: Path) -> None:
    subject = straight(torch.linspace(-1, 1.1, 36), (1, 6, 6))
    pixels = explain_input(subject, 4, methods=["greedy-as"], units="pixels", run=run, out=tmp_path)
    assert len(pixels.maps[0].picks) == 8  # a fifth of 36
    assert "another seed" not in pixels.maps[0].decided
    assert [m.name for m in pixels.maps] == ["greedy-as"]  # of so many features once: for the answer,
    named = explain_input(
        subject, 4, methods=["greedy-as"], units="pixels", why_not=pixels.rival, run=run, out=tmp_path
    )
    rival = subject.task.classes[pixels.rival]
    assert [m.name for m in named.maps] == [f"greedy-as, not {rival}"]  # or against a class that was named
    coarse = explain_input(subject, 4, methods=["greedy-as"], units="superpixels", run=run, out=tmp_path)
    assert 2 <= coarse.groups.max() + 1 <= 36
    assert sorted(set(coarse.groups.flat)) == list(range(coarse.groups.max() + 1))


def test_what_adds_up_has_its_base(wine: Subject, run: Run, tmp_path: Path) -> None:
    """base + values - missed is the score, and the base is the model's answer to the reference."""
    told = explain_input(wine, 3, methods=["integrated-gradients", "occlusion"], run=run, out=tmp_path)
    found, other = told.maps
    assert found.base is not None
    assert found.missed is not None
    assert found.base + found.shown.sum() - found.missed == pytest.approx(told.score, abs=1e-4)
    train = wine.data["train"]
    mean = train.take(run.pick(train, explain.BACKGROUND))[0].mean(0)
    assert found.base == pytest.approx(float(wine.predict(mean[None])[0, told.answer]), abs=1e-3)
    assert other.base is None


def test_the_same_seed_gives_the_same_numbers(digits: Subject, run: Run, tmp_path: Path) -> None:
    one, two = (explain_input(digits, "7", methods=FEW, run=run, out=tmp_path) for _ in range(2))
    for a, b in zip(one.maps, two.maps, strict=True):
        np.testing.assert_array_equal(a.shown, b.shown)
        assert (a.scores, a.likeness, a.checks) == (b.scores, b.likeness, b.checks)


def test_an_image_file_is_read_as_the_model_takes_it(digits: Subject, run: Run, tmp_path: Path) -> None:
    x, _ = digits.data["test"].take(np.array([7]))
    pixels = (x[0, 0] * 255).round().to(torch.uint8).numpy()
    Image.fromarray(pixels).convert("RGB").save(tmp_path / "seven.png")  # in colour, and made grey again
    typed = explain_input(digits, tmp_path / "seven.png", methods=["gradient"], run=run, out=tmp_path)
    known = explain_input(digits, 7, methods=["gradient"], run=run, out=tmp_path)
    assert typed.answer == known.answer
    assert typed.probabilities == pytest.approx(known.probabilities, abs=0.02)
    assert (typed.input.truth, known.input.truth) == (None, known.classes[int(digits.data["test"].labels[7])])


def test_a_row_by_number_and_by_its_values(wine: Subject, run: Run, tmp_path: Path) -> None:
    told = explain_input(wine, 3, methods=[*FEW, "greedy-as"], why_not="cultivar 3", run=run, out=tmp_path)
    assert told.input.kind == "table"
    assert told.input.names[0] == "alcohol"
    assert told.classes[told.rival] == "cultivar 3"
    assert "greedy-as, not cultivar 3" in by_name(told)
    typed = ",".join(f"{v:.6g}" for v in told.input.values)
    again = explain_input(wine, typed, methods=["gradient"], why_not=2, run=run, out=tmp_path)
    assert again.probabilities == pytest.approx(told.probabilities, abs=1e-3)
    assert again.rival == 2


def test_a_sentence_is_explained_word_by_word(topics: Subject, run: Run, tmp_path: Path) -> None:
    told = explain_input(topics, "The doctor had a fever at the match", methods=["all"], run=run, out=tmp_path)
    assert told.input.names == ("the", "doctor", "had", "a", "fever", "at", "the", "match")
    assert told.classes[told.answer] == "health"
    assert [name for name, _ in told.left_out] == ["gradcam", "edges"]
    found = by_name(told)["occlusion"].shown
    assert (int(found.argmax()), int(found.argmin())) == (4, 7)  # fever; and match, of another topic
    assert found[1] > 0 > found[7]


def test_a_text_by_number_ends_where_it_ends(topics: Subject, run: Run, tmp_path: Path) -> None:
    told = explain_input(topics, 5, methods=["occlusion"], run=run, out=tmp_path)
    assert told.maps[0].shown.shape == (len(told.input.names),)
    assert "<none>" not in told.input.names


def test_without_a_convolution_gradcam_is_left_out_and_the_page_says_why(run: Run, tmp_path: Path) -> None:
    told = explain_input(open_subject(Source("digits-mlp")), 3, methods=["gradient", "gradcam"], run=run, out=tmp_path)
    assert [m.name for m in told.maps] == ["gradient"]
    ((name, why),) = told.left_out
    assert name == "gradcam"
    assert "no convolutional layer" in why
    page = told.page.read_text(encoding="utf-8")
    assert "Left out" in page
    assert "no convolutional layer" in page


def test_where_no_map_can_be_made_it_says_why(wine: Subject, run: Run, tmp_path: Path) -> None:
    with pytest.raises(AssayError, match=r"No map can be made of this input: gradcam: .*CNN"):
        explain_input(wine, 3, methods=["gradcam"], run=run, out=tmp_path)


class Answers(nn.Module):
    """A model that lets no gradient through."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            out: Tensor = self.inner(x)
        return out


def test_without_gradients_the_rest_is_made_and_tried(digits: Subject, run: Run, tmp_path: Path) -> None:
    blind = dataclasses.replace(digits, model=Answers(digits.model), differentiable=False)
    told = explain_input(blind, 7, methods=["gradient", "occlusion", "greedy-as"], run=run, out=tmp_path)
    assert [m.name for m in told.maps] == ["occlusion"]
    assert [s.name for s in told.maps[0].scores] == ["insertion", "deletion"]
    assert [(n, why) for n, why in told.left_out] == [
        (n, "It needs gradients, and this model gives answers only.") for n in ("gradient", "greedy-as")
    ]


class Single(nn.Module):
    """A model that cannot be copied, as a session of a runtime cannot."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out

    def __deepcopy__(self, memo: object) -> Single:
        raise TypeError("cannot pickle")


def test_where_the_model_cannot_be_changed_only_chance_is_convicted(digits: Subject, run: Run, tmp_path: Path) -> None:
    told = explain_input(dataclasses.replace(digits, model=Single(digits.model)), 7, methods=FEW, run=run, out=tmp_path)
    assert [m.likeness for m in told.maps] == [None, None, pytest.approx(1.0)]
    assert told.maps[2].verdict == "not believable"
    assert all(m.checks[1].outcome == "cannot tell" for m in told.maps[:2])


class Turned(nn.Module):
    """The weights scale one fixed pattern: new ones change the size of the gradient's map and its sign, no more."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pattern", torch.linspace(-1, 1.3, 12))
        self.head = nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x @ self.pattern[:, None])
        return out


def test_a_map_that_only_turns_its_signs_over_fails_on_the_page_and_in_the_probe(run: Run, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Turned().eval(), torch.rand(40, 12)
    subject = Subject.classifier(model, (x, model(x).argmax(1)), name="turned")
    (found,) = explain_input(subject, 0, methods=["gradient"], run=run, out=tmp_path).maps
    assert found.likeness == pytest.approx(1)
    assert found.signed_likeness is not None
    assert abs(found.signed_likeness) < 0.9  # some of the four are turned over, and with signs that looked like change
    assert (found.verdict, found.checks[1].outcome) == ("not believable", "fail")
    answer = put(DoesTheMapNeedTheModel(methods=("gradient",), inputs=8), subject, run)
    assert answer.finding is not None
    assert answer.finding.says.startswith("Fail: gradient")


def test_page_and_probe_count_the_same_likeness(digits: Subject, run: Run, tmp_path: Path) -> None:
    """Of a map without draws, on one input and one set of new weights, both have the same number."""
    from assay.methods.explain.maps import explain
    from assay.methods.explain.sanity import curve

    (found,) = explain_input(digits, 7, methods=["gradient-input"], run=run, out=tmp_path).maps
    x, _ = digits.data["test"].take(np.array([7]))
    y, rng = digits.predict(x).argmax(1), run.rng()
    wanted = [
        curve(digits.model, x, lambda net, at: explain(net, at, y, "gradient-input").values, rng=rng)[-1][1].absolute
        for _ in range(4)
    ]
    assert found.likeness == pytest.approx(float(torch.cat(wanted).mean()), abs=1e-4)


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        (5000, {}, r"There is no input 5000; 'test' has 597, numbered 0 to 596"),
        (-1, {}, r"There is no input -1"),
        ("no.png", {}, r"There is no image 'no.png'"),
        (7, {"methods": ["gradcan"]}, r"There is no map 'gradcan'; did you mean gradcam\?"),
        (7, {"methods": ["zzz"]}, r"There is no map 'zzz'; choose from all, gradient"),
        (7, {"why_not": 10}, r"There is no class 10; there are 10, numbered from 0: '0'"),
        (7, {"why_not": "shirt"}, r"There is no class 'shirt'"),
        (7, {"units": "words"}, r"An image is cut into patches or superpixels or pixels, not into 'words'"),
        (7, {"criterion": "s-r"}, r"There is no criterion 's-r'; choose held or moved"),
    ],
)
def test_bad_input_is_one_line(
    digits: Subject, run: Run, tmp_path: Path, given: object, options: dict[str, object], words: str
) -> None:
    with pytest.raises(AssayError, match=words) as told:
        explain_input(digits, given, run=run, out=tmp_path, **options)  # type: ignore[arg-type]
    assert "\n" not in str(told.value)
    assert not list(tmp_path.iterdir())


def test_an_image_of_another_shape(digits: Subject, run: Run, tmp_path: Path) -> None:
    Image.new("L", (20, 10)).save(tmp_path / "wide.png")
    with pytest.raises(AssayError, match=r"wide.png has 10 x 20 pixels and the model takes 8 x 8 \(height x width\)"):
        explain_input(digits, tmp_path / "wide.png", run=run, out=tmp_path)


def test_why_not_what_it_says(digits: Subject, run: Run, tmp_path: Path) -> None:
    answer = explain_input(digits, 7, methods=["gradient"], run=run, out=tmp_path).answer
    with pytest.raises(AssayError, match=r"says '\d' itself, so there is no why not"):
        explain_input(digits, 7, methods=["gradient"], why_not=answer, run=run, out=tmp_path)


def test_a_text_that_is_too_long(topics: Subject, run: Run, tmp_path: Path) -> None:
    with pytest.raises(AssayError, match=r"A text of 14 words does not fit"):
        explain_input(topics, "the goal " * 7, run=run, out=tmp_path)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1,2,3", r"A row of 3 values; this model reads 13: alcohol"),
        ("a,b", r"'a,b' is no row; give .* 13 values with commas"),
        ("99" + ",2" * 12, r"The value 99 of alcohol lies outside 11 to 15, which the model takes"),
    ],
)
def test_rows_that_are_none(wine: Subject, run: Run, tmp_path: Path, row: str, words: str) -> None:
    with pytest.raises(AssayError, match=words):
        explain_input(wine, row, run=run, out=tmp_path)


def test_a_predicted_number_is_explained_column_by_column(run: Run, tmp_path: Path) -> None:
    """base + values - missed is the number, by the names of the columns; its trial is how far it moves."""
    subject = open_subject(Source("diabetes-mlp"))
    methods = ["integrated-gradients", "kernel-shap", "greedy-as"]
    told = explain_input(subject, 3, methods=methods, run=run, out=tmp_path)
    x, y = subject.data["test"].take(np.array([3]))
    assert told.number == "progression"
    assert told.score == pytest.approx(float(subject.predict(x)[0, 0, 0]), abs=1e-3)
    assert told.input.truth == f"{float(y[0]):.4g}"
    assert told.input.names[:2] == ("age", "sex")
    assert told.left_out == (
        ("greedy-as", "It looks for the least change to another class, and this answer is no class."),
    )
    for m in told.maps:
        assert [s.name for s in m.scores] == ["kept", "gone"]
        assert m.base is not None
        assert m.missed is not None
        assert m.base + m.shown.sum() - m.missed == pytest.approx(told.score, abs=1e-2)
    page = told.page.read_text()
    assert "What moves progression?" in page
    assert "Explained is progression: " in page
    assert "--why-not" not in page


def test_a_tagged_sentence_is_explained_word_by_word(run: Run, tmp_path: Path) -> None:
    """Words after the end belong to no map, and what needs gradients is left out."""
    subject = open_subject(Source("sentences-tagger"))
    told = explain_input(subject, "met clara in oslo", methods=["occlusion", "gradient"], run=run, out=tmp_path)
    assert told.input.names == ("met", "clara", "in", "oslo")
    assert told.maps[0].shown.shape == (4,)
    assert told.left_out[0][0] == "gradient"
    with pytest.raises(AssayError, match="the word 'zebra' is none of its 53"):
        explain_input(subject, "met zebra", run=run, out=tmp_path)


def test_another_part_of_an_answer_can_be_named(run: Run, tmp_path: Path) -> None:
    subject = open_subject(Source("seasons-forecaster"))
    told = explain_input(subject, 3, methods=["occlusion"], of="heat", run=run, out=tmp_path)
    out = subject.predict(subject.data["test"].take(np.array([3]))[0])
    assert told.score == pytest.approx(float(out[0, 1, :, 1].mean()), abs=1e-3)
    assert told.number == "heat, the mean of 12 steps"
    assert told.maps[0].shown.shape == (16,)  # eight stretches of two channels
    assert len(told.input.lines) == 2
    with pytest.raises(AssayError, match="There is no part of the answer 'hat'; did you mean 'heat'"):
        explain_input(subject, 3, of="hat", run=run, out=tmp_path)
    with pytest.raises(AssayError, match="says no class, so there is no why not"):
        explain_input(subject, 3, why_not=1, run=run, out=tmp_path)


def test_what_names_no_number_is_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    with pytest.raises(AssayError, match=r"'digits-ranker' cannot be explained: it needs a number of one input's"):
        explain_input(open_subject(Source("digits-ranker")), 3, run=run, out=tmp_path)


def test_a_random_model_is_refused(digits: Subject, run: Run, tmp_path: Path) -> None:
    with pytest.raises(AssayError, match=r"answers at random \(draws=4\)"):
        explain_input(dataclasses.replace(digits, draws=4), 7, run=run, out=tmp_path)
