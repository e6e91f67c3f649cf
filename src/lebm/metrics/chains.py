"""What a set of Markov chains says about itself: autocorrelation, effective sample size, split R-hat.

As in Gelman et al., Bayesian Data Analysis (3rd ed., 11.4 and 11.5), and in Stan and ArviZ; arrays are (chains, draws).
"""

from __future__ import annotations

import numpy as np


def autocorrelation(draws: np.ndarray) -> np.ndarray:
    """rho(lag), rho(0) = 1, over all chains: 1 - (W - mean autocovariance) / var+, so that chains that disagree count as correlated."""
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
    """How many independent draws would pin down the mean as well, of all draws in split chains (Geyer's initial monotone sequence)."""
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
    """sqrt(var+ / W) over half chains: 1 where they agree; above about 1.01 they have not forgotten where they came from."""
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
