"""What holds for every task: one suite over an example of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from assay.tasks import (
    OURS,
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
    Task,
)
from assay.tasks.detection import overlap

N = 40
RNG = torch.Generator().manual_seed(0)


class Example(NamedTuple):
    task: Task
    out: Tensor  # n *o: some right, some wrong
    target: Tensor  # n *t
    perfect: Tensor  # n *o
    step: float  # in which an answer moves enough for its margin to fall


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=RNG)


def whole(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=RNG)


def hot(target: Tensor, k: int, size: float = 9.0) -> Tensor:  # *t -> *t k
    return size * torch.nn.functional.one_hot(target.clamp_min(0), k).float()


def classification(kind: type[Classification]) -> Example:
    target = whole(4, N)
    return Example(kind(tuple("abcd")), normal(N, 4) + hot(target, 4, 1), target, hot(target, 4), 0.1)


def labels() -> Example:
    target = whole(2, N, 3)
    target[0] = 0  # no label holds
    signed = 2.0 * target - 1
    return Example(Labels(tuple("abc")), normal(N, 3) + signed, target, 9 * signed, 0.1)


def pairs(task: Ranking | Similarity) -> Example:
    target = whole(2, N)
    if isinstance(task, Ranking):
        return Example(task, torch.rand(N, generator=RNG), target, 1e-6 + (1 - 2e-6) * target, 0.02)
    return Example(task, 4 * torch.rand(N, generator=RNG), target, 4.0 * (1 - target), 0.02)


def regression(form: str) -> Example:
    target = normal(N, 2).double()
    if form == "one number":
        task = Regression(("price",), (0.7,), units=("EUR",))
        return Example(task, (target[:, 0] + normal(N)).float(), target[:, 0], target[:, 0].float(), 0.01)
    names, tolerance = ("a", "b"), (0.8, 1.2)
    off = (target + normal(N, 2)).float()
    if form == "numbers":
        return Example(Regression(names, tolerance), off, target, target.float(), 0.01)
    if form == "spread":
        spread = 0.2 + torch.rand(N, 2, generator=RNG)
        task = Regression(names, tolerance, spread=True)
        return Example(task, torch.stack([off, spread], 1), target, torch.stack([target.float(), spread / 10], 1), 0.01)
    levels = torch.tensor([-1.0, 0.0, 1.0])[:, None]
    task = Regression(names, tolerance, quantiles=(0.1, 0.5, 0.9))
    return Example(task, off[:, None] + levels, target, target.float()[:, None] + 0 * levels, 0.01)


def segmentation() -> Example:
    target = whole(3, N, 6, 5)
    target[:, 0, 0] = -1
    target[1] = 2  # one class in all of the picture
    right = hot(target, 3).movedim(-1, 1)
    return Example(Segmentation(tuple("abc")), normal(N, 3, 6, 5) + 0.22 * right, target, right, 4.0)


def image_to_image() -> Example:
    target = torch.rand(N, 1, 4, 4, generator=RNG)
    return Example(ImageToImage((1, 4, 4), 0.3), target + 0.3 * normal(N, 1, 4, 4), target, target.clone(), 0.01)


def forecast(quantiles: tuple[float, ...]) -> Example:
    target = normal(N, 4, 2)
    off = target + 0.6 * normal(N, 4, 2)
    task = Forecast(("load", "wind"), 4, (0.7, 0.5), quantiles)
    if not quantiles:
        return Example(task, off, target, target.clone(), 0.01)
    levels = torch.linspace(-1, 1, len(quantiles))[:, None, None]
    return Example(task, off[:, None] + levels, target, target[:, None] + 0 * levels, 0.01)


def tagging(spans: bool, enough: float) -> Example:
    target = whole(5, N, 7)
    target[torch.arange(7) >= whole(6, N)[:, None] + 2] = -1  # 2 to 7 places count
    task = Tagging(("O", "B-x", "I-x", "B-y", "I-y"), spans, enough)
    return Example(task, normal(N, 7, 5) + 0.22 * hot(target, 5), target, hot(target, 5), 6.0)


def retrieval() -> Example:
    target = (torch.rand(N, 12, generator=RNG) < 0.3).long()
    target[:, 0], target[:, 1] = 1, 0
    return Example(Retrieval(tuple(map(str, range(12))), 3), normal(N, 12) + target, target, 20.0 * target, 0.05)


def detection() -> Example:
    corner = torch.tensor([[0.05, 0.05], [0.55, 0.05], [0.05, 0.55]])
    corner = corner + 0.05 * torch.rand(N, 3, 2, generator=RNG)
    box = torch.cat([corner, corner + 0.35], 2)  # n 3 4, apart from each other
    target = torch.cat([whole(2, N, 3, 1), box], 2)
    target[torch.arange(3) >= whole(4, N)[:, None]] = -1  # 0 to 3 targets
    real, kind = target[..., 0] >= 0, target[..., 0].long()
    perfect = torch.cat([box, 24.0 * real[..., None] - 12, hot(kind, 2)], 2)
    spare = torch.tensor([0.6, 0.6, 0.9, 0.9, -12.0, 0.0, 0.0]).expand(N, 1, 7)
    perfect = torch.cat([perfect, spare], 1)
    fainter = torch.tensor([1.0] * 4 + [0.3] * 3)
    noise = normal(N, 4, 7) * torch.tensor([0.04] * 4 + [3.0] * 3)
    return Example(Detection(("disc", "square")), perfect * fainter + noise, target, perfect, 9.0)


EXAMPLES: dict[str, Example] = {
    "classification": classification(Classification),
    "control": classification(Control),
    "labels": labels(),
    "ranking": pairs(Ranking(0, 9)),
    "similarity": pairs(Similarity(2.0)),
    "regression": regression("numbers"),
    "regression of one number": regression("one number"),
    "regression with spread": regression("spread"),
    "regression as quantiles": regression("quantiles"),
    "segmentation": segmentation(),
    "image-to-image": image_to_image(),
    "forecast": forecast(()),
    "forecast as quantiles": forecast((0.1, 0.4, 0.6, 0.9)),
    "tagging": tagging(False, 1.0),
    "tagging, most of it": tagging(False, 0.6),
    "tagging of spans": tagging(True, 0.5),
    "retrieval": retrieval(),
    "detection": detection(),
}
every = pytest.mark.parametrize("name", EXAMPLES)


def test_every_task_has_an_example():
    assert {type(each.task) for each in EXAMPLES.values()} == set(OURS.values())


@every
def test_scores_lie_between_0_and_1_and_perfection_is_1(name: str):
    task, out, target, perfect, _ = EXAMPLES[name]
    score = task.score(out, target)
    assert score.shape == (N,)
    assert score.dtype == out.dtype
    assert 0 <= score.min() < score.max() <= 1  # the example has good and bad answers
    assert torch.equal(task.score(perfect, target), torch.ones(N))
    assert task.right(perfect, target).all()
    assert (task.loss(perfect, target) <= task.loss(out, target) + 1e-6).all()


@every
def test_right_is_a_margin_above_0(name: str):
    task, out, target, *_ = EXAMPLES[name]
    right = task.right(out, target)
    assert right.dtype == torch.bool
    assert 0 < right.sum() < N
    assert torch.equal(right, task.margin(out, target) > 0)


@every
def test_one_step_against_the_gradient_lowers_the_margin(name: str):
    task, out, target, _, step = EXAMPLES[name]
    out = out.clone().requires_grad_()
    margin = task.margin(out, target)
    (slope,) = torch.autograd.grad(margin.sum(), out)
    assert slope.isfinite().all()
    moved = slope.flatten(1).any(1) if slope.ndim > 1 else slope != 0
    assert moved.all()
    with torch.no_grad():
        after = task.margin(out - step * slope.sign(), target)
    could = margin.detach() > margin.detach().min()  # what is counted has a lowest value
    assert (after[could] < margin[could]).all()
    assert (after <= margin).all()


@every
def test_a_perfect_answer_has_a_finite_gradient(name: str):
    task, _, target, perfect, _ = EXAMPLES[name]
    out = perfect.clone().requires_grad_()
    for read in (task.margin, task.loss):
        (slope,) = torch.autograd.grad(read(out, target).sum(), out)
        assert slope.isfinite().all()


@every
def test_what_is_not_a_number_is_never_right(name: str):
    task, _, target, perfect, _ = EXAMPLES[name]
    flat = perfect.reshape(N, -1)
    for place in range(flat.shape[1]):
        broken = flat.clone()
        broken[:, place] = torch.nan
        broken = broken.reshape(perfect.shape)
        assert not task.right(broken, target).any()
        assert not task.score(broken, target).any()
        assert isinstance(task.words(broken[0]), str)


@every
def test_the_trivial_answer_scores_what_it_scores(name: str):
    task, _, target, *_ = EXAMPLES[name]
    says, plain = task.trivial(target.numpy())
    expanded = plain.expand(N, *plain.shape)
    assert says
    assert task.wrong_output(expanded, N) is None
    score = task.score(expanded, target)
    one_by_one = torch.stack([task.score(plain[None], target[i : i + 1])[0] for i in range(N)])
    torch.testing.assert_close(score, one_by_one)
    assert score.mean() < 1


@every
def test_answers_are_judged_one_by_one(name: str):
    task, out, target, *_ = EXAMPLES[name]
    for read in (task.score, task.margin, task.loss):
        alone = torch.cat([read(out[i : i + 1], target[i : i + 1]) for i in range(0, N, 7)])
        torch.testing.assert_close(read(out, target)[::7], alone, rtol=1e-5, atol=1e-6)
    for read in (task.score, task.margin, task.loss, task.right):
        assert read(out[:0], target[:0]).shape == (0,)


@every
def test_good_outputs_and_targets_pass(name: str):
    task, out, target, perfect, _ = EXAMPLES[name]
    assert task.wrong_output(out, N) is None
    assert task.wrong_output(perfect, N) is None
    assert task.wrong_targets(target.numpy()) is None
    assert task.checked(out, N) is out


@every
@pytest.mark.parametrize(
    ("spoil", "value"),
    [
        (lambda out: out[:-1], str(N)),
        (lambda out: out[..., None, None], "1, 1"),
        (lambda out: torch.cat([out[:7], out[7:8] * torch.nan, out[8:]]), "7"),
        (lambda out: {"logits": out}, "dict"),
        (lambda out: out.numpy(), "ndarray"),
    ],
)
def test_a_wrong_output_is_told_in_one_line(name: str, spoil: Callable[[Tensor], object], value: str):
    task, out, *_ = EXAMPLES[name]
    told = task.wrong_output(spoil(out), N)
    assert told is not None
    assert "\n" not in told
    assert value in told


@every
@pytest.mark.parametrize(
    ("spoil", "value"),
    [
        (lambda y: y[..., None, None], "1, 1"),
        (lambda y: y.astype(str), ""),
        (lambda y: np.where(np.arange(y.size).reshape(y.shape) == y.size - y.size // N, np.nan, y), ""),
        (lambda y: np.where(np.arange(y.size).reshape(y.shape) == y.size - y.size // N, 99, y), "99"),
    ],
    ids=["shape", "words", "NaN", "99"],
)
def test_wrong_targets_are_told_in_one_line(name: str, spoil: Callable[[np.ndarray], np.ndarray], value: str):
    task, _, target, *_ = EXAMPLES[name]
    if value == "99" and isinstance(task, Regression | Forecast | ImageToImage):
        pytest.skip("99 is a number like any other")
    told = task.wrong_targets(spoil(target.numpy()))
    assert told is not None
    assert "\n" not in told
    assert value in told


@every
def test_the_average_of_equal_draws_says_the_same(name: str):
    task, out, target, *_ = EXAMPLES[name]
    mean = task.average(out.expand(3, *out.shape))
    assert mean.shape == out.shape
    torch.testing.assert_close(task.margin(mean, target), task.margin(out, target), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(task.score(mean, target), task.score(out, target), rtol=1e-4, atol=1e-4)
    sure, before = task.confidence(mean), task.confidence(out)
    assert (sure is None) == (before is None)
    if sure is not None and before is not None:
        torch.testing.assert_close(sure, before, rtol=1e-4, atol=1e-4)


@every
def test_confidence_is_a_share(name: str):
    task, out, *_ = EXAMPLES[name]
    sure = task.confidence(out)
    if sure is not None:
        assert sure.shape == (N,)
        assert 0 <= sure.min() < sure.max() <= 1


@every
def test_words_and_pictures(name: str):
    task, out, target, perfect, _ = EXAMPLES[name]
    for i in range(N):
        for words in (task.words(out[i]), task.words(perfect[i]), task.told(target[i])):
            assert words
            assert "\n" not in words
    picture = task.picture(out[0])
    assert (picture is None) == (not isinstance(task, Segmentation | ImageToImage))
    if picture is not None:
        assert picture.dtype == np.float32
        assert picture.shape[0] in (1, 3)
        assert 0 <= picture.min() < picture.max() <= 1


@every
def test_strata_are_whole_numbers(name: str):
    task, _, target, *_ = EXAMPLES[name]
    strata = task.strata(target.numpy())
    assert strata.shape == (N,)
    assert strata.dtype == np.int64


@every
def test_a_task_is_a_value(name: str):
    task = EXAMPLES[name].task
    assert repr(task) == repr(type(task)(**vars(task)))
    assert hash(task) == hash(type(task)(**vars(task)))
    assert task.headline
    assert task.good
    assert task.output


def test_the_boxes_of_the_example_are_apart():
    example = EXAMPLES["detection"]
    among = overlap(example.perfect[..., :4], example.perfect[..., :4])
    assert (among - torch.eye(4) < 0.1).all()


@pytest.mark.parametrize("task", [Regression(("a", "b"), (0.7, 0.5)), Forecast(("load", "wind"), 4, (0.7, 0.5))])
def test_an_exact_answer_has_a_slope_that_leads_away(task: Regression | Forecast):
    """torch takes 0 for the slope of |a - b| at 0, and an attack that starts there would stand still."""
    exact = torch.rand(3, 2) if isinstance(task, Regression) else torch.rand(3, 4, 2)
    at = exact.clone().requires_grad_()
    margin = task.margin(at, exact)
    assert margin.tolist() == [1.0] * 3
    (slope,) = torch.autograd.grad(margin.sum(), at)
    assert (task.margin(exact - 0.01 * slope.sign(), exact) < 1).all()
