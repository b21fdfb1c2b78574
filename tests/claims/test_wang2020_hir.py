from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from assay.claim import Claim, judged
from assay.claims import wang2020_hir as study
from assay.data import beyond
from assay.data.arrays import Arrays
from assay.data.digits import load_digits
from assay.errors import AssayError
from assay.methods.shift.mk_mmd import mk_mmd
from assay.methods.train.hir import invariance
from assay.run import Run

WAYS = ("AGG", "HIR", "MMD", "gradient reversal", "HIR within domains", "HIR across domains")


def claim(name: str) -> Claim:
    return next(c for c in study.SHELVED if c.name == name)


def forget() -> None:
    study._domains.cache_clear()
    study.right.cache_clear()


def test_without_data_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    forget()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        claim("ahead-of-plain").test(run)


@pytest.fixture(scope="module")
def tiny() -> Iterator[None]:
    """MNIST is the digits of 8 x 8, twice as large, and every effort is small."""
    patch = pytest.MonkeyPatch()
    for name, value in {
        "SEEDS": 2, "IMAGES": 6, "EACH": 2, "STEPS": 2, "FEW_STEPS": 2, "KERNELS": 3, "WIDTHS": (6, 5), "CRITIC": 4,
    }.items():  # fmt: skip
        patch.setattr(study, name, value)
    train = load_digits()["train"]
    large = np.kron(np.asarray(train.x), np.ones((1, 1, 2, 2), dtype=np.float32))
    patch.setattr(beyond, "mnist", lambda: {"train": Arrays(large, train.labels)})
    forget()
    yield
    patch.undo()
    forget()


@pytest.mark.parametrize("name", [c.name for c in study.SHELVED])
def test_the_study_runs_on_a_few_images_and_knows_it_is_not_print(tiny: None, run: Run, name: str) -> None:
    evidence = claim(name).test(run)
    assert evidence.verdict == "cannot tell"
    assert evidence.gates[0].missed()
    names = [m.name for m in evidence.measures]
    assert len(set(names)) == len(names)
    for printed, measure in zip(claim(name).published, evidence.measures, strict=False):
        assert (measure.name, measure.unit) == (printed.what, printed.unit)


