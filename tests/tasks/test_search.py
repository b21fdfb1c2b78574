"""The search of a gallery by descriptors: what the task of similarities says of the whole matrix, found in blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from assay.data.arrays import Targets
from assay.errors import AssayError
from assay.tasks import Retrieval, Search, search
from assay.tasks.search import Described

G, D, M = 23, 5, 6


def described(metric="cosine", seed=0, exact=False, **named):
    """Items and groups that overlap: group i has the items whose number is i or 0 modulo i + 2."""
    rng = torch.Generator().manual_seed(seed)
    g = torch.randint(-2, 3, (G, D), generator=rng).float() if exact else torch.randn(G, D, generator=rng)
    if metric == "cosine" and not exact:
        g = torch.nn.functional.normalize(g, dim=1)
    lists = [[j for j in range(G) if j % (i + 2) in (0, i)] for i in range(M)]
    starts = np.concatenate([[0], np.cumsum([len(r) for r in lists])])
    items = Targets(g.numpy(), np.zeros(G, dtype=np.int64))
    return Described(items, g, metric, starts, np.concatenate(lists), **named), lists


def dense(gallery, lists, out, group):
    """All similarities and the 0/1 matrix, for the task that wants them."""
    g = gallery.on(torch.device("cpu")).descriptors
    offset = -g.square().sum(1) / 2 if gallery.metric == "euclidean" else torch.zeros(G)
    target = torch.zeros(len(out), G, dtype=torch.long)
    for i, c in enumerate(group[:, 0].tolist()):
        target[i, lists[c]] = 1
    return out @ g.T + offset, target


@given(
    seed=st.integers(0, 10_000),
    metric=st.sampled_from(["cosine", "euclidean"]),
    exact=st.booleans(),
    held=st.integers(1, 200),
    first=st.integers(1, 8),
)
@settings(deadline=None, max_examples=50)
def test_it_reads_a_descriptor_as_all_similarities_are_read(seed, metric, exact, held, first):
    gallery, lists = described(metric, seed, exact)
    rng = torch.Generator().manual_seed(seed + 1)
    out = torch.randint(-2, 3, (9, D), generator=rng).float() if exact else torch.randn(9, D, generator=rng)
    group = torch.randint(M, (9, 1), generator=rng)
    task, whole = Search(gallery, first), Retrieval(tuple(map(str, range(G))), first)
    s, target = dense(gallery, lists, out, group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "HELD", held)
        margin = task.margin(out, group)
    torch.testing.assert_close(margin, whole.margin(s, target), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(task.score(out, group), whole.score(s, target))
    torch.testing.assert_close(task.confidence(out), whole.confidence(s), rtol=1e-4, atol=1e-5)
    rows = gallery.first(out, G).rows
    assert gallery.found(rows, group).int().tolist() == target.gather(1, rows).tolist()


def test_what_all_descriptors_have_in_common_changes_nothing():
    """Whole numbers, so that a descriptor that is moved far away is still exact."""
    rng = torch.Generator().manual_seed(0)
    g, out = (torch.randint(-8, 9, (n, 16), generator=rng).float() for n in (400, 50))
    labels = np.arange(400) % 4
    starts, rows = np.arange(0, 401, 100), np.argsort(labels, kind="stable")
    items, group = Targets(g.numpy(), labels), torch.arange(50)[:, None] % 4
    here, there = (Search(Described(items, g + far, "euclidean", starts, rows)) for far in (0.0, 2.0**20))
    torch.testing.assert_close(there.margin(out + 2.0**20, group), here.margin(out, group))
    torch.testing.assert_close(there.score(out + 2.0**20, group), here.score(out, group))
    torch.testing.assert_close(
        there.gallery.compared(out + 2.0**20, 0, 400).sort(dim=1, stable=True).indices,
        here.gallery.compared(out, 0, 400).sort(dim=1, stable=True).indices,
    )


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that is made meanwhile."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else [out]:
            self.numbers = max(self.numbers, each.numel() if isinstance(each, torch.Tensor) else 0)
        return out


def test_nothing_is_as_large_as_queries_times_what_is_relevant(monkeypatch):
    monkeypatch.setattr(search, "HELD", 2**16)
    size, asked = 40_000, 64
    g = torch.randn(size, 2, generator=torch.Generator().manual_seed(0))
    starts, rows = np.array([0, size // 2, size]), np.argsort(np.arange(size) % 2, kind="stable")
    task = Search(Described(Targets(g.numpy(), np.zeros(size, dtype=np.int64)), g, "euclidean", starts, rows))
    group = torch.arange(asked)[:, None] % 2
    with Largest() as made:
        task.score(g[:asked], group)
        task.margin(g[:asked], group)
    assert 0 < made.numbers < asked * size // 8  # half of the items are relevant


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_the_gradient_is_that_of_the_whole_matrix(metric):
    gallery, lists = described(metric)
    out, group = torch.randn(9, D, generator=torch.Generator().manual_seed(3)), torch.arange(9)[:, None] % M
    task, whole = Search(gallery), Retrieval(tuple(map(str, range(G))))
    slopes = []
    for read in (
        lambda z: task.margin(z, group),
        lambda z: whole.margin(*dense(gallery, lists, z, group)),
    ):
        z = out.clone().requires_grad_()
        slopes.append(torch.autograd.grad(read(z).sum(), z)[0])
    torch.testing.assert_close(*slopes)
    assert bool((slopes[0].norm(dim=1) > 0).all())


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_its_focus_has_the_slope_of_the_similarity_to_the_first(metric):
    gallery, _ = described(metric, names=[f"n{j}" for j in range(G)])
    task = Search(gallery)
    out = torch.nn.functional.normalize(torch.randn(4, D, generator=torch.Generator().manual_seed(5)), dim=1)
    focus = task.focus(out)
    first = gallery.first(out, 1).rows[:, 0]
    assert focus.says == tuple(f"the similarity to n{j} (item {j})" for j in first.tolist())
    g, *_ = gallery.on(torch.device("cpu"))
    at = out.clone().requires_grad_()
    near = (at * g[first]).sum(1) if metric == "cosine" else -(at - g[first]).square().sum(1) / 2
    torch.testing.assert_close(focus.weight, torch.autograd.grad(near.sum(), at)[0])
    assert task.focus(out, 7).says == ("the similarity to n7 (item 7)",) * 4


def test_what_saw_no_input_finds_the_item_that_is_relevant_most_often():
    gallery, lists = described()
    targets = np.array([[1], [1], [3]])
    trivial = Search(gallery).trivial(targets)
    times = np.bincount(np.concatenate([lists[1], lists[1], lists[3]]), minlength=G)
    found = int(gallery.first(trivial.out[None], 1).rows)
    assert times[found] == times.max()


def test_its_words_name_the_items():
    gallery, _ = described(groups=[f"group {i}" for i in range(M)])
    task = Search(gallery, first=2)
    g, *_ = gallery.on(torch.device("cpu"))
    assert task.words(g[4]).startswith("item 4, item ")
    assert task.told(torch.tensor([3])) == "group 3"
    assert len(task.named) == G


def test_its_picture_is_the_item_that_comes_first():
    x = torch.rand(6, 1, 3, 2, generator=torch.Generator().manual_seed(0))
    items, starts = Targets(20 * x.numpy() - 10, np.zeros(6, dtype=np.int64)), np.array([0, 1])
    gallery = Described(items, x.flatten(1), "euclidean", starts, np.array([0]), bounds=(-10.0, 10.0))
    shown = Search(gallery).picture(x[4].flatten())
    np.testing.assert_allclose(shown, x[4].numpy(), atol=1e-6)
    rows, _ = described()
    assert Search(rows).picture(torch.zeros(D)) is None


def test_answers_and_targets_that_are_none_are_told():
    gallery, _ = described()
    task = Search(gallery)
    assert task.wrong_output(torch.zeros(3, D), 3) is None
    assert "4 outputs for 5 numbers of a descriptor" in str(task.wrong_output(torch.zeros(3, 4), 3))
    assert "NaN" in str(task.wrong_output(torch.full((3, D), torch.nan), 3))
    assert task.wrong_targets(np.zeros((3, 1), dtype=int)) is None
    assert "shape (3,)" in str(task.wrong_targets(np.zeros(3, dtype=int)))
    assert "query 1 is of group 6, and there are 6" in str(task.wrong_targets(np.array([[0], [6]])))
    with pytest.raises(AssayError, match="the first 24 of 23 items"):
        Search(gallery, first=24)
