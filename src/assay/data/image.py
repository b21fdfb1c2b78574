"""One encoded image to pixels, and the layout of many."""

from __future__ import annotations

from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError, ShapeError

GREY = ("1", "L", "LA", "La")
DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")  # more than 8 bits: Pillow would clip them at 255


class Form(NamedTuple):
    """What every image of a set is brought to: `channels` 1 or 3, and (height, width), or the size it has."""

    channels: int
    size: tuple[int, int] | None


def decode(source: Path | IO[bytes], name: str, form: Form | None) -> NDArray[np.uint8]:  # -> c h w
    """Decode one image with Pillow; without a `form` it stays grey or becomes RGB by what it is.

    To reach `form.size` the image is scaled (bilinear, antialiased) until it just covers the size, and its centre is
    cut out. Transparency is dropped, a moving picture gives its first frame, an orientation tag is not followed.
    """
    from PIL import Image

    try:
        with Image.open(source) as image:
            width, height = image.size
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and width * height > limit:
                raise Image.DecompressionBombError(f"{width} x {height} is over the limit of {limit} pixels")
            if image.mode in DEEP:
                raise AssayError(f"{name} has more than 8 bits per pixel (mode {image.mode}); save it with 8 bits.")
            channels = form.channels if form else 1 if image.mode in GREY else 3
            pixels = image.convert("L" if channels == 1 else "RGB")
    except AssayError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise AssayError(f"{name} is too large to decode safely ({error}); scale it down first.") from error
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error and more on damaged bytes
        raise AssayError(f"{name} cannot be read as an image ({error}); mend or remove it.") from error
    if form and form.size and form.size != (height, width):
        h, w = form.size
        scale = max(h / height, w / width)
        across, down = max(w, round(width * scale)), max(h, round(height * scale))
        left, top = (across - w) // 2, (down - h) // 2
        pixels = pixels.resize((across, down), Image.Resampling.BILINEAR).crop((left, top, left + w, top + h))
    array = np.asarray(pixels, dtype=np.uint8)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


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
