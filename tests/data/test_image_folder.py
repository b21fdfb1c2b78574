from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from assay.data import image
from assay.data.image_folder import ImageFolder
from assay.errors import AssayError, ShapeError


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def root(tmp_path):
    rng = np.random.default_rng(0)
    for k, name in enumerate(["dog/b.png", "cat/a.bmp", "dog/a.tif", "cat/deep/z.webp"]):
        pixels = rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)
        if name.endswith("webp"):
            (tmp_path / name).parent.mkdir()
            Image.fromarray(pixels).save(tmp_path / name, lossless=True)
        else:
            save(tmp_path / name, pixels)
        np.save(tmp_path / f"{k}.npy", pixels)  # what was saved; beside the class folders, so no image
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / ".cache").mkdir()
    save(tmp_path / "cat" / ".thumbs" / "a.png", np.zeros((1, 1), np.uint8))
    return tmp_path


def test_round_trip_in_the_order_asked_for(root):
    data = ImageFolder(root)
    saved = [np.load(root / f"{k}.npy") for k in range(4)]
    assert data.classes == ("cat", "dog")
    assert [path.relative_to(root).as_posix() for path in data.paths] == [
        "cat/a.bmp",
        "cat/deep/z.webp",
        "dog/a.tif",
        "dog/b.png",
    ]
    assert data.labels.tolist() == [0, 0, 1, 1]
    assert len(data) == 4
    x, y = data.take(np.array([3, 0, 2, 1, 3]))
    assert x.dtype == torch.float32
    assert y.tolist() == [1, 0, 1, 0, 1]
    for row, k in zip(x, [0, 1, 2, 3, 0], strict=True):
        assert_close(row, torch.from_numpy(saved[k]).permute(2, 0, 1) / 255, rtol=0, atol=0)


def test_images_are_decoded_when_taken(root):
    data = ImageFolder(root)
    (root / "dog" / "b.png").write_bytes(b"junk")
    data.take(np.array([0, 1, 2]))
    with pytest.raises(AssayError, match=r"dog/b\.png cannot be read as an image .* mend or remove it"):
        data.take(np.array([3]))


@pytest.mark.parametrize(("suffix", "mode"), [("png", "L"), ("jpg", "L"), ("jpeg", "RGB"), ("gif", "P")])
def test_channels_are_those_of_the_first_image(tmp_path, suffix, mode):
    (tmp_path / "a").mkdir()
    Image.new(mode, (5, 3)).save(tmp_path / "a" / f"0.{suffix}")
    Image.new("RGB", (5, 3), (255, 0, 0)).save(tmp_path / "a" / "1.png")
    channels = 1 if mode == "L" else 3
    x, _ = ImageFolder(tmp_path).take(np.array([0, 1]))
    assert x.shape == (2, channels, 3, 5)
    assert ImageFolder(tmp_path, channels=4 - channels).take(np.array([0]))[0].shape == (1, 4 - channels, 3, 5)


def test_transparency_and_palette_become_rgb(tmp_path):
    (tmp_path / "a").mkdir()
    Image.new("RGBA", (2, 2), (255, 0, 0, 128)).save(tmp_path / "a" / "0.png")
    Image.new("RGB", (2, 2), (0, 0, 255)).convert("P").save(tmp_path / "a" / "1.png")
    x, _ = ImageFolder(tmp_path).take(np.array([0, 1]))
    assert x[:, :, 0, 0].tolist() == [[1, 0, 0], [0, 0, 1]]


def test_size_covers_and_cuts_the_centre(tmp_path):
    wide = np.zeros((10, 40, 3), np.uint8)
    wide[:, 15:25] = 255  # the centre square
    save(tmp_path / "a" / "wide.png", wide)
    save(tmp_path / "a" / "tall.png", wide.transpose(1, 0, 2).copy())
    save(tmp_path / "a" / "fit.png", np.full((5, 5, 3), 255, np.uint8))
    x, _ = ImageFolder(tmp_path, size=(5, 5)).take(np.arange(3))
    assert x.shape == (3, 3, 5, 5)
    assert x[:, :, :, 1:4][:, :, 1:4].min() == 1  # only the outermost pixels may mix with what was cut away
    assert ImageFolder(tmp_path, size=(7, 3)).take(np.arange(3))[0].shape == (3, 3, 7, 3)


