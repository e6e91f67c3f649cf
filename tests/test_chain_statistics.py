"""Autocorrelation, effective sample size and split R-hat against closed forms, and against ArviZ where it is installed."""

import warnings

import numpy as np
import pytest

from lebm.measure.chains import autocorrelation, effective_sample_size, split, split_rhat


def ar1(phi, chains=8, draws=4000, seed=0):
    """z_t = phi z_{t-1} + e, started in its stationary law."""
    rng = np.random.default_rng(seed)
    out = np.empty((chains, draws))
    out[:, 0] = rng.normal(size=chains) / np.sqrt(1 - phi**2)
    for t in range(1, draws):
        out[:, t] = phi * out[:, t - 1] + rng.normal(size=chains)
    return out


@pytest.mark.parametrize("phi", [0.0, 0.6, 0.95])
def test_an_autoregressive_chain_has_a_known_sample_size(phi):
    """rho(k) = phi^k, so n_eff = n (1 - phi) / (1 + phi)."""
    draws = ar1(phi, draws=20000)
    assert effective_sample_size(draws) == pytest.approx(draws.size * (1 - phi) / (1 + phi), rel=0.1)
    lags = np.arange(1, 6)
    assert np.allclose(autocorrelation(draws)[lags], phi**lags, atol=0.03)
    assert split_rhat(draws) == pytest.approx(1, abs=0.005)


def test_chains_that_disagree_are_seen():
    draws = ar1(0.5)
    assert split_rhat(draws + np.arange(8)[:, None]) > 1.5
    assert effective_sample_size(draws + np.arange(8)[:, None]) < 100
    drift = ar1(0.5, chains=2) + np.linspace(0, 5, 4000)
    assert split_rhat(drift) > 1.3  # the halves differ though the chains do not


def test_chains_that_stand_still():
    still = np.ones((3, 10))
    assert split_rhat(still) == 1 and effective_sample_size(still) < 10
    assert split_rhat(still * np.arange(3)[:, None]) == np.inf


def test_halves():
    assert split(np.arange(10).reshape(2, 5)).tolist() == [[0, 1], [5, 6], [3, 4], [8, 9]]
    with pytest.raises(ValueError, match="at least 4"):
        split(np.zeros((2, 3)))


@pytest.mark.parametrize("phi", [-0.4, 0.3, 0.9])
def test_the_numbers_are_arvizs(phi):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own future
        az = pytest.importorskip("arviz")
        for draws in (ar1(phi, 4, 500, 3), ar1(phi, 3, 301, 4) + np.arange(3)[:, None] * 0.3):
            even = draws[:, : draws.shape[1] // 2 * 2]
            assert split_rhat(draws) == pytest.approx(float(az.rhat(even, method="split")), rel=0.01)
            assert effective_sample_size(even) == pytest.approx(float(az.ess(even, method="mean")), rel=0.02)
            assert np.allclose(autocorrelation(draws[:1])[:20], az.autocorr(draws[0])[:20], atol=0.01)
