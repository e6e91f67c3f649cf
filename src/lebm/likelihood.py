"""log Z of the prior and log p(x), both by annealed importance sampling (Neal 2001), each with a sense of its own error.

Weights w of a walk from a density that can be drawn from to one that cannot have the mean Z_end / Z_start. Their logarithm is biased
low: log of a mean of few heavy-tailed weights tends to miss the heaviest. So log Z comes out too small rather than too large,
and log p(x), in which log Z is subtracted, is an estimate and no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from lebm.config import Chain
from lebm.errors import DataError
from lebm.model import LatentEBM, likelihood_score
from lebm.prior import GaussianPrior, log_normal
from lebm.rng import stream
from lebm.sampler import langevin

Progress = Callable[[int, int], None]
Density = Callable[[Tensor], tuple[Tensor, Tensor]]  # z -> log density up to a constant, a number a row, and its gradient
CHUNK = 500  # walkers that share one random stream: fixed, so that no result depends on a batch size
LEAST = 100  # steps of the chains behind a proposal
ACCEPTED = 0.6  # share of moves that the pilot run steers to, near the best for such moves


@dataclass(frozen=True)
class LogZ:
    """log Z = log E exp f over p_0. `error` is one standard error; `ess` how many of the `chains` weights count."""

    value: float
    error: float
    ess: float
    chains: int
    temperatures: int


@dataclass(frozen=True)
class LogLikelihood:
    """For every row of x an estimate of log p(x) in nats, and how many of its `particles` weights count."""

    values: Tensor
    ess: Tensor
    log_z: LogZ
    particles: int
    temperatures: int

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def error(self) -> float:
        """One standard error of the mean: the spread over rows, and that of log Z, which all rows share."""
        rows = float(self.values.std()) / math.sqrt(len(self.values)) if len(self.values) > 1 else 0.0
        return math.hypot(rows, self.log_z.error)


@torch.no_grad()
def log_z(prior: GaussianPrior, *, chains: int = 1000, temperatures: int = 500, seed: int = 0, progress: Progress | None = None) -> LogZ:
    """Walkers from p_0 to the prior over a ladder of temperatures f -> b f, b from 0 to 1; on u."""
    if chains < 2 or temperatures < 1:
        raise DataError(f"log Z from {chains} chains over {temperatures} temperatures; give at least 2 chains and 1 temperature")
    device = _device(prior)
    start, end = partial(_base, prior), partial(_tilted, prior)
    betas = ladder(temperatures)
    rng = stream(seed, "ais/pilot", device)
    sizes = pilot(start, end, prior.place_white(prior.draw_base(CHUNK, rng)), betas, rng)
    parts = []
    for i in range(0, chains, CHUNK):
        rng = stream(seed, f"ais/{i // CHUNK}", device)
        parts.append(anneal(start, end, prior.place_white(prior.draw_base(CHUNK, rng)), betas, sizes, rng)[0][: chains - i].double().cpu())
        if progress:
            progress(min(i + CHUNK, chains), chains)
    log_w = torch.cat(parts)
    value, ess = log_mean(log_w)
    share = (log_w - log_w.max()).exp()
    return LogZ(float(value), float(share.std() / share.mean()) / math.sqrt(chains), float(ess), chains, temperatures)


@torch.no_grad()
def log_likelihood(
    model: LatentEBM,
    x: Tensor,
    log_z: LogZ,
    *,
    particles: int = 32,
    temperatures: int = 50,
    steps: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> LogLikelihood:
    """Importance-weighted log p(x) of every row, for any generator.

    The proposal is a Gaussian fitted to states of `particles` posterior chains, started where the run's own start (in the paper N(0, I)) and
    run for `steps` (default LEAST and at least K1), of which the second half counts. Its draws walk on to p(x, z) over `temperatures`; 1 weighs them as they are.
    Noise is shared between rows, so that a row's number does not depend on its neighbours.
    """
    if particles < 2 or temperatures < 1:
        raise DataError(f"log p(x) from {particles} particles over {temperatures} temperatures; give at least 2 particles and 1 temperature")
    x, chain = model.as_input(x), proposal_chain(model, steps)
    batch = max(1, CHUNK // particles)
    values, ess = [], []
    for i in range(0, len(x), batch):
        rows = model.trim(x[i : i + batch]).to(model.device)
        log_w = _log_weights(model, rows, chain, particles, temperatures, seed)
        value, effective = log_mean(log_w)
        values.append(value.cpu() - log_z.value)
        ess.append(effective.cpu())
        if progress:
            progress(i + len(rows), len(x))
    return LogLikelihood(torch.cat(values), torch.cat(ess), log_z, particles, temperatures)


def proposal_chain(model: LatentEBM, steps: int | None = None) -> Chain:
    chain = model.config.chains.posterior
    return replace(chain, steps=max(LEAST, chain.steps) if steps is None else steps, noise=1.0)


def proposal_in_words(model: LatentEBM) -> str:
    """What the weights are of, whatever way was asked for elsewhere."""
    start = "the encoder's proposals" if model.config.draw.encoder else "N(0, I)"
    return f"Gaussians fitted to posterior chains of {proposal_chain(model).steps} steps from {start}"


def bits_per_dimension(log_px: float, dimensions: int, levels: int = 256) -> float:
    """Nats of a density on [-1, 1]^d as bits a dimension of an image with so many grey levels: density times the width of a level."""
    return (math.log((levels - 1) / 2) - log_px / dimensions) / math.log(2)


def log_mean(log_w: Tensor) -> tuple[Tensor, Tensor]:
    """log of the mean weight over the last axis, and the effective number of weights (sum w)^2 / sum w^2."""
    total = log_w.logsumexp(-1)
    return total - math.log(log_w.shape[-1]), (2 * total - (2 * log_w).logsumexp(-1)).exp()


# --- the walk ---------------------------------------------------------------------------------------------------------


def ladder(temperatures: int) -> list[float]:
    """b = 0, ..., 1 in so many steps."""
    return [k / temperatures for k in range(temperatures + 1)]


def pilot(start: Density, end: Density, z: Tensor, betas: list[float], rng: torch.Generator) -> list[Tensor]:
    """A step size for every temperature, from a run of its own: sizes that looked at the walkers they move would bias the weights."""
    sizes: list[Tensor] = []
    anneal(start, end, z, betas, sizes, rng)
    return sizes


def anneal(start: Density, end: Density, z: Tensor, betas: list[float], sizes: list[Tensor], rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """log weights and last states of walkers z ~ start that move along (1 - b) log start + b log end, b = betas.

    Each temperature is one Metropolis-adjusted Langevin move, which leaves its density as it is. An empty `sizes` is filled with step
    sizes found on the way. z is (walkers, d), or (rows, walkers, d) where every row has sizes of its own and all rows share their noise.
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
        take = u.log() < ratio
        if tune:
            sizes.append(h)
            h = h * (0.5 * (take.to(h.dtype).mean(-1, keepdim=True) - ACCEPTED)).exp()
        row = take.unsqueeze(-1)
        z, da, db = torch.where(row, new, z), torch.where(row, da2, da), torch.where(row, db2, db)
        a, b = torch.where(take, a2, a), torch.where(take, b2, b)
    return log_w, z


