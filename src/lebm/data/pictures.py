"""PNG, JPEG and WebP files -> uint8 arrays (c, size, size): upright, centre-cropped to a square, resized."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from lebm.core.errors import DataError, one_line
from lebm.core.files import GIB, check_regular_size
from lebm.core.progress import Progress

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
# No other format is tried, whatever the file's name: some of Pillow's readers start programs.
FORMATS = ("PNG", "JPEG", "WEBP")
MAX_PIXELS = 64_000_000
WORKERS = min(8, os.cpu_count() or 1)


def list_pictures(folder: Path) -> list[Path]:
    """All pictures under a folder, sorted by their path in it; hidden files and folders are left out."""
    out: list[Path] = []
    for place, folders, files in os.walk(folder, onerror=_cannot_list):
        folders[:] = [f for f in folders if not f.startswith(".")]
        out += [Path(place, f) for f in files if not f.startswith(".") and f.lower().endswith(SUFFIXES)]
    if not out:
        raise DataError(f"{folder} holds no pictures; put files ending in {', '.join(SUFFIXES)} there")
    return sorted(out, key=lambda p: p.as_posix())


def _cannot_list(e: OSError) -> NoReturn:
    raise DataError(f"{e.filename} cannot be listed ({e.strerror}); check the path and its permissions")


def decode_all(paths: Sequence[Path], shape: tuple[int, int, int], progress: Progress | None = None) -> np.ndarray:
    """All pictures as one uint8 array (n, c, h, w), in order. Pillow decodes outside the interpreter's lock."""
    out = np.empty((len(paths), *shape), dtype=np.uint8)

    def one(i: int) -> None:
        out[i] = decode(paths[i], shape)

    with ThreadPoolExecutor(WORKERS) as pool:
        for done, _ in enumerate(pool.map(one, range(len(paths))), start=1):  # the first error cancels the rest
            if progress and (done % 100 == 0 or done == len(paths)):
                progress(done, len(paths))
    return out


def decode(source: Path | io.BytesIO, shape: tuple[int, int, int], name: str = "") -> np.ndarray:
    """One picture as uint8 (c, h, w). Any failure is a DataError with the file's name; bytes need a `name` for that."""
    from PIL import Image

    if isinstance(source, Path):
        check_regular_size(source, GIB)
    name = name or str(source)
    channels, size, _ = shape
    try:
        with Image.open(source, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Image.DecompressionBombError
            pixels = np.asarray(_square(_plain(_upright(image), "L" if channels == 1 else "RGB"), size))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        limit = MAX_PIXELS // 1_000_000
        raise DataError(f"{name} has more than {limit} million pixels; make it smaller or remove it") from None
    except Exception as e:
        detail = "it is no PNG, JPEG or WebP picture" if isinstance(e, Image.UnidentifiedImageError) else one_line(e)
        raise DataError(f"{name} cannot be decoded ({detail}); repair or remove this file") from None
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def size(path: Path) -> tuple[int, int]:
    """(width, height) of a picture that was decoded, from the head of its file."""
    from PIL import Image

    with Image.open(path, formats=FORMATS) as image:
        return image.size


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF orientation says; broken EXIF data does not make the pixels unreadable."""
    from PIL import ImageOps

    image.load()
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image


def _plain(image: Image.Image, mode: str) -> Image.Image:
    """Any kind of picture as 8-bit grey ("L") or colour ("RGB"); transparent parts lie over black."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16-bit grey: Pillow's conversion clips or truncates, depending on its version
        wide = np.asarray(image).astype(np.float64)
        image = Image.fromarray((wide / 257).round().clip(0, 255).astype(np.uint8))
    elif image.has_transparency_data:
        black = Image.new("RGBA", image.size, (0, 0, 0, 255))
        image = Image.alpha_composite(black, image.convert("RGBA")).convert("RGB")
    if mode == "L" and image.mode not in ("L", "RGB"):
        image = image.convert("RGB")  # Pillow converts palettes and CMYK to grey only through colour
    return image.convert(mode)


def _square(image: Image.Image, size: int) -> Image.Image:
    """The largest centred square, resized as in the paper's code (antialiased bilinear), which leaves it as it is where
    it has that size."""
    from PIL import Image

    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
