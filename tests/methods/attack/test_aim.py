"""An Aim in the place of labels: what is known by hand, and the same path as the labels where both can be said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.attack import Aim, apgd, carlini_wagner, fgsm, minimal_norm, pgd
from assay.methods.attack.affinity import cross
from assay.methods.attack.average_sample import average_sample
from assay.methods.attack.chance import chance
from assay.methods.attack.ensemble import worst_case
from assay.methods.attack.hop_skip_jump import hop_skip_jump
from assay.methods.attack.loss import Goal
from assay.methods.attack.magnitude_margin import magnitude_margin
from assay.methods.attack.masking import examine, vital_signs
from assay.methods.attack.square import square
from assay.methods.attack.transfer import broken, transfer
from assay.methods.attack.universal import error_rate, under, universal

from .conftest import Task, apart, assert_same_path


def within(tolerance: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Every number within its tolerance, as a margin: n d, n d -> n."""

    def margin(out: Tensor, target: Tensor) -> Tensor:
        return (1 - (out - target).abs().reshape(len(out), -1) / tolerance).amin(1)

    return margin


class Line(NamedTuple):
    """y = W x + b with known errors: the smallest change that leaves the tolerance is known for each input."""

    model: nn.Module
    x: Tensor  # n f, far from the box
    aim: Aim
    linf: Tensor  # n
    l2: Tensor  # n


def line(numbers: int = 1, n: int = 24, features: int = 12, seed: int = 0) -> Line:
    rng = torch.Generator().manual_seed(seed)
    w = torch.randn(numbers, features, generator=rng)
    b = torch.randn(numbers, generator=rng)
    x = 0.5 + 0.05 * torch.randn(n, features, generator=rng)
    error = 1.6 * torch.rand(n, numbers, generator=rng) - 0.8
    model = nn.Linear(features, numbers)
    with torch.no_grad():
        model.weight.copy_(w)
        model.bias.copy_(b)
        target = model(x) - error
    room = 1 - error.abs()  # n d
    sizes = (room / w.abs().sum(1), room / torch.linalg.vector_norm(w, dim=1))
    return Line(model, x, Aim(within(1.0), target), *(size.amin(1) for size in sizes))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_smallest_change_that_leaves_the_tolerance_is_found(norm: Any) -> None:
    task = line()
    exact = getattr(task, norm)
    found = minimal_norm(task.model, task.x, task.aim, norm=norm, steps=60)
    assert found.success.all()
    assert (found.distance >= exact * (1 - 1e-4)).all()
    assert (found.distance <= exact * 1.01).all()


def test_of_several_numbers_the_nearest_to_leave_is_mostly_found() -> None:
    """A margin that is the least of several shows the way of one alone: never too near, some too far."""
    task = line(numbers=4)
    ratio = minimal_norm(task.model, task.x, task.aim, norm="l2", steps=60).distance / task.l2
    assert ratio.min() >= 1 - 1e-4
    assert ratio.median() < 1.01
    assert ratio.mean() < 1.1


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("numbers", [1, 4])
def test_the_worst_case_is_met_exactly_where_the_radius_reaches(norm: Any, numbers: int) -> None:
    task = line(numbers)
    exact = getattr(task, norm)
    radius = float(exact.median())
    found = worst_case(task.model, task.x, task.aim, norm=norm, radius=radius, steps=20, queries=50)
    clear = (exact / radius - 1).abs() > (0.001 if numbers == 1 else 0.03)
    assert clear.sum() > 15
    assert torch.equal(found.success[clear], (exact < radius)[clear])
    assert (found.distance <= radius * (1 + 1e-6)).all()
    assert torch.equal(task.aim.margin(task.model(found.x), task.aim.target) <= 0, found.success)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_exact_answer_has_a_flat_margin_and_is_no_safer_for_it(norm: Any) -> None:
    task = line()
    with torch.no_grad():
        aim = Aim(within(1.0), task.model(task.x))
    w = task.model.weight.detach()
    exact = 1 / float(torch.linalg.vector_norm(w, 1 if norm == "linf" else 2))
    found = minimal_norm(task.model, task.x, aim, norm=norm, steps=60)
    assert found.success.all()
    assert (found.distance <= exact * 1.01).all()
    for share in (0.99, 1.01):
        success = worst_case(task.model, task.x, aim, norm=norm, radius=share * exact, steps=20, queries=50).success
        assert (success == (share > 1)).all()


