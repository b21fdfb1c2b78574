from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError, SubjectError
from assay.methods.attack import Attacked, pgd
from assay.methods.attack.attacked import Slope
from assay.methods.attack.ball import Norm, distance
from assay.methods.attack.loss import Goal

from .conftest import Halves, Task, accuracy, apart, assert_same_path

NORMS: tuple[tuple[Norm, float], ...] = (("linf", 0.05), ("l2", 0.3), ("l1", 1.5))


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2), ("l1", math.inf)])
@pytest.mark.parametrize("loss", ["ce", "margin", "dlr"])
def test_linear_model_loses_exactly_the_dual_norm(halves: Halves, norm: Norm, dual: float, loss: str) -> None:
    """The worst margin in a ball of radius r is m - r ||w||_dual, and it is met where theory says."""
    r = 0.1
    got = pgd(halves.model, halves.x, halves.y, norm=norm, radius=r, steps=60, step=r / 2, loss=loss, leave=False)  # type: ignore[arg-type]
    fall = halves.margin - ((got.x - 0.5) @ halves.w + 0.4)
    assert_close(fall, torch.full_like(fall, r * torch.linalg.vector_norm(halves.w, dual).item()), rtol=1e-4, atol=1e-6)
    if norm == "linf":
        assert_close(got.x, halves.x - r * halves.w.sign(), rtol=0, atol=1e-6)
    assert_close(got.distance, torch.full_like(got.distance, r), rtol=1e-4, atol=0)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_success_is_exactly_where_the_boundary_is_in_reach(halves: Halves, norm: Norm) -> None:
    dual = {"linf": 1, "l2": 2, "l1": math.inf}[norm]
    far = halves.margin / torch.linalg.vector_norm(halves.w, dual)
    for share, broken in ((0.99, False), (1.01, True)):
        radius = far * share
        got = pgd(halves.model, halves.x, halves.y, norm=norm, radius=radius, steps=60, step=0.05)
        assert (got.success == broken).all()
        assert (got.distance <= radius.double()).all()


@pytest.mark.parametrize(("norm", "radius"), NORMS)
def test_inside_the_ball_and_the_box_and_honest(digits: Task, norm: Norm, radius: float) -> None:
    got = pgd(digits.model, digits.x, digits.y, norm=norm, radius=radius, steps=10)
    assert (distance(got.x, digits.x, norm) <= radius).all()
    assert ((got.x >= 0) & (got.x <= 1)).all()
    assert torch.equal(got.success, digits.model(got.x).argmax(1) != digits.y)
    assert_close(got.distance, distance(got.x, digits.x, norm))


@pytest.mark.parametrize(("norm", "radius"), NORMS)
def test_radius_zero_returns_the_input_and_the_clean_accuracy(digits: Task, norm: Norm, radius: float) -> None:
    got = pgd(digits.model, digits.x, digits.y, norm=norm, radius=0.0, steps=3)
    assert torch.equal(got.x, digits.x)
    assert torch.equal(got.success, digits.model(digits.x).argmax(1) != digits.y)


@pytest.mark.parametrize(("norm", "radius"), NORMS)
def test_accuracy_falls_with_radius_steps_and_restarts(digits: Task, norm: Norm, radius: float) -> None:
    def held(**settings: float) -> float:
        return accuracy(pgd(digits.model, digits.x, digits.y, norm=norm, **({"radius": radius} | settings)).success)  # type: ignore[arg-type]

    by_radius = [held(radius=radius * k) for k in (0, 0.5, 1, 2, 20)]
    assert by_radius == sorted(by_radius, reverse=True)
    assert by_radius[-1] == 0
    by_steps = [held(steps=k) for k in (1, 5, 40)]
    assert by_steps[0] >= by_steps[1] - 0.005
    assert by_steps[1] >= by_steps[2] - 0.005
    assert held(restarts=3) <= by_radius[2]


HEADS = {
    "times 100": lambda z: 100 * z,
    "times 0.01": lambda z: 0.01 * z,
    "log softmax": lambda z: z.log_softmax(1),
    "softmax": lambda z: torch.softmax(z, 1),
    "softmax of times 100": lambda z: nn.functional.softmax(100 * z, dim=1),
    "sigmoid": lambda z: torch.sigmoid(z / 3),  # where it rounds to one, classes are tied
    "mean of softmaxes": lambda z: (z.softmax(1) + (z + 1).softmax(1)) / 2,
}


