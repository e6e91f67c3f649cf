"""Rows of numbers: an MLP from z to the mean of every column, and a Gaussian around it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lebm.config import TableGenerator as Config
from lebm.errors import DataError
from lebm.generators.image import as_tensor

LEAST, FIRST = 0.05, 0.5  # of a learned sigma: below the one a column that z explains exactly would take over the likelihood


class TableGenerator(nn.Module):
    """x = g(z) + sigma e, with one sigma for all columns as given, or one a column, learned with the rest."""

    def __init__(self, nz: int, config: Config | None = None) -> None:
        super().__init__()
        config = config or Config()
        self.config, self.nz, self.shape = config, nz, (config.columns,)
        sizes = [nz] + [config.width] * config.depth + [config.columns]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        for layer in self.linear():
            nn.init.xavier_normal_(layer.weight)
        if config.sigma is None:
            self.log_sigma = nn.Parameter(torch.full((config.columns,), math.log(FIRST - LEAST)))

    def linear(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    @property
    def sigma(self) -> Tensor:
        """One number a column."""
        if self.config.sigma is None:
            return LEAST + self.log_sigma.exp()
        return self.linear()[-1].bias.new_full(self.shape, self.config.sigma)

    def decode(self, z: Tensor) -> Tensor:
        """g(z): the mean of every column."""
        *hidden, last = self.linear()
        for layer in hidden:
            z = F.silu(layer(z))
        return last(z)

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """log N(x; g(z), diag sigma^2), constants included, a number a row."""
        sigma = self.sigma
        return -0.5 * (((x - self.decode(z)) / sigma).square() + math.log(2 * math.pi)).sum(1) - sigma.log().sum()

    def error(self, x: Tensor, z: Tensor) -> Tensor:
        """Mean squared error of the reconstruction g(z), per column."""
        return (x - self.decode(z)).square().mean()

    def flops(self, rows: int) -> float:
        """Multiply-adds, times two, of one forward pass."""
        return rows * sum(2.0 * layer.weight.numel() for layer in self.linear())

    def as_input(self, x: np.ndarray | Tensor) -> Tensor:
        """A user's rows -> floats (n, columns)."""
        t = as_tensor(x)
        if t.ndim != 2 or t.shape[1] != self.config.columns:
            raise DataError(f"the rows have shape {tuple(t.shape)}; this model takes (n, {self.config.columns})")
        return t if t.is_floating_point() else t.float()
