from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from assay.errors import AssayError
from assay.methods.attack import ensemble
from assay.methods.attack.apgd import apgd
from assay.methods.attack.ball import Norm, distance
from assay.methods.attack.ensemble import worst_case
from assay.methods.attack.side_by_side import side_by_side
from assay.nn.tally import counted

from .conftest import Task

CASES: list[tuple[Norm, float]] = [("linf", 0.08), ("l2", 0.6)]


def margins(task: Task, at: Tensor) -> Tensor:
    z = task.model(at).detach()
    return z.gather(1, task.y[:, None])[:, 0] - z.scatter(1, task.y[:, None], -torch.inf).amax(1)


@pytest.mark.parametrize(("norm", "radius"), CASES)
def test_it_breaks_what_one_target_after_the_other_breaks(digits: Task, norm: Norm, radius: float) -> None:
    ours = side_by_side(digits.model, digits.x, digits.y, norm=norm, radius=radius, steps=40)
    theirs = apgd(digits.model, digits.x, digits.y, norm=norm, radius=radius, steps=40, loss="dlr", targets=9)
    assert 0.2 < float(theirs.success.float().mean()) < 0.9
    assert float((ours.success != theirs.success).float().mean()) <= 0.02
    left = margins(digits, ours.x)
    clear = left.abs() > 1e-4  # in another batch a tie may fall to the other side
    assert torch.equal((left < 0)[clear], ours.success[clear])
    assert float(clear.float().mean()) > 0.97
    assert float(ours.distance.max()) <= radius * (1 + 1e-6)
    torch.testing.assert_close(ours.distance, distance(ours.x, digits.x, norm))
    assert ours.loss.shape == (40, len(digits.x))


def test_all_targets_take_the_steps_of_one(digits: Task) -> None:
    """Nothing leaves where nothing breaks: 15 passes of 3 x 4 rows, not 3 x 15 of 4."""
    batches = []

    class Watched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            batches.append(len(x))
            return digits.model(x)  # type: ignore[no-any-return]

    held = digits.model(digits.x).argmax(1) == digits.y
    x, y = digits.x[held][:4], digits.y[held][:4]
    found = side_by_side(Watched(), x, y, radius=1e-4, steps=15, targets=3)
    assert not bool(found.success.any())
    assert batches.count(12) == 15 + 2  # and the last points, and the margins of what was found
    assert len(batches) == 15 + 3


@pytest.mark.parametrize("first", [0.5, 1.5])
def test_of_the_climbs_that_fail_the_nearest_is_kept(first: float) -> None:
    """Three linear classes: the margin to class 1 hardly moves, that to class 2 falls from 1 by 0.1 * 9, to 0.1.

    Whichever of them is the likelier at the start, the point that is kept is where class 2 is nearest.
    """
    net = nn.Linear(9, 3).requires_grad_(False)
    net.weight[:] = torch.stack([torch.zeros(9), 1e-3 * torch.ones(9), torch.tensor([1.0, -1] * 4 + [1])])
    x = torch.full((2, 9), 0.5)
    net.bias[:] = torch.tensor([0.0, -first, -1]) - net.weight @ x[0]
    found = side_by_side(net, x, torch.tensor([0, 0]), radius=0.1, steps=20, targets=2)
    z = net(found.x)
    assert not bool(found.success.any())
    torch.testing.assert_close(z[:, 0] - z[:, 1:].amax(1), torch.full((2,), 0.1), rtol=0, atol=1e-4)


def test_a_radius_and_a_mask_for_each_input_are_kept(digits: Task) -> None:
    x, y = digits.x[:30], digits.y[:30]
    radius = torch.linspace(0.01, 0.3, 30)
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    found = side_by_side(digits.model, x, y, radius=radius, steps=10, targets=4, mask=mask)
    assert bool((found.distance <= radius * (1 + 1e-5)).all())
    assert bool(((found.x == x) | mask).all())
    assert bool((found.x != x).flatten(1).any(1).all())
    one = side_by_side(digits.model, x, y, radius=0.1, steps=10, targets=4, mask=mask[0])
    assert bool(((one.x == x) | mask[0]).all())


def test_two_classes_have_one_target(two_digits: Task) -> None:
    found = side_by_side(two_digits.model, two_digits.x, two_digits.y, radius=0.3, steps=20)
    left = margins(two_digits, found.x)
    assert torch.equal((left < 0)[left.abs() > 1e-4], found.success[left.abs() > 1e-4])
    assert bool(found.success.any())


def test_labels_that_no_attack_takes_are_refused(digits: Task) -> None:
    with pytest.raises(AssayError, match="Labels"):
        side_by_side(digits.model, digits.x, digits.y[:5], radius=0.1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_ensemble_leaves_as_much_and_asks_in_fewer_turns(
    digits: Task, norm: Norm, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, radius = digits.x[:40], digits.y[:40], {"linf": 0.06, "l2": 0.5}[norm]

    def asked(most: int) -> tuple[float, int, float]:
        monkeypatch.setattr(ensemble, "TOGETHER", most)
        turns = 0

        def turn(*_: object) -> None:
            nonlocal turns
            turns += 1

        watch = digits.model.register_forward_pre_hook(turn)
        with counted(digits.model) as tally:
            left = worst_case(digits.model, x, y, norm=norm, radius=radius, steps=20, queries=20, batch=200).success
        watch.remove()
        return float(left.float().mean()), turns, tally.slopes

    (one, turns, passes), (other, fewer, as_many) = asked(0), asked(1024)
    assert abs(one - other) <= 0.05  # two inputs
    assert fewer < 0.8 * turns
    assert as_many < 1.3 * passes