@pytest.mark.parametrize("loss", ["ce", "margin", "dlr"])
def test_scale_and_head_do_not_matter(digits: Task, loss: str) -> None:
    def held(model: Callable[[Tensor], Tensor]) -> float:
        return accuracy(pgd(model, digits.x, digits.y, radius=0.08, steps=10, loss=loss).success)  # type: ignore[arg-type]

    plain = held(digits.model)
    assert 0.2 < plain < 0.8
    others = {name: held(lambda x, head=head: head(digits.model(x))) for name, head in HEADS.items()}  # type: ignore[misc]
    assert others == pytest.approx(dict.fromkeys(HEADS, plain), rel=0, abs=0.0101)


def test_as_published_cross_entropy_is_blunted_by_large_logits(digits: Task) -> None:
    """What the departure is for: with logits times 100 the printed attack stands still and says nothing."""

    def loud(x: Tensor) -> Tensor:
        return 100 * digits.model(x)

    printed = pgd(loud, digits.x, digits.y, radius=0.08, steps=10, as_published=True)
    ours = pgd(loud, digits.x, digits.y, radius=0.08, steps=10)
    assert accuracy(ours.success) < accuracy(printed.success) - 0.05


def test_best_is_never_worse_than_last(digits: Task) -> None:
    kwargs = {"radius": 0.08, "steps": 7, "step": 0.05, "loss": "margin"}
    best = pgd(digits.model, digits.x, digits.y, leave=False, **kwargs)  # type: ignore[arg-type]
    last = pgd(digits.model, digits.x, digits.y, as_published=True, **kwargs)  # type: ignore[arg-type]
    assert (best.success >= last.success).all()
    height = [Goal(digits.y, None, "margin").height(digits.model(a.x)) for a in (best, last)]
    held = ~best.success
    assert (height[0][held] >= height[1][held] - 1e-5).all()
    assert (height[0][held] > height[1][held] + 1e-3).any()  # steps this long overshoot somewhere


def test_leaving_early_changes_no_verdict(digits: Task) -> None:
    stay = pgd(digits.model, digits.x, digits.y, radius=0.08, steps=10, leave=False)
    leave = pgd(digits.model, digits.x, digits.y, radius=0.08, steps=10, leave=True)
    assert apart(stay.success, leave.success) <= 0.01


def test_every_restart_runs_while_inputs_hold(digits: Task) -> None:
    sure = digits.model(digits.x).topk(2, dim=1).values.diff(dim=1)[:, 0] < -5
    seen: list[Tensor] = []

    def model(x: Tensor) -> Tensor:
        if x.requires_grad:
            seen.append(x.detach().clone())
        out: Tensor = digits.model(x)
        return out

    y = digits.model(digits.x[sure]).argmax(1)
    pgd(model, digits.x[sure], y, radius=0.001, steps=4, restarts=3)
    assert len(seen) == 12
    assert not torch.equal(seen[0], seen[4])  # from another start


def test_inputs_that_leave_cost_no_more_passes(digits: Task) -> None:
    seen = []

    def model(x: Tensor) -> Tensor:
        seen.append(len(x))
        return digits.model(x)

    pgd(model, digits.x, digits.y, radius=0.5, steps=40)
    assert sum(seen) < 6 * len(digits.x)


@pytest.mark.parametrize(("norm", "radius"), NORMS)
def test_target_is_reached(digits: Task, norm: Norm, radius: float) -> None:
    target = (digits.y + 3) % 10
    for loss in ("ce", "margin", "dlr"):
        got = pgd(digits.model, digits.x, digits.y, norm=norm, radius=8 * radius, steps=40, target=target, loss=loss)  # type: ignore[arg-type]
        assert torch.equal(got.success, digits.model(got.x).argmax(1) == target)
        assert got.success.float().mean() > 0.9


@pytest.mark.parametrize("loss", ["ce", "margin", "dlr"])
def test_two_classes(two_digits: Task, loss: str) -> None:
    x, y = two_digits.x, two_digits.y
    free = pgd(two_digits.model, x, y, radius=0.4, loss=loss)  # type: ignore[arg-type]
    aimed = pgd(two_digits.model, x, y, radius=0.4, loss=loss, target=1 - y)  # type: ignore[arg-type]
    assert accuracy(free.success) < 0.2
    assert apart(free.success, aimed.success) <= 0.02


