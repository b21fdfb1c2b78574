"""softRmax on CIFAR-10: networks stop where print's accuracy is reached, and others tell nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_studies import made_small, ruled

from assay.claims import wang2022_cifar10 as study
from assay.data.whole import Whole
from assay.methods.train import fit as training
from assay.run import Run


def test_training_stops_once_held_out_images_are_as_right_as_in_print(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = iter([0.5, 0.79, 0.81, 0.9])
    done: list[int] = []
    monkeypatch.setattr(study.digits, "_hits", lambda net, data: np.array([next(reached)]))
    monkeypatch.setattr(training, "fit", lambda model, data, *, epochs, **how: done.append(epochs))
    data = Whole(torch.rand(4, 3, 8, 8), torch.arange(4))
    study._until_printed(torch.nn.Identity(), "softmax", data, data, 0, "cpu")
    assert done == [1, 1, 1]


def test_both_heads_begin_alike_and_what_is_held_out_is_not_learnt() -> None:
    with made_small(study):
        nets = {head: study._trained(head, 0, "cpu") for head in study.HEADS}
        first = [next(net.parameters()) for net in nets.values()]
        assert first[0].shape == first[1].shape
        assert not torch.equal(*first)
        assert study._trained("softmax", 0, "cpu") is nets["softmax"]


def test_networks_unlike_prints_tell_nothing(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def verdict(clean: float, gain: float = 0.3) -> str:
        plain = np.array([[0.803, 0.18, 0.14, 0.10, 0.05]] * 5)
        ours = plain + np.array([[clean - 0.803, gain, gain, gain, gain]])
        wobble = 1e-3 * np.sin(np.arange(200))
        monkeypatch.setattr(
            study, "_seen", lambda *a: {"softmax": plain[..., None] + wobble, "softRmax": ours[..., None] + wobble}
        )
        return ruled(study, "defence", study.defends(run)).verdict

    assert verdict(0.80) == "holds"
    assert verdict(0.80, gain=-0.04) == "fails"
    assert verdict(0.85) == "cannot tell"
    assert verdict(0.75) == "cannot tell"
