"""Densities that the energy tilts instead of N(0, I): two that follow posterior draws, and one that learns by
gradient."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lebm.extensions.mixture import OnlineMixture, cholesky, move, triangular_inverse
from lebm.prior import StandardNormal
from lebm.start import Phase

FLOOR = 1e-4  # added to the variances of a fitted base
LEAST = 20  # updates, and draws for each coordinate of z, over which a fitted base looks back at first


class WhitenedGaussian(StandardNormal):
    """p_0 = N(m, S) with the moments of posterior draws over the last `memory` updates, and u = L^-1 (z - m) with L L'
    = S.

    The energy is left to say what a Gaussian cannot, and chains start where the posterior is.
    """

    name = "N(m, S) of posterior draws"
    refit_every = 100
    root: Tensor

    def __init__(self, nz: int, memory: int = 1000) -> None:
        super().__init__(nz)
        self.memory = memory
        self._follows = nn.Buffer(torch.ones((), dtype=torch.bool), persistent=False)
        self.updates = nn.Buffer(torch.zeros((), dtype=torch.int64))  # how many were observed
        self.mean = nn.Buffer(torch.zeros(nz))
        self.first = nn.Buffer(torch.zeros(nz))  # running means of z, and (second) of z z'
        self.root, self.inverse = torch.eye(nz), nn.Buffer(torch.eye(nz))  # the first is a buffer of the base class
        self.second = nn.Buffer(torch.eye(nz))

    def whiten(self, z: Tensor) -> Tensor:
        return (z - self.mean) @ self.inverse.T

    def unwhiten(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.addmm(self.mean, u, self.root.T, out=out)

    def log_det(self) -> Tensor:
        return self.inverse.diagonal().log().sum()

    def pull_back(self, score_u: Tensor) -> Tensor:
        return score_u @ self.inverse

    @torch.no_grad()
    def observe(self, z_pos: Tensor) -> None:
        """It looks back on `memory` updates, at first on half of those made: while z is young it moves fast, and an
        energy over a base that lags behind pushes z ever farther out."""
        least = max(LEAST, LEAST * self.nz // len(z_pos))
        weight = (1 / (self.updates / 2 + least).clamp_max(self.memory)).to(z_pos.dtype)
        self.updates.add_(1)
        self.first.lerp_(z_pos.mean(0), weight)
        self.second.lerp_(z_pos.T @ z_pos / len(z_pos), weight)
        self._observe(z_pos, weight)

    def _observe(self, z_pos: Tensor, weight: Tensor) -> None:
        """What a subclass observes besides."""

    @torch.no_grad()
    def refit(self) -> None:
        """Where the covariance has no root, the base stays where it is, and `follows` says so."""
        first, second = self.first.double(), self.second.double()
        root, good = cholesky(second - first.outer(first), FLOOR)
        inverse = triangular_inverse(root)
        for target, value in ((self.mean, first), (self.root, root), (self.inverse, inverse)):
            move(target, value, good)
        self._follows.copy_(self._refit(first, second, inverse, good))

    def _refit(self, first: Tensor, second: Tensor, inverse: Tensor, good: Tensor) -> Tensor:
        return good

    def follows(self) -> bool:
        return bool(self._follows)

    @torch.no_grad()
    def restore_derived(self) -> None:
        mean, root = self.mean.double(), self.root.double().tril()
        second = root @ root.T + mean.outer(mean)
        self.inverse.copy_(triangular_inverse(root))
        for target, value in ((self.root, root), (self.first, mean), (self.second, second)):
            target.copy_(value)


class MixtureBase(WhitenedGaussian):
    """p_0 is a mixture of Gaussians of the whitened u, fitted to the same draws."""

    name = "a mixture of Gaussians of posterior draws"

    def __init__(self, nz: int, components: int = 10, memory: int = 1000) -> None:
        super().__init__(nz, memory)
        self.mixture = OnlineMixture(components, nz)

    def transform(self, e: Tensor) -> Tensor:
        return self.mixture.draw(e)

    def log_prob_white(self, u: Tensor) -> Tensor:
        return self.mixture.log_prob(u)

    def score_white(self, u: Tensor) -> Tensor:
        return self.mixture.score(u)

    def _observe(self, z_pos: Tensor, weight: Tensor) -> None:
        self.mixture.observe(z_pos, self.whiten(z_pos), weight)

    def _refit(self, first: Tensor, second: Tensor, inverse: Tensor, good: Tensor) -> Tensor:
        return self.mixture.refit(first, second, inverse, good)

    @torch.no_grad()
    def restore_derived(self) -> None:
        super().restore_derived()
        mean, root = self.mean.double(), self.root.double()
        self.mixture.restore_derived(mean, root @ root.T + mean.outer(mean), root)


class FlowBase(StandardNormal):
    """p_0 is a normalising flow q(z), which learns by maximum likelihood together with the energy that tilts it.

    The gradient of log p_alpha(z_pos) with respect to the flow is that of log q(z_pos) - log q(z_neg), as for the
    energy."""

    name = "a normalising flow"
    trained = True

    def __init__(self, nz: int, flow: nn.Module) -> None:
        super().__init__(nz)
        self.flow = flow

    def transform(self, e: Tensor) -> Tensor:
        with torch.no_grad():
            return self.flow.draw(e)[0]  # type: ignore[operator]

    def log_prob_white(self, u: Tensor) -> Tensor:
        return self.flow.log_prob(u)  # type: ignore[operator]

    def score_white(self, u: Tensor) -> Tensor:
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            return torch.autograd.grad(self.log_prob_white(u).sum(), u)[0]

    def phases(self, z_pos: Tensor, z_neg: Tensor) -> Iterator[Phase]:
        yield ("base",), self.log_prob_white(z_neg).mean() - self.log_prob_white(z_pos).mean()
