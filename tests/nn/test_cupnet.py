"""CupNet: the layer against its equation, how far a unit hears, and the counts in print."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import shortest_path
from scipy.spatial.distance import cdist
from torch import Tensor
from torch.testing import assert_close

from assay.data.fields import sheet
from assay.errors import AssayError, ShapeError
from assay.nn.cupnet import CupNet, RefNet, cup_size, matched_size, ref_size
from assay.nn.mesh_linear import MeshLinear, within_reach

K, M, D = 9, 1979, 5937  # of print


def drawn(points: int, seed: int = 0) -> Tensor:
    return torch.rand(points, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mask_of(points: Tensor, reach: float) -> Tensor:
    """C of eq. 3, by every distance."""
    return torch.from_numpy((cdist(points, points) <= reach).astype(np.float64))


def weights_of(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


class TestMeshLinear:
    @pytest.mark.parametrize("sparse", [False, True])
    @pytest.mark.parametrize("reach", [0.0, 0.3, 2.0])
    def test_it_is_the_equation_and_what_is_masked_does_nothing(self, sparse: bool, reach: float):
        points, rng = drawn(12), torch.Generator().manual_seed(1)
        weight = torch.randn(12, 12, generator=rng, dtype=torch.float64)
        bias, x = torch.randn(12, generator=rng).double(), torch.randn(5, 12, generator=rng).double()
        c = mask_of(points, reach)
        layer = MeshLinear(within_reach(points, reach), 12).double()
        layer.sparse = sparse
        layer.fill(torch.where(c > 0, weight, torch.tensor(1e9, dtype=torch.float64)), bias)
        plain = weight.clone().requires_grad_()
        asked = x.clone().requires_grad_()
        meant = x @ (c * plain) + bias
        assert_close(layer(asked), meant)
        assert_close(layer.dense(), c * weight)
        (slope,) = torch.autograd.grad(meant.square().sum(), plain)
        assert (slope[c == 0] == 0).all()
        own, down = torch.autograd.grad(layer(asked).square().sum(), [layer.weight, asked])
        assert_close(own, slope[layer.pairs[0], layer.pairs[1]])
        assert_close(down, 2 * meant.detach() @ (c * weight).T)
        assert_close(layer(x[None, :2])[0], meant[:2])  # any axes in front

    def test_reach_0_scales_each_unit_and_a_great_one_is_a_dense_layer(self):
        points, x = drawn(9), torch.randn(4, 9)
        alone = MeshLinear(within_reach(points, 0.0), 9)
        assert_close(alone(x), x * alone.weight + alone.bias)
        for great in (2.0, float("inf")):
            whole = MeshLinear(within_reach(points, great), 9)
            dense = torch.nn.Linear(9, 9)
            whole.fill(dense.weight.T, dense.bias)
            assert_close(whole(x), dense(x))

    def test_permuted_points_permute_the_answers(self):
        points, x = drawn(15), torch.randn(3, 15)
        order = torch.randperm(15, generator=torch.Generator().manual_seed(2))
        one, other = (MeshLinear(within_reach(p, 0.4), 15) for p in (points, points[order]))
        one.bias.data.normal_()
        other.fill(one.dense()[order][:, order], one.bias[order])
        assert_close(other(x[:, order]), one(x)[:, order])

    @given(st.integers(2, 30), st.floats(0, 1.5), st.integers(0, 5))
    def test_pairs_are_those_of_all_distances(self, m: int, reach: float, seed: int):
        points = drawn(m, seed)
        layer = MeshLinear(within_reach(points, reach), m)
        layer.weight.data.fill_(1)
        assert torch.equal(layer.dense().double(), mask_of(points, reach))

    def test_few_pairs_go_the_sparse_way(self):
        points = sheet(20)
        assert MeshLinear(within_reach(points, 1.1 / 19), 400).sparse
        assert not MeshLinear(within_reach(points, 0.5), 400).sparse

    def test_a_start_counts_what_is_kept_or_all(self):
        torch.manual_seed(0)
        pairs = within_reach(sheet(20), 1.1 / 19)
        for start, other_ends in (("kept", 10), ("dense", 800)):  # of a point within: five each way
            layer = MeshLinear(pairs, 400, start=start)
            inner = layer.dense()[210].detach()
            assert 0.3 * (6 / other_ends) ** 0.5 < float(inner.abs().max()) <= (6 / other_ends) ** 0.5

    def test_bad_input_is_told_in_a_line(self):
        pairs = within_reach(drawn(4), 0.1)
        for call, words in (
            (lambda: within_reach(torch.zeros(3), 1.0), "shape"),
            (lambda: within_reach(torch.full((3, 2), torch.nan), 1.0), "finite"),
            (lambda: within_reach(drawn(3), float("nan")), "no distance"),
            (lambda: within_reach(drawn(3), -1.0), "reach=-1"),
            (lambda: MeshLinear(pairs, 3), "for 3 points"),
            (lambda: MeshLinear(pairs.flip(1), 4), "sorted"),
            (lambda: MeshLinear(pairs[0], 4), r"\(2, pairs\)"),
            (lambda: MeshLinear(pairs, 4, start="thin"), "kept and dense"),
            (lambda: MeshLinear(pairs, 4)(torch.zeros(2, 5)), r"\(2, 5\)"),
            (lambda: MeshLinear(pairs, 4).fill(torch.zeros(3, 3), torch.zeros(4)), r"\(3, 3\)"),
            (lambda: CupNet(0, drawn(4), reach=1.0), "inputs=0"),
            (lambda: RefNet(3, 3, hidden=1, size=0), "size=0"),
            (lambda: matched_size(3, 3, 0, 10), "hidden=0"),
        ):
            with pytest.raises((AssayError, ShapeError), match=words):
                call()


class TestCounts:
    def test_they_are_those_in_print(self):
        assert cup_size(K, M, 2, 75_241) == 12_277_950
        assert ref_size(K, D, 3, 2560) == 34_898_737
        assert ref_size(K, M, 3, 2560) != 34_898_737  # the text's m outputs are not what was counted
        assert cup_size(K, M, 2, 75_241, as_published=True) > 35_000_000  # nor is its merged last layer

    def test_the_pairs_that_the_best_cupnet_tells_of(self):
        fit = [c for c in range(74_000, 77_000) if cup_size(K, M, 2, c) == 12_277_950]
        assert fit == [75_241]
        assert round(75_241 / M, 1) == 38.0  # neighbours a point, itself among them

    def test_the_pairs_that_the_best_reference_tells_of(self):
        assert matched_size(K, D, 3, cup_size(K, M, 3, 2_560_555)) == 2560
        assert matched_size(K, D, 3, cup_size(K, M, 3, 2_562_921)) == 2560
        assert matched_size(K, D, 3, cup_size(K, M, 3, 2_560_554)) == 2559
        assert matched_size(K, D, 3, cup_size(K, M, 3, 2_562_922)) == 2561

    @settings(max_examples=40)
    @given(st.integers(1, 20), st.integers(1, 400), st.integers(1, 8), st.integers(1, 10**7))
    def test_the_matched_size_is_the_smallest(self, k: int, d: int, h: int, n: int):
        s = matched_size(k, d, h, n)
        assert ref_size(k, d, h, s) >= n
        assert s == 1 or ref_size(k, d, h, s - 1) < n
        assert matched_size(k, d, h, ref_size(k, d, h, s)) == s  # as many to the last one
        with localcontext(prec=60):
            u = Decimal(k + h + d + 1)
            root = ((u * u - 4 * h * (Decimal(d) - n)).max(0)).sqrt()
            printed = ((root - u) / (2 * h)).to_integral_value(ROUND_CEILING)
        assert s == max(1, int(printed))

    @pytest.mark.parametrize("reach", [0.0, 0.2, 0.5, 2.0])
    @pytest.mark.parametrize("hidden", [1, 2, 7])
    def test_a_reference_is_no_smaller_than_its_cupnet_and_would_be_with_a_unit_less(self, hidden: int, reach: float):
        points = drawn(30)
        weights = weights_of(CupNet(4, points, hidden=hidden, reach=reach))
        s = matched_size(4, 90, hidden, weights)
        assert weights_of(RefNet(4, 90, hidden=hidden, size=s)) >= weights
        assert weights_of(RefNet(4, 90, hidden=hidden, size=s - 1)) < weights

    @pytest.mark.parametrize("hidden", [0, 1, 3])
    def test_networks_have_as_many_weights(self, hidden: int):
        points = drawn(10)
        pairs = within_reach(points, 0.4).shape[1]
        for printed in (False, True):
            net = CupNet(4, points, hidden=hidden, reach=0.4, as_published=printed)
            assert weights_of(net) == cup_size(4, 10, hidden, pairs, as_published=printed)
            assert net(torch.rand(3, 4)).shape == (3, 30)
        assert weights_of(RefNet(4, 30, hidden=hidden, size=7)) == ref_size(4, 30, hidden, 7)


@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_influence_spreads_one_hop_a_layer(hidden: int):
    side = 7
    net = CupNet(3, sheet(side), hidden=hidden, reach=1.01 / (side - 1), dropout=0.0).double().eval()
    for p in net.parameters():
        p.data.abs_()  # no unit is silent: whatever can be heard is
    frame = torch.rand(1, 3 * side**2, dtype=torch.float64) + 0.5
    slope = torch.autograd.functional.jacobian(lambda f: torch.cat(net.heard(f), -1).sum(0), frame)[:, 0]  # out, in
    place = np.rint(sheet(side) * (side - 1))
    hops = np.abs(place[:, None] - place[None]).sum(-1)  # of a grid without diagonals
    near = torch.block_diag(*[torch.from_numpy((hops <= hidden).astype(np.float64))] * 3) > 0
    assert (slope[~near] == 0).all()
    assert (slope[near] != 0).all()


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 14), st.floats(0.05, 0.6), st.integers(1, 4), st.integers(0, 10_000))
def test_on_any_mesh_nothing_is_heard_from_farther_than_its_hops(m: int, reach: float, hidden: int, seed: int):
    """Hops by the shortest way over pairs within reach; and by distance: at most `reach` a layer."""
    points = drawn(m, seed)
    net = CupNet(3, points, hidden=hidden, reach=reach, dropout=0.0).double().eval()
    for p in net.parameters():
        p.data.abs_()
    frame = torch.rand(1, 3 * m, dtype=torch.float64) + 0.5
    slope = torch.autograd.functional.jacobian(lambda f: torch.cat(net.heard(f), -1).sum(0), frame)[:, 0]  # out, in
    hops = torch.from_numpy(shortest_path(mask_of(points, reach).numpy(), unweighted=True))
    near = torch.block_diag(*[(hops <= hidden).double()] * 3) > 0  # each axis by itself
    assert (slope[~near] == 0).all()
    assert (slope[near] > 0).all()
    far = torch.block_diag(*[(torch.cdist(points, points) <= hidden * reach * (1 + 1e-9)).double()] * 3) > 0
    assert (slope[~far] == 0).all()


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 12), st.floats(0.0, 0.8), st.integers(0, 3), st.integers(0, 10_000))
def test_permuted_points_permute_the_answers_of_the_whole_network(m: int, reach: float, hidden: int, seed: int):
    points, order = drawn(m, seed), torch.from_numpy(np.random.default_rng(seed).permutation(m))
    one, other = (CupNet(2, p, hidden=hidden, reach=reach).double().eval() for p in (points, points[order]))
    thrice = torch.cat([order + axis * m for axis in range(3)])  # along, across, down
    with torch.no_grad():
        other.frame.weight.copy_(one.frame.weight[thrice])
        for mine, its in zip(one.modules(), other.modules(), strict=True):
            if isinstance(mine, MeshLinear):
                its.fill(mine.dense()[order][:, order], mine.bias[order])  # type: ignore[operator]
        for mine, its in zip(one.last, other.last, strict=True):
            its.weight.copy_(mine.weight[order][:, order])  # type: ignore[operator]
        x = torch.rand(4, 2, dtype=torch.float64)
        assert_close(other(x), one(x)[:, thrice])


def test_a_dense_start_falls_silent_where_it_is_deep_and_tight_and_a_kept_one_does_not():
    torch.manual_seed(0)
    x, loud = torch.randn(64, 6), {}
    for start in ("kept", "dense"):
        for hidden in (1, 7):
            net = CupNet(6, sheet(12), hidden=hidden, reach=1.01 / 11, start=start).eval()
            loud[start, hidden] = float(torch.cat(net.heard(net.frame(x).relu()), -1).detach().std())
    assert loud["dense", 7] < 1e-4 * loud["dense", 1]
    assert loud["kept", 7] > 1e-3 * loud["kept", 1]
