"""Block sizes of the kernels, by the shape of the product: measured on an H200, sensible elsewhere."""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    m: int
    n: int
    k: int
    warps: int
    stages: int


def pad(n: int, least: int = 16) -> int:
    """The next power of two, at least 16: the smallest side of a tensor-core product."""
    return max(least, 1 << (n - 1).bit_length())


def _fit(tile: Tile, m: int, n: int, k: int) -> Tile:
    """A tile no larger than the product itself."""
    return tile._replace(m=min(tile.m, pad(m)), n=min(tile.n, pad(n)), k=min(tile.k, pad(k)))


def up_forward(pixels: int, ci: int, co: int) -> Tile:
    return _fit(Tile(128, 128, 64, 8, 3), pixels, co, ci)


def up_backward(pixels: int, ci: int, co: int) -> Tile:
    blocks = (pixels + 127) // 128 * ((ci + 127) // 128)
    return _fit(Tile(128, 128, 64, 4, 4) if blocks > 66 else Tile(64, 128, 64, 4, 4), pixels, ci, co)


def up_weights(pixels: int, ci: int, co: int) -> Tile:
    return _fit(Tile(128, 128, 64, 8, 3), ci, co, pixels)


def last_forward(pixels: int, ci: int) -> Tile:
    return _fit(Tile(128, 16, 64, 4, 3), pixels, 16, ci)


def last_backward(pixels: int, ci: int) -> Tile:
    return _fit(Tile(128, 128, 64, 4, 2), pixels, ci, 64)


def last_weights(pixels: int, ci: int) -> Tile:
    return _fit(Tile(64, 16, 64, 4, 3), ci, 16, pixels)


def first_forward(rows: int, nz: int, n: int) -> Tile:
    return _fit(Tile(128, 64, 128, 4, 1), rows, n, nz)


def first_backward(rows: int, nz: int, n: int) -> tuple[Tile, int]:
    """The tile, and into how many parts the long sum is split."""
    tile = _fit(Tile(128, 128, 128, 8, 2), rows, nz, n)
    return tile, max(1, min(64, n // tile.k))


def first_weights(rows: int, nz: int, n: int) -> Tile:
    return _fit(Tile(128, 64, 64, 4, 2), nz, n, rows)


PRIOR_ROWS, PRIOR_WARPS = 16, 8
