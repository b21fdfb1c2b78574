"""Class-conditional invariance, its permutation p-value, and the principal components that tests by neighbours want."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from assay.errors import AssayError, ShapeError
from assay.methods.shift.class_conditional import class_conditional_gap
from assay.methods.shift.mk_mmd import mk_mmd, mmd_test
from assay.methods.shift.principal import principal


def drawn(seed: int, share: float, by: float = 0.0, n: int = 120) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < share).astype(np.int64)
    return torch.as_tensor(rng.normal(2.0 * y[:, None] - 1 + by, 1.0, size=(n, 2))), torch.as_tensor(y)


def test_another_share_of_classes_is_no_conditional_gap_and_a_class_agnostic_one() -> None:
    (a, y_a), (b, y_b) = drawn(2, 0.5, n=200), drawn(3, 0.9, n=200)
    gap = class_conditional_gap(a, y_a, b, y_b, rng=torch.Generator().manual_seed(0))
    assert gap is not None
    assert gap.low <= 0 <= gap.high
    assert gap.p_value > 0.05
    assert mmd_test(a, b, rng=torch.Generator().manual_seed(0)).p_value < 0.01


def test_p_is_uniform_under_prior_shift_alone() -> None:
    rng = torch.Generator().manual_seed(0)
    p = []
    for seed in range(40):
        gap = class_conditional_gap(*drawn(seed, 0.5, n=60), *drawn(100 + seed, 0.8, n=60), rng=rng, deals=99)
        assert gap is not None
        p.append(gap.p_value)
    assert kstest(p, "uniform").pvalue > 0.01


def test_a_shift_within_classes_is_a_gap_the_mean_of_those_of_each() -> None:
    (a, y_a), (b, y_b) = drawn(0, 0.5), drawn(1, 0.5, by=1.0)
    gap = class_conditional_gap(a, y_a, b, y_b, rng=torch.Generator().manual_seed(0), deals=199)
    assert gap is not None
    assert gap.p_value <= 0.01
    assert gap.low > 0
    sizes = [int((y_a == c).sum() + (y_b == c).sum()) for c in (0, 1)]
    each = [float(mk_mmd(a[y_a == c], b[y_b == c], biased=False)) for c in (0, 1)]
    assert gap.squared == pytest.approx(np.average(each, weights=sizes), rel=1e-6)
    again = class_conditional_gap(1000 * a, y_a, 1000 * b, y_b, rng=torch.Generator().manual_seed(0), deals=199)
    assert again is not None
    assert again.squared == pytest.approx(gap.squared, rel=1e-6)


def test_a_class_that_one_domain_lacks_is_left_out_and_named() -> None:
    (a, y_a), (b, y_b) = drawn(0, 0.5), drawn(1, 0.0)
    gap = class_conditional_gap(a, y_a, b, y_b, rng=torch.Generator().manual_seed(0), deals=19)
    assert gap is not None
    assert gap.left_out == (1,)
    assert list(gap.each) == [0]
    assert class_conditional_gap(a[y_a == 1], y_a[y_a == 1], b, y_b, rng=torch.Generator()) is None
    with pytest.raises(ShapeError, match="labels"):
        class_conditional_gap(a, y_a[:3], b, y_b, rng=torch.Generator())


@pytest.mark.parametrize("d", [6, 200])
def test_components_are_those_of_the_covariance(d: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, d)) * np.geomspace(10, 0.1, d)
    samples = torch.as_tensor(x[:50] + 3), torch.as_tensor(x[50:] + 3)
    onto = principal(samples, most=4)
    mine, theirs = map(onto, samples)
    values, ways = np.linalg.eigh(np.cov(x.T))
    naive = (x - x.mean(0)) @ ways[:, ::-1][:, :4]
    found = torch.cat([mine, theirs]).numpy()
    assert found.shape == (80, 4)
    assert np.abs(np.sum(found * naive, 0)) == pytest.approx(np.sum(naive**2, 0), rel=1e-3)  # but for their signs
    assert found.var(0, ddof=1) == pytest.approx(values[::-1][:4], rel=1e-3)


def test_constant_features_keep_one_column_and_nothing_is_refused() -> None:
    onto = principal([torch.ones(3, 40), torch.ones(5, 40)])
    assert [onto(torch.ones(n, 40)).shape for n in (3, 5)] == [(3, 1), (5, 1)]
    with pytest.raises(AssayError, match="without rows"):
        principal([torch.ones(3, 4), torch.ones(0, 4)])


def test_inputs_are_not_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    plain = Tensor.double
    monkeypatch.setattr(Tensor, "double", lambda x: (sizes.append(x.numel()), plain(x))[1])
    samples = [torch.rand(30, 40_000) for _ in range(2)]
    onto = principal(samples, most=3)
    assert [onto(part).shape for part in samples] == [(30, 3), (30, 3)]
    assert max(sizes) <= 2**20
    torch.testing.assert_close(onto.axes.T @ onto.axes, torch.eye(3).double())
