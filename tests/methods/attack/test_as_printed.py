"""The printed protocol: its steps, its last point, its one answer, and where it flatters beside the adaptive one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.methods.attack.as_printed import carlini_wagner_as_printed, pgd_as_printed, right_as_printed
from assay.methods.attack.carlini_wagner import carlini_wagner
from assay.methods.attack.pgd import pgd


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class Line(nn.Module):
    """Two classes apart along a line, with noise on its score; it counts its passes."""

    def __init__(self, noise: float = 0.0, bias: float = 0.0) -> None:
        super().__init__()
        self.noise, self.bias, self.count = noise, bias, 0

    def forward(self, x: Tensor) -> Tensor:  # n 4 -> n 2
        self.count += 1
        s = x.sum(1) - 2 + self.bias + self.noise * torch.randn(len(x))
        return torch.stack([s, -s], 1)


X, Y = torch.full((6, 4), 0.6), torch.zeros(6, dtype=torch.int64)


def test_pgd_takes_fixed_steps_of_one_draw_from_the_input_to_the_last_point() -> None:
    model = Line()
    got = pgd_as_printed(model, X, Y, radius=0.05, steps=4)
    assert_close(got, X - 4 * 0.007)  # 0.028 of 0.05: the fixed step does not reach the ball's edge
    assert model.count == 4 + 1  # one draw a step, and a look at the end
    assert_close(pgd_as_printed(model, X, Y, radius=0.05), X - 0.05)
    assert torch.equal(pgd_as_printed(model, X, Y, radius=0.0), X)


def test_the_last_point_is_kept_though_a_better_one_was_met() -> None:
    class Bowl(nn.Module):
        """The second class wins in a narrow band that a step of 0.1 jumps over on its way back and forth."""

        def forward(self, x: Tensor) -> Tensor:
            s = -(x.sum(1) - 2.1).abs()
            return torch.stack([-s, s], 1)

    ours = pgd(Bowl(), X, Y, radius=0.2, steps=5, step=0.1, random_start=False, leave=False)
    theirs = pgd_as_printed(Bowl(), X, Y, radius=0.2, steps=5, step=0.1)
    met = (ours.x.sum(1) - 2.1).abs()
    assert (met <= (theirs.sum(1) - 2.1).abs() + 1e-6).all()
    steps = X.sum(1) - 2.1
    for _ in range(5):
        steps = steps - 0.4 * steps.sign()
    assert_close(theirs.sum(1) - 2.1, steps, rtol=0, atol=1e-5)


def test_carlini_wagner_is_the_public_one_at_a_fixed_c() -> None:
    model = Line()
    got = carlini_wagner_as_printed(model, X, Y, c=1.0, steps=50)
    assert_close(got, carlini_wagner(model, X, Y, c=1.0, steps=50, as_published=True).x)
    assert (got < X).all()
    short = carlini_wagner_as_printed(model, X, Y, c=1.0, steps=10)
    assert ((X - short) < (X - got)).all()  # 50 steps at 0.001 are still on their way
    assert_close(carlini_wagner_as_printed(model, X, Y, c=0.0, steps=10), X)


def test_one_answer_is_the_mean_of_so_many_passes_and_a_clean_mistake_counts() -> None:
    model = Line()
    far = X - 0.2
    assert right_as_printed(model, X, X, Y, draws=3).all()
    assert not right_as_printed(model, X, far, Y, draws=3).any()
    assert not right_as_printed(model, far, X, Y, draws=3).any()  # right under attack, wrong before
    before = model.count
    right_as_printed(model, X, far, Y, draws=5)
    assert model.count - before == 10


def test_more_draws_a_step_make_a_stronger_attack_than_print_on_a_noisy_model() -> None:
    """A slope that noise swamps: the sign of one draw is nearly a coin, that of a mean of 40 is right."""

    class Swamped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            s = (x + 4 * torch.randn_like(x) * (x - x.detach())).sum(1)
            return torch.stack([s, -s], 1)

    x, y = torch.full((40, 4), 0.5), torch.zeros(40, dtype=torch.int64)
    printed = pgd_as_printed(Swamped(), x, y, radius=0.3)
    adaptive = pgd(Swamped(), x, y, radius=0.3, eot=40, steps=8, leave=False, random_start=False, as_published=True).x
    assert float((x - adaptive).mean()) > 2 * float((x - printed).mean())
    assert float((x - adaptive).mean()) > 0.2


@pytest.mark.parametrize("radius", [-0.1, float("nan")])
def test_a_radius_that_is_none_is_refused(radius: float) -> None:
    with pytest.raises(ValueError, match="radius must be finite"):
        pgd_as_printed(Line(), X, Y, radius=radius)
