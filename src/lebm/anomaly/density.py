"""What normal rows give, as one density over several statistics at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lebm.rng import stream

COMPONENTS, EACH = 100, 40  # Gaussians at most, and how many rows each must have behind it: few rows allow few Gaussians
SHARED = 1  # each counts so many rows a column besides its own, of the covariance that all have in common: where rows are few, that rules
LLOYD, EM = 10, 30  # rounds of k-means, then of expectation and maximisation
RIDGE = 1e-3  # added to every variance, where all columns have variance one: no Gaussian shrinks to a point
PIECE = 5000  # rows at a time


class Mixture:
    """A mixture of Gaussians with full covariances, each drawn towards their mean, by expectation-maximisation on standardised columns.

    As scikit-learn's GaussianMixture, but on the model's device and saved as plain tensors: the experiment fits one an epoch to 50,000 rows.
    """

    def __init__(self, shift: Tensor, scale: Tensor, log_weights: Tensor, means: Tensor, precisions: Tensor) -> None:
        self.shift, self.scale, self.log_weights, self.means, self.precisions = shift, scale, log_weights, means, precisions
        # log weight + log density = constant + linear.x + quadratic.xx: a row against all components is two matrix products.
        pull = torch.einsum("kij,kj->ki", precisions, means)
        self._linear, self._quadratic = pull.T, -0.5 * precisions.flatten(1).T
        self._constant = log_weights + 0.5 * (torch.logdet(precisions) - (pull * means).sum(1) - means.shape[1] * math.log(2 * math.pi))

    @classmethod
    def fit(cls, x: Tensor, seed: int = 0, components: int = COMPONENTS) -> Mixture:
        x = x.double()
        spread = x.std(0, correction=0)
        shift, scale = x.mean(0), torch.where(spread > 0, spread, 1.0)
        x = (x - shift) / scale
        k = max(1, min(components, len(x) // EACH))
        near = _k_means(x, k, seed)
        member = torch.nn.functional.one_hot(near, k).double()
        found = cls(shift, scale, *_maximise(list(zip(x.split(PIECE), member.split(PIECE), strict=True))))
        for _ in range(EM if k > 1 else 0):
            found = cls(shift, scale, *_maximise([(rows, found._parts(rows).softmax(1)) for rows in x.split(PIECE)]))
        return found

    def log_prob(self, x: Tensor) -> Tensor:
        """The log density of every row."""
        x = (x.to(self.shift.dtype) - self.shift) / self.scale
        return torch.cat([self._parts(rows).logsumexp(1) for rows in x.split(PIECE)]) - self.scale.log().sum()

    def _parts(self, x: Tensor) -> Tensor:
        """(rows, components): log weight + log density."""
        return self._constant + x @ self._linear + _products(x) @ self._quadratic

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).cpu() for name in ("shift", "scale", "log_weights", "means", "precisions")}

    def to(self, device: torch.device) -> Mixture:
        return Mixture(**{name: t.to(device) for name, t in self.tensors().items()})


def _products(x: Tensor) -> Tensor:
    """(rows, d d): every column times every column."""
    return (x[:, :, None] * x[:, None]).flatten(1)


def _k_means(x: Tensor, k: int, seed: int) -> Tensor:
    """The nearest of k centres for every row, after a few of Lloyd's rounds from random rows."""
    centres = x[torch.randperm(len(x), generator=stream(seed, "mixture"))[:k].to(x.device)]
    for i in range(LLOYD + 1):
        near = torch.cat([torch.cdist(rows, centres).argmin(1) for rows in x.split(PIECE)])
        if i < LLOYD:
            count = torch.bincount(near, minlength=k)[:, None]
            sums = torch.zeros_like(centres).index_add_(0, near, x)
            centres = torch.where(count > 0, sums / count.clamp(min=1), centres)
    return near


def _maximise(pieces: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Log weights, means and precisions from rows and how much each belongs to each component."""
    count = torch.stack([r.sum(0) for _, r in pieces]).sum(0) + 1e-9
    means = torch.stack([r.T @ x for x, r in pieces]).sum(0) / count[:, None]
    second = torch.stack([r.T @ _products(x) for x, r in pieces]).sum(0) / count[:, None]
    d = means.shape[1]
    ridge = RIDGE * torch.eye(d, dtype=means.dtype, device=means.device)
    own = (second - _products(means)).view(-1, d, d)
    common, weight = torch.einsum("k,kij->ij", count / count.sum(), own), (count / (count + SHARED * d))[:, None, None]
    covariances = weight * own + (1 - weight) * common + ridge
    return (count / count.sum()).log(), means, torch.cholesky_inverse(torch.linalg.cholesky(covariances))