@pytest.mark.parametrize(("norm", "radius"), NORMS)
def test_mask_leaves_the_rest_bit_equal(digits: Task, norm: Norm, radius: float) -> None:
    mask = torch.arange(64) >= 32
    got = pgd(digits.model, digits.x, digits.y, norm=norm, radius=4 * radius, mask=mask)
    assert torch.equal(got.x[:, ~mask], digits.x[:, ~mask])
    assert got.success.float().mean() > 0.3


def test_any_callable_loss(digits: Task) -> None:
    named = pgd(digits.model, digits.x, digits.y, radius=0.08, loss="margin")

    def minus_margin(z: Tensor, y: Tensor) -> Tensor:
        rest = z.masked_fill(nn.functional.one_hot(y, z.shape[1]).bool(), -torch.inf).amax(1)
        return rest - z.gather(1, y[:, None])[:, 0]

    assert_same_path(pgd(digits.model, digits.x, digits.y, radius=0.08, loss=minus_margin), named)


def test_one_radius_per_input_packs_budgets_in_one_batch(digits: Task) -> None:
    x, y = digits.x[:40].repeat(2, 1), digits.y[:40].repeat(2)
    radius = torch.tensor([0.02, 0.2]).repeat_interleave(40)
    got = pgd(digits.model, x, y, radius=radius)
    assert (got.distance <= radius.double()).all()
    assert got.success[:40].sum() < got.success[40:].sum()


# Random models ------------------------------------------------------------------------------------------------------


class Noisy(nn.Module):
    """A model that stays random in eval mode: Gaussian noise on its input, from a generator of its own."""

    def __init__(self, model: nn.Module, sigma: float) -> None:
        super().__init__()
        self.model, self.sigma, self.rng = model, sigma, torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x + self.sigma * torch.randn(x.shape, generator=self.rng))
        return out


@pytest.mark.parametrize("mode", ["loss", "mean_prob"])
@pytest.mark.parametrize(("norm", "radius"), NORMS)
def test_eot_on_a_deterministic_model_takes_the_same_path(digits: Task, norm: Norm, radius: float, mode: str) -> None:
    runs: list[Attacked] = [
        pgd(digits.model, digits.x, digits.y, norm=norm, radius=radius, steps=6, eot=k, eot_mode=mode, leave=False)  # type: ignore[arg-type]
        for k in (1, 3)
    ]
    assert_same_path(*runs)


def test_eot_gradient_noise_falls_as_one_over_root_k(digits: Task) -> None:
    x, y = digits.x[:8], digits.y[:8]
    model = Noisy(digits.model, 0.3)

    def deviation(k: int) -> float:
        goal = Goal(y.repeat(60), None, "margin")
        rows = Slope(model, goal, eot=k).at(x.repeat(60, 1)).gradient  # each row has its own noise
        return rows.view(60, *x.shape).std(0).mean().item()

    assert_close(deviation(1) / deviation(16), 4.0, rtol=0.15, atol=0)


def test_mean_prob_is_the_gradient_of_the_averaged_softmax() -> None:
    """Against autograd on the whole average at once, draws fixed by hand."""
    rng = torch.Generator().manual_seed(0)
    weights = torch.randn(5, 4, 3, generator=rng)
    x, y = torch.rand(6, 4, generator=rng), torch.randint(3, (6,), generator=rng)
    turn = iter(range(5))

    def model(x: Tensor) -> Tensor:
        return x @ weights[next(turn)]

    goal = Goal(y, None, "ce", as_published=True)
    got = Slope(model, goal, eot=5, eot_mode="mean_prob").at(x).gradient
    at = x.clone().requires_grad_()
    mean = torch.stack([(at @ w).softmax(1) for w in weights]).mean(0)
    (want,) = torch.autograd.grad(-mean.gather(1, y[:, None]).log().sum(), at)
    assert_close(nn.functional.normalize(got), nn.functional.normalize(want), rtol=1e-4, atol=1e-5)


