"""Flips that are planted, and the classifier that leaves each input out, against fits without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from assay.errors import AssayError
from assay.methods.train import typicality
from assay.methods.train.label_noise import RIDGE, left_out_margin, likest, plant
from assay.methods.train.typicality import unit_rows


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(deadline=None, max_examples=25)
@given(n=st.integers(10, 60), k=st.integers(2, 5), copies=st.integers(1, 5), seed=st.integers(0, 99))
def test_each_copy_has_its_own_flips_to_another_class_that_there_is(n: int, k: int, copies: int, seed: int) -> None:
    labels = torch.arange(n) % k * 2  # the odd classes have no input
    planted = plant(labels, copies, 0.1, rng(seed))
    each = max(1, round(0.1 * n))
    assert planted.flipped.sum(1).tolist() == [each] * copies
    assert int(planted.flipped.sum(0).max()) == 1  # no input in two copies
    assert torch.equal(planted.labels != labels, planted.flipped)
    assert set(planted.labels.unique().tolist()) <= set(labels.tolist())


def test_every_other_class_is_as_likely() -> None:
    labels = torch.zeros(4000, dtype=torch.long)
    labels[:4] = torch.arange(4)
    planted = plant(labels, 1, 0.75, rng())
    counts = torch.bincount(planted.labels[0][planted.flipped[0] & (labels == 0)], minlength=4)
    assert counts[0] == 0
    assert (counts[1:] > 900).all()


def test_look_alike_flips_go_where_they_are_told() -> None:
    labels = torch.arange(40) % 4
    planted = plant(labels, 2, 0.2, rng(), torch.tensor([1, 0, 3, 2]))
    assert torch.equal(planted.labels[planted.flipped], (labels ^ 1).repeat(2, 1)[planted.flipped])


def test_the_likest_class_is_the_commonest_other_among_neighbours() -> None:
    counts = torch.tensor([[5.0, 3, 2, 0], [6, 1, 3, 0], [1, 9, 0, 0], [0, 4, 6, 0]])
    assert likest(counts, torch.tensor([0, 0, 1, 2]))[:3].tolist() == [2, 0, 1]  # 2 + 3 against 3 + 1


def by_refitting(u: Tensor, y: Tensor, k: int) -> list[float]:
    """Ridge regression fitted n times, each time without one row."""
    n, d = u.shape
    rows = u.double()
    target = torch.nn.functional.one_hot(y, k).double()
    target = target - target.mean(0)
    lam = RIDGE * float(rows.square().sum()) / d + 1e-9
    margins = []
    for i in range(n):
        rest = [j for j in range(n) if j != i]
        left = torch.linalg.solve(rows[rest].T @ rows[rest] + lam * torch.eye(d).double(), rows[rest].T @ target[rest])
        said = rows[i] @ left
        others = torch.cat([said[: y[i]], said[y[i] + 1 :]])
        margins.append(float(said[y[i]] - others.max()))
    return margins


@pytest.mark.parametrize(("n", "d"), [(20, 4), (8, 30)])
def test_leaving_out_needs_no_refitting(n: int, d: int) -> None:
    """Both with more inputs than features and with fewer."""
    u, y = unit_rows(torch.randn(n, d, generator=rng())), torch.arange(n) % 3
    assert_close(left_out_margin(u, y, 3), torch.tensor(by_refitting(u, y, 3)).double(), atol=1e-6, rtol=1e-6)
    both = torch.stack([y, y.roll(1)])
    assert_close(left_out_margin(u, both, 3)[1], left_out_margin(u, y.roll(1), 3))


def test_a_flipped_label_of_two_blobs_has_the_least_margin() -> None:
    y = torch.arange(100) % 2
    u = unit_rows(torch.randn(100, 5, generator=rng()) + 4 * y[:, None])
    planted = plant(y, 1, 0.05, rng())
    margin = left_out_margin(u, planted.labels, 2)[0]
    assert set(margin.argsort()[:5].tolist()) == set(planted.flipped[0].nonzero()[:, 0].tolist())


class Largest(TorchDispatchMode):
    """The most numbers that one tensor made meanwhile has, and of those in double precision."""

    most = doubles = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else (out,):
            if isinstance(each, Tensor) and each.untyped_storage().nbytes() >= each.numel():  # not an expanded view
                self.most = max(self.most, each.numel())
                self.doubles = max(self.doubles, each.numel() if each.dtype == torch.float64 else 0)
        return out


@pytest.mark.parametrize("d", [4, 90])
def test_many_labellings_of_many_classes_are_never_held_at_once(d: int) -> None:
    n, k, r = 60, 100, 31
    u, y = unit_rows(torch.randn(n, d, generator=rng())), torch.arange(n) % k
    with Largest() as seen:
        left_out_margin(u, y.repeat(r, 1), k)
    assert seen.most <= n * k


def test_the_mean_similarity_makes_no_copy_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typicality, "BLOCK", 64)
    u = unit_rows(torch.randn(40, 8, generator=rng()))
    alike = u.double() @ u.double().T
    pairs = (alike.sum() - alike.diagonal().sum()) / (40 * 39)
    with Largest() as seen:
        mean = typicality.mean_similarity(u)
    assert mean == pytest.approx(float(pairs), abs=1e-12)
    assert seen.doubles <= 64


def test_what_cannot_be_planted_is_refused_in_one_line() -> None:
    with pytest.raises(AssayError, match="11 copies with a share of 0.1 flipped need 22 inputs, and there are 20"):
        plant(torch.arange(20) % 2, 11, 0.1, rng())
    with pytest.raises(AssayError, match="All 20 labels are of one class"):
        plant(torch.zeros(20, dtype=torch.long), 1, 0.1, rng())
