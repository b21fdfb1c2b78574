"""Pruning by one criterion and by a blend that was evolved."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.jobs.cure import cure
from assay.methods.compress.criteria import CRITERIA, OF_NORMS, kept, scores
from assay.methods.compress.price import flops
from assay.methods.compress.surgery import cut, edges
from assay.remedies import blended_pruning
from assay.remedies._shrinking import Shrinking
from assay.remedies.blended_pruning import STORY, BlendedPruning
from assay.remedies.prune import Prune
from assay.run import Run
from assay.subject import Subject


@pytest.fixture(scope="module")
def planted() -> Subject:
    """Ten small channels that carry the answer, and ten large ones, strongly normalised, that nobody listens to."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(300, 1, 2, 5, generator=draw)
    y = x.flatten(1).argmax(1)
    useful = torch.arange(20) % 2 == 1
    inner, norm, outer = nn.Linear(10, 20), nn.BatchNorm1d(20), nn.Linear(20, 10)
    with torch.no_grad():
        inner.weight.copy_(torch.randn(20, 10, generator=draw))
        inner.weight[useful] = 0.1 * torch.eye(10)
        norm.weight.copy_(torch.where(useful, 0.5, 2.0))
        norm.bias.copy_(torch.where(useful, 0.01, 3.0))
        outer.weight.copy_(torch.zeros(10, 20))
        outer.weight[:, useful] = 10 * torch.eye(10)
        for layer in (inner, outer):
            layer.bias.zero_()
    model = nn.Sequential(nn.Flatten(), inner, norm, nn.ReLU(), outer).eval()
    return Subject.classifier(model, {"train": (x[:200], y[:200]), "test": (x[200:], y[200:])}, name="planted")


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained after the cut."""
    monkeypatch.setattr(Shrinking, "train", lambda self, model, *a, **k: model.eval())


def right(subject: Subject, split: str = "test") -> float:
    x, y = subject.data[split].take(np.arange(len(subject.data[split])))
    return float((subject.predict(x).argmax(1) == y).double().mean())


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("criterion", ["l2", "taylor-l1", "bn-beta"])
def test_the_channels_go_that_the_criterion_puts_last(criterion: Any, planted: Subject, run: Run) -> None:
    before = copy.deepcopy(planted.model.state_dict())
    small = Prune(criterion=criterion, sample=50).apply(planted, run)
    x, y = planted.data["train"].take(np.arange(200))
    rows = np.linspace(0, 199, 50).round().astype(int)
    (edge,) = edges(planted.model, x[:2])
    told = scores(planted.model, [edge], x[rows], y[rows], criteria=[criterion])
    wanted = cut(planted.model, [edge], {edge.name: kept(told[edge.name][0], 10)})
    assert_close(small.predict(x), wanted(x))
    assert flops(small.model, x[:1]) == 200 <= 0.5 * flops(planted.model, x[:1])
    assert_close(planted.model.state_dict(), before, rtol=0, atol=0)
    assert right(small) > 0.9 if criterion == "taylor-l1" else right(small) < 0.3


@pytest.mark.usefixtures("untrained")
def test_a_blend_is_at_least_as_good_as_the_median_of_single_criteria(planted: Subject, run: Run) -> None:
    single = {name: right(Prune(criterion=name).apply(planted, run), "train") for name in CRITERIA}
    ours = BlendedPruning(population=6, iterations=4, top=1).apply(planted, run)
    assert right(ours, "train") >= np.median(list(single.values()))
    assert right(ours) >= min(single.values()) + 0.3
    best = ours.model.get_buffer("blend_best")
    assert bool((best.diff() >= 0).all())
    assert flops(ours.model, planted.data["test"].take(np.arange(1))[0]) == 200


@pytest.mark.usefixtures("untrained")
def test_scores_are_compared_in_a_layer_or_over_the_whole_network(run: Run) -> None:
    """Of the first layer three channels are next to nothing, of the second one."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        for layer, weak in ((model[1], 3), (model[3], 1)):
            layer.weight.copy_(torch.eye(4) + 0.1 * torch.arange(4)[:, None])  # type: ignore[union-attr,operator]
            layer.weight[:weak] *= 1e-3  # type: ignore[index,operator]
    x = torch.rand(8, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    y = torch.arange(8) % 2
    subject = Subject.classifier(model, {"train": (x, y), "test": (x, y)}, name="uneven")
    widths = {}
    for per in ("layer", "network"):
        small = Prune(per=per, price="parameters=0.5").apply(subject, run).model  # type: ignore[arg-type]
        widths[per] = [small[1].out_features, small[3].out_features]  # type: ignore[index,union-attr]
    assert widths == {"layer": [2, 2], "network": [1, 3]}


def test_the_same_seed_gives_the_same_small_network_and_training_goes_on_from_its_weights(
    planted: Subject, run: Run
) -> None:
    remedy = Prune(criterion="taylor-l2", epochs=1, lr=1e-3)
    a, b = remedy.apply(planted, run), remedy.apply(planted, run)
    assert_close(a.model.state_dict(), b.model.state_dict(), rtol=0, atol=0)
    assert right(a) > 0.9
    anew = replace(remedy, start="scratch").apply(planted, run)
    assert right(anew) < 0.6  # the same size, nothing learnt yet
    assert {n: p.shape for n, p in anew.model.named_parameters()} == {n: p.shape for n, p in a.model.named_parameters()}


def test_what_is_frozen_is_cut_and_not_trained_and_where_all_is_all_is_trained(planted: Subject, run: Run) -> None:
    half, stone = copy.deepcopy(planted.model), copy.deepcopy(planted.model).requires_grad_(False)
    half[1].requires_grad_(False)  # type: ignore[index,union-attr]
    kept_rows = planted.model[1].weight[1::2]  # type: ignore[index,union-attr]
    few = BlendedPruning(population=2, iterations=0, top=1, epochs=1, lr=1e-3, criteria=("taylor-l1",), clusters=1)
    for remedy in (Prune(criterion="taylor-l1", epochs=1, lr=1e-3), few):
        for model, trained in ((half, False), (stone, True)):
            small: Any = remedy.apply(replace(planted, model=model), run).model
            assert small[1].weight.requires_grad is trained
            assert small[4].weight.requires_grad
            assert bool((small[1].weight == kept_rows).all()) is not trained


def test_genes_are_taught_without_what_judges_them_and_the_best_for_all_epochs(
    planted: Subject, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int | None, set[int]]] = []

    def watched(self: Any, model: nn.Module, subject: Subject, run: Run, rng: Any, **_: Any) -> nn.Module:
        x, _ = subject.data["train"].take(np.arange(len(subject.data["train"])))
        calls.append((self.epochs, {hash(tuple(row.flatten().tolist())) for row in x}))
        assert run.keep is None  # no gene goes on with another's training
        return model.eval()

    monkeypatch.setattr(Shrinking, "train", watched)
    remedy = BlendedPruning(population=3, iterations=1, short=2, part=0.25, held=0.2, top=2)
    asked: list[int] = []
    real = blended_pruning._accuracy
    monkeypatch.setattr(
        blended_pruning, "_accuracy", lambda model, data, device: asked.append(len(data)) or real(model, data, device)
    )
    remedy.apply(planted, replace(run, keep=Path("anywhere")))
    _, held = remedy._parted(planted, run)
    x, _ = held.take(np.arange(len(held)))
    judge = {hash(tuple(row.flatten().tolist())) for row in x}
    short, full = ([rows for epochs, rows in calls if epochs == of] for of in (2, None))
    assert 2 <= len(short) <= 6
    assert 1 <= len(full) <= 2
    assert {len(rows) for rows in short} == {40}
    assert {len(rows) for rows in full} == {160}
    assert not any(rows & judge for rows in short + full)
    assert set(asked) == {40}


