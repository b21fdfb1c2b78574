"""Everyday corruptions: what each promises, against closed forms, SciPy and Pillow."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import scipy.ndimage
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.testing import assert_close

import assay.data.corruptions as package
from assay.data.corruptions import CORRUPTIONS, corrupt
from assay.data.corruptions.blur import (
    defocus_blur,
    disc_kernel,
    gaussian_blur,
    gaussian_kernel,
    line_kernels,
    motion_blur,
)
from assay.data.corruptions.digital import contrast, gamma, jpeg, pixelate, quantisers
from assay.data.corruptions.geometry import occlusion, rotate, rotation, translate, translation
from assay.data.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from assay.data.corruptions.weather import fog
from assay.errors import AssayError, ShapeError

DRAWN = {
    "gaussian-noise", "shot-noise", "impulse-noise", "speckle-noise", "motion-blur", "fog",
    "rotation", "translation", "occlusion",
}  # fmt: skip
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))]
every_name = pytest.mark.parametrize("name", CORRUPTIONS)


def seeded(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def natural(n: int, c: int, h: int, w: int, *, slope: float = 1.0, seed: int = 0) -> Tensor:
    """Random images with the amplitude spectrum 1 / f^slope of photographs (slope 1) or smoother ones, in [0, 1]."""
    white = torch.randn(n, c, h, w, generator=seeded(seed), dtype=torch.float64)
    frequency = torch.hypot(torch.fft.fftfreq(h)[:, None], torch.fft.rfftfreq(w)).double()
    frequency[0, 0] = torch.inf
    field = torch.fft.irfft2(torch.fft.rfft2(white) * frequency**-slope, s=(h, w))
    low, high = field.amin((1, 2, 3), keepdim=True), field.amax((1, 2, 3), keepdim=True)
    return ((field - low) / (high - low)).float()


def thing(n: int, side: int) -> Tensor:
    """Grey shapes on black, as in small grey data sets: a rough disc of its own size and place in each image."""
    u = torch.rand(n, 3, 1, 1, generator=seeded(7))
    axis = torch.linspace(-1, 1, side)
    distance = torch.hypot(axis[:, None] - 0.6 * (u[:, 0] - 0.5), axis - 0.6 * (u[:, 1] - 0.5))
    return ((distance < 0.3 + 0.4 * u[:, 2]) * (0.5 + 0.5 * natural(n, 1, side, side, seed=8)[:, 0]))[:, None]


# --- what all of them promise ----------------------------------------------------------------------------------------


def test_the_public_names_and_the_registry_are_what_the_docs_say():
    assert package.__all__ == ["CORRUPTIONS", "Corruption", "Family", "corrupt"]
    assert list(CORRUPTIONS) == [
        "gaussian-noise", "shot-noise", "impulse-noise", "speckle-noise",
        "gaussian-blur", "defocus-blur", "motion-blur",
        "brightness", "fog",
        "contrast", "gamma", "pixelate", "jpeg",
        "rotation", "translation", "occlusion",
    ]  # fmt: skip
    assert {c.family for c in CORRUPTIONS.values()} == {"noise", "blur", "weather", "digital", "geometry"}
    for name, corruption in CORRUPTIONS.items():
        assert corruption.name == name
        assert corruption.description.endswith(".")
        assert "\n" not in corruption.description
        steps = np.diff(corruption.strengths)
        assert len(steps) == 4
        assert (steps > 0).all() or (steps < 0).all()
    with pytest.raises(dataclasses.FrozenInstanceError):
        CORRUPTIONS["fog"].name = "mist"  # type: ignore[misc]


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(list(CORRUPTIONS)),
    severity=st.integers(1, 5),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(8, 40), st.integers(8, 40)),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
def test_shape_dtype_device_and_range_stay_and_a_seed_repeats(device, name, severity, shape, dtype, seed):
    x = torch.rand(shape, generator=seeded(seed, device), device=device).to(dtype)
    before = x.clone()
    once = corrupt(x, name, severity, rng=seeded(seed, device))
    again = corrupt(x, name, severity, rng=seeded(seed, device))
    assert once.shape == x.shape
    assert once.dtype == x.dtype
    assert once.device == x.device
    assert ((once >= 0) & (once <= 1)).all()  # false of NaN
    assert_close(once, again, rtol=0, atol=0)
    assert_close(x, before, rtol=0, atol=0)


@every_name
@pytest.mark.parametrize(
    "images",
    [
        pytest.param(lambda: natural(24, 3, 32, 32), id="photo 32"),
        pytest.param(lambda: natural(24, 1, 28, 28, slope=2.0), id="smooth 28"),
        pytest.param(lambda: thing(24, 28), id="thing 28"),
        pytest.param(lambda: natural(8, 3, 60, 97), id="photo 60x97"),
        pytest.param(lambda: natural(2, 3, 224, 224), id="photo 224"),
    ],
)
def test_a_higher_severity_changes_the_image_more(name: str, images: Callable[[], Tensor]):
    x = images()
    damage = [(corrupt(x, name, s, rng=seeded(5)) - x).square().mean().item() for s in range(1, 6)]
    assert damage[0] > 1e-5
    assert all(mild < hard for mild, hard in pairwise(damage)), damage


@every_name
def test_even_the_smallest_image_is_changed_and_never_less_by_a_higher_severity(name: str):
    x = natural(64, 1, 8, 8)
    damage = [(corrupt(x, name, s, rng=seeded(5)) - x).square().mean().item() for s in range(1, 6)]
    assert damage[0] > 1e-6
    assert damage == sorted(damage)


@every_name
def test_each_image_of_a_batch_is_corrupted_on_its_own(name: str):
    if name in DRAWN:  # twelve copies of one image must not all come out alike
        x = natural(1, 1, 20, 20).expand(12, 1, 20, 20)
        y = corrupt(x, name, 3, rng=seeded())
        assert len({row.numpy().tobytes() for row in y}) > 1
    else:  # nothing is drawn: the batch is the images, one by one, and the generator is left alone
        x = natural(4, 3, 20, 27)
        rng = seeded()
        y = corrupt(x, name, 3, rng=rng)
        assert_close(y, torch.cat([corrupt(row[None], name, 3, rng=seeded()) for row in x]), rtol=0, atol=1e-6)
        assert_close(rng.get_state(), seeded().get_state(), rtol=0, atol=0)


@every_name
def test_a_neighbour_in_the_batch_makes_no_difference(name: str):
    if name == "shot-noise":
        pytest.skip("Poisson draws use up as many random numbers as the values before them ask for")
    x, other = natural(3, 1, 16, 16), natural(3, 1, 16, 16)
    other[0] = 1 - other[0] ** 2
    y, z = corrupt(x, name, 4, rng=seeded()), corrupt(other, name, 4, rng=seeded())
    assert_close(y[1:], z[1:], rtol=0, atol=1e-6)


@every_name
def test_other_bounds_are_the_same_corruption_on_another_scale(name: str):
    x = (natural(2, 3, 16, 16) * 64).round() / 64  # exact on both scales
    y = corrupt(2 * x - 1, name, 3, rng=seeded(), low=-1.0, high=1.0)
    assert_close(y, 2 * corrupt(x, name, 3, rng=seeded()) - 1, rtol=0, atol=1e-6)


@every_name
def test_an_empty_batch_stays_empty(name: str):
    assert corrupt(torch.rand(0, 3, 12, 10), name, 2, rng=seeded()).shape == (0, 3, 12, 10)


def test_errors_name_what_came_and_what_to_do():
    x = torch.rand(2, 1, 8, 8)
    with pytest.raises(AssayError, match=r"no corruption 'rain'; choose one of gaussian-noise, .*occlusion"):
        corrupt(x, "rain", 1, rng=seeded())
    for severity in (0, 6, 2.5):
        with pytest.raises(AssayError, match=rf"Severity {severity} of fog is not one of 1, 2, 3, 4, 5"):
            corrupt(x, "fog", severity, rng=seeded())  # type: ignore[arg-type]
    for wrong in (x[0], x[..., :7], x[:, :0]):
        with pytest.raises(ShapeError, match=r"n c h w with h, w >= 8"):
            corrupt(wrong, "fog", 1, rng=seeded())
    with pytest.raises(AssayError, match=r"got torch.uint8 images; .* x / 255"):
        corrupt((x * 255).byte(), "fog", 1, rng=seeded())
    for wrong in (x * 255, x - 0.5, x * torch.nan):
        with pytest.raises(AssayError, match=r"Images span .*, not \[0, 1\]; rescale"):
            corrupt(wrong, "fog", 1, rng=seeded())


# --- noise -----------------------------------------------------------------------------------------------------------


def test_gaussian_and_speckle_noise_have_the_stated_deviation():
    x = torch.full((4, 3, 100, 100), 0.5)
    assert (gaussian_noise(x, 0.1, seeded()) - x).std().item() == pytest.approx(0.1, rel=0.02)
    assert (speckle_noise(x, 0.1, seeded()) - x).std().item() == pytest.approx(0.05, rel=0.02)
    assert (gaussian_noise(x, 0.1, seeded()) - x).mean().abs() < 0.002
    assert_close(speckle_noise(0 * x, 0.1, seeded()), 0 * x, rtol=0, atol=0)


def test_shot_noise_counts_whole_quanta_with_poisson_variance():
    x = torch.full((4, 3, 100, 100), 0.3)
    y = shot_noise(x, 40.0, seeded())
    assert_close(40 * y, (40 * y).round(), rtol=0, atol=1e-4)
    assert y.mean().item() == pytest.approx(0.3, rel=0.01)
    assert y.var().item() == pytest.approx(0.3 / 40, rel=0.03)


def test_impulse_noise_replaces_the_stated_fraction_half_by_black_half_by_white():
    x = torch.full((4, 3, 100, 100), 0.4)
    y = impulse_noise(x, 0.2, seeded())
    assert (y == 0).float().mean().item() == pytest.approx(0.1, abs=0.004)
    assert (y == 1).float().mean().item() == pytest.approx(0.1, abs=0.004)
    assert ((y == 0) | (y == 1) | (y == x)).all()


# --- blur ------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(size=st.floats(0.05, 40), angle=st.floats(0, math.pi))
def test_kernels_are_means_centred_on_the_pixel(size: float, angle: float):
    like = torch.zeros(1, dtype=torch.float64)
    turned = line_kernels(size, torch.tensor([angle], dtype=torch.float64))
    for kernel in (gaussian_kernel(size, like=like), disc_kernel(size, like=like), turned):
        assert kernel.shape[1] == kernel.shape[2]
        assert kernel.shape[1] % 2 == 1
        assert (kernel >= -1e-12).all()
        assert kernel.sum().item() == pytest.approx(1, abs=1e-9)
        assert_close(kernel, kernel.flip(1, 2), rtol=0, atol=1e-9)


def test_wide_kernels_have_the_second_moment_of_their_shape():
    like = torch.zeros(1, dtype=torch.float64)

    def variances(kernel: Tensor) -> tuple[float, float]:  # down, across
        at = torch.arange(kernel.shape[1], dtype=torch.float64) - kernel.shape[1] // 2
        return (kernel[0].sum(1) * at**2).sum().item(), (kernel[0].sum(0) * at**2).sum().item()

    assert variances(gaussian_kernel(6.0, like=like)) == pytest.approx((36, 36), rel=0.05)  # cut off at three sigma
    assert variances(disc_kernel(12.0, like=like)) == pytest.approx((36, 36), rel=0.02)  # r^2 / 4
    flat, steep = torch.tensor([0.0, math.pi / 2], dtype=torch.float64).split(1)
    assert variances(line_kernels(24.0, flat)) == pytest.approx((0, 48), rel=0.02, abs=1e-9)  # L^2 / 12
    assert variances(line_kernels(24.0, steep)) == pytest.approx((48, 0), rel=0.02, abs=1e-9)
    rising = line_kernels(7.0, torch.tensor([math.pi / 4]))[0]
    assert rising[0, 0] < 1e-6 < rising[1, -2]  # bottom left to top right


@pytest.mark.parametrize("blur", [gaussian_blur, defocus_blur, motion_blur])
def test_blur_leaves_a_constant_image_constant(blur):
    x = torch.full((3, 2, 19, 30), 0.37)
    assert_close(blur(x, 2.0, seeded()), x, rtol=0, atol=1e-5)


def test_blur_is_the_convolution_of_the_mirrored_image():
    x = natural(2, 3, 33, 32)
    kernel = gaussian_kernel(1.3, like=x)[0].numpy()
    expected = np.stack([[scipy.ndimage.convolve(p, kernel, mode="mirror") for p in image] for image in x.numpy()])
    assert_close(gaussian_blur(x, 1.3), torch.from_numpy(expected), rtol=0, atol=1e-5)


def test_motion_blur_gives_each_image_the_kernel_of_its_own_angle():
    x = torch.zeros(5, 1, 32, 32)
    x[:, :, 16, 16] = 1
    angle = math.pi * torch.rand(5, generator=seeded(3))
    expected = line_kernels(6.0, angle)
    assert_close(motion_blur(x, 6.0, seeded(3))[:, 0, 13:20, 13:20], expected, rtol=0, atol=1e-5)


def test_blur_lengths_grow_with_the_side_to_the_power_of_three_quarters():
    x = torch.zeros(1, 1, 512, 600)
    x[..., 256, 300] = 1
    y = gaussian_blur(x, 1.0)  # (512 / 32)^(3/4) = 8 pixels
    at = torch.arange(600.0) - 300
    assert (y[0, 0].sum(0) * at**2).sum().item() == pytest.approx(64, rel=0.04)


# --- weather ---------------------------------------------------------------------------------------------------------


def test_fog_is_a_cloud_shared_by_the_channels_between_half_and_full_thickness():
    x = 0.8 * natural(3, 3, 24, 40)
    cover = (fog(x, 0.6, seeded()) - x) / (1 - x)
    assert_close(cover[:, :1].expand_as(cover), cover, rtol=0, atol=1e-4)
    assert_close(cover.amin((1, 2, 3)), torch.full((3,), 0.3), rtol=0, atol=1e-4)
    assert_close(cover.amax((1, 2, 3)), torch.full((3,), 0.6), rtol=0, atol=1e-4)
    rough = (cover.diff(dim=-1) ** 2).mean() / cover.var()
    assert rough < 0.5  # a cloud, not white noise, for which this is 2
    white = torch.ones(1, 1, 8, 8)
    assert_close(fog(white, 0.6, seeded()), white, rtol=0, atol=0)


def test_brightness_adds_and_clips():
    x = natural(2, 3, 12, 12)
    strength = CORRUPTIONS["brightness"].strengths[3]
    assert_close(corrupt(x, "brightness", 4, rng=seeded()), (x + strength).clamp(max=1), rtol=0, atol=1e-7)


# --- digital ---------------------------------------------------------------------------------------------------------


def test_contrast_keeps_the_mean_and_scales_the_deviation():
    x = natural(3, 3, 20, 20) * torch.tensor([0.3, 0.6, 1.0])[:, None, None]
    y = contrast(x, 0.3)
    assert_close(y.mean((2, 3)), x.mean((2, 3)), rtol=0, atol=1e-6)
    assert_close(y.std((2, 3)), 0.3 * x.std((2, 3)), rtol=0, atol=1e-6)


def test_gamma_keeps_black_and_white_and_darkens_between():
    x = torch.tensor([0.0, 0.25, 0.5, 1.0]).repeat(1, 1, 8, 2)
    assert_close(gamma(x, 2.0)[0, 0, 0, :4], torch.tensor([0.0, 0.0625, 0.25, 1.0]), rtol=0, atol=1e-7)


def test_pixelate_with_whole_cells_is_the_mean_of_each_block():
    x = natural(2, 3, 32, 48)
    blocks = x.reshape(2, 3, 16, 2, 24, 2).mean((3, 5))
    assert_close(pixelate(x, 1.0), blocks.repeat_interleave(2, 2).repeat_interleave(2, 3), rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(h=st.integers(8, 70), w=st.integers(8, 70), coarseness=st.floats(0.01, 4))
def test_pixelate_leaves_a_constant_image_constant_at_any_cell(h: int, w: int, coarseness: float):
    x = torch.full((1, 1, h, w), 0.6)
    assert_close(pixelate(x, coarseness), x, rtol=0, atol=1e-5)


def through_pillow(x: Tensor, quality: int) -> tuple[Tensor, list[list[int]]]:
    """One image through Pillow's JPEG without chroma subsampling, with its quantisation tables in natural order."""
    levels = (x * 255).round().byte().permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(levels.squeeze()).save(file, "JPEG", quality=quality, subsampling=0)
    image = Image.open(file)
    tables = [list(table) for _, table in sorted(image.quantization.items())]
    return torch.from_numpy(np.array(image)).reshape(levels.shape).permute(2, 0, 1) / 255, tables


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("quality", [5, 12, 37, 50, 75, 90, 100])
def test_jpeg_agrees_with_pillow(channels: int, quality: int):
    x = natural(2, channels, 45, 70, seed=quality)  # not whole blocks
    ours = jpeg(x, float(quality))
    for image, mine in zip(x, ours, strict=True):
        theirs, tables = through_pillow(image, quality)
        scaled = quantisers(float(quality), like=x).flatten(1).tolist()
        assert scaled[: len(tables)] == tables
        # Pillow's codec works in whole numbers: now and then a coefficient rounds the other way, in one block
        apart = (mine - theirs).abs() * 255
        assert apart.mean() < 0.7
        assert (apart > 1.5).float().mean() < 0.2
        assert (mine - image).square().mean().item() == pytest.approx((theirs - image).square().mean().item(), rel=0.03)