def test_unequal_sizes_name_the_file_both_sizes_and_the_mend(tmp_path):
    save(tmp_path / "a" / "0.png", np.zeros((4, 6), np.uint8))
    save(tmp_path / "b" / "1.png", np.zeros((5, 7), np.uint8))
    data = ImageFolder(tmp_path)
    data.take(np.array([0]))
    with pytest.raises(ShapeError, match=r"b/1\.png is 5 x 7 where the first image .*0\.png is 4 x 6 .*size=\(h, w\)"):
        data.take(np.array([0, 1]))


def test_truncated_image(tmp_path):
    rng = np.random.default_rng(0)
    save(tmp_path / "a" / "0.png", rng.integers(0, 256, (20, 20), dtype=np.uint8))
    save(tmp_path / "a" / "1.jpg", rng.integers(0, 256, (20, 20), dtype=np.uint8))
    for name in ("0.png", "1.jpg"):
        path = tmp_path / "a" / name
        whole = path.read_bytes()
        data = ImageFolder(tmp_path)
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(AssayError, match=f"{name} cannot be read as an image"):
            data.take(np.array([0, 1]))
        path.write_bytes(whole)


def test_a_bomb_is_not_decoded(tmp_path, monkeypatch):
    save(tmp_path / "a" / "0.png", np.zeros((20, 20), np.uint8))
    monkeypatch.setattr(image, "MOST_PIXELS", 399)
    with pytest.raises(AssayError, match=r"0\.png is too large to decode safely .20 x 20 is over 399.* scale it down"):
        ImageFolder(tmp_path)
    monkeypatch.setattr(image, "MOST_PIXELS", 400)
    assert len(ImageFolder(tmp_path)) == 1
    for limit in (399, 150):  # Pillow itself only warns at up to twice the limit
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(AssayError, match=r"0\.png is too large to decode safely .* scale it down"):
            ImageFolder(tmp_path)


def test_sixteen_bits_are_refused(tmp_path):
    save(tmp_path / "a" / "0.png", np.full((3, 3), 1000, np.uint16))
    with pytest.raises(AssayError, match="more than 8 bits"):
        ImageFolder(tmp_path)


def test_missing_empty_and_flat_folders(tmp_path):
    with pytest.raises(AssayError, match=r"There is no folder .*nowhere"):
        ImageFolder(tmp_path / "nowhere")
    with pytest.raises(AssayError, match="has no sub-folders"):
        ImageFolder(tmp_path)
    save(tmp_path / "a" / "0.png", np.zeros((2, 2), np.uint8))
    (tmp_path / "b").mkdir()
    with pytest.raises(AssayError, match=r"Class folder .*b holds no images"):
        ImageFolder(tmp_path)


@pytest.mark.parametrize("size", [(0, 3), (3, -1)])
def test_impossible_forms(tmp_path, size):
    with pytest.raises(AssayError, match=r"size must be \(height, width\)"):
        ImageFolder(tmp_path, size=size)
    with pytest.raises(AssayError, match=r"channels must be 1 .* or 3 .*, got 4"):
        ImageFolder(tmp_path, channels=4)


def test_fingerprint_sees_names_contents_and_form_not_times_or_the_root(root, tmp_path):
    before = ImageFolder(root).fingerprint()
    assert ImageFolder(root).fingerprint() == before
    assert ImageFolder(root, size=(2, 2)).fingerprint() != before
    assert ImageFolder(root, channels=1).fingerprint() != before
    moved = root.rename(tmp_path.parent / f"{tmp_path.name}-moved")
    assert ImageFolder(moved).fingerprint() == before
    os.utime(moved / "dog" / "b.png", (1, 1))
    assert ImageFolder(moved).fingerprint() == before
    (moved / "dog" / "b.png").rename(moved / "dog" / "c.png")
    assert ImageFolder(moved).fingerprint() != before


def test_nothing_taken(root):
    x, y = ImageFolder(root).take(np.array([], dtype=np.int64))
    assert x.shape == (0, 3, 4, 6)
    assert y.shape == (0,)
