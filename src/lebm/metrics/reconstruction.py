"""Reconstruction error as the paper's Table 1 counts it."""

from __future__ import annotations

from torch import Tensor


def mean_squared_error(x: Tensor, x_hat: Tensor) -> float:
    """Mean over rows, pixels and channels of (x - x_hat)^2, in float64."""
    return float((x.double() - x_hat.double()).square().mean())
