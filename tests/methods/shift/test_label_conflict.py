"""Label conflict: certain where labels are turned round, uniform p-values where only the inputs shift."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.shift.label_conflict import Conflict, label_conflict, pairs
from assay.methods.shift.leave_one_out import Told, leave_one_out


def drawn(seed: int, *, n: int = 120, d: int = 1, shift: float = 1.0, turned: bool = False) -> list[Tensor]:
    """Two domains whose inputs are `shift` apart, and one labelling function, which may be turned round in one."""
    rng = np.random.default_rng(seed)
    out = []
    for b in (0, 1):
        x = rng.normal(size=(n, d))
        x[:, 0] += shift * b
        p = 1 / (1 + np.exp(-2 * x[:, 0] + shift))
        out += [torch.as_tensor(x), torch.as_tensor((rng.random(n) < (1 - p if turned and b else p)).astype(np.int64))]
    return out


def asked(*domains: Tensor, classes: int = 2, seed: int = 0) -> Conflict:
    found = label_conflict(*domains, classes=classes, rng=torch.Generator().manual_seed(seed))
    assert found is not None
    return found


@pytest.mark.parametrize("d", [1, 5])
def test_p_is_uniform_under_covariate_shift_alone(d: int) -> None:
    p = [asked(*drawn(seed, d=d), seed=seed).p_value for seed in range(50)]
    assert kstest(p, "uniform").pvalue > 0.01
    assert np.mean(np.array(p) < 0.05) <= 0.16  # 8 of 50; three standard errors above 0.05 are 0.14


def test_without_the_fit_neighbours_in_many_dimensions_look_like_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [drawn(seed, n=150, d=20) for seed in range(20)]
    fitted = np.mean([asked(*s).p_value < 0.05 for s in sets])
    monkeypatch.setattr(
        "assay.methods.shift.label_conflict.leave_one_out", lambda x, y, k: torch.zeros(len(x), k, dtype=torch.float64)
    )
    assert np.mean([asked(*s).p_value < 0.05 for s in sets]) >= 0.3
    assert fitted <= 0.15


def test_labels_turned_round_are_found_and_measured() -> None:
    found = asked(*drawn(0, n=200, turned=True))
    assert found.p_value < 0.01
    assert found.low > 0
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.normal(size=(2, 200, 1)))
    sure = asked(x[0], (x[0, :, 0] > 0).long(), x[1], (x[1, :, 0] <= 0).long())
    assert sure.strength > 0.9  # two certain labels that always differ: 1
    assert sure.differ > 0.9


def test_height_and_sex_with_a_boundary_of_180_and_of_165() -> None:
    rng = np.random.default_rng(1)
    here, there = rng.normal(178, 9, 400), rng.normal(168, 9, 400)
    y = [torch.as_tensor((h > edge).astype(np.int64)) for h, edge in ((here, 180), (there, 165))]
    found = asked(torch.as_tensor(here)[:, None], y[0], torch.as_tensor(there)[:, None], y[1])
    assert found.p_value < 0.01
    same = asked(
        torch.as_tensor(here)[:, None], y[0], torch.as_tensor(there)[:, None], torch.as_tensor(there > 180).long()
    )
    assert same.strength < 0.1 < found.strength


def test_random_labels_are_no_conflict_and_other_units_change_nothing() -> None:
    a, _, b, _ = drawn(3, d=3)
    rng = torch.Generator().manual_seed(3)
    y = [torch.randint(0, 4, (len(a),), generator=rng) for _ in range(2)]
    found = asked(a, y[0], b, y[1], classes=4)
    assert found.p_value > 0.05
    scaled = asked(a * 1000, y[0], b * 1000, y[1], classes=4)
    assert scaled.strength == pytest.approx(found.strength, abs=1e-9)
    assert scaled.p_value == pytest.approx(found.p_value, abs=0.01)


def test_pairs_are_those_of_the_nearest_two_first() -> None:
    rng = np.random.default_rng(2)
    a, b = torch.as_tensor(rng.normal(size=(25, 2))), torch.as_tensor(rng.normal(size=(20, 2)))
    apart = torch.cdist(a, b)
    reach = [torch.cdist(s, s).sort(1).values[:, 5] for s in (a, b)]
    naive = set()
    while True:
        i, j = divmod(int(apart.argmin()), len(b))
        near = [(k, l) for k in range(25) for l in range(20) if apart[k, l] <= max(reach[0][k], reach[1][l])]
        near = [(k, l) for k, l in near if bool(apart[k, l].isfinite())]
        if not near:
            break
        i, j = min(near, key=lambda at: float(apart[at]))
        naive.add((i, j))
        apart[i], apart[:, j] = torch.inf, torch.inf
    i, j = pairs(a, b)
    assert set(zip(i.tolist(), j.tolist(), strict=True)) == naive


def test_domains_that_do_not_overlap_cannot_be_told() -> None:
    a, y_a, b, y_b = drawn(0)
    assert label_conflict(a, y_a, b + 100, y_b, classes=2, rng=torch.Generator()) is None


def test_bad_input_is_refused_in_one_line() -> None:
    a, y_a, b, y_b = drawn(0)
    with pytest.raises(ShapeError, match="rows of one length with a label each"):
        label_conflict(a, y_a, b[:, :0], y_b, classes=2, rng=torch.Generator())
    with pytest.raises(AssayError, match="got 3 and 120 inputs"):
        label_conflict(a[:3], y_a[:3], b, y_b, classes=2, rng=torch.Generator())


def test_each_input_is_answered_by_the_others() -> None:
    """The closed form against a fit without each input in turn, with the penalty that was chosen."""
    rng = np.random.default_rng(0)
    x, y = torch.as_tensor(rng.normal(size=(15, 2))), torch.as_tensor(rng.integers(0, 3, 15))
    hot = torch.nn.functional.one_hot(y, 3).double()
    off, apart = hot - hot.mean(0), torch.cdist(x, x).square()
    kernel = (-apart / torch.nn.functional.pdist(x).square().median()).exp()
    found = leave_one_out(x, y, 3)

    def naive(penalty: float) -> Tensor:
        rows = []
        for i in range(15):
            rest = [j for j in range(15) if j != i]
            inside = kernel[rest][:, rest] + penalty * torch.eye(14, dtype=torch.float64)
            rows.append(kernel[i, rest] @ torch.linalg.solve(inside, off[rest]) + hot.mean(0))
        return torch.stack(rows)

    each = [naive(penalty) for penalty in (0.01, 0.1, 1.0, 10.0)]
    errors = [float((told - hot).square().mean()) for told in each]
    best = int(np.argmin(errors))
    torch.testing.assert_close(found, each[best])
    inside = kernel + (0.01, 0.1, 1.0, 10.0)[best] * torch.eye(15, dtype=torch.float64)
    torch.testing.assert_close(Told(x, y, 3).at(x), kernel @ torch.linalg.solve(inside, off) + hot.mean(0))


def test_features_without_information_are_worth_the_commonest_class() -> None:
    y = torch.tensor([0] * 7 + [1] * 3)
    told = leave_one_out(torch.zeros(10, 4), y, 2)
    assert told.argmax(1).tolist() == [0] * 10