def test_jpeg_at_full_quality_is_nearly_the_identity():
    grey, colour = natural(2, 1, 40, 40), natural(2, 3, 40, 40)
    assert (jpeg(grey, 100.0) - grey).abs().max() * 255 < 2.5
    assert (jpeg(colour, 100.0) - colour).abs().max() * 255 < 4.5
    assert (jpeg(colour, 100.0) - colour).abs().mean() * 255 < 1


def test_jpeg_takes_other_numbers_of_channels_plane_by_plane():
    x = natural(2, 4, 24, 24)
    alone = torch.cat([jpeg(x[:, [i]], 30.0) for i in range(4)], 1)
    assert_close(jpeg(x, 30.0), alone, rtol=0, atol=1e-6)


# --- geometry --------------------------------------------------------------------------------------------------------


def test_rotation_by_quarter_turns_is_exact_and_counter_clockwise():
    x = natural(4, 3, 17, 17)
    y = rotate(x, torch.arange(4) * math.pi / 2)
    for k in range(4):
        assert_close(y[k], torch.rot90(x[k], k, (1, 2)), rtol=0, atol=1e-4)


def test_rotation_agrees_with_scipy_away_from_the_corners_of_any_shape():
    x = natural(1, 1, 31, 44)
    y = rotate(x, torch.tensor([math.radians(20)]))
    expected = scipy.ndimage.rotate(x[0, 0].double().numpy(), 20, reshape=False, order=1, mode="nearest")
    assert_close(y[0, 0, 8:-8, 8:-8], torch.from_numpy(expected).float()[8:-8, 8:-8], rtol=0, atol=1e-4)


