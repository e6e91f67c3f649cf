"""p_alpha(z): a small energy network tilts N(0, I) (equation 2 of the paper).

f is the NEGATIVE energy: log p_alpha(z) = f(z) + log p_0(z) - log Z, with Z = E over p_0 of exp f; p_0 is N(0, I) in the paper.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lebm.config import Prior
from lebm.mixture import OnlineMixture, cholesky, move, triangular_inverse
from lebm.sampler import ChainLike, langevin

FLOOR = 1e-4  # added to the variances of a fitted p_0
REFIT = 100  # updates between two fits
LEAST = 20  # updates, and draws for each number of z, over which a fitted p_0 looks back at first


def log_normal(z: Tensor) -> Tensor:
    """log N(z; 0, I), constants included, a number a row."""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))


class GaussianPrior(nn.Module):
    """f = 0: the prior is p_0 itself. Nothing is learned by gradient and draws are exact.

    p_0 is N(0, I), the paper's, or (prior.base: fitted) N(m, S) with the mean and covariance of posterior draws. A chain of the prior, and
    f, then live on the whitened u, z = m + L u with L L' = S: p_alpha(z) is proportional to exp(f(u)) N(u; 0, I). The energy is left
    to say what a Gaussian cannot, and chains start where the posterior is. Under prior.base: mixture p_0 is a mixture of Gaussians of
    u instead of N(0, I), fitted to the same draws.
    """

    mean: Tensor
    root: Tensor  # L
    inverse: Tensor  # of L
    first: Tensor  # running means of z and of z z'
    second: Tensor
    updates: Tensor  # seen so far

    def __init__(self, nz: int, config: Prior | None = None) -> None:
        super().__init__()
        self.nz = nz
        self.config = config = config or Prior()
        self.fitted = config.base != "standard"
        self.mixture = OnlineMixture(config.parts, nz) if config.base == "mixture" else None
        self.register_buffer("_where", torch.zeros(()), persistent=False)  # follows .to(device, dtype)
        self.register_buffer("_follows", torch.ones((), dtype=torch.bool), persistent=False)
        if self.fitted:
            self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
            for name in ("mean", "first"):
                self.register_buffer(name, torch.zeros(nz))
            for name in ("root", "inverse", "second"):
                self.register_buffer(name, torch.eye(nz))

    def tilt(self, u: Tensor) -> Tensor:
        """f as a function of the whitened u."""
        return u.new_zeros(len(u))

    def base_log_prob(self, u: Tensor) -> Tensor:
        """log p_0 as a density of u."""
        return log_normal(u) if self.mixture is None else self.mixture.log_prob(u)

    def base_score(self, u: Tensor) -> Tensor:
        return -u if self.mixture is None else self.mixture.score(u)

    def white_score(self, u: Tensor) -> Tensor:
        """grad_u [f + log p_0(u)]."""
        return self.base_score(u)

    def f(self, z: Tensor) -> Tensor:
        return self.tilt(self.white(z))

    def score(self, z: Tensor) -> Tensor:
        """grad_z [f(z) + log p_0(z)]."""
        return self.white_score(self.white(z)) @ self.inverse if self.fitted else self.white_score(z)

    def log_prob(self, z: Tensor) -> Tensor:
        """log p_alpha(z) + log Z: normalised up to log Z, which no chain and no gradient needs."""
        u = self.white(z)
        log_p = self.tilt(u) + self.base_log_prob(u)
        return log_p + self.inverse.diagonal().log().sum() if self.fitted else log_p

    def draw_base(self, n: int, rng: torch.Generator) -> Tensor:
        """n rows of N(0, I): the noise behind every start. place() turns it into draws of p_0."""
        where: Tensor = self._where  # type: ignore[assignment]
        return torch.randn(n, self.nz, generator=rng, device=where.device, dtype=where.dtype)

    def place(self, e: Tensor) -> Tensor:
        """N(0, I) noise -> draws of p_0."""
        return self.coloured(self.place_white(e))

    def place_white(self, e: Tensor) -> Tensor:
        """N(0, I) noise -> draws of p_0, as u."""
        return e if self.mixture is None else self.mixture.draw(e)

    def coloured(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        """u -> z, written to `out` where that is given."""
        if not self.fitted:
            return u if out is None else out.copy_(u)
        return torch.addmm(self.mean, u, self.root.T, out=out)

    def white(self, z: Tensor) -> Tensor:
        """z -> u."""
        return (z - self.mean) @ self.inverse.T if self.fitted else z

    def walk(self, z: Tensor, chain: ChainLike, rng: torch.Generator, watch: Callable[[int, Tensor], None] | None = None) -> Tensor:
        """A Langevin chain of the prior from z, on u, so that one step size suits all directions; `watch` sees z."""
        seen = None if watch is None else lambda k, u: watch(k, self.coloured(u))
        return self.coloured(langevin(self.white_score, self.white(z), chain, rng, watch=seen))

    @torch.no_grad()
    def see(self, z_pos: Tensor) -> None:
        """Posterior draws of a learning step, for a fitted p_0: nothing but sums, so that it can be captured.

        It looks back on `memory` updates, at first on half of those made: while z is young it moves fast, and an energy over a p_0 that lags
        behind draws it ever farther out.
        """
        if self.fitted:
            least = max(LEAST, LEAST * self.nz // len(z_pos))
            weight = (1 / (self.updates / 2 + least).clamp_max(self.config.memory)).to(z_pos.dtype)
            self.updates += 1
            self.first.lerp_(z_pos.mean(0), weight)
            self.second.lerp_(z_pos.T @ z_pos / len(z_pos), weight)
            if self.mixture is not None:
                self.mixture.see(z_pos, self.white(z_pos), weight)

    @torch.no_grad()
    def refit(self) -> None:
        """Move p_0 to what has been seen, without waiting for the device; where that has no root it stays where it is, and `follows` says so."""
        if not self.fitted:
            return
        first, second = self.first.double(), self.second.double()
        root, good = cholesky(second - first.outer(first), FLOOR)
        inverse = triangular_inverse(root)
        for kept, value in ((self.mean, first), (self.root, root), (self.inverse, inverse)):
            move(kept, value, good)
        if self.mixture is not None:
            good = self.mixture.refit(first, second, inverse, good)
        self._follows.copy_(good)  # type: ignore[operator]

    def follows(self) -> bool:
        """Whether the last fit of p_0 could be made; waits for the device."""
        return bool(self._follows)

    @torch.no_grad()
    def settle(self) -> None:
        """All that is kept of p_0 anew from its mean, roots and weights: rounded each by itself, the rest would contradict them."""
        if not self.fitted:
            return
        mean, root = self.mean.double(), self.root.double().tril()
        second = root @ root.T + mean.outer(mean)
        for kept, value in ((self.root, root), (self.inverse, triangular_inverse(root)), (self.first, mean), (self.second, second)):
            kept.copy_(value)
        if self.mixture is not None:
            self.mixture.settle(mean, second, root)


class EnergyPrior(GaussianPrior):
    """f is an MLP with a scalar output; its score is written out, so chains need no autograd."""

    def __init__(self, nz: int, config: Prior | None = None) -> None:
        super().__init__(nz, config)
        config = self.config
        sizes = [nz] + [config.width] * config.depth + [1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        for layer in self.linear():
            nn.init.xavier_normal_(layer.weight)
        self._act, self._back = activation(config.activation, config.leak)

    def linear(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def tilt(self, u: Tensor) -> Tensor:
        *hidden, last = self.linear()
        h = u
        for layer in hidden:
            h = self._act(layer(h))
        return last(h).squeeze(-1)

    def white_score(self, u: Tensor) -> Tensor:
        """grad_u [f(u) + log p_0(u)] in closed form: back through the layers by hand."""
        *hidden, last = self.linear()
        h, vs = u, []
        for layer in hidden:
            vs.append(layer(h))
            h = self._act(vs[-1])
        g = last.weight.expand(len(u), -1)
        for layer, v in zip(reversed(hidden), reversed(vs), strict=True):
            g = self._back(g, v) @ layer.weight
        return g + self.base_score(u)


PRIORS: dict[str, type[GaussianPrior]] = {"energy": EnergyPrior, "gaussian": GaussianPrior}


def activation(name: str, leak: float) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]:
    """An activation, and how a gradient g passes back through it at the pre-activation u (PyTorch's own fused kernels)."""
    if name == "leaky_relu":
        return partial(F.leaky_relu, negative_slope=leak), partial(_leaky_back, leak=leak)
    if name == "tanh":
        return torch.tanh, _tanh_back
    return (F.silu, _silu_back) if name == "silu" else (F.gelu, _gelu_back)


# Plain functions, for a model that holds lambdas cannot be copied to another process.
def _leaky_back(g: Tensor, u: Tensor, leak: float) -> Tensor:
    return torch.ops.aten.leaky_relu_backward(g, u, leak, False)


def _tanh_back(g: Tensor, u: Tensor) -> Tensor:
    return torch.ops.aten.tanh_backward(g, torch.tanh(u))


def _silu_back(g: Tensor, u: Tensor) -> Tensor:
    return torch.ops.aten.silu_backward(g, u)


def _gelu_back(g: Tensor, u: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward(g, u)
