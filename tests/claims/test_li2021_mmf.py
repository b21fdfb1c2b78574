from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from assay.claim import Claim
from assay.claims import li2021_mmf as study
from assay.data import beyond, fashion
from assay.data.label_tree import read_tree
from assay.errors import AssayError
from assay.nn import vgg
from assay.run import Run

CACHED = (study._data, study._names, study._trees, study._fitted, study._seen)
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def claim(name: str) -> Claim:
    return next(c for c in study.SHELVED if c.name == name)


def test_the_semantic_tree_has_every_class_in_one_of_five_pairs() -> None:
    tree = read_tree(study.SEMANTIC, CIFAR)
    assert tree.is_three_levels
    assert np.bincount(tree.group_of()).tolist() == [2] * 5


def test_without_data_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    for each in CACHED:
        each.cache_clear()
    with pytest.raises(AssayError, match="ASSAY_DATA is not set"):
        claim("milder-mistakes").test(run)


@pytest.fixture(scope="module")
def tiny() -> Iterator[None]:
    """CIFAR-10 is a few images of the bundled sample in three equal colours, and every effort is small."""
    patch = pytest.MonkeyPatch()
    for name, value in {
        "SEEDS": 2, "EPOCHS": 1, "BATCH": 30, "WIDTH": 2, "LOOKED_AT": 60, "EARLY": "body.2", "LATE": "body.4",
    }.items():  # fmt: skip
        patch.setattr(study, name, value)
    patch.setattr(vgg, "STAGES", (1, 1, 1))
    patch.setattr(vgg, "WIDER", (2, 2, 2))
    small = {
        name: type(data)(np.repeat(data.x[:60, :, ::4, ::4], 3, axis=1), np.arange(60) % 10, CIFAR)
        for name, data in fashion.load_fashion().items()
    }
    patch.setattr(beyond, "cifar10", lambda: small)
    for each in CACHED:
        each.cache_clear()
    yield
    patch.undo()
    for each in CACHED:
        each.cache_clear()


@pytest.mark.parametrize("name", [c.name for c in study.SHELVED])
def test_the_study_runs_on_a_few_images_and_stands_beside_what_is_printed(tiny: None, run: Run, name: str) -> None:
    evidence = claim(name).test(run)
    assert evidence.verdict == "cannot tell"
    for printed, measure in zip(claim(name).published, evidence.measures, strict=False):
        assert (printed.what, printed.unit) == (measure.name, measure.unit)


@pytest.mark.parametrize(("ours", "told"), [(0.1, "it holds."), (0.9, "it fails.")])
def test_other_data_than_prints_tell_what_is_found_and_no_verdict(
    ours: float, told: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(arms: tuple[study.Arm, ...], run: Run) -> dict[str, list[study._Seen]]:
        wobble = 1e-3 * np.sin(np.arange(400.0))
        heights = {arm: (0.5 if arm == "flat" else ours) + wobble for arm in arms}
        return {arm: [study._Seen(np.zeros(400), height, height)] * 3 for arm, height in heights.items()}

    monkeypatch.setattr(study, "_all", seen)
    for test in (study.milder, study.milder_mistakes):
        evidence = test(run)
        assert evidence.verdict == "cannot tell"
        assert evidence.says.endswith(f"which are not print's, {told}")


def test_the_same_trees_score_every_network_and_fewer_mistakes_alone_are_no_milder(tiny: None, run: Run) -> None:
    first = study._trees(run.device, 0)
    assert study._trees(run.device, 0) is first
    right = np.array([1.0, 1, 0, 0])
    worse = study._Seen(right, 1 - right, 0.8 * (1 - right))
    better = study._Seen(np.array([1.0, 1, 1, 0]), np.array([0.0, 0, 0, 1]), np.array([0, 0, 0, 0.8]))
    gap = study._milder("", [better], [worse])
    assert gap.seeds.tolist() == pytest.approx([0.0])
    assert study._gain("", [better.lca], [worse.lca]).measure.value == pytest.approx(0.25)
