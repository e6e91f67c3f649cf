"""Image grids: uint8 arrays in, a PIL image out. Their gutters are transparent, so they suit light and dark pages."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lebm.core.errors import DataError, UserError
from lebm.core.files import write_atomic

if TYPE_CHECKING:
    from PIL.Image import Image

WIDEST = 800  # pixels: small images are enlarged up to this width of the whole grid
GUTTER = 2
BETWEEN_PAIRS = 14
BLUE = "#0072b2"


def grid(pixels: Any, columns: int | None = None, scale: int | None = None, gutter: int = GUTTER) -> Image:
    """Images (n, c, h, w) in uint8 as a grid, row by row, each pixel enlarged to a square of `scale` a side."""
    tiles = _tiles(pixels)
    columns = _columns(columns, len(tiles), default=math.ceil(math.sqrt(len(tiles))))
    scale = _scale(scale, tiles, columns)
    rows = _rows(tiles, columns)
    pitch = tiles.shape[1] * scale + gutter
    return _paste(rows, [i * pitch for i in range(len(rows))], columns, scale, gutter)


def pairs(originals: Any, reconstructions: Any, columns: int | None = None, scale: int | None = None) -> Image:
    """Rows of originals, each with its reconstruction directly beneath, and a wider gap below every row of pairs."""
    above, below = _tiles(originals), _tiles(reconstructions)
    if above.shape != below.shape:
        raise DataError(
            "pairs takes as many reconstructions as originals, of one shape; "
            f"got {np.shape(originals)} and {np.shape(reconstructions)}"
        )
    columns = _columns(columns, len(above), default=10)
    scale = _scale(scale, above, columns)
    rows = [row for pair in zip(_rows(above, columns), _rows(below, columns), strict=True) for row in pair]
    side = above.shape[1] * scale
    pitch = 2 * side + GUTTER + BETWEEN_PAIRS
    return _paste(rows, [(i // 2) * pitch + (i % 2) * (side + GUTTER) for i in range(len(rows))], columns, scale)


def animation(frames: Any, steps: Sequence[int], milliseconds: int = 180) -> bytes:
    """Frames (t, n, c, h, w) in uint8 as an animated WebP: a grid a frame over a bar that fills; the last one stays."""
    from PIL import Image

    pictures = []
    for step, frame in zip(steps, frames, strict=True):
        tiles = grid(frame, columns=math.ceil(math.sqrt(2 * len(frame)))).convert("RGB")
        canvas = Image.new("RGB", (tiles.width, tiles.height + 10), "white")
        canvas.paste(tiles, (0, 0))
        done = step / max(1, steps[-1])
        canvas.paste(BLUE, (0, tiles.height + 4, max(1, round(done * tiles.width)), tiles.height + 10))
        pictures.append(canvas)
    buffer = io.BytesIO()
    durations = [milliseconds] * (len(pictures) - 1) + [1500]
    first, *rest = pictures
    first.save(buffer, "WEBP", save_all=True, append_images=rest, duration=durations, loop=0, lossless=True)
    return buffer.getvalue()


def save(picture: Image, path: str | Path) -> Path:
    """Write a picture as .png, whole or not at all. The same picture gives the same bytes."""
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise UserError(f"cannot save {path.name!r}: a grid is written as .png")
    write_atomic(path, png(picture))
    return path


def png(picture: Image) -> bytes:
    """The content of a .png file."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _tiles(pixels: Any) -> np.ndarray:
    """(n, h, w, c + 1): channels last, with an opaque alpha channel."""
    array = np.asarray(pixels.detach().cpu() if hasattr(pixels, "detach") else pixels)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in array.shape:
        raise DataError(
            "a grid takes uint8 images of shape (n, 1 or 3, height, width), at least one; "
            f"got {array.dtype} {array.shape}"
        )
    opaque = np.full_like(array[:, :1], 255)
    return np.concatenate([array, opaque], axis=1).transpose(0, 2, 3, 1)


def _columns(columns: int | None, n: int, default: int) -> int:
    if columns is not None and columns < 1:
        raise UserError(f"columns is {columns}; a grid has at least 1")
    return min(columns or default, n)


def _scale(scale: int | None, tiles: np.ndarray, columns: int) -> int:
    if scale is not None and scale < 1:
        raise UserError(f"scale is {scale}; it must be a whole number, at least 1")
    return scale or max(1, (WIDEST - (columns - 1) * GUTTER) // (columns * tiles.shape[2]))


def _rows(tiles: np.ndarray, columns: int) -> list[np.ndarray]:
    return [tiles[i : i + columns] for i in range(0, len(tiles), columns)]


def _paste(rows: Sequence[np.ndarray], tops: Sequence[int], columns: int, scale: int, gutter: int = GUTTER) -> Image:
    """Rows of tiles on a transparent canvas, the upper edge of row i at tops[i]."""
    from PIL import Image

    _, h, w, c = rows[0].shape
    h, w = h * scale, w * scale
    canvas = np.zeros((tops[-1] + h, columns * (w + gutter) - gutter, c), np.uint8)
    canvas[..., :-1] = 255  # white where a viewer ignores transparency
    for top, row in zip(tops, rows, strict=True):
        for i, tile in enumerate(row):
            left = i * (w + gutter)
            canvas[top : top + h, left : left + w] = tile.repeat(scale, 0).repeat(scale, 1)
    return Image.fromarray(canvas)