@given(
    slope=st.lists(st.floats(-3, 3, width=32).filter(lambda w: abs(w) > 0.1), min_size=2, max_size=6),
    error=st.floats(0.01, 0.9),
    sign=st.sampled_from([-1, 1]),
    share=st.floats(0.3, 3).filter(lambda s: abs(s - 1) > 0.01),
)
@settings(deadline=None, max_examples=25)
def test_pgd_leaves_the_tolerance_iff_its_radius_reaches(
    slope: list[float], error: float, sign: int, share: float
) -> None:
    """From the input itself: a random start may lie on the side of the tolerance that is further away."""
    w = torch.tensor(slope)
    aim = Aim(within(1.0), torch.tensor([[2.0 - sign * error]]))
    radius = share * (1 - error) / float(w.abs().sum())
    x = torch.zeros(1, len(slope))
    found = pgd(
        lambda at: (at @ w + 2.0)[:, None], x, aim, radius=radius, steps=5, random_start=False, bounds=(-100, 100)
    )
    assert bool(found.success) == (share > 1)
    assert found.distance[0] <= radius * (1 + 1e-6)


# two classes, said as labels and as an Aim


def own_lead(z: Tensor, y: Tensor) -> Tensor:
    return z.gather(1, y[:, None])[:, 0] - z.gather(1, 1 - y[:, None])[:, 0]


class Noisy(nn.Module):
    """The same dice for whoever asks first: draws come from a generator of its own."""

    def __init__(self, model: nn.Module, size: float) -> None:
        super().__init__()
        self.model, self.size, self.rng = model, size, torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x + self.size * torch.randn(x.shape, generator=self.rng))
        return out


PATHS: dict[str, Callable[..., Any]] = {
    "pgd": lambda m, x, y: pgd(m, x, y, radius=0.1, steps=10),
    "pgd margin l2": lambda m, x, y: pgd(m, x, y, norm="l2", radius=1.0, steps=10, loss="margin", leave=False),
    "pgd l1": lambda m, x, y: pgd(m, x, y, norm="l1", radius=3.0, steps=10, loss="dlr"),
    "pgd as published": lambda m, x, y: pgd(m, x, y, radius=0.1, steps=10, as_published=True),
    "pgd random": lambda m, x, y: pgd(Noisy(m, 0.05), x, y, radius=0.1, steps=6, eot=3),
    "pgd random, mean of chances": lambda m, x, y: pgd(
        Noisy(m, 0.05), x, y, radius=0.1, steps=6, eot=3, eot_mode="mean_prob"
    ),
    "apgd": lambda m, x, y: apgd(m, x, y, radius=0.1, steps=15),
    "apgd targets": lambda m, x, y: apgd(m, x, y, radius=0.1, steps=15, loss="dlr", targets=3),
    "fgsm": lambda m, x, y: fgsm(m, x, y, radius=0.1, random_start=True),
    "minimal_norm": lambda m, x, y: minimal_norm(m, x, y, steps=20),
    "minimal_norm l0": lambda m, x, y: minimal_norm(m, x, y, norm="l0", steps=20),
    "carlini_wagner": lambda m, x, y: carlini_wagner(m, x, y, steps=20, search=2),
    "square": lambda m, x, y: square(m, x, y, radius=0.1, queries=40),
    "square l2": lambda m, x, y: square(m, x, y, norm="l2", radius=1.0, queries=40),
    "hop_skip_jump": lambda m, x, y: hop_skip_jump(m, x, y, queries=150, draws=20),
    "transfer": lambda m, x, y: transfer(m, m, x, y, attack=lambda f, a, b: fgsm(f, a, b, radius=0.1)),
}


@pytest.mark.parametrize("name", PATHS)
def test_two_classes_as_an_aim_are_attacked_along_the_same_path(two_digits: Task, name: str) -> None:
    x, y = two_digits.x[:40], two_digits.y[:40]
    labels, aim = PATHS[name](two_digits.model, x, y), PATHS[name](two_digits.model, x, Aim(own_lead, y))
    assert_same_path(labels, aim)
    assert apart(labels.distance, aim.distance) <= 0.03


