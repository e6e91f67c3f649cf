"""The density of what normal rows give: a mixture of Gaussians, fitted once by expectation maximisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lebm.core.rng import stream
from lebm.extensions.mixture import OnlineMixture, cholesky

COMPONENTS = 100  # Gaussians at most
ROWS_EACH = 40  # rows that stand behind each: few rows allow few Gaussians
COMMON_ROWS = (
    1  # rows a column with the covariance that all have in common, which each Gaussian counts besides its rows
)
LLOYD, EM = 10, 30  # rounds of k-means, then of expectation maximisation
RIDGE = 1e-3  # added to every variance, where all columns have variance one: no Gaussian shrinks to a point
PIECE = {"cpu": 100, "cuda": 5000}  # rows at a time; on a CPU what a piece makes must fit into its cache


class Density(nn.Module):
    """p(rows), as a mixture of Gaussians with full covariances over standardised columns, in float64.

    The mixture itself is the one of `extensions/mixture.py`. scikit-learn's cannot use a GPU, where the experiment fits
    50,000 rows after each of several epochs, and cannot draw covariances towards a common one, which few rows need.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, components: int, columns: int) -> None:
        super().__init__()
        self.mixture = OnlineMixture(components, columns)
        self.register_buffer("shift", torch.zeros(columns))
        self.register_buffer("scale", torch.ones(columns))
        self.double()

    @classmethod
    @torch.no_grad()
    def fit(cls, rows: Tensor, seed: int = 0, components: int = COMPONENTS) -> Density:
        """The density of `rows`, (n, columns), on their device."""
        x = rows.double()
        k = max(1, min(components, len(x) // ROWS_EACH))
        density = cls(k, x.shape[1]).to(x.device)
        spread = x.std(0, correction=0)
        density.shift, density.scale = x.mean(0), torch.where(spread > 0, spread, 1.0)
        x = (x - density.shift) / density.scale
        centres, variance = _k_means(x, k, seed)
        root = variance.sqrt().clamp(min=RIDGE).diag().expand(k, -1, -1)
        density.mixture.set(torch.full_like(centres[:, 0], 1 / k), centres, root)
        for _ in range(EM if k > 1 else 1):
            _maximise(density.mixture, x)
        return density

    @torch.no_grad()
    def log_prob(self, rows: Tensor) -> Tensor:
        """The log density of every row."""
        x = (rows.to(self.shift) - self.shift) / self.scale
        return torch.cat([self.mixture.log_prob(piece) for piece in _pieces(x)]) - self.scale.log().sum()


def _pieces(x: Tensor) -> tuple[Tensor, ...]:
    return x.split(PIECE.get(x.device.type, 1000))


def _k_means(x: Tensor, k: int, seed: int) -> tuple[Tensor, Tensor]:
    """Centres after a few of Lloyd's rounds from random rows, and the variance of every column around them."""
    centres = x[torch.randperm(len(x), generator=stream(seed, "mixture"))[:k].to(x.device)]
    for _ in range(LLOYD):
        nearest = torch.cat([torch.cdist(piece, centres).argmin(1) for piece in _pieces(x)])
        variance = (x - centres[nearest]).square().mean(0)
        count = torch.bincount(nearest, minlength=k)[:, None]
        sums = torch.zeros_like(centres).index_add_(0, nearest, x)
        centres = torch.where(count > 0, sums / count.clamp(min=1), centres)
    return centres, variance


def _maximise(mixture: OnlineMixture, x: Tensor) -> None:
    """One round of expectation maximisation: the mixture observes all rows, then moves to what it observed."""
    observed = 0
    for piece in _pieces(x):
        observed += len(piece)
        mixture.observe(piece, piece, len(piece) / observed)
    share = mixture.share.clamp(min=1e-12)
    centres = mixture.first / share[:, None]
    spread = mixture.second / share[:, None, None] - centres[:, :, None] * centres[:, None]
    common = torch.einsum("k,kij->ij", share, spread)
    weight = (share * len(x) / (share * len(x) + COMMON_ROWS * x.shape[1]))[:, None, None]
    roots, good = cholesky(weight * spread + (1 - weight) * common, RIDGE)
    mixture.set(share / share.sum(), centres, roots, good)
