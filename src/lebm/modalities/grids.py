"""Image grids: uint8 arrays in, a PIL image out. Their gutters are transparent, so they suit light and dark pages."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lebm.core.errors import DataError, UserError
from lebm.core.files import write_atomic
from lebm.core.pixels import to_pixels

if TYPE_CHECKING:
    from PIL.Image import Image

WIDEST = 800  # pixels: small images are enlarged up to this width of the whole grid
GUTTER = 2
BETWEEN_PAIRS = 14
BLUE = "#0072b2"


def grid(pixels: Any, columns: int | None = None, scale: int | None = None, gutter: int = GUTTER) -> Image:
    """Images (n, c, h, w) in uint8 as a grid, row by row, each pixel enlarged to a square of `scale` a side."""
    tiles = _tiles(pixels)
    columns, scale = _layout(tiles, columns, scale, math.ceil(math.sqrt(len(tiles))))
    return _sheet(_enlarged(tiles, scale), columns, gutter, gutter)


def rows_of_images(*parts: Tensor) -> Image:
    """A grid with one row for each row of the parts, which stand side by side.

    A part: images (rows, c, h, w), or several in each row, (rows, n, c, h, w); floats in [-1, 1] or uint8.
    """
    sheet = torch.cat([to_pixels(p.unsqueeze(1) if p.ndim == 4 else p) for p in parts], 1)
    return grid(sheet.flatten(0, 1), columns=sheet.shape[1])


def pairs(originals: Any, reconstructions: Any, columns: int | None = None, scale: int | None = None) -> Image:
    """Rows of originals, each with its reconstruction directly beneath, and a wider gap below every row of pairs."""
    above, below = _tiles(originals), _tiles(reconstructions)
    if above.shape != below.shape:
        raise DataError(
            "pairs takes as many reconstructions as originals, of one shape; "
            f"got {np.shape(originals)} and {np.shape(reconstructions)}"
        )
    columns, scale = _layout(above, columns, scale, 10)
    above = np.pad(_enlarged(above, scale), ((0, 0), (0, GUTTER), (0, 0), (0, 0)))
    return _sheet(np.concatenate([above, _enlarged(below, scale)], axis=1), columns, GUTTER, BETWEEN_PAIRS)


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


def _layout(tiles: np.ndarray, columns: int | None, scale: int | None, default: int) -> tuple[int, int]:
    """The number of columns and the scale that were asked for, or those that fit."""
    if columns is not None and columns < 1:
        raise UserError(f"columns is {columns}; a grid has at least 1")
    if scale is not None and scale < 1:
        raise UserError(f"scale is {scale}; it must be a whole number, at least 1")
    columns = min(columns or default, len(tiles))
    return columns, scale or max(1, (WIDEST - (columns - 1) * GUTTER) // (columns * tiles.shape[2]))


def _enlarged(tiles: np.ndarray, scale: int) -> np.ndarray:
    return tiles.repeat(scale, 1).repeat(scale, 2)


def _sheet(tiles: np.ndarray, columns: int, right: int, below: int) -> Image:
    """Tiles (n, h, w, c) in rows on a transparent canvas, with so many pixels between two columns and two rows."""
    from PIL import Image

    cells = np.pad(tiles, ((0, -len(tiles) % columns), (0, below), (0, right), (0, 0)))
    _, h, w, c = cells.shape
    canvas = cells.reshape(-1, columns, h, w, c).swapaxes(1, 2).reshape(-1, columns * w, c)
    canvas = canvas[: len(canvas) - below, : columns * w - right]
    canvas[canvas[..., -1] == 0] = [255] * (c - 1) + [0]  # white where a viewer ignores transparency
    return Image.fromarray(np.ascontiguousarray(canvas))
