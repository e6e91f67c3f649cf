"""Block sizes of the kernels by the shape of the product, and where cuDNN is called instead: measured on an H200."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from triton.runtime import driver


class Tile(NamedTuple):
    m: int
    n: int
    k: int
    warps: int
    stages: int


def pad(n: int) -> int:
    """The next power of two, at least 16: the smallest side of a tensor-core product."""
    return max(16, 1 << (n - 1).bit_length())


@functools.cache
def room() -> int:
    """Bytes of shared memory that a program may take on this GPU.

    They are 227 KiB on an H100, 163 on an A100 and 99 on most others. Triton's interpreter has no limit.
    """
    if not torch.cuda.is_available():
        return 1 << 30
    return driver.active.utils.get_device_properties(torch.cuda.current_device())["max_shared_mem"]


def stages(tile: Tile) -> int:
    """As many of its stages as fit into shared memory, at two bytes a number."""
    return max(1, min(tile.stages, room() // (2 * tile.k * (tile.m + tile.n))))


def _fit(tile: Tile, m: int, n: int, k: int) -> Tile:
    """A tile no larger than the product itself."""
    return tile._replace(m=min(tile.m, pad(m)), n=min(tile.n, pad(n)), k=min(tile.k, pad(k)))


def up_forward(pixels: int, ci: int, co: int) -> Tile:
    if co >= 256:  # Wide blocks read each input pixel once, but small maps need more blocks to fill the chip.
        tile = Tile(128, 256, 64, 8, 3) if pixels * co >= 2**19 else Tile(64, 256, 64, 4, 3)
    else:
        tile = Tile(128, 128, 64, 4, 3) if pixels < 20_000 else Tile(128, 128, 64, 8, 3)
    return _fit(tile, pixels, co, ci)


def up_backward(pixels: int, ci: int, co: int) -> Tile:
    large = pixels * ci >= 2**21
    return _fit(Tile(128, 256, 64, 8, 3) if large else Tile(64, 128, 64, 4, 3), pixels, ci, co)


def up_backward_by_cudnn(index: int, pixels: int, ci: int, co: int) -> bool:
    """cuDNN's convolution is faster than ours, but the activation mask then takes a further pass.

    Before the first layer it does not, for the product there applies it. So cuDNN is called there, and where the
    arithmetic outweighs the pass.
    """
    return index == 0 or pixels * ci * co >= 2**31


def last_columns(pixels: int, ci: int, n: int) -> Tile:
    return _fit(Tile(128, 64, 64, 4, 3), pixels, n, ci)


def last_backward(pixels: int, ci: int) -> Tile:
    return _fit(Tile(128, 128, 64, 4, 1) if pixels < 50_000 else Tile(64, 128, 64, 4, 1), pixels, ci, 64)


def last_weights(pixels: int, ci: int) -> tuple[Tile, int]:
    """The tile, and at most how many programs share the pixels."""
    return _fit(Tile(128, 16, 64, 4, 3), ci, 16, pixels), 128 if pixels < 50_000 else 256


def first_forward(rows: int, nz: int, n: int) -> Tile:
    return _fit(Tile(64, 64, 128, 4, 1) if n <= 8192 else Tile(128, 64, 128, 4, 1), rows, n, nz)


def first_backward(rows: int, nz: int, n: int) -> tuple[Tile, int]:
    """The tile, and into how many parts the long sum is split."""
    tile = _fit(Tile(64, 128, 64, 4, 3), rows, nz, n)
    return tile, max(1, min(64, n // tile.k))


def column_sums(pixels: int, c: int) -> tuple[Tile, int]:
    """The tile, and how many blocks of rows a program sums."""
    tile = _fit(Tile(64, 64, 1, 4, 2), pixels, c, 1)
    return tile, max(1, pixels // (tile.m * 128))


FOLD_BLOCK = 512
PRIOR_ROWS, PRIOR_WARPS = 16, 8
PRIOR_ROOM = 213_000  # bytes of shared memory in which the energy's weights can stay; with less they are read twice
MIXTURE, MIXTURE_LEAN = (4, 2), (1, 3)  # Gaussians in one product, groups at once; the same with less memory
