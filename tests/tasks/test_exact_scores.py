"""Each task's numbers against closed forms, brute force or a library that others keep."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from sklearn.metrics import jaccard_score
from torch import Tensor

from assay.errors import AssayError, ShapeError, SubjectError
from assay.tasks import (
    Classification,
    Control,
    Detection,
    Forecast,
    ImageToImage,
    Labels,
    Ranking,
    Regression,
    Retrieval,
    Segmentation,
    Similarity,
    Tagging,
)
from assay.tasks.detection import overlap
from assay.tasks.task import above, through

RNG = np.random.default_rng(0)


def tensor(values: object) -> Tensor:
    return torch.as_tensor(np.asarray(values))


# --- one class, several labels, pairs ---


@pytest.mark.parametrize("task", [Classification(tuple("abc")), Control(tuple("abc"))])
def test_of_equal_logits_the_first_is_the_answer(task: Classification):
    out, target = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]), torch.tensor([0, 1])
    assert task.right(out, target).tolist() == [True, False]
    assert task.margin(out, target).tolist() == [0.0, 0.0]


def test_labels_may_be_any_whole_numbers():
    task, out = Classification(tuple("abc")), torch.eye(3)
    for kind in (torch.uint8, torch.int16, torch.int32):
        target = torch.arange(3).to(kind)
        assert task.wrong_targets(target.numpy()) is None
        assert task.right(out, target).all()
        assert torch.equal(task.margin(out, target), torch.ones(3))
        assert task.loss(out, target).isfinite().all()


def test_the_trivial_classifier_is_the_best_constant():
    task, target = Classification(tuple("abcd")), RNG.choice(4, 200, p=[0.1, 0.2, 0.4, 0.3])
    score = task.score(task.trivial(target).out.expand(200, 4), tensor(target)).mean()
    best = max(task.score(torch.eye(4)[c].expand(200, 4), tensor(target)).mean() for c in range(4))
    assert float(score) == float(best)


def test_overlap_of_labels_is_sklearns_jaccard():
    out, target = RNG.normal(size=(60, 4)).astype(np.float32), RNG.integers(0, 2, (60, 4))
    said, some = out > 0, target.any(1) | (out > 0).any(1)
    each = Labels(tuple("abcd")).score(tensor(out), tensor(target)).numpy()
    expected = [jaccard_score(target[i], said[i], zero_division=1.0) for i in range(60)]
    np.testing.assert_allclose(each, expected, rtol=1e-6)
    assert each[~some].all()


def test_a_label_on_the_edge_is_not_said_and_can_still_be_pushed():
    task, out = Labels(("a", "b")), torch.tensor([[0.0, 3.0], [0.0, 3.0]], requires_grad=True)
    target = torch.tensor([[0, 1], [1, 1]])
    assert task.right(out, target).tolist() == [True, False]
    assert task.score(out, target).tolist() == [1.0, 0.5]
    (slope,) = torch.autograd.grad(task.margin(out, target).sum(), out)
    assert slope.tolist() == [[-1.0, 0.0], [1.0, 0.0]]


def test_comparisons_turn_at_their_tie():
    ranking, alike = Ranking(0, 9), Similarity(2.0)
    out = torch.tensor([0.5, 0.5, 0.731058578])
    assert ranking.right(out, torch.tensor([0, 1, 1])).tolist() == [True, False, True]
    assert float(ranking.margin(out, torch.tensor([0, 1, 1]))[2]) == pytest.approx(1.0, abs=1e-6)
    assert alike.right(torch.tensor([2.0, 2.0, 1.0]), torch.tensor([0, 1, 1])).tolist() == [True, False, True]
    assert alike.margin(torch.tensor([1.0, 4.0]), torch.tensor([1, 1])).tolist() == [0.5, -1.0]


# --- numbers ---


def test_closeness_by_hand():
    task = Regression(("a", "b"), (2.0, 4.0))
    out, target = torch.tensor([[1.0, 1.0], [9.0, 0.0]]), torch.tensor([[0.0, 2.0], [0.0, 1.0]])
    assert task.score(out, target).tolist() == [(0.5 + 0.75) / 2, 0.75 / 2]
    assert task.margin(out, target).tolist() == [0.5, -3.5]


def test_the_loss_with_a_spread_is_the_crps():
    task = Regression(("a",), (0.5,), spread=True)
    mean, sigma, y = 0.3, 0.7, 1.1
    steps = integrate.quad(lambda t: (stats.norm.cdf(t, mean, sigma) - (t >= y)) ** 2, -9, 9, points=[y], limit=200)[0]
    loss = task.loss(torch.tensor([[[mean], [sigma]]]), torch.tensor([[y]]))
    assert float(loss) == pytest.approx(steps / 0.5, rel=1e-4)
    sharp = task.loss(torch.tensor([[[mean], [0.0]]]), torch.tensor([[y]]))
    assert float(sharp) == pytest.approx(abs(y - mean) / 0.5, rel=1e-4)


def test_quantiles_are_learnt_by_the_loss():
    levels = (0.1, 0.5, 0.8)
    y = np.sort(RNG.normal(size=501)).astype(np.float32)
    for task, shape in (
        (Regression(("a",), (1.0,), quantiles=levels), (3, 1)),
        (Forecast(("a",), 1, (1.0,), levels), (3, 1, 1)),
    ):
        target = tensor(y).reshape(-1, *shape[1:])
        best = [
            min(y, key=lambda c, i=i: float(task.loss(alone(i, c, shape).expand(501, *shape), target).mean()))
            for i in range(3)
        ]
        np.testing.assert_allclose(best, np.quantile(y, levels), atol=0.02)


def alone(level: int, value: float, shape: tuple[int, ...]) -> Tensor:
    """An answer in which only one quantile is not 0."""
    out = torch.zeros(shape)
    out[level] = float(value)
    return out[None]


def test_the_median_alone_costs_the_absolute_error():
    out, target = tensor(RNG.normal(size=(9, 1, 2))).float(), tensor(RNG.normal(size=(9, 2))).float()
    loss = Regression(("a", "b"), (1.0, 1.0), quantiles=(0.5,)).loss(out, target)
    torch.testing.assert_close(loss, (out[:, 0] - target).abs().mean(1))


def test_confidence_of_a_spread_is_the_chance_of_the_tolerance():
    task = Regression(("a", "b"), (0.5, 2.0), spread=True)
    sure = task.confidence(torch.tensor([[[0.0, 0.0], [0.5, 1.0]]]))
    assert sure is not None
    chance = math.prod(stats.norm.cdf(t) - stats.norm.cdf(-t) for t in (1.0, 2.0))
    assert float(sure) == pytest.approx(chance, rel=1e-5)


def test_an_image_scores_by_its_error():
    from torchmetrics.functional import image  # it takes a second, in every process that would collect it

    out, target = tensor(RNG.random((5, 3, 4, 4))).float(), tensor(RNG.random((5, 3, 4, 4))).float()
    task = ImageToImage((3, 4, 4), 0.6)
    for i in range(5):
        decibels = float(image.peak_signal_noise_ratio(out[i], target[i], data_range=1.0))
        assert float(task.score(out, target)[i]) == pytest.approx(1 - 10 ** (-decibels / 20) / 0.6, abs=1e-5)


def test_the_mean_image_is_twice_too_far_off():
    target = RNG.random((200, 1, 4, 4)).astype(np.float32)
    task = ImageToImage.of(target)
    square = (target - target.mean(0)) ** 2
    assert task.tolerance == pytest.approx(float(np.sqrt(square.mean()) / 2), rel=1e-5)
    assert float(task.loss(task.trivial(target).out.expand(200, 1, 4, 4), tensor(target)).mean()) == pytest.approx(
        4, rel=1e-4
    )


def test_a_forecast_scores_against_the_naive_step():
    series = RNG.normal(size=(30, 50, 2)).cumsum(1) * [1.0, 10.0]
    task = Forecast.of(series, 6)
    naive = np.abs(np.diff(series, axis=1))
    np.testing.assert_allclose(task.scale, naive.mean((0, 1)))
    past, future = tensor(series[:, 10:11]), tensor(series[:, 11:12])
    step = Forecast(task.channels, 1, task.scale)
    off = 1 - step.margin(past, future)
    np.testing.assert_allclose(off, (naive[:, 10] / task.scale).max(1), rtol=1e-9)
    seasonal = Forecast.of(
        np.tile(RNG.normal(size=(1, 7, 1)), (4, 6, 1)) + RNG.normal(size=(4, 42, 1)) * 1e-3, 3, season=7
    )
    assert seasonal.scale[0] < 0.01


def test_a_forecast_by_hand():
    task = Forecast(("a", "b"), 2, (2.0, 4.0))
    out, target = torch.zeros(1, 2, 2), torch.tensor([[[1.0, 8.0], [-2.0, 4.0]]])  # off by 0.75 and 1.5 naive steps
    assert task.score(out, target).tolist() == [0.125]
    assert task.margin(out, target).tolist() == [-0.5]
    assert task.loss(out, target).tolist() == [(0.25 + 1 + 4 + 1) / 4]


# --- places ---


def test_mean_iou_by_hand():
    task = Segmentation(("none", "a", "b"))
    target = torch.tensor([[[0, 0, 1, -1], [0, 0, 1, 1]]])
    said = torch.tensor([[[0, 1, 1, 2], [0, 0, 1, 0]]])  # none: 3 of 5, a: 2 of 4, b not counted
    out = torch.nn.functional.one_hot(said, 3).movedim(-1, 1).float()
    assert float(task.score(out, target)) == pytest.approx((3 / 5 + 2 / 4) / 2)


def test_mean_iou_is_sklearns_jaccard():
    task, out, target = Segmentation(tuple("abcd")), RNG.normal(size=(20, 4, 5, 5)), RNG.integers(-1, 4, (20, 5, 5))
    target[:, 0], out[:, 3] = 1, -9  # the last class is said nowhere
    for i, score in enumerate(task.score(tensor(out), tensor(target)).tolist()):
        counts = target[i] >= 0
        said = out[i].argmax(0)[counts]
        assert score == pytest.approx(
            jaccard_score(target[i][counts], said, labels=np.union1d(said, target[i][counts]), average="macro")
        )


def test_just_enough_is_enough():
    task = Segmentation(("a", "b"))
    target = torch.tensor([[[0, 0], [0, 1]]])
    out = torch.nn.functional.one_hot(torch.tensor([[[0, 0], [1, 1]]]), 2).movedim(-1, 1).float()
    score = float(task.score(out, target))
    assert score == pytest.approx((2 / 3 + 1 / 2) / 2)
    exact = Segmentation(("a", "b"), enough=score)
    assert exact.right(out, target).all()
    assert not Segmentation(("a", "b"), enough=score + 1e-6).right(out, target).any()


def test_a_small_class_is_pushed_as_much_as_a_large_one():
    task, target = Segmentation(("a", "b")), torch.zeros(1, 4, 4, dtype=torch.long)
    target[0, 0, 0] = 1
    out = (9.0 * torch.nn.functional.one_hot(target, 2)).movedim(-1, 1).requires_grad_()
    (slope,) = torch.autograd.grad(task.margin(out, target).sum(), out)
    own = slope.gather(1, target[:, None])[0, 0]
    assert float(own[0, 0]) == pytest.approx(float(own.sum() - own[0, 0]), rel=1e-5)


@pytest.mark.parametrize("enough", [1.0, 0.9, 0.5, 0.3, 0.01])
def test_a_margin_of_tags_is_above_0_where_enough_are_right(enough: float):
    task = Tagging(tuple("abc"), enough=enough)
    target = RNG.integers(0, 3, (300, 10))
    target[np.arange(10) >= RNG.integers(1, 11, 300)[:, None]] = -1
    out = tensor(RNG.normal(size=(300, 10, 3)) + 1.5 * (target[..., None] == np.arange(3)))
    counted = target >= 0
    share = ((out.argmax(2).numpy() == target) & counted).sum(1) / counted.sum(1)
    np.testing.assert_allclose(task.score(out, tensor(target)), share)
    np.testing.assert_array_equal(task.right(out, tensor(target)), share >= enough - 1e-12)


def test_of_equal_logits_the_first_tag_is_the_answer():
    task, out = Tagging(("a", "b")), torch.zeros(2, 3, 2, requires_grad=True)
    target = torch.tensor([[0, 0, 0], [1, 1, 1]])
    assert task.score(out, target).tolist() == [1.0, 0.0]
    assert task.right(out, target).tolist() == [True, False]
    (slope,) = torch.autograd.grad(task.margin(out, target).sum(), out)
    assert slope.flatten(1).any(1).all()


def test_places_that_do_not_count_cost_nothing():
    task, out = Tagging(tuple("abc")), tensor(RNG.normal(size=(5, 4, 3)))
    target = tensor(RNG.integers(0, 3, (5, 4)))
    target[:, 2:] = -1
    torch.testing.assert_close(task.loss(out, target), task.loss(out[:, :2], target[:, :2]))
    torch.testing.assert_close(task.margin(out, target), task.margin(out[:, :2], target[:, :2]))


TAGS = ("O", "B-x", "I-x", "B-y", "I-y")


def spans_of(tags: list[str]) -> set[tuple[int, int, str]]:
    """Slowly: first, last and kind of each span."""
    found, first = set(), None
    for i, tag in enumerate([*tags, "O"]):
        goes_on = first is not None and tag == f"I-{tags[first][2:]}"
        if first is not None and not goes_on:
            found.add((first, i - 1, tags[first][2:]))
            first = None
        if tag != "O" and not goes_on:
            first = i
    return found


def test_spans_are_found_as_a_slow_reader_finds_them():
    task = Tagging(TAGS, spans=True, enough=0.5)
    target = RNG.integers(0, 5, (400, 8))
    said = np.where(RNG.random((400, 8)) < 0.8, target, RNG.integers(0, 5, (400, 8)))
    target[RNG.random((400, 8)) < 0.2] = -1  # anywhere: pieces of words
    target[:, 3] = np.maximum(target[:, 3], 0)
    target[:2] = 0  # no spans
    said[0] = 0
    out = tensor(5.0 * np.eye(5)[said])
    score = task.score(out, tensor(target))
    assert {float(s) for s in score[:2]} == {1.0, 0.0}
    for i in range(400):
        counts = target[i] >= 0
        a, t = (spans_of([TAGS[c] for c in row[counts]]) for row in (said[i], target[i]))
        expected = 2 * len(a & t) / (len(a) + len(t)) if a or t else 1.0
        assert float(score[i]) == pytest.approx(expected), (said[i], target[i])


def test_a_model_that_answers_at_other_places_is_told():
    with pytest.raises(ShapeError, match=r"\(1, 2, 3, 3\).*\(1, 6, 6\)"):
        Segmentation(("a", "b")).score(torch.zeros(1, 2, 3, 3), torch.zeros(1, 6, 6, dtype=torch.long))


# --- gallery and boxes ---


def test_the_first_of_a_gallery_are_torchmetrics():
    from torchmetrics.functional import retrieval

    target = (RNG.random((40, 9)) < 0.4).astype(np.int64)
    target[:, 0], target[:, 8] = 1, 0
    out = tensor(RNG.normal(size=(40, 9)))
    for first in (1, 3, 9):
        score = Retrieval(tuple("abcdefghi"), first).score(out, tensor(target))
        for i in range(40):
            name = "recall" if target[i].sum() <= first else "precision"
            count = getattr(retrieval, f"retrieval_{name}")  # which overlooks items of similarity below 0
            measured = count(out[i].exp(), tensor(target[i]), top_k=first)
            assert float(score[i]) == pytest.approx(float(measured))
    first_hit = Retrieval(tuple("abcdefghi"), 3).right(out, tensor(target))
    np.testing.assert_array_equal(first_hit, target[np.arange(40), out.argmax(1).numpy()] == 1)


def box(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows)[None]


def test_overlap_by_hand():
    a = box((0, 0, 0.5, 0.5), (0.2, 0.2, 0.2, 0.9), (0.9, 0.9, 0.1, 0.1))
    b = box((0.25, 0, 0.75, 0.5), (0, 0, 1, 1))
    torch.testing.assert_close(overlap(a, b), torch.tensor([[[1 / 3, 0.25], [0.0, 0.0], [0.0, 0.0]]]))


def slow_f1(task: Detection, out: np.ndarray, target: np.ndarray) -> float:
    """One image, box by box."""

    def iou(a: np.ndarray, b: np.ndarray) -> float:
        sides = [max(0.0, min(a[2 + d], b[2 + d]) - max(a[d], b[d])) for d in (0, 1)]
        area = [max(0.0, c[2] - c[0]) * max(0.0, c[3] - c[1]) for c in (a, b)]
        both = sides[0] * sides[1]
        return both / max(sum(area) - both, 1e-9)

    rows = []
    for row in out:
        if row[4] > 0:
            p = np.exp(row[5:] - row[5:].max())
            rows.append((p.max() / p.sum() / (1 + np.exp(-row[4])), int(row[5:].argmax()), row[:4]))
    rows.sort(key=lambda r: -r[0])
    kept: list[tuple[int, np.ndarray]] = []
    for _, kind, b in rows:
        if not any(kind == other and iou(b, c) > task.overlap for other, c in kept):
            kept.append((kind, b))
    left = [t for t in target if t[0] >= 0]
    total, found = len(kept) + len(left), 0
    for kind, b in kept:
        fits = [iou(b, t[1:]) if t[0] == kind else -1 for t in left]
        if fits and max(fits) >= task.overlap:
            left.pop(int(np.argmax(fits)))
            found += 1
    return 2 * found / total if total else 1.0


def test_boxes_are_counted_as_a_slow_reader_counts_them():
    task = Detection(("a", "b"), overlap=0.4)
    corner = RNG.random((300, 5, 2)) * 0.4
    target = np.concatenate([RNG.integers(-1, 2, (300, 5, 1)), corner, corner + 0.2 + 0.3 * RNG.random((300, 5, 2))], 2)
    target[target[..., 0] < 0] = -1
    near = np.repeat(target, 2, axis=1)  # two proposals for each, so that some are dropped
    shown = np.concatenate([near[..., 1:], RNG.normal(1, 2, (300, 10, 1)), 4 * np.eye(2)[near[..., 0].astype(int)]], 2)
    shown += RNG.normal(size=shown.shape) * ([0.03] * 4 + [0, 2, 2])
    score = task.score(tensor(shown), tensor(target))
    expected = [slow_f1(task, shown[i], target[i]) for i in range(300)]
    np.testing.assert_allclose(score, expected, atol=1e-6)
    assert len({round(s, 6) for s in expected}) > 10


def test_a_second_box_on_the_same_thing_counts_against():
    task = Detection(("a",))
    target = box((0, 0.1, 0.1, 0.5, 0.5))
    once = (0.1, 0.1, 0.5, 0.5, 3.0, 0.0)
    aside = (0.1, 0.3, 0.5, 0.7, 2.0, 0.0)  # overlaps a third: neither dropped nor found
    scores = [float(task.score(box(*rows), target)) for rows in ((once,), (once, once), (once, aside), (aside,))]
    assert scores == [1.0, 1.0, pytest.approx(2 / 3), 0.0]
    nothing = torch.full((1, 1, 5), -1.0)
    assert float(task.score(box((0.1, 0.1, 0.5, 0.5, -3.0, 0.0)), nothing)) == 1.0
    assert float(task.score(box(once), nothing)) == 0.0


def test_the_loss_of_boxes_trains_them():
    task = Detection(("a", "b"))
    target = box((0, 0.1, 0.1, 0.4, 0.5), (1, 0.5, 0.4, 0.9, 0.8))
    rng = torch.Generator().manual_seed(0)
    out = (0.3 * torch.randn(1, 6, 7, generator=rng) + torch.tensor([0.4, 0.4, 0.6, 0.6, 0, 0, 0])).requires_grad_()
    climb = torch.optim.Adam([out], 0.05)
    for _ in range(200):
        climb.zero_grad()
        task.loss(out, target).sum().backward()
        climb.step()
    assert float(task.score(out, target)) == 1.0


# --- what tasks share ---


def test_a_borrowed_gradient_leaves_the_value_to_the_bit():
    value = torch.tensor([1e-38, -1e-9, 0.1, -0.0])
    slope = torch.tensor([0.7, 1e6, -3.0, 5.0], requires_grad=True)
    out = through(value, slope**2)
    assert torch.equal(out, value)
    (gradient,) = torch.autograd.grad(out.sum(), slope)
    assert torch.equal(gradient, 2 * slope)


def test_above_has_the_sign_of_enough():
    score = torch.tensor([0.5, 0.5 - 2**-25, 1.0, 0.0])
    assert (above(score, 0.5) > 0).tolist() == [True, False, True, False]


def test_what_cannot_be_a_task_is_refused():
    for make, value in (
        (lambda: Classification(("a",)), "1"),
        (lambda: Labels(()), "at least one"),
        (lambda: Ranking(3, 3), "3"),
        (lambda: Similarity(0), "0"),
        (lambda: Regression((), ()), "at least one"),
        (lambda: Regression(("a",), (0.0,)), "0"),
        (lambda: Regression(("a",), (1.0, 2.0)), "2 tolerances"),
        (lambda: Regression(("a",), (1.0,), units=("m", "s")), "2 units"),
        (lambda: Regression(("a",), (1.0,), quantiles=(0.9, 0.1)), "0.9"),
        (lambda: Regression(("a",), (1.0,), spread=True, quantiles=(0.5,)), "two answers"),
        (lambda: Regression.of(np.ones((5, 1))), "same for every input"),
        (lambda: Segmentation(("a",)), "1"),
        (lambda: Segmentation(("a", "b"), enough=0), "0"),
        (lambda: Tagging(("O", "B-x", "noun"), spans=True), "noun"),
        (lambda: Tagging(("O", "B-x"), enough=1.5), "1.5"),
        (lambda: ImageToImage((1, 4, 4), -1), "-1"),
        (lambda: ImageToImage((4, 4), 1), "4, 4"),
        (lambda: ImageToImage((1, 4, 4), 1, low=1, high=1), "1 and 1"),
        (lambda: Forecast((), 3, ()), "0 channels"),
        (lambda: Forecast(("a",), 3, (1.0, 1.0)), "2 scales"),
        (lambda: Forecast(("a",), 3, (0.0,)), "0"),
        (lambda: Forecast.of(np.ones((3, 5, 1)), 2), "repeats itself"),
        (lambda: Forecast.of(np.ones((3, 1, 1)), 2), "3, 1, 1"),
        (lambda: Retrieval(("a", "b"), 3), "3"),
        (lambda: Detection(()), "at least one"),
        (lambda: Detection(("a",), overlap=1.0), "1"),
    ):
        with pytest.raises(AssayError, match=value) as told:
            make()
        assert "\n" not in str(told.value)


def test_wrong_answers_of_one_task_alone():
    boxes = torch.tensor([[[3.0, 4.0, 27.0, 30.0, 1.0, 0.0]]])
    for task, out, value in (
        (Ranking(0, 1), torch.tensor([1.5]), "1.5"),
        (Similarity(1), torch.tensor([-0.5]), "-0.5"),
        (Regression(("a",), (1.0,), spread=True), torch.tensor([[[0.0], [-0.25]]]), "-0.25"),
        (Retrieval(("a", "b")[:2], 1), torch.tensor([[0.5, 0.5]]), "0.5"),
        (Detection(("a",)), boxes, "30"),
    ):
        told = task.wrong_output(out, 1)
        assert told is not None
        assert value in told
        with pytest.raises(SubjectError, match=task.name()):
            task.checked(out, 1)
    for task, target, value in (
        (Segmentation(("a", "b")), np.full((1, 2, 2), -1), "every place"),
        (Retrieval(("a", "b"), 1), np.zeros((1, 2), int), "no item"),
        (Retrieval(("a", "b"), 1), np.ones((1, 2), int), "every item"),
        (Detection(("a",)), np.array([[[0, 0.5, 0.1, 0.2, 0.3]]]), "0.5, 0.1"),
        (Detection(("a",)), np.array([[[0.5, 0.1, 0.1, 0.2, 0.3]]]), "0.5"),
    ):
        told = task.wrong_targets(target)
        assert told is not None
        assert value in told


def test_trivial_tags_are_the_best_of_all_constant_rows():
    task, target = Tagging(("O", "B-x", "I-x")), RNG.integers(0, 3, (50, 3))
    score = task.score(task.trivial(target).out.expand(50, 3, 3), tensor(target)).mean()
    best = max(
        float(task.score(torch.eye(3)[list(row)].expand(50, 3, 3), tensor(target)).mean())
        for row in itertools.product(range(3), repeat=3)
    )
    assert float(score) == pytest.approx(best)