def test_rotation_fills_the_corners_from_the_edge():
    x = torch.full((4, 2, 12, 19), 0.8)
    assert_close(rotation(x, 30.0, seeded()), x, rtol=0, atol=1e-5)


def test_rotation_turns_every_image_as_far_and_some_each_way():
    x = natural(1, 1, 24, 24).expand(20, 1, 24, 24)
    y = rotation(x, 15.0, seeded())
    left, right = rotate(x[:1], torch.tensor([math.radians(15)])), rotate(x[:1], torch.tensor([-math.radians(15)]))
    is_left, is_right = ((y - way).abs().amax((1, 2, 3)) < 1e-5 for way in (left, right))
    assert (is_left ^ is_right).all()
    assert is_left.any()
    assert is_right.any()


def test_translation_moves_a_delta_by_the_stated_length():
    x = torch.zeros(40, 1, 40, 50)
    x[:, :, 20, 25] = 1
    y = translation(x, 0.25, seeded())  # ten pixels
    assert_close(y.sum((1, 2, 3)), torch.ones(40), rtol=0, atol=0)
    _, _, row, column = y.nonzero(as_tuple=True)
    length = torch.hypot(row - 20.0, column - 25.0)
    assert ((length - 10).abs() <= math.sqrt(0.5)).all()
    assert (row < 20).any()
    assert (row > 20).any()
    assert (column < 25).any()
    assert (column > 25).any()


