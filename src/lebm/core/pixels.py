"""Pixels as they are stored (uint8, 0..255) and as networks take them (floats in [-1, 1])."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lebm.core.errors import DataError


def to_x(pixels: Tensor) -> Tensor:
    """uint8 pixels 0..255 -> float32 in [-1, 1]."""
    return pixels.to(torch.float32).div_(127.5).sub_(1)


def as_floats(rows: Tensor) -> Tensor:
    """Stored pixels -> x in [-1, 1]; rows of any other type are returned as they are."""
    return to_x(rows) if rows.dtype == torch.uint8 else rows


def to_pixels(x: Tensor) -> Tensor:
    """Floats in [-1, 1] -> uint8 pixels 0..255, rounded to the nearest; stored pixels are returned as they are."""
    return x if x.dtype == torch.uint8 else x.add(1).mul_(127.5).round_().clamp_(0, 255).to(torch.uint8)


def as_tensor(x: np.ndarray | Tensor) -> Tensor:
    """A tensor of any numeric array, which shares its memory where the layout allows it; mirrored, big-endian and
    read-only arrays are copied first."""
    if isinstance(x, Tensor):
        return x
    if x.dtype.kind not in "biuf":
        raise DataError(f"the input is an array of type {x.dtype}; give numbers, all rows of one shape")
    native = np.asarray(x, x.dtype.newbyteorder("="))
    return torch.from_numpy(native if native.flags.writeable and min(native.strides, default=0) >= 0 else native.copy())
