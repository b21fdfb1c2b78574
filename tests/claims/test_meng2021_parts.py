"""Verdicts of the study of parts on made-up finds, its intervals, and what a query in part is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.claims import _queries as queries
from assay.claims import meng2021_parts as study
from assay.run import Run


def made_up(shares: dict[str, float], whole: float = 0.97) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    coin = np.random.default_rng(0).random((3, 400))
    return {arm: ((coin < share).astype(float), (coin < whole).astype(float)) for arm, share in shares.items()}


@pytest.mark.parametrize(
    ("shares", "whole", "here"),
    [
        ((0.6, 0.7, 0.7), 0.97, "it holds"),
        ((0.7, 0.6, 0.7), 0.97, "it fails"),
        ((0.7, 0.7, 0.7), 0.97, "nothing can be told either"),
        ((0.6, 0.7, 0.7), 0.5, "nothing can be told either"),
    ],
)
def test_verdicts(
    monkeypatch: pytest.MonkeyPatch, run: Run, shares: tuple[float, ...], whole: float, here: str
) -> None:
    seen = made_up(dict(zip(study.ARMS, shares, strict=True)), whole)
    monkeypatch.setattr(study, "_found", lambda arm, seed, device: seen[arm])
    evidence = study.excitation(run)
    assert evidence.verdict == "cannot tell"
    assert evidence.says.endswith(f"On these data, which are not print's, {here}.")
    assert ("that the baseline finds is" in evidence.says) == (whole == 0.5)
    other = study.region(run)
    assert [m.name for m in other.measures[:2]] == [p.what for p in study.SHELVED[1].published]


def test_an_interval_is_as_wide_as_seeds_and_queries_make_it() -> None:
    rng = np.random.default_rng(1)
    alike = (rng.random((5, 400)) < 0.5).astype(float)
    found = queries.over_queries("x", alike)
    assert found.value == pytest.approx(alike.mean())
    assert found.low is not None
    assert found.high is not None
    spread = (found.high - found.low) / 2
    assert spread == pytest.approx(1.96 * (0.25 / 2000) ** 0.5, rel=0.5)  # seeds that do not differ add a little
    apart = np.repeat([[0.0], [0.0], [0.0], [1.0], [1.0]], 400, axis=1)  # queries that do not differ: seeds alone
    wide = queries.over_queries("x", apart)
    assert wide.low == 0.0
    assert wide.high == pytest.approx(0.8)
    assert queries.above(found) == "holds"
    assert queries.above(found, wide) == "cannot tell"


def test_the_nearest_item_by_the_cosine_decides() -> None:
    items, kinds = torch.tensor([[1.0, 0.0], [0.0, 9.0]]), torch.tensor([4, 7])
    found = queries.found_first(
        items, kinds, torch.tensor([[5.0, 1.0], [1.0, 1.5], [1.0, 0.5]]), torch.tensor([4, 4, 4])
    )
    assert found.tolist() == [1.0, 0.0, 1.0]


def test_queries_are_bands_of_the_height_stretched() -> None:
    x = torch.arange(10.0)[None, None, :, None].expand(6, 1, 10, 3)
    part = study._in_part(x, 0)
    span = part.amax((1, 2, 3)) - part.amin((1, 2, 3))
    assert span.tolist() == pytest.approx([3, 4, 5, 3, 4, 5])  # rows less one of 4, 5 and 6