@pytest.mark.usefixtures("undrawn")
def test_a_blend_tells_how_it_was_found_and_is_not_searched_again(
    planted: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remedy = BlendedPruning(population=3, iterations=1, epochs=1, lr=1e-3)
    done = cure(remedy, planted, probes=["accuracy"], out=tmp_path, control=False)
    notes = " ".join(done.notes)
    assert "blends were judged by 10 % of the training data" in notes
    assert "The blend by layer: 1: " in notes
    page = done.page.read_text(encoding="utf-8")
    for name in ("agreement", "agreement-least", "evolution"):
        assert f"<!-- {name} -->" in page
    monkeypatch.setattr(BlendedPruning, "apply", lambda *a: pytest.fail("searched again"))
    again = cure(remedy, planted, probes=["accuracy"], out=tmp_path, control=False)
    assert again.after.subject.fingerprint == done.after.subject.fingerprint
    assert [n for n in again.notes if "blend" in n] == [n for n in done.notes if "blend" in n]


@pytest.mark.usefixtures("untrained")
def test_figures_show_the_agreement_of_the_uncut_network(planted: Subject, run: Run) -> None:
    from assay.methods.compress.agreement import matrix

    remedy = BlendedPruning(population=2, iterations=0, top=1, criteria=("l1", "taylor-l1", "apoz"))
    cured = remedy.apply(planted, run)
    assert {name for name, _ in cured.model.named_buffers()} >= set(STORY)
    shown, least, evolution = remedy.figures(cured, run)
    taught, _ = remedy._parted(planted, run)
    x, y = taught.take(np.arange(180))
    (edge,) = edges(planted.model, x[:2])
    rho = matrix(scores(planted.model, [edge], x, y, criteria=remedy.criteria)[edge.name].numpy())
    assert shown.rows == shown.columns == remedy.criteria  # type: ignore[union-attr]
    assert np.allclose(np.array(shown.values), rho, atol=6e-4)  # type: ignore[union-attr]
    assert least.values == shown.values  # type: ignore[union-attr]
    assert evolution.lines[0].y == (pytest.approx(float(cured.model.get_buffer("blend_best")[0])),)  # type: ignore[union-attr]


@pytest.mark.usefixtures("untrained")
def test_a_layer_of_one_channel_has_no_blend_and_the_others_keep_their_names(run: Run) -> None:
    x, y = torch.rand(20, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(4, 1), nn.Tanh(), nn.Linear(1, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(),
        nn.Linear(5, 2),
    ).eval()  # fmt: skip
    subject = Subject.classifier(model, {"train": (x, y), "test": (x, y)}, name="narrow")
    assert [edge.size for edge in edges(model, x)] == [1, 6, 5]
    remedy = BlendedPruning(population=2, iterations=0, top=1)
    cured = remedy.apply(subject, run)
    _, by_layer, _ = remedy.remarks(cured, run)
    assert [told.split(":")[0] for told in by_layer.removeprefix("The blend by layer: ").split("; ")] == ["3", "5"]
    rho = cured.model.get_buffer("blend_agreement")  # the diagonal is the same in both
    least = "35"[int(rho.sum((1, 2)).argmin())]
    assert f"those of {least}, where" in remedy.figures(cured, run)[1].title


def test_a_network_without_batch_normalisation_is_told_of_scores_that_need_it(tmp_path: Path, run: Run) -> None:
    x, y = torch.rand(20, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    subject = Subject.classifier(model, {"train": (x, y), "test": (x, y)}, name="plain")
    assert Prune().why_not(subject) is None
    for name in OF_NORMS:
        assert f"{name} reads a batch normalisation, and none follows '1'" in (
            Prune(criterion=name).why_not(subject) or ""
        )
    with pytest.raises(AssayError, match="'prune' cannot be applied to 'plain': bn-gamma reads"):
        cure("prune", subject, settings={"criterion": "bn-gamma"}, out=tmp_path)
    cured = BlendedPruning(population=2, iterations=0, top=1, epochs=1).apply(subject, run)
    assert len(cured.model.get_buffer("blend_criteria")) == len(CRITERIA) - len(OF_NORMS)  # the others are blended


@pytest.mark.parametrize(
    ("remedy", "wrong", "says"),
    [
        (Prune, {"sample": 0}, "sample=0"),
        (Prune, {"price": "flops=0"}, "is no share"),
        (BlendedPruning, {"clusters": 0}, "clusters=0 is too few"),
        (BlendedPruning, {"population": 1}, "population=1 is too few"),
        (BlendedPruning, {"held": 1.0}, "held=1 is no part"),
        (BlendedPruning, {"part": 0.0}, "part=0 is no part"),
        (BlendedPruning, {"mutate": 1.5}, "mutate=1.5 is no share"),
        (BlendedPruning, {"criteria": ("l1", "l2")}, "2 criteria cannot be put into clusters=3"),
    ],
)
def test_settings_that_cannot_be_are_one_line(remedy: Any, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(AssayError, match=says) as caught:
        remedy(**wrong)
    assert "\n" not in str(caught.value)


def test_a_search_costs_what_its_settings_say() -> None:
    cost = BlendedPruning(population=10, iterations=4, short=2, part=0.2, top=3, epochs=10).cost()
    assert cost is not None
    assert cost.training == pytest.approx(10 * 5 * 2 * 0.2 / 10 + 3)
    assert cost.inference == 0.5
