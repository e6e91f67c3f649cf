"""A mixture of Gaussians that follows posterior draws as they come.

The running sums are of z, each row divided among the Gaussians by how likely each is to have made it (online
expectation maximisation, Cappé and Moulines 2009). The density lives on the whitened u, where all directions have one
scale."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

# Every Gaussian counts so much of the moments of all rows besides those of its share, so that none dies or shrinks to a
# point.
COMMON = 0.03
FLOOR = 1e-4  # added to the variances of u


class OnlineMixture(nn.Module):
    """A mixture of Gaussians over the whitened u that follows draws as they come."""

    def __init__(self, components: int, nz: int) -> None:
        super().__init__()
        self.components, self.nz = components, nz
        eye, k = torch.eye(nz), torch.arange(components)
        # Each begins a unit away from 0 along an axis, either way, and further out where there are more than that,
        # because Gaussians that begin alike stay alike.
        centres = eye[k % nz] * ((1 - 2 * (k // nz % 2)) * (1 + k // (2 * nz)))[:, None]
        # Running means: the share of rows of each Gaussian, and z and z z' weighted by that share.
        self.share = nn.Buffer(torch.full((components,), 1 / components))
        self.first = nn.Buffer(centres / components)
        self.second = nn.Buffer((eye + centres[:, :, None] * centres[:, None]) / components)
        # The mixture over u, with `constant` log weight + the constants of a log density, and `shift` inverse x centre.
        self.weights, self.constant = (nn.Buffer(torch.zeros(components)) for _ in range(2))
        self.centres, self.shift = (nn.Buffer(torch.zeros(components, nz)) for _ in range(2))
        self.roots, self.inverses = (nn.Buffer(torch.zeros(components, nz, nz)) for _ in range(2))
        self.set(self.share, centres, eye.expand(components, -1, -1))

    @torch.no_grad()
    def set(self, weights: Tensor, centres: Tensor, roots: Tensor, good: Tensor | None = None) -> None:
        """Set the mixture over u, and what its density and score need; everything stays as it is where not `good`."""
        inverses = triangular_inverse(roots)
        shift = (inverses @ centres.unsqueeze(-1)).squeeze(-1)
        log_det = inverses.diagonal(dim1=1, dim2=2).log().sum(1)
        constant = weights.log() + log_det - 0.5 * self.nz * math.log(2 * math.pi)
        new = (weights, constant, centres, shift, roots, inverses)
        now = (self.weights, self.constant, self.centres, self.shift, self.roots, self.inverses)
        for target, value in zip(now, new, strict=True):
            move(target, value, good)

    def _each(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """(n, k, nz): u as each Gaussian whitens it; (n, k): log weight + log density."""
        white = (u @ self.inverses.flatten(0, 1).T).view(len(u), self.components, self.nz) - self.shift
        return white, self.constant - 0.5 * white.square().sum(-1)

    def log_prob(self, u: Tensor) -> Tensor:
        return self._each(u)[1].logsumexp(-1)

    def score(self, u: Tensor) -> Tensor:
        """The gradient of log p_0(u) in u."""
        white, log_p = self._each(u)
        return -(log_p.softmax(-1).unsqueeze(-1) * white).flatten(1) @ self.inverses.flatten(0, 1)

    def draw(self, e: Tensor) -> Tensor:
        """u as a function of N(0, I) noise e: the quantile of the first number chooses the Gaussian, and what is left
        of it, uniform within the chosen weight, becomes a number of N(0, 1) again."""
        p, until = torch.special.ndtr(e[:, 0].double()), self.weights.double().cumsum(0)
        k = (p.unsqueeze(1) >= until[:-1]).sum(1)
        share = self.weights.double()[k]
        left = ((p - until[k] + share) / share).clamp(1e-9, 1 - 1e-9)
        e = torch.cat([torch.special.ndtri(left).to(e.dtype).unsqueeze(1), e[:, 1:]], 1)
        each = (e @ self.roots.flatten(0, 1).T).view(len(e), self.components, self.nz) + self.centres
        return each.gather(1, k.view(-1, 1, 1).expand(-1, 1, self.nz)).squeeze(1)

    @torch.no_grad()
    def observe(self, z: Tensor, u: Tensor, weight: Tensor | float) -> None:
        """Let a batch count with `weight` in the running sums."""
        share = self._each(u)[1].softmax(-1).T / len(z)
        self.share.lerp_(share.sum(1), weight)
        self.first.lerp_(share @ z, weight)
        self.second.lerp_((share.unsqueeze(-1) * z).mT @ z, weight)

    @torch.no_grad()
    def refit(self, mean: Tensor, second: Tensor, inverse: Tensor, good: Tensor) -> Tensor:
        """Move to what was observed, and say whether that was possible. Whitening is u = inverse (z - mean); mean and
        second are the moments of all rows in float64, and `good` says whether they could be whitened."""
        common = COMMON / self.components
        share = self.share.double() + common
        centres = (self.first.double() + common * mean) / share[:, None]
        products = (self.second.double() + common * second) / share[:, None, None]
        spread = inverse @ (products - centres[:, :, None] * centres[:, None]) @ inverse.T
        roots, also_good = cholesky(spread, FLOOR)
        good = good & also_good
        self.set(share / share.sum(), (centres - mean) @ inverse.T, roots, good)
        return good

    @torch.no_grad()
    def restore_derived(self, mean: Tensor, second: Tensor, root: Tensor) -> None:
        """Recompute everything from weights, centres and roots; the sums become those from which a refit would find
        them."""
        weights, centres, roots = self.weights.double(), self.centres.double(), self.roots.double().tril()
        weights, common = weights / weights.sum(), COMMON / self.components
        share, of_z, spread = (1 + COMMON) * weights, mean + centres @ root.T, root @ roots
        products = spread @ spread.mT + of_z[:, :, None] * of_z[:, None]
        self.share.copy_(share - common)
        self.first.copy_(share[:, None] * of_z - common * mean)
        self.second.copy_(share[:, None, None] * products - common * second)
        self.set(weights, centres, roots)


# --- linear algebra that reads nothing back to the host ---------------------------------------------------------------


def cholesky(spread: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """The Cholesky root of one covariance or of several, `floor` added to the variances, and whether all of them have
    one."""
    root, bad = torch.linalg.cholesky_ex(spread + floor * _identity(spread))
    return root, (bad == 0).all() & root.isfinite().all()


def triangular_inverse(root: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(root, _identity(root).expand_as(root), upper=False)


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def move(target: Tensor, value: Tensor, good: Tensor | None) -> None:
    """Copy the value into the target where it is good."""
    target.copy_(value if good is None else torch.where(good, value.to(target.dtype), target))
