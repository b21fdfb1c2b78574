"""Grey images of 16 bits, as microscopes leave them; every other image is as image.py decodes it."""

from __future__ import annotations

import io
import warnings
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from assay.data.image import FORMATS, _check_sides, _told, decode
from assay.errors import AssayError

SIXTEEN = ("I", "I;16", "I;16B", "I;16L", "I;16N")


def decode_deep(source: bytes, name: str) -> NDArray[np.uint8] | NDArray[np.uint16]:  # -> c h w
    """As `decode` without a form, but a grey image of 16 bits keeps them; whoever asks has to say how it is scaled."""
    if not _has_sixteen(source):
        return decode(source, name, None)
    try:
        return _sixteen(source, name)
    except AssayError:
        raise
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error and more on damaged bytes
        raise AssayError(f"{name} cannot be read as an image ({_told(error)}); mend or remove it.") from error


def _has_sixteen(source: bytes) -> bool:
    """By its header alone; what has none that can be read is `decode`'s to refuse."""
    from PIL import Image

    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(source), formats=FORMATS) as image:
            return image.mode in SIXTEEN
    return False


def _sixteen(source: bytes, name: str) -> NDArray[np.uint16]:  # -> 1 h w
    from PIL import Image, TiffImagePlugin

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tags that are odd and harmless, and of sides, which are looked at here
        with Image.open(io.BytesIO(source), formats=FORMATS) as image:
            width, height = image.size
            _check_sides(name, width, height, "")
            if isinstance(image, TiffImagePlugin.TiffImageFile):
                across, down = (image.tag_v2.get(t) for t in (TiffImagePlugin.TILEWIDTH, TiffImagePlugin.TILELENGTH))
                if isinstance(across, int) and isinstance(down, int):
                    _check_sides(name, across, down, "in tiles of which one is taken whole, ")
            values = np.asarray(image)
    if values.shape != (height, width):  # a format may find other sides inside than it told
        raise AssayError(f"{name} says that it is {width} x {height} and is not; mend or remove it.")
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65_535:
        raise AssayError(f"{name} has values from {low} to {high}, where 16 bits hold 0 to 65535; save it so.")
    return values.astype(np.uint16)[None]
