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


@pytest.mark.parametrize(("norm", "radius"), CASES)
def test_it_breaks_what_one_target_after_the_other_breaks(digits: Task, norm: Norm, radius: float) -> None:
    ours = side_by_side(digits.model, digits.x, digits.y, norm=norm, radius=radius, steps=40)
    theirs = apgd(digits.model, digits.x, digits.y, norm=norm, radius=radius, steps=40, loss="dlr", targets=9)
    assert 0.2 < float(theirs.success.float().mean()) < 0.9
    assert float((ours.success != theirs.success).float().mean()) <= 0.02
    wrong = digits.model(ours.x).argmax(1) != digits.y
    assert int((wrong != ours.success).sum()) <= 1  # another batch, and a tie
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


def test_of_the_climbs_that_fail_the_nearest_is_kept(digits: Task) -> None:
    held = (digits.model(digits.x).argmax(1) == digits.y).nonzero()[:40, 0]
    x, y = digits.x[held], digits.y[held]

    def left(targets: int) -> Tensor:
        at = side_by_side(digits.model, x, y, radius=0.02, steps=20, targets=targets).x
        z = digits.model(at).detach()
        return z.gather(1, y[:, None])[:, 0] - z.scatter(1, y[:, None], -torch.inf).amax(1)

    many, one = left(9), left(1)
    assert float((many - one).mean()) < 0
    assert int(((many > one + 1e-2) & (many > 0)).sum()) <= 2  # of 40; starts differ


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
    assert int(((two_digits.model(found.x).argmax(1) != two_digits.y) != found.success).sum()) <= 1
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