def test_translate_repeats_the_edge_it_uncovers():
    x = natural(2, 2, 9, 11)
    y = translate(x, torch.tensor([2, 0]), torch.tensor([-3, 0]))
    assert_close(y[0, :, 2:, :-3], x[0, :, :-2, 3:], rtol=0, atol=0)
    assert_close(y[0, :, :3, :-3], x[0, :, :1, 3:].expand(2, 3, 8), rtol=0, atol=0)
    assert_close(y[1], x[1], rtol=0, atol=0)


@settings(deadline=None, max_examples=30)
@given(h=st.integers(8, 50), w=st.integers(8, 50), fraction=st.floats(0.1, 0.9), seed=st.integers(0, 999))
def test_occlusion_covers_one_whole_grey_square(h: int, w: int, fraction: float, seed: int):
    x = torch.zeros(3, 2, h, w)
    y = occlusion(x, fraction, seeded(seed))
    side = round(fraction * min(h, w))
    assert ((y == 0) | (y == 0.5)).all()
    for image in y:
        for plane in image:
            assert (plane.amax(1) > 0).sum() == side
            assert (plane.amax(0) > 0).sum() == side
            assert (plane > 0).sum() == side**2


def test_occlusion_reaches_every_corner():
    y = occlusion(torch.zeros(400, 1, 8, 8), 0.5, seeded())[:, 0]
    for corner in (y[:, 0, 0], y[:, 0, -1], y[:, -1, 0], y[:, -1, -1]):
        assert 0.01 < (corner > 0).float().mean() < 0.12  # 1 of 25 places each