def test_batches_hold_nothing_of_the_angle_held_out_and_the_same_of_all_others(tiny: None) -> None:
    n = study.CLASSES * study.IMAGES
    batches = study._batches(0, 2, 4, paired=False)
    assert batches.shape == (4, 12, 100)
    for net in range(12):
        seed, held_out = divmod(net, 6)
        at, image = batches[:, net] // n, batches[:, net] % n
        assert (at // 6 == seed).all()
        seen = [6 * seed + a for a in range(6) if a != held_out]
        assert at[0].tolist() == [a for a in seen for _ in range(20)]
        assert (image // study.IMAGES).reshape(-1, 10, 2)[0].tolist() == [[c, c] for c in range(10)]
    paired = study._batches(0, 1, 4, paired=True).reshape(4, 12, 5, 10) % n
    assert (paired == paired[:, :, :1]).all()


def test_nets_side_by_side_are_each_a_convolutional_network(tiny: None) -> None:
    nets, x = study.Nets([0, 7], 16, 5), torch.rand(2, 4, 16, 16)
    found = nets.answers(nets.features(x))
    for k in range(2):
        h = x[k][:, None]
        for layer, channels in ((0, 1), (1, 3)):
            w = nets.w[layer][k].T.reshape(3, 5, 5, channels).movedim(3, 1)
            h = F.max_pool2d(F.conv2d(h, w, nets.b[layer][k, 0]).relu(), 2)
        h = h.permute(0, 2, 3, 1).flatten(1)
        for layer in (2, 3):
            h = (h @ nets.w[layer][k] + nets.b[layer][k]).relu()
        assert_close(found[k], h @ nets.w[4][k] + nets.b[4][k])
    assert not torch.allclose(nets.w[0][0], nets.w[0][1])
    again = study.Nets([7], 16, 5)
    assert_close(again.w[1][0], nets.w[1][1])
    wide = 1 / 25**0.5
    assert float(nets.w[0].detach().abs().max()) <= wide


def test_the_distance_of_features_is_mk_mmd_over_pairs_of_domains() -> None:
    z = torch.rand(2, 12, 3, generator=torch.Generator().manual_seed(0))
    found = study.apart(z, 3)
    for k in range(2):
        scale = torch.cdist(z[k], z[k]).square().flatten().median()
        parts = z[k].split(4)
        each = [mk_mmd(a, b, scale=scale) for a, b in combinations(parts, 2)]
        assert_close(found[k], torch.stack(each).mean(), rtol=1e-4, atol=1e-6)


def test_losses_are_sums_over_nets_and_pairs_of_one_domain_and_of_two_make_all(tiny: None) -> None:
    data = study._domains(0, "cpu")
    index = study._batches(0, 2, 1, paired=False)[0]
    x, y = data.x.flatten(0, 2)[index], torch.arange(10).repeat_interleave(2).repeat(5)
    nets = study.Nets([0] * 12, 16, 5)
    whole = {way: study.loss_of(way, nets, x, y, 0.01) for way in WAYS}  # type: ignore[arg-type]
    with torch.no_grad():
        logits = nets.answers(nets.features(x))
    plain = sum(F.cross_entropy(each, y) for each in logits)
    assert_close(whole["AGG"], plain)
    assert_close(whole["HIR"] - plain, 0.01 * invariance(logits, y.expand(12, -1)).sum(), rtol=1e-3, atol=1e-5)
    pairs, inside = 10 * 10 * 9 // 2, 50
    within, across = ((whole[f"HIR {w} domains"] - plain) for w in ("within", "across"))  # type: ignore[index]
    split = within * inside / pairs + across * (pairs - inside) / pairs
    assert_close(split, whole["HIR"] - plain, rtol=1e-3, atol=1e-5)
    for way in WAYS[2:4]:
        assert float((whole[way] - plain).detach()) > 0  # type: ignore[index]
    # a critic descends what its net climbs
    told = study.loss_of("gradient reversal", nets, x, y, 0.0)
    grads = torch.autograd.grad(told, [nets.w[3], nets.w[6]])
    z = nets.features(x)
    domain = torch.arange(5).repeat_interleave(20)
    critics = sum(F.cross_entropy(each, domain) for each in nets.told(z))
    right = sum(F.cross_entropy(each, y) for each in nets.answers(z))
    assert_close(grads[0], torch.autograd.grad(right - study.REVERSAL * critics, nets.w[3], retain_graph=True)[0])
    assert_close(grads[1], torch.autograd.grad(critics, nets.w[6])[0])


def made_up(**accuracy: Any) -> dict[str, np.ndarray]:
    """As many seeds as the study has, six angles, 200 images, right as often as said, by way and angle."""
    draw = np.random.default_rng(0)
    coin = draw.random((claim("ahead-of-plain").seeds, 6, 200))
    return {
        way.replace("_", " "): (coin < np.broadcast_to(np.asarray(share, dtype=float), (6,))[None, :, None]).astype(
            float
        )
        for way, share in accuracy.items()
    }


PLAIN = (0.90, 0.99, 0.99, 0.97, 0.99, 0.90)
STEEP = (0.80, 0.99, 0.99, 0.97, 0.99, 0.80)


@pytest.mark.parametrize(
    ("hir", "agg", "verdict"),
    [(0.99, PLAIN, "holds"), (0.90, PLAIN, "fails"), (PLAIN, PLAIN, "cannot tell"), (0.99, 0.7, "cannot tell")],
)
def test_verdicts_against_plain_training(monkeypatch: pytest.MonkeyPatch, hir: Any, agg: Any, verdict: str) -> None:
    seen = made_up(AGG=agg, HIR=hir)
    monkeypatch.setattr(study, "_all", lambda ways, run: seen)
    evidence = judged(claim("ahead-of-plain"), study.ahead_of_plain(None))  # type: ignore[arg-type]
    assert evidence.verdict == verdict
    assert ("not those in print" in evidence.says) == (agg == 0.7)


@pytest.mark.parametrize(("mmd", "verdict"), [(0.9, "holds"), (0.99, "fails"), (0.1, "cannot tell")])
def test_verdicts_against_invariant_features(monkeypatch: pytest.MonkeyPatch, mmd: float, verdict: str) -> None:
    seen = made_up(AGG=PLAIN, HIR=0.96, MMD=mmd, gradient_reversal=0.93)
    monkeypatch.setattr(study, "_all", lambda ways, run: seen)
    found = study.ahead_of_invariant_features(None)  # type: ignore[arg-type]
    assert judged(claim("ahead-of-invariant-features"), found).verdict == verdict


@pytest.mark.parametrize(("within", "verdict"), [(0.92, "holds"), (0.99, "fails"), (0.973, "cannot tell")])
def test_verdicts_of_the_ablation(monkeypatch: pytest.MonkeyPatch, within: float, verdict: str) -> None:
    seen = made_up(AGG=PLAIN, HIR=0.99, HIR_within_domains=within, HIR_across_domains=0.99)
    monkeypatch.setattr(study, "_all", lambda ways, run: seen)
    assert study.needs_domains(None).verdict == verdict  # type: ignore[arg-type]


def test_where_hir_gains_nothing_no_domain_can_be_why(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = made_up(AGG=PLAIN, HIR=0.94, HIR_within_domains=0.94, HIR_across_domains=0.94)
    monkeypatch.setattr(study, "_all", lambda ways, run: seen)
    assert study.needs_domains(None).verdict == "cannot tell"  # type: ignore[arg-type]


@pytest.mark.parametrize(("hir", "verdict"), [(STEEP, "holds"), ((0.99, 0.8, 0.99, 0.97, 0.99, 0.9), "fails")])
def test_verdicts_of_the_ends(monkeypatch: pytest.MonkeyPatch, hir: Any, verdict: str) -> None:
    seen = made_up(AGG=STEEP, HIR=hir, MMD=STEEP, gradient_reversal=STEEP)
    monkeypatch.setattr(study, "_all", lambda ways, run: seen)
    assert study.ends_are_hardest(None).verdict == verdict  # type: ignore[arg-type]


@pytest.mark.parametrize(("paired", "verdict"), [(0.6, "holds"), (0.95, "fails")])
def test_verdicts_of_pairs(monkeypatch: pytest.MonkeyPatch, run: Run, paired: float, verdict: str) -> None:
    seen = made_up(AGG=0.6, HIR=0.85, paired=paired, whole=PLAIN)

    def right(way: str, seed: int, device: str, *, few: bool = False, paired: bool = False, alpha: float = 0) -> Any:
        return seen["whole" if not few else "paired" if paired and way == "HIR" else way]

    monkeypatch.setattr(study, "right", right)
    assert study.unpaired(run).verdict == verdict
    monkeypatch.setattr(study, "EACH", 5)  # as it is, where the fixture has made it small
    assert list(study._few_alphas().values()) == pytest.approx([1e-3, 1e-3 * 3000 / 100])
