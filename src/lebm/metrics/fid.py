"""Fréchet distance between Gaussians fitted to features, streamed in float64. With Inception features it is the FID;
on raw pixels it is the `frechet` of the small data sets."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Moments:
    """Mean and covariance of rows that come in pieces: exact sums in float64, whatever the pieces' sizes."""

    def __init__(self) -> None:
        self.n = 0
        self._sum: Tensor | None = None
        self._products: Tensor | None = None
        self._shift: Tensor | None = None

    def add(self, rows: Tensor) -> Moments:
        rows = rows.detach().flatten(1).to(torch.float64)  # where they are: a GPU multiplies float64 matrices too
        if len(rows) == 0:
            return self
        if self._sum is None or self._products is None or self._shift is None:
            d = rows.shape[1]
            self._shift = rows[:1].clone()  # an offset near the mean keeps the products from cancelling
            self._sum = torch.zeros(d, dtype=torch.float64, device=rows.device)
            self._products = torch.zeros(d, d, dtype=torch.float64, device=rows.device)
        rows = rows - self._shift
        self.n += len(rows)
        self._sum += rows.sum(0)
        self._products.addmm_(rows.t(), rows)
        return self

    def mean_cov(self) -> tuple[np.ndarray, np.ndarray]:
        """Sample mean and unbiased covariance."""
        if self.n < 2 or self._sum is None or self._products is None or self._shift is None:
            raise ValueError(f"moments of {self.n} rows; at least 2 are needed")
        mean = self._sum / self.n
        cov = (self._products - self.n * torch.outer(mean, mean)) / (self.n - 1)
        return (mean + self._shift[0]).cpu().numpy(), cov.cpu().numpy()


def frechet_distance(mean_a: np.ndarray, cov_a: np.ndarray, mean_b: np.ndarray, cov_b: np.ndarray) -> float:
    """|mu_a - mu_b|^2 + tr(A + B - 2 (A B)^(1/2)).

    tr (A B)^(1/2) is the sum of the singular values of A^(1/2) B^(1/2): symmetric eigenvalues only, so singular
    covariances need no offset and no imaginary part has to be thrown away.
    """
    half_a, half_b = _root(np.asarray(cov_a, np.float64)), _root(np.asarray(cov_b, np.float64))
    cross = np.linalg.svd(half_a @ half_b, compute_uv=False).sum()
    d = np.asarray(mean_a, np.float64) - np.asarray(mean_b, np.float64)
    return float(d @ d + np.trace(cov_a) + np.trace(cov_b) - 2 * cross)


def _root(cov: np.ndarray) -> np.ndarray:
    """The symmetric square root of a positive semi-definite matrix; rounding below zero counts as zero."""
    values, vectors = np.linalg.eigh((cov + cov.T) / 2)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