def _base(prior: GaussianPrior, u: Tensor) -> tuple[Tensor, Tensor]:
    return prior.base_log_prob(u), prior.base_score(u)


def _tilted(prior: GaussianPrior, u: Tensor) -> tuple[Tensor, Tensor]:
    return prior.tilt(u) + prior.base_log_prob(u), prior.white_score(u)


def _device(prior: GaussianPrior) -> torch.device:
    where: Tensor = prior._where  # type: ignore[assignment]
    return where.device


# --- the proposal of log p(x) -----------------------------------------------------------------------------------------


def _log_weights(model: LatentEBM, rows: Tensor, chain: Chain, particles: int, temperatures: int, seed: int) -> Tensor:
    """(rows, particles) log weights with the mean p(x) Z."""
    n, nz = len(rows), model.config.nz
    each = rows.repeat_interleave(particles, 0)

    def joint(z: Tensor) -> tuple[Tensor, Tensor]:
        flat = z.reshape(-1, nz)
        score = model.prior.score(flat) + likelihood_score(model.generator, each, flat)
        return model.log_joint(each, flat).view(n, particles), score.view(z.shape)

    mean, factor = _proposal(model, joint, each, particles, chain, seed)
    rng = stream(seed, "likelihood/walk", model.device)

    def drawn() -> Tensor:
        return mean.unsqueeze(1) + torch.randn(particles, nz, generator=rng, device=model.device, dtype=mean.dtype) @ factor.mT

    sizes = pilot(partial(_gaussian, mean, factor), joint, drawn(), ladder(temperatures), rng) if temperatures > 1 else []
    return anneal(partial(_gaussian, mean, factor), joint, drawn(), ladder(temperatures), sizes, rng)[0]


def _proposal(model: LatentEBM, joint: Density, each: Tensor, particles: int, chain: Chain, seed: int) -> tuple[Tensor, Tensor]:
    """Mean and Cholesky factor of a Gaussian for every row, fitted to the second half of its posterior chains.

    `each` has every row of x once for each of them. They start by the run's own way: steps that refine an encoder's proposal are too short
    for the way from N(0, I).
    """
    from sklearn.covariance import ledoit_wolf  # takes a second to import

    nz, rng = model.config.nz, stream(seed, "likelihood/fit", model.device)
    seen: list[Tensor] = []

    def watch(k: int, z: Tensor) -> None:
        if 2 * k >= chain.steps and (chain.steps - k) % max(1, chain.steps // 20) == 0:
            seen.append(z)

    e = model.prior.draw_base(particles, rng).repeat(len(each) // particles, 1)
    start = model.inference.start(e, each).view(-1, particles, nz)  # noise is shared between images and not between their chains
    langevin(lambda z: joint(z)[1], start, chain, rng, shared_noise=True, watch=watch)
    states = torch.cat(seen, 1).double().cpu()
    covariances = torch.stack([torch.from_numpy(ledoit_wolf(s.numpy())[0]) for s in states])
    factor = torch.linalg.cholesky(covariances + 1e-8 * torch.eye(nz))
    return states.mean(1).to(start), factor.to(start)


def _gaussian(mean: Tensor, factor: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """log N(z; mean, factor factor^T) of a (rows, particles, nz) array, and its gradient."""
    white = torch.linalg.solve_triangular(factor, (z - mean.unsqueeze(1)).mT, upper=False)
    score = -torch.linalg.solve_triangular(factor.mT, white, upper=True).mT
    return log_normal(white.mT) - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True), score
