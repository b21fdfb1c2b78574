from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from assay.claim import Claim, judged
from assay.claims import wang2022
from assay.data import beyond, fashion
from assay.errors import AssayError
from assay.methods.attack.average_sample import class_means
from assay.run import Run


def reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all networks were as accurate as in print."""
    share = {head: np.array([clean]) for head, clean in wang2022.CLEAN.items()}
    monkeypatch.setattr(wang2022, "_clean", lambda head, run: [share[head]] * 5)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """MNIST is a few images of the bundled sample, and every effort is small."""
    for name, value in {
        "SEEDS": 2, "BETWEEN": 40, "LOOKS": 2, "BATCH": 20, "WIDTH": 2, "ATTACKED": 20, "RANKED": 50, "STEPS": 2,
        "BIM_STEPS": 2, "NEAREST_STEPS": 5,
    }.items():  # fmt: skip
        monkeypatch.setattr(wang2022, name, value)
    whole = fashion.load_fashion()
    small = {name: type(data)(data.x[:100], data.labels[:100], data.classes) for name, data in whole.items()}
    monkeypatch.setattr(beyond, "mnist", lambda: small)
    kept = (wang2022._data, wang2022._trained)
    for each in kept:
        each.cache_clear()
    yield
    for each in kept:
        each.cache_clear()


def claim(name: str) -> Claim:
    return next(c for c in wang2022.SHELVED if c.name == name)


def nearest_mean(head: str, seed: int, device: str) -> nn.Module:
    """A linear classifier that needs no training: most images are right."""
    data = wang2022._data(device)
    means = class_means(data["train"], classes=10).flatten(1)
    linear = nn.Linear(784, 10).requires_grad_(False)
    linear.weight.copy_(means / 100)
    linear.bias.copy_(-(means**2).sum(1) / 200)
    return nn.Sequential(nn.Flatten(), linear)


@pytest.mark.parametrize("tested", wang2022.SHELVED, ids=lambda c: c.name)
def test_a_study_measures_in_the_order_of_print(
    tiny: None, monkeypatch: pytest.MonkeyPatch, run: Run, tested: Claim
) -> None:
    monkeypatch.setattr(wang2022, "_trained", nearest_mean)
    evidence = tested.test(run)
    assert evidence.verdict in ("holds", "fails", "cannot tell")
    names = [m.name for m in evidence.measures]
    assert len(set(names)) == len(names)
    assert names[: len(tested.published)] == [p.what for p in tested.published]
    assert all(p.value <= 1 for p in tested.published if p.unit == "%")  # shares, as measures are
    if tested.name == "ratio-ranks":  # on a linear model without bounds R is exact
        assert (evidence.measures[0].value or 0) > 0.95
        assert evidence.measures[-1].value == pytest.approx(1, abs=0.1)
    if tested.name == "ratio-lower":  # the same z under either head
        assert evidence.verdict == "cannot tell"


def test_either_head_is_trained_from_the_same_start_and_gives_z(tiny: None) -> None:
    nets = {head: wang2022._trained(head, 0, "cpu") for head in wang2022.HEADS}
    assert wang2022._trained("softmax", 0, "cpu") is nets["softmax"]  # the studies share their networks
    x = wang2022._data("cpu")["test"].x[:5]
    for head, net in nets.items():
        model = wang2022._headed(net, head)
        assert torch.equal(model(x).argmax(1), net(x).argmax(1))
        posterior = model(x).exp().sum(1)
        assert torch.allclose(posterior, torch.ones(5), atol=1e-5) == (head == "softRmax")
    assert not any(p.requires_grad for p in nets["softRmax"].parameters())


def test_the_columns_are_what_they_are_called(tiny: None) -> None:
    data, net = wang2022._data("cpu"), nearest_mean("softRmax", 0, "cpu")
    with torch.no_grad():
        right = (net(data["test"].x).argmax(1) == data["test"].y).double().numpy()
    printed = wang2022._as_printed(net, "softRmax", data, 0)
    assert np.array_equal(printed[0], right[:20])
    own, _, met = wang2022._by_loss(net, "softRmax", data, 0)[:3]
    assert (met <= own).all()  # the best point of a path is no better for the model than its last
    aimed = wang2022._aimed(net, "softRmax", data, 0)
    assert np.array_equal(aimed[0], right)
    assert np.allclose(aimed[1:] * 9, np.round(aimed[1:] * 9))  # shares of nine targets
    ranked = wang2022._ranked(net, "softRmax", data, 0)
    assert np.array_equal(ranked[0], right[:50])
    assert (ranked[1][ranked[0] > 0] > 0).all()
    assert (ranked[2:][:, ranked[0] == 0] == 0).all()  # what is wrong needs no change


def test_the_printed_counts_are_those_of_the_printed_table() -> None:
    published = {p.what: p.value for p in claim("average-sample").published}
    assert published["classes, softRmax"] == 8
    assert published["classes, softmax"] == 0
    assert published["white-box, softRmax"] == pytest.approx(0.520, abs=5e-4)
    assert published["average-sample, softmax"] == pytest.approx(0.250, abs=5e-4)


def steady(means: np.ndarray, images: int = 200) -> np.ndarray:
    """Hits with these means (seeds numbers), the same in every image but for a wobble: seeds numbers images."""
    return means[..., None] + 1e-3 * np.sin(np.arange(images))


def test_verdicts_of_the_defence(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    reached(monkeypatch)

    def verdict(*gains: float) -> str:
        plain = np.array([[0.97, 0.5, 0.1, 0.5, 0.1]] * 3)
        ours = plain + np.array([[0.0, *gains]]) + np.array([[-0.02], [0.0], [0.02]])
        monkeypatch.setattr(wang2022, "_seen", lambda *a: {"softmax": steady(plain), "softRmax": steady(ours)})
        return wang2022.defends(run).verdict

    assert verdict(0.2, 0.2, 0.2, 0.2) == "holds"
    assert verdict(0.2, 0.2, 0.2, -0.2) == "fails"
    assert verdict(0.2, 0.2, 0.2, 0.01) == "cannot tell"  # a seed disagrees


def test_networks_that_are_better_than_prints_tell_nothing(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    plain = np.array([[0.968, 0.5, 0.1, 0.5, 0.1]] * 5)
    ours = plain + np.array([[0.01, 0.2, 0.2, 0.2, 0.2]])
    monkeypatch.setattr(wang2022, "_seen", lambda *a: {"softmax": steady(plain), "softRmax": steady(ours)})

    def verdict(**clean: float) -> str:
        share = wang2022.CLEAN | clean
        monkeypatch.setattr(wang2022, "_clean", lambda head, run: [np.array([share[head]])] * 5)
        return judged(claim("defence"), wang2022.defends(run)).verdict

    assert verdict() == "holds"
    assert verdict(softRmax=0.995) == "cannot tell"
    assert verdict(softmax=0.95) == "cannot tell"


def test_a_training_ends_when_it_is_as_right_as_print(tiny: None, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """At the first look that finds as many held-out images right; the gate asks all test images."""
    looks: list[int] = []
    hits = wang2022._hits
    for after, wanted in ((1, 1), (2, 2), (9, 3)):
        looks.clear()
        wang2022._trained.cache_clear()

        def rising(net: nn.Module, data: object, after: int = after) -> np.ndarray:
            looks.append(len(data))  # type: ignore[arg-type]
            assert not net.training
            return np.array([0.99 if len(looks) >= after else 0.1])

        monkeypatch.setattr(wang2022, "LOOKS", 3)
        monkeypatch.setattr(wang2022, "_hits", rising)
        net = wang2022._trained("softmax", 0, "cpu")
        assert looks == [33] * wanted  # a third of the hundred
    monkeypatch.setattr(wang2022, "_hits", hits)
    test = wang2022._data("cpu")["test"]
    with torch.no_grad():
        right = float((net(test.x).argmax(1) == test.y).double().mean())
    assert wang2022._gates(run)[0].values[0] == pytest.approx(right)


def test_verdicts_of_the_own_loss(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    reached(monkeypatch)

    def verdict(*margin: float) -> str:
        ours = np.array([[0.6, 0.5, 0.5, 0.4, each, 0.3] for each in margin])
        monkeypatch.setattr(wang2022, "_seen", lambda *a: {"softmax": steady(ours * 0), "softRmax": steady(ours)})
        return wang2022.own_loss_tells(run).verdict

    assert verdict(0.0, 0.1) == "cannot tell"  # that a half must be left is a limit of ours
    assert verdict(0.39, 0.38) == "holds"
    assert verdict(0.1, 0.38) == "cannot tell"  # one seed keeps it


def test_verdicts_of_the_average_sample(tiny: None, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    reached(monkeypatch)

    def verdict(soft: tuple[float, float], ours: tuple[float, float]) -> str:
        both = {"softmax": soft, "softRmax": ours}
        seen = {head: steady(np.array([[0.97, *pair]] * 2), 100) for head, pair in both.items()}
        for each in seen.values():
            each[:, 1] += 2e-3 * np.cos(np.arange(100))
        monkeypatch.setattr(wang2022, "_seen", lambda *a: seen)
        evidence = wang2022.average_is_stronger(run)
        assert evidence.measures[0].value == (10 if ours[1] < ours[0] else 0)
        return evidence.verdict

    assert verdict((0.1, 0.3), (0.5, 0.4)) == "holds"
    assert verdict((0.1, 0.3), (0.4, 0.5)) == "fails"
    assert verdict((0.3, 0.1), (0.5, 0.4)) == "fails"


def test_the_rank_correlation_is_spearmans_and_its_verdict_looks_at_both_heads(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    reached(monkeypatch)
    rng = np.random.default_rng(0)
    radius = rng.uniform(0.05, 0.2, 300)

    def seen(noise: float) -> np.ndarray:
        ratio = 1 / (784 * radius * np.exp(noise * rng.normal(size=300)))
        right = np.ones(300)
        right[:10] = 0
        return np.stack([np.stack([right, np.where(right > 0, ratio, 0), radius / 2, radius])] * 2)

    exact, loose = seen(0.01), seen(0.8)
    found = wang2022._ranks_alike("", loose, 3, 0)
    want = spearmanr(-loose[0, 1, 10:], radius[10:]).statistic
    assert found.seeds == pytest.approx([want, want])
    assert found.measure.n == 290
    assert found.measure.low < want < found.measure.high
    assert wang2022._promised(exact) == pytest.approx(1, abs=0.01)
    turned = exact.copy()
    turned[:, 2:] = 1 - turned[:, 2:]
    for softmax, softrmax, verdict in (
        (exact, exact, "holds"),
        (exact, loose, "cannot tell"),
        (turned, exact, "fails"),
    ):
        both = {"softmax": softmax, "softRmax": softrmax}
        monkeypatch.setattr(wang2022, "_seen", lambda *a, both=both: both)
        assert wang2022.ratio_ranks(run).verdict == verdict


def test_a_lower_ratio_is_found_only_on_images_that_all_have_right(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    reached(monkeypatch)
    ratio = np.linspace(1, 2, 50)
    right = np.ones(50)
    right[0] = 0
    plain = np.stack([np.stack([np.ones(50), ratio])] * 2)
    half = np.stack([np.stack([right, np.where(right > 0, ratio / 2, 0)])] * 2)
    monkeypatch.setattr(wang2022, "_seen", lambda *a: {"softmax": plain, "softRmax": half})
    evidence = wang2022.ratio_is_lower(run)
    assert evidence.verdict == "holds"
    assert evidence.measures[-1].value == pytest.approx(np.log(2))
    monkeypatch.setattr(wang2022, "_seen", lambda *a: {"softmax": half, "softRmax": plain})
    assert wang2022.ratio_is_lower(run).verdict == "fails"


def test_without_data_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    wang2022._data.cache_clear()
    wang2022._trained.cache_clear()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        claim("defence").test(run)


def test_the_networks_are_four_convolutions_and_a_linear_layer(tiny: None) -> None:
    layers = [type(m) for m in wang2022._trained("softmax", 0, "cpu").children() if list(m.parameters())]
    assert layers == [nn.Conv2d] * 4 + [nn.Linear]
