"""The noise of an image generator: e in x = g(z) + sigma e, white in the paper.

Here its standard deviation may be `detail` times smaller for what a 5x5 binomial blur takes away, so that the likelihood asks more of fine
detail. The inverse covariance, in units of 1 / sigma^2, is detail^2 - (detail^2 - 1) blur.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

BLUR = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)


def weigh(r: Tensor, detail: float) -> Tensor:
    """The inverse covariance times residuals (n, c, h, w)."""
    if detail == 1:
        return r
    taps, c = r.new_tensor(BLUR), r.shape[1]
    blurred = F.conv2d(r, torch.outer(taps, taps).expand(c, 1, 5, 5), padding=2, groups=c)
    return detail**2 * r - (detail**2 - 1) * blurred


@functools.lru_cache(maxsize=32)
def log_det(shape: tuple[int, int, int], detail: float) -> float:
    """log of the determinant of the inverse covariance."""
    c, h, w = shape
    kept = torch.outer(_kept(h), _kept(w))  # the blur's eigenvalues
    return c * float((1 + (detail**2 - 1) * (1 - kept)).log().sum())


def _kept(side: int) -> Tensor:
    """Eigenvalues of the blur along one axis, zeros beyond the border."""
    lag = (torch.arange(side)[:, None] - torch.arange(side)).abs()
    return torch.linalg.eigvalsh(torch.tensor([*BLUR[2:], 0.0], dtype=torch.float64)[lag.clamp(max=3)])
