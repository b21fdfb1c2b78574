from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch.testing import assert_close

from assay.errors import AssayError, ShapeError
from assay.methods.certify import nearest
from assay.nn import nearest_neighbour
from assay.nn.nearest_neighbour import NearestNeighbour
from assay.subject import Subject


def some(seed=0, n=40, d=4, classes=3, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(n, d, generator=rng, dtype=dtype)
    y = torch.cat((torch.arange(classes), torch.randint(classes, (n - classes,), generator=rng)))
    return x, y, torch.rand(7, d, generator=rng, dtype=dtype), torch.randn(d, d, generator=rng, dtype=dtype)


def by_hand(x, y, queries, g, classes):
    """One query, one point at a time."""
    rows = []
    for q in queries:
        away = [float((g @ (q - point)) @ (g @ (q - point))) for point in x]
        rows.append([-min(a for a, label in zip(away, y.tolist(), strict=True) if label == c) for c in range(classes)])
    return torch.tensor(rows, dtype=torch.float64)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from([3, 16, 2**22]))
def test_a_score_is_minus_the_squared_distance_to_the_nearest_of_the_class(seed, cells):
    x, y, queries, g = some(seed)
    before = nearest_neighbour.CELLS
    try:
        nearest_neighbour.CELLS = cells  # the search in pieces finds the same
        assert_close(NearestNeighbour(x, y, factor=g)(queries), by_hand(x, y, queries, g, 3))
        assert_close(NearestNeighbour(x, y)(queries), by_hand(x, y, queries, torch.eye(4).double(), 3))
    finally:
        nearest_neighbour.CELLS = before


def test_it_answers_as_scikit_learn_does():
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    model = NearestNeighbour(torch.tensor(x[:1200]), torch.tensor(y[:1200]))
    theirs = KNeighborsClassifier(1).fit(x[:1200].reshape(1200, -1), y[:1200]).predict(x[1200:].reshape(-1, 64))
    ours = model(torch.tensor(x[1200:])).argmax(1).numpy()
    assert (ours != theirs).sum() <= 1  # a tie may fall the other way
    assert_close(model(torch.tensor(x[:5])).amax(1), torch.zeros(5))  # its own points


def test_the_gradient_is_that_of_the_nearest_points():
    x, y, queries, g = some(1)
    model = NearestNeighbour(x, y, factor=g)
    assert torch.autograd.gradcheck(model, queries.clone().requires_grad_())
    assert not list(model.parameters())


def test_no_graph_is_kept_of_the_search():
    x, y, queries, _ = some(2)
    scores = NearestNeighbour(x, y)(queries.requires_grad_())
    seen, todo = set(), [scores.grad_fn]
    while todo:
        node = todo.pop()
        seen.add(type(node).__name__)
        todo += [f for f, _ in node.next_functions if f is not None]
    assert not any("Min" in name or "Where" in name for name in seen)


def test_the_answer_holds_up_to_the_exact_radius_and_not_much_beyond():
    x, y, queries, g = some(3)
    model = NearestNeighbour(x, y, factor=g)
    said = model(queries).argmax(1)
    found = nearest.exact_radius(x.numpy(), y.numpy(), queries.numpy(), said.numpy(), factor=g.numpy())
    change = torch.tensor(found.point) - queries
    assert_close(change.norm(dim=1), torch.tensor(found.radius))
    assert (model(queries + 0.999 * change).argmax(1) == said).all()
    top = model(queries + change).topk(2).values
    assert_close(top[:, 0], top[:, 1])


def test_another_metric_leaves_the_old_classifier_and_weights_fit_again():
    x, y, queries, g = some(4)
    model = NearestNeighbour(x, y)
    before = model(queries)
    other = model.with_factor(g)
    assert_close(other(queries), NearestNeighbour(x, y, factor=g)(queries))
    assert_close(model(queries), before, rtol=0, atol=0)
    model.load_state_dict(other.state_dict())
    assert_close(model(queries), other(queries), rtol=0, atol=0)
    low = NearestNeighbour(x, y, factor=g[:2])
    assert low.embedded.shape == (40, 2)


def test_it_can_be_a_subject():
    x, y, _, _ = some(5, n=60, dtype=torch.float32)
    pictures = x.reshape(60, 1, 2, 2)
    subject = Subject.classifier(NearestNeighbour(pictures[:50], y[:50]), (pictures[50:], y[50:]))
    assert len(subject.task.classes) == 3
    moved = Subject.classifier(NearestNeighbour(pictures[:50], y[:50], factor=2 * torch.eye(4)), subject.data)
    assert subject.fingerprint() != moved.fingerprint()


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"train_y": torch.zeros(3).long()}, ShapeError, r"points of shape \(6, 4\) with labels of shape \(3,\)"),
        ({"train_x": torch.full((6, 4), torch.nan)}, AssayError, "with NaN"),
        ({"train_x": torch.zeros(6, 4).long()}, AssayError, "points of torch.int64"),
        ({"factor": torch.eye(3)}, ShapeError, r"factor of shape \(3, 3\) for 4 features"),
        ({"train_y": torch.tensor([0, 2, 0, 2, 0, 2])}, AssayError, r"got \[3, 0, 3\] points"),
        ({"classes": 3}, AssayError, r"got \[3, 3, 0\] points of classes 0, 1, ... for 3"),
        ({"train_y": torch.zeros(6).long()}, AssayError, "two classes or more"),
        ({"train_y": torch.tensor([0.0, 1, 0, 1, 0, 1])}, AssayError, "labels of torch.float32"),
        ({"train_y": torch.tensor([-1, 1, 0, 1, 0, 1])}, AssayError, "from -1"),
    ],
)
def test_errors(change, kind, words):
    given = {"train_x": torch.rand(6, 4), "train_y": torch.tensor([0, 1] * 3)} | change
    with pytest.raises(kind, match=words) as caught:
        NearestNeighbour(**given)
    assert "\n" not in str(caught.value)
