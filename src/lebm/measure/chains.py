"""Chains of the learned prior as they run, and what a set of chains says about itself: autocorrelation, effective
sample size, split R-hat.

The statistics are those of Gelman et al., Bayesian Data Analysis (3rd ed., 11.4 and 11.5), of Stan and of ArviZ; arrays
are (chains, draws).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lebm.core.errors import ConfigError
from lebm.core.progress import Progress, ignore
from lebm.core.rng import stream
from lebm.latent_ebm import LatentEBM
from lebm.measure.metric import require
from lebm.method import CHUNK, Method
from lebm.sampler import Chain

WATCHED = 200  # chains behind an energy profile; the first of them are shown
STEPS, ROWS = 100, 8  # of chains that are shown, where the caller names no number


@dataclass(frozen=True)
class Trace:
    """Chains of the prior: z at `steps`, and the energy -f of all watched chains after every step."""

    steps: list[int]
    z: Tensor  # (frames, rows, nz), on the method's device
    energy: np.ndarray  # (K + 1, WATCHED)


def trace(
    method: Method,
    steps: int = STEPS,
    every: int = 10,
    rows: int = ROWS,
    seed: int = 0,
    step_size: float | None = None,
    progress: Progress = ignore,
) -> Trace:
    """Run chains that start where the run's own chains start. More rows or steps leave those shown as they are.

    With a step size the chain is the paper's, otherwise the run's own.
    """
    if steps < 0 or every < 1 or not 1 <= rows <= WATCHED:
        raise ConfigError(
            f"{rows} chains of {steps} steps, shown every {every}: "
            f"steps are at least 0, every at least 1, rows 1 to {WATCHED}"
        )
    shown, rng = sorted({*range(0, steps, every), steps}), stream(seed, "chains", method.device)
    energy, states = run(method, steps, rng, WATCHED, shown, progress, step_size=step_size)
    return Trace(shown, torch.stack([z[:rows] for z in states]), energy)


def energy_profile(method: Method, seed: int, steps: int, chains: int = WATCHED) -> np.ndarray:
    """-f(z) along prior chains that start where the run's own chains start: an array (steps + 1, chains)."""
    return run(method, steps, stream(seed, "profile", method.device), chains, drawn=chains)[0]


@torch.no_grad()
def run(
    method: Method,
    steps: int,
    rng: torch.Generator,
    rows: int,
    marks: Sequence[int] = (),
    progress: Progress = ignore,
    *,
    drawn: int = CHUNK,
    step_size: float | None = None,
) -> tuple[np.ndarray, list[Tensor]]:
    """Chains of the prior that start where the run's own chains start, the first `rows` of `drawn` ones: -f of at most
    WATCHED of them after every step, (steps + 1, chains), and the z of all of them after the steps in `marks`. With a
    step size the chain is the paper's, otherwise the run's own."""
    latent = prior_chains(method)
    chain = replace(latent.prior_chain, steps=steps) if step_size is None else Chain(steps, step_size)
    energy: list[Tensor] = []
    states: dict[int, Tensor] = {}

    def watch(k: int, z: Tensor) -> None:
        energy.append(-latent.prior.f(z[:WATCHED]))
        if k in marks:
            states[k] = z
        progress(k, steps)

    start = latent.draw(drawn, rng, replace(method.choose("prior"), steps=0))[:rows]
    latent.run_prior_chain(start, chain, rng, watch=watch)
    return torch.stack(energy).cpu().double().numpy(), [states[k] for k in marks]


def prior_chains(method: Method) -> LatentEBM:
    """The method, where its prior has an energy and chains."""
    latent: LatentEBM = require(
        method, "energy-based prior with chains", "prior_chain", "run_prior_chain", "prior_start", "prior"
    )
    return latent


def profile(energy: np.ndarray, points: int = 250) -> dict[str, list[float]]:
    """Median and spread of the energy over chains, at no more than so many steps."""
    at = np.unique(np.linspace(0, len(energy) - 1, min(points, len(energy))).round().astype(int))
    quantiles = np.quantile(energy[at], [0.1, 0.25, 0.5, 0.75, 0.9], axis=1)
    names = ("low", "lower", "middle", "upper", "high")
    return {"step": at.tolist(), **{name: np.round(q, 4).tolist() for name, q in zip(names, quantiles, strict=True)}}


# --- statistics -------------------------------------------------------------------------------------------------------


def autocorrelation(draws: np.ndarray) -> np.ndarray:
    """rho(lag), rho(0) = 1, over all chains: 1 - (W - mean autocovariance) / var+, so that chains that disagree count
    as correlated.
    """
    n = draws.shape[1]
    cov = autocovariance(draws)
    within = cov[:, 0].mean() * n / (n - 1)
    pooled = within * (n - 1) / n
    if len(draws) > 1:
        pooled += draws.mean(1).var(ddof=1)
    if pooled <= 0:
        return np.ones(n)  # nothing moves: every draw is the first one again
    rho = 1 - (within - cov.mean(0) * n / (n - 1)) / pooled
    rho[0] = 1
    return rho


def autocovariance(draws: np.ndarray) -> np.ndarray:
    """Of each chain at every lag, divided by n, by Fourier transform."""
    n = draws.shape[1]
    centred = draws - draws.mean(1, keepdims=True)
    transform = np.fft.rfft(centred, 2 * n, axis=1)
    return np.fft.irfft(np.abs(transform) ** 2, axis=1)[:, :n] / n


def effective_sample_size(draws: np.ndarray) -> float:
    """How many independent draws would give the mean as well, of all draws in split chains (Geyer's initial monotone
    sequence).
    """
    draws = split(draws)
    rho = autocorrelation(draws)
    total, smallest, rest = 0.0, np.inf, 0.0
    for k in range(0, len(rho) - 1, 2):
        pair = rho[k] + rho[k + 1]
        if pair < 0:
            rest = max(float(rho[k]), 0.0)
            break
        smallest = min(smallest, pair)  # pairs of a reversible chain fall: what rises again is noise
        total += smallest
    tau = max(2 * total + rest - 1, 1 / np.log10(draws.size))
    return draws.size / tau


def split_rhat(draws: np.ndarray) -> float:
    """sqrt(var+ / W) over half chains: 1 where they agree; above about 1.01 they have not forgotten where they came
    from.
    """
    draws = split(draws)
    n = draws.shape[1]
    within, between = draws.var(1, ddof=1).mean(), n * draws.mean(1).var(ddof=1)
    if within <= 0:
        return 1.0 if between <= 0 else float("inf")
    return float(np.sqrt((between / within + n - 1) / n))


def split(draws: np.ndarray) -> np.ndarray:
    """Each chain as two, its first and its second half."""
    half = draws.shape[1] // 2
    if half < 2:
        raise ValueError(f"chains of {draws.shape[1]} draws cannot be split; give at least 4")
    return np.concatenate([draws[:, :half], draws[:, -half:]])
