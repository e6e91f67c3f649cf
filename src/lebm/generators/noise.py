"""The noise of an image generator: e in x = g(z) + sigma e, white in the paper.

Here its covariance may be smaller for differences between colours (`chroma` times in standard deviation) and for fine detail (`detail`
times, beside what a 5x5 binomial blur keeps), so that the likelihood asks more of both. The inverse covariance, in units of 1 / sigma^2, is
a product of two operators that commute, one on colours and one on pixels; both are 1 where chroma and detail are.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

BLUR = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)


def weigh(r: Tensor, chroma: float, detail: float) -> Tensor:
    """The inverse covariance times residuals (n, c, h, w)."""
    if chroma != 1:
        r = chroma**2 * r - (chroma**2 - 1) * r.mean(1, keepdim=True)
    if detail != 1:
        r = detail**2 * r - (detail**2 - 1) * _blur(r)
    return r


def _blur(r: Tensor) -> Tensor:
    taps = r.new_tensor(BLUR)
    c = r.shape[1]
    return F.conv2d(r, torch.outer(taps, taps).expand(c, 1, 5, 5), padding=2, groups=c)


@functools.lru_cache(maxsize=32)
def log_det(shape: tuple[int, int, int], chroma: float, detail: float) -> float:
    """log of the determinant of the inverse covariance."""
    c, h, w = shape
    total = 2 * (c - 1) * h * w * math.log(chroma)
    if detail != 1:
        kept = torch.outer(_kept(h), _kept(w))  # the blur's eigenvalues
        total += c * float((1 + (detail**2 - 1) * (1 - kept)).log().sum())
    return total


def _kept(side: int) -> Tensor:
    """Eigenvalues of the blur along one axis, zeros beyond the border."""
    lag = (torch.arange(side)[:, None] - torch.arange(side)).abs()
    return torch.linalg.eigvalsh(torch.tensor([*BLUR[2:], 0.0], dtype=torch.float64)[lag.clamp(max=3)])