def test_random_model_is_judged_by_the_mean_of_fresh_draws(digits: Task) -> None:
    got = pgd(Noisy(digits.model, 0.05), digits.x, digits.y, radius=0.1, eot=4, steps=8)
    assert accuracy(got.success) < 0.6


# State and edges ----------------------------------------------------------------------------------------------------


def test_parameters_collect_no_gradient_and_mode_stays(digits: Task) -> None:
    pgd(digits.model, digits.x[:20], digits.y[:20], radius=0.1, steps=2)
    assert all(p.grad is None and p.requires_grad for p in digits.model.parameters())
    assert not digits.model.training


def test_same_seed_same_numbers_and_no_global_seed(digits: Task) -> None:
    state = torch.random.get_rng_state()
    one, two = (
        pgd(digits.model, digits.x, digits.y, radius=0.05, steps=3, rng=torch.Generator().manual_seed(5)).x
        for _ in range(2)
    )
    assert torch.equal(one, two)
    assert torch.equal(state, torch.random.get_rng_state())


def test_bf16_search_is_believed_only_in_float32(digits: Task) -> None:
    got = pgd(digits.model, digits.x, digits.y, radius=0.08, steps=10, precision="bf16")
    full = pgd(digits.model, digits.x, digits.y, radius=0.08, steps=10)
    assert torch.equal(got.success, digits.model(got.x).argmax(1) != digits.y)
    assert abs(accuracy(got.success) - accuracy(full.success)) <= 0.02


def test_loss_trace_climbs(digits: Task) -> None:
    got = pgd(digits.model, digits.x, digits.y, radius=0.05, steps=10, leave=False)
    assert got.loss.shape == (10, len(digits.x))
    assert got.loss[-1].mean() > got.loss[0].mean()


def test_bad_input_is_refused_in_words(digits: Task) -> None:
    x, y, model = digits.x[:4], digits.y[:4], digits.model
    with pytest.raises(AssayError, match=r"pass x / 255"):
        pgd(model, (x * 255).to(torch.uint8), y, radius=0.1)
    with pytest.raises(AssayError, match=r"Inputs span \[.*\] but the bounds are \[0, 1\]; scale the inputs"):
        pgd(model, x * 255, y, radius=0.1)
    with pytest.raises(AssayError, match="Input 2 has NaN"):
        pgd(model, x.index_fill(0, torch.tensor([2]), torch.nan), y, radius=0.1)
    with pytest.raises(AssayError, match="equal to its label"):
        pgd(model, x, y, radius=0.1, target=y)
    with pytest.raises(AssayError, match="Found label 99 but the model has 10 classes"):
        pgd(model, x, y.index_fill(0, torch.tensor([0]), 99), radius=0.1)
    with pytest.raises(ShapeError, match=r"y\.argmax\(-1\)"):
        pgd(model, x, nn.functional.one_hot(y, 10), radius=0.1)
    with pytest.raises(AssayError, match="class indices"):
        pgd(model, x, y.float(), radius=0.1)
    with pytest.raises(ShapeError, match="Stack a single score"):
        pgd(lambda x: model(x)[:, 0], x, y, radius=0.1)
    with pytest.raises(AssayError, match="gradient-free attacks square or hop_skip_jump"):
        pgd(lambda x: model(x).detach(), x, y, radius=0.1)
    with pytest.raises(AssayError, match="minimal_norm"):
        pgd(model, x, y, norm="l0", radius=2)


@pytest.mark.parametrize("leave", [True, False])
def test_nan_gradients_and_outputs_name_the_input(digits: Task, leave: bool) -> None:
    x = digits.x.clone()
    x[:, 0] = 0.5
    x[17, 0] = 0.0  # the square root has slope infinity there, and times 0 that is NaN

    def rooted(x: Tensor) -> Tensor:
        out: Tensor = digits.model(x) + 0 * x[:, :1].sqrt()
        return out

    with pytest.raises(SubjectError, match="gradient is NaN for input 17"):
        pgd(rooted, x, digits.y, radius=0.1, random_start=False, leave=leave)
    with pytest.raises(SubjectError, match="output is NaN for input 17"):
        pgd(lambda z: digits.model(z) + 0 * z[:, :1].log(), x, digits.y, radius=0.1, random_start=False, leave=leave)