def test_so_are_they_by_what_gives_no_attacked(two_digits: Task, rng: torch.Generator) -> None:
    m, x, y = two_digits.model, two_digits.x[:40], two_digits.y[:40]
    aim = Aim(own_lead, y)
    one, other = (worst_case(m, x, t, radius=0.12, steps=10, queries=50) for t in (y, aim))
    assert apart(one.success, other.success) <= 0.03
    assert apart(one.by, other.by) <= 0.05
    assert 0 < one.success.sum() < len(x)
    one_for_all, other_for_all = (universal(m, x, t, radius=0.2, steps=10, batch=20) for t in (y, aim))
    assert apart(one_for_all.delta, other_for_all.delta) <= 0.03
    assert one_for_all.rate == pytest.approx(other_for_all.rate, abs=0.051)
    delta = one_for_all.delta
    assert error_rate(m, x, y, delta, batch=16) == error_rate(m, x, aim, delta, batch=16) > 0
    mixed = torch.where(torch.arange(len(y)) % 5 == 0, 1 - y, y)  # some are wrong before anyone asks
    one_margin, other_margin = (magnitude_margin(m, x, t, all_rivals=True) for t in (mixed, Aim(own_lead, mixed)))
    for a, b in zip(one_margin, other_margin, strict=True):
        assert apart(a, b) <= 0.03
    there = under(x, delta)
    assert torch.equal(broken(m, there, y), broken(m, there, aim))
    crossed = [cross({"m": m}, x, t, attack=lambda f, a, b: fgsm(f, a, b, radius=0.1)).held for t in (y, aim)]
    assert apart(*crossed) <= 0.03
    seen = [
        examine(m, x, t, radius=0.1, steps=8, queries=20, rng=torch.Generator().manual_seed(0)).held for t in (y, aim)
    ]
    assert apart(*seen) <= 0.03


def test_fresh_answers_are_counted_alike(two_digits: Task) -> None:
    x, y = two_digits.x[:40], two_digits.y[:40]
    for draws in (1, 4):
        labels, aim = (chance(Noisy(two_digits.model, 0.6), x, t, draws=draws) for t in (y, Aim(own_lead, y)))
        assert 0 < labels.wrong.sum() < labels.wrong.numel() * 64
        assert torch.equal(labels.wrong, aim.wrong)
        assert torch.equal(labels.by_size, aim.by_size)
        assert torch.equal(labels.said == y, aim.said == 1)


def test_of_several_passes_the_aim_says_what_the_answer_is() -> None:
    """Each pass is off by 1 or by -1, and their mean by nothing: good as one answer, bad pass by pass."""

    class Swinging(nn.Module):
        side = 1.0

        def forward(self, x: Tensor) -> Tensor:
            self.side = -self.side
            return x[:, :1] + self.side

    x = torch.full((3, 2), 0.5)
    target = x[:, :1]
    for aim, wrong in ((Aim(within(0.5), target), True), (Aim(within(0.5), target, lambda outs: outs.mean(0)), False)):
        told = chance(Swinging(), x, aim, draws=4)
        assert (told.wrong == (64 if wrong else 0)).all()
        assert (told.said == (not wrong)).all()
        assert (told.by_size[:, 0] == 256).all()  # of one pass each
        assert (told.by_size[:, 1] == (128 if wrong else 0)).all()
        assert broken(Swinging(), x, aim, draws=4).all() == wrong
        assert len(aim[:2]) == 2
        assert aim[:2].average is aim.average
    found = pgd(Swinging(), x, Aim(within(0.5), target, lambda outs: outs.mean(0)), radius=0.4, steps=5, eot=4)
    assert not found.success.any()
    found = pgd(Swinging(), x, Aim(within(0.3), target, lambda outs: outs.mean(0)), radius=0.4, steps=5, eot=4)
    assert found.success.all()


# outputs of other shapes


class Scene(nn.Module):
    """One score map for "thing" and one for "ground": n 1 8 8 -> n 2 8 8."""

    def forward(self, x: Tensor) -> Tensor:
        bright = nn.functional.avg_pool2d(x, 3, stride=1, padding=1) - 0.5
        return torch.cat([-bright, bright], 1)


def counted(out: Tensor, target: Tensor) -> Tensor:
    """The share of pixels that are right, less 0.9; the slope is that of the soft count."""
    right = (out.argmax(1) == target).to(out.dtype).mean((1, 2)) - 0.9
    soft = out.mul(10).softmax(1).gather(1, target[:, None]).mean((1, 2, 3))
    return soft + (right - soft).detach()


def scenes() -> tuple[Tensor, Aim]:
    x = 0.5 + 0.25 * torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(0)).clamp(-2, 2)
    return x, Aim(counted, Scene()(x).argmax(1))


def test_a_counted_margin_on_maps_falls_with_the_radius() -> None:
    x, aim = scenes()
    found = [worst_case(Scene(), x, aim, radius=r, steps=10, queries=30).success for r in (0.001, 0.03, 0.2)]
    assert not found[0].any()
    assert found[1].any()
    assert found[2].all()
    assert pgd(Scene(), x, aim, radius=0.2, steps=10).success.all()
    nearest = minimal_norm(Scene(), x, aim, norm="linf", steps=60)
    assert nearest.success.all()
    assert (nearest.distance < 0.2).all()
    assert (counted(Scene()(nearest.x), aim.target) <= 0).all()


