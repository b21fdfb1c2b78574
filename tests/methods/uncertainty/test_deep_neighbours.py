from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.uncertainty.activations import features
from assay.methods.uncertainty.deep_neighbours import DeepNeighbours
from assay.methods.uncertainty.detection import auroc


def case(n: int = 200) -> tuple[nn.Sequential, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = torch.eye(3, 6)[y] * 3 + torch.randn(n, 6, generator=rng)
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)).eval(), x, y


def fit(k: int = 10, **given: Tensor) -> DeepNeighbours:
    model, x, y = case()
    return DeepNeighbours.fit(
        model, given.get("x", x), given.get("y", y), layers=("1", "2"), rng=np.random.default_rng(0), k=k
    )


def test_it_is_the_printed_algorithm_neighbour_by_neighbour() -> None:
    model, x, y = case()
    fitted = fit()
    order = np.random.default_rng(0).permutation(200)
    rest, back = order[:160], order[160:]

    def against(rows: Tensor) -> np.ndarray:
        total = np.zeros((len(rows), 3))
        for layer in ("1", "2"):
            train, new = (features(model, part, layer).double() for part in (x[rest], rows))
            middle = train.mean(0)
            search = NearestNeighbors(n_neighbors=10, metric="cosine", algorithm="brute").fit(train - middle)
            for i, near in enumerate(search.kneighbors(new - middle, return_distance=False)):
                labels = y[rest][near].numpy()
                total[i] += [(labels != c).sum() for c in range(3)]
        return total

    new = torch.randn(15, 6, generator=torch.Generator().manual_seed(1))
    want = against(new)
    assert_close(fitted.nonconformity(new), torch.as_tensor(want, dtype=torch.float32))
    ordinary = against(x[back])[np.arange(40), y[back].numpy()]
    p = (ordinary[None, None] >= want[:, :, None]).mean(2)
    assert_close(fitted.p_values(new), torch.as_tensor(p))
    assert_close(fitted.score(new), torch.as_tensor(p.max(1)))


def test_ordinary_inputs_are_more_credible_than_noise() -> None:
    rng = torch.Generator().manual_seed(2)
    model, _, _ = case()
    y = torch.arange(150) % 3
    new = torch.eye(3, 6)[y] * 3 + torch.randn(150, 6, generator=rng)
    noise = torch.randn(150, 6, generator=rng)
    assert auroc(fit().score(new), fit().score(noise)) > 0.6  # a coin has 0.5
    assert all(not m._forward_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fit(k=161), "k from 1 to 160"),
        (lambda: fit(y=torch.zeros(3)), r"torch.float32 labels of shape \(3,\)"),
        (lambda: fit(x=case()[1] * float("nan")), "NaN or inf on training inputs"),
    ],
)
def test_bad_input_gets_one_line(call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(AssayError, match=words):
        call()
    model, x, y = case()
    with pytest.raises(AssayError, match="no layers"):
        DeepNeighbours.fit(model, x, y, layers=(), rng=np.random.default_rng(0))
