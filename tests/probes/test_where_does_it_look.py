"""Where does it look: equal maps agree by 1, a model of one corner shows that corner, no map without its verdict."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from assay.errors import AssayError
from assay.finding import Gallery, Matrix
from assay.probe import put
from assay.probes.explained.where_does_it_look import BLIND, HEADLINE, MAPS, WhereDoesItLook, _cheap
from assay.run import Run
from assay.subject import Subject


def ask(subject: Subject, run: Run, **settings: Any) -> Any:  # a Finding; each test knows which views it has
    answer = put(WhereDoesItLook(**settings), subject, run)
    assert answer.finding is not None, answer.why
    return answer.finding


def galleries(finding: Any) -> dict[str, Gallery]:
    return {v.name: v for v in finding.views if isinstance(v, Gallery)}


@pytest.fixture
def rows() -> Subject:
    """A linear model of six columns, where three maps are the same thing: w (x - 0), column by column."""
    torch.manual_seed(0)
    x = torch.rand(30, 6)
    linear = nn.Linear(6, 3)
    return Subject.classifier(linear, (x, linear(x).argmax(1)), name="rows")


@pytest.fixture
def corner() -> Subject:
    """Images of noise, and a model that looks at the four upper left pixels alone."""
    torch.manual_seed(1)

    class Corner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.linear(x[:, :, :2, :2].flatten(1))
            return logits

    model, x = Corner(), torch.rand(40, 1, 8, 8)
    return Subject.classifier(model, (x, model(x).argmax(1)), name="corner")


def test_on_a_linear_table_equal_maps_agree_by_one_and_a_random_one_does_not(rows: Subject, run: Run) -> None:
    budget = replace(run.budget, steps=10)  # 100 sets of columns: all 62
    three = ("integrated-gradients", "occlusion", "kernel-shap")
    finding = ask(rows, replace(run, budget=budget), methods=three, inputs=20)
    assert finding.measure().name == HEADLINE
    np.testing.assert_allclose(finding.samples.columns["agreement"], 1, atol=1e-6)
    assert all(finding.measure(f"agreement of {m} with the others").value == pytest.approx(1) for m in three)
    assert abs(finding.measure().beside[0].value) < 0.3
    assert not finding.alarms
    with_gradient = ask(rows, replace(run, budget=budget), methods=("gradient", *three), inputs=20)
    assert with_gradient.measure().value < 0.99


def test_the_matrix_is_symmetric_has_the_blind_maps_and_its_means_are_the_measures(digits: Subject, run: Run) -> None:
    finding = ask(digits, run)
    matrix = next(v for v in finding.views if isinstance(v, Matrix))
    values = np.array(matrix.values)
    assert matrix.rows == matrix.columns == (*MAPS, *BLIND)
    np.testing.assert_allclose(values, values.T, atol=1e-6)
    np.testing.assert_allclose(np.diag(values), 1, atol=1e-6)
    seeing = values[: len(MAPS), : len(MAPS)]
    assert finding.measure().value == pytest.approx(seeing[np.triu_indices(len(MAPS), 1)].mean())
    for k, name in enumerate(MAPS):
        measure = finding.measure(f"agreement of {name} with the others")
        assert measure.value == pytest.approx(np.delete(seeing[k], k).mean())
    assert finding.measure().beside[0].value == pytest.approx(values[len(MAPS), : len(MAPS)].mean())


def test_a_model_of_one_corner_shows_that_corner(corner: Subject, run: Run) -> None:
    maps = ("gradient", "integrated-gradients", "occlusion")
    finding = ask(corner, run, methods=maps)
    exhibit = galleries(finding)["random"].exhibits[0]
    for panel in exhibit.panels[1:]:
        pixels = np.asarray(Image.open(io.BytesIO(panel.png)).convert("RGB")).astype(int)  # 8 8 3
        blank = (pixels == 255).all(2)
        assert blank.sum() == 60
        assert not blank[:2, :2].any()
    assert finding.measure().value > 0.8  # they agree on the sixty pixels that do not matter


def test_no_map_is_shown_without_its_verdict(digits: Subject, run: Run) -> None:
    shown = galleries(ask(digits, run))
    assert set(shown) == {"random", "surest-mistakes", "least-sure"}
    for gallery in shown.values():
        assert "is-the-map-faithful" in gallery.says
        assert "does-the-map-need-the-model" in gallery.says
        for exhibit in gallery.exhibits:
            assert [p.label.split(":")[0] for p in exhibit.panels] == ["input", *MAPS]
            for panel in exhibit.panels[1:]:
                assert "agrees" in panel.label or "stands alone" in panel.label
                whole = panel.label.startswith(("integrated-gradients", "kernel-shap"))
                assert whole == ("adds up" in panel.label or "misses" in panel.label)


def test_chosen_are_the_surest_mistakes_and_the_least_sure(digits: Subject, run: Run) -> None:
    budget = replace(run.budget, samples=None, shown=4)
    shown = galleries(ask(digits, replace(run, budget=budget), methods=("gradient", "occlusion")))
    x, y = digits.data["test"].take(np.arange(len(digits.data["test"])))
    chance = digits.predict(x).softmax(1)
    sure, said = chance.max(1)
    wrong = torch.where(said != y, sure, -1).argsort(descending=True, stable=True)[:2]
    assert [e.index for e in shown["surest-mistakes"].exhibits] == wrong.tolist()
    assert {e.index for e in shown["least-sure"].exhibits} == set(sure.argsort()[:2].tolist())
    assert "truly" in shown["surest-mistakes"].exhibits[0].caption


def test_a_score_too_rough_to_integrate_raises_an_alarm(corner: Subject, run: Run) -> None:
    class Rough(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            level = x.flatten(1).sum(1)
            return torch.stack([torch.sin(300 * level), -torch.sin(300 * level)], 1)

    finding = ask(replace(corner, model=Rough(), layers={}), run, methods=("gradient", "integrated-gradients"))
    alarm = finding.alarms[0]
    assert "integrated-gradients should add up" in alarm.says
    assert HEADLINE in alarm.doubts
    assert (finding.samples.columns["integrated-gradients misses"] > 0.1).any()
    assert any("misses" in p.label for p in galleries(finding)["random"].exhibits[0].panels)


def test_agreement_that_an_edge_detector_reaches_is_in_doubt() -> None:
    assert _cheap(np.array([0.5, 0.6]), {"edges": 0.3, "random": 0.0}) == []
    (alarm,) = _cheap(np.array([0.2, 0.3]), {"edges": 0.3, "random": 0.0})
    assert alarm.doubts == (HEADLINE,)


def test_tables_go_without_image_maps_and_show_shares_with_verdicts(rows: Subject, run: Run) -> None:
    finding = ask(rows, run)
    assert finding.says.endswith("do not admit them: gradcam, edges.")
    assert not galleries(finding)
    table = next(v for v in finding.views if v.name == "least-sure")
    assert len(table.columns) == 6
    assert all(f"{m}: " in table.says for m in table.rows)
    assert all(sum(row) == pytest.approx(1) for row in table.values)


def test_without_gradients_the_maps_that_only_ask_are_compared(digits: Subject, run: Run) -> None:
    finding = ask(replace(digits, differentiable=False), run)
    assert [m.name for m in finding.measures[1:]] == [
        f"agreement of {m} with the others" for m in ("occlusion", "kernel-shap", "rise")
    ]
    blind = put(WhereDoesItLook(methods=("gradient", "rise")), replace(digits, differentiable=False), run)
    assert blind.status == "does not apply"
    assert "two maps are needed" in blind.why


def test_a_random_model_is_explained_by_the_mean_of_its_draws(digits: Subject, run: Run) -> None:
    noisy = nn.Sequential(digits.model, nn.AlphaDropout(0.01))
    finding = ask(replace(digits, model=noisy, draws=3, layers={}), run, methods=("gradient", "gradcam", "occlusion"))
    assert "gradcam" in finding.says


def test_the_same_seed_gives_the_same_numbers(digits: Subject, run: Run) -> None:
    first, second = (ask(digits, run).samples.columns for _ in range(2))
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize("methods", [("gradient",), ("gradient", "edges"), ("gradient", "gradient"), ("gradient", "x")])
def test_bad_settings_are_refused(methods: tuple[str, ...]) -> None:
    with pytest.raises(AssayError, match="two or more of gradient"):
        WhereDoesItLook(methods=methods)


@pytest.mark.parametrize("parts", ["superpixels", "patches"])
def test_greedy_as_stands_beside_the_maps_with_any_cut(digits: Subject, run: Run, parts: Any) -> None:
    answer = put(WhereDoesItLook(methods=("gradient", "greedy-as"), inputs=1, parts=parts), digits, run)
    assert answer.finding is not None, answer.why
    rows = answer.finding.samples.columns  # type: ignore[union-attr]
    assert {"greedy-as", "greedy-as, values capped", "greedy-as, seeds agree"} <= set(rows)
    assert np.isfinite(rows["agreement"]).all()
