from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError, SubjectError
from assay.methods.attack import fgsm, pgd
from assay.methods.attack.ball import distance
from assay.methods.attack.transfer import broken, learn_substitute, small_substitute, transfer

from .conftest import Halves, Task, accuracy, apart


class Labels:
    """A victim that gives its answer as a one-hot row, keeps what it was asked, and has no gradient at all."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.asked = model, []

    def __call__(self, x: Tensor) -> Tensor:
        x.numpy()  # as a model outside torch does; refuses a tensor that asks for a gradient
        self.asked.append(x.clone())
        return nn.functional.one_hot(self.model(x).argmax(1), 10).float()


def learn(victim: object, task: Task, seed: int = 0, **settings: float) -> nn.Module:
    rng = torch.Generator().manual_seed(seed)
    student = small_substitute("mlp", (64,), 10, rng=rng)
    settings = {"rounds": 1, "epochs": 8, **settings}
    return learn_substitute(victim, task.train_x[:300], substitute=student, rng=rng, **settings).model  # type: ignore[arg-type]


def test_labels_alone_teach_a_substitute_whose_examples_break_the_victim(digits: Task) -> None:
    victim = Labels(digits.model)
    student = learn(victim, digits)
    alike = (student(digits.x).argmax(1) == digits.model(digits.x).argmax(1)).double().mean()
    assert alike > 0.85
    attack = partial(pgd, radius=0.2, leave=False)
    got = transfer(victim, student, digits.x, digits.y, attack=attack)
    noise = digits.x + 0.2 * torch.randn(digits.x.shape, generator=torch.Generator().manual_seed(0)).sign()
    noisy = broken(digits.model, noise.clamp(0, 1), digits.y)
    assert accuracy(got.success) < accuracy(noisy) - 0.3
    white = attack(digits.model, digits.x, digits.y)
    assert accuracy(white.success) <= accuracy(got.success)


def test_success_is_the_victims_and_the_rest_the_attacks(digits: Task) -> None:
    student = learn(digits.model, digits)
    attack = partial(fgsm, radius=0.1)
    got, made = transfer(digits.model, student, digits.x, digits.y, attack=attack), attack(student, digits.x, digits.y)
    assert torch.equal(got.x, made.x)
    assert torch.equal(got.distance, made.distance)
    assert (distance(got.x, digits.x, "linf") <= 0.1).all()
    assert torch.equal(got.success, digits.model(got.x).argmax(1) != digits.y)
    assert not torch.equal(got.success, made.success)


def test_the_model_itself_as_substitute_is_the_white_box(digits: Task) -> None:
    attack = partial(pgd, radius=0.05)
    got = transfer(digits.model, digits.model, digits.x, digits.y, attack=attack)
    assert apart(got.success, attack(digits.model, digits.x, digits.y).success) <= 0.01


def test_every_round_asks_for_the_step_up_the_answered_class_and_nothing_twice(halves: Halves) -> None:
    """A linear substitute that does not learn: its Jacobian is known, so is every point it must ask for."""
    asked = []

    def victim(x: Tensor) -> Tensor:
        asked.append(x.clone())
        return halves.model(x)

    seeds = torch.cat([halves.x, halves.x - 0.3 * halves.w.sign()])
    assert halves.model(seeds).argmax(1).tolist() == [0] * 6 + [1] * 6
    student = nn.Linear(12, 2)
    before = student.weight.detach().clone()
    rng = torch.Generator().manual_seed(0)
    learned = learn_substitute(
        victim, seeds, substitute=student, rounds=2, epochs=1, lr=1e-12, reach=0.1, batch=100, rng=rng
    )
    assert_close(student.weight, before, rtol=0, atol=1e-6)
    assert [len(q) for q in asked] == [12, 12, 24]
    assert learned.asked == 48
    points = asked[0]
    for new in asked[1:]:
        said = halves.model(points).argmax(1)
        way = (before[said] - before[1 - said]).sign()
        assert_close(new, (points + 0.1 * way).clamp(0, 1), rtol=0, atol=1e-6)
        points = torch.cat([points, new])


def test_what_it_asks_stays_in_the_bounds(digits: Task) -> None:
    victim = Labels(digits.model)
    learn(victim, digits, rounds=2, epochs=1, reach=0.3)
    asked = torch.cat(victim.asked)
    assert len(asked) == 1200
    assert asked.min() >= 0
    assert asked.max() <= 1


def test_a_seed_gives_the_same_substitute_and_the_global_generator_is_left_alone(digits: Task) -> None:
    state = torch.random.get_rng_state()
    one, two, other = (learn(digits.model, digits, seed, epochs=2) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    for a, b, c in zip(one.parameters(), two.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
        assert not a.requires_grad
        assert a.grad is None
    assert not one.training


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 45, 77), (1, 4, 4), (3, 224, 224)])
def test_a_substitute_takes_pictures_of_any_size(shape: tuple[int, ...]) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(2, *shape)
    assert small_substitute("cnn", shape, 7, rng=rng)(x).shape == (2, 7)
    assert small_substitute("mlp", shape, 7, rng=rng)(x).shape == (2, 7)


def test_a_random_victim_is_judged_by_its_mean(digits: Task) -> None:
    """Noise on the logits so large that one pass is a lottery: many passes agree with the quiet model."""
    rng = torch.Generator().manual_seed(0)

    def noisy(x: Tensor) -> Tensor:
        z = digits.model(x)
        return z + 10 * torch.randn(z.shape, generator=rng)

    quiet = broken(digits.model, digits.x, digits.y)
    once, often = (broken(noisy, digits.x, digits.y, draws=k) for k in (1, 200))
    assert (often == quiet).double().mean() > 0.9
    assert (once == quiet).double().mean() < (often == quiet).double().mean() - 0.1


def test_bad_input_is_told(digits: Task) -> None:
    rng = torch.Generator().manual_seed(0)
    with pytest.raises(AssayError, match="at least 1 seed"):
        learn_substitute(digits.model, digits.x[:0], substitute=nn.Linear(64, 10), rng=rng)
    with pytest.raises(AssayError, match=r"a 'cnn' for inputs \(channels, h, w\)"):
        small_substitute("cnn", (64,), 10, rng=rng)
    with pytest.raises(SubjectError, match="output is NaN for input 0"):
        broken(lambda x: digits.model(x) * torch.nan, digits.x, digits.y)
