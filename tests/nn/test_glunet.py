"""GLUNet: its two parts by what they must be, whatever the weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.testing import assert_close

from assay.errors import AssayError
from assay.methods.train.lovasz import region_and_edge
from assay.nn.glunet import GAM, LEDM, Attention, GLUNet, Residual
from assay.nn.unet import UNet


def small(**settings: object) -> GLUNet:
    torch.manual_seed(0)
    return GLUNet(1, 3, **{"width": 2, "levels": 3, "layers": 2, "growth": 2, "edge": 2, **settings})  # type: ignore[arg-type]


def test_a_residual_block_without_its_second_convolution_is_the_identity_and_gam_lies_between_once_and_twice():
    torch.manual_seed(0)
    gam, f = GAM(4), torch.randn(2, 4, 5, 6)
    residuals = [m for m in gam.modules() if isinstance(m, Residual)]
    assert len(residuals) == 2
    for block in residuals:
        torch.nn.init.zeros_(block.second.weight)
        assert_close(block(f), f, rtol=0, atol=0)
    by_channel, by_place = gam.attention(f)
    out = gam(f)
    assert_close(out, f * (1 + by_channel * by_place))
    assert (out.abs() >= f.abs()).all()
    assert (out.abs() <= 2 * f.abs()).all()


def test_attention_is_a_number_a_channel_and_then_a_number_a_place():
    torch.manual_seed(0)
    attention, f = Attention(3), 5 * torch.randn(2, 3, 4, 7)
    with torch.no_grad():
        by_channel, by_place = attention(f)
        pooled = [attention.shared(p[:, :, None, None])[..., 0, 0] for p in (f.mean((2, 3)), f.amax((2, 3)))]
        weighed = f * by_channel
        maps = torch.stack([weighed.mean(1), weighed.amax(1)], 1)
        assert_close(by_channel[..., 0, 0], sum(pooled).sigmoid())
        assert_close(by_place, attention.place(maps).sigmoid())
    assert (by_channel.shape, by_place.shape) == ((2, 3, 1, 1), (2, 1, 4, 7))
    for m in (by_channel, by_place):
        assert float(m.min()) > 0
        assert float(m.max()) < 1
        assert float(m.max()) > float(m.min())


@pytest.mark.parametrize(("blocks", "before", "after"), [(0, 0, 0), (1, 1, 0), (2, 1, 1), (3, 2, 1), (4, 2, 2)])
def test_residual_blocks_stand_where_table_5_puts_them(blocks: int, before: int, after: int):
    gam = GAM(2, blocks=blocks)
    assert (len(gam.before), len(gam.after)) == (before, after)


def test_edges_are_those_of_maps_that_are_enlarged_first_and_weigh_less_the_deeper():
    torch.manual_seed(0)
    ledm, maps = LEDM([3, 6, 12], 2).eval(), [torch.randn(2, 3 * 2**i, 8 // 2**i, 8 // 2**i) for i in range(3)]
    parts = [
        around(thin(interpolate(x, scale_factor=float(2**i)))) * weight
        for i, (thin, around, x, weight) in enumerate(zip(ledm.thin, ledm.around, maps, (1, 0.5, 0.25), strict=True))
    ]
    edge, beside = ledm(maps)
    assert (edge.shape, beside.shape) == ((2, 1, 8, 8), (2, 2, 8, 8))
    assert_close(edge, ledm.edges(torch.cat(parts, 1)))
    assert_close(beside, ledm.beside(torch.cat(parts, 1)))
    torch.manual_seed(0)
    printed = LEDM([3, 6, 12], 2, as_published=True).eval()
    printed.thin.load_state_dict(ledm.thin.state_dict())
    printed.around.load_state_dict(ledm.around.state_dict())
    added = torch.cat([parts[0] + parts[1], parts[1] + parts[2]], 1)
    assert_close(printed(maps)[0], printed.edges(added))


@pytest.mark.parametrize("side", [(8, 8), (9, 14), (5, 4)])
def test_answers_and_edges_are_as_large_as_the_image(side: tuple[int, int]):
    logits, edge = small().eval().both(torch.rand(2, 1, *side))
    assert logits.shape == (2, 3, *side)
    assert edge is not None
    assert edge.shape == (2, 1, *side)


@pytest.mark.parametrize(("side", "padded"), [((32, 32), (32, 32)), ((64, 32), (64, 32)), ((33, 60), (64, 64))])
def test_with_prints_six_sizes_sides_of_32_are_taken_as_they_are_and_others_filled_up(
    side: tuple[int, int], padded: tuple[int, int]
):
    net, seen = small(levels=6, width=1, layers=1).eval(), []
    real = net.unet.encode
    net.unet.encode = lambda x: (seen.append(x), real(x))[1]  # type: ignore[method-assign]
    with torch.no_grad():
        logits, edge = net.both(x := torch.rand(1, 1, *side))
    assert (logits.shape, edge.shape) == ((1, 3, *side), (1, 1, *side))  # type: ignore[union-attr]
    assert seen[0].shape == (1, 1, *padded)
    assert torch.equal(seen[0][..., : side[0], : side[1]], x)


def slopes(share: float) -> dict[str, Tensor | None]:
    net, rng = small(), torch.Generator().manual_seed(1)
    logits, edge = net.both(torch.rand(2, 1, 8, 8, generator=rng))
    assert edge is not None
    true, edges = torch.randint(3, (2, 8, 8), generator=rng), torch.rand(2, 8, 8, generator=rng) < 0.5
    region_and_edge(logits, edge, true, edges, share=share).mean().backward()
    assert net.ledm is not None
    return {"edges": net.ledm.edges.weight.grad, "beside": net.ledm.beside.weight.grad, "head": net.unet.head.bias.grad}


def test_without_an_edge_loss_the_edge_head_learns_nothing_and_the_other_still_does():
    found = {
        share: {name: bool(g is not None and g.any()) for name, g in slopes(share).items()} for share in (1, 0.7, 0)
    }
    assert found[1] == {"edges": False, "beside": True, "head": True}
    assert found[0.7] == {"edges": True, "beside": True, "head": True}
    assert found[0] == {"edges": True, "beside": False, "head": False}


def test_without_its_parts_it_is_the_unet():
    net = small(gam=False, ledm=False, layers=0).eval()
    torch.manual_seed(0)
    plain = UNet(1, 3, width=2, levels=3).eval()
    assert net.both(torch.zeros(1, 1, 8, 8))[1] is None
    assert set(net.state_dict()) == {f"unet.{name}" for name in plain.state_dict()}
    x = torch.rand(2, 1, 8, 8)
    assert_close(net(x), plain(x))
    sizes = [sum(p.numel() for p in small(gam=g, ledm=e).parameters()) for g, e in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert sizes[0] < min(sizes[1:3])
    assert max(sizes[1:3]) < sizes[3]


def test_bad_input_is_told_in_a_line():
    for call, words in (
        (lambda: GAM(2, blocks=-1), "blocks=-1"),
        (lambda: LEDM([3], 2, as_published=True), r"\[3\]"),
        (lambda: GLUNet(1, 2, levels=1), "levels=1"),
    ):
        with pytest.raises(AssayError, match=words):
            call()
