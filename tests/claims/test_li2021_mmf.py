from __future__ import annotations

import numpy as np
import pytest
from small_studies import CIFAR

from assay.claims import li2021_mmf as study
from assay.data.label_tree import read_tree
from assay.run import Run


def test_the_semantic_tree_has_every_class_in_one_of_five_pairs() -> None:
    tree = read_tree(study.SEMANTIC, CIFAR)
    assert tree.is_three_levels
    assert np.bincount(tree.group_of()).tolist() == [2] * 5


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
