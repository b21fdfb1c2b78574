"""The rankers: shapes and sizes as printed, one set of weights for both branches, and a tail that keeps its order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from assay.errors import AssayError
from assay.nn.siamese import (
    ARCHITECTURES,
    Comparison,
    Distance,
    Siamese,
    colour_decoder,
    colour_encoder,
    dense_decoder,
    grey_decoder,
    grey_encoder,
    pooled_encoder,
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def shapes(layers: nn.Sequential, x: Tensor) -> list[tuple[int, ...]]:
    """What comes out of each layer that changes the shape."""
    met = [tuple(x.shape[1:])]
    for layer in layers:
        x = layer(x)
        if tuple(x.shape[1:]) != met[-1]:
            met.append(tuple(x.shape[1:]))
    return met[1:]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (grey_encoder, [(32, 14, 14), (64, 7, 7), (10, 1, 1)]),
        (pooled_encoder, [(64, 28, 28), (64, 14, 14), (128, 14, 14), (128, 7, 7), (10, 1, 1)]),
        (grey_decoder, [(10, 1, 1), (128, 7, 7), (128, 14, 14), (1, 28, 28)]),
        (colour_encoder, [(32, 56, 56), (64, 28, 28), (128, 14, 14), (256, 7, 7), (10, 1, 1)]),
        (colour_decoder, [(10, 1, 1), (256, 7, 7), (128, 14, 14), (64, 28, 28), (32, 56, 56), (3, 112, 112)]),
    ],
)
def test_every_layer_has_the_printed_shape(
    build: Callable[[int], nn.Sequential], expected: list[tuple[int, ...]]
) -> None:
    channels, side = (3, 112) if build is colour_encoder else (1, 28)
    x = torch.rand(2, 10) if "decoder" in build.__name__ else torch.rand(2, channels, side, side)
    assert shapes(build(10), x) == expected


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("grey", 10, (50_186, 90_113, 129_025)),
        ("colour", 64, (1_493_984, 16_641, 1_493_923)),
        ("colour", 128, (2_296_864, 66_049, 2_296_739)),
    ],
)
def test_the_parts_have_as_many_parameters_as_the_tables_make(
    name: str, size: int, expected: tuple[int, int, int]
) -> None:
    model = ARCHITECTURES[name](size)
    assert model.decoder is not None
    assert (count(model.encoder), count(model.tail), count(model.decoder)) == expected


def test_the_mirrored_branch_has_as_many_parameters_as_its_table_makes() -> None:
    assert count(pooled_encoder(10)) == 285_834


def test_batch_normalisation_stands_after_each_relu_and_kernels_are_multiples_of_their_stride() -> None:
    for layers in (list(colour_encoder(5)), list(colour_decoder(5))):
        norms = [k for k, layer in enumerate(layers) if isinstance(layer, nn.BatchNorm2d)]
        assert len(norms) == 4
        assert all(isinstance(layers[k - 1], nn.ReLU) for k in norms)
        convs = [layer for layer in layers if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d)]
        assert all(conv.kernel_size[0] % conv.stride[0] == 0 for conv in convs)


@pytest.mark.parametrize("name", ["digits", "grey", "colour"])
@torch.no_grad()
def test_a_pair_goes_through_one_set_of_weights(name: str) -> None:
    build = ARCHITECTURES[name]
    model = build(7).eval()
    pair = torch.rand(3, 2, *build.shape, generator=rng())
    c = model(pair)
    e1, e2 = model.encode(pair[:, 0]), model.encode(pair[:, 1])
    assert e1.shape == (3, 7)
    assert c.shape == (3,)
    assert ((c > 0) & (c < 1)).all()
    assert_close(model.compare(e1, e2), c)
    assert_close(model.compare(e2, e1), model(pair.flip(1)))
    drawn = model.decode(10 * e1)
    assert drawn.shape == pair[:, 0].shape
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    before = e1, e2
    next(model.encoder.parameters()).add_(0.1)
    after = model.encode(pair[:, 0]), model.encode(pair[:, 1])
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_tail_is_two_sigmoid_layers_on_the_embeddings_one_after_the_other() -> None:
    tail = Comparison(3, 5)
    e1, e2 = torch.randn(2, 4, 3, generator=rng())
    w1, b1, w2, b2 = (p.detach().double().numpy() for p in tail.parameters())

    def sigmoid(z: float) -> float:
        return float(torch.sigmoid(torch.tensor(z, dtype=torch.float64)))

    for k, c in enumerate(tail(e1, e2).tolist()):
        both = [*e1[k].tolist(), *e2[k].tolist()]
        hidden = [
            sigmoid(sum(w * e for w, e in zip(row, both, strict=True)) + b) for row, b in zip(w1, b1, strict=True)
        ]
        assert c[0] == pytest.approx(sigmoid(sum(w * h for w, h in zip(w2[0], hidden, strict=True)) + b2[0]), abs=1e-6)


def test_the_distance_is_euclidean_and_its_gradient_is_nought_where_both_are_equal() -> None:
    e1 = torch.tensor([[3.0, 4.0], [1.0, 2.0]], requires_grad=True)
    e2 = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    d = Siamese(nn.Identity(), Distance()).compare(e1, e2)
    assert_close(d, torch.tensor([5.0, 0.0]))
    (gradient,) = torch.autograd.grad(d.sum(), e1)
    assert_close(gradient, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


def test_a_decoder_can_be_had_for_any_shape() -> None:
    drawn = dense_decoder(4, (2, 5, 3))(100 * torch.randn(6, 4, generator=rng()))
    assert drawn.shape == (6, 2, 5, 3)
    assert drawn.min() == 0
    assert drawn.max() == 1


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(AssayError, match="at least 1 number, got size 0"):
        ARCHITECTURES["digits"](0)
    with pytest.raises(AssayError, match="no decoder; give one"):
        Siamese(nn.Identity(), Distance()).decode(torch.zeros(1, 2))