@pytest.mark.parametrize(
    ("shape", "dtype"), [*(((*s,), torch.float32) for s in ((), (1,), (3,), (2, 2, 3))), ((3,), torch.float64)]
)
def test_outputs_of_any_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    w = torch.randn(5, max(1, torch.Size(shape).numel()), generator=torch.Generator().manual_seed(1), dtype=dtype)

    def model(x: Tensor) -> Tensor:
        return (x @ w).reshape(len(x), *shape)

    x = torch.full((4, 5), 0.5, dtype=dtype)
    aim = Aim(within(0.2), model(x) + 0.1)
    for found in (pgd(model, x, aim, radius=0.3), minimal_norm(model, x, aim), square(model, x, aim, radius=0.3)):
        assert found.success.all()
        assert found.x.dtype == dtype
    assert worst_case(model, x, aim, radius=0.3, steps=10).success.all()
    assert not vital_signs(model, x + 0.01 * torch.arange(4)[:, None], aim)["stairs"].any()


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_outputs_and_a_bf16_search(half: torch.dtype) -> None:
    task = line()
    aim = Aim(within(1.0), task.aim.target)
    assert aim.read(task.model(task.x).to(half)).dtype == torch.float32
    found = pgd(lambda x: task.model(x).to(half), task.x, aim, radius=2 * float(task.linf.max()), steps=5)
    assert found.success.all()
    assert pgd(task.model, task.x, aim, radius=2 * float(task.linf.max()), steps=5, precision="bf16").success.all()


def test_without_gradients_it_is_found_too() -> None:
    task = line()

    def blind(x: Tensor) -> Tensor:
        return task.model(x.detach()).detach()

    with pytest.raises(AssayError, match="carries no gradient"):
        pgd(blind, task.x, task.aim, radius=0.1)
    found = worst_case(blind, task.x, task.aim, radius=2 * float(task.linf.max()), queries=300, gradients=False)
    assert found.success.all()
    walked = hop_skip_jump(blind, task.x, task.aim, queries=2000)
    assert walked.success.all()
    assert (walked.distance >= task.l2 * (1 - 1e-4)).all()
    other = 2 / float(torch.linalg.vector_norm(task.model.weight.detach())) - task.l2  # to leave on the far side
    side = torch.minimum((walked.distance / task.l2 - 1).abs(), (walked.distance / other - 1).abs())
    assert (side < 0.05).all()
    assert (walked.distance <= task.l2 * 1.05).double().mean() > 0.5


def test_hop_skip_jump_starts_from_an_input_whose_answer_is_too_far_from_this_ones_target() -> None:
    """Noise never leaves the tolerance here; only the other input does, and only it may serve as a start."""
    x = torch.tensor([[0.5, 0.5], [0.5, 0.51], [0.999, 0.999]])

    def corner(at: Tensor) -> Tensor:
        return (at.sum(1) > 1.99).to(at.dtype)  # n

    found = hop_skip_jump(corner, x, Aim(within(0.5), corner(x)), queries=200, draws=10)
    assert found.success.all()
    assert (found.distance[:2] < 0.75).all()


# what is not a number, and what is not an Aim


def test_nan_is_never_right_even_where_the_margin_does_not_see_it() -> None:
    def model(x: Tensor) -> Tensor:
        return x / (x > 0.3).to(x.dtype)  # 0.2 / 0 is infinite, 0 / 0 is NaN

    def blind(out: Tensor, target: Tensor) -> Tensor:
        return 1 + 0 * target + 0 * out.nan_to_num(0.0, 0.0, 0.0).sum(1)

    x = torch.full((2, 3), 0.5)
    aim = Aim(blind, torch.zeros(2))
    lost = torch.tensor([[0.5, 0.5, 0.5], [0.5, 0.0, 0.5]])
    assert Goal(aim).reached(aim.read(model(lost))).tolist() == [False, True]
    assert chance(model, lost, aim, draws=1).wrong.tolist() == [0, 1]
    assert chance(model, lost, aim, draws=1).sick.tolist() == [False, True]
    assert broken(model, lost, aim, lost=True).tolist() == [False, True]
    with pytest.raises(SubjectError, match="NaN for input 1"):
        pgd(model, lost, aim, radius=0.1)

    def root(x: Tensor) -> Tensor:
        return (x - 0.45).sqrt()  # NaN below

    assert pgd(root, x, Aim(within(100.0), root(x)), radius=0.2, loss="margin").success.all()


