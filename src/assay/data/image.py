"""One encoded image to pixels, and the layout of many."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.data.plain_file import open_plain
from assay.errors import AssayError, ShapeError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
"""What is decoded, by what a file holds and not by its name: Pillow's other readers start programs and fetch files."""
MOST_PIXELS = 2**26  # 8192 x 8192, a quarter of a gigabyte as Pillow holds them
MOST_SIDE = 65_535  # the most that JPEG has

GREY = ("1", "L", "LA", "La")
DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")  # more than 8 bits: Pillow would clip them at 255


class Form(NamedTuple):
    """What every image of a set is brought to: `channels` 1 or 3, and (height, width), or the size it has."""

    channels: int
    size: tuple[int, int] | None


def decode(source: Path | bytes, name: str, form: Form | None) -> NDArray[np.uint8]:  # -> c h w
    """Decode one image with Pillow; without a `form` it stays grey or becomes RGB by what it is.

    To reach `form.size` the image is scaled (bilinear, antialiased) until it just covers the size, and its centre is
    cut out. Transparency is dropped, a moving picture gives its first frame, an orientation tag is not followed.
    Nothing is decoded before its sides have been looked at.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with open_plain(source) if isinstance(source, Path) else io.BytesIO(source) as file:
            return _decoded(file, name, form)
    except AssayError:
        raise
    except UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise AssayError(f"{name} cannot be read as an image (none of {known}); mend or remove it.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise AssayError(f"{name} is too large to decode safely ({error}); scale it down first.") from error
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error and more on damaged bytes
        raise AssayError(f"{name} cannot be read as an image ({_told(error)}); mend or remove it.") from error


def _decoded(file: BinaryIO, name: str, form: Form | None) -> NDArray[np.uint8]:  # -> c h w
    from PIL import Image, TiffImagePlugin

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tags and colours that are odd and harmless
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file, formats=FORMATS) as image:
            width, height = image.size
            _check_sides(name, width, height, "")
            if isinstance(image, TiffImagePlugin.TiffImageFile):
                across, down = (
                    image.tag_v2.get(tag) for tag in (TiffImagePlugin.TILEWIDTH, TiffImagePlugin.TILELENGTH)
                )
                if isinstance(across, int) and isinstance(down, int):
                    _check_sides(name, across, down, "in tiles of which one is taken whole, ")
            if image.mode in DEEP:
                raise AssayError(f"{name} has more than 8 bits per pixel (mode {image.mode}); save it with 8 bits.")
            channels = form.channels if form else 1 if image.mode in GREY else 3
            cut = _scaled(name, form.size, width, height) if form and form.size else None
            pixels = image.convert("L" if channels == 1 else "RGB")
            if pixels.size != (width, height):  # a format may find other sides inside than it told
                raise AssayError(f"{name} says that it is {width} x {height} and is not; mend or remove it.")
    if cut is not None:
        scaled, box = cut
        pixels = pixels.resize(scaled, Image.Resampling.BILINEAR).crop(box)
    array = np.asarray(pixels, dtype=np.uint8)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def _scaled(
    name: str, size: tuple[int, int], width: int, height: int
) -> tuple[tuple[int, int], tuple[int, int, int, int]] | None:
    """The width and height that just cover `size`, and the box of its centre; None where the image has it already."""
    h, w = size
    if size == (height, width):
        return None
    scale = max(h / height, w / width)
    across, down = max(w, round(width * scale)), max(h, round(height * scale))
    _check_sides(name, across, down, f"scaled to cover {h} x {w}, ")
    left, top = (across - w) // 2, (down - h) // 2
    return (across, down), (left, top, left + w, top + h)


def _check_sides(name: str, width: int, height: int, how: str) -> None:
    """Refuse an image before memory is taken for it."""
    if width * height > MOST_PIXELS or max(width, height) > MOST_SIDE:
        raise AssayError(
            f"{name} is too large to decode safely ({how}{width:,} x {height:,} is over {MOST_PIXELS:,} pixels, or "
            f"{MOST_SIDE:,} to a side); scale it down first."
        )


def _told(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def check_form(size: tuple[int, int] | None, channels: int | None) -> None:
    """Refuse a size or a number of channels that no image can have."""
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise AssayError(f"size must be (height, width) with both at least 1, got {size}.")
    if channels not in (None, 1, 3):
        raise AssayError(f"channels must be 1 (grey) or 3 (RGB), got {channels}.")


def check_same(name: str, image: NDArray[np.uint8], shape: tuple[int, ...], first: str) -> None:
    """Refuse an image whose size differs from the first one's."""
    if image.shape != shape:
        raise ShapeError(
            f"{name} is {image.shape[1]} x {image.shape[2]} where {first} is {shape[1]} x {shape[2]} "
            "(height x width); pass size=(h, w) to scale and crop all images to one size."
        )


def channels_first(x: NDArray[np.generic]) -> NDArray[np.generic]:  # n d | n h w | n h w c | n c h w -> n d | n c h w
    """Bring an array of images to n c h w by its shape alone.

    Two axes are vectors and stay. Three are n h w and get a channel axis. Of four, the second is taken for the channels
    if it is 1 or 3; otherwise the last is if it is 1 or 3, and is moved; anything else stays. A last axis of 4 in that
    place (RGBA) is refused.
    """
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[1] not in (1, 3):
        if x.shape[3] == 4:
            raise ShapeError(f"Images of shape {x.shape} have 4 channels; drop the alpha channel: x[..., :3].")
        if x.shape[3] in (1, 3):
            return x.transpose(0, 3, 1, 2)
    return x
