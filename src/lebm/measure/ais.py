"""Annealed importance sampling (Neal 2001), and log Z of the prior by it, with a sense of its own error.

Weights w of chains that go from a density that can be drawn from to one that cannot have the mean Z_end / Z_start.
Their logarithm is biased low: log of a mean of few heavy-tailed weights tends to miss the heaviest. So log Z comes out
too small rather than too large, and log p(x), in which log Z is subtracted, is an estimate and no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lebm.core.errors import DataError
from lebm.core.progress import Progress, ignore
from lebm.core.rng import stream
from lebm.prior import EnergyPrior

# z -> log density up to a constant, a number a row, and its gradient
Density = Callable[[Tensor], tuple[Tensor, Tensor]]
CHUNK = 500  # chains that share one random stream: fixed, so that no result depends on a batch size
ACCEPTED = 0.6  # share of moves that the pilot run steers to, near the best for such moves


@dataclass(frozen=True)
class LogZ:
    """log Z = log E exp f over p_0. `error` is one standard error; `ess` is how many of the `chains` weights count."""

    value: float
    error: float
    ess: float
    chains: int
    temperatures: int


@torch.no_grad()
def log_z(
    prior: EnergyPrior, *, chains: int = 1000, temperatures: int = 500, seed: int = 0, progress: Progress = ignore
) -> LogZ:
    """Chains from p_0 to the prior, on u, over a ladder of temperatures f -> b f with b from 0 to 1."""
    if chains < 2 or temperatures < 1:
        raise DataError(
            f"log Z from {chains} chains over {temperatures} temperatures; give at least 2 chains and 1 temperature"
        )
    base, device = prior.base, next(prior.buffers()).device
    start, end = partial(_base, prior), partial(_tilted, prior)
    draw = lambda rng: base.transform(base.noise(CHUNK, rng))  # noqa: E731
    betas, rng = ladder(temperatures), stream(seed, "ais/pilot", device)
    sizes = pilot(start, end, draw(rng), betas, rng)
    parts = []
    for i in range(0, chains, CHUNK):
        rng = stream(seed, f"ais/{i // CHUNK}", device)
        parts.append(anneal(start, end, draw(rng), betas, sizes, rng)[0][: chains - i].double().cpu())
        progress(min(i + CHUNK, chains), chains)
    log_w = torch.cat(parts)
    value, ess = log_mean(log_w)
    share = (log_w - log_w.max()).exp()
    error = float(share.std() / share.mean()) / math.sqrt(chains)
    return LogZ(float(value), error, float(ess), chains, temperatures)


def log_mean(log_w: Tensor) -> tuple[Tensor, Tensor]:
    """log of the mean weight over the last axis, and the effective number of weights (sum w)^2 / sum w^2."""
    total = log_w.logsumexp(-1)
    return total - math.log(log_w.shape[-1]), (2 * total - (2 * log_w).logsumexp(-1)).exp()


def ladder(temperatures: int) -> list[float]:
    """b = 0, ..., 1 in so many steps."""
    return [k / temperatures for k in range(temperatures + 1)]


def pilot(start: Density, end: Density, z: Tensor, betas: list[float], rng: torch.Generator) -> list[Tensor]:
    """A step size for every temperature, from a run of its own: sizes that looked at the chains they move would bias
    the weights.
    """
    sizes: list[Tensor] = []
    anneal(start, end, z, betas, sizes, rng)
    return sizes


def anneal(
    start: Density, end: Density, z: Tensor, betas: list[float], sizes: list[Tensor], rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """log weights and last states of chains z ~ start that move along (1 - b) log start + b log end, b = betas.

    Each temperature is one Metropolis-adjusted Langevin move, which leaves its density as it is. An empty `sizes` is
    filled with step sizes that are adapted as the chains run. z: (chains, d), or (rows, chains, d) where every row has
    sizes of its own and all rows share their noise.
    """
    (a, da), (b, db) = start(z), end(z)
    log_w = torch.zeros_like(a)
    tune, h = not sizes, torch.full_like(a[..., :1], z.shape[-1] ** (-1 / 6))
    shape = z.shape[1:] if z.ndim > 2 else z.shape
    for k in range(1, len(betas)):
        t = betas[k]
        log_w = log_w + (t - betas[k - 1]) * (b - a)
        if k == len(betas) - 1:
            break
        h = h if tune else sizes[k - 1]
        e = torch.randn(shape, generator=rng, device=z.device, dtype=z.dtype)
        u = torch.rand(shape[:-1], generator=rng, device=z.device, dtype=z.dtype)
        s = h.unsqueeze(-1)
        new = z + 0.5 * s * s * torch.lerp(da, db, t) + s * e
        (a2, da2), (b2, db2) = start(new), end(new)
        back = z - new - 0.5 * s * s * torch.lerp(da2, db2, t)
        ratio = torch.lerp(a2 - a, b2 - b, t) + 0.5 * e.square().sum(-1) - back.square().sum(-1) / (2 * h * h)
        accept = u.log() < ratio
        if tune:
            sizes.append(h)
            h = h * (0.5 * (accept.to(h.dtype).mean(-1, keepdim=True) - ACCEPTED)).exp()
        row = accept.unsqueeze(-1)
        z, da, db = torch.where(row, new, z), torch.where(row, da2, da), torch.where(row, db2, db)
        a, b = torch.where(accept, a2, a), torch.where(accept, b2, b)
    return log_w, z


def _base(prior: EnergyPrior, u: Tensor) -> tuple[Tensor, Tensor]:
    return prior.base.log_prob_white(u), prior.base.score_white(u)


def _tilted(prior: EnergyPrior, u: Tensor) -> tuple[Tensor, Tensor]:
    return prior.f_white(u) + prior.base.log_prob_white(u), prior.score_white(u)