def test_an_aim_is_taken_apart_by_rows_as_labels_are() -> None:
    aim = Aim(within(1.0), torch.arange(12.0).reshape(4, 3))
    assert len(aim) == 4
    assert aim.shape == (4,)
    assert aim.device.type == "cpu"
    assert aim.label.tolist() == [1, 1, 1, 1]
    for rows in (torch.tensor([2, 0]), torch.tensor([True, False, True, False]), slice(1, 3)):
        torch.testing.assert_close(aim[rows].target, aim.target[rows])
        assert len(aim[rows].label) == 2
    assert aim.to("cpu").margin is aim.margin
    z = aim.read(aim.target + 0.25)
    torch.testing.assert_close(z, torch.tensor([[-0.375, 0.375]]).expand(4, 2))
    assert Goal(aim).reached(aim.read(aim.target + 1.0)).all()  # the edge itself is not good enough


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: pgd(t.model, t.x, t.aim[:3], radius=0.1), "The Aim has 3 rows of targets for 24 inputs"),
        (lambda t: pgd(t.model, t.x, t.aim, radius=0.1, target=torch.zeros(24).long()), "no class to lead to"),
        (lambda t: universal(t.model, t.x, t.aim, radius=0.1, target=0), "no class to lead to"),
        (lambda t: average_sample(t.model, t.x, t.aim, means=t.x, radius=0.1), "needs class labels, not an Aim"),
        (lambda t: pgd(lambda x: (t.model(x),), t.x, t.aim, radius=0.1), "returned tuple for 24 inputs"),
        (lambda t: pgd(lambda x: t.model(x).mean(), t.x, t.aim, radius=0.1), r"returned shape \(\) for 24 inputs"),
        (lambda t: pgd(t.model, t.x, Aim(lambda o, y: o - y, t.aim.target), radius=0.1), r"of shape \(24, 1\)"),
        (lambda t: pgd(t.model, t.x, Aim(lambda o, y: (o > y)[:, 0], t.aim.target), radius=0.1), "returned torch.bool"),
        (lambda t: Aim(within(1.0), torch.tensor(1.0)), "one row of targets per input"),
        (lambda t: worst_case(t.model, t.x, t.aim, radius=0.1, mask=torch.ones(3).bool()), "mask has shape"),
    ],
)
def test_errors_in_one_line(call: Callable[[Line], Any], words: str) -> None:
    with pytest.raises((AssayError, ShapeError), match=words) as caught:
        call(line())
    assert "\n" not in str(caught.value)


# features that nobody can change


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_what_may_not_change_never_moves_and_the_rest_is_used_to_the_full(norm: Any) -> None:
    task = line(features=16)
    free = torch.arange(16) % 3 > 0
    w = task.model.weight.detach()[0, free]
    room = task.linf * task.model.weight.detach().abs().sum()
    exact = room / torch.linalg.vector_norm(w, 1 if norm == "linf" else 2)
    radius = float(exact.median())
    found = worst_case(task.model, task.x, task.aim, norm=norm, radius=radius, steps=20, queries=50, mask=free)
    clear = (exact / radius - 1).abs() > 0.001
    assert torch.equal(found.success[clear], (exact < radius)[clear])
    assert torch.equal(found.x[:, ~free], task.x[:, ~free])
    assert (found.x != task.x)[:, free].any()
    nearest = minimal_norm(task.model, task.x, task.aim, norm=norm, steps=60, mask=free)
    assert torch.equal(nearest.x[:, ~free], task.x[:, ~free])
    assert (nearest.distance <= exact * 1.01).all()
    walked = hop_skip_jump(task.model, task.x, task.aim, norm=norm, queries=200, mask=free)
    assert torch.equal(walked.x[:, ~free], task.x[:, ~free])
    for seed in range(2):  # from random starts, too
        rng = torch.Generator().manual_seed(seed)
        one = universal(task.model, task.x, task.aim, norm=norm, radius=radius, steps=5, restarts=2, mask=free, rng=rng)
        assert (one.delta[~free] == 0).all()
        assert (one.delta[free] != 0).any()
    blind = worst_case(task.model, task.x, task.aim, norm=norm, radius=radius, queries=50, gradients=False, mask=free)
    assert torch.equal(blind.x[:, ~free], task.x[:, ~free])


def test_a_classifier_keeps_what_may_not_change_too(digits: Task) -> None:
    x, y = digits.x[:30], digits.y[:30]
    free = torch.arange(64) % 2 == 0
    masked, whole = (worst_case(digits.model, x, y, radius=0.15, steps=10, queries=30, mask=m) for m in (free, None))
    assert torch.equal(masked.x[:, ~free], x[:, ~free])
    assert masked.success.sum() < whole.success.sum()
