"""Rows of numbers: an MLP from z to the mean of every column, and a Gaussian around it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lebm.core.errors import DataError
from lebm.generators.base import Generator

# The smallest and the initial value of a learned sigma. Below the smallest, a column that z explains exactly would take
# over the likelihood.
LEAST, INITIAL = 0.05, 0.5


class TableGenerator(Generator):
    """x = g(z) + sigma e, with one given sigma for all columns, or (sigma None) one for each column, learned with the
    rest."""

    modality = "table"

    def __init__(self, nz: int, columns: int = 2, width: int = 64, depth: int = 2, sigma: float | None = None) -> None:
        super().__init__()
        self.nz, self.shape, self.columns, self.fixed_sigma = nz, (columns,), columns, sigma
        sizes = [nz] + [width] * depth + [columns]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        for layer in self.linear():
            nn.init.xavier_normal_(layer.weight)
        if sigma is None:
            self.log_sigma = nn.Parameter(torch.full((columns,), math.log(INITIAL - LEAST)))

    def linear(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    @property
    def sigma(self) -> Tensor:
        """One number for each column."""
        if self.fixed_sigma is None:
            return LEAST + self.log_sigma.exp()
        return self.linear()[-1].bias.new_full((self.columns,), self.fixed_sigma)

    def decode(self, z: Tensor) -> Tensor:
        """g(z): the mean of every column."""
        *hidden, last = self.linear()
        for layer in hidden:
            z = F.silu(layer(z))
        return last(z)

    def log_prob(self, x: Tensor, z: Tensor, *masks: Any) -> Tensor:
        """log N(x; g(z), diag sigma^2), constants included, one number a row."""
        sigma = self.sigma
        return -0.5 * (((x - self.decode(z)) / sigma).square() + math.log(2 * math.pi)).sum(1) - sigma.log().sum()

    def error(self, x: Tensor, z: Tensor) -> Tensor:
        """Mean squared error of the reconstruction g(z), per column."""
        return (x - self.decode(z)).square().mean()

    def flops(self, rows: int) -> float:
        """Multiply-adds, times two, of one forward pass."""
        return rows * sum(2.0 * layer.weight.numel() for layer in self.linear())

    def as_input(self, x: Any) -> Tensor:
        """A user's rows -> floats (n, columns)."""
        t = super().as_input(x)
        if t.ndim != 2 or t.shape[1] != self.columns:
            raise DataError(f"the rows have shape {tuple(t.shape)}; this model takes (n, {self.columns})")
        return t.to(self.linear()[-1].weight.dtype)
