"""Several statistics as one score: how far each lies in the tail of what normal rows give, added up."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TAIL = 0.05  # beyond this share of the normal rows an exponential stands for the distribution, so that farther still means more


class Tails:
    """-log P(a normal row gives as much) of every statistic, summed (Fisher's way to join tests).

    Up to its upper tail a statistic is ranked among the normal rows; beyond, the tail goes on as an exponential fitted to it. Each
    statistic counts in the same unit, nats of surprise, whatever its scale.
    """

    def __init__(self, values: Tensor) -> None:
        """`values` is (normal rows, statistics)."""
        self.values = values.double().cpu().sort(0).values
        n = len(values)
        self.start = min(n - 1, math.floor((1 - TAIL) * n))
        beyond = self.values[self.start :] - self.values[self.start]
        scale = beyond.mean(0) if n > 1 else torch.zeros(values.shape[1]).double()
        spread = self.values[-1] - self.values[0]
        self.scale = torch.where(scale > 0, scale, torch.where(spread > 0, spread, 1.0))  # a tail of one value, or of equal ones

    def __call__(self, values: Tensor) -> Tensor:
        """The score of every row of (rows, statistics)."""
        values, n = values.double(), len(self.values)
        above = torch.searchsorted(self.values.T.contiguous(), values.T.contiguous()).T.clamp(1, max(1, self.start))  # the next normal value
        above = above.clamp(max=n - 1)
        surprise = -((n - torch.arange(n).double()) / (n + 1)).log()
        low, high = self.values.gather(0, (above - 1).clamp(min=0)), self.values.gather(0, above)
        part = torch.where(high > low, (values - low) / (high - low), 1.0).clamp(0, 1)  # between two ranks in a straight line: no jumps
        ranked = torch.lerp(surprise[(above - 1).clamp(min=0)], surprise[above], part)
        return (ranked + (values - self.values[self.start]).clamp(min=0) / self.scale).sum(1)
